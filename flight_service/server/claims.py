"""What is handed out, under which lease, and how it is told: values of a consumer group.

See :mod:`flight_service.server.leases` for what happens to them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from flight_service.protocol.get import BundleInfo
from flight_service.protocol.message import to_json
from flight_service.protocol.names import Ref
from quiver import BundleMeta, BundleRef, ClaimedBundle


@dataclass(slots=True)
class Failure:
    """A bundle that came back."""

    count: int
    reason: str = ""


@dataclass(slots=True)
class ClaimedRef:
    delivered: DeliveredBundle
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
class DeliveredBundle:
    """A bundle as it is handed out."""

    handle: ClaimedBundle
    delivery: int
    reason: str

    def info(self) -> BundleInfo:
        """For the wire: in the answer to a claim."""
        handle, meta = self.handle, self.handle.meta
        return BundleInfo(
            ref=Ref(*handle.ref),
            sequence=meta.sequence,
            ingestion_ts_ns=meta.ingestion_ts_ns,
            key=meta.key,
            attributes=dict(meta.attributes) or None,
            event_time=meta.event_time,
            rows=meta.rows,
            nbytes=meta.nbytes,
            slots=handle.keys(),
            delivery=self.delivery,
            reason=self.reason or None,
        )


@dataclass(frozen=True, slots=True)
class PoisonBundle:
    """A bundle that nobody could deal with, and where it belongs."""

    stream: str
    origin: str
    """The uuid of that stream: a stream made again under the name is another one."""
    subscriber: str
    target: str
    """The dead-letter stream."""
    handle: ClaimedBundle
    deliveries: int
    reason: str
    settled: Callable[[BundleRef], None]
    """To be called once it is safe there and finished here."""


class DeadLetterSink(Protocol):
    """Takes bundles for the dead letters; must not block."""

    def __call__(self, poison: PoisonBundle, /) -> None: ...


def info_fields(
    ref: BundleRef,
    meta: BundleMeta,
    slots: tuple[str, ...],
    delivered: DeliveredBundle | None = None,
) -> str:
    """What is told beside a bundle: the fields of a :class:`BundleInfo`, as JSON.

    Put together by hand: every bundle that is read has one, and making the message only to
    write it takes as long as everything else that is done in Python for the bundle.
    """
    text = f'"ref":[{ref[0]},{ref[1]}]'
    if meta.sequence is not None:
        text += f',"sequence":{meta.sequence}'
    if meta.ingestion_ts_ns is not None:
        text += f',"ingestion_ts_ns":{meta.ingestion_ts_ns}'
    if meta.key is not None:
        text += f',"key":{to_json(meta.key)}'
    if meta.attributes:
        text += f',"attributes":{to_json(dict(meta.attributes))}'
    if meta.event_time is not None:
        text += f',"event_time":[{meta.event_time[0]},{meta.event_time[1]}]'
    if meta.rows:
        text += f',"rows":{meta.rows}'
    if meta.nbytes:
        text += f',"nbytes":{meta.nbytes}'
    if slots:
        text += _told_slots(slots)
    if delivered is not None:
        text += _told_delivery(delivered)
    return text


def _told_delivery(delivered: DeliveredBundle) -> str:
    reason = f',"reason":{to_json(delivered.reason)}' if delivered.reason else ""
    return f',"delivery":{delivered.delivery}{reason}'


@functools.lru_cache(maxsize=1024)
def _told_slots(slots: tuple[str, ...]) -> str:
    """Bundles mostly have the same few sets of slots."""
    return f',"slots":{to_json(list(slots))}'
