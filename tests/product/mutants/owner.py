"""One fault for each row of the owner's table (:mod:`quiver.segment.segments`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from quiver.format.wal.commit import Commit
from quiver.ids import BundleRef
from quiver.segment.closing import Trigger
from quiver.segment.info import segment_path
from quiver.segment.open_segment import OpenSegment
from quiver.segment.segments import Segments, _InMemory
from quiver.subscriber.registry import Registry
from quiver.upkeep.healing import Healing
from tests.crash.mutants.tools import instead, skip_file_sync
from tests.product.mutants.tools import mutant


@mutant("row opened", "plain", by=("ref_unique",))
def opened_with_a_used_number() -> AbstractContextManager[Any]:
    """A new segment gets the number of the one before it, once that has a file."""
    original = Segments.opened

    def opened(self: Segments, now: float) -> _InMemory:
        if self.next_segment and self.next_segment - 1 in self._files:
            self.next_segment -= 1
        return original(self, now)

    return instead(Segments, "opened", opened)


@mutant("row closed", "meanwhile", by=("durable_present",))
def closed_still_takes_bundles() -> AbstractContextManager[Any]:
    """A closed segment takes bundles until it has its file."""
    original = Segments.append, Segments.next_ref

    def late(self: Segments) -> _InMemory | None:
        last = next(reversed(self._memory.values()), None)
        return last if last is not None and last.trigger is Trigger.FLUSH else None

    def next_ref(self: Segments) -> BundleRef:
        last = late(self)
        if last is None:
            return original[1](self)
        return BundleRef(last.segment.seq, last.segment.bundle_count)

    def append(self: Segments, slots: Any, meta: Any, now: float) -> None:
        last = late(self)
        if last is None:
            original[0](self, slots, meta, now)
        else:
            last.segment.append(slots, meta)
            self.nbytes += meta.nbytes

    stack = ExitStack()
    stack.enter_context(instead(Segments, "next_ref", next_ref))
    stack.enter_context(instead(Segments, "append", append))
    return stack


@mutant("row recovered", "plain", by=("opens", "durable_present"))
def recovered_is_not_waited_for() -> AbstractContextManager[Any]:
    """The log may go before the segments that a start took from it have files."""
    original = Segments._not_in_file

    def not_in_file(self: Segments) -> list[int]:
        taken = [seq for seq, one in self._memory.items() if one.trigger is Trigger.RECOVERY]
        return [seq for seq in original(self) if seq not in taken]

    return instead(Segments, "_not_in_file", not_in_file)


@mutant("row reserved", "commits", by=("goes_on", "durable_present"))
def reserved_numbers_given_out() -> AbstractContextManager[Any]:
    """The next segment gets a number that a commit has reserved."""
    original = Segments.reserved

    def reserved(self: Segments, commit: Commit, *, durable: bool = False) -> None:
        following = self.next_segment
        original(self, commit, durable=durable)
        if not durable:
            self.next_segment = following

    return instead(Segments, "reserved", reserved)


@mutant("row rolled_back", "full", by=("opens", "no_phantom"))
def rolled_back_stays() -> AbstractContextManager[Any]:
    """Bundles of a group that could not be written stay in memory."""
    return instead(Segments, "rolled_back", lambda self, sequence: None)


@mutant("row sealed", "plain", by=("no_false_damage", "durable_present"))
def sealed_before_it_is_durable() -> AbstractContextManager[Any]:
    """A segment counts as written, and its log goes, before its file is synced."""
    return skip_file_sync("fsync", lambda path: path.endswith(".qseg.tmp"))


@mutant("row finished", "plain", by=("durable_present",))
def finished_by_one_is_finished() -> AbstractContextManager[Any]:
    """A segment is not written, and deleted, once one of its subscribers has finished it."""

    def retire(self: Registry, seq: int, total: int, hide: Callable[[int], None]) -> bool:
        with self._lock, ExitStack() as held:
            states = [held.enter_context(one.locked()) for one in self._subscribers.values()]
            if not any(one.is_complete(seq, total) for one in states):
                return False
            for state in states:
                state.drop_segment(seq, total)
            hide(seq)
        return True

    return instead(Registry, "retire", retire)


@mutant("row rebuilt", "rot", by=("durable_present",))
def rebuilt_shows_nothing() -> AbstractContextManager[Any]:
    """A segment rebuilt from the log is in memory, and shown to no subscriber."""
    original = Segments.rebuilt

    def rebuilt(self: Segments, segment: OpenSegment, *, replaces_file: bool = False) -> None:
        original(self, segment, replaces_file=replaces_file)
        if replaces_file:
            segment.visible = 0

    return instead(Segments, "rebuilt", rebuilt)


@mutant("row dropped", "dying", by=("no_false_damage",))
def dropped_before_the_floor() -> AbstractContextManager[Any]:
    """A segment's file is deleted before the floor says that it is gone."""
    original = Segments.dropped

    def dropped(self: Segments, seqs: Iterable[int]) -> None:
        numbers = list(seqs)
        original(self, numbers)
        for seq in numbers:
            self._disk.unlink(segment_path(seq), missing_ok=True)

    return instead(Segments, "dropped", dropped)


@mutant("row damaged", "rot", by=("loss_on_record",))
def damaged_without_a_record() -> AbstractContextManager[Any]:
    """A damaged segment is gone, and the ledger doesn't say so."""
    return instead(Healing, "_record", lambda self, loss, info, damage: None)
