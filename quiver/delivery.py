"""The read side: who gets which bundle next, and what became of it.

The registry keeps each subscriber's standing; this gives them bundles to read, from
memory while their segment is unwritten and from its file afterwards, and knows about
time: deferred bundles come back when their delay is over.
"""

from __future__ import annotations

import contextlib
import heapq
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal, TypeGuard

import pyarrow as pa

from quiver import metrics as m
from quiver.bundle import SlotTable
from quiver.clock import Clock
from quiver.errors import (
    BundleGone,
    InvalidInput,
    NotFound,
    SegmentDamage,
    StoreClosed,
    UnknownBundle,
)
from quiver.events import BUNDLE_REJECTED, get_logger
from quiver.format.record import BundleMeta
from quiver.ids import BundleRef
from quiver.metrics import Metrics
from quiver.segment.accumulator import OpenSegment
from quiver.segment.catalog import Catalog
from quiver.segment.info import SegmentInfo
from quiver.segment.reader import SegmentReader
from quiver.subscriber.handle import ClaimedBundle
from quiver.subscriber.registry import Registry
from quiver.subscriber.state import EARLIEST, Order, Outcome
from quiver.subscriber.subscriber import Subscriber
from quiver.tail import Tail

MAX_WAIT_SECONDS: Final = 1.0
"""A wait looks up at least this often, so that a closing store is noticed."""
MAX_LAG_BUNDLES: Final = 10_000
"""Bundles looked at one by one for their rows and bytes; behind that, segments count whole."""

Start = Literal["earliest", "latest"] | datetime | BundleRef | tuple[int, int]


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a subscriber is behind."""

    bundles: int
    rows: int
    nbytes: int
    age_seconds: float


class Reader:
    """Finds a bundle by its ref, wherever it lies now."""

    def __init__(
        self,
        tail: Tail,
        catalog: Catalog,
        slots: SlotTable,
        on_damage: Callable[[int, SegmentDamage], None],
    ) -> None:
        self._tail = tail
        self._catalog = catalog
        self._slots = slots
        self._on_damage = on_damage

    def _segment_of(self, ref: BundleRef) -> OpenSegment | SegmentReader:
        segment = self.find(ref.segment_seq)
        if not 0 <= ref.bundle_index < _bundle_count(segment):
            raise UnknownBundle(f"there is no bundle {ref}.", ref=ref)
        return segment

    def find(self, seq: int) -> OpenSegment | SegmentReader:
        """The segment, in memory or mapped; it is in the catalog before it leaves memory."""
        segment = self._tail.find(seq)
        if segment is not None:
            return segment
        try:
            return self._catalog.reader(seq)
        except SegmentDamage as damage:
            self._on_damage(seq, damage)
        try:
            return self._catalog.reader(seq)  # it may have been rebuilt from the log
        except NotFound:
            raise BundleGone(
                f"segment {seq} was damaged and has been set aside.",
                advice="What was lost is in the loss ledger, the file in quarantine/.",
                segment=seq,
                outcome="lost",
            ) from None

    def meta(self, ref: BundleRef) -> BundleMeta:
        """What is known about a bundle."""
        return self._segment_of(ref).meta(ref.bundle_index)

    def slot_ids(self, ref: BundleRef) -> list[int]:
        """The slots a bundle has, in ascending order."""
        segment = self._segment_of(ref)
        if isinstance(segment, OpenSegment):
            return sorted(slot.slot for slot in segment.slots(ref.bundle_index))
        return sorted(found.slot_id for found in segment.slot_refs(ref.bundle_index))

    def read(
        self,
        ref: BundleRef,
        slots: Collection[int] | None = None,
        columns: Mapping[int, Sequence[str]] | None = None,
    ) -> dict[int, pa.RecordBatch]:
        """The batches of a bundle by slot id: all, or only the slots and columns named."""
        segment = self._segment_of(ref)
        try:
            return segment.read(ref.bundle_index, slots, columns)
        except SegmentDamage as damage:
            self._on_damage(ref.segment_seq, damage)
            raise


def _bundle_count(segment: OpenSegment | SegmentReader) -> int:
    return segment.bundle_count if isinstance(segment, OpenSegment) else len(segment)


class _Resolver:
    """One subscriber's side of its handles."""

    def __init__(self, delivery: Delivery, subscriber: Subscriber) -> None:
        self._delivery = delivery
        self._subscriber = subscriber

    def slots(self, ref: BundleRef) -> list[str]:
        delivery = self._delivery
        return [delivery.slots.name_of(slot) for slot in delivery.reader.slot_ids(ref)]

    def read(self, ref: BundleRef, slot: str) -> pa.RecordBatch:
        number = self._delivery.slots.find(slot)
        assert number is not None, "the handle asks only for slots that are there"
        return self._delivery.reader.read(ref, {number})[number]

    def ack(self, ref: BundleRef) -> Outcome:
        return self._delivery.ack(self._subscriber, ref)

    def reject(self, ref: BundleRef, reason: str) -> Outcome:
        return self._delivery.reject(self._subscriber, ref, reason)

    def defer(self, ref: BundleRef, delay: float) -> Outcome:
        return self._delivery.defer(self._subscriber, ref, delay)

    def abandon(self, ref: BundleRef) -> None:
        self._subscriber.abandon(ref)


class Delivery:
    """Hands bundles out and takes outcomes in."""

    def __init__(
        self,
        registry: Registry,
        reader: Reader,
        slots: SlotTable,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.registry = registry
        self.reader = reader
        self.slots = slots
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        self._deferred: list[tuple[float, BundleRef, Subscriber]] = []
        self._log = get_logger()
        self.closed: StoreClosed | None = None

    # Taking

    def next_bundle(self, subscriber: Subscriber, order: Order) -> ClaimedBundle | None:
        """Claim the next bundle, if there is one."""
        self._check_open()
        self._return_due()
        while (ref := subscriber.claim_next(order)) is not None:
            bundle = self._handle(subscriber, ref)
            if bundle is not None:
                return bundle
        return None

    def claim(self, subscriber: Subscriber, ref: BundleRef) -> ClaimedBundle:
        """Claim this bundle, or say what became of it."""
        self._check_open()
        self._return_due()
        subscriber.claim(ref)
        bundle = self._handle(subscriber, ref)
        if bundle is None:
            raise BundleGone(f"bundle {ref} was lost to damage.", ref=ref, outcome="lost")
        return bundle

    def _handle(self, subscriber: Subscriber, ref: BundleRef) -> ClaimedBundle | None:
        """A handle for a claim; ``None`` if the data is gone, which ends the claim too."""
        try:
            meta = self.reader.meta(ref)
        except BundleGone:
            return None
        except BaseException:
            subscriber.release(ref)  # a claim must not leak when reading fails
            raise
        self._metrics.counter(m.SUBSCRIBER_DELIVERED, subscriber=subscriber.name).add()
        return ClaimedBundle(_Resolver(self, subscriber), ref, meta)

    def wait(self, subscriber: Subscriber, timeout: float | None) -> bool:
        """Wait until something may be there for a subscriber; ``False`` when time is up."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while True:
            self._check_open()
            self._return_due()
            limits = [MAX_WAIT_SECONDS]
            now = self._clock.monotonic()
            if deadline is not None:
                if now >= deadline:
                    return False
                limits.append(deadline - now)
            with self._lock:
                if self._deferred:
                    limits.append(self._deferred[0][0] - now)
            if subscriber.wait(min(limits)):
                return True

    def _return_due(self) -> None:
        """Make deferred bundles pending again whose delay is over."""
        if not self._deferred:
            return
        now = self._clock.monotonic()
        due: list[tuple[float, BundleRef, Subscriber]] = []
        with self._lock:
            while self._deferred and self._deferred[0][0] <= now:
                due.append(heapq.heappop(self._deferred))
        for _, ref, subscriber in due:
            with contextlib.suppress(NotFound):
                subscriber.release(ref)

    # Outcomes

    def ack(self, subscriber: Subscriber, ref: BundleRef) -> Outcome:
        outcome = subscriber.ack(ref)
        self._metrics.counter(m.SUBSCRIBER_ACKED, subscriber=subscriber.name).add()
        return outcome

    def reject(self, subscriber: Subscriber, ref: BundleRef, reason: str) -> Outcome:
        outcome = subscriber.reject(ref)
        self._metrics.counter(m.SUBSCRIBER_REJECTED, subscriber=subscriber.name).add()
        self._log.info(BUNDLE_REJECTED, subscriber=subscriber.name, ref=str(ref), reason=reason)
        return outcome

    def defer(self, subscriber: Subscriber, ref: BundleRef, delay: float) -> Outcome:
        if delay <= 0:
            return subscriber.release(ref)
        due = self._clock.monotonic() + delay
        with self._lock:
            heapq.heappush(self._deferred, (due, ref, subscriber))
        return Outcome.PENDING

    # Questions

    def start_ref(
        self, start: Start, latest: BundleRef, sealed: Sequence[SegmentInfo]
    ) -> BundleRef:
        """The position a start stands for."""
        if start == "earliest":
            return EARLIEST
        if start == "latest":
            return latest
        if isinstance(start, datetime):
            return self._first_since(int(start.timestamp() * 1e9), latest, sealed)
        if _is_ref(start):
            return BundleRef(*start)
        raise InvalidInput(
            f"a subscriber can't start at {start!r}.",
            advice="Use 'earliest', 'latest', a datetime or a ref.",
        )

    def _first_since(
        self, since_ns: int, latest: BundleRef, sealed: Sequence[SegmentInfo]
    ) -> BundleRef:
        """The first bundle taken in at or after a time.

        Ingestion time never goes back, so whole segments can be passed over by their end.
        """
        for info in sealed:
            if info.last_ts is not None and info.last_ts >= since_ns:
                return self._first_in(info.seq, info.bundle_count, since_ns)
        in_files = {info.seq for info in sealed}
        for seq, count in self.registry.visible():
            if seq not in in_files:
                found = self._first_in(seq, count, since_ns)
                if found.bundle_index < count:
                    return found
        return latest

    def _first_in(self, seq: int, count: int, since_ns: int) -> BundleRef:
        segment = self.reader.find(seq)
        low, high = 0, count
        while low < high:
            middle = (low + high) // 2
            if (segment.meta(middle).ingestion_ts_ns or 0) < since_ns:
                low = middle + 1
            else:
                high = middle
        return BundleRef(seq, low)

    def lag(self, subscriber: Subscriber) -> Lag:
        """How much a subscriber has left, and how old the oldest of it is."""
        rows = nbytes = bundles = 0
        oldest: int | None = None
        for ref in subscriber.pending_bundles_in_range(0, 2**64 - 1, MAX_LAG_BUNDLES):
            meta = self.reader.meta(ref)
            bundles += 1
            rows += meta.rows
            nbytes += meta.nbytes
            if oldest is None:
                oldest = meta.ingestion_ts_ns
        age = 0.0 if oldest is None else max(0.0, (self._clock.now_ns() - oldest) / 1e9)
        return Lag(max(bundles, subscriber.outstanding), rows, nbytes, age)

    def _check_open(self) -> None:
        if self.closed is not None:
            raise self.closed


def _is_ref(start: object) -> TypeGuard[tuple[int, int]]:
    return (
        isinstance(start, tuple)
        and len(start) == 2
        and all(isinstance(number, int) and number >= 0 for number in start)
    )
