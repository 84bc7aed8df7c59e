"""Reading: GetFlightInfo says what there is or claims it, DoGet brings it.

The descriptor is a command with a :class:`ReadCommand`; a path ``[stream]`` or
``[stream, slot]`` lists everything without claiming.

With a ``subscriber`` the answer's endpoints hold bundles that are claimed for it: a lease
that ends at the endpoint's ``expiration_time`` unless renewed.  Without one, nothing
changes on the server; ``refs``, ``start``/``end`` (refs, end excluded) and
``since_ns``/``until_ns`` (ingestion time, end excluded) say which bundles.

Every endpoint has a :class:`Ticket`, which is also its ``app_metadata``, there without the
``uuid``: bundle *i* of the answer is ref *i*.  A ticket is a request, not a credential: it is
authorised again when it is used, and a client may write its own.  If a bundle can't be had any
more, DoGet fails with ``expired`` and says what became of it; likewise if the ticket names the
uuid of another stream than the one that has the name now.

*Bundle mode* answers with the wrapper, one batch per bundle, a :class:`BundleInfo` as each
batch's ``app_metadata``.  *Slot mode* answers with the slot's own schema and native
batches; such a stream has no metadata, so there is one endpoint for each run of bundles
with one schema, and batch *i* is ref *i*.  Bundles without that slot have no endpoint;
their refs are in the info's ``app_metadata`` (:class:`FlightMeta`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

import pyarrow.flight as flight

from flight_service.protocol.message import (
    BOOL,
    COLUMNS,
    COUNT,
    MAX_TIME_NS,
    PROJECTION,
    REF,
    REFS,
    SLOT,
    SLOTS,
    STREAM,
    STRINGS,
    SUBSCRIBER,
    TEXT,
    TIME_NS,
    TIME_RANGE,
    Message,
    bad,
    choice,
    listed,
    of,
    text,
    whole,
)
from flight_service.protocol.names import MAX_REFS, Ref
from flight_service.protocol.put import MAX_COMMAND, MAX_KEY, path_of

MAX_TICKET: Final = 2 << 20
MAX_CLAIM_BUNDLES: Final = 4_096
MAX_CLAIM_BYTES: Final = 1 << 40
MAX_WAIT_MS: Final = 60_000
MIN_LEASE_MS: Final = 100
MAX_LEASE_MS: Final = 24 * 3_600_000

MODE: Final = choice("bundle", "slot")
ORDER: Final = choice("oldest", "newest")
LEASE_ID: Final = text(64)
UUID: Final = text(64)
LEASE_MS: Final = whole(MIN_LEASE_MS, MAX_LEASE_MS)
KNOWN: Final = whole(-1, MAX_TIME_NS)
WAIT_MS: Final = whole(0, MAX_WAIT_MS)


class ReadCommand(Message):
    """The descriptor of a GetFlightInfo."""

    body_limit: ClassVar[int] = MAX_COMMAND * 16

    stream: str = of(STREAM, doc="The stream to read.")
    mode: str = of(MODE, default="bundle", doc="How DoGet shall answer.")
    slot: str | None = of(SLOT, default=None, doc="Slot mode: which slot.")
    slots: tuple[str, ...] | None = of(SLOTS, default=None, doc="Bundle mode: only these slots.")
    columns: tuple[str, ...] | None = of(
        COLUMNS, default=None, doc="Slot mode: only these columns."
    )
    projection: Mapping[str, tuple[str, ...]] | None = of(
        PROJECTION, default=None, doc="Bundle mode: for these slots only these columns."
    )
    subscriber: str | None = of(SUBSCRIBER, default=None, doc="Claim for this subscriber.")
    consumer: str | None = of(text(64), default=None, doc="Who of its consumers, for `status`.")
    max_bundles: int = of(whole(1, MAX_CLAIM_BUNDLES), default=256, doc="Most bundles.")
    max_bytes: int = of(
        whole(1, MAX_CLAIM_BYTES),
        default=64 << 20,
        doc="Most bytes; at least one bundle comes anyway.",
    )
    wait_ms: int = of(
        WAIT_MS, default=0, doc="Wait so long for a first bundle (with a subscriber)."
    )
    lease_ms: int | None = of(LEASE_MS, default=None, doc="How long the claim holds.")
    refs: tuple[Ref, ...] | None = of(
        REFS, default=None, doc="These bundles (without a subscriber)."
    )
    start: Ref | None = of(REF, default=None, doc="From this ref on (without a subscriber).")
    end: Ref | None = of(REF, default=None, doc="Up to this ref, excluded.")
    since_ns: int | None = of(TIME_NS, default=None, doc="Taken in at this time or later.")
    until_ns: int | None = of(TIME_NS, default=None, doc="Taken in before this time.")
    describe: bool = of(
        BOOL, default=False, doc="Tell each bundle's place in the log and time, in the info."
    )

    def check(self) -> None:
        check_mode(self)
        ranges = (self.refs, self.start, self.end, self.since_ns, self.until_ns)
        if self.subscriber is not None and any(one is not None for one in ranges):
            raise bad("ReadCommand: a subscriber gets what is next; ranges are for reads without.")
        if self.subscriber is None and (self.lease_ms is not None or self.wait_ms):
            raise bad("ReadCommand: lease_ms and wait_ms are for subscribers.")
        if self.refs is not None and any(one is not None for one in ranges[1:]):
            raise bad("ReadCommand: either refs or a range, not both.")

    def descriptor(self) -> flight.FlightDescriptor:
        """For ``get_flight_info``."""
        return flight.FlightDescriptor.for_command(self.encode())

    @classmethod
    def from_descriptor(cls, descriptor: flight.FlightDescriptor) -> ReadCommand:
        """What a server was asked for, by command or by path."""
        if descriptor.descriptor_type == flight.DescriptorType.CMD:
            return cls.decode(descriptor.command)
        path = path_of(descriptor)
        if len(path) == 1:
            return cls(stream=path[0])
        return cls(stream=path[0], mode="slot", slot=path[1])


def check_mode(message: Any) -> None:
    """Slot mode names a slot and columns, bundle mode slots and a projection."""
    where = type(message).__name__
    if (message.mode == "slot") != (message.slot is not None):
        raise bad(f"{where}: slot mode, and only slot mode, names a slot.")
    if message.mode == "slot" and (message.slots is not None or message.projection is not None):
        raise bad(f"{where}: slots and projection are for bundle mode; use slot and columns.")
    if message.mode == "bundle" and message.columns is not None:
        raise bad(f"{where}: columns is for slot mode; use projection.")


class Ticket(Message):
    """What DoGet is asked with: these bundles, in this form."""

    body_limit: ClassVar[int] = MAX_TICKET

    stream: str = of(STREAM, doc="The stream.")
    refs: tuple[Ref, ...] = of(REFS, doc="Which bundles, in this order.")
    mode: str = of(MODE, default="bundle", doc="The form of the answer.")
    slot: str | None = of(SLOT, default=None, doc="Slot mode: which slot.")
    slots: tuple[str, ...] | None = of(SLOTS, default=None, doc="Bundle mode: only these slots.")
    columns: tuple[str, ...] | None = of(
        COLUMNS, default=None, doc="Slot mode: only these columns."
    )
    projection: Mapping[str, tuple[str, ...]] | None = of(
        PROJECTION, default=None, doc="Bundle mode: for these slots only these columns."
    )
    subscriber: str | None = of(SUBSCRIBER, default=None, doc="For whom they are claimed.")
    lease: str | None = of(LEASE_ID, default=None, doc="The lease they are claimed under.")
    uuid: str | None = of(
        UUID, default=None, doc="The stream's uuid: `expired` if it was made anew since."
    )

    def check(self) -> None:
        check_mode(self)
        if (self.subscriber is None) != (self.lease is None):
            raise bad("Ticket: subscriber and lease come together.")

    def ticket(self) -> flight.Ticket:
        """For ``do_get``."""
        return flight.Ticket(self.encode())


class FlightMeta(Message):
    """``app_metadata`` of a FlightInfo."""

    body_limit: ClassVar[int] = MAX_TICKET

    lease: str | None = of(LEASE_ID, default=None, doc="The lease of what was claimed.")
    expires_ns: int | None = of(TIME_NS, default=None, doc="When it ends, by the server's clock.")
    refs: tuple[Ref, ...] = of(REFS, default=(), doc="All bundles of the answer.")
    without_slot: tuple[Ref, ...] = of(
        REFS, default=(), doc="Slot mode: bundles of the answer that don't have the slot."
    )
    more: bool = of(BOOL, default=False, doc="There is more than fits the answer's limits.")
    sequences: tuple[int, ...] = of(
        listed(KNOWN, MAX_REFS), default=(), doc="With `describe`: as `refs`; -1: not known."
    )
    times_ns: tuple[int, ...] = of(
        listed(KNOWN, MAX_REFS),
        default=(),
        doc="With `describe`: when the server took each; -1: not known.",
    )


class StreamMeta(Message):
    """``app_metadata`` of a stream in ListFlights."""

    bundles: int = of(COUNT, doc="Bundles that can be read.")
    nbytes: int = of(COUNT, doc="Bytes on disk, or bound for it.")
    oldest_ns: int | None = of(TIME_NS, default=None, doc="When the oldest was taken in.")
    newest_ns: int | None = of(TIME_NS, default=None, doc="When the newest was taken in.")


class BundleInfo(Message):
    """What is known about a bundle: ``app_metadata`` in bundle mode, and in claims."""

    ref: Ref = of(REF, doc="Where it is.")
    sequence: int | None = of(COUNT, default=None, doc="Its place in the log.")
    ingestion_ts_ns: int | None = of(TIME_NS, default=None, doc="When the server took it.")
    key: str | None = of(text(MAX_KEY), default=None, doc="Its idempotency key.")
    attributes: Mapping[str, str] | None = of(STRINGS, default=None, doc="As put.")
    event_time: tuple[int, int] | None = of(
        TIME_RANGE, default=None, doc="Lowest and highest, in ns."
    )
    rows: int = of(COUNT, default=0, doc="Rows in all its slots.")
    nbytes: int = of(COUNT, default=0, doc="Bytes of all its slots.")
    slots: tuple[str, ...] = of(
        listed(TEXT, 64), default=(), doc="Names of the slots, as the rows of the wrapper."
    )
    delivery: int | None = of(
        COUNT, default=None, doc="How often it was handed out, this time included."
    )
    reason: str | None = of(TEXT, default=None, doc="Why it came back the last time.")
