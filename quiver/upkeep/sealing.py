"""Writing closed segments, and letting go of the log that they cover.

    log durable → segment file durable → readers switch → floor → log retired

A segment that everybody has finished by the time it is its turn is not written at all,
unless retention would keep it; it would be deleted at once::

    log durable → all finished → progress durable → floor → log retired

Subscribers that keep up are a few bundles behind, so the newest closed segment is left in
memory for a moment where that may save the writing (:meth:`Sealing.is_ready`).

A failed try changes nothing: the segment stays in memory and in the log, and is tried
again, by itself after pauses that double up to :data:`MAX_PAUSE`, and at once when the disk
has room again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from quiver import metrics as m
from quiver.disk import quarantine
from quiver.errors import OutOfResources, Poisoned, QuiverError, StorageFull
from quiver.events import (
    SEGMENT_FINALIZE_FAILED,
    SEGMENT_FINALIZED,
    SEGMENT_QUARANTINED,
    SEGMENT_UNWRITTEN,
)
from quiver.format.wal.commit import Commit
from quiver.ingest.parts import Parts
from quiver.ingest.receipt import Receipt
from quiver.segment.closing import Trigger
from quiver.segment.info import SegmentInfo, segment_path
from quiver.segment.open_segment import OpenSegment
from quiver.segment.writer import write_segment
from quiver.upkeep.checkpoint_files import Records
from quiver.upkeep.maintenance_lock import MaintenanceLock
from quiver.upkeep.publishing import Publishing
from quiver.upkeep.retention import keeps_finished
from quiver.wal.files import write_cursor

FIRST_PAUSE: Final = 0.5
MAX_PAUSE: Final = 10.0
HOLD_SECONDS: Final = 0.5
"""How long a closed segment is left in memory for those who are about to finish it."""


class Sealing:
    """Turns closed segments into files, oldest first; ``lock`` is upkeep's."""

    def __init__(
        self,
        parts: Parts,
        lock: MaintenanceLock,
        records: Records,
        on_sealed: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._lock = lock
        self._records = records
        self._on_sealed = on_sealed
        self.publishing = Publishing(parts, records)
        self._held: tuple[int, float] | None = None  # a closed segment, and until when
        self._hurried = False
        self._unwritten: list[OpenSegment] = []  # gone, and the floor doesn't say so yet
        self._failures = 0  # in a row
        self._retry_at = 0.0
        self._was_busy = False  # the last failure was a limit of the process
        self._free_then: int | None = None  # free bytes of the disk that was full

    def seal_all(self) -> int:
        """Write every segment that is closed by now; how many."""
        count, most = 0, self._waiting
        while count < most and self.seal_one():
            count += 1
        return count

    @property
    def _waiting(self) -> int:
        """At least as many as there are closed segments and commits, those unsaid included."""
        segments = self._parts.segments
        return segments.in_memory + len(segments.commits) + len(self._unwritten)

    def is_ready(self) -> bool:
        """Whether something closed should be written now: a cheap look.

        Not while it is the only one and all subscribers are within it: in a moment they may
        have finished it.  The log has it, so nothing is at risk meanwhile.
        """
        parts = self._parts
        closed, waits = parts.segments.unwritten, bool(parts.segments.commits)
        if waits or self._hurried or len(closed) != 1 or not self._may_be_unwritten:
            return waits or bool(closed)
        seq, total = closed[0].seq, closed[0].bundle_count
        now = parts.clock.monotonic()
        if self._held is None or self._held[0] != seq:
            self._held = seq, now + HOLD_SECONDS
        return (
            now >= self._held[1]
            or parts.registry.is_complete(seq, total)
            or not parts.registry.is_followed(seq, total)
        )

    def hurry(self) -> None:
        """Somebody needs the room: nothing is left in memory for later."""
        self._hurried = True

    @property
    def _may_be_unwritten(self) -> bool:
        return self._parts.wal is not None and not keeps_finished(self._parts.config.retention)

    @property
    def is_paused(self) -> bool:
        """Whether writing failed, and it is not time to try again: a cheap look.

        Room that returns to a full disk ends the pause.
        """
        if not self._failures or self._parts.clock.monotonic() >= self._retry_at:
            return False
        then = self._free_then
        if then is not None and self._parts.segments.has_work:
            waiting = self._parts.segments.next_closed()
            need = waiting.nbytes if isinstance(waiting, OpenSegment) else 0
            free = self._parts.disk.free_bytes()
            return not (free > then and free >= need + self._parts.disk.held_back)
        return True

    @property
    def is_paused_for_puts(self) -> bool:
        """The same for a put that needs the room; a limit of the process may be over by now,
        and finding out costs little."""
        return not self._was_busy and self.is_paused

    def resume(self) -> None:
        """Bytes were freed: no pause any more."""
        self._retry_at = 0.0

    def try_all(self, *, patient: bool = False) -> tuple[int, QuiverError | None]:
        """Write what is closed by now, for those who have more to do than this: never raises.

        A ``patient`` one comes back soon and leaves what may yet be finished.
        What is closed meanwhile asks for a round of its own: a producer that is as fast as
        the disk must not have a thread for itself.
        """
        count = 0
        waiting = self._waiting
        try:
            while count < waiting and (not patient or self.is_ready()) and self.seal_one():
                count += 1
            self._hurried = False
            if not count:  # what a failed try left behind must not fill the log for good
                with self._lock:
                    self.retire_log()
        except QuiverError as error:
            return count, error
        return count, None

    def seal_one(self) -> bool:
        """Write the oldest closed segment, if there is one; whether something was done.

        The staged files of a commit become segments in the same way, in their turn.
        """
        parts = self._parts
        with self._lock:
            if self._finish_unwritten():
                return True
            segment = self._next_closed()
            if segment is None:
                return False
            if isinstance(segment, Commit):
                self._publish(segment)
                return True
            # A damaged file is kept, in quarantine, also when nobody needs the segment any more.
            damaged = parts.segments.damaged_file(segment.seq) is not None
            if self._may_be_unwritten and not damaged and self._let_go(segment):
                return True
            trigger = parts.segments.trigger_of(segment.seq)
            began = parts.clock.monotonic()
            try:
                info = self._write(segment)
            except QuiverError as error:
                self._failed(segment.seq, error)
                raise
            receipts: Sequence[Receipt] = ()
            try:
                with parts.lock:
                    receipts = parts.ingest.unsealed.pop(segment.seq, ())
                    parts.ingest.settle_sealed(receipts)
                    parts.registry.show(lambda: parts.segments.sealed(info))
            finally:  # nobody else knows these receipts any more
                for receipt in receipts:
                    receipt.complete()
                self._on_sealed()
            self._succeeded()
            self._count(trigger, info.file_bytes, parts.clock.monotonic() - began)
            parts.log.debug(
                SEGMENT_FINALIZED, segment=info.seq, bundles=info.bundle_count, trigger=trigger
            )
            if parts.wal is None:
                self._records.keep_floor()
            self.retire_log()
            return True

    def _write(self, segment: OpenSegment) -> SegmentInfo:
        """Write its file; a damaged one in its place is copied to quarantine before."""
        parts, seq = self._parts, segment.seq
        if parts.wal is None and self._records.lacks_names:
            # Without a log nothing else has them should this file be damaged.
            self._records.checkpoint()
        damaged = parts.segments.damaged_file(seq)
        if damaged is None:
            return write_segment(parts.disk, segment, parts.slots.names)
        if parts.disk.stat_size(segment_path(seq)) is not None:
            copy = quarantine.copy(parts.disk, segment_path(seq))
            parts.metrics.counter(m.SEGMENT_QUARANTINED).add()
            parts.log.error(SEGMENT_QUARANTINED, segment=seq, file=copy)
        return write_segment(parts.disk, segment, parts.slots.names, damaged.transaction)

    def _let_go(self, segment: OpenSegment) -> bool:
        """Forget a segment that everybody has finished; whether it was one.

        As when a file is deleted: outcomes durable, then the floor, then it is gone.  Before
        the floor says so a crash brings it back from the log, finished as it is.
        """
        parts, seq = self._parts, segment.seq
        if not parts.registry.retire(seq, segment.bundle_count, parts.segments.hidden):
            return False
        self._records.flush_progress()
        with parts.lock:
            parts.registry.show(lambda: parts.segments.finished(seq))
        self._unwritten.append(segment)
        return self._finish_unwritten()

    def _finish_unwritten(self) -> bool:
        """The floor says what was finished unwritten; whether there was something to say."""
        if not self._unwritten:
            return False
        parts = self._parts
        self._records.keep_floor()
        done, self._unwritten = self._unwritten, []
        for segment in done:
            parts.registry.forget(segment.seq)
            parts.metrics.counter(m.SEGMENT_UNWRITTEN).add()
            parts.log.debug(SEGMENT_UNWRITTEN, segment=segment.seq, bundles=segment.bundle_count)
        self._on_sealed()
        self.retire_log()
        return True

    def _publish(self, commit: Commit) -> None:
        parts = self._parts
        began = parts.clock.monotonic()
        try:
            infos = self.publishing.publish(commit)
        except QuiverError as error:
            self._failed(commit.first_segment, error)
            raise
        self._succeeded()
        took = parts.clock.monotonic() - began
        for info in infos:
            self._count(Trigger.COMMIT, info.file_bytes, took / len(infos))
        parts.log.debug(
            SEGMENT_FINALIZED,
            segment=commit.first_segment,
            segments=len(infos),
            bundles=commit.bundles,
            trigger=Trigger.COMMIT,
        )
        self._on_sealed()
        self.retire_log()

    def _next_closed(self) -> OpenSegment | Commit | None:
        """The oldest closed segment, once all of it is durable in the log."""
        parts, wal = self._parts, self._parts.wal
        segments = parts.segments
        with parts.lock:
            closed = segments.next_closed()
            if closed is None:
                return None
            if wal is None or segments.is_durable(closed):
                return closed
            last = closed.sequence if isinstance(closed, Commit) else closed.last_sequence
        # Staged but not synced: a segment may only hold what the log already has, or a
        # failed group could not be taken back any more.  Producers go on staging behind it:
        # no more is committed than this one needs.
        while wal.durable_before <= last and wal.commit():
            pass
        with parts.lock:
            closed = segments.next_closed()
            return closed if closed is not None and segments.is_durable(closed) else None

    def _succeeded(self) -> None:
        self._failures = 0
        self._free_then = None

    def _failed(self, segment: int, error: QuiverError) -> None:
        parts = self._parts
        pause = min(MAX_PAUSE, FIRST_PAUSE * 2**self._failures)
        self._failures += 1
        self._retry_at = parts.clock.monotonic() + pause
        self._was_busy = isinstance(error, OutOfResources)
        self._free_then = parts.disk.free_bytes() if isinstance(error, StorageFull) else None
        parts.metrics.counter(m.SEGMENT_FINALIZE_FAILED).add()
        parts.log.warning(SEGMENT_FINALIZE_FAILED, segment=segment, error=str(error))
        if isinstance(error, StorageFull):
            self._records.note_full()

    def _count(self, trigger: str, nbytes: int, seconds: float) -> None:
        metrics = self._parts.metrics
        metrics.counter(m.SEGMENT_FINALIZED, trigger=trigger).add()
        metrics.histogram(m.SEGMENT_BYTES).observe(nbytes)
        metrics.histogram(m.SEGMENT_FINALIZE_SECONDS).observe(seconds)

    # The log

    def retire_log(self) -> None:
        """Let go of log files whose bundles are all in segment files."""
        parts, wal = self._parts, self._parts.wal
        if wal is None:
            return
        if self._records.has_many_new_keys:
            self._records.checkpoint()
        sealed_through = parts.segments.first_not_in_file - 1
        if not wal.retirable(sealed_through):
            return
        first = wal.first_kept(sealed_through, self._records.cover_log())
        self._records.keep_floor(log_first=first)
        wal.retire(sealed_through, first)
        self._on_sealed()  # a put may have been waiting for room in the log
        # The cursor is a hint: a log that can't be shortened for want of it would be worse.
        try:
            write_cursor(parts.disk, wal.oldest_position)
        except Poisoned:
            raise
        except QuiverError as error:
            parts.log.debug(SEGMENT_FINALIZE_FAILED, step="cursor", error=str(error))

    @property
    def log_is_old(self) -> bool:
        """Whether the log's file is older than it may get."""
        wal, age = self._parts.wal, self._parts.config.wal.max_idle_age
        return wal is not None and age is not None and wal.file_age >= age

    @property
    def _log_is_spent(self) -> bool:
        """Whether the disk is full, and the log takes room with nothing that is needed in it."""
        segments = self._parts.segments
        return self._records.disk_full and segments.first_not_in_file == segments.next_segment

    def rotate_log(self) -> None:
        """Close a log file that is too old, even when nothing is written, or that is spent."""
        wal = self._parts.wal
        if wal is None:
            return
        if self.log_is_old:
            wal.rotate()
            self.retire_log()
        elif self._log_is_spent:
            with suppress(StorageFull):  # the next round tries again
                self._records.guarded(wal.rotate)
                self.retire_log()
                wal.drop_spare()
