"""Which bundles a read without a subscriber means, and where a start lies."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Final

from flight_service.protocol.actions import Start
from flight_service.protocol.get import ReadCommand
from flight_service.protocol.names import Ref
from quiver import BundleRef, Store

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def refs_of(store: Store, command: ReadCommand) -> Iterator[BundleRef]:
    """The bundles a command names, oldest first; those that are gone are left out."""
    if command.refs is not None:
        yield from (BundleRef(*ref) for ref in command.refs)
        return
    start = BundleRef(*command.start) if command.start is not None else BundleRef(0, 0)
    if command.since_ns is not None:
        start = max(start, store.position_at(command.since_ns))
    end = BundleRef(*command.end) if command.end is not None else None
    if command.until_ns is not None:
        until = store.position_at(command.until_ns)
        end = until if end is None else min(end, until)
    for seq, count in store.segments():
        if seq < start.segment_seq:
            continue
        first = start.bundle_index if seq == start.segment_seq else 0
        for index in range(first, count):
            ref = BundleRef(seq, index)
            if end is not None and ref >= end:
                return
            yield ref


def position_of(store: Store, start: Start) -> BundleRef:
    """Where a start lies now."""
    if start == "earliest":
        return BundleRef(0, 0)
    if start == "latest":
        return store.end
    if isinstance(start, Ref):
        return BundleRef(*start)
    assert isinstance(start, int)
    return store.position_at(start)


def library_start(start: Start) -> datetime | BundleRef | str:
    """A start as the store takes it."""
    if isinstance(start, Ref):
        return BundleRef(*start)
    if isinstance(start, int):
        return _EPOCH + timedelta(microseconds=start // 1000)
    return start
