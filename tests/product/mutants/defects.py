"""Each defect that the product was built to find, brought back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import replace
from typing import Any

from quiver.clock import StoreTimes
from quiver.errors import SegmentBadMagic
from quiver.format.keys import KeyRecord, KeyRun
from quiver.format.segment import file as segment_format
from quiver.format.state import Loss
from quiver.ids import BundleRef
from quiver.offline import mend
from quiver.record.key_runs import KeyRuns
from quiver.record.ledger import Ledger
from quiver.recovery import fates, survey
from quiver.recovery.losses import damage_losses
from quiver.segment import segments
from quiver.segment.open_segment import OpenSegment
from quiver.segment.segments import Segments
from quiver.segment.verified import VerifiedChunks
from quiver.upkeep import healing
from quiver.wal.contents import LogEntry
from quiver.wal.writer import WalWriter
from tests.crash.mutants.tools import instead
from tests.product.mutants.tools import mutant


@mutant("defect 1", "rebuilt_and_swept", by=("durable_present",))
def rebuilt_declared_gone() -> AbstractContextManager[Any]:
    """The floor is made of files alone: a segment rebuilt in memory is declared gone."""
    original = segments.floor_of

    def floor_of(*args: Any, **named: Any) -> Any:
        return original(*args, **{**named, "rebuilt": ()})

    return instead(segments, "floor_of", floor_of)


@mutant("defect 2", "put_inside_upkeep", by=("names_kept",))
def name_retired_with_its_file() -> AbstractContextManager[Any]:
    """A log file is retired with the one entry that has a slot's name, which came meanwhile."""
    original = WalWriter.first_kept

    def first_kept(self: WalWriter, through: int = -1, covered: int | None = None) -> int:
        return original(self, through)

    stack = ExitStack()
    stack.enter_context(instead(WalWriter, "first_kept", first_kept))
    stack.enter_context(instead(LogEntry, "slot_names", lambda self: {}))  # bundles name them, too
    return stack


@mutant("defect 4", "clock", by=("keys_kept",))
def ages_follow_the_wall_clock() -> AbstractContextManager[Any]:
    """Keys, versions and stages age by the wall clock, which jumps."""
    return instead(StoreTimes, "now_ns", lambda self: self._clock.now_ns())


@mutant("defect 5", "deliver", by=("acks_kept",))
def deliver_sealed_forgets() -> AbstractContextManager[Any]:
    """Bundles that were given out from the log are not shown after a start with `sealed`."""
    original = Segments.recovered

    def recovered(self: Segments, segment: OpenSegment, *, shown: bool) -> None:
        original(self, segment, shown=False)

    return instead(Segments, "recovered", recovered)


@mutant("defect 7", "rot", by=("content_equal",))
def checked_once() -> AbstractContextManager[Any]:
    """A segment is checked when it is opened, and what rots afterwards is served."""

    def message(self: VerifiedChunks, index: int, at: int, stream_id: int) -> Any:
        return self._bytes(stream_id, self._offsets[at], self._lengths[at])

    return instead(VerifiedChunks, "_message", message)


@mutant("defect 8", "rot", by=("damage_bounded",))
def one_byte_costs_the_segment() -> AbstractContextManager[Any]:
    """Nothing of a damaged segment is salvaged."""
    stack = ExitStack()
    stack.enter_context(instead(healing, "salvage", lambda *_: None))
    stack.enter_context(instead(survey, "salvage", lambda *_: None))
    return stack


@mutant("defect 9", "rot_log", by=("loss_counted",))
def repair_counts_nothing() -> AbstractContextManager[Any]:
    """What `repair` gives up is on record as no bundles of no subscriber."""

    def uncounted(*args: Any) -> Iterator[Loss]:
        return (replace(loss, bundles=0, subscribers={}) for loss in damage_losses(*args))

    return instead(mend, "damage_losses", uncounted)


@mutant("defect 10", "full_disk_with_keys", by=("room_returns",))
def all_keys_written_again() -> AbstractContextManager[Any]:
    """Every checkpoint writes all keys that are remembered, not those that are new."""
    original = KeyRuns.cover

    def cover(self: KeyRuns, records: Sequence[KeyRecord]) -> tuple[KeyRun, ...]:
        self._runs = []
        return original(self, records)

    return instead(KeyRuns, "cover", cover)


@mutant("defect 11", "segment_only", by=("lost_can_be_sent_again",))
def lost_is_a_duplicate() -> AbstractContextManager[Any]:
    """A repeat of a lost bundle is answered as a duplicate of it."""

    def has_lost(self: Ledger, ref: BundleRef) -> bool:
        return False

    return instead(Ledger, "has_lost", has_lost)


@mutant("defect 15", "newer", by=("newer_untouched",))
def newer_is_damage() -> AbstractContextManager[Any]:
    """A sound segment of a newer version is taken for a damaged one."""
    return instead(segment_format, "UnsupportedVersion", SegmentBadMagic)


@mutant("defect 16", "rot", "rot_log", by=("loss_counted",))
def names_counted_as_bundles() -> AbstractContextManager[Any]:
    """The count of a lost segment includes the log's own entries, and is called exact."""
    original = fates._count

    def count(*args: Any, **named: Any) -> tuple[int | None, bool]:
        return original(*args, **named)[0], True

    return instead(fates, "_count", count)
