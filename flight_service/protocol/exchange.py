"""The live subscription: one DoExchange call that pushes bundles and takes outcomes.

The descriptor is a command with a :class:`SubscribeCommand`.  The server sends each
bundle as soon as it is durable, in bundle mode, with a
:class:`~flight_service.protocol.get.BundleInfo` as metadata, as long as the client has
credit.  The client sends :class:`ClientMessage` objects as metadata without data; the
server answers them, and tells of what happens, with :class:`ServerMessage` objects, also
without data.

Credit counts bundles and bytes the client is willing to receive on top of what it has
received.  It starts at what the command says, and falls by one and by ``nbytes`` for each
bundle sent; messages add to it.  A bundle is sent while both are above zero, so bytes may
be overdrawn by one bundle.

A client that says ``together`` in its command gets up to that many bundles in one message,
if they are there: the rows of their wrappers one after the other, with a
:class:`BundleInfos` as metadata, also for a single one.  No bundle waits for company.

Bundles sent and not yet finished are claimed for this call, without an end, as long as
the server hears from the client within the lease: any message counts, ``ping`` is there
for when there is nothing to say.  When the call ends, for whatever reason, they go back at
once.  When the client is not heard of for the lease, they go back too and the server says
``expired``; bundles of later sends are claimed anew.

A client that leaves may give back what it never looked at: it says ``pause`` with an
``id``, waits for the ``pong``, before which everything arrives that was on its way, says
``unread`` of all that, and ends the call.

A client that wants what there is and then leaves asks with ``ping``: a ``pong`` with
``idle`` says that nothing more could be handed out when it was sent (bundles that wait
for a retry, or that others hold, are not waited for).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final

import pyarrow.flight as flight

from flight_service.protocol.get import (
    LEASE_MS,
    MAX_CLAIM_BUNDLES,
    MAX_CLAIM_BYTES,
    MAX_TICKET,
    ORDER,
    BundleInfo,
)
from flight_service.protocol.message import (
    BOOL,
    COUNT,
    MAX_BODY,
    PROJECTION,
    REFS,
    SLOTS,
    STREAM,
    SUBSCRIBER,
    TEXT,
    Message,
    bad,
    choice,
    nested,
    of,
    text,
    whole,
)
from flight_service.protocol.names import Ref
from flight_service.protocol.put import MAX_COMMAND, MAX_TOGETHER

MAX_DELAY_MS: Final = 24 * 3_600_000
DELAY_MS: Final = whole(0, MAX_DELAY_MS)


class SubscribeCommand(Message):
    """The descriptor of a DoExchange."""

    body_limit: ClassVar[int] = MAX_COMMAND

    stream: str = of(STREAM, doc="The stream.")
    subscriber: str = of(SUBSCRIBER, doc="Who receives; registered if it is new.")
    consumer: str | None = of(text(64), default=None, doc="Who of its consumers, for `status`.")
    slots: tuple[str, ...] | None = of(SLOTS, default=None, doc="Only these slots.")
    projection: Mapping[str, tuple[str, ...]] | None = of(
        PROJECTION, default=None, doc="For these slots only these columns."
    )
    order: str = of(ORDER, default="oldest", doc="Which bundles first.")
    credit: int = of(
        whole(0, MAX_CLAIM_BUNDLES), default=64, doc="Bundles that may be sent at first."
    )
    credit_bytes: int = of(whole(0, MAX_CLAIM_BYTES), default=64 << 20, doc="Bytes, likewise.")
    lease_ms: int | None = of(LEASE_MS, default=None, doc="Longest silence of the client.")
    together: int = of(
        whole(1, MAX_TOGETHER),
        default=1,
        doc="More than 1: so many bundles may come in one message, told by `BundleInfos`.",
    )

    def descriptor(self) -> flight.FlightDescriptor:
        """For ``do_exchange``."""
        return flight.FlightDescriptor.for_command(self.encode())

    @classmethod
    def from_descriptor(cls, descriptor: flight.FlightDescriptor) -> SubscribeCommand:
        """What a server was asked for."""
        if descriptor.descriptor_type != flight.DescriptorType.CMD:
            raise bad("DoExchange takes a command.")
        return cls.decode(descriptor.command)


class BundleInfos(Message):
    """``app_metadata`` of bundles that come together; each has as many rows as slots."""

    body_limit: ClassVar[int] = MAX_BODY

    bundles: tuple[BundleInfo, ...] = of(
        nested(BundleInfo, MAX_TOGETHER), doc="In the order of their rows."
    )


class ClientMessage(Message):
    """From client to server: outcomes, credit, a sign of life. All parts are optional."""

    body_limit: ClassVar[int] = MAX_TICKET

    ack: tuple[Ref, ...] = of(REFS, default=(), doc="Dealt with.")
    defer: tuple[Ref, ...] = of(REFS, default=(), doc="Not now: deliver again later.")
    reject: tuple[Ref, ...] = of(
        REFS, default=(), doc="Can never be dealt with: dropped, on record."
    )
    unread: tuple[Ref, ...] = of(
        REFS,
        default=(),
        doc="Nobody has looked at them: back at once, no delivery counted.",
    )
    delay_ms: int | None = of(
        DELAY_MS, default=None, doc="When to deliver `defer` again; else backoff."
    )
    reason: str | None = of(TEXT, default=None, doc="Why, for `defer` and `reject`.")
    durable: bool = of(BOOL, default=False, doc="Answer once the outcomes are on disk.")
    credit: int = of(
        whole(0, MAX_CLAIM_BUNDLES), default=0, doc="So many bundles more may be sent."
    )
    credit_bytes: int = of(whole(0, MAX_CLAIM_BYTES), default=0, doc="So many bytes more.")
    pause: bool = of(BOOL, default=False, doc="All credit is taken back.")
    ping: bool = of(BOOL, default=False, doc="Answer with `pong`.")
    id: int | None = of(COUNT, default=None, doc="Comes back with the answer.")


class ServerMessage(Message):
    """From server to client, besides bundles."""

    body_limit: ClassVar[int] = MAX_TICKET

    type: str = of(
        choice("ready", "done", "pong", "expired", "draining", "error"),
        doc="ready: the subscription stands; done: outcomes taken; draining: no more comes.",
    )
    id: int | None = of(COUNT, default=None, doc="Of the message this answers.")
    lease_ms: int | None = of(LEASE_MS, default=None, doc="ready: be heard of this often.")
    durable: bool = of(BOOL, default=False, doc="done: the outcomes are on disk.")
    refs: tuple[Ref, ...] = of(
        REFS, default=(), doc="done: not taken, no longer claimed; expired: which."
    )
    idle: bool = of(
        BOOL,
        default=False,
        doc="pong: every bundle that could be handed out was sent before this message, and what was"
        " poison is a dead letter, if there was room for it.",
    )
    code: str | None = of(text(64), default=None, doc="error: what was wrong with a message.")
    reason: str | None = of(TEXT, default=None, doc="error: the same for people.")
