"""What a read asks for: options, read once on the driver; what executors need travels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from flight_service.client.errors import BadRequest
from flight_service.protocol.errors import ServiceError
from flight_service.protocol.names import check_name
from spark_client import options as table
from spark_client.options import READ, READ_STREAM, READS, Values
from spark_client.source.link import Link
from spark_client.source.offsets import EARLIEST, LATEST, Span, read_time, read_where

BUNDLE = "bundle"


@dataclass(frozen=True, slots=True)
class Request:
    """What to read, and in which form."""

    mode: str
    slots: tuple[str, ...]
    """Slot mode: one, or none if it is to be found out.  Bundle mode: these, or all."""
    columns: tuple[str, ...] | None
    metadata: bool
    timestamp_mode: str
    fail_on_loss: bool
    fail_on_new: bool
    span: Span
    min_partitions: int | None
    partition_bytes: int

    @property
    def slot(self) -> str | None:
        """Slot mode: which."""
        return self.slots[0] if self.slots else None

    def of_slot(self, slot: str) -> Request:
        """The same with the slot found."""
        return replace(self, slots=(slot,))


def values_of(options: Mapping[str, str], use: str | None) -> Values:
    """Options for ``read`` or ``readStream``; while that isn't known, for either."""
    if use is not None:
        return table.read(options, use)
    either = [one for one in table.known() if one.uses & READS]
    return table.read(options, READ, either)


def link_of(values: Values) -> Link:
    """The way to the stream."""
    return Link(
        values.target(),
        values.credentials(),
        connect=values["connectTimeout"],
        patience=values["retryTimeout"],
    )


def request_of(values: Values) -> Request:
    """What is asked for; mistakes that need no server to be found are found here."""
    mode = values["mode"]
    slots = () if values["slot"] is None else _slots(values["slot"], mode)
    if mode == BUNDLE:
        _only_for_slots(values)
    return Request(
        mode=mode,
        slots=slots,
        columns=values["columns"],
        metadata=values["includeMetadata"],
        timestamp_mode=values["timestampMode"],
        fail_on_loss=values["failOnDataLoss"],
        fail_on_new=values["newColumns"] == "fail",
        span=_span(values),
        min_partitions=values["minPartitions"],
        partition_bytes=values["maxPartitionBytes"],
    )


def _slots(given: str, mode: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in given.split(","))
    if mode != BUNDLE and len(names) > 1:
        raise _bad("a frame reads one slot: name one, or read several with mode=bundle.")
    try:
        return tuple(check_name("slot", name) for name in names)
    except ServiceError as error:
        raise _bad(error.message) from None


def _only_for_slots(values: Values) -> None:
    for name in ("columns", "includeMetadata"):
        if name in values.given:
            raise _bad(f"{name} is for mode=slot: mode=bundle gives bundles whole, and all of it.")


def _span(values: Values) -> Span:
    start, since = _one_of(values, "startingOffsets", "startingTimestamp", EARLIEST)
    end, until = _one_of(values, "endingOffsets", "endingTimestamp", LATEST)
    return Span(start, end, since, until)


def _one_of(values: Values, by_offset: str, by_time: str, default: str) -> tuple[Any, int | None]:
    # Endings are for batches only.
    offset, time = values.get(by_offset), values.get(by_time)
    if offset is not None and time is not None:
        raise _bad(f"{by_offset} and {by_time} say the same thing twice: give one of them.")
    where = default if offset is None else read_where(by_offset, offset)
    return where, None if time is None else read_time(by_time, time)


def check_batch(span: Span) -> None:
    """Ranges that make no sense for a batch."""
    if span.start == LATEST:
        raise _bad("startingOffsets=latest leaves nothing to read: it is for readStream.")
    if span.end == EARLIEST:
        raise _bad("endingOffsets=earliest leaves nothing to read.")


def _bad(message: str) -> BadRequest:
    return BadRequest("bad_request", message)


__all__ = ["READ", "READ_STREAM", "Request", "check_batch", "link_of", "request_of", "values_of"]
