"""Decides what upkeep is due, and calls the modules of this package that do it.

Each step has an order that a crash can interrupt anywhere.  One thread at a time does upkeep
(:class:`~quiver.upkeep.maintenance_lock.MaintenanceLock`), never while it holds the ingest lock,
and not after the store is closed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final, Protocol

from quiver import metrics as m
from quiver.disk.descriptors import DESCRIPTORS
from quiver.errors import Backpressure, QuiverError, Reason, StorageFull
from quiver.events import CLOCK_JUMPED, STORE_DEGRADED
from quiver.format.floor import Floor
from quiver.format.state import Checkpoint
from quiver.ingest.memory_budget import MemoryShare
from quiver.ingest.parts import Parts
from quiver.recovery.recover import Report
from quiver.segment.closing import Trigger
from quiver.upkeep.admission import Admission
from quiver.upkeep.checkpoint_files import Records
from quiver.upkeep.healing import Healing
from quiver.upkeep.maintenance_lock import MaintenanceLock
from quiver.upkeep.sealing import Sealing
from quiver.upkeep.sweeping import Maintenance, Sweeping

SWEEP_SECONDS: Final = 1.0
RETRY_SECONDS: Final = 0.5
IDLE_WATERMARK_SECONDS: Final = 0.25
TIDY_LOG_BYTES: Final = 512
"""A log larger than this is not left behind by a clean close: segments have it all."""


class StageUpkeep(Protocol):
    """What upkeep does for transactions that are being written."""

    @property
    def is_due(self) -> bool:
        """Whether a stage has been left alone for too long."""
        ...

    def relieve(self) -> bool:
        """Memory is short: write out half of what stages hold; whether something was."""
        ...

    def expire(self) -> int:
        """Remove stages that were neither committed nor aborted in time; how many."""
        ...

    def finish(self) -> None:
        """Before closing: discard what is not finished."""
        ...


class Upkeep:
    """Does what is due; called by ``maintain()``, by workers, or by a put that needs room."""

    def __init__(
        self,
        parts: Parts,
        *,
        floor: Floor,
        state: Checkpoint,
        memory: MemoryShare | None,
        stages: StageUpkeep,
        on_sealed: Callable[[], None],
    ) -> None:
        self._parts = parts
        self._lock = lock = MaintenanceLock()
        self.records = Records(parts, lock, floor, state)
        self.sealing = Sealing(parts, lock, self.records, on_sealed)
        self.sweeping = Sweeping(parts, lock, self.records)
        self.healing = Healing(parts, lock, self.records)
        parts.segments.on_damage = self.healing.heal
        self.admission = Admission(parts, self.sweeping, memory)
        self._stages = stages
        self._swept_acks = 0
        self._jumps = 0
        self._retry_at = 0.0  # after a round that failed

    # What is due

    def is_due(self) -> bool:
        """Whether a round would find something to do; a cheap look."""
        parts = self._parts
        now = parts.clock.monotonic()
        if now < self._retry_at or parts.disk.poison.cause is not None:
            return False
        interval = parts.config.subscribers.progress_interval
        return (
            ((self._wants_sealing(now) or self.sealing.log_is_old) and not self.sealing.is_paused)
            or (
                parts.registry.changes != self._swept_acks
                and now - self.records.last_progress >= interval
            )
            or (now - self.sweeping.last_sweep >= SWEEP_SECONDS and self.goes_by_the_clock)
            or self._needs_watermark(now)
            or self.records.has_many_new_keys
            or self._stages.is_due
            or parts.segments.deletable
        )

    def _wants_sealing(self, now: float) -> bool:
        return (
            self.admission.is_pressed or self._parts.segments.is_due(now) or self.sealing.is_ready()
        )

    @property
    def will_be_due(self) -> bool:
        """Whether something is in memory that has to reach the disk before long."""
        parts = self._parts
        if parts.disk.poison.cause is not None:
            return False
        segments = parts.segments
        in_memory = segments.in_memory > 0 or segments.has_work or parts.stages.memory > 0
        unsaid = parts.wal is not None and parts.wal.wants_watermark
        return in_memory or unsaid or parts.registry.changes != self._swept_acks

    @property
    def goes_by_the_clock(self) -> bool:
        """Whether a sweep may find something though nothing has happened since the last."""
        retention = self._parts.config.retention
        return (
            retention.max_age is not None
            or retention.keep_after_finish is not None
            or self.records.disk_full
            or not self._parts.reserve.is_whole
        )

    def _needs_watermark(self, now: float) -> bool:
        wal = self._parts.wal
        return (
            wal is not None
            and wal.wants_watermark
            and now - self._parts.ingest.last_put >= IDLE_WATERMARK_SECONDS
        )

    # Doing it

    def run(self, *, patient: bool = False) -> Maintenance:
        """One round: segments, progress, retention, the reserve, a watermark when idle.

        ``patient``: somebody sees to it that another one follows when it is due.

        A segment that can't be written is no reason to leave the rest undone; unless the
        disk is just full, which passes, its error is raised at the end.
        """
        with self._lock:
            try:
                done, failure = self._round(patient)
            except QuiverError:
                self._try_later()
                raise
            if failure is not None and not isinstance(failure, StorageFull):
                raise failure
            return done

    def _round(self, patient: bool) -> tuple[Maintenance, QuiverError | None]:
        """What was done, and why segments could not be written, if so."""
        parts = self._parts
        DESCRIPTORS.refill()
        self._look_at_the_clock()
        self.admission.measure()
        early, need = self.admission.take_pressure()
        self._close_open_segment(early)
        if early:
            self._stages.relieve()
        sealed, failure = 0, None
        if not (patient and self.sealing.is_paused):
            sealed, failure = self.sealing.try_all(patient=patient and not early)
        self._stages.expire()
        acks = parts.registry.changes
        files = self.records.flush_progress()
        swept = self.sweeping.sweep(need)
        self._swept_acks = acks
        if swept.freed_bytes:
            self.sealing.resume()
        self.records.look_for_room()
        if parts.wal is not None and parts.wal.watermark() and not parts.wal.commit():
            self._try_later()  # it is still wanted, and a tick is soon
        self.sealing.rotate_log()
        self.admission.measure(again=sealed > 0)
        return replace(swept, sealed=sealed, progress_files=files), failure

    def _try_later(self) -> None:
        """A round failed: no tick of the background tries again before its time."""
        self._retry_at = self._parts.clock.monotonic() + RETRY_SECONDS

    def _look_at_the_clock(self) -> None:
        """Report jumps of the wall clock since the last round; ages don't follow them."""
        parts, times = self._parts, self._parts.ingest.times
        with parts.lock:
            times.look()
            jumps, seconds = times.jumps, times.last_jump
        if jumps > self._jumps:
            parts.metrics.counter(m.CLOCK_JUMPS).add(jumps - self._jumps)
            parts.log.warning(CLOCK_JUMPED, seconds=round(seconds, 3), jumps=jumps)
            self._jumps = jumps

    def _close_open_segment(self, early: bool) -> None:
        segments = self._parts.segments
        with self._parts.lock:
            if segments.is_due(self._parts.clock.monotonic()):
                segments.closed(Trigger.AGE)
            elif early or (self.records.disk_full and self._is_open_one_finished()):
                segments.closed(Trigger.PRESSURE)

    def _is_open_one_finished(self) -> bool:
        """Whether every subscriber has finished the open segment: closed, it frees the log."""
        current, registry = self._parts.segments.open, self._parts.registry
        return current is not None and registry.is_complete(current.seq, current.bundle_count)

    def seal_quietly(self) -> None:
        """Write what is closed. A failure is logged, kept and tried again: it is nobody's put."""
        if self.sealing.is_paused_for_puts:
            return
        sealed, _ = self.sealing.try_all()
        self.admission.measure(again=sealed > 0)

    def relieve(self, refusal: Backpressure) -> bool:
        """Without a background, a put that is refused does the work itself."""
        wal = self._parts.wal
        if refusal.reason is Reason.ADMISSION and wal is not None:
            return bool(wal.commit())
        with self._lock:
            early, need = self.admission.take_pressure()
            if early:
                with self._parts.lock:
                    self._parts.segments.closed(Trigger.PRESSURE)
            spilled = early and self._stages.relieve()
            sealed = 0 if self.sealing.is_paused_for_puts else self.sealing.try_all()[0]
            self.admission.measure(again=True)
            deleted = 0
            if refusal.reason is Reason.DISK:
                swept = self.sweeping.sweep(need)
                deleted = swept.deleted
                if swept.freed_bytes:
                    self.sealing.resume()
            return spilled or sealed + deleted > 0

    def leave(self, name: str, remove: Callable[[str], int]) -> int:
        """Let a subscriber go: it is not named any more before its file goes."""
        with self._lock:
            self._parts.registry.get(name)
            self.records.record_rejects((name,))
            self.records.checkpoint(leaving=name)
            try:
                return remove(name)
            except BaseException:
                self.records.checkpoint()
                raise

    # Beginning and end

    def begin(self, report: Report, *, has_log: bool) -> None:
        """What must be on disk before the first put: the log's file, losses on record."""
        wal = self._parts.wal
        if not self.records.has_checkpoint:  # a new store: its uuid is for life
            self.records.checkpoint()
        if wal is not None and not has_log:
            if self.records.is_stale:  # from a time without a log: from here on nobody looks
                self.records.checkpoint()
            wal.begin()
            self.records.mark_log_begun(wal.first_kept())
        if wal is None:
            self.records.keep_floor()
        self._note(report)
        if report.lost or report.reclaimed or report.progress_problems:
            # Progress last: until the floor says that a segment is gone, its entries there tell
            # how many bundles it had.
            self.records.checkpoint()
            self.records.keep_floor()
            self.records.flush_progress()
        self.records.look_for_room()
        if self._parts.segments.commits:  # a crash came before all of it could be seen
            self.seal_quietly()

    def _note(self, report: Report) -> None:
        """Count and tell what an open had to decide."""
        metrics = self._parts.metrics
        metrics.gauge(m.RECOVERY_BUNDLES).set(report.bundles_replayed)
        metrics.counter(m.TORN_TAILS).add(len(report.torn_tails))
        metrics.counter(m.SEGMENT_QUARANTINED).add(len(report.quarantined))
        problems = [f"segment {loss.segment_seq} is lost ({loss.reason})" for loss in report.lost]
        problems += [
            f"segment {seq} is damaged or missing; every subscriber had finished what is lost of it"
            for seq in report.reclaimed
        ]
        problems += report.progress_problems
        problems += report.stage_problems
        if report.maybe_doubled is not None:
            problems.append(f"bundles may be here twice: {report.maybe_doubled}")
        self.records.problems += problems
        for problem in problems:
            self._parts.log.error(STORE_DEGRADED, problem=problem)

    def shut(self, error: QuiverError) -> None:
        """The store is closed: whoever comes late to do upkeep gets ``error``."""
        self._lock.shut(error)

    def finish(self) -> None:
        """Before closing: everything written, all progress durable, the log sealed and small."""
        parts, wal = self._parts, self._parts.wal
        with self._lock:
            self._stages.finish()
            with parts.lock:
                parts.segments.closed(Trigger.SHUTDOWN)
            self.sealing.seal_all()
            self.records.flush_progress()
            self.sweeping.sweep()
            parts.segments.delete_files(in_use=True)
            if wal is None:
                if self.records.is_stale:
                    self.records.checkpoint()
                return
            self.sealing.retire_log()
            if wal.bytes_on_disk > TIDY_LOG_BYTES:
                wal.rotate()
                self.sealing.retire_log()
            wal.seal()
            wal.drop_spare()
