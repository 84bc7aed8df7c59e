"""Arrow IPC files: put together from messages that exist already, and checked.

::

    "ARROW1\\0\\0" · schema message · dictionary messages · batch messages · end marker
    footer (FlatBuffer) · its length i32 · "ARROW1"

A record batch message is the same in a stream and in a file, so nothing is encoded again:
only the footer is new.  It repeats the schema and lists a block (offset, metadata length,
body length) per message.  The schema is not built anew either: FlatBuffers offsets are
relative, so the schema message's own metadata is set behind the footer's table, as it is,
and the footer points into it.  Dictionary ids thus agree with the dictionary messages,
whoever made them, and the checksum of the whole follows from those of the pieces.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Final

import pyarrow as pa

from quiver.format.arrow import message as msg
from quiver.format.arrow.flatbuf import FlatbufferError, Table
from quiver.format.arrow.ipc import EncodedBatch, fits_a_file
from quiver.format.arrow.schema import SchemaMessage
from quiver.format.crc import crc32, crc32_combine
from quiver.format.segment.blocks import BLOCK_SIZE, Chunk, block_sums

HEAD: Final = b"ARROW1\0\0"
TAIL_MAGIC: Final = b"ARROW1"
MIN_SIZE: Final = 8 + 4 + 6

_TAIL = Struct("<i6s")
_PREFIX = Struct("<Ii")
_BLOCK = Struct("<qi4xq")
# root offset · vtable (size, table size, version, schema, dictionaries, batches) · table.
# The table holds its vtable's distance, three offsets and the version, in that order.
_FOOTER_HEAD = Struct("<I6H4x iIIIh2x")
_VTABLE_AT: Final = 4
_TABLE_AT: Final = 20
_SCHEMA_FIELD: Final = 4
_DICTIONARIES_FIELD: Final = 8
_BATCHES_FIELD: Final = 12
_VERSION_FIELD: Final = 16
_TABLE_SIZE: Final = 18
_ANEW: Final = -1
_NOT_SEEN: Final = -2


class FileBuilder:
    """One IPC file that grows by messages; its checksum grows along."""

    __slots__ = (
        "_batches",
        "_buffers",
        "_chunks",
        "_crc",
        "_dictionaries",
        "_head_lengths",
        "_head_sums",
        "_schema",
        "_size",
        "rows",
    )

    def __init__(self, schema: SchemaMessage) -> None:
        self._schema = schema
        self._buffers: list[bytes | pa.Buffer] = [HEAD, schema.message]
        self._size = len(HEAD) + len(schema.message)
        self._crc = crc32(schema.message, crc32(HEAD))
        self._dictionaries: list[bytes] = []
        self._batches: list[bytes] = []
        self._chunks: list[Chunk] = []
        # The magic counts with the schema: it is too short for a block of its own.
        self._head_lengths = [self._size]
        self._head_sums = block_sums(HEAD + schema.message)
        self.rows = 0

    def add_dictionaries(self, data: pa.Buffer) -> None:
        """Dictionary messages laid end to end; all of them before the first batch."""
        at = 0
        while (found := msg.read_message(data, at)) is not None:
            block = _BLOCK.pack(self._size + at, found.body - found.start, found.end - found.body)
            self._dictionaries.append(block)
            self._head_lengths.append(found.end - at)
            self._head_sums += block_sums(data.slice(at, found.end - at))
            at = found.end
        self._add(data, crc32(data))

    def add_batch(self, batch: EncodedBatch) -> None:
        """One record batch message, by the checksum it carries."""
        data = batch.batch
        metadata = msg.PREFIX_SIZE + _PREFIX.unpack_from(data)[1]
        self._batches.append(_BLOCK.pack(self._size, metadata, data.size - metadata))
        sums = [batch.batch_crc] if data.size <= BLOCK_SIZE else block_sums(data)
        self._chunks.append(Chunk(self._size, data.size, batch.batch_crc, sums))
        self._add(data, batch.batch_crc)
        self.rows += batch.rows

    def _add(self, data: bytes | pa.Buffer, crc: int) -> None:
        size = len(data)
        self._buffers.append(data)
        self._crc = crc32_combine(self._crc, crc, size)
        self._size += size

    def finish(self) -> IpcFile:
        """The whole file, in pieces."""
        footer = _footer(self._schema.message, self._dictionaries, self._batches)
        tail = msg.END_OF_STREAM + footer + _TAIL.pack(len(footer), TAIL_MAGIC)
        return IpcFile(
            buffers=(*self._buffers, tail),
            size=self._size + len(tail),
            crc=crc32(tail, self._crc),
            rows=self.rows,
            head_lengths=self._head_lengths,
            head_sums=self._head_sums,
            chunks=self._chunks,
            tail_length=len(tail),
            tail_sums=block_sums(tail),
        )


@dataclass(frozen=True, slots=True)
class IpcFile:
    """A finished file: what to write, how long it is, its checksum and those of its blocks.

    *Head*: the messages before the first batch, schema and dictionaries, each with its
    length.  *Chunks*: the batches, by their offset in the file.  *Tail*: the rest.
    """

    buffers: Sequence[bytes | pa.Buffer]
    size: int
    crc: int
    rows: int
    head_lengths: Sequence[int]
    head_sums: Sequence[int]
    chunks: Sequence[Chunk]
    tail_length: int
    tail_sums: Sequence[int]


def _footer(schema: bytes, dictionaries: Sequence[bytes], batches: Sequence[bytes]) -> bytes:
    """The footer: table first, then both block lists, then the schema message's metadata."""
    metadata = schema[msg.PREFIX_SIZE :]
    # Block lists are preceded by their u32 count, and blocks are aligned to 8 bytes.
    dictionaries_at = _FOOTER_HEAD.size
    batches_at = dictionaries_at + 8 + _BLOCK.size * len(dictionaries)
    schema_at = batches_at + 8 + _BLOCK.size * len(batches)
    table = Table.root(metadata).table(2)
    if table is None:
        raise FlatbufferError("a message holds no schema")
    head = _FOOTER_HEAD.pack(
        _TABLE_AT,
        12,
        _TABLE_SIZE,
        _VERSION_FIELD,
        _SCHEMA_FIELD,
        _DICTIONARIES_FIELD,
        _BATCHES_FIELD,
        _TABLE_AT - _VTABLE_AT,
        schema_at + table.position - (_TABLE_AT + _SCHEMA_FIELD),
        dictionaries_at + 4 - (_TABLE_AT + _DICTIONARIES_FIELD),
        batches_at + 4 - (_TABLE_AT + _BATCHES_FIELD),
        msg.VERSION_5,
    )
    return b"".join((head, _vector(dictionaries), _vector(batches), metadata))


def _vector(blocks: Sequence[bytes]) -> bytes:
    return struct.pack("<4xI", len(blocks)) + b"".join(blocks)


def schema_in_footer(tail: pa.Buffer, length: int) -> bytes:
    """The schema message of a file that :class:`FileBuilder` made, from what ends it.

    The footer ends in the schema message's metadata, as it is; ``length`` is the message's.
    """
    end = tail.size - _TAIL.size
    start = end - (length - msg.PREFIX_SIZE)
    metadata: bytes = tail.slice(start, end - start).to_pybytes()
    return _PREFIX.pack(msg.CONTINUATION, len(metadata)) + metadata


class FileMessages:
    """The batches of an IPC file as the messages they are: to be sent on without decoding."""

    __slots__ = ("_blocks", "_data", "_rows", "_schema")

    def __init__(
        self, data: pa.Buffer, schema: SchemaMessage, blocks: Sequence[tuple[int, int, int]]
    ) -> None:
        """Use :meth:`of`."""
        self._data = data
        self._schema = schema
        self._blocks = blocks
        # Rows by block, once it was looked at: a file is never changed, so once is enough.
        self._rows = array("q", [_NOT_SEEN]) * len(blocks)

    @classmethod
    def of(cls, data: pa.Buffer) -> FileMessages | None:
        """``None`` for a file whose batches can't stand alone, or that isn't laid out as ours."""
        try:
            end = msg.metadata_end(data, len(HEAD))
            if end is None:
                return None
            schema = SchemaMessage.parse(data.slice(len(HEAD), end - len(HEAD)).to_pybytes())
            if schema.has_dictionaries or not schema.portable:
                return None
            size, _ = _TAIL.unpack_from(data, data.size - _TAIL.size)
            footer = Table.root(data.slice(data.size - _TAIL.size - size, size).to_pybytes())
            blocks = [(at, metadata, body) for at, metadata, body in footer.structs(3, _BLOCK)]
        except (struct.error, ValueError, IndexError, pa.ArrowException):
            return None  # Arrow reads it in its own way, or says what is wrong
        return cls(data, schema, blocks)

    def batch(self, index: int) -> EncodedBatch | None:
        """One batch, in the file's memory; ``None`` if it has to be encoded anew."""
        offset, metadata, length = self._blocks[index]
        rows = self._rows[index]
        if rows == _NOT_SEEN:
            rows = self._rows[index] = self._look(offset, metadata, length)
        if rows < 0:
            return None
        return EncodedBatch(self._schema, self._data.slice(offset, metadata + length), rows)

    def _look(self, offset: int, metadata: int, length: int) -> int:
        """How many rows a block's message has, if it can be sent as it is."""
        try:
            found = msg.read_message(self._data, offset)
        except struct.error:
            return _ANEW
        if found is None or not fits_a_file(found):
            return _ANEW
        if (found.body - offset, found.end - found.body) != (metadata, length):
            return _ANEW
        return max(found.header.i64(0), _ANEW)


def check_file(data: pa.Buffer) -> None:
    """Make sure that opening an uncompressed file allocates nothing and reads only itself.

    For files that are read before a checksum has been looked at.
    """
    if data.size < MIN_SIZE or data.slice(0, len(TAIL_MAGIC)).to_pybytes() != TAIL_MAGIC:
        raise FlatbufferError("not an Arrow file")
    size, magic = _TAIL.unpack_from(data, data.size - _TAIL.size)
    end = data.size - _TAIL.size - size
    if magic != TAIL_MAGIC or size <= 0 or end < len(HEAD):
        raise FlatbufferError("an Arrow file's footer is cut off")
    body = data.slice(0, end)
    footer = Table.root(data.slice(end, size).to_pybytes())
    for kind, number in ((msg.DICTIONARY_BATCH, 2), (msg.RECORD_BATCH, 3)):
        for offset, metadata, length in footer.structs(number, _BLOCK):
            _check_block(body, kind, offset, metadata, length)


def _check_block(body: pa.Buffer, kind: int, offset: int, metadata: int, length: int) -> None:
    if offset < 0 or offset > body.size:
        raise FlatbufferError("a block lies outside of its file")
    found = msg.read_message(body, offset)
    if found is None or found.kind != kind:
        raise FlatbufferError("a block holds another message than the footer says")
    if (found.body - offset, found.end - found.body) != (metadata, length):
        raise FlatbufferError("a block is not as long as the footer says")
    if msg.codec_of(msg.batch_table(found)) is not None:
        raise FlatbufferError("a block is compressed")
    msg.inflated_size(body, found)
