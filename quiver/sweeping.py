"""Deleting what may go, on record, and dealing with segments that turn out damaged.

    ledger → outcomes in memory → progress durable → floor → unlink

The ledger comes first: a loss that is in a progress file alone would be nobody's to see.

What the policy is, :mod:`quiver.retention` says; this carries it out in an order that a
crash can interrupt anywhere.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from quiver import metrics as m
from quiver.errors import Damage
from quiver.events import (
    BUNDLES_LOST,
    SEGMENT_DELETED,
    SEGMENT_DROPPED,
    SEGMENT_QUARANTINED,
    SEGMENT_REBUILT,
    STORE_DEGRADED,
)
from quiver.format.state import Loss
from quiver.gate import Gate
from quiver.parts import Parts
from quiver.records import Records
from quiver.retention import Eviction, Held, evictable, plan
from quiver.segment.accumulator import OpenSegment
from quiver.segment.catalog import Quarantined
from quiver.segment.info import SegmentInfo


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

    def __init__(
        self,
        parts: Parts,
        lock: Gate,
        records: Records,
        rebuild: Callable[[int], OpenSegment | None],
    ) -> None:
        self._parts = parts
        self._lock = lock
        self._records = records
        self._rebuild = rebuild
        self._finished_at: dict[int, int] = {}
        self.evictable = 0
        """Bytes that could go if they had to, as of the last sweep."""
        self.last_sweep = parts.clock.monotonic()
        self.problems: list[str] = []
        """What was lost or damaged since the store was opened, in words."""

    def sweep(self, need: int = 0) -> Maintenance:
        """Delete what retention allows, and if ``need`` bytes are to come, what it must.

        The size pass aims at the soft mark: up to there puts come in freely, and what
        lies between it and the cap is for what can't be foreseen.
        """
        parts = self._parts
        with self._lock:
            self.last_sweep = parts.clock.monotonic()
            parts.catalog.forget_unmapped()
            held = self._held()
            marks = parts.share.marks
            decided = plan(
                held,
                parts.config.retention,
                parts.clock.now_ns(),
                used=parts.usage().committed,
                cap=None if marks is None else marks.soft,
                need=need,
            )
            done = self._carry_out(decided.evictions)
            gone = {eviction.seq for eviction in done}
            left = [one for one in held if one.seq not in gone]
            self.evictable = evictable(left, parts.config.retention)
            return Maintenance(
                deleted=len(done),
                dropped=sum(eviction.dropped for eviction in done),
                freed_bytes=sum(eviction.nbytes for eviction in done),
            )

    def _held(self) -> list[Held]:
        registry, now = self._parts.registry, self._parts.clock.now_ns()
        oldest = registry.oldest_incomplete()
        held: list[Held] = []
        for info in self._parts.catalog.infos:
            finished = oldest is not None and (
                info.seq < oldest or registry.is_complete(info.seq, info.bundle_count)
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
        parts = self._parts
        done: list[Eviction] = []
        self._put_on_record([eviction for eviction in evictions if eviction.dropped])
        for eviction in evictions:
            info = parts.catalog.info(eviction.seq)
            if info is None:
                continue
            if eviction.dropped:
                self._drop(eviction, info.bundle_count)
            elif not parts.registry.retire(info.seq, info.bundle_count):
                continue  # somebody came back to it meanwhile
            done.append(eviction)
        if not done:
            return done
        seqs = frozenset(eviction.seq for eviction in done)
        self._records.flush_progress()
        if parts.wal is None:
            self._records.checkpoint()  # the keys of what goes
        self._records.keep_floor(without=seqs)
        parts.catalog.remove(sorted(seqs))
        for eviction in done:
            parts.registry.forget(eviction.seq)
            self._finished_at.pop(eviction.seq, None)
            parts.metrics.counter(m.GC_EVICTIONS, reason=str(eviction.ground)).add()
            parts.metrics.counter(m.GC_BYTES, reason=str(eviction.ground)).add(eviction.nbytes)
            parts.log.debug(SEGMENT_DELETED, segment=eviction.seq, reason=str(eviction.ground))
        return done

    def _put_on_record(self, evictions: list[Eviction]) -> None:
        """Write down, durably, what somebody is about to lose.

        A crash before it is carried out leaves a loss on record that may not come about;
        the other way round, one would come about that is not on record.
        """
        parts = self._parts
        for eviction in evictions:
            info = parts.catalog.info(eviction.seq)
            if info is None or eviction.seq in parts.ledger:
                continue
            waiting = {
                one.name: count
                for one in parts.registry.subscribers()
                if (count := one.pending_in(eviction.seq, info.bundle_count))
            }
            parts.ledger.record(
                Loss(
                    eviction.seq,
                    info.bundle_count,
                    info.nbytes,
                    str(eviction.ground),
                    parts.clock.now_ns(),
                    waiting,
                )
            )
        if parts.ledger.dirty:
            self._records.checkpoint()

    def _drop(self, eviction: Eviction, bundles: int) -> None:
        """Give up what is left of a segment, for everyone."""
        parts, reason = self._parts, str(eviction.ground)
        counts = parts.registry.drop_segment(eviction.seq, bundles)
        parts.metrics.counter(m.SEGMENT_DROPPED, reason=reason).add()
        for name, count in counts.items():
            parts.metrics.counter(m.SUBSCRIBER_DROPPED, subscriber=name, reason=reason).add(count)
        parts.log.warning(
            SEGMENT_DROPPED,
            segment=eviction.seq,
            bundles=bundles,
            reason=reason,
            subscribers=counts,
        )

    # Damage

    def lose(self, info: SegmentInfo, damage: Damage) -> None:
        """A segment failed its check while being read: rebuild it, or record the loss.

        Several may find out at once.  The first one's work must not be undone by the
        others: the file they talk about is not the one that is there now.
        """
        parts, seq = self._parts, info.seq
        with self._lock:
            if parts.catalog.info(seq) is not info:
                return
            parts.metrics.counter(m.DAMAGE, code=damage.code).add()
            rebuilt = self._rebuild(seq)
            if rebuilt is not None and rebuilt.bundle_count == info.bundle_count:
                self._go_back_to_memory(rebuilt, damage)
                return
            aside = self._set_aside(seq, damage)
            counts = parts.registry.drop_segment(seq, info.bundle_count)
            self.note_loss(
                Loss(seq, info.bundle_count, info.nbytes, "damaged", parts.clock.now_ns(), counts),
                f"segment {seq} was damaged and set aside: {aside.path}",
            )
            self._records.flush_progress()
            self._records.checkpoint()
            self._records.keep_floor()
            parts.registry.forget(seq)

    def _go_back_to_memory(self, rebuilt: OpenSegment, damage: Damage) -> None:
        """As after a crash: readable now, written in its turn. Never in neither place."""
        parts = self._parts
        with parts.lock:
            parts.tail.adopt([rebuilt])
        try:
            self._set_aside(rebuilt.seq, damage)
        except BaseException:
            with parts.lock:
                parts.tail.remove(rebuilt.seq)
            raise
        parts.log.warning(SEGMENT_REBUILT, segment=rebuilt.seq)

    def _set_aside(self, seq: int, damage: Damage) -> Quarantined:
        parts = self._parts
        aside = parts.catalog.quarantine(seq, damage)
        parts.metrics.counter(m.SEGMENT_QUARANTINED).add()
        parts.log.error(SEGMENT_QUARANTINED, segment=seq, file=aside.path, error=str(damage))
        return aside

    def note_loss(self, loss: Loss, problem: str) -> None:
        """Put a loss into the book, and tell everyone who asks."""
        parts = self._parts
        parts.ledger.record(loss)
        self.problems.append(problem)
        for name, count in loss.subscribers.items():
            parts.metrics.counter(m.SUBSCRIBER_LOST, subscriber=name).add(count)
        parts.log.error(
            BUNDLES_LOST,
            segment=loss.segment_seq,
            bundles=loss.bundles,
            subscribers=dict(loss.subscribers),
        )
        parts.log.error(STORE_DEGRADED, problem=problem)
