"""Carrying a repair out.

In this order, each step durable before the next, so that a crash in between leaves
something that a second repair ends the same way::

    losses on record → damaged files set aside → segments → progress → floor → checkpoint
        → log set aside

The losses come first: nothing is given up before the ledger says so.  The floor comes
before the log goes, and says that it goes: from then on nothing asks the log any more, and
a second repair only ends what is left to do.  It comes before the checkpoint, which is then
ahead of the log; but for a log of the Rust crate, whose adoption the checkpoint ends first.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from quiver.clock import Clock
from quiver.disk import quarantine
from quiver.disk.disk import Disk
from quiver.disk.lock import StoreLock
from quiver.errors import Damage, QuiverError, StateCorrupt
from quiver.format.floor import FLOOR_PATH, Floor, encode_floor
from quiver.format.keys import KEYS, KeyRecord, decode_named_run, sequence_of
from quiver.format.progress import Progress, SegmentProgress
from quiver.format.record import BundleMeta
from quiver.format.segment.stage import STAGES
from quiver.format.state import (
    MAX_COUNTS,
    STATE_NAME,
    Adoption,
    Gap,
    Loss,
    encode_state,
    index_ranges,
)
from quiver.ids import BundleRef
from quiver.offline.index import LogPlace
from quiver.offline.look import Watch
from quiver.offline.repair import RepairPlan
from quiver.record.app_versions import committed_versions
from quiver.record.key_runs import KeyRuns, remove_unlisted
from quiver.record.ledger import DAMAGED, Ledger
from quiver.recovery.consistency import known_sequence
from quiver.recovery.fates import SegmentFate, is_deleted, transaction_of
from quiver.recovery.losses import damage_losses, left_of, left_or_dropped, needed_of
from quiver.recovery.replay import build_segment, entry_meta, key_of
from quiver.segment.info import SEGMENTS, SUFFIX, parse_name, segment_path
from quiver.segment.open_segment import OpenSegment
from quiver.segment.segments import floor_of
from quiver.segment.staged_file import publish_stage
from quiver.segment.writer import write_segment
from quiver.subscriber.progress import keep_progress, progress_file
from quiver.wal.files import CURSOR, DIRECTORY, NEW, SPARE, log_names

NUMBERS_SKIPPED: Final = 1024
"""Segment numbers passed over when nobody knows which were given out last."""
SEQUENCES_SKIPPED: Final = 1 << 20
REPAIRED: Final = "repaired"
"""The reason of the gap in which the checkpoint keeps the first number after a repair."""
MAX_KEYS: Final = 10_000_000
"""Keys that are kept, the newest: as many as the widest window that can be configured has."""


@dataclass(frozen=True, slots=True)
class Mended:
    """What a repair did."""

    written: tuple[int, ...]
    set_aside: tuple[str, ...]
    losses: tuple[Loss, ...]


def mend(disk: Disk, clock: Clock, *, where: str, watch: Watch | None = None) -> Mended:
    """Plan again, under the store's lock, and do it."""
    with StoreLock.acquire(disk, clock, where=where):
        plan = RepairPlan(disk, watch)
        if not plan.is_needed:
            return Mended((), (), ())
        return _Mending(disk, clock, plan).run()


class _Mending:
    def __init__(self, disk: Disk, clock: Clock, plan: RepairPlan) -> None:
        self._disk = disk
        self._clock = clock
        self._plan = plan
        self._basics = plan.found.basics
        self._aside: list[str] = []
        state = self._basics.known_state
        self._ledger = Ledger.of(state)
        self._uuid = state.uuid or uuid.uuid4().hex
        self._keys = self._all_keys()

    def run(self) -> Mended:
        plan, disk = self._plan, self._disk
        disk.mkdir(SEGMENTS)
        disk.fsync_dir("")
        losses = self._record_losses()
        for seq in plan.to_set_aside:
            # What is written again takes the old file's place in one step.
            aside = self._copy_aside if seq in plan.to_write else self._move_aside
            aside(segment_path(seq))
        for seq in plan.to_write:
            self._write_again(seq)
        self._publish()
        for path in plan.staged_damage:
            self._move_aside(path)
        self._keep_progress()
        following = self._following()
        if plan.found.foreign:
            self._keep_last_state(following)
            self._keep_floor(following)
        else:
            self._keep_floor(following)
            self._keep_last_state(following)
        if plan.set_log_aside:
            self._set_log_aside()
        elif isinstance(self._basics.cursor, QuiverError):
            self._move_aside(CURSOR)
        return Mended(tuple(plan.to_write), tuple(self._aside), losses)

    def _publish(self) -> None:
        """Committed files, before the log goes that says they are."""
        for one in self._plan.to_publish:
            publish_stage(self._disk, one.commit, one.seq, one.file)
        if self._plan.to_publish:
            self._disk.fsync_dir(SEGMENTS)
            self._disk.fsync_dir(STAGES)

    # Setting aside

    def _move_aside(self, path: str) -> None:
        """Move a file to quarantine; fine if a repair before this one did."""
        if self._disk.stat_size(path) is None:
            return
        self._aside.append(quarantine.move(self._disk, path))

    def _copy_aside(self, path: str) -> None:
        """Copy a file that is about to be replaced."""
        if self._disk.stat_size(path) is not None:
            self._aside.append(quarantine.copy(self._disk, path))

    def _set_log_aside(self) -> None:
        """Oldest first, so that what is left always ends where it did."""
        for name in log_names(self._disk):
            self._move_aside(name.path)
        for path in (NEW, SPARE):
            self._disk.unlink(path, missing_ok=True)
        self._move_aside(CURSOR)
        self._disk.mkdir(DIRECTORY)
        self._disk.fsync_dir(DIRECTORY)

    # Segments

    def _write_again(self, seq: int) -> None:
        names = {slot: name for name, slot in self._plan.names.items()}
        transaction = transaction_of(self._plan.found, seq)
        write_segment(self._disk, self._segment(seq), names, transaction)

    def _segment(self, seq: int) -> OpenSegment:
        """A segment of what can be read; a lost bundle leaves an empty one nobody is given."""
        bundles = self._plan.readable[seq]
        fate = self._plan.inventory.fates[seq]
        count = max(fate.count, max(bundles, default=-1) + 1)
        found = (bundles.get(index) for index in range(count))
        return build_segment(seq, (None if one is None else one.content() for one in found))

    def _live(self) -> set[int]:
        published = {one.seq for one in self._plan.to_publish}
        return self._plan.kept | set(self._plan.to_write) | published

    def _bundle_counts(self) -> dict[int, int]:
        live = self._live()
        fates = self._plan.inventory.fates.items()
        known = [(seq, fate.count) for seq, fate in fates if seq in live and fate.exact]
        return dict(sorted(known)[-MAX_COUNTS:])

    # Losses, and where the subscribers stand

    def _record_losses(self) -> tuple[Loss, ...]:
        """Put on record, durably, what is about to be given up."""
        plan, now = self._plan, self._clock.now_ns()
        fates = plan.inventory.fates.values()
        losses = list(damage_losses(fates, plan.found, self._ledger, now))
        losses += self._unnamed_losses(now)
        losses += self._forgotten_losses(now)
        for loss in losses:
            self._ledger.record(loss)
        # Not beyond the log's end yet: it is still there if a crash comes now.
        log = plan.found.log
        through = min(self._known, log.next_sequence) if log.files else self._known
        if plan.rebuild_state is not None:
            self._copy_aside(STATE_NAME)
        for run in plan.damaged_runs:
            self._move_aside(run.path)
        self._keep_state(through, adoption=self._basics.known_state.adoption)
        return tuple(losses)

    def _unnamed_losses(self, now: int) -> Iterator[Loss]:
        """Losses of the log that can't be put down to bundles of a segment: for all that is
        known, every subscriber had still to be given them."""
        for lost in self._plan.unnamed:
            seq = max((ref.segment_seq for ref in lost.refs), default=max([0, *self._live()]))
            count = max(0, (lost.bundles or 0) - len(lost.refs))
            waiting = dict.fromkeys(self._basics.progress, count) if count else {}
            first = None if lost.sequences is None else lost.sequences[0]
            row = Loss(seq, count, 0, DAMAGED, now, waiting, (), exact=False, sequence=first)
            # One that a repair recorded before it was interrupted is not counted again, also if
            # segments that it wrote account for some of it now; one that only looks alike has
            # another sequence.
            if not any(_includes(one, row) for one in self._ledger.losses):
                yield row

    def _forgotten_losses(self, now: int) -> Iterator[Loss]:
        """The ledger was lost with the checkpoint: what segments still say of earlier losses.

        Who had finished what is not known any more for those who are past the segment, so
        these rows are upper bounds.  Rows that left no such gap are not known any more: a row
        without a number says that there may have been some.
        """
        if self._plan.rebuild_state is None:
            return
        for seq in sorted(self._plan.kept):
            reader = self._plan.found.files.open(seq)
            indexes = [n for n in range(reader.info.bundle_count) if reader.meta(n).lost]
            bits = sum(1 << index for index in indexes) & ~self._ledger.indexes(seq)
            if bits:
                waiting = {
                    name: (left_or_dropped(progress, seq) & bits).bit_count()
                    for name, progress in self._basics.progress.items()
                }
                yield Loss(
                    seq,
                    bits.bit_count(),
                    0,
                    DAMAGED,
                    now,
                    {name: count for name, count in waiting.items() if count},
                    index_ranges(bits),
                    exact=False,
                )
        unknown = Loss(0, 0, 0, DAMAGED, now, {}, indexes=(), exact=False)
        if all(replace(one, at_ns=now) != unknown for one in self._ledger.losses):
            yield unknown

    def _keep_progress(self) -> None:
        for name, progress in self._basics.progress.items():
            if not isinstance(progress, Progress):
                self._copy_aside(progress_file(name))
                progress = Progress()
            entries = dict(progress.entries)
            for fate in self._plan.inventory.fates.values():
                if fate.lost and fate.exact:
                    self._give_up(progress, entries, fate)
            keep_progress(self._disk, name, replace(progress, entries=entries))

    def _give_up(
        self,
        progress: Progress,
        entries: dict[int, SegmentProgress],
        fate: SegmentFate,
    ) -> None:
        """Mark what is lost as dropped.

        Also of a segment of which nothing is left: should a crash come before the floor says
        so, these entries still tell how many bundles it had.
        """
        entry = entries.get(fate.seq)
        if entry is None and fate.seq < progress.oldest_incomplete:
            return
        count = fate.count
        old = entry or SegmentProgress(count, 0, 0)
        bits = sum(1 << index for index in fate.lost) & ~old.done
        entries[fate.seq] = SegmentProgress(
            max(count, old.bundle_count), old.done | bits, old.dropped | bits
        )

    # Small files

    def _keep_last_state(self, following: int) -> None:
        """The checkpoint to go on with."""
        self._keep_state(self._next_sequence(), adoption=None, following=following)

    def _keep_state(
        self, through: int, adoption: Adoption | None, following: int | None = None
    ) -> None:
        """The checkpoint, with the losses, and what only the old log knew."""
        found, state = self._plan.found, self._basics.known_state
        last = [held.ingestion_ts_ns or 0 for held in self._plan.inventory.bundles[-1:]]
        state = replace(
            state,
            through=through,
            last_ts=max([state.last_ts, found.log.last_ts_ns, *last]),
            slots=self._plan.names,
            uuid=self._uuid,
            subscribers=tuple(sorted(self._basics.progress)),
            adoption=adoption,
            keys=KeyRuns(self._disk, ()).cover(self._keys),
            window=(),
            bundle_counts=self._bundle_counts(),
            gaps=state.gaps if following is None else _used_up(state.gaps, following),
            transactions=committed_versions(
                state.transactions, found.replay.commits, self._plan.infos.values()
            ),
        )
        self._disk.replace(STATE_NAME, encode_state(self._ledger.kept_in(state)))
        remove_unlisted(self._disk, state.keys)

    @property
    def _known(self) -> int:
        """Behind every sequence that was durable once."""
        found = self._plan.found
        known = known_sequence(self._basics, found.files.infos.values())
        # What an interrupted repair decided; else the log begins there, or later.
        return max(known, found.log.next_sequence, self._basics.known_floor.log_first)

    def _next_sequence(self) -> int:
        log = self._plan.found.log
        if not self._plan.set_log_aside:
            return min(self._known, log.next_sequence) if log.files else self._known
        return self._known + SEQUENCES_SKIPPED

    def _following(self) -> int:
        """A segment number above every one that was ever given out."""
        plan = self._plan
        used = [*self._live(), *plan.readable]
        if plan.rebuild_floor is not None:
            used += self._mentioned()
        following = plan.found.first_free_segment(used)
        guess = plan.set_log_aside or plan.rebuild_floor is not None
        return following + NUMBERS_SKIPPED if guess else following

    def _mentioned(self) -> Iterator[int]:
        """Numbers of segments that may be gone, wherever one is still named."""
        state = self._basics.known_state
        yield from state.bundle_counts
        yield from (loss.segment_seq for loss in self._ledger.losses)
        yield from (one.segments[1] - 1 for one in state.older_losses)
        yield from (one.first_segment + one.segments - 1 for one in state.transactions)
        yield from (record.ref.segment_seq for record in self._keys)
        for name in self._disk.listdir(quarantine.QUARANTINE):
            seq = parse_name(name[: name.find(SUFFIX) + len(SUFFIX)])
            if seq is not None:
                yield seq

    def _keep_floor(self, following: int) -> None:
        plan = self._plan
        if plan.rebuild_floor is not None:
            self._copy_aside(FLOOR_PATH)
        live = self._live()
        unsealed = set() if plan.set_log_aside else self._unsealed()
        files = plan.found.log.files
        has_log = bool(files) and not plan.set_log_aside
        first = files[0].header.first_sequence if has_log else self._next_sequence()
        before = replace(
            self._basics.known_floor, has_log=has_log, has_state=True, log_first=first or 0
        )
        floor = floor_of(before, next_segment=following, files=live, unsealed=unsealed)
        self._disk.replace(FLOOR_PATH, encode_floor(floor))

    def _unsealed(self) -> set[int]:
        """Segments that only the log has, and that the next open must find there.

        Without a floor nothing says which of them were deleted: those that all
        subscribers have finished.
        """
        only_in_log = self._plan.readable.keys() - set(self._plan.to_write)
        waiting = {one.seq for one in self._plan.found.waiting.values() if one.error is None}
        return {seq for seq in only_in_log if not self._is_finished(seq)} | waiting

    def _is_finished(self, seq: int) -> bool:
        if isinstance(self._basics.floor, Floor):
            return False
        known = list(self._basics.known_progress.values())
        return (
            bool(known)
            and not self._plan.broken_progress
            and all(seq < one.oldest_incomplete and seq not in one.entries for one in known)
        )

    # Keys

    def _all_keys(self) -> list[KeyRecord]:
        """Every key that anything here knows, each with its newest bundle, oldest first.

        The new checkpoint accounts for all sequences, so it has to list the keys of all bundles
        that can be read.  They are read before anything is changed.
        """
        found = [*self._basics.known_keys, *self._unlisted_keys(), *self._new_keys()]
        latest = {record.key: record for record in sorted(found, key=sequence_of)}
        kept = (record for record in latest.values() if not self._is_unknown(record.ref))
        return sorted(kept, key=sequence_of)[-MAX_KEYS:]

    def _is_unknown(self, ref: BundleRef) -> bool:
        """Whether a bundle was lost and only its key tells of it: it was behind all that is left
        of the log.  No row of the ledger can name it, so its key must not answer for it."""
        (seq, index), found = ref, self._plan.found
        fate = self._plan.inventory.fates.get(seq)
        if (fate is not None and index < fate.count) or is_deleted(found, seq):
            return False
        if not isinstance(self._basics.floor, Floor):
            return False  # it may have been deleted
        unfinished = [left_of(one, seq) for one in self._basics.progress.values()]
        return bool(needed_of(1 << index, unfinished))

    @property
    def _forgotten(self) -> bool:
        """Whether some of the keys that the checkpoint accounted for can't be read any more."""
        return self._plan.rebuild_state is not None or bool(self._plan.damaged_runs)

    def _unlisted_keys(self) -> Iterator[KeyRecord]:
        """The keys of all sound runs, whatever lists them: keys of deleted segments are nowhere
        else.  Keys that had been dropped from the window drop out of it again."""
        for name in self._disk.listdir(KEYS) if self._forgotten else ():
            with suppress(StateCorrupt, ValueError):
                yield from decode_named_run(self._disk.read(f"{KEYS}/{name}"), name)

    def _new_keys(self) -> Iterator[KeyRecord]:
        """The keys of bundles that the checkpoint does not account for, or not any more: in
        segments, in what is intact of damaged ones, and in the log, which also has those of
        segments that are deleted."""
        through = 0 if self._forgotten else self._basics.known_state.through
        for held in self._plan.inventory.bundles:
            if isinstance(held.source, LogPlace):
                continue  # below
            if held.sequence is not None and held.sequence >= through:
                with suppress(Damage):
                    yield from _key(held.meta(), held.ref)
        for place in self._plan.found.replay.places:
            if place.ref is not None and place.sequence >= through:
                with suppress(Damage):
                    yield from _key(entry_meta(place.bundle()), place.ref)


def _includes(one: Loss, row: Loss) -> bool:
    """Whether a row stands for the same stretch of the log, and for as much of it or more."""
    same = replace(one, at_ns=row.at_ns) == row
    return same or (
        row.sequence is not None
        and (one.sequence, one.reason, one.indexes) == (row.sequence, row.reason, row.indexes)
        and one.bundles >= row.bundles
    )


def _used_up(gaps: tuple[Gap, ...], following: int) -> tuple[Gap, ...]:
    """With the number that a repair goes on with: numbers it passes over, or whose bundles are
    lost, are in the floor only, and that may be damaged next.  The range is empty, since nothing
    is known of the numbers below."""
    others = (gap for gap in gaps if gap.reason != REPAIRED)
    return (*others, Gap((0, 0), (following, following), REPAIRED))


def _key(meta: BundleMeta, ref: BundleRef) -> Iterator[KeyRecord]:
    key = key_of(meta, ref)
    if key is not None:
        yield key
