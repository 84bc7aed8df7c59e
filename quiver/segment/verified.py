"""Batches of a segment, read into memory and verified block by block, each time.

What a caller gets was read from the disk, summed, and found as it was written; the tables
that say where it is and what it sums to were verified when the file was opened, and are
kept in memory.  So bytes that rot while a segment is open are noticed by whoever reads them.

Bundles are mostly read one after the other, so once a stream is read in order, a run of
neighbours comes with one call to the disk.  Those are verified too, each when it is asked for.
"""

from __future__ import annotations

import threading
import weakref
from array import array
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from quiver.errors import SegmentChecksum, SegmentDamage, SegmentTruncated
from quiver.format.arrow import message as msg
from quiver.format.arrow.ipc import EncodedBatch, column_indices
from quiver.format.arrow.ipc_file import HEAD
from quiver.format.arrow.projection import buffers_by_field
from quiver.format.arrow.schema import SchemaMessage
from quiver.format.crc import crc32
from quiver.format.segment.blocks import (
    BLOCK_SIZE,
    Chunk,
    Mismatch,
    Piece,
    block_count,
    find_mismatch,
    read_pieces,
)
from quiver.format.segment.file import StreamEntry
from quiver.format.segment.manifest import Manifest
from quiver.segment.feed import MessageFeed
from quiver.segment.source import ReadSource

READ_AHEAD: Final = 256 << 10
"""Bytes of one stream that are read at a time once it is read in order."""

READ_AHEAD_BELOW: Final = 64 << 10
"""Longer messages are read one by one: another call costs less than memory that is not warm."""

READ_AHEAD_PER_SEGMENT: Final = 4 << 20
"""Bytes that the streams of one segment share for that."""

MAX_READING_AHEAD: Final = 8
"""Segments of this process that have such bytes at a time: 32 MiB in all."""

SPARSE_FROM: Final = 256 << 10
"""Messages as long as this are read in parts, if only some columns are wanted."""

_JOIN_GAPS: Final = 4
"""Unwanted blocks that are read along rather than passed over by another call."""

_NOT_SEEN: Final = -1


class _ReadWindow(NamedTuple):
    """A part of a stream in memory."""

    start: int
    end: int
    data: pa.Buffer


class _Head(NamedTuple):
    """What a stream's batches need to be decoded."""

    schema: SchemaMessage
    dictionaries: pa.Buffer


class _ReadingAhead:
    """The segments that keep bytes read ahead; the longest unused one lets go of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._users: OrderedDict[int, weakref.ref[VerifiedChunks]] = OrderedDict()

    def enter(self, user: VerifiedChunks) -> None:
        with self._lock:
            self._users[id(user)] = weakref.ref(user)
            self._users.move_to_end(id(user))
            while len(self._users) > self._most:
                oldest = self._users.popitem(last=False)[1]()
                if oldest is not None:
                    oldest.forget()


_reading_ahead: Final = _ReadingAhead(MAX_READING_AHEAD)


class VerifiedChunks:
    """The batches of one segment that has block checksums."""

    def __init__(
        self, source: ReadSource, manifest: Manifest, entries: Mapping[int, StreamEntry]
    ) -> None:
        self._source = source
        self._manifest = manifest
        self._offsets, self._lengths, self._crcs = manifest.extents
        self._entries = entries
        self._ahead = min(READ_AHEAD, READ_AHEAD_PER_SEGMENT // max(len(entries), 1))
        self._ahead_below = min(self._ahead, READ_AHEAD_BELOW)
        self._lock = threading.Lock()
        self._heads: dict[int, _Head] = {}
        self._feeds: dict[int, MessageFeed] = {}
        self._windows: dict[int, _ReadWindow] = {}
        self._ends: dict[int, int] = {}
        # Rows by slot reference, once its message was looked at.
        self._rows = array("q", [_NOT_SEEN]) * len(manifest.slots)

    def forget(self) -> None:
        """Let go of bytes read ahead."""
        self._windows = {}

    def schema(self, stream_id: int) -> pa.Schema:
        return self._head(stream_id).schema.schema

    def batch(self, index: int, at: int, stream_id: int) -> pa.RecordBatch:
        """The batch of a slot reference, which is in this stream."""
        head = self._heads.get(stream_id) or self._head(stream_id)
        return self._decode(stream_id, head, self._message(index, at, stream_id))

    def _decode(self, stream_id: int, head: _Head, data: pa.Buffer) -> pa.RecordBatch:
        if head.schema.has_dictionaries:
            return self._feed(stream_id, head).batch(data)
        return pa.ipc.read_record_batch(data, head.schema.schema)

    def columns(self, index: int, at: int, names: Sequence[str]) -> pa.RecordBatch:
        """Some columns of it. Where that saves much, the others are not read."""
        stream_id = self._manifest.streams[at]
        head = self._head(stream_id)
        wanted = column_indices(head.schema.schema, names)
        chunk = self._manifest.chunk(index, at)
        stream = None
        if wanted and chunk.length >= SPARSE_FROM:
            stream = self._sparse(index, chunk, head, wanted)
        if stream is None:
            data = self._message(index, at, stream_id)
            if not wanted or msg.usual_rows(memoryview(data).cast("B")) is not None:
                return self._decode(stream_id, head, data).select(wanted)
            stream = _joined(head, data)  # it may be compressed: only these are inflated
        fields = sorted(set(wanted))
        options = pa.ipc.IpcReadOptions(included_fields=fields)
        with pa.ipc.open_stream(stream, options=options) as reader:
            batch = reader.read_next_batch()
        return batch.select([fields.index(number) for number in wanted])

    def encoded(self, index: int, at: int) -> EncodedBatch:
        """The batch of a slot reference as the messages it is."""
        stream_id = self._manifest.streams[at]
        head = self._head(stream_id)
        data = self._message(index, at, stream_id)
        rows = self._rows[at]
        if rows == _NOT_SEEN:
            rows = self._rows[at] = count_rows(data)
        return EncodedBatch(head.schema, data, rows, head.dictionaries)

    def check(self, index: int, at: int) -> None:
        """Raise if the batch of a slot reference can't be had."""
        stream_id = self._manifest.streams[at]
        self._head(stream_id)
        self._message(index, at, stream_id)

    # Bytes

    def _message(self, index: int, at: int, stream_id: int) -> pa.Buffer:
        offset, length, crc = self._offsets[at], self._lengths[at], self._crcs[at]
        data = self._bytes(stream_id, offset, length)
        if data.size != length or crc32(data) != crc:
            chunk = self._manifest.chunk(index, at)
            raise _damage(data, Piece(offset, length, chunk.sums), (index,), crc)
        return data

    def _bytes(self, stream_id: int, offset: int, length: int) -> pa.Buffer:
        if length >= self._ahead_below:
            return self._source.bytes(offset, length)
        end = offset + length
        window = self._windows.get(stream_id)
        in_order = self._ends.get(stream_id) == offset
        self._ends[stream_id] = end
        if window is not None and window.start <= offset and end <= window.end:
            return window.data.slice(offset - window.start, length)
        entry = self._entries.get(stream_id)
        if not in_order or entry is None:
            return self._source.bytes(offset, length)
        # Not beyond the batches, and no part of a batch that would have to be read again.
        limit = entry.byte_offset + entry.byte_length - (entry.tail_length or 0)
        data = self._source.bytes(offset, max(min(self._ahead, limit - offset), length))
        self._windows[stream_id] = _ReadWindow(offset, offset + data.size, data)
        _reading_ahead.enter(self)
        return data.slice(0, length)

    # What comes before the batches

    def _head(self, stream_id: int) -> _Head:
        found = self._heads.get(stream_id)
        if found is None:
            with self._lock:
                found = self._heads.get(stream_id)
                if found is None:
                    found = self._heads[stream_id] = self._read_head(stream_id)
        return found

    def _read_head(self, stream_id: int) -> _Head:
        entry = self._entries[stream_id]
        pieces = head_pieces(entry)
        length = sum(piece.length for piece in pieces)
        data = self._source.bytes(entry.byte_offset, length)
        for piece in pieces:
            part = data.slice(piece.offset - entry.byte_offset, piece.length)
            if not is_intact(part, piece):
                raise _damage(part, piece, self._bundles_of(stream_id))
        schema = parse_head(data.slice(0, pieces[0].length))
        start = pieces[0].length
        return _Head(schema, data.slice(start, length - start))

    def _bundles_of(self, stream_id: int) -> list[int]:
        manifest = self._manifest
        return [
            index
            for index in range(len(manifest))
            if any(manifest.streams[at] == stream_id for at in manifest.places(index))
        ]

    def _feed(self, stream_id: int, head: _Head) -> MessageFeed:
        with self._lock:
            found = self._feeds.get(stream_id)
            if found is None:
                found = self._feeds[stream_id] = MessageFeed(head.schema.message, head.dictionaries)
            return found

    # Some columns only

    def _sparse(
        self, index: int, chunk: Chunk, head: _Head, wanted: Sequence[int]
    ) -> pa.Buffer | None:
        """An IPC stream in which only the bytes of some columns are what they should be.

        ``None`` if that wouldn't save much, or can't be told.
        """
        prefix = head.schema.message + head.dictionaries.to_pybytes()
        start = len(prefix)
        stream = pa.allocate_buffer(start + chunk.length + len(msg.END_OF_STREAM))
        memory = memoryview(stream).cast("B")
        self._fill(index, chunk, memory[start:], 0, 1)
        body = msg.PREFIX_SIZE + msg.metadata_length(memory[start : start + msg.PREFIX_SIZE])
        if body > BLOCK_SIZE:
            return None
        ranges = buffers_by_field(
            bytes(memory[start + msg.PREFIX_SIZE : start + body]), head.schema.schema
        )
        if ranges is None:
            return None
        blocks = {
            block
            for field in wanted
            for at, size in ranges[field]
            if size
            for block in range((body + at) // BLOCK_SIZE, block_count(body + at + size))
        }
        if any(block >= len(chunk.sums) for block in blocks):
            return None
        runs = _runs(blocks - {0})
        if sum(end - begin for begin, end in runs) > len(chunk.sums) * 3 // 4:
            return None
        for begin, end in runs:
            self._fill(index, chunk, memory[start:], begin, end)
        memory[:start] = prefix
        memory[start + chunk.length :] = msg.END_OF_STREAM
        return stream

    def _fill(self, index: int, chunk: Chunk, memory: memoryview, begin: int, end: int) -> None:
        """Read and verify the blocks from ``begin`` to ``end``."""
        first = begin * BLOCK_SIZE
        length = min(end * BLOCK_SIZE, chunk.length) - first
        part = memory[first : first + length]
        got = self._source.fill(part, chunk.offset + first)
        read = pa.py_buffer(part[:got])
        piece = Piece(chunk.offset + first, length, chunk.sums[begin:end])
        if not is_intact(read, piece):
            raise _damage(read, piece, (index,))


def is_intact(data: pa.Buffer, piece: Chunk | Piece) -> bool:
    """Whether bytes are all there and as they were written."""
    return data.size == piece.length and find_mismatch(data, piece.sums) is None


def _damage(
    data: pa.Buffer, piece: Piece, bundles: Sequence[int], crc: int | None = None
) -> SegmentDamage:
    """The error for bytes that are not as they were written."""
    if data.size != piece.length:
        return SegmentTruncated(
            f"{named(bundles)}: {data.size:,} of {piece.length:,} bytes are there.",
            bundles=list(bundles),
            offset=piece.offset,
        )
    # If each block has its sum, the checksum of them all says that it is the whole.
    found = find_mismatch(data, piece.sums) or Mismatch(0, crc or 0, crc32(data))
    offset = piece.offset + found.offset
    return SegmentChecksum(
        f"{named(bundles)}: the block at byte {offset:,} sums to {found.found:08x},"
        f" it should be {found.stored:08x}.",
        bundles=list(bundles),
        offset=offset,
        stored=found.stored,
        found=found.found,
    )


def _joined(head: _Head, data: pa.Buffer) -> pa.Buffer:
    parts = (head.schema.message, head.dictionaries, data, msg.END_OF_STREAM)
    return pa.py_buffer(b"".join(map(bytes, parts)))


def _runs(blocks: set[int]) -> list[tuple[int, int]]:
    """Blocks as half-open ranges; small gaps are taken along."""
    runs: list[tuple[int, int]] = []
    for block in sorted(blocks):
        if runs and block - runs[-1][1] <= _JOIN_GAPS:
            runs[-1] = (runs[-1][0], block + 1)
        else:
            runs.append((block, block + 1))
    return runs


def head_pieces(entry: StreamEntry) -> list[Piece]:
    """The messages before a stream's first batch; ``ValueError`` if they have no checksums."""
    if not entry.head_lengths or entry.head_sums is None:
        raise ValueError("the stream's head has no checksums")
    start = entry.byte_offset
    pieces = read_pieces(entry.head_lengths, entry.head_sums)
    return [piece._replace(offset=start + piece.offset) for piece in pieces]


def parse_head(data: pa.Buffer) -> SchemaMessage:
    """The schema, from the magic and the schema message that a stream begins with."""
    message = data.slice(len(HEAD)).to_pybytes()
    found = SchemaMessage.parse(message)
    # The cached one may have been made before an extension type was registered.
    schema = pa.ipc.read_schema(pa.py_buffer(message))
    if found.schema.equals(schema, check_metadata=True):
        return found
    return SchemaMessage(message, schema)


def count_rows(data: pa.Buffer) -> int:
    """How many rows the batch of a message has."""
    rows = msg.usual_rows(memoryview(data).cast("B"))
    if rows is not None:
        return rows
    return msg.expect(msg.read_message(data, 0), msg.RECORD_BATCH).header.i64(0)


def named(bundles: Sequence[int]) -> str:
    """Bundles in words."""
    if len(bundles) == 1:
        return f"bundle {bundles[0]}"
    return (
        f"bundles {', '.join(map(str, bundles))}"
        if len(bundles) < 9
        else (f"{len(bundles):,} bundles from {bundles[0]} to {bundles[-1]}")
    )
