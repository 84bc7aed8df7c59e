"""Deleting what may go, on record.

    ledger → outcomes in memory → progress durable → floor → unlink

The ledger comes first: a loss that is in a progress file alone would be nobody's to see.

What the policy is, :mod:`quiver.upkeep.retention` says; this carries it out in an order that a
crash can interrupt anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from quiver import metrics as m
from quiver.events import SEGMENT_DELETED, SEGMENT_DROPPED
from quiver.ingest.parts import Parts
from quiver.upkeep.checkpoint_files import Records
from quiver.upkeep.maintenance_lock import MaintenanceLock
from quiver.upkeep.retention import Candidate, Eviction, evictable, plan


@dataclass(frozen=True, slots=True)
class Maintenance:
    """What one round of upkeep did."""

    sealed: int = 0
    progress_files: int = 0
    deleted: int = 0
    dropped: int = 0
    freed_bytes: int = 0


class Sweeping:
    """Carries out retention; ``lock`` is upkeep's."""

    def __init__(self, parts: Parts, lock: MaintenanceLock, records: Records) -> None:
        self._parts = parts
        self._lock = lock
        self._records = records
        self._finished_at: dict[int, int] = {}
        self._leaving: list[Eviction] = []  # gone, and the floor doesn't say so yet
        self._on_record: dict[int, Mapping[str, int]] = {}  # who loses what, as the ledger has it
        self.evictable = 0
        """Bytes that could go if they had to, as of the last sweep."""
        self.last_sweep = parts.clock.monotonic()

    def sweep(self, need: int = 0) -> Maintenance:
        """Delete what retention allows, and if ``need`` bytes are to come, what it must.

        The size pass aims at the soft mark: up to there puts come in freely, and what
        lies between it and the cap is for what can't be foreseen.
        """
        parts = self._parts
        with self._lock:
            self.last_sweep = parts.clock.monotonic()
            held = self._held()
            marks = parts.share.marks
            decided = plan(
                held,
                parts.config.retention,
                parts.ingest.times.now_ns(),
                used=parts.usage().committed,
                cap=None if marks is None else marks.soft,
                need=need,
            )
            self._on_record.clear()
            self._carry_out(decided.evictions)
            done = self._let_go()
            freed = 0
            if parts.segments.deletable:
                self._records.keep_floor()
                freed = parts.segments.delete_files()
            gone = {eviction.seq for eviction in done}
            left = [one for one in held if one.seq not in gone]
            self.evictable = evictable(left, parts.config.retention)
            return Maintenance(
                deleted=len(done),
                dropped=sum(eviction.dropped for eviction in done),
                freed_bytes=freed,
            )

    def _held(self) -> list[Candidate]:
        registry, now = self._parts.registry, self._parts.ingest.times.now_ns()
        oldest = registry.oldest_incomplete()
        held: list[Candidate] = []
        for info in self._parts.segments.infos():
            finished = oldest is not None and (
                info.seq < oldest or registry.is_complete(info.seq, info.bundle_count)
            )
            if finished:
                self._finished_at.setdefault(info.seq, now)
            else:
                self._finished_at.pop(info.seq, None)
            held.append(
                Candidate(
                    info.seq, info.file_bytes, info.aged_from_ns, self._finished_at.get(info.seq)
                )
            )
        return held

    def _carry_out(self, evictions: tuple[Eviction, ...]) -> None:
        parts = self._parts
        self._put_on_record([eviction for eviction in evictions if eviction.dropped])
        going: list[Eviction] = []
        for eviction in evictions:
            info = parts.segments.info(eviction.seq)
            if info is None:
                continue
            if eviction.dropped:
                self._drop(eviction, info.bundle_count)
            elif not parts.registry.retire(info.seq, info.bundle_count, parts.segments.hidden):
                continue  # somebody came back to it meanwhile
            going.append(eviction)
        if going:
            self._records.flush_progress()
            if parts.wal is None:
                self._records.checkpoint()  # the keys of what goes
            parts.segments.dropped(eviction.seq for eviction in going)
            self._leaving += going

    def _put_on_record(self, evictions: list[Eviction]) -> None:
        """Write down, durably, what somebody is about to lose."""
        infos = {one.seq: self._parts.segments.info(one.seq) for one in evictions}
        for info in infos.values():
            if info is not None:
                unfinished = self._parts.registry.unfinished_in(info.seq, info.bundle_count)
                self._on_record[info.seq] = unfinished
        self._records.record_loss(
            *(
                loss
                for eviction in evictions
                if (info := infos[eviction.seq]) is not None
                if (loss := self._records.loss_of(info, str(eviction.ground))) is not None
            )
        )

    def _let_go(self) -> list[Eviction]:
        """What has left goes for good: once the floor says so, nobody needs its outcomes."""
        if not self._leaving:
            return []
        parts = self._parts
        self._records.keep_floor()
        done, self._leaving = self._leaving, []
        for eviction in done:
            parts.registry.forget(eviction.seq)
            self._finished_at.pop(eviction.seq, None)
            parts.metrics.counter(m.GC_EVICTIONS, reason=str(eviction.ground)).add()
            parts.metrics.counter(m.GC_BYTES, reason=str(eviction.ground)).add(eviction.nbytes)
            parts.log.debug(SEGMENT_DELETED, segment=eviction.seq, reason=str(eviction.ground))
        return done

    def _drop(self, eviction: Eviction, bundles: int) -> None:
        """Give up what is left of a segment, for everyone: also for who comes while that is put
        on record."""
        parts, seq, reason = self._parts, eviction.seq, str(eviction.ground)
        hide, counts = parts.segments.hidden, None
        while counts is None:
            known = self._on_record.pop(seq, None)
            counts = parts.registry.drop_segment(seq, bundles, hide, known)
            if counts is None:
                self._put_on_record([eviction])
        parts.log.warning(
            SEGMENT_DROPPED,
            segment=eviction.seq,
            bundles=bundles,
            reason=reason,
            subscribers=counts,
        )
