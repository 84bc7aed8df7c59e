"""A segment's manifest: one row per bundle, with where its batches are and its metadata.

Written once as a batch; read in place, a value at a time, because a segment may hold
65,536 bundles and most readers want them one by one.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import pyarrow as pa

from quiver.errors import SegmentInvalidIpc, UnknownBundle
from quiver.format.ipc_file import IpcFile
from quiver.format.record import NO_ATTRIBUTES, BundleMeta
from quiver.format.schema import SchemaMessage
from quiver.format.segment import HASH, column, decode_table, encode_table

_REF: Final = pa.struct(
    [
        pa.field("slot_id", pa.uint16(), nullable=False),
        pa.field("stream_id", pa.uint32(), nullable=False),
        pa.field("chunk_index", pa.uint32(), nullable=False),
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
    ]
)
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


def encode_manifest(bundles: Sequence[tuple[Sequence[SlotRef], BundleMeta]]) -> IpcFile:
    """The manifest of bundles in their order."""
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
    }
    refs = _encode_refs([refs for refs, _ in bundles])
    arrays = [
        refs if field.name == "slot_refs" else _column(columns[field.name], field.type)
        for field in MANIFEST
    ]
    return encode_table(pa.record_batch(arrays, schema=MANIFEST), SchemaMessage.of(MANIFEST))


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
    shape = (batch.num_rows, batch.schema.names, batch.schema.types)
    if shape != (bundle_count, MANIFEST.names, MANIFEST.types):
        raise SegmentInvalidIpc("the manifest is not that of a staged file.")
    constants = {"sequence": sequence, "ingestion_ts": ts}
    arrays = [
        pa.repeat(pa.scalar(constants[field.name], field.type), bundle_count)
        if field.name in constants
        else batch.column(field.name)
        for field in MANIFEST
    ]
    return encode_table(pa.record_batch(arrays, schema=MANIFEST), SchemaMessage.of(MANIFEST))


def _encode_refs(bundles: Sequence[Sequence[SlotRef]]) -> pa.ListArray:
    offsets = [0]
    for refs in bundles:
        offsets.append(offsets[-1] + len(refs))
    flat = [ref for refs in bundles for ref in refs]
    fields = zip(*flat, strict=True) if flat else ((), (), ())
    parts = [_column(values, field.type) for values, field in zip(fields, _REF, strict=True)]
    return pa.ListArray.from_arrays(
        _column(offsets, pa.int32()),
        pa.StructArray.from_arrays(parts, fields=list(_REF)),
        type=MANIFEST.field("slot_refs").type,
    )


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
        self._offsets, (self.slots, self.streams, self.chunks) = _open_refs(columns["slot_refs"])
        self._get = {name: _getter(found) for name, found in columns.items() if name != "slot_refs"}
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

    def meta(self, index: int) -> BundleMeta:
        """What is recorded about a bundle."""
        row, get = self._row(index), self._get
        event_min, event_max = get["event_min"](row), get["event_max"](row)
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


def _open_refs(refs: pa.ListArray) -> tuple[memoryview, list[memoryview]]:
    items = refs.values
    parts = [items.field(field.name) for field in _REF]
    if items.null_count or any(part.null_count for part in parts):
        raise SegmentInvalidIpc("the manifest has null slot references.")
    offsets = _view(refs.offsets, "i") if len(refs) else memoryview(b"")
    return offsets, [_view(part, _CODES[part.type]) for part in parts]


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
