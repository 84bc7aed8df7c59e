"""The idempotency window as the checkpoint has it: an Arrow IPC stream, oldest key first.

It is written each time a log file goes, and may hold 65,536 keys of which a few hundred are
new.  So it is a stream of many batches, one for each stretch of sequences, and what was
encoded once is written again as it is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from operator import attrgetter
from typing import Final, NamedTuple

import pyarrow as pa

from quiver.format.message import END_OF_STREAM
from quiver.ids import BundleRef

STRETCH: Final = 4_096
"""Sequences whose keys are in one batch."""

_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("hash", pa.binary(32), nullable=False),
        pa.field("segment_seq", pa.uint64(), nullable=False),
        pa.field("bundle_index", pa.uint32(), nullable=False),
        pa.field("sequence", pa.uint64(), nullable=False),
        pa.field("ts", pa.int64(), nullable=False),
    ]
)
_SCHEMA_MESSAGE: Final = bytes(_SCHEMA.serialize())


class KeyRecord(NamedTuple):
    """One remembered idempotency key."""

    key: str
    content_hash: bytes
    ref: BundleRef
    sequence: int
    ts_ns: int


sequence_of: Final = attrgetter("sequence")


class _Stretch(NamedTuple):
    """A batch, and what tells whether it is still the same.

    Keys of a stretch that are durable don't change: it gets more at its end, or loses some.
    """

    keys: int
    last: int
    message: bytes


class WindowEncoder:
    """Encodes windows of which each has much in common with the one before."""

    def __init__(self) -> None:
        self._known: dict[int, _Stretch] = {}

    def encode(self, records: Sequence[KeyRecord]) -> bytes:
        """The bytes of a window in the order of its sequences; none if it is empty."""
        known: dict[int, _Stretch] = {}
        start = 0
        while start < len(records):
            number = records[start].sequence // STRETCH
            end = bisect_left(records, (number + 1) * STRETCH, lo=start, key=sequence_of)
            count, last = end - start, records[end - 1].sequence
            found = self._known.get(number)
            if found is None or (found.keys, found.last) != (count, last):
                found = _Stretch(count, last, _batch(records[start:end]))
            known[number] = found
            start = end
        self._known = known
        if not known:
            return b""
        messages = [one.message for one in known.values()]
        return b"".join([_SCHEMA_MESSAGE, *messages, END_OF_STREAM])


def _batch(records: Sequence[KeyRecord]) -> bytes:
    columns = [
        pa.array([one.key for one in records], pa.string()),
        pa.array([one.content_hash for one in records], pa.binary(32)),
        pa.array([one.ref[0] for one in records], pa.uint64()),
        pa.array([one.ref[1] for one in records], pa.uint32()),
        pa.array([one.sequence for one in records], pa.uint64()),
        pa.array([one.ts_ns for one in records], pa.int64()),
    ]
    return bytes(pa.record_batch(columns, schema=_SCHEMA).serialize())


def decode_window(data: bytes) -> tuple[KeyRecord, ...]:
    """The keys back; raises what Arrow raises, or ``ValueError``, for anything else."""
    if not data:
        return ()
    table = pa.ipc.open_stream(data).read_all()
    if table.schema != _SCHEMA or any(column.null_count for column in table.columns):
        raise ValueError("the window is not what it should be")
    table.validate(full=True)  # Arrow would follow an offset wherever it leads
    columns = [table.column(name).to_pylist() for name in _SCHEMA.names]
    return tuple(
        KeyRecord(key, digest, BundleRef(segment, index), sequence, ts)
        for key, digest, segment, index, sequence, ts in zip(*columns, strict=True)
    )
