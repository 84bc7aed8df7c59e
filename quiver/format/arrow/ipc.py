"""Record batches as Arrow IPC messages: encoded once, then carried as bytes.

A batch becomes messages when it comes in (:func:`encode_batch`), or comes as messages
(:func:`parse_stream`).  The log stores them as an IPC *stream*, a segment as an IPC *file*;
both use the same bytes and the same checksums, which is why :class:`EncodedBatch` keeps
the pieces apart: schema message, dictionary messages, batch message.

What is decoded equals what was encoded.  Nothing is compressed here; what came compressed
with zstd stays so, lz4 is undone since the Rust crate's reader doesn't know it.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

import pyarrow as pa
from blake3 import blake3

from quiver.errors import (
    InvalidBundle,
    LimitExceeded,
    check_memory,
)
from quiver.format.arrow import message as msg
from quiver.format.arrow.flatbuf import FlatbufferError
from quiver.format.arrow.schema import SchemaMessage
from quiver.format.crc import crc32

END_OF_STREAM: Final = msg.END_OF_STREAM
MAX_DICTIONARIES: Final = 10_000
MAX_ROWS: Final = 2**31 - 1
MAX_KNOWN: Final = 2**28
"""Largest stream that the log can hold."""

_EOS_SIZE: Final = len(END_OF_STREAM)
_EMPTY: Final = pa.py_buffer(b"")
_ARROW_ERRORS: Final = (
    pa.ArrowException,
    OSError,
    ValueError,
    KeyError,
    OverflowError,
    MemoryError,
    struct.error,
)


class EncodedBatch:
    """One record batch as IPC messages. Never changed after it is made."""

    __slots__ = (
        "_batch_crc",
        "_digest",
        "_stream",
        "batch",
        "dictionaries",
        "nbytes",
        "payload_len",
        "rows",
        "schema",
    )

    def __init__(
        self,
        schema: SchemaMessage,
        batch: pa.Buffer,
        rows: int,
        dictionaries: pa.Buffer = _EMPTY,
        stream: pa.Buffer | None = None,
    ) -> None:
        self.schema: Final = schema
        self.dictionaries: Final = dictionaries
        self.batch: Final = batch
        self.rows: Final = rows
        # Memory this batch keeps (its schema is shared), and length of the IPC stream.
        self.nbytes: Final[int] = dictionaries.size + batch.size
        self.payload_len: Final[int] = len(schema.message) + self.nbytes + _EOS_SIZE
        self._stream = stream
        self._batch_crc: int | None = None
        self._digest: bytes | None = None

    def buffers(self) -> list[bytes | pa.Buffer]:
        """The IPC stream in pieces, so that it is written without being joined; or in one."""
        if self._stream is not None:
            return [self._stream]
        if self.dictionaries.size:
            return [self.schema.message, self.dictionaries, self.batch, END_OF_STREAM]
        return [self.schema.message, self.batch, END_OF_STREAM]

    @property
    def batch_crc(self) -> int:
        """Checksum of the record batch message; taken once, used by log and segment."""
        if self._batch_crc is None:
            self._batch_crc = crc32(self.batch)
        return self._batch_crc

    @property
    def dictionary_digest(self) -> bytes:
        """Names the dictionaries: batches may share a file only if theirs are the same."""
        if self._digest is None:
            self._digest = blake3(self.dictionaries).digest() if self.dictionaries.size else b""
        return self._digest

    def decode(self, *, to_check: bool = False) -> pa.RecordBatch:
        """The batch, over the memory it lies in; copied once if that is not aligned.

        ``to_check``: never copied.  That will do to have it validated, as Flight's own
        readers do, and is not for others' hands: not every program can bear it.
        """
        align = _as_it_is if to_check else _aligned
        try:
            if self.schema.has_dictionaries:
                with pa.ipc.open_stream(align(self._whole_stream())) as reader:
                    return reader.read_next_batch()
            return pa.ipc.read_record_batch(align(self.batch), self.schema.schema)
        except (*_ARROW_ERRORS, StopIteration) as error:
            check_memory(error)
            raise InvalidBundle(f"a batch can't be decoded: {error}") from None

    def _whole_stream(self) -> pa.Buffer:
        if self._stream is None:
            self._stream = pa.py_buffer(b"".join(bytes(part) for part in self.buffers()))
        return self._stream


def schema_message(batch: pa.RecordBatch) -> SchemaMessage:
    """A batch's schema, encoded."""
    try:
        return SchemaMessage.of(batch.schema)
    except _ARROW_ERRORS as error:
        check_memory(error)
        raise InvalidBundle(f"a batch can't be encoded: {error}") from None


def encode_batch(batch: pa.RecordBatch, schema: SchemaMessage | None = None) -> EncodedBatch:
    """Encode a batch. Slices are cut to what they show; nothing is compressed."""
    rows = batch.num_rows
    if rows > MAX_ROWS:
        raise LimitExceeded("rows in a slot", rows, MAX_ROWS)
    try:
        if schema is None:
            schema = SchemaMessage.of(batch.schema)
        if not schema.has_dictionaries:
            return EncodedBatch(schema, batch.serialize(), rows)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
    except _ARROW_ERRORS as error:
        check_memory(error)
        raise InvalidBundle(f"a batch can't be encoded: {error}") from None
    return _IpcStream(sink.getvalue()).encoded()


def parse_stream(
    data: bytes | memoryview | pa.Buffer, *, max_bytes: int, known: SchemaMessage | None = None
) -> EncodedBatch:
    """Take an IPC stream with exactly one record batch, as a producer or the log has it.

    Only structure and declared sizes are looked at, so this is cheap and safe on hostile
    input; arrays are checked by whoever decodes.  Streams that couldn't stand in a file
    as they are get encoded anew.  ``known`` is the schema that it most likely has.
    """
    buffer = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
    if buffer.size > max_bytes:
        raise LimitExceeded("bytes in a slot", buffer.size, max_bytes)
    usual = None if known is None else _parse_usual(buffer, known)
    if usual is not None:
        return usual
    try:
        stream = _IpcStream(buffer)
        inflated = stream.inflated_size()
        if inflated > max_bytes:
            raise LimitExceeded("uncompressed bytes in a slot", inflated, max_bytes)
        if stream.rows > MAX_ROWS:
            raise LimitExceeded("rows in a slot", stream.rows, MAX_ROWS)
        encoded = stream.encoded()
        return encoded if stream.fits_a_file else encode_batch(encoded.decode())
    except _ARROW_ERRORS as error:
        check_memory(error)
        raise InvalidBundle(f"not an Arrow IPC stream with one batch: {error}.") from None


def _parse_usual(data: pa.Buffer, known: SchemaMessage) -> EncodedBatch | None:
    """The same for a stream of known schema, laid out as Arrow does; ``None`` if it isn't."""
    start, end = len(known.message), data.size - _EOS_SIZE
    if known.has_dictionaries or not known.portable or end <= start:
        return None
    view = memoryview(data).cast("B")
    if bytes(view[:start]) != known.message or bytes(view[end:]) != END_OF_STREAM:
        return None
    rows = msg.usual_rows(view[start:end])
    if rows is None or rows > MAX_ROWS:
        return None
    return EncodedBatch(known, data.slice(start, end - start), rows, stream=data)


def project(batch: pa.RecordBatch, columns: Sequence[str] | None) -> pa.RecordBatch:
    """The named columns in the order named; ``None`` means all, unknown ones are left out.

    Schemas differ from bundle to bundle, so a name that one of them lacks is no error.
    """
    if columns is None:
        return batch
    return batch.select(column_indices(batch.schema, columns))


def column_indices(schema: pa.Schema, columns: Sequence[str]) -> list[int]:
    """Where the named columns are; a name may stand for several."""
    return [index for name in columns for index in schema.get_all_field_indices(name)]


class _IpcStream:
    """An IPC stream taken apart: one schema, its dictionaries, one batch."""

    __slots__ = ("_batch", "_data", "_dictionaries", "_schema", "_schema_end", "rows")

    def __init__(self, data: pa.Buffer) -> None:
        self._data = data
        end = msg.metadata_end(data, 0)
        if end is None:
            raise FlatbufferError("the stream is empty")
        # By its bytes alone: a schema that was seen before isn't taken apart again.
        self._schema = SchemaMessage.parse(data.slice(0, end).to_pybytes())
        self._schema_end = end
        self._dictionaries: list[msg.IpcMessage] = []
        following = msg.read_message(data, end)
        while following is not None and following.kind == msg.DICTIONARY_BATCH:
            self._dictionaries.append(following)
            count = len(self._dictionaries)
            if count > MAX_DICTIONARIES:
                raise LimitExceeded("dictionaries in a slot", count, MAX_DICTIONARIES)
            following = msg.read_message(data, following.end)
        self._batch = msg.expect(following, msg.RECORD_BATCH)
        self.rows = self._batch.header.i64(0)
        if self.rows < 0:
            raise FlatbufferError("a batch has a negative number of rows")
        if {part.header.i64(0) for part in self._dictionaries} != self._schema.dictionary_ids:
            raise FlatbufferError("the dictionaries are not those that the schema names")
        self._check_end()

    def _check_end(self) -> None:
        end = self._batch.end
        if msg.metadata_end(self._data, end) is not None:
            raise FlatbufferError("there is more than one batch")
        if self._data.size - end not in (0, _EOS_SIZE):
            raise FlatbufferError("there are bytes behind the end of the stream")

    def encoded(self) -> EncodedBatch:
        data, start = self._data, self._batch.start
        batch = data.slice(start, self._batch.end - start)
        whole = data if data.size - self._batch.end == _EOS_SIZE else None
        dictionaries = _EMPTY
        if self._dictionaries:
            dictionaries = data.slice(self._schema_end, start - self._schema_end)
        return EncodedBatch(self._schema, batch, self.rows, dictionaries, whole)

    def inflated_size(self) -> int:
        """Memory that decoding takes; raises if a buffer lies outside of its message."""
        size = msg.inflated_size(self._data, self._batch)
        return size + sum(msg.inflated_size(self._data, part) for part in self._dictionaries)

    @property
    def fits_a_file(self) -> bool:
        """Whether the messages can stand in an IPC file that everybody reads."""
        return (
            self._schema.portable
            and fits_a_file(self._batch)
            and all(fits_a_file(part) for part in self._dictionaries)
            and not any(part.header.u8(2) for part in self._dictionaries)
            and len(self._dictionaries) == len(self._schema.dictionary_ids)
        )


def fits_a_file(part: msg.IpcMessage) -> bool:
    """Whether a message can stand in a stream or file that everybody reads."""
    return part.portable and msg.codec_of(msg.batch_table(part)) != msg.CODEC_LZ4


def _as_it_is(data: pa.Buffer) -> pa.Buffer:
    return data


def _aligned(data: pa.Buffer) -> pa.Buffer:
    return pa.py_buffer(data.to_pybytes()) if data.address % msg.ALIGNMENT else data
