"""The small files that say what is true: checkpoint, segment floor, progress.

Whatever goes (a log file, a segment, a subscriber) goes only after these say so; the
rooms that delete call this one first.  All of them are replaced as a whole, and all of
them must still work on a full disk: that is what the reserve is for.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from quiver import metrics as m
from quiver.errors import Damage, IoFault, NotFound, StorageFull
from quiver.events import BUNDLES_LOST, DISK_FULL, DISK_RECOVERED, STORE_DEGRADED
from quiver.format.floor import FLOOR_PATH, Floor, encode_floor
from quiver.format.state import STATE_NAME, Checkpoint, Loss, encode_state
from quiver.ingest.parts import Parts
from quiver.record.key_runs import RUN_KEYS, KeyRuns
from quiver.recovery.losses import loss_of, needed_of
from quiver.segment.info import SegmentInfo, bundle_counts
from quiver.upkeep.maintenance_lock import MaintenanceLock

T = TypeVar("T")


class Records:
    """Writes the small files; ``lock`` is upkeep's: one writer at a time."""

    def __init__(self, parts: Parts, lock: MaintenanceLock, floor: Floor, state: Checkpoint):
        self._parts = parts
        self._lock = lock
        self._floor = floor
        self._state = state
        self._runs = KeyRuns(parts.disk, state.keys)
        self._state_size = parts.disk.stat_size(STATE_NAME) or 0
        self.disk_full = False
        self.last_progress = parts.clock.monotonic()
        self.problems: list[str] = []
        """What was lost or damaged since the store was opened, in words."""

    # The checkpoint

    def checkpoint(self, *, leaving: str | None = None) -> None:
        """Write ``quiver.state``: what would otherwise go with the log or a segment.

        Keys that are new since the last one are made durable in a run before it lists them.

        It names the subscribers whose file must be there, so one that comes is named
        after its file is durable, and one that goes (``leaving``) is not named before its
        file goes: a crash in between must not look like a lost file.
        """
        parts = self._parts
        with self._lock:
            with parts.lock:
                through = parts.ingest.durable_before
                state = replace(
                    self._state,
                    through=through,
                    last_ts=parts.ingest.last_ts,
                    store_time=parts.ingest.times.record(),
                    slots={name: slot for slot, name in parts.slots.names.items()},
                    transactions=parts.ingest.transactions.snapshot(through),
                )
                keys = parts.ingest.window.snapshot(through)
            subscribers = tuple(
                one.name
                for one in parts.registry.subscribers()
                if one.has_file and one.name != leaving
            )
            runs = self.guarded(lambda: self._runs.cover(keys))
            counts = bundle_counts(parts.segments.infos())
            self._write_state(
                replace(state, subscribers=subscribers, keys=runs, bundle_counts=counts)
            )
            if not self._floor.has_state:
                self._write_floor(replace(self._floor, has_state=True))
            with contextlib.suppress(IoFault, StorageFull):  # the next checkpoint tries again
                self._runs.remove_unlisted()

    def _write_state(self, state: Checkpoint) -> None:
        """Replace the checkpoint, with the ledger as it is. Upkeep's lock held, as by all who
        write to the ledger."""
        ledger = self._parts.ledger
        state = ledger.kept_in(state)
        data = encode_state(state)
        self.guarded(lambda: self._parts.disk.replace(STATE_NAME, data))
        self._state_size = len(data)
        self._state = state
        ledger.dirty = False

    def cover_log(self) -> int:
        """Have the checkpoint hold what the log holds; entries below the returned sequence may go.

        An entry that becomes durable while the checkpoint is written is not in it: its log file
        must stay.
        """
        with self._parts.lock:
            durable_before = self._parts.ingest.durable_before
            is_stale = self._is_stale()
        if not (is_stale or self._lacks_counts):
            return durable_before
        self.checkpoint()
        return self._state.through

    @property
    def has_checkpoint(self) -> bool:
        """Whether the store has one of this version, with its uuid."""
        return self._floor.has_state

    @property
    def has_many_new_keys(self) -> bool:
        """Whether so many keys may be in the log alone that they are worth a run of their own.

        Were they left until their log file is retired, the run might not fit the reserve.
        """
        ingest, through = self._parts.ingest, self._state.through
        newest = ingest.window.newest_sequence
        return newest is not None and min(newest + 1, ingest.durable_before) >= through + RUN_KEYS

    def names(self, subscriber: str) -> bool:
        """Whether the checkpoint says that this subscriber must have a file."""
        return subscriber in self._state.subscribers

    @property
    def lacks_names(self) -> bool:
        """Whether slots got names that the checkpoint doesn't have."""
        names = self._parts.slots.names
        return {name: slot for slot, name in names.items()} != dict(self._state.slots)

    @property
    def is_stale(self) -> bool:
        """Whether log or segments hold something that the checkpoint lacks."""
        with self._parts.lock:
            is_stale = self._is_stale()
        return is_stale or self._lacks_counts

    @property
    def _lacks_counts(self) -> bool:
        """Whether a segment's file alone says how many bundles it has."""
        counts = bundle_counts(self._parts.segments.infos())
        return not counts.keys() <= self._state.bundle_counts.keys()

    def _is_stale(self) -> bool:
        """Ingest lock held."""
        parts = self._parts
        newest = (
            parts.ingest.window.newest_sequence,
            parts.ingest.transactions.newest_sequence,
        )
        return (
            parts.ledger.dirty
            or parts.ingest.last_ts != self._state.last_ts  # it goes back after a clock's jump
            or self.lacks_names
            or any(one is not None and one >= self._state.through for one in newest)
        )

    # Losses

    def loss_of(
        self, info: SegmentInfo, reason: str, lost: int | None = None, nbytes: int | None = None
    ) -> Loss | None:
        """The row for bundles of a segment that are about to go: all, or those in a bitmap.

        ``None`` if every subscriber has finished them, durably, or they are on record already.
        A row that is there names whoever came since; :meth:`record_loss` makes that durable, so
        it is to be called also without a row.
        """
        count = info.bundle_count
        going = (1 << count) - 1 if lost is None else lost
        return self.loss_in(
            info.seq, count, going, reason, info.nbytes if nbytes is None else nbytes
        )

    def loss_in(self, seq: int, count: int, going: int, reason: str, nbytes: int) -> Loss | None:
        """As :meth:`loss_of`, for these of the ``count`` bundles of a segment without a file."""
        self.flush_progress()  # an outcome that a crash could take back must not count
        parts = self._parts
        unfinished = parts.registry.unfinished_in(seq, count)
        on_record = parts.ledger.indexes(seq) & going
        if on_record & needed_of(going, unfinished.values()):
            # Nobody who came later was owed what had left its place empty by then.
            parts.ledger.name_also(seq, on_record & ~self._empty_places(seq), unfinished)
        return loss_of(seq, going & ~on_record, unfinished, reason, parts.clock.now_ns(), nbytes)

    def _empty_places(self, seq: int) -> int:
        """The bundles of a segment that were lost before its file was written, as a bitmap."""
        try:
            reader = self._parts.segments.reader(seq)
            return sum(1 << index for index in range(reader.visible) if reader.meta(index).lost)
        except (Damage, NotFound):
            return 0

    def record_loss(self, *losses: Loss, problem: str | None = None) -> None:
        """Put on record that bundles are about to go unread, durably: the only way to.

        With a ``problem`` it is damage, and the store is degraded; without, a policy's doing.
        A crash before it is carried out leaves a row for a loss that may not come about; the
        other way round, one would come about that is not on record.  Without losses, what an
        earlier try could not write is written.
        """
        parts = self._parts
        for loss in losses:
            parts.ledger.record(loss)
            if problem is not None:
                parts.log.error(
                    BUNDLES_LOST,
                    segment=loss.segment_seq,
                    bundles=loss.bundles,
                    exact=loss.exact,
                    subscribers=dict(loss.subscribers),
                )
        if problem is not None:
            self.note(problem)
        if parts.ledger.dirty:
            self.checkpoint()

    def record_rejects(self, names: tuple[str, ...] | None = None) -> None:
        """Put on record, durably and in one write, what subscribers have refused.

        A crash behind it makes the bundles pending again, and they have rows already: rejected
        once more, they are not counted twice.
        """
        chosen = self._parts.registry.chosen(names)
        if not any(one.has_unrecorded for one in chosen):
            return
        with self._lock:
            now = self._parts.clock.now_ns()
            rejects = [(one, one.unrecorded()) for one in chosen]
            for subscriber, segments in rejects:
                for seq, bits in segments.items():
                    self._parts.ledger.record_reject(subscriber.name, seq, bits, now)
            if self._parts.ledger.dirty:
                # The last checkpoint with another ledger: durable rejects must not wait for
                # keys to be written.
                self._write_state(self._state)
            for subscriber, segments in rejects:
                subscriber.recorded(segments)

    def note(self, problem: str) -> None:
        """The store is degraded: why, for the status and the logger."""
        self.problems.append(problem)
        self._parts.log.error(STORE_DEGRADED, problem=problem)

    # The floor

    def keep_floor(self, *, log_first: int | None = None) -> None:
        """Make durable which numbers are used up, and which of them are gone.

        ``log_first`` is the sequence that the log is about to begin with.  Without a log,
        numbers are used up before they are given out; the floor is written with every segment
        then, so that no put waits for it.
        """
        ahead = self._parts.config.segment.max_unfinalized if self._parts.wal is None else 0
        floor = self._parts.segments.floor(self._floor, ahead=ahead)
        if log_first is not None:
            floor = replace(floor, log_first=log_first)
        if floor != self._floor:
            self._write_floor(floor)

    def _write_floor(self, floor: Floor) -> None:
        self.guarded(lambda: self._parts.disk.replace(FLOOR_PATH, encode_floor(floor)))
        self._floor = floor

    def mark_log_begun(self, first: int) -> None:
        """From now on a missing log is damage, and so is one without its first file."""
        if not self._floor.has_log:
            self._write_floor(replace(self._floor, has_log=True, log_first=first))

    # Progress

    def flush_progress(self, names: tuple[str, ...] | None = None) -> int:
        """Make outcomes durable; how many files were written.

        Rejects go on record first.  If that fails, the other outcomes are kept all the same.
        """
        self.last_progress = self._parts.clock.monotonic()
        try:
            self.record_rejects(names)
        finally:
            written = self.guarded(lambda: self._parts.registry.flush(names))
            self._parts.metrics.counter(m.PROGRESS_WRITES).add(written)
        return written

    # A full disk

    def guarded(self, write: Callable[[], T]) -> T:
        """A small write that must work on a full disk: the reserve is there for it."""
        try:
            return write()
        except StorageFull:
            self.note_full()
            if not self._parts.reserve.release():
                raise
            return write()

    def note_full(self) -> None:
        """The disk said that it is full."""
        if not self.disk_full:
            self.disk_full = True
            self._parts.log.warning(DISK_FULL)

    def look_for_room(self) -> None:
        """Take the reserve back, and notice when the disk is not full any more.

        The checkpoint is written beside the old one, and grows with the ledger meanwhile: it
        must fit twice.
        """
        parts = self._parts
        parts.reserve.require(2 * self._state_size)
        if parts.reserve.restore() and self.disk_full:
            free = parts.disk.free_bytes()
            if free > parts.reserve.size:
                self.disk_full = False
                parts.log.info(DISK_RECOVERED, free_bytes=free)
