"""A segment's manifest: one row per bundle, with where its batches are and its metadata.

Written once as a batch; read in place, a value at a time, because a segment may hold
65,536 bundles and most readers want them one by one.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from quiver.errors import SegmentInvalidIpc, UnknownBundle
from quiver.format.arrow.ipc_file import IpcFile
from quiver.format.arrow.schema import SchemaMessage
from quiver.format.record import NO_ATTRIBUTES, BundleMeta, ProducerStamp
from quiver.format.segment.blocks import BLOCK_SIZE, Chunk, block_count
from quiver.format.segment.file import HASH, column, decode_table, encode_table

_REF: Final = pa.struct(
    [
        pa.field("slot_id", pa.uint16(), nullable=False),
        pa.field("stream_id", pa.uint32(), nullable=False),
        pa.field("chunk_index", pa.uint32(), nullable=False),
    ]
)
_CHUNK: Final = pa.struct(
    [
        pa.field("offset", pa.uint64(), nullable=False),
        pa.field("length", pa.uint32(), nullable=False),
        pa.field("crc", pa.uint32(), nullable=False),
    ]
)
MANIFEST: Final = pa.schema(
    [
        pa.field("bundle_index", pa.uint32(), nullable=False),
        # Rows, as we write it; what its embedder counts, in the Rust crate's files, which
        # leave it out where it isn't known.
        pa.field("item_count", pa.uint64()),
        pa.field("slot_refs", pa.list_(pa.field("item", _REF)), nullable=False),
        # Ours:
        pa.field("sequence", pa.uint64()),
        pa.field("ingestion_ts", pa.int64()),
        pa.field("key", pa.utf8()),
        pa.field("content_hash", HASH),
        pa.field("attributes", pa.utf8()),
        pa.field("event_min", pa.int64()),
        pa.field("event_max", pa.int64()),
        pa.field("nbytes", pa.uint64()),
        # Where the message of each slot reference is in the file, with its checksum, and the sums
        # of the blocks of those that have more than one, one message's behind the other's.
        # Null in a file of before there were any.
        pa.field("chunks", pa.list_(pa.field("item", _CHUNK))),
        pa.field("block_sums", pa.list_(pa.uint32())),
        pa.field("store_ts", pa.int64()),
        pa.field("producer", pa.utf8()),
        pa.field("producer_seq", pa.uint64()),
        pa.field("producer_epoch", pa.uint64()),
    ]
)
_OMITTED: Final = frozenset({"store_ts", "producer", "producer_seq", "producer_epoch"})
"""Columns that are left out where no bundle has a value: most segments have none."""
_Code: TypeAlias = Literal["H", "I", "Q", "q", "i"]
_CODES: Final[dict[pa.DataType, _Code]] = {
    pa.uint16(): "H",
    pa.int32(): "i",
    pa.uint32(): "I",
    pa.uint64(): "Q",
    pa.int64(): "q",
}
_WHAT: Final = "manifest"


class SlotRef(NamedTuple):
    """Where one slot of a bundle is: the batch ``chunk_index`` of a stream."""

    slot_id: int
    stream_id: int
    chunk_index: int


def encode_manifest(
    bundles: Sequence[tuple[Sequence[SlotRef], BundleMeta]],
    chunks: Sequence[Sequence[Chunk]] | None = None,
) -> IpcFile:
    """The manifest of bundles in their order; ``chunks`` are those of each slot reference."""
    metas = [meta for _, meta in bundles]
    columns: dict[str, Sequence[Any]] = {
        "bundle_index": range(len(metas)),
        "item_count": [meta.rows for meta in metas],
        "sequence": [meta.sequence for meta in metas],
        "ingestion_ts": [meta.ingestion_ts_ns for meta in metas],
        "key": [meta.key for meta in metas],
        "content_hash": [meta.content_hash for meta in metas],
        "attributes": [(meta.attributes and _json(meta.attributes)) or None for meta in metas],
        "event_min": [meta.event_time and meta.event_time[0] for meta in metas],
        "event_max": [meta.event_time and meta.event_time[1] for meta in metas],
        "nbytes": [meta.nbytes for meta in metas],
        "store_ts": [meta.store_ts_ns for meta in metas],
        "producer": [meta.producer and meta.producer.name for meta in metas],
        "producer_seq": [meta.producer and meta.producer.seq for meta in metas],
        "producer_epoch": [meta.producer and meta.producer.epoch for meta in metas],
    }
    lists = {
        "slot_refs": _structs([refs for refs, _ in bundles], MANIFEST.field("slot_refs").type),
        "chunks": pa.nulls(len(metas), MANIFEST.field("chunks").type),
        "block_sums": pa.nulls(len(metas), MANIFEST.field("block_sums").type),
    }
    if chunks is not None:
        places = [[chunk[:3] for chunk in found] for found in chunks]
        lists["chunks"] = _structs(places, MANIFEST.field("chunks").type)
        sums = [
            [crc for chunk in found if chunk.length > BLOCK_SIZE for crc in chunk.sums]
            for found in chunks
        ]
        lists["block_sums"] = pa.ListArray.from_arrays(
            _offsets(sums), _column([crc for found in sums for crc in found], pa.uint32())
        )
    return _encode(
        [
            lists[field.name] if field.name in lists else _column(columns[field.name], field.type)
            for field in MANIFEST
        ]
    )


def _encode(columns: Sequence[pa.Array]) -> IpcFile:
    """The table of these columns, which are those of ``MANIFEST``."""
    kept = [
        (found, field)
        for found, field in zip(columns, MANIFEST, strict=True)
        if field.name not in _OMITTED or found.null_count < len(found)
    ]
    schema = pa.schema([field for _, field in kept])
    table = pa.record_batch([found for found, _ in kept], schema=schema)
    return encode_table(table, SchemaMessage.of(schema))


def _column(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """A column of the manifest: numbers that are all there are packed, not looked at singly."""
    code = _CODES.get(kind)
    if not len(values) or code is None:
        return pa.array(values, kind)
    try:
        packed = array(code, values)
    except TypeError:  # some are missing
        return pa.array(values, kind)
    return pa.Array.from_buffers(kind, len(packed), [None, pa.py_buffer(packed)])


def stamp_manifest(data: pa.Buffer, bundle_count: int, sequence: int, ts: int) -> IpcFile:
    """A staged file's manifest, with the sequence and the time that its bundles got."""
    batch = decode_table(data, _WHAT)
    if batch.num_rows != bundle_count or not set(batch.schema.names) <= set(MANIFEST.names):
        raise SegmentInvalidIpc("the manifest is not that of a staged file.")
    constants = {"sequence": sequence, "ingestion_ts": ts}
    arrays = []
    for field in MANIFEST:
        if field.name in constants:
            constant = pa.scalar(constants[field.name], field.type)
            arrays.append(pa.repeat(constant, bundle_count))
        else:
            found = column(batch, field, _WHAT)
            if found is None and not field.nullable:
                raise SegmentInvalidIpc("the manifest lacks a column.")
            arrays.append(pa.nulls(bundle_count, field.type) if found is None else found)
    return _encode(arrays)


def _structs(rows: Sequence[Sequence[tuple[int, ...]]], kind: pa.ListType) -> pa.ListArray:
    """Lists of structs of numbers, of which there is at least one in most rows."""
    members = list(kind.value_type)
    flat = [one for row in rows for one in row]
    values = zip(*flat, strict=True) if flat else [()] * len(members)
    parts = [_column(found, field.type) for found, field in zip(values, members, strict=True)]
    structs = pa.StructArray.from_arrays(parts, fields=members)
    return pa.ListArray.from_arrays(_offsets(rows), structs, type=kind)


def _offsets(rows: Sequence[Sequence[Any]]) -> pa.Array:
    return _column([0, *accumulate(map(len, rows))], pa.int32())


def _json(attributes: Mapping[str, str]) -> str:
    return json.dumps(dict(attributes), ensure_ascii=False, separators=(",", ":"), sort_keys=True)


class Manifest:
    """A manifest as read. Bundles are asked for by index; nothing is unpacked ahead."""

    def __init__(self, data: pa.Buffer, bundle_count: int) -> None:
        batch = decode_table(data, _WHAT)
        if batch.num_rows != bundle_count:
            raise SegmentInvalidIpc(
                f"the manifest lists {batch.num_rows} bundles, the footer {bundle_count}."
            )
        self._count = bundle_count
        columns = {field.name: column(batch, field, _WHAT) for field in MANIFEST}
        if columns["bundle_index"] is None or columns["slot_refs"] is None:
            raise SegmentInvalidIpc("the manifest lacks a column.")
        self._rows = _row_order(columns["bundle_index"])
        self._offsets, parts = _open_structs(columns["slot_refs"])
        self.slots, self.streams, self.chunks = parts
        chunks, sums = columns["chunks"], columns["block_sums"]
        # Whether it says where messages are and what they sum to; then ``extents`` are offsets,
        # lengths and checksums by slot reference, and :meth:`chunk` has the sums of blocks.
        self.has_sums = False
        if not (chunks is None or sums is None or chunks.null_count or sums.null_count):
            self.has_sums = True
            self.extents = _open_chunks(chunks, self._offsets)
            self._sum_offsets, self._sums = _list_offsets(sums), _view(sums.values, "I")
        self._get = {
            name: _getter(found)
            for name, found in columns.items()
            if name not in ("slot_refs", "chunks", "block_sums")
        }
        # Without it the sizes of bundles aren't recorded, and ``meta`` gives them as 0.
        self.has_sizes: Final = columns["nbytes"] is not None

    def __len__(self) -> int:
        return self._count

    def refs(self, index: int) -> list[SlotRef]:
        """Where the slots of a bundle are, in the order written."""
        slots, streams, chunks = self.slots, self.streams, self.chunks
        return [SlotRef(slots[at], streams[at], chunks[at]) for at in self.places(index)]

    def places(self, index: int) -> range:
        """Where in ``slots``, ``streams`` and ``chunks`` a bundle's references are.

        Every read comes through here, and making objects would cost as much as the read.
        """
        row = self._row(index)
        return range(self._offsets[row], self._offsets[row + 1])

    def chunk(self, index: int, at: int) -> Chunk:
        """Where the message of a slot reference is, which is one of :meth:`places`."""
        offsets, lengths, crcs = self.extents
        offset, length, crc = offsets[at], lengths[at], crcs[at]
        if length <= BLOCK_SIZE:
            return Chunk(offset, length, crc, [crc])
        row = self._row(index)
        start = self._sum_offsets[row]
        for before in range(self._offsets[row], at):
            if lengths[before] > BLOCK_SIZE:
                start += block_count(lengths[before])
        end = start + block_count(length)
        if end > self._sum_offsets[row + 1]:
            raise SegmentInvalidIpc(f"bundle {index} has more blocks than checksums.")
        return Chunk(offset, length, crc, self._sums[start:end])

    def meta(self, index: int) -> BundleMeta:
        """What is recorded about a bundle."""
        row, get = self._row(index), self._get
        event_min, event_max = get["event_min"](row), get["event_max"](row)
        producer = get["producer"](row)
        # By position, as every read of a bundle comes here and names take longer.
        return BundleMeta(
            get["sequence"](row),
            get["ingestion_ts"](row),
            get["key"](row),
            get["content_hash"](row),
            _attributes(get["attributes"](row)),
            None if event_min is None or event_max is None else (event_min, event_max),
            (get["item_count"](row) or 0) if self.has_sizes else 0,
            get["nbytes"](row) or 0,
            get["store_ts"](row),
            None if producer is None else _producer(producer, row, get),
        )

    def _row(self, index: int) -> int:
        if not 0 <= index < self._count:
            raise UnknownBundle(f"the segment has {self._count} bundles, none is {index}.")
        return index if self._rows is None else self._rows[index]


def _row_order(indices: pa.Array) -> dict[int, int] | None:
    """Which row holds which bundle; ``None`` where that's the same, as it should be."""
    found = indices.to_pylist()
    if found == list(range(len(found))):
        return None
    if sorted(found) != list(range(len(found))):
        raise SegmentInvalidIpc("the manifest doesn't list each bundle once.")
    return {bundle: row for row, bundle in enumerate(found)}


def _producer(name: str, row: int, get: Mapping[str, Callable[[int], Any]]) -> ProducerStamp:
    seq, epoch = get["producer_seq"](row), get["producer_epoch"](row)
    if seq is None or epoch is None:
        raise SegmentInvalidIpc("a bundle's producer has no number.")
    return ProducerStamp(name, seq, epoch)


def _open_structs(found: pa.ListArray) -> tuple[memoryview, list[memoryview]]:
    items = found.values
    parts = [items.field(number) for number in range(items.type.num_fields)]
    if items.null_count or any(part.null_count for part in parts):
        raise SegmentInvalidIpc("the manifest has null slot references.")
    return _list_offsets(found), [_view(part, _CODES[part.type]) for part in parts]


def _list_offsets(found: pa.ListArray) -> memoryview:
    return _view(found.offsets, "i") if len(found) else memoryview(b"")


def _open_chunks(
    chunks: pa.ListArray, refs: memoryview
) -> tuple[memoryview, memoryview, memoryview]:
    """Offsets, lengths and checksums by slot reference."""
    offsets, (starts, lengths, crcs) = _open_structs(chunks)
    if offsets != refs:
        raise SegmentInvalidIpc("the manifest doesn't place each slot reference once.")
    return starts, lengths, crcs


def _view(numbers: pa.Array, code: _Code) -> memoryview:
    """Arrow numbers as something to index: a tenth of the cost of asking Arrow."""
    if not len(numbers):
        return memoryview(b"")
    data: memoryview = memoryview(numbers.buffers()[1]).cast("B")
    width = numbers.type.byte_width
    start = numbers.offset * width
    return data[start : start + len(numbers) * width].cast(code)


def _getter(values: pa.Array | None) -> Callable[[int], Any]:
    if values is None or values.null_count == len(values):
        return lambda row: None
    code = _CODES.get(values.type)
    if code is not None and not values.null_count:
        return _view(values, code).__getitem__
    return lambda row: values[row].as_py()


def _attributes(text: str | None) -> Mapping[str, str]:
    if text is None:
        return NO_ATTRIBUTES
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise SegmentInvalidIpc("a bundle's attributes can't be read.") from None
    if not isinstance(found, dict) or not all(isinstance(value, str) for value in found.values()):
        raise SegmentInvalidIpc("a bundle's attributes are not strings by name.")
    return found
