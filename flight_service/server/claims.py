"""What is handed out, under which lease, and how it is told: values of the desk.

See :mod:`flight_service.server.leases` for what happens to them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from flight_service.protocol.get import BundleInfo
from flight_service.protocol.names import Ref
from quiver import BundleMeta, BundleRef, ClaimedBundle


@dataclass(slots=True)
class Failure:
    """A bundle that came back."""

    count: int
    reason: str = ""


@dataclass(slots=True)
class Held:
    delivered: Delivered
    lease: Lease

    @property
    def handle(self) -> ClaimedBundle:
        return self.delivered.handle


@dataclass(slots=True)
class Lease:
    """A group of claims with one end."""

    id: str
    consumer: str
    seconds: float
    deadline: float
    bound: bool
    """Bound to a call: stays when it is empty, and goes with the call."""
    refs: set[BundleRef] = field(default_factory=set)
    closed: bool = False
    expired: list[BundleRef] = field(default_factory=list)
    """Bundles taken back because nobody was heard of; told to the call, then forgotten."""


@dataclass(frozen=True, slots=True)
class Delivered:
    """A bundle as it is handed out."""

    handle: ClaimedBundle
    delivery: int
    reason: str

    def info(self, slots: tuple[str, ...] | None = None) -> BundleInfo:
        """For the wire; ``slots`` are those that are sent, if not all."""
        handle = self.handle
        return bundle_info(
            handle.ref,
            handle.meta,
            handle.keys() if slots is None else slots,
            delivery=self.delivery,
            reason=self.reason or None,
        )


@dataclass(frozen=True, slots=True)
class Poison:
    """A bundle that nobody could deal with, and where it belongs."""

    stream: str
    subscriber: str
    grave: str
    """The stream it goes to."""
    handle: ClaimedBundle
    deliveries: int
    reason: str
    buried: Callable[[BundleRef], None]
    """To be called once it is safe there and finished here."""


class Bury(Protocol):
    """Who takes dead letters: must not wait."""

    def __call__(self, poison: Poison, /) -> None: ...


def bundle_info(
    ref: BundleRef,
    meta: BundleMeta,
    slots: tuple[str, ...],
    *,
    delivery: int | None = None,
    reason: str | None = None,
) -> BundleInfo:
    """What is told about a bundle."""
    return BundleInfo(
        ref=Ref(*ref),
        sequence=meta.sequence,
        ingestion_ts_ns=meta.ingestion_ts_ns,
        key=meta.key,
        attributes=dict(meta.attributes) or None,
        event_time=meta.event_time,
        rows=meta.rows,
        nbytes=meta.nbytes,
        slots=slots,
        delivery=delivery,
        reason=reason,
    )
