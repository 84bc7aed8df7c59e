"""Arrow's encapsulated messages: where each starts, what it is, and what it declares.

A message is ``0xFFFFFFFF · metadata length i32 · metadata (FlatBuffer) · body``; a length
of zero ends a stream.  :func:`read_message` only says what is there; :func:`inflated_size`
checks a record batch's buffers against its body and tells how much memory decoding it
takes, so that a small message can't ask for a large allocation.
"""

from __future__ import annotations

from dataclasses import dataclass
from struct import Struct
from typing import Final

import pyarrow as pa

from quiver.format.flatbuf import FlatbufferError, Table

CONTINUATION: Final = 0xFFFFFFFF
END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
PREFIX_SIZE: Final = 8
ALIGNMENT: Final = 8
VERSION_5: Final = 4
LITTLE_ENDIAN: Final = 0

SCHEMA: Final = 1
DICTIONARY_BATCH: Final = 2
RECORD_BATCH: Final = 3

CODEC_LZ4: Final = 0
STORED_RAW: Final = -1

_PREFIX = Struct("<Ii")
_SIZE = Struct("<q")


@dataclass(frozen=True, slots=True)
class Message:
    """One message inside a buffer: ``start`` and ``end`` include prefix and body."""

    start: int
    body: int
    end: int
    kind: int
    version: int
    header: Table

    @property
    def aligned(self) -> bool:
        """Whether metadata and body have lengths that keep the next message aligned."""
        return not ((self.body - self.start) % ALIGNMENT or (self.end - self.body) % ALIGNMENT)


def read_message(data: pa.Buffer, start: int) -> Message | None:
    """The message at ``start``, all of it inside ``data``; ``None`` at the stream's end."""
    left = data.size - start
    if left == 0:
        return None
    if left < PREFIX_SIZE:
        raise FlatbufferError("a message is cut off in its prefix")
    marker, length = _PREFIX.unpack_from(data, start)
    if marker != CONTINUATION:
        raise FlatbufferError("a message doesn't start with a continuation marker")
    if length == 0:
        return None
    if length < 0 or length > left - PREFIX_SIZE:
        raise FlatbufferError("a message's metadata is longer than the data")
    body = start + PREFIX_SIZE + length
    table = Table.root(data.slice(start + PREFIX_SIZE, length).to_pybytes())
    header, body_length = table.table(2), table.i64(3)
    if header is None:
        raise FlatbufferError("a message has no header")
    if body_length < 0 or body_length > data.size - body:
        raise FlatbufferError("a message's body is longer than the data")
    return Message(start, body, body + body_length, table.u8(1), table.i16(0), header)


def batch_table(message: Message) -> Table:
    """The record batch of a message, also where it is a dictionary's."""
    if message.kind == RECORD_BATCH:
        return message.header
    batch = message.header.table(1)
    if batch is None:
        raise FlatbufferError("a dictionary message holds no data")
    return batch


def codec_of(batch: Table) -> int | None:
    """The number of the compression codec, ``None`` where nothing is compressed."""
    compression = batch.table(3)
    return None if compression is None else compression.u8(0)


def inflated_size(data: pa.Buffer, message: Message) -> int:
    """Bytes that decoding takes: the body itself, or what compressed buffers declare."""
    batch = batch_table(message)
    length = message.end - message.body
    buffers = batch.integers(2, "q", 2)
    offsets, sizes = buffers[::2], buffers[1::2]
    if any(
        offset < 0 or size < 0 or offset + size > length
        for offset, size in zip(offsets, sizes, strict=True)
    ):
        raise FlatbufferError("a column's buffer lies outside of its message")
    if codec_of(batch) is None:
        return length
    total = 0
    for offset, size in zip(offsets, sizes, strict=True):
        if size:
            total += _declared_size(data, message.body + offset, size)
    return total


def _declared_size(data: pa.Buffer, start: int, size: int) -> int:
    if size < _SIZE.size:
        raise FlatbufferError("a compressed buffer is shorter than its own prefix")
    declared: int = _SIZE.unpack_from(data, start)[0]
    if declared < STORED_RAW:
        raise FlatbufferError("a compressed buffer declares a negative size")
    return size if declared == STORED_RAW else declared
