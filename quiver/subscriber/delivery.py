"""The read side: who gets which bundle next, and what became of it.

The registry keeps each subscriber's standing; this gives them bundles to read, from
memory while their segment is unwritten and from its file afterwards, and knows about
time: deferred bundles come back when their delay is over.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Final, Literal, TypeGuard

import pyarrow as pa

from quiver import metrics as m
from quiver.bundle.slots import SlotTable
from quiver.clock import Clock
from quiver.errors import BundleGone, InvalidInput, NotFound, StoreClosed
from quiver.events import BUNDLE_HANDED_OVER, BUNDLE_REJECTED, get_logger
from quiver.forking import guard
from quiver.ids import BundleRef
from quiver.metrics import Metrics
from quiver.segment.segments import Segments
from quiver.segment.view import SegmentView
from quiver.subscriber.handle import ClaimedBundle
from quiver.subscriber.registry import Registry
from quiver.subscriber.state import EARLIEST, Order, Outcome
from quiver.subscriber.subscriber import Subscriber

MAX_WAIT_SECONDS: Final = 1.0
"""A wait looks up at least this often, so that a closing store is noticed."""

Start = Literal["earliest", "latest"] | datetime | BundleRef | tuple[int, int]


class _HandleResolver:
    """One subscriber's side of its handles, and what is counted for it."""

    def __init__(self, delivery: Delivery, subscriber: Subscriber, metrics: Metrics) -> None:
        self._delivery = delivery
        self._subscriber = subscriber
        self.delivered = metrics.counter(m.SUBSCRIBER_DELIVERED, subscriber=subscriber.name)
        self.acked = metrics.counter(m.SUBSCRIBER_ACKED, subscriber=subscriber.name)

    def is_for(self, subscriber: Subscriber) -> bool:
        """Whoever leaves and comes back is another."""
        return self._subscriber is subscriber

    def slots(self, ref: BundleRef) -> list[str]:
        delivery = self._delivery
        with delivery.segments.pin(ref.segment_seq) as view:
            return [delivery.slots.name_of(slot) for slot in view.slot_ids(ref.bundle_index)]

    def read(self, ref: BundleRef, slot: str) -> pa.RecordBatch:
        number = self._delivery.slots.find(slot)
        assert number is not None, "the handle asks only for slots that are there"
        with self._delivery.segments.pin(ref.segment_seq) as view:
            return view.read_slot(ref.bundle_index, number)

    def ack(self, ref: BundleRef) -> Outcome:
        return self._delivery.ack(self._subscriber, ref)

    def reject(self, ref: BundleRef, reason: str) -> Outcome:
        return self._delivery.reject(self._subscriber, ref, reason)

    def hand_over(self, ref: BundleRef, where: str) -> Outcome:
        return self._delivery.hand_over(self._subscriber, ref, where)

    def defer(self, ref: BundleRef, delay: float) -> Outcome:
        return self._delivery.defer(self._subscriber, ref, delay)

    def abandon(self, ref: BundleRef) -> None:
        self._subscriber.abandon(ref)


class Delivery:
    """Hands bundles out and takes outcomes in."""

    def __init__(
        self,
        registry: Registry,
        segments: Segments,
        slots: SlotTable,
        clock: Clock,
        metrics: Metrics,
    ) -> None:
        self.registry = registry
        self.segments = segments
        self.slots = slots
        self._clock = clock
        self._metrics = metrics
        self._lock = threading.Lock()
        # By time; the number keeps those of the same moment apart.
        self._deferred: list[tuple[float, int, BundleRef, Subscriber]] = []
        self._turns = itertools.count()
        self._resolvers: dict[str, _HandleResolver] = {}
        self._log = get_logger()
        self.on_outcome: Callable[[], None] = lambda: None
        """Called after an outcome: it has to reach the disk before long. Must be cheap."""
        self.closed: StoreClosed | None = None
        guard(self)

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
            with self.segments.pin(ref.segment_seq) as view:
                view.check(ref.bundle_index)  # whoever is given it won't find it lost
                meta = view.meta(ref.bundle_index)
            resolver = self._resolver(subscriber)
            resolver.delivered.add()
            return ClaimedBundle(resolver, ref, meta)
        except BundleGone as gone:
            if _give_back(subscriber, ref, lost=gone.details.get("outcome") == "lost"):
                return None
            raise
        except BaseException:
            subscriber.release(ref)  # a claim must not leak when reading fails
            raise

    def _resolver(self, subscriber: Subscriber) -> _HandleResolver:
        found = self._resolvers.get(subscriber.name)
        if found is None or not found.is_for(subscriber):
            found = _HandleResolver(self, subscriber, self._metrics)
            self._resolvers[subscriber.name] = found
        return found

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
        due: list[tuple[BundleRef, Subscriber]] = []
        with self._lock:
            while self._deferred and self._deferred[0][0] <= now:
                due.append(heapq.heappop(self._deferred)[2:])
        for ref, subscriber in due:
            _give_back(subscriber, ref)

    # Outcomes

    def ack(self, subscriber: Subscriber, ref: BundleRef) -> Outcome:
        self._check_open()  # it could not become durable any more
        outcome = subscriber.ack(ref)
        self._resolver(subscriber).acked.add()
        self.on_outcome()
        return outcome

    def ack_before(self, subscriber: Subscriber, ref: BundleRef) -> int:
        self._check_open()
        acked = subscriber.ack_before(ref)
        self._resolver(subscriber).acked.add(acked)
        self.on_outcome()
        return acked

    def reject(self, subscriber: Subscriber, ref: BundleRef, reason: str) -> Outcome:
        """Refuse a bundle: the ledger has it before the subscriber's progress does."""
        self._check_open()
        outcome = subscriber.reject(ref)
        self._metrics.counter(m.SUBSCRIBER_REJECTED, subscriber=subscriber.name).add()
        self._log.info(BUNDLE_REJECTED, subscriber=subscriber.name, ref=str(ref), reason=reason)
        self.on_outcome()
        return outcome

    def hand_over(self, subscriber: Subscriber, ref: BundleRef, where: str) -> Outcome:
        """A bundle is durable in another stream: finished here, and neither lost nor refused."""
        self._check_open()
        outcome = subscriber.drop(ref)
        self._metrics.counter(m.SUBSCRIBER_HANDED_OVER, subscriber=subscriber.name).add()
        self._log.info(BUNDLE_HANDED_OVER, subscriber=subscriber.name, ref=str(ref), where=where)
        self.on_outcome()
        return outcome

    def seek(self, subscriber: Subscriber, ref: BundleRef) -> None:
        """Go on from ``ref``: that is kept as outcomes are."""
        subscriber.seek(ref)
        self.on_outcome()

    def defer(self, subscriber: Subscriber, ref: BundleRef, delay: float) -> Outcome:
        if delay <= 0:
            return subscriber.release(ref)
        due = self._clock.monotonic() + delay
        with self._lock:
            heapq.heappush(self._deferred, (due, next(self._turns), ref, subscriber))
        return Outcome.PENDING

    # Questions

    def start_ref(self, start: Start, latest: BundleRef) -> BundleRef:
        """The position a start stands for."""
        if start == "earliest":
            return EARLIEST
        if start == "latest":
            return latest
        if isinstance(start, datetime):
            return self.position_at(_nanoseconds(start), latest)
        if _is_ref(start):
            return BundleRef(*start)
        raise InvalidInput(
            f"a subscriber can't start at {start!r}.",
            advice="Use 'earliest', 'latest', a datetime or a ref.",
        )

    def position_at(self, since_ns: int, end: BundleRef) -> BundleRef:
        """The position of the first bundle taken in at or after a time; ``end`` if none was.

        Ingestion time never goes back, so whole segments can be passed over by their last one.
        Lost bundles are stepped over: what they left behind says nothing about their neighbours.
        """
        for seq, count in self.segments.visible():
            info = self.segments.info(seq)
            if info is not None and info.last_ts is not None and info.last_ts < since_ns:
                continue
            with contextlib.suppress(NotFound):  # deleted since it was listed
                found = self._first_in(seq, count, since_ns)
                if found is not None:
                    return found
        return end

    def _first_in(self, seq: int, count: int, since_ns: int) -> BundleRef | None:
        low, high = 0, count
        with self.segments.pin(seq) as view:
            while low < high:
                middle = (low + high) // 2
                found = _time_from(view, middle, high)
                if found is not None and found[1] < since_ns:
                    low = found[0] + 1
                else:
                    high = middle
            return None if _time_from(view, low, count) is None else BundleRef(seq, low)

    def _check_open(self) -> None:
        if self.closed is not None:
            raise self.closed


def _time_from(view: SegmentView, first: int, end: int) -> tuple[int, int] | None:
    """The first bundle at or behind ``first`` that was not lost, and its ingestion time."""
    for index in range(first, end):
        with contextlib.suppress(BundleGone):
            return index, view.meta(index).ingestion_ts_ns or 0
    return None


def _give_back(subscriber: Subscriber, ref: BundleRef, *, lost: bool = False) -> bool:
    """End a claim; whether that was the end of the bundle, too: finished, lost, or deleted."""
    try:
        return (subscriber.drop if lost else subscriber.release)(ref).final
    except NotFound:
        return True


def _nanoseconds(time: datetime) -> int:
    """Since the epoch, exactly: a float can't say it to the nanosecond."""
    if time.tzinfo is None:
        raise InvalidInput(
            f"{time!r} is a time without a zone.", advice="Say which: datetime.now(UTC), say."
        )
    return (time - datetime.fromtimestamp(0, UTC)) // timedelta(microseconds=1) * 1000


def _is_ref(start: object) -> TypeGuard[tuple[int, int]]:
    return (
        isinstance(start, tuple)
        and len(start) == 2
        and all(isinstance(number, int) and number >= 0 for number in start)
    )
