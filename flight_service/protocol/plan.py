"""Planning: what a reader with many hands asks before it reads.

``schemas`` tells the schemas that a stream's slots have, from the directories of its
segments and without reading data, and apart from them those that bundles had which are gone:
a stream that was read to its end is not a stream without a schema.

``plan`` resolves a range of bundles, by position or by time, and cuts it into parts of bounded
size, each the work of one reader::

    {"v":1, "start":[3,0], "end":[5,2], "latest":[5,2], "parts":[
        {"runs":[[3,0,40],[4,0,10]], "rows":50000, "nbytes":4194304}, …]}

A *position* is a ref that need not be a bundle's: it lies before the bundle of that ref.
Nothing becomes readable before ``latest`` any more, so a range that ends there or earlier
holds the same bundles whenever it is planned, except for those deleted meanwhile.

``lost`` are segments of the range that went before everyone had finished them, as far as
the stream's ledger still names them one by one; with a ``subscriber``, only what that one
had not finished.
"""

from __future__ import annotations

import binascii
from typing import Any, ClassVar, Final

from flight_service.protocol.message import (
    BOOL,
    COUNT,
    REF,
    SLOT,
    STREAM,
    SUBSCRIBER,
    TEXT,
    TIME_NS,
    Kind,
    Message,
    bad,
    listed,
    nested,
    of,
    whole,
)
from flight_service.protocol.names import MAX_SLOTS, Ref, read_runs

MAX_PARTS: Final = 100_000
MAX_SCHEMAS: Final = 10_000
MAX_SCHEMA_TEXT: Final = 8 << 20
MAX_LOST: Final = 1_000
MAX_PART_BUNDLES: Final = 1 << 40
MAX_PART_BYTES: Final = 1 << 60
PART_SIZE: Final = 64 << 20

Run = tuple[int, int, int]
"""Segment, first index, count."""


def _read_base64(value: Any, where: str) -> bytes:
    if isinstance(value, str) and len(value) <= MAX_SCHEMA_TEXT:
        try:
            return binascii.a2b_base64(value, strict_mode=True)
        except (binascii.Error, ValueError):
            pass
    raise bad(f"{where} must be base64.")


BASE64: Final = Kind(
    "base64", _read_base64, lambda value: binascii.b2a_base64(value, newline=False).decode()
)
RUNS: Final = Kind("list of [segment, first, count]", read_runs, lambda runs: [*map(list, runs)])


class SchemasRequest(Message):
    """Which schemas there are."""

    stream: str = of(STREAM, doc="The stream.")
    slot: str | None = of(SLOT, default=None, doc="Only of this slot.")


class SlotSchemas(Message):
    """The schemas of one slot."""

    slot: str = of(TEXT, doc="The slot.")
    schemas: tuple[bytes, ...] = of(
        listed(BASE64, MAX_SCHEMAS),
        doc="Each an Arrow IPC schema message, oldest first; metadata is left out.",
    )
    earlier: tuple[bytes, ...] = of(
        listed(BASE64, MAX_SCHEMAS),
        default=(),
        doc="Those that bundles had which are gone, as far as they are remembered.",
    )


class Schemas(Message):
    """Schemas by slot."""

    body_limit: ClassVar[int] = 64 << 20

    slots: tuple[SlotSchemas, ...] = of(
        nested(SlotSchemas, MAX_SLOTS), doc="Slots that bundles have, in the stream's order."
    )


class Plan(Message):
    """Cut a range of bundles into parts."""

    stream: str = of(STREAM, doc="The stream.")
    start: Ref | None = of(REF, default=None, doc="From this position on; else the oldest.")
    end: Ref | None = of(REF, default=None, doc="Up to this position; else all there is.")
    since_ns: int | None = of(TIME_NS, default=None, doc="Taken in at this time or later.")
    until_ns: int | None = of(TIME_NS, default=None, doc="Taken in before this time.")
    max_bundles: int = of(
        whole(1, MAX_PART_BUNDLES), default=MAX_PART_BUNDLES, doc="Most bundles of a part."
    )
    max_bytes: int = of(
        whole(1, MAX_PART_BYTES), default=PART_SIZE, doc="Most bytes of a part, one bundle anyway."
    )
    max_parts: int = of(whole(0, MAX_PARTS), default=MAX_PARTS, doc="Most parts.")
    subscriber: str | None = of(
        SUBSCRIBER, default=None, doc="Tell of losses what this one had not finished."
    )


class Part(Message):
    """Some bundles of a plan, in order."""

    runs: tuple[Run, ...] = of(RUNS, doc="Which bundles.")
    rows: int = of(COUNT, default=0, doc="Rows in all their slots.")
    nbytes: int = of(COUNT, default=0, doc="Bytes of all their slots.")

    @property
    def bundles(self) -> int:
        """How many."""
        return sum(count for _, _, count in self.runs)

    @property
    def end(self) -> Ref:
        """The position behind the last of them."""
        segment, first, count = self.runs[-1]
        return Ref(segment, first + count)


class Lost(Message):
    """A segment that went before everyone had finished it."""

    segment: int = of(COUNT, doc="Its number.")
    bundles: int = of(COUNT, doc="How many bundles were not finished.")
    reason: str = of(TEXT, doc="Why it went.")


class Planned(Message):
    """A range, resolved and cut."""

    body_limit: ClassVar[int] = 64 << 20

    start: Ref = of(REF, doc="Where the range begins.")
    end: Ref = of(REF, doc="Where it ends.")
    latest: Ref = of(REF, doc="Where the stream ends: nothing appears before it any more.")
    parts: tuple[Part, ...] = of(nested(Part, MAX_PARTS), doc="The bundles, in order.")
    more: bool = of(BOOL, default=False, doc="The range holds more parts than were asked for.")
    lost: tuple[Lost, ...] = of(
        nested(Lost, MAX_LOST), default=(), doc="What of the range went before its time."
    )
