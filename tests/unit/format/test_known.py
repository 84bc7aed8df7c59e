"""Streams out of the log, whose schema is known already."""

from __future__ import annotations

import struct

import pyarrow as pa
import pytest

from quiver.errors import InvalidBundle
from quiver.format.arrow import message as msg
from quiver.format.arrow.flatbuf import FlatbufferError
from quiver.format.arrow.ipc import MAX_KNOWN, EncodedBatch, encode_batch, parse_stream
from quiver.format.arrow.schema import SchemaMessage
from tests.support.batches import zoo

BATCH = pa.record_batch({"n": pa.array([1, 2, 3], pa.int64()), "t": pa.array(["a", None, "c"])})
OTHER = pa.record_batch({"x": pa.array([1.5], pa.float64())})


def parse_known(data: memoryview, known: SchemaMessage | None) -> EncodedBatch:
    return parse_stream(data, max_bytes=MAX_KNOWN, known=known)


def _stream(batch: pa.RecordBatch) -> bytes:
    return b"".join(bytes(part) for part in encode_batch(batch).buffers())


def test_the_short_way_gives_what_the_long_way_gives() -> None:
    """Scenario: a stream with the schema of the one before. Guarantee: the same batch."""
    known = encode_batch(BATCH).schema
    data = memoryview(_stream(BATCH))
    short, long = parse_known(data, known), parse_known(data, None)
    assert short.schema is known
    assert bytes(short.batch) == bytes(long.batch)
    assert short.decode().equals(long.decode())
    assert short.batch_crc == long.batch_crc


def test_another_schema_goes_the_long_way() -> None:
    """Scenario: the schema has changed, or has dictionaries. Guarantee: read all the same."""
    known = encode_batch(BATCH).schema
    assert parse_known(memoryview(_stream(OTHER)), known).decode().equals(OTHER)
    words = pa.record_batch({"w": pa.array(["a", "b", "a"]).dictionary_encode()})
    data = memoryview(_stream(words))
    assert parse_known(data, encode_batch(words).schema).decode().equals(words)


@pytest.mark.parametrize("harm", ["kind", "length", "cut", "outside"])
def test_what_is_not_one_batch_is_not_taken_for_one(harm: str) -> None:
    """Scenario: bytes that are no sound batch, under a schema that is known. Guarantee:
    refused, as they are under one that isn't."""
    known = encode_batch(BATCH).schema
    data = bytearray(_stream(BATCH))
    start = len(known.message)
    if harm == "kind":
        data[start : start + 4] = b"\0\0\0\0"
    elif harm == "length":
        data[-8:-8] = bytes(8)
    elif harm == "outside":
        body = bytes(data).index(struct.pack("<qqq", 1, 2, 3), start)
        longest = struct.pack("<q", 24)
        at = data.rindex(longest, start, body)
        data[at : at + 8] = struct.pack("<q", 1 << 40)
    else:
        del data[start + 40 : start + 80]
    with pytest.raises(InvalidBundle):
        parse_known(memoryview(bytes(data)), known)


def _rows(data: bytes) -> int | None:
    """The long way to say whether this is one sound record batch message and nothing else."""
    try:
        buffer = pa.py_buffer(data)
        found = msg.read_message(buffer, 0)
        if found is None or found.kind != msg.RECORD_BATCH or found.end != len(data):
            return None
        msg.inflated_size(buffer, found)
        usual = found.portable and msg.codec_of(found.header) is None
        return found.header.i64(0) if usual else None
    except (struct.error, FlatbufferError):
        return None


def test_the_short_look_knows_every_batch_of_arrow() -> None:
    """Scenario: every kind of batch. Guarantee: none that has bytes needs the long way."""
    for name, batch in zoo().items():
        encoded, rows = bytes(encode_batch(batch).batch), batch.num_rows
        metadata_end = 8 + int.from_bytes(encoded[4:8], "little")
        has_bytes = rows > 0 and metadata_end < len(encoded)
        assert msg.usual_rows(memoryview(encoded)) == (rows if has_bytes else None), name
        assert _rows(encoded) == rows, name


def test_the_short_look_takes_nothing_that_the_long_one_refuses() -> None:
    """Scenario: each byte of a message's metadata is changed, to each of a few values.

    Guarantee: what the short look takes for a batch is one, by the long one.
    """
    message = bytes(encode_batch(BATCH).batch)
    metadata_end = 8 + int.from_bytes(message[4:8], "little")
    taken = 0
    for at in range(metadata_end):
        for value in {0, 1, 2, 4, 8, 127, 128, 255, message[at] ^ 1, (message[at] + 8) % 256}:
            changed = message[:at] + bytes([value]) + message[at + 1 :]
            if (rows := msg.usual_rows(memoryview(changed))) is not None:
                assert _rows(changed) == rows, (at, value)
                taken += 1
    assert taken
    for end in range(len(message)):
        assert msg.usual_rows(memoryview(message[:end])) is None
