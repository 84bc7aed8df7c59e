"""Upkeep: everything that happens to a store besides puts and deliveries.

Writes closed segments, lets the log go that they cover, flushes progress, and deletes
what retention allows.  Each step is safe to be interrupted by a crash; their order is
what makes it so:

    seal      log durable → segment file durable → readers switch → floor → log retired
    delete    outcomes in memory → progress durable → ledger → floor → unlink

One thread at a time does upkeep (``_lock``), and never while it holds the ingest lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from quiver import metrics as m
from quiver.budget import Decision, Share, Usage, Verdict, cost, judge
from quiver.bundle import SlotTable
from quiver.clock import Clock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.disk.reserve import Reserve
from quiver.errors import (
    Backpressure,
    Damage,
    QuiverError,
    Reason,
    StorageFull,
)
from quiver.events import (
    BUNDLES_LOST,
    DISK_FULL,
    DISK_RECOVERED,
    SEGMENT_DELETED,
    SEGMENT_DROPPED,
    SEGMENT_FINALIZE_FAILED,
    SEGMENT_FINALIZED,
    SEGMENT_QUARANTINED,
    get_logger,
)
from quiver.format.floor import FLOOR_PATH, Floor, encode_floor, gone_below
from quiver.format.state import STATE_NAME, Checkpoint, Loss, encode_state
from quiver.ingest import Ingest
from quiver.ledger import Ledger
from quiver.metrics import Metrics
from quiver.recovery import Report
from quiver.retention import Eviction, Held, evictable, plan
from quiver.segment.accumulator import OpenSegment
from quiver.segment.catalog import Catalog
from quiver.segment.writer import write_segment
from quiver.subscriber.registry import Registry
from quiver.tail import Tail
from quiver.units import format_size
from quiver.wal.files import write_cursor
from quiver.wal.writer import WalWriter

SWEEP_SECONDS: Final = 1.0
IDLE_WATERMARK_SECONDS: Final = 0.25
RETRY_SECONDS: Final = 0.5


@dataclass(frozen=True, slots=True)
class Maintenance:
    """What one round of upkeep did."""

    sealed: int = 0
    progress_files: int = 0
    deleted: int = 0
    dropped: int = 0
    freed_bytes: int = 0


class Upkeep:
    """Does what is due; called by ``maintain()``, by workers, or by a put that needs room."""

    def __init__(
        self,
        disk: Disk,
        config: Config,
        clock: Clock,
        *,
        ingest_lock: threading.Lock,
        ingest: Ingest,
        tail: Tail,
        wal: WalWriter | None,
        catalog: Catalog,
        registry: Registry,
        slots: SlotTable,
        ledger: Ledger,
        floor: Floor,
        state: Checkpoint,
        reserve: Reserve,
        share: Share,
        metrics: Metrics,
        rebuild: Callable[[int], OpenSegment | None],
        on_sealed: Callable[[], None],
    ) -> None:
        self._disk = disk
        self._config = config
        self._clock = clock
        self._ingest_lock = ingest_lock
        self._ingest = ingest
        self._tail = tail
        self._wal = wal
        self._catalog = catalog
        self._registry = registry
        self._slots = slots
        self._ledger = ledger
        self._floor = floor
        self._state = state
        self._reserve = reserve
        self._share = share
        self._rebuild = rebuild
        self._on_sealed = on_sealed
        self._lock = threading.RLock()
        self._log = get_logger()
        self._metrics = metrics
        self._finished_at: dict[int, int] = {}
        self._segment_bytes = catalog.bytes
        self._evictable = 0
        self._last_sweep = self._last_progress = self._last_commit = clock.monotonic()
        self._retry_at = 0.0
        self._swept_acks = 0
        self._pressed = False
        self.disk_full = False
        self.degraded: list[str] = []

    # Segments

    def seal_one(self) -> bool:
        """Write the oldest closed segment, if there is one; whether something was done."""
        with self._lock:
            segment = self._next_closed()
            if segment is None:
                return False
            began = self._clock.monotonic()
            try:
                info = write_segment(self._disk, segment, self._slots.names)
            except QuiverError as error:
                self._seal_failed(segment, error)
                raise
            with self._ingest_lock:
                self._catalog.add(info)
                self._tail.remove(segment.seq)
                receipts = self._ingest.unsealed.pop(segment.seq, ())
                growing = self._growing()
                self._ingest.settle_sealed(receipts)
            self._segment_bytes += info.file_bytes
            self._registry.observe(info.seq, info.bundle_count)
            self._registry.advance_open(growing)
            for receipt in receipts:
                receipt.complete()
            self._on_sealed()
            self._metrics.counter(m.SEGMENT_FINALIZED, trigger="any").add()
            self._metrics.histogram(m.SEGMENT_BYTES).observe(info.file_bytes)
            self._metrics.histogram(m.SEGMENT_FINALIZE_SECONDS).observe(
                self._clock.monotonic() - began
            )
            self._log.debug(SEGMENT_FINALIZED, segment=info.seq, bundles=info.bundle_count)
            self._retire_log()
            return True

    def _next_closed(self) -> OpenSegment | None:
        """The oldest closed segment, once all of it is durable in the log."""
        with self._ingest_lock:
            closed = self._tail.closed
            if not closed:
                return None
            segment = closed[0]
            if self._wal is None or self._tail.is_durable(segment):
                return segment
        # Staged but not synced: a segment may only hold what the log already has, or a
        # failed group could not be taken back any more.
        while self._wal.commit():
            pass
        with self._ingest_lock:
            closed = self._tail.closed
            durable = closed and self._tail.is_durable(closed[0])
            return closed[0] if durable else None

    def _seal_failed(self, segment: OpenSegment, error: QuiverError) -> None:
        """Nothing is lost: the segment stays in memory and in the log, and is tried again."""
        self._retry_at = self._clock.monotonic() + RETRY_SECONDS
        self._metrics.counter(m.SEGMENT_FINALIZE_FAILED).add()
        self._log.warning(SEGMENT_FINALIZE_FAILED, segment=segment.seq, error=str(error))
        if isinstance(error, StorageFull):
            self._note_full()

    def _growing(self) -> int:
        """The lowest segment that may still get visible bundles. Ingest lock held."""
        if self._config.deliver == "durable" and self._wal is not None:
            return self._tail.growing
        return self._tail.oldest

    def _retire_log(self) -> None:
        if self._wal is None:
            return
        with self._ingest_lock:
            sealed_through = self._tail.oldest - 1
        if not self._wal.retirable(sealed_through):
            return
        if self._state_is_stale():
            self.checkpoint()
        self._keep_floor(self._live())
        self._wal.retire(sealed_through)
        position = self._wal.oldest_position
        self._guarded(lambda: write_cursor(self._disk, position))

    def seal_all(self) -> int:
        """Write every closed segment; how many."""
        count = 0
        while self.seal_one():
            count += 1
        return count

    # Small files

    def checkpoint(self, *, leaving: str | None = None) -> None:
        """Write ``quiver.state``: what would otherwise go with the log or a segment.

        It names the subscribers whose file must be there, so one that comes is named
        after its file is durable, and one that goes (``leaving``) is not named before its
        file goes: a crash in between must not look like a lost file.
        """
        with self._lock:
            with self._ingest_lock:
                through = self._ingest.durable_before
                state = replace(
                    self._state,
                    through=through,
                    last_ts=self._ingest.last_ts,
                    slots={name: slot for slot, name in self._slots.names.items()},
                    window=self._ingest.window.snapshot(through),
                )
                ledger_was_dirty, self._ledger.dirty = self._ledger.dirty, False
            state = replace(
                state,
                subscribers=tuple(
                    one.name
                    for one in self._registry.subscribers()
                    if one.has_file and one.name != leaving
                ),
                losses=self._ledger.losses,
                loss_totals=self._ledger.totals,
            )
            try:
                self._guarded(lambda: self._disk.replace(STATE_NAME, encode_state(state)))
            except BaseException:
                self._ledger.dirty = self._ledger.dirty or ledger_was_dirty
                raise
            self._state = state
            if not self._floor.has_state:
                self._write_floor(replace(self._floor, has_state=True))

    def _state_is_stale(self) -> bool:
        """Whether the log holds something that the checkpoint lacks."""
        with self._ingest_lock:
            names = {name: slot for slot, name in self._slots.names.items()}
            newest = self._ingest.window.newest_sequence
        return (
            self._ledger.dirty
            or names != dict(self._state.slots)
            or (newest is not None and newest >= self._state.through)
        )

    def _live(self) -> set[int]:
        return {info.seq for info in self._catalog.infos}

    def _keep_floor(self, live: set[int]) -> None:
        """Make durable which numbers are used up, and which of them have a file."""
        with self._ingest_lock:
            sealed_below, following = self._tail.oldest, self._tail.next_segment
        floor = replace(
            self._floor,
            next_segment=max(following, self._floor.next_segment),
            replay_floor=max(sealed_below, self._floor.replay_floor),
            gone=gone_below(max(sealed_below, self._floor.replay_floor), live),
        )
        if floor != self._floor:
            self._write_floor(floor)

    def _write_floor(self, floor: Floor) -> None:
        self._guarded(lambda: self._disk.replace(FLOOR_PATH, encode_floor(floor)))
        self._floor = floor

    def mark_log_begun(self) -> None:
        """From now on a missing log is damage."""
        if not self._floor.has_log:
            self._write_floor(replace(self._floor, has_log=True))

    def reserve_number(self, number: int) -> None:
        """Without a log, a segment's number must be used up before it is given out."""
        with self._lock:
            if number > self._floor.next_segment:
                self._write_floor(replace(self._floor, next_segment=number))

    def flush_progress(self, names: tuple[str, ...] | None = None) -> int:
        """Make outcomes durable; how many files were written."""
        self._last_progress = self._clock.monotonic()
        written: list[int] = []
        self._guarded(lambda: written.append(self._registry.flush(names)))
        self._metrics.counter(m.PROGRESS_WRITES).add(written[-1])
        return written[-1]

    def _guarded(self, write: Callable[[], object]) -> None:
        """A small write that must work on a full disk: the reserve is there for it."""
        try:
            write()
        except StorageFull:
            self._note_full()
            if not self._reserve.release():
                raise
            write()

    def _note_full(self) -> None:
        if not self.disk_full:
            self.disk_full = True
            self._log.warning(DISK_FULL, free_bytes=self._disk.free_bytes())

    # Deleting

    def sweep(self, need: int = 0) -> Maintenance:
        """Delete what retention allows, and if ``need`` bytes are to come, what it must."""
        with self._lock:
            self._last_sweep = self._clock.monotonic()
            held = self._held()
            decided = plan(
                held,
                self._config.retention,
                self._clock.now_ns(),
                used=self.usage().committed,
                cap=self._share.cap,
                need=need,
            )
            done = self._carry_out(decided.evictions)
            gone = {eviction.seq for eviction in done}
            self._evictable = evictable(
                [one for one in held if one.seq not in gone], self._config.retention
            )
            return Maintenance(
                deleted=len(done),
                dropped=sum(eviction.dropped for eviction in done),
                freed_bytes=sum(eviction.nbytes for eviction in done),
            )

    def _held(self) -> list[Held]:
        oldest = self._registry.oldest_incomplete()
        now = self._clock.now_ns()
        held: list[Held] = []
        for info in self._catalog.infos:
            finished = oldest is not None and (
                info.seq < oldest or self._registry.is_complete(info.seq, info.bundle_count)
            )
            if finished:
                self._finished_at.setdefault(info.seq, now)
            else:
                self._finished_at.pop(info.seq, None)
            held.append(
                Held(info.seq, info.file_bytes, info.last_ts, self._finished_at.get(info.seq))
            )
        return held

    def _carry_out(self, evictions: tuple[Eviction, ...]) -> list[Eviction]:
        done: list[Eviction] = []
        for eviction in evictions:
            info = self._catalog.info(eviction.seq)
            if info is None:
                continue
            if eviction.dropped:
                self._drop(eviction, info.bundle_count, info.nbytes)
            elif not self._registry.retire(info.seq, info.bundle_count):
                continue  # somebody came back to it meanwhile
            done.append(eviction)
        if not done:
            return done
        seqs = [eviction.seq for eviction in done]
        self.flush_progress()
        if self._ledger.dirty or self._wal is None:
            self.checkpoint()
        self._keep_floor(self._live() - set(seqs))
        self._catalog.remove(seqs)
        for eviction in done:
            self._segment_bytes -= eviction.nbytes
            self._registry.forget(eviction.seq)
            self._finished_at.pop(eviction.seq, None)
            self._metrics.counter(m.GC_EVICTIONS, reason=str(eviction.ground)).add()
            self._metrics.counter(m.GC_BYTES, reason=str(eviction.ground)).add(eviction.nbytes)
            self._log.debug(SEGMENT_DELETED, segment=eviction.seq, reason=str(eviction.ground))
        return done

    def _drop(self, eviction: Eviction, bundles: int, nbytes: int) -> None:
        """Record that somebody loses these bundles, before they go."""
        reason = str(eviction.ground)
        counts = self._registry.drop_segment(eviction.seq, bundles)
        self._ledger.record(
            Loss(eviction.seq, bundles, nbytes, reason, self._clock.now_ns(), counts)
        )
        self._metrics.counter(m.SEGMENT_DROPPED, reason=reason).add()
        for name, count in counts.items():
            self._metrics.counter(m.SUBSCRIBER_DROPPED, subscriber=name, reason=reason).add(count)
        self._log.warning(
            SEGMENT_DROPPED,
            segment=eviction.seq,
            bundles=bundles,
            reason=reason,
            subscribers=counts,
        )

    def lose(self, seq: int, damage: Damage) -> None:
        """A segment failed its check while being read: rebuild it, or record the loss."""
        with self._lock:
            info = self._catalog.info(seq)
            if info is None:
                return
            self._metrics.counter(m.DAMAGE, code=damage.code).add()
            aside = self._catalog.quarantine(seq, damage)
            self._segment_bytes -= info.file_bytes
            self._metrics.counter(m.SEGMENT_QUARANTINED).add()
            self._log.error(SEGMENT_QUARANTINED, segment=seq, file=aside.path, error=str(damage))
            rebuilt = self._rebuild(seq)
            if rebuilt is not None and rebuilt.bundle_count == info.bundle_count:
                again = write_segment(self._disk, rebuilt, self._slots.names)
                self._catalog.add(again)
                self._segment_bytes += again.file_bytes
                return
            self.degraded.append(f"segment {seq} was damaged and set aside: {aside.path}")
            counts = self._registry.drop_segment(seq, info.bundle_count)
            self._ledger.record(
                Loss(seq, info.bundle_count, info.nbytes, "damaged", self._clock.now_ns(), counts)
            )
            for name, count in counts.items():
                self._metrics.counter(m.SUBSCRIBER_LOST, subscriber=name).add(count)
            self._log.error(
                BUNDLES_LOST, segment=seq, bundles=info.bundle_count, subscribers=counts
            )
            self.flush_progress()
            self.checkpoint()
            self._keep_floor(self._live())
            self._registry.forget(seq)

    # The budget

    def usage(self) -> Usage:
        """Bytes by where they are; cheap enough for every put."""
        return Usage(
            segments=self._segment_bytes,
            log=0 if self._wal is None else self._wal.bytes_on_disk,
            reserve=self._reserve.held,
            unwritten=self._tail.nbytes,
        )

    def refusal(self, size: int) -> Backpressure | None:
        """Whether the disk budget lets so many bytes in. Called with the ingest lock held."""
        marks = self._share.marks
        if marks is None:
            return None
        decision = judge(
            self.usage(),
            cost(size, self._config.durability),
            marks,
            evictable=self._evictable,
        )
        if decision.verdict is Verdict.ADMIT:
            return None
        if decision.verdict is not Verdict.REFUSE:
            self._pressed = True
            return None
        return self._refused(decision)

    def _refused(self, decision: Decision) -> Backpressure:
        policy = self._config.retention.size_cap_policy
        slowest = max(self._registry.subscribers(), key=lambda s: s.outstanding, default=None)
        who = (
            f'; the slowest subscriber is "{slowest.name}", {slowest.outstanding:,} bundles behind'
            if slowest is not None and slowest.outstanding
            else "; there is no subscriber to finish anything"
            if slowest is None
            else ""
        )
        return Backpressure(
            Reason.DISK,
            f"disk budget reached ({format_size(decision.used)} of"
            f" {format_size(decision.cap or 0)}), policy {policy}{who}",
            retry_after_ms=decision.retry_after_ms,
        )

    # What is due

    def is_due(self) -> bool:
        """Whether a round would find something to do; a cheap look."""
        now = self._clock.monotonic()
        if now < self._retry_at or self._disk.poison.cause is not None:
            return False
        return (
            self._pressed
            or self._tail.is_due(now)
            or bool(self._tail.closed)
            or (
                self._registry.changes != self._swept_acks
                and now - self._last_progress >= self._config.subscribers.progress_interval
            )
            or (now - self._last_sweep >= SWEEP_SECONDS and self._watches_the_clock())
            or self._needs_watermark(now)
        )

    def _watches_the_clock(self) -> bool:
        retention = self._config.retention
        return (
            retention.max_age is not None
            or retention.keep_after_finish is not None
            or self.disk_full
            or not self._reserve.is_whole
        )

    def _needs_watermark(self, now: float) -> bool:
        return (
            self._wal is not None
            and self._wal.wants_watermark
            and now - self._ingest.last_put >= IDLE_WATERMARK_SECONDS
        )

    def run(self) -> Maintenance:
        """One round: segments, progress, retention, the reserve, a watermark when idle."""
        with self._lock:
            self._pressed = False
            self._retry_at = 0.0
            now = self._clock.monotonic()
            with self._ingest_lock:
                if self._tail.is_due(now):
                    self._tail.close()
            sealed = self._try_to_seal()
            acks = self._registry.changes
            files = self.flush_progress()
            swept = self.sweep()
            self._swept_acks = acks
            if self._reserve.restore() and self.disk_full:
                self.disk_full = False
                self._log.info(DISK_RECOVERED)
            if self._wal is not None:
                if self._wal.watermark():
                    self._wal.commit()
                self._rotate_old_log(self._wal)
            return replace(swept, sealed=sealed, progress_files=files)

    def _try_to_seal(self) -> int:
        """A full disk is no reason to leave the rest of the round undone."""
        try:
            return self.seal_all()
        except StorageFull:
            return 0

    def _rotate_old_log(self, wal: WalWriter) -> None:
        age = self._config.wal.max_idle_age
        if age is not None and wal.file_age >= age:
            wal.rotate()
            self._retire_log()

    def relieve(self, refusal: Backpressure) -> bool:
        """Without a background, a put that is refused does the work itself."""
        if refusal.reason is Reason.ADMISSION and self._wal is not None:
            return bool(self._wal.commit())
        if refusal.reason is Reason.DISK:
            with self._lock:
                with self._ingest_lock:
                    self._tail.close()
                return bool(self._try_to_seal()) or self.sweep(need=0).deleted > 0
        return self.seal_all() > 0

    def record_recovery(self, report: Report) -> None:
        """Make durable what an open had to decide, so that it is told once."""
        self.degraded += [
            f"segment {loss.segment_seq} is lost ({loss.reason})" for loss in report.lost
        ]
        self.degraded += report.progress_problems
        for loss in report.lost:
            self._metrics.counter(m.SEGMENT_QUARANTINED).add()
            for name, count in loss.subscribers.items():
                self._metrics.counter(m.SUBSCRIBER_LOST, subscriber=name).add(count)
        self.flush_progress()
        self.checkpoint()
        self._keep_floor(self._live())

    def finish(self) -> None:
        """Before closing: everything written, all progress durable, the log sealed."""
        with self._lock:
            self.seal_all()
            self.flush_progress()
            self.sweep()
            if self._wal is not None:
                self._wal.seal()
                self._retire_log()
            elif self._state_is_stale():
                self.checkpoint()
