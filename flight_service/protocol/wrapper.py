"""A bundle as one record batch: bundle mode, in both directions.

Each row is a slot that is present, and its data an Arrow IPC stream with one batch:

=============  ==============================================================
``slot``       ``utf8``: the slot's name; or ``uint16``: its number in the
               stream's slot table.  A put may use either, an answer has numbers
               (the names are in the metadata beside it)
``schema_fp``  ``binary``: a 32-byte fingerprint of the schema, kept as sent;
               null or empty: the server computes its own
``ipc``        ``large_binary``: schema, dictionaries, one record batch, end marker
=============  ==============================================================

One Flight message is one complete bundle, or some, one after the other: each is taken as a
whole or not at all, and schemas may change from bundle to bundle without reopening the call.
"""

from __future__ import annotations

import functools
import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, TypeAlias

import pyarrow as pa

from flight_service.protocol.errors import ServiceError
from flight_service.protocol.names import MAX_SLOTS, check_name

BY_NUMBER: Final = pa.schema(
    [
        pa.field("slot", pa.uint16(), nullable=False),
        pa.field("schema_fp", pa.binary()),
        pa.field("ipc", pa.large_binary(), nullable=False),
    ]
)
BY_NAME: Final = BY_NUMBER.set(0, pa.field("slot", pa.utf8(), nullable=False))
FINGERPRINT_BYTES: Final = 32
END_OF_STREAM: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
RECENT_SCHEMAS: Final = 8

_PREFIX: Final = struct.Struct("<Ii")


class SlotStream(NamedTuple):
    """One row of a wrapped bundle; ``ipc`` lies in the memory of the batch."""

    slot: str | int
    fingerprint: bytes | None
    ipc: pa.Buffer


def _bad(message: str) -> ServiceError:
    return ServiceError("invalid_bundle", message)


def check_schema(schema: pa.Schema) -> None:
    """Whether a DoPut in bundle mode declares the wrapper; nullability doesn't matter."""
    wanted = [("slot", (pa.uint16(), pa.utf8())), ("schema_fp", (pa.binary(),))]
    wanted.append(("ipc", (pa.large_binary(), pa.binary())))
    fits = len(schema) == len(wanted) and all(
        field.name == name and field.type in types
        for field, (name, types) in zip(schema, wanted, strict=True)
    )
    if not fits:
        raise ServiceError(
            "bad_request",
            "bundle mode takes the columns slot: uint16 or utf8, schema_fp: binary,"
            f" ipc: large_binary, not {', '.join(f'{f.name}: {f.type}' for f in schema)[:300]}.",
        )


def unwrap(batch: pa.RecordBatch) -> list[SlotStream]:
    """The slots of a wrapped bundle, without copying their data.

    Looks only at the wrapper; whether each stream is sound is the store's to check.
    """
    return check_rows(rows_of(batch))


Row: TypeAlias = tuple[str | int, bytes | None, pa.Buffer]
"""A row of a wrapper as it came."""


def rows_of(batch: pa.RecordBatch, most: int = MAX_SLOTS) -> list[Row]:
    """The rows of a wrapper that is sound Arrow data; what is in them is still to be checked."""
    if batch.num_rows > most:
        raise ServiceError(
            "limit_exceeded",
            f"slots in a bundle is {batch.num_rows:,}, the limit is {most}.",
            details={"limit": "slots in a bundle", "value": batch.num_rows, "maximum": most},
        )
    try:
        batch.validate(full=True)
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise _bad(f"the wrapper is not valid Arrow data: {error}") from None
    slots, prints, streams = batch.columns
    if slots.null_count or streams.null_count:
        raise _bad("slot and ipc must not be null.")
    return list(zip(slots.to_pylist(), prints.to_pylist(), _cells(streams), strict=True))


def check_rows(rows: Sequence[Row]) -> list[SlotStream]:
    """The rows of one bundle, checked."""
    found = [SlotStream(_slot(slot), _fingerprint(print_), ipc) for slot, print_, ipc in rows]
    if len({row.slot for row in found}) != len(found):
        raise _bad("a slot comes twice in one bundle.")
    return found


def _cells(column: pa.Array) -> list[pa.Buffer]:
    """The cells of a binary column as slices of its memory: ``as_buffer`` would copy."""
    _, offsets, data = column.buffers()
    if not len(column):
        return []
    if data is None:
        return [pa.py_buffer(b"")] * len(column)
    raw = memoryview(offsets).cast("B")
    ends = raw.cast("q") if column.type == pa.large_binary() else raw.cast("i")
    first = column.offset
    return [
        data.slice(ends[row], ends[row + 1] - ends[row])
        for row in range(first, first + len(column))
    ]


def _slot(value: str | int) -> str | int:
    if isinstance(value, str):
        return check_name("slot", value)
    if value >= MAX_SLOTS:
        raise _bad(f"slot numbers go to {MAX_SLOTS - 1}, {value} is none.")
    return value


def _fingerprint(value: bytes | None) -> bytes | None:
    if not value:
        return None
    if len(value) != FINGERPRINT_BYTES:
        raise _bad(f"a schema fingerprint has {FINGERPRINT_BYTES} bytes, not {len(value):,}.")
    return value


class _Known(NamedTuple):
    """A schema, and its message if a batch's own message can follow it as it is."""

    schema: pa.Schema
    message: bytes | None


class _RecentSchemas:
    """The last schemas that were sent: replaced as a whole, so that no lock is needed."""

    schemas: tuple[_Known, ...] = ()


def ipc_stream(batch: pa.RecordBatch) -> list[bytes | pa.Buffer]:
    """One batch as the IPC stream a row carries, in pieces.

    A stream writer made for every batch costs several times what the batch does.  So a
    schema's message is kept, if the stream is that, the batch's message and the end marker:
    the first batch shows it.  With dictionaries it isn't.
    """
    schema = batch.schema
    for known in _RecentSchemas.schemas:
        if known.schema.equals(schema, check_metadata=True):
            if known.message is None:
                return [_written(batch)]
            return [known.message, batch.serialize(), END_OF_STREAM]
    whole = _written(batch)
    message: bytes | None = schema.serialize().to_pybytes()
    if b"".join((message or b"", batch.serialize(), END_OF_STREAM)) != whole.to_pybytes():
        message = None
    _RecentSchemas.schemas = (
        _Known(schema, message),
        *_RecentSchemas.schemas[: RECENT_SCHEMAS - 1],
    )
    return [whole]


def _written(batch: pa.RecordBatch) -> pa.Buffer:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return sink.getvalue()


def wrap(*bundles: Mapping[str, pa.RecordBatch]) -> pa.RecordBatch:
    """Bundles for one message of a put, by slot names."""
    names = tuple([name for slots in bundles for name in slots])
    streams = [ipc_stream(batch) for slots in bundles for batch in slots.values()]
    return wrap_streams(_slot_names(names), [None] * len(names), streams, BY_NAME)


@functools.lru_cache(maxsize=1024)
def _slot_names(names: tuple[str, ...]) -> pa.Array:
    """Bundles mostly have the same few sets of slots."""
    for name in names:
        check_name("slot", name)
    return pa.array(names, pa.utf8())


def wrap_streams(
    slots: pa.Array,
    fingerprints: Sequence[bytes | None],
    streams: Sequence[Sequence[bytes | pa.Buffer]],
    schema: pa.Schema,
) -> pa.RecordBatch:
    """A wrapped bundle, or some in a row, from streams in pieces.

    They are copied together, once; a lone stream in one piece stays where it is.
    """
    offsets = [0]
    pieces: list[bytes | pa.Buffer] = []
    for parts in streams:
        pieces += parts
        offsets.append(offsets[-1] + sum(map(len, parts)))
    ends = pa.py_buffer(struct.pack(f"<{len(offsets)}q", *offsets))
    data = pa.py_buffer(pieces[0] if len(pieces) == 1 else b"".join(pieces))
    ipc = pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(streams), [None, ends, data])
    prints = _prints(tuple(fingerprints))
    return pa.RecordBatch.from_arrays([slots, prints, ipc], schema=schema)


@functools.lru_cache(maxsize=1024)
def _prints(fingerprints: tuple[bytes | None, ...]) -> pa.Array:
    """Bundles of one stream mostly have the same few fingerprints."""
    return pa.array(fingerprints, pa.binary())


@functools.lru_cache(maxsize=1024)
def slot_numbers(numbers: tuple[int, ...]) -> pa.Array:
    """And the same few sets of slots."""
    return pa.array(numbers, pa.uint16())


class _Read:
    """Schemas that were read lately, by their messages: replaced as a whole, without a lock.

    ``None`` for one whose batches can't be read without what stands before them: it has
    dictionaries.
    """

    schemas: Mapping[bytes, pa.Schema | None] = MappingProxyType({})


def unwrap_batch(stream: SlotStream) -> pa.RecordBatch:
    """The record batch in a row: what a reader does with an answer.

    A stream reader made for every batch takes longer than the batch does.  So schemas are
    remembered, and the first batch shows whether its message can be read by itself.
    """
    ipc = stream.ipc
    try:
        end = _schema_end(ipc)
        message = ipc.slice(0, end).to_pybytes()
        schema = _Read.schemas.get(message)
        if schema is not None:
            return pa.ipc.read_record_batch(ipc.slice(end), schema)
        with pa.ipc.open_stream(ipc) as reader:
            batch = reader.read_next_batch()
        if end and message not in _Read.schemas:
            _remember(message, batch, ipc.slice(end))
        return batch
    except (pa.ArrowException, OSError, StopIteration, struct.error) as error:
        raise _bad(f"slot {stream.slot} is not an Arrow IPC stream: {error}") from None


def _schema_end(ipc: pa.Buffer) -> int:
    """Where the first message of a stream ends, which has no body; 0 if it isn't there."""
    marker, length = _PREFIX.unpack_from(ipc)
    whole = marker == 0xFFFFFFFF and 0 < length <= ipc.size - _PREFIX.size
    return _PREFIX.size + int(length) if whole else 0


def _remember(message: bytes, batch: pa.RecordBatch, rest: pa.Buffer) -> None:
    schema: pa.Schema | None = batch.schema
    try:
        if not pa.ipc.read_record_batch(rest, schema).equals(batch, check_metadata=True):
            schema = None
    except (pa.ArrowException, OSError, KeyError):
        schema = None
    kept = list(_Read.schemas.items())[1 - RECENT_SCHEMAS :]
    _Read.schemas = MappingProxyType(dict([*kept, (message, schema)]))
