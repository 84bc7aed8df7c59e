"""A subscriber's view of a store: take bundles, say what became of them, see the lag."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from quiver.clock import Clock
from quiver.errors import StoreClosed
from quiver.forking import guard
from quiver.ids import BundleRef
from quiver.subscriber.delivery import Delivery
from quiver.subscriber.handle import ClaimedBundle
from quiver.subscriber.lag import Lag, measure_lag
from quiver.subscriber.state import Order, Outcome
from quiver.subscriber.subscriber import Status, Subscriber

MAX_RANGE: Final = 100_000
"""Most refs that one look at what is pending returns."""


class Subscription:
    """Iterate over it to get bundles, oldest first unless told otherwise.

    With ``follow`` the iteration waits for more, until the store is closed; without, it
    ends when nothing is left, and gives nothing out twice: a bundle that gets no outcome
    is pending again when the iteration is over.  Several threads may share one: each
    bundle goes to one of them.
    """

    def __init__(
        self,
        delivery: Delivery,
        subscriber: Subscriber,
        *,
        clock: Clock,
        flush: Callable[[tuple[str, ...]], object],
        nudge: Callable[[], bool],
        order: Order = Order.OLDEST,
        follow: bool = True,
    ) -> None:
        self._delivery = delivery
        self._subscriber = subscriber
        self._clock = clock
        self._flush = flush
        self._nudge = nudge
        self._order = order
        self._follow = follow
        guard(self)

    @property
    def name(self) -> str:
        return self._subscriber.name

    @property
    def status(self) -> Status:
        """Where it stands in its life: registered, active, orphan …"""
        return self._subscriber.status

    # Taking bundles

    def next_bundle(self, timeout: float | None = 0.0) -> ClaimedBundle | None:
        """Claim the next bundle, waiting for one up to ``timeout`` seconds (``None``: for ever)."""
        deadline = self._clock.monotonic() + timeout if timeout else None
        while True:
            bundle = self._delivery.next_bundle(self._subscriber, self._order)
            if bundle is not None:
                return bundle
            if self._nudge():
                continue
            if timeout == 0:
                return None
            left = None if deadline is None else deadline - self._clock.monotonic()
            if left is not None and left <= 0:
                return None
            if not self._delivery.wait(self._subscriber, left):
                return None

    def claim_bundle(self, ref: BundleRef | tuple[int, int]) -> ClaimedBundle:
        """Claim this bundle: ``BundleGone`` or ``Busy`` say why it can't be had."""
        return self._delivery.claim(self._subscriber, BundleRef(*ref))

    def __iter__(self) -> Iterator[ClaimedBundle]:
        given_out: deque[ClaimedBundle] = deque()  # held, so that they don't come back yet
        while True:
            try:
                bundle = self.next_bundle(None if self._follow else 0.0)
            except StoreClosed:
                return
            if bundle is not None:
                if not self._follow:
                    while given_out and given_out[0].outcome is not Outcome.CLAIMED:
                        given_out.popleft()
                    given_out.append(bundle)
                yield bundle
            elif not self._follow:
                return

    # Outcomes by ref, for those who keep refs rather than handles

    def ack(self, refs: Iterable[BundleRef | tuple[int, int]]) -> list[Outcome]:
        """Finish bundles; durable after :meth:`flush`."""
        return [self._delivery.ack(self._subscriber, BundleRef(*ref)) for ref in refs]

    def ack_before(self, ref: BundleRef | tuple[int, int]) -> int:
        """Finish all that is there before ``ref``, by position and not one by one; how many.

        What becomes visible later is not finished by it, wherever it lies.
        """
        return self._delivery.ack_before(self._subscriber, BundleRef(*ref))

    def reject(self, ref: BundleRef | tuple[int, int], reason: str = "") -> Outcome:
        """Refuse a bundle, on record in the ledger: it can never be dealt with."""
        return self._delivery.reject(self._subscriber, BundleRef(*ref), reason)

    def outcome(self, ref: BundleRef | tuple[int, int]) -> Outcome:
        """Where a bundle stands with this subscriber."""
        return self._subscriber.outcome(BundleRef(*ref))

    def flush(self) -> None:
        """Make all outcomes so far durable."""
        self._flush((self.name,))

    def seek(self, ref: BundleRef | tuple[int, int]) -> None:
        """Go on from ``ref``, back or forth: before it all is done, behind it comes again."""
        self._delivery.seek(self._subscriber, BundleRef(*ref))

    # Questions

    def lag(self) -> Lag:
        """How far it is behind: bundles, rows, bytes, and the age of the oldest."""
        delivery = self._delivery
        return measure_lag(self._subscriber, delivery.registry, delivery.segments, self._clock)

    @property
    def position(self) -> BundleRef:
        """The oldest bundle not finished, or the end of what is there."""
        return self._subscriber.frontier or self._delivery.registry.end

    @property
    def pending_bundle_count(self) -> int:
        """Bundles not finished, claimed ones included."""
        return self._subscriber.outstanding

    def pending_bundles_in_range(self, first: int, last: int) -> list[BundleRef]:
        """Refs not finished in segments ``first`` to ``last``, in order: for own priorities."""
        return self._subscriber.pending_bundles_in_range(first, last, MAX_RANGE)

    def __repr__(self) -> str:
        return f"<Subscription {self.name} {self.status} lag={self.pending_bundle_count}>"
