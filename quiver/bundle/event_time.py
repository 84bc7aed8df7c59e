"""Event time: when the data says it happened, as opposed to when it came in.

A slot's event-time column is declared in the configuration.  Its range is kept per
bundle, in nanoseconds for timestamps and dates, as it is for integers; it orders
nothing and deletes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

from quiver.errors import InvalidBundle


def event_range(batch: pa.RecordBatch, column: str) -> tuple[int, int] | None:
    """Smallest and largest event time of a batch, or ``None`` where there is none."""
    index = batch.schema.get_field_index(column)
    if index < 0 or batch.num_rows == 0:
        return None
    values = batch.column(index)
    if pa.types.is_temporal(values.type):
        try:
            values = values.cast(pa.timestamp("ns")).cast(pa.int64())
        except pa.ArrowInvalid:  # outside of what 64-bit nanoseconds can hold
            return None
    elif not pa.types.is_integer(values.type):
        return None
    extremes = pc.min_max(values).as_py()
    low, high = extremes["min"], extremes["max"]
    return None if low is None else (low, high)


def merge_ranges(ranges: Iterable[tuple[int, int] | None]) -> tuple[int, int] | None:
    """The range that covers all of them."""
    known = [r for r in ranges if r is not None]
    if not known:
        return None
    return min(low for low, _ in known), max(high for _, high in known)


def check_range(given: object) -> None:
    """A range that a producer gives itself: two whole numbers of 64 bits, in order."""
    if not (
        isinstance(given, tuple)
        and len(given) == 2
        and all(type(end) is int and -(2**63) <= end < 2**63 for end in given)
        and given[0] <= given[1]
    ):
        raise InvalidBundle("an event time is (lowest, highest), whole numbers of 64 bits.")
