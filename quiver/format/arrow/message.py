"""Arrow's encapsulated messages: where each starts, what it is, and what it declares.

A message is ``0xFFFFFFFF · metadata length i32 · metadata (FlatBuffer) · body``; a length
of zero ends a stream.  :func:`read_message` only says what is there; :func:`inflated_size`
checks a record batch's buffers against its body and tells how much memory decoding it
takes, so that a small message can't ask for a large allocation.
"""

from __future__ import annotations

from struct import Struct
from struct import error as struct_error
from typing import Final

import pyarrow as pa

from quiver.format.arrow.flatbuf import FlatbufferError, Table

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
_U32 = Struct("<I")
_I32 = Struct("<i")
_U16 = Struct("<H")
_I16 = Struct("<h")
_MESSAGE_FIELDS = Struct("<H2x4H")
_BATCH_FIELDS = Struct("<H2xH2xH")
_COMPRESSION: Final = 10
"""Where a batch's table of fields has that of its compression, if it is so long."""
_BUFFER = Struct("<qq")
_SIZE = Struct("<q")


class IpcMessage:
    """One message inside a buffer: ``start`` and ``end`` include prefix and body."""

    __slots__ = ("body", "end", "header", "kind", "start", "version")

    def __init__(self, data: pa.Buffer, start: int, body: int) -> None:
        table = Table.root(data.slice(start + PREFIX_SIZE, body - start - PREFIX_SIZE).to_pybytes())
        header, body_length = table.table(2), table.i64(3)
        if header is None:
            raise FlatbufferError("a message has no header")
        if body_length < 0 or body_length > data.size - body:
            raise FlatbufferError("a message's body is longer than the data")
        self.start: Final = start
        self.body: Final = body
        self.end: Final = body + body_length
        self.kind: Final = table.u8(1)
        self.version: Final = table.i16(0)
        self.header: Final = header

    @property
    def portable(self) -> bool:
        """Whether it is of today's version and keeps what follows it aligned."""
        return self.version == VERSION_5 and not (
            (self.body - self.start) % ALIGNMENT or (self.end - self.body) % ALIGNMENT
        )


def metadata_length(prefix: memoryview) -> int:
    """Length of the metadata of the message that begins with these eight bytes."""
    length: int = _PREFIX.unpack(prefix)[1]
    return length


def metadata_end(data: pa.Buffer, start: int) -> int | None:
    """Where the metadata of the message at ``start`` ends; ``None`` at the stream's end."""
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
    return start + PREFIX_SIZE + int(length)


def read_message(data: pa.Buffer, start: int) -> IpcMessage | None:
    """The message at ``start``, all of it inside ``data``; ``None`` at the stream's end."""
    body = metadata_end(data, start)
    return None if body is None else IpcMessage(data, start, body)


def expect(found: IpcMessage | None, kind: int) -> IpcMessage:
    """The message, if it is there and of this kind."""
    if found is None:
        raise FlatbufferError("the stream ends before its batch")
    if found.kind != kind:
        raise FlatbufferError(f"a message of kind {found.kind} where {kind} should be")
    return found


def usual_rows(data: memoryview) -> int | None:
    """The rows of one record batch message, if this is one and nothing else, laid out as usual.

    ``None`` may also mean that it is laid out, or compressed, in some other way:
    :func:`read_message` and :func:`inflated_size` know them all, and take several times as
    long, which counts for every bundle that comes in and where a whole log is read.
    """
    try:
        marker, length = _PREFIX.unpack_from(data)
        metadata = bytes(data[PREFIX_SIZE : PREFIX_SIZE + length])
        if marker != CONTINUATION or len(metadata) != length:
            return None
        (at,) = _U32.unpack_from(metadata)
        fields = at - _I32.unpack_from(metadata, at)[0]
        size, version, kind, header, body = _MESSAGE_FIELDS.unpack_from(metadata, fields)
        if fields < 0 or not _MESSAGE_FIELDS.size <= size <= length - fields:
            return None
        batch = at + header + _U32.unpack_from(metadata, at + header)[0]
        batch_fields = batch - _I32.unpack_from(metadata, batch)[0]
        size, count, buffers = _BATCH_FIELDS.unpack_from(metadata, batch_fields)
        if batch_fields < 0 or not _BATCH_FIELDS.size <= size <= length - batch_fields:
            return None
        if size > _COMPRESSION and _U16.unpack_from(metadata, batch_fields + _COMPRESSION)[0]:
            return None
        if not (version and kind and header and body and count and buffers):
            return None  # absent: the default holds
        (body_size,) = _SIZE.unpack_from(metadata, at + body)
        start = batch + buffers + _U32.unpack_from(metadata, batch + buffers)[0] + 4
        end = start + _BUFFER.size * _U32.unpack_from(metadata, start - 4)[0]
        if (
            metadata[at + kind] != RECORD_BATCH
            or _I16.unpack_from(metadata, at + version)[0] != VERSION_5
            or body_size != len(data) - PREFIX_SIZE - length
            or (length % ALIGNMENT or body_size % ALIGNMENT)
            or end > length
        ):
            return None
        for offset, size in _BUFFER.iter_unpack(metadata[start:end]):
            if offset < 0 or size < 0 or offset + size > body_size:
                return None
        rows: int = _SIZE.unpack_from(metadata, batch + count)[0]
        return rows if rows >= 0 else None
    except (struct_error, IndexError):
        return None


def batch_table(message: IpcMessage) -> Table:
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


def inflated_size(data: pa.Buffer, message: IpcMessage) -> int:
    """Bytes that decoding takes: the body itself, or what compressed buffers declare."""
    batch = batch_table(message)
    length = message.end - message.body
    compressed = codec_of(batch) is not None
    total = 0
    for offset, size in batch.structs(2, _BUFFER):
        if offset < 0 or size < 0 or offset + size > length:
            raise FlatbufferError("a column's buffer lies outside of its message")
        if compressed and size:
            total += _declared_size(data, message.body + offset, size)
    return total if compressed else length


def _declared_size(data: pa.Buffer, start: int, size: int) -> int:
    if size < _SIZE.size:
        raise FlatbufferError("a compressed buffer is shorter than its own prefix")
    declared: int = _SIZE.unpack_from(data, start)[0]
    if declared < STORED_RAW:
        raise FlatbufferError("a compressed buffer declares a negative size")
    return size if declared == STORED_RAW else declared
