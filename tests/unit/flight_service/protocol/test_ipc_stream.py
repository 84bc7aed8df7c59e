"""The stream inside of a wrapped bundle: the same bytes, made the short way or the long way."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flight_service.protocol.wrapper import RECENT_SCHEMAS, ipc_stream

BATCHES = {
    "numbers": pa.record_batch({"n": pa.array([1, None, 3], pa.int64())}),
    "words": pa.record_batch({"w": pa.array(["a", "b", "a"]).dictionary_encode()}),
    "nested": pa.record_batch({"l": pa.array([[1], [], None], pa.list_(pa.int32()))}),
    "metadata": pa.record_batch({"n": pa.array([1])}).replace_schema_metadata({"a": "b"}),
    "no rows": pa.record_batch({"n": pa.array([], pa.int64())}),
    "no columns": pa.record_batch([], names=[]),
}


def _whole(batch: pa.RecordBatch) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


@pytest.mark.parametrize("name", BATCHES)
def test_the_same_bytes_every_time(name: str) -> None:
    """Scenario: a batch, again, and a slice of it. Guarantee: what a stream writer writes."""
    batch = BATCHES[name]
    for one in (batch, batch, batch.slice(1), batch):
        assert b"".join(bytes(piece) for piece in ipc_stream(one)) == _whole(one)


def test_many_schemas_take_turns() -> None:
    """Scenario: more schemas than are remembered. Guarantee: still the same bytes."""
    batches = [pa.record_batch({f"c{n}": pa.array([n])}) for n in range(RECENT_SCHEMAS * 2)]
    for batch in batches * 2:
        assert b"".join(bytes(piece) for piece in ipc_stream(batch)) == _whole(batch)
