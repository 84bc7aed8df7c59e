"""Putting: a DoPut call takes any number of bundles, and answers each with a receipt.

The descriptor is a command with a :class:`PutCommand`; ``[stream, slot]`` as a path is
short for slot mode.  In *bundle mode* each message is a wrapped bundle (see
:mod:`~flight_service.protocol.wrapper`); in *slot mode* each batch, in the call's own
schema, is a bundle with that one slot.  The batch's ``app_metadata`` may hold an
:class:`Envelope`; empty means an envelope with nothing in it.

In bundle mode a message may carry several small bundles: the rows of their wrappers one
after the other, and an envelope that lists them as :class:`Member` objects.  Each is taken
or refused by itself, as if it had come alone.

Receipts come back as :class:`PutReceipts`, several in one message, in the order the
bundles were sent, exactly one for each.  Bundles are counted from 0 within the call;
``n`` says which one a receipt is for.

============  ==================================================================
``ok``        taken; ``durability`` says how far it got when this was sent
``dup``       its key was seen before with the same content: a success, with the
              first bundle's ref
``rejected``  it can never be taken as it is (``code``, ``reason``); the call goes on
``retry``     not now (``code``, ``reason``, ``retry_after_ms``)
============  ==================================================================

After a ``retry`` for bundle *n* every later one is answered ``retry`` too (code
``out_of_turn``), so that the order holds, until one comes, in a message of its own, whose
envelope says ``"resend": n``, *n* being the first one refused, however often it was sent
since.  If that one is taken or rejected, the call goes on as before.

The end of the stream is not a commit: a client that dies looks like a normal end.  Only
receipts tell what was taken.

With a ``stage`` in the command the bundles go into a stage instead, and appear when it is
committed: see :mod:`~flight_service.protocol.stage`.  Their receipts have no ref yet, and
their envelopes no key: the transaction is what makes them unique.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import ClassVar, Final

import pyarrow.flight as flight

from flight_service.protocol.message import (
    COUNT,
    HASH,
    REF,
    SLOT,
    STREAM,
    STRINGS,
    TEXT,
    TIME_RANGE,
    VERSION,
    Message,
    bad,
    choice,
    inner,
    nested,
    of,
    text,
    to_json,
    whole,
)
from flight_service.protocol.names import MAX_SLOTS, Ref, check_name
from flight_service.protocol.stage import STAGED, StageName

MAX_COMMAND: Final = 64 << 10
MAX_ENVELOPE: Final = 64 << 10
MAX_KEY: Final = 4 << 10
MAX_RECEIPTS: Final = 4_096
"""Most receipts in one message."""
MAX_TOGETHER: Final = 64
"""Most bundles in one message."""

OK: Final = "ok"
DUP: Final = "dup"
REJECTED: Final = "rejected"
RETRY: Final = "retry"
ACCEPTED: Final = "accepted"
DURABLE: Final = "durable"


class PutCommand(Message):
    """The descriptor of a DoPut."""

    body_limit: ClassVar[int] = MAX_COMMAND

    stream: str = of(STREAM, doc="The stream to put into.")
    mode: str = of(choice("bundle", "slot"), default="bundle", doc="What a message is.")
    slot: str | None = of(SLOT, default=None, doc="Slot mode: the slot the batches are for.")
    durability: str = of(
        choice(ACCEPTED, DURABLE), default=DURABLE, doc="Send receipts once on disk, or at once."
    )
    stage: StageName | None = of(
        inner(StageName), default=None, doc="Write into this stage, to be committed later."
    )

    def check(self) -> None:
        if (self.mode == "slot") != (self.slot is not None):
            raise bad("PutCommand: slot mode, and only slot mode, names a slot.")
        if self.stage is not None and self.durability != DURABLE:
            raise bad("PutCommand: a stage is durable when it is finished; leave durability out.")

    def descriptor(self) -> flight.FlightDescriptor:
        """For ``do_put``."""
        return flight.FlightDescriptor.for_command(self.encode())

    @classmethod
    def from_descriptor(cls, descriptor: flight.FlightDescriptor) -> PutCommand:
        """What a server was asked for, by command or by path."""
        if descriptor.descriptor_type == flight.DescriptorType.CMD:
            return cls.decode(descriptor.command)
        path = path_of(descriptor)
        if len(path) != 2:
            raise bad("a path for DoPut is [stream, slot]; for bundles use a command.")
        return cls(stream=path[0], mode="slot", slot=path[1])


def path_of(descriptor: flight.FlightDescriptor) -> list[str]:
    """A descriptor's path, each part a valid name: the stream, then perhaps a slot."""
    if descriptor.descriptor_type != flight.DescriptorType.PATH:
        raise bad("the descriptor is neither a command nor a path.")
    parts = list(descriptor.path or [])
    if not 1 <= len(parts) <= 2:
        raise bad("a path is [stream] or [stream, slot].")
    try:
        names = [part.decode("utf-8") for part in parts]
    except UnicodeDecodeError:
        raise bad("the path is not UTF-8.") from None
    return [check_name(kind, one) for kind, one in zip(("stream", "slot"), names, strict=False)]


class About(Message):
    """What a producer says about a bundle."""

    key: str | None = of(
        text(MAX_KEY), default=None, doc="Idempotency key: a repeat isn't kept twice."
    )
    hash: bytes | None = of(
        HASH,
        default=None,
        doc="Content hash that a repeat must bring again; else the server's own.",
    )
    attributes: Mapping[str, str] | None = of(STRINGS, default=None, doc="Kept with the bundle.")
    event_time: tuple[int, int] | None = of(
        TIME_RANGE, default=None, doc="Lowest and highest event time in the bundle, in ns."
    )

    @property
    def says_nothing(self) -> bool:
        return (self.key, self.hash, self.attributes, self.event_time) == (None,) * 4


class Member(About):
    """One of several bundles in a message of a DoPut."""

    slots: int = of(whole(0, MAX_SLOTS), default=1, doc="How many rows of the wrapper it has.")


class Envelope(About):
    """``app_metadata`` of one message of a DoPut."""

    body_limit: ClassVar[int] = MAX_ENVELOPE

    resend: int | None = of(COUNT, default=None, doc="The bundle this repeats after its `retry`.")
    bundles: tuple[Member, ...] = of(
        nested(Member, MAX_TOGETHER),
        default=(),
        doc="Bundle mode: the bundles of a message with several; nothing else is said then.",
    )

    def check(self) -> None:
        if self.bundles and not (self.says_nothing and self.resend is None):
            raise bad("Envelope: with bundles, everything is said of each.")


NO_ENVELOPE: Final = Envelope()


def said_of(about: About) -> bytes:
    """What is said about a bundle, in JSON without its braces; for those two below."""
    return to_json(about.to_fields())[1:-1].encode()


def envelope_alone(said: bytes, resend: int | None = None) -> bytes:
    """The :class:`Envelope` of a message with one bundle, for the wire.

    These are put together from what each bundle has said once: a bundle may be sent again,
    and in other company.
    """
    resent = b"" if resend is None else b',"resend":%d' % resend
    return b'{"v":%d%s%s}' % (VERSION, b"," + said if said else b"", resent)


def envelope_together(members: Iterable[tuple[int, bytes]]) -> bytes:
    """That of a message with several: of each, how many slots it has, and what is said."""
    listed = [b'{"slots":%d%s}' % (slots, b"," + said if said else b"") for slots, said in members]
    return b'{"v":%d,"bundles":[%s]}' % (VERSION, b",".join(listed))


class PutReceipt(Message):
    """What became of one bundle."""

    n: int = of(COUNT, doc="Which bundle of this call, counted from 0.")
    status: str = of(choice(OK, DUP, REJECTED, RETRY), doc="What became of it.")
    ref: Ref | None = of(
        REF, default=None, doc="Where the bundle is (ok, dup); not known in a stage."
    )
    sequence: int | None = of(COUNT, default=None, doc="Its place in the log (ok, dup).")
    durability: str | None = of(
        choice(ACCEPTED, DURABLE, STAGED), default=None, doc="How far it got (ok, dup)."
    )
    key: str | None = of(text(MAX_KEY), default=None, doc="Its key, if it had one.")
    code: str | None = of(text(64), default=None, doc="Why not, for programs (rejected, retry).")
    reason: str | None = of(TEXT, default=None, doc="Why not, for people (rejected, retry).")
    retry_after_ms: int | None = of(
        whole(0, 3_600_000), default=None, doc="When to try again (retry)."
    )


class PutReceipts(Message):
    """One message on the way back of a DoPut."""

    body_limit: ClassVar[int] = 4 << 20

    receipts: tuple[PutReceipt, ...] = of(nested(PutReceipt, MAX_RECEIPTS), doc="In order.")
