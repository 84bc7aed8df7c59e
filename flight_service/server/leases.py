"""Claims as leases: who has which bundle, until when, and what happens when it comes back.

The library knows pending, claimed and finished.  What a service adds is here, one
:class:`ConsumerGroup` per subscriber, shared by all consumers of that name::

    claim ──► held under a lease ──ack/reject──► finished
                │        │
                │        ├── defer (nack): back after a delay that doubles with each failure
                │        ├── lease over, or its call ended: back at once
                │        └── renew: held longer
                └── came back `max_deliveries` times: poison → dead letter, drop or block

Only what is held counts against ``max_in_flight``, so what came back is delivered again
however full that is.  A delivery counts as failed when the bundle comes back, not when it
is handed out.  These counts are kept with the stream
(:mod:`flight_service.server.failures`), written at most a second later: a crash of the
server forgets failures of its last second, and bundles that were in somebody's hands count
as never handed out.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

from flight_service.protocol.errors import ServiceError
from flight_service.protocol.names import Ref
from flight_service.server.claims import (
    ClaimedRef,
    DeadLetterSink,
    DeliveredBundle,
    Failure,
    Lease,
    PoisonBundle,
)
from flight_service.server.events import BUNDLE_POISONED, LEASE_EXPIRED, get_logger
from flight_service.server.policy import Policy
from quiver import BundleRef, ClaimedBundle, Outcome, Store, Subscription
from quiver.clock import Clock
from quiver.errors import BundleGone, NotFound

MAX_FAILURES: Final = 65_536
"""Bundles with failed deliveries remembered per subscriber; beyond, the oldest is forgotten."""
MAX_LEASES: Final = 4_096
"""Leases of one subscriber at a time."""
WAIT_SLICE: Final = 0.2
"""A wait looks up this often: has the caller gone, is the server stopping?"""
MAX_REASON: Final = 1_000

_log = get_logger()


class ConsumerGroup:
    """One subscriber of one stream: everything that is handed out passes here."""

    def __init__(
        self,
        store: Store,
        stream: str,
        name: str,
        policy: Policy,
        clock: Clock,
        dead_letters: DeadLetterSink,
        failures: dict[BundleRef, Failure] | None = None,
    ) -> None:
        self.stream = stream
        self.name = name
        self.policy = policy
        self._store = store
        self._clock = clock
        self._dead_letters = dead_letters
        self._lock = threading.RLock()
        self._room = threading.Condition(self._lock)
        self._subscriptions: dict[str, Subscription] = {}
        self._leases: dict[str, Lease] = {}
        self._held: dict[BundleRef, ClaimedRef] = {}
        self._held_bytes = 0
        self._poisoned: dict[BundleRef, ClaimedBundle] = {}
        self.blocked: tuple[ClaimedBundle, int] | None = None
        self.failures = {} if failures is None else failures
        """Failed deliveries; shared with the stream, which writes them down."""
        self._unsaved: set[BundleRef] = set()

    def _subscription(self, order: str = "oldest") -> Subscription:
        with self._lock:
            found = self._subscriptions.get(order)
            if found is None:
                found = self._store.subscribe(self.name, order=order)
                self._subscriptions[order] = found
            return found

    # Handing out

    def lease(self, consumer: str | None, lease_ms: int | None, *, bound: bool = False) -> Lease:
        """A lease to claim under; it counts from the first claim."""
        seconds = (lease_ms or self.policy.lease_ms) / 1000
        deadline = self._clock.monotonic() + seconds
        lease = Lease(secrets.token_hex(12), consumer or "", seconds, deadline, bound)
        with self._lock:
            if len(self._leases) >= MAX_LEASES:
                raise ServiceError(
                    "busy",
                    f"{self.name} has {MAX_LEASES:,} leases already.",
                    details={"retry_after_ms": 1000},
                )
            self._leases[lease.id] = lease
        return lease

    def claim(
        self,
        lease: Lease,
        *,
        max_bundles: int,
        max_bytes: int,
        wait: float = 0.0,
        order: str = "oldest",
        gone: Callable[[], bool] = lambda: False,
    ) -> list[DeliveredBundle]:
        """The next bundles; waits for a first one, until ``gone`` says that nobody cares."""
        subscription = self._subscription(order)
        deadline = self._clock.monotonic() + wait
        first: ClaimedBundle | None = None
        while True:
            taken = self._take(subscription, lease, max_bundles, max_bytes, first)
            first = None
            left = deadline - self._clock.monotonic()
            if taken or left <= 0 or gone():
                return self._answered(taken, lease, gone)
            if self._wait_for_room(min(left, WAIT_SLICE)):
                first = subscription.next_bundle(min(left, WAIT_SLICE))

    def _answered(
        self, taken: list[DeliveredBundle], lease: Lease, gone: Callable[[], bool]
    ) -> list[DeliveredBundle]:
        """Whoever asked may have gone while waiting: then nothing was handed out."""
        if lease.bound:
            return taken
        if not taken or gone():
            self.release(lease, failed=False)
            return []
        return taken

    def _wait_for_room(self, timeout: float) -> bool:
        with self._room:
            return self._room.wait_for(self._has_room, timeout)

    def _take(
        self,
        subscription: Subscription,
        lease: Lease,
        max_bundles: int,
        max_bytes: int,
        first: ClaimedBundle | None = None,
    ) -> list[DeliveredBundle]:
        taken: list[DeliveredBundle] = []
        nbytes = 0
        with self._lock:
            while len(taken) < max_bundles and (not taken or nbytes < max_bytes):
                if self.blocked is not None:
                    _give_back(first)
                    raise self._blocked_error()
                if lease.closed or not self._has_room():
                    break
                handle = first if first is not None else subscription.next_bundle(0.0)
                first = None
                if handle is None:
                    break
                try:
                    delivered = self._hand_out(handle, lease)
                except NotFound:
                    _give_back(handle)  # lost or deleted since it was claimed: the next one
                    continue
                if delivered is not None:
                    taken.append(delivered)
                    nbytes += handle.meta.nbytes
            _give_back(first)
            # A call's lease lives by what is heard, but whoever had nothing owed nothing.
            if taken and (not lease.bound or len(lease.refs) == len(taken)):
                lease.deadline = self._clock.monotonic() + lease.seconds
        return taken

    def _has_room(self) -> bool:
        return (
            len(self._held) < self.policy.max_in_flight
            and self._held_bytes < self.policy.max_in_flight_bytes
        )

    def _hand_out(self, handle: ClaimedBundle, lease: Lease) -> DeliveredBundle | None:
        wanted = self.policy.slots
        if wanted is not None and not any(slot in wanted for slot in handle):
            handle.ack()  # nothing in it for this subscriber
            return None
        failure = self.failures.get(handle.ref)
        failed = failure.count if failure is not None else 0
        reason = failure.reason if failure is not None else ""
        if self.policy.max_deliveries and failed >= self.policy.max_deliveries:
            self._poison(handle, failed, reason)
            return None
        delivered = DeliveredBundle(handle, failed + 1, reason)
        self._held[handle.ref] = ClaimedRef(delivered, lease)
        self._held_bytes += handle.meta.nbytes
        lease.refs.add(handle.ref)
        return delivered

    def _poison(self, handle: ClaimedBundle, deliveries: int, reason: str) -> None:
        policy = self.policy.poison
        _log.warning(
            BUNDLE_POISONED,
            stream=self.stream,
            subscriber=self.name,
            ref=str(handle.ref),
            deliveries=deliveries,
            policy=policy,
        )
        if policy == "drop":
            handle.reject(f"poison after {deliveries} deliveries: {reason}")
            self._forget(handle.ref)
        elif policy == "block":
            self.blocked = (handle, deliveries)
        else:
            self._poisoned[handle.ref] = handle
            self._dead_letters(
                PoisonBundle(
                    stream=self.stream,
                    origin=self._store.uuid,
                    subscriber=self.name,
                    target=self.policy.dead_letters(self.stream),
                    handle=handle,
                    deliveries=deliveries,
                    reason=reason,
                    settled=self._is_settled,
                )
            )

    def _blocked_error(self) -> ServiceError:
        assert self.blocked is not None
        handle, deliveries = self.blocked
        return ServiceError(
            "blocked",
            f"{self.name} is blocked: bundle {handle.ref} came back {deliveries} times."
            " Ack, reject or seek to go on.",
            details={"ref": list(handle.ref), "deliveries": deliveries},
        )

    def _is_settled(self, ref: BundleRef) -> None:
        """A dead letter is safe in its stream: the bundle is finished here."""
        with self._lock:
            self._forget(ref)  # first: who is not busy any more has told what to write down
            self._poisoned.pop(ref, None)
            self._room.notify_all()

    def await_burials(self, timeout: float) -> None:
        """Wait until what turned out to be poison is in the stream of the dead."""
        with self._room:
            self._room.wait_for(lambda: not self._poisoned, timeout)

    # Outcomes

    def ack(self, refs: Iterable[Ref], lease: str | None) -> tuple[int, list[tuple[Ref, str]]]:
        """Bundles were dealt with: how many count, and what is true of the others."""
        return self._finish(refs, lease, lambda handle: handle.ack(), self._ack_unheld)

    def ack_before(self, position: BundleRef) -> int:
        """Everything before a position was dealt with, whoever holds it; how many are new."""
        with self._lock:
            taken = self._subscription().ack_before(position)
            for held in [one for one in self._held.values() if one.handle.ref < position]:
                self._drop_claim(held.handle.ref)
                _ack(held.handle)
            if self.blocked is not None and self.blocked[0].ref < position:
                _ack(self.blocked[0])
                self.blocked = None
            for ref in [one for one in self.failures if one < position]:
                self._forget(ref)
            return taken

    def reject(
        self, refs: Iterable[Ref], reason: str, lease: str | None
    ) -> tuple[int, list[tuple[Ref, str]]]:
        """Bundles can never be dealt with: dropped, on record."""
        return self._finish(
            refs,
            lease,
            lambda handle: handle.reject(reason),
            lambda ref: self._subscription().reject(ref, reason),
        )

    def _ack_unheld(self, ref: BundleRef) -> Outcome:
        return self._subscription().ack([ref])[0]

    def _finish(
        self,
        refs: Iterable[Ref],
        lease: str | None,
        finish: Callable[[ClaimedBundle], Outcome],
        finish_unheld: Callable[[BundleRef], Outcome],
    ) -> tuple[int, list[tuple[Ref, str]]]:
        taken = 0
        problems: list[tuple[Ref, str]] = []
        with self._lock:
            for asked in refs:
                ref = BundleRef(*asked)
                held = self._held_by(ref, lease)
                if held is None and lease is not None:
                    outcome = self._standing(ref)
                    if outcome == "acked":
                        taken += 1  # it was taken before: asking again is fine
                    else:
                        problems.append((asked, outcome))
                    continue
                try:
                    found = finish_unheld(ref) if held is None else finish(held.handle)
                    taken += 1 if found.final else 0
                except NotFound as error:
                    problems.append((asked, _gone(error)))
                self._drop_claim(ref)
                self._forget(ref)
                if self.blocked is not None and self.blocked[0].ref == ref:
                    self.blocked = None
        return taken, problems

    def defer(
        self, refs: Iterable[Ref], delay: float | None, reason: str, lease: str | None
    ) -> tuple[int, list[tuple[Ref, str]]]:
        """Bundles come back after ``delay``, or after the policy's backoff."""
        taken = 0
        problems: list[tuple[Ref, str]] = []
        with self._lock:
            for asked in refs:
                ref = BundleRef(*asked)
                held = self._held_by(ref, lease)
                if held is None:
                    problems.append((asked, self._standing(ref)))
                    continue
                failures = self._failed(ref, reason)
                self._drop_claim(ref)
                _give_back(held.handle, self.policy.backoff(failures) if delay is None else delay)
                taken += 1
        return taken, problems

    def put_back(self, refs: Iterable[Ref], lease: str) -> None:
        """Bundles that were sent and never looked at: back at once, no delivery counted."""
        with self._lock:
            for asked in refs:
                held = self._held_by(BundleRef(*asked), lease)
                if held is not None:
                    self._drop_claim(held.handle.ref)
                    _give_back(held.handle)

    def renew(
        self, lease_id: str, refs: Iterable[Ref] | None, lease_ms: int | None
    ) -> tuple[int, float | None]:
        """Hold claims longer; with ``refs`` only those: how many, and for how many seconds."""
        with self._lock:
            lease = self._leases.get(lease_id)
            if lease is None:
                return 0, None
            if refs is not None:
                kept = {BundleRef(*ref) for ref in refs}
                for ref in [one for one in lease.refs if one not in kept]:
                    self._give_back(ref, "given back")
            if lease_ms is not None:
                lease.seconds = lease_ms / 1000
            lease.deadline = self._clock.monotonic() + lease.seconds
            return len(lease.refs), lease.seconds

    def heard(self, lease: Lease) -> None:
        """The client of a call is there: its lease starts over."""
        lease.deadline = self._clock.monotonic() + lease.seconds

    def release(self, lease: Lease, *, failed: bool = True) -> int:
        """The call has ended: everything goes back at once, and no more is claimed.

        ``failed``: somebody had it in hands, so it counts as a delivery.
        """
        with self._lock:
            lease.closed = True
            self._leases.pop(lease.id, None)
            refs = list(lease.refs)
            for ref in refs:
                self._give_back(ref, "connection lost" if failed else None)
            return len(refs)

    def expire(self, now: float) -> int:
        """Take back what was held too long; how many bundles."""
        count = 0
        with self._lock:
            for lease in list(self._leases.values()):
                if now < lease.deadline:
                    continue
                refs = sorted(lease.refs)
                for ref in refs:
                    self._give_back(ref, "lease expired")
                if lease.bound:
                    lease.expired += refs
                else:
                    lease.closed = True
                    self._leases.pop(lease.id, None)
                count += len(refs)
        if count:
            _log.info(LEASE_EXPIRED, stream=self.stream, subscriber=self.name, bundles=count)
        return count

    def take_expired(self, lease: Lease) -> list[BundleRef]:
        """What a call lost since it last asked."""
        with self._lock:
            expired, lease.expired = lease.expired, []
        return expired

    def holds(self, lease_id: str, refs: Iterable[Ref]) -> dict[BundleRef, DeliveredBundle]:
        """Bundles claimed under a lease; ``expired`` if one isn't any more."""
        found: dict[BundleRef, DeliveredBundle] = {}
        with self._lock:
            for asked in refs:
                ref = BundleRef(*asked)
                held = self._held_by(ref, lease_id)
                if held is None:
                    outcome = self._standing(ref)
                    raise ServiceError(
                        "expired",
                        f"bundle {asked} is not claimed under this lease any more: {outcome}.",
                        details={"ref": list(asked), "outcome": outcome},
                    )
                found[ref] = held.delivered
        return found

    def no_longer_held(self, lease: Lease, refs: Iterable[BundleRef]) -> set[BundleRef]:
        """Those of these bundles that are not claimed under this lease any more."""
        with self._lock:
            return {ref for ref in refs if ref not in lease.refs}

    def _held_by(self, ref: BundleRef, lease: str | None) -> ClaimedRef | None:
        held = self._held.get(ref)
        if held is None or (lease is not None and held.lease.id != lease):
            return None
        return held

    def _standing(self, ref: BundleRef) -> str:
        """What is true of a bundle that the caller doesn't hold."""
        if ref in self._held:
            return "reclaimed"
        try:
            outcome = self._subscription().outcome(ref)
        except NotFound as error:
            return _gone(error)
        return "pending" if outcome is Outcome.CLAIMED else str(outcome)

    def _give_back(self, ref: BundleRef, reason: str | None) -> None:
        held = self._held[ref]
        if reason is not None:
            self._failed(ref, reason)
        self._drop_claim(ref)
        _give_back(held.handle)

    def _failed(self, ref: BundleRef, reason: str) -> int:
        failure = self.failures.pop(ref, None) or Failure(0)
        failure.count += 1
        failure.reason = reason[:MAX_REASON] or failure.reason
        while len(self.failures) >= MAX_FAILURES:
            self._forget(next(iter(self.failures)))
        self.failures[ref] = failure
        self._unsaved.add(ref)
        return failure.count

    def _forget(self, ref: BundleRef) -> None:
        if self.failures.pop(ref, None) is not None:
            self._unsaved.add(ref)

    @property
    def has_unsaved_failures(self) -> bool:
        """Whether :attr:`failures` changed since they were last written down."""
        return bool(self._unsaved)

    def take_unsaved(self) -> list[tuple[BundleRef, Failure | None]]:
        """What changed since the last call, as it stands now; ``None``: forgotten.

        If writing it down fails, :meth:`put_unsaved` gives it back.
        """
        with self._lock:
            taken = sorted(self._unsaved)
            self._unsaved.clear()
            return [(ref, self.failures.get(ref)) for ref in taken]

    def put_unsaved(self, refs: Iterable[BundleRef]) -> None:
        """These changes could not be written down."""
        with self._lock:
            self._unsaved.update(refs)

    def _drop_claim(self, ref: BundleRef) -> None:
        held = self._held.pop(ref, None)
        if held is None:
            return
        self._held_bytes -= held.handle.meta.nbytes
        held.lease.refs.discard(ref)
        self._room.notify_all()
        if not held.lease.refs and not held.lease.bound:
            self._leases.pop(held.lease.id, None)

    # The subscriber as a whole

    def seek(self, ref: BundleRef) -> None:
        """Go on from ``ref``; claims of before count no more."""
        with self._lock:
            for held in list(self._held.values()):
                self._drop_claim(held.handle.ref)
                _give_back(held.handle)
            if self.blocked is not None:
                _give_back(self.blocked[0])
                self.blocked = None
            for failed in list(self.failures):
                self._forget(failed)
            self._subscription().seek(ref)

    @property
    def busy(self) -> bool:
        """Whether something is in somebody's hands: the stream must stay open."""
        return bool(self._held or self._poisoned or self._leases or self.blocked)

    def status(self) -> dict[str, Any]:
        """For ``status``."""
        with self._lock:
            return {
                "in_flight": len(self._held),
                "in_flight_bytes": self._held_bytes,
                "leases": len(self._leases),
                "consumers": sorted({lease.consumer for lease in self._leases.values()} - {""}),
                "redelivering": len(self.failures),
                "dead_letters_pending": len(self._poisoned),
                "blocked": None if self.blocked is None else list(self.blocked[0].ref),
                "policy": self.policy.write(),
            }


def _give_back(handle: ClaimedBundle | None, delay: float = 0.0) -> None:
    """End a claim; a bundle that was lost or deleted meanwhile has none any more."""
    if handle is not None:
        with contextlib.suppress(NotFound):
            handle.defer(delay)


def _ack(handle: ClaimedBundle) -> None:
    with contextlib.suppress(NotFound):  # lost or deleted meanwhile: as good as finished
        handle.ack()


def _gone(error: NotFound) -> str:
    if isinstance(error, BundleGone):
        return str(error.details.get("outcome", "deleted"))
    return "unknown"
