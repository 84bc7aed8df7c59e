"""Record batches of every kind that Arrow has, hand-made and generated."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
from hypothesis import strategies as st

ROWS: Final = 5


class Celsius(pa.ExtensionType):  # type: ignore[misc]  # pyarrow has no types
    """An extension type of our own, with a parameter; registered only where a test says so."""

    def __init__(self, scale: int = 1) -> None:
        self.scale = scale
        super().__init__(pa.int32(), "quiver.test.celsius")

    def __arrow_ext_serialize__(self) -> bytes:
        return str(self.scale).encode()

    @classmethod
    def __arrow_ext_deserialize__(cls, storage_type: pa.DataType, serialized: bytes) -> Celsius:
        return cls(int(serialized))


def same(found: pa.RecordBatch, wanted: pa.RecordBatch) -> None:
    """Equal in types, key widths, values, nulls, order and all metadata."""
    assert found.schema.equals(wanted.schema, check_metadata=True), (found.schema, wanted.schema)
    assert found.num_rows == wanted.num_rows
    assert found.equals(wanted, check_metadata=True)
    found.validate(full=True)


def dictionary(
    indices: list[int | None], values: pa.Array, width: pa.DataType, *, ordered: bool = False
) -> pa.DictionaryArray:
    """A dictionary array with just these keys and values, used or not."""
    return pa.DictionaryArray.from_arrays(pa.array(indices, width), values, ordered=ordered)


def _scalars() -> dict[str, pa.Array]:
    day = dt.date(2024, 2, 29)
    moment = dt.datetime(2024, 2, 29, 12, 30, 15, 123456)  # noqa: DTZ001 - zone is in the type
    numbers = [0, 1, None, 100, 127]
    columns = {
        str(kind): pa.array(numbers, kind)
        for kind in (
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
            *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
            *(pa.float16(), pa.float32(), pa.float64()),
        )
    }
    texts = ["", "a", None, "a text that is longer than twelve bytes", "ü🏹"]
    blobs = [b"", b"\0", None, b"more than twelve bytes for sure", b"\xff\xfe"]
    return columns | {
        "bool": pa.array([True, False, None, True, False]),
        "null": pa.nulls(ROWS),
        "decimal32": pa.array([Decimal("1.20"), None] + [Decimal("-3.40")] * 3, pa.decimal32(7, 2)),
        "decimal64": pa.array([Decimal("1.2"), None] + [Decimal("-3.4")] * 3, pa.decimal64(15, 1)),
        "decimal128": pa.array([Decimal("1"), None] + [Decimal("-9")] * 3, pa.decimal128(30, 0)),
        "decimal256": pa.array([Decimal("1"), None] + [Decimal("-9")] * 3, pa.decimal256(70, 0)),
        "date32": pa.array([day, None, day, day, day], pa.date32()),
        "date64": pa.array([day, None, day, day, day], pa.date64()),
        "time32": pa.array([1, None, 3, 4, 5], pa.time32("ms")),
        "time64": pa.array([1, None, 3, 4, 5], pa.time64("ns")),
        "timestamp": pa.array([moment, None, moment, moment, moment], pa.timestamp("us")),
        "timestamp_tz": pa.array([moment, None] + [moment] * 3, pa.timestamp("ns", "Asia/Kabul")),
        "duration": pa.array([1, None, 3, 4, 5], pa.duration("s")),
        "interval": pa.array([(1, 2, 3), None, (4, 5, 6), (0, 0, 0), (1, 1, 1)],
                             pa.month_day_nano_interval()),
        "utf8": pa.array(texts, pa.utf8()),
        "large_utf8": pa.array(texts, pa.large_utf8()),
        "utf8_view": pa.array(texts, pa.string_view()),
        "binary": pa.array(blobs, pa.binary()),
        "large_binary": pa.array(blobs, pa.large_binary()),
        "binary_view": pa.array(blobs, pa.binary_view()),
        "fixed": pa.array([b"abc", None, b"def", b"ghi", b"jkl"], pa.binary(3)),
    }  # fmt: skip


def _nested() -> dict[str, pa.Array]:
    lists = [[1, None], [], None, [3], [4, 5, 6]]
    item = pa.field("element", pa.int32(), nullable=True, metadata={"k": "v"})
    records = [{"x": 1, "y": "a"}, None, {"x": None, "y": "b"}, {"x": 4, "y": None}, {}]
    kinds = pa.array([0, 1, 0, 1, 1], pa.int8())
    numbers, texts = pa.array([1, 2, 3, 4, 5]), pa.array(["a", "b", "c", "d", "e"])
    places = pa.array([0, 0, 1, 1, 2], pa.int32())
    return {
        "list": pa.array(lists, pa.list_(item)),
        "large_list": pa.array(lists, pa.large_list(pa.int32())),
        "list_view": pa.array(lists, pa.list_view(pa.int32())),
        "large_list_view": pa.array(lists, pa.large_list_view(pa.int32())),
        "fixed_list": pa.array([[1, 2], None, [3, 4], [5, None], [7, 8]], pa.list_(pa.int16(), 2)),
        "struct": pa.array(records, pa.struct([("x", pa.int8()), ("y", pa.utf8())])),
        "map": pa.array([[("a", 1)], None, [], [("b", None)], [("c", 3), ("d", 4)]],
                        pa.map_(pa.utf8(), pa.int32(), keys_sorted=True)),
        "sparse_union": pa.UnionArray.from_sparse(kinds, [numbers, texts], ["n", "t"], [0, 1]),
        "dense_union": pa.UnionArray.from_dense(
            kinds, places, [numbers, texts], ["n", "t"], [0, 1]),
        "run_end": pa.RunEndEncodedArray.from_arrays(
            pa.array([2, 3, 5], pa.int32()), pa.array(["a", None, "b"])),
        "deep": pa.array([[[{"q": [1]}]], None, [], [[]], [[{"q": None}]]],
                         pa.list_(pa.list_(pa.struct([pa.field("q", pa.list_(pa.int8()))])))),
    }  # fmt: skip


def _dictionaries() -> dict[str, pa.Array]:
    texts = pa.array(["red", "green", None, "unused"])
    keys: list[int | None] = [0, 1, None, 1, 0]
    columns: dict[str, pa.Array] = {
        f"dictionary_{kind}": dictionary(keys, texts, kind)
        for kind in (
            *(pa.int8(), pa.int16(), pa.int32(), pa.int64()),
            *(pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        )
    }
    inner = dictionary([0, 1, None, 1, 0], texts, pa.int8())
    offsets = pa.array([0, 1, 1, 3, 4, 5], pa.int32())
    structs = pa.StructArray.from_arrays([inner, pa.array([1, 2, 3, 4, 5])], ["color", "n"])
    return columns | {
        "ordered": dictionary(keys, texts, pa.int8(), ordered=True),
        "repeated": dictionary(keys, pa.array(["same", "same", "other"]), pa.int8()),
        "of_numbers": dictionary(keys, pa.array([1.5, 2.5]), pa.uint8()),
        "of_views": dictionary(keys, pa.array(["x" * 20, "y"], pa.string_view()), pa.int32()),
        "empty": dictionary([None] * ROWS, pa.array([], pa.utf8()), pa.int32()),
        "list_of": pa.ListArray.from_arrays(offsets, inner),
        "struct_of": structs,
        "list_of_struct_of": pa.ListArray.from_arrays(offsets, structs),
        "of_lists": dictionary(keys, pa.array([["a"], ["b", None]]), pa.int8()),
        "of_struct_of": dictionary(keys, structs, pa.int16()),
        "map_to": pa.MapArray.from_arrays(offsets, pa.array(list("abcde")), inner),
        "run_end_of": pa.RunEndEncodedArray.from_arrays(
            pa.array([1, 2, 3, 4, 5], pa.int16()), inner),
    }  # fmt: skip


def _extensions() -> dict[str, pa.Array]:
    uuid = pa.array([b"0123456789abcdef", None] + [b"f" * 16] * 3, pa.binary(16))
    return {
        "uuid": pa.ExtensionArray.from_storage(pa.uuid(), uuid),
        "json": pa.ExtensionArray.from_storage(
            pa.json_(pa.utf8()), pa.array(["{}", None, "1", "[]", "null"])),
        "bool8": pa.ExtensionArray.from_storage(
            pa.bool8(), pa.array([1, None, 0, 0, 1], pa.int8())),
        "opaque": pa.ExtensionArray.from_storage(
            pa.opaque(pa.int8(), "kind", "vendor"), pa.array([1, None, 0, 0, 1], pa.int8())),
        "tensor": pa.ExtensionArray.from_storage(
            pa.fixed_shape_tensor(pa.int8(), [2]),
            pa.array([[1, 2], None, [3, 4], [5, 6], [7, 8]], pa.list_(pa.int8(), 2))),
    }  # fmt: skip


def _unregistered() -> pa.RecordBatch:
    """What an extension type looks like where nobody has registered it."""
    metadata = {"ARROW:extension:name": "nobody.knows", "ARROW:extension:metadata": "a=1"}
    schema = pa.schema(
        [
            pa.field("plain", pa.int32(), metadata=metadata),
            pa.field("keys", pa.dictionary(pa.int8(), pa.utf8()), metadata=metadata),
        ]
    )
    keys = dictionary([0, 0, None, 0, 0], pa.array(["a"]), pa.int8())
    return pa.record_batch([pa.array([1, 2, None, 4, 5], pa.int32()), keys], schema=schema)


def _odd_schemas() -> dict[str, pa.RecordBatch]:
    numbers = pa.array([1, 2, 3, 4, 5])
    described = pa.schema(
        [
            pa.field("a", pa.int64(), nullable=False, metadata={"z": "1", "a": "2", "": ""}),
            pa.field("b", pa.struct([pa.field("c", pa.int64(), metadata={"in": "side"})])),
        ],
        metadata={"schema": "metadata", b"\xff": b"\x00\xfe"},
    )
    return {
        "described": pa.record_batch(
            [numbers, pa.StructArray.from_arrays([numbers], fields=list(described[1].type))],
            schema=described,
        ),
        "same_names": pa.RecordBatch.from_arrays([numbers, numbers.cast(pa.int8())], ["x", "x"]),
        "no_name": pa.RecordBatch.from_arrays([numbers], [""]),
        "no_columns": pa.record_batch({"a": numbers}).select([]),
        "no_rows_no_columns": pa.RecordBatch.from_arrays([], []),
        "unregistered": _unregistered(),
        "wide": pa.RecordBatch.from_arrays([numbers] * 300, [f"c{i}" for i in range(300)]),
    }


def zoo() -> dict[str, pa.RecordBatch]:
    """One batch per kind: whole, a slice out of its middle, and without rows."""
    columns = _scalars() | _nested() | _dictionaries() | _extensions()
    whole = {name: pa.RecordBatch.from_arrays([array], [name]) for name, array in columns.items()}
    whole |= {"everything": pa.RecordBatch.from_arrays(list(columns.values()), list(columns))}
    whole |= _odd_schemas()
    sliced = {f"{name}[1:4]": batch.slice(1, 3) for name, batch in whole.items()}
    empty = {f"{name}[:0]": batch.slice(0, 0) for name, batch in whole.items()}
    return whole | sliced | empty


_LEAVES: Final[list[tuple[pa.DataType, st.SearchStrategy[Any]]]] = [
    (pa.int8(), st.integers(-128, 127)),
    (pa.uint64(), st.integers(0, 2**64 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.bool_(), st.booleans()),
    (pa.utf8(), st.text(max_size=20)),
    (pa.string_view(), st.text(max_size=20)),
    (pa.large_binary(), st.binary(max_size=20)),
    (pa.binary(4), st.binary(min_size=4, max_size=4)),
    (pa.timestamp("us", "UTC"), st.integers(-(2**40), 2**40)),
    (pa.decimal128(20, 3), st.decimals(-1000, 1000, places=3)),
]
_WIDTHS: Final = [pa.int8(), pa.uint8(), pa.int16(), pa.uint32(), pa.int64()]


@st.composite
def _leaf(draw: st.DrawFn, rows: int) -> pa.Array:
    kind, values = draw(st.sampled_from(_LEAVES))
    return pa.array(draw(st.lists(st.none() | values, min_size=rows, max_size=rows)), kind)


@st.composite
def _dictionary_of(draw: st.DrawFn, rows: int, depth: int) -> pa.Array:
    size = draw(st.integers(1, 4))
    # No dictionary of dictionaries: Arrow's messages can't say that.
    values = draw(arrays(size, depth - 1).filter(lambda a: not pa.types.is_dictionary(a.type)))
    keys = st.none() | st.integers(0, size - 1)
    indices = draw(st.lists(keys, min_size=rows, max_size=rows))
    return dictionary(indices, values, draw(st.sampled_from(_WIDTHS)), ordered=draw(st.booleans()))


@st.composite
def _list_of(draw: st.DrawFn, rows: int, depth: int) -> pa.Array:
    lengths = draw(st.lists(st.integers(0, 3), min_size=rows, max_size=rows))
    offsets = [0]
    for length in lengths:
        offsets.append(offsets[-1] + length)
    mask = pa.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), pa.bool_())
    made, offset_type = draw(
        st.sampled_from([(pa.ListArray, pa.int32()), (pa.LargeListArray, pa.int64())])
    )
    return made.from_arrays(
        pa.array(offsets, offset_type), draw(arrays(offsets[-1], depth - 1)), mask=mask
    )


@st.composite
def _struct_of(draw: st.DrawFn, rows: int, depth: int) -> pa.Array:
    parts = [draw(arrays(rows, depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    mask = pa.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), pa.bool_())
    return pa.StructArray.from_arrays(parts, [f"f{i}" for i in range(len(parts))], mask=mask)


def arrays(rows: int, depth: int) -> st.SearchStrategy[pa.Array]:
    """Arrays of any shape, at most ``depth`` levels deep."""
    if depth <= 0:
        return _leaf(rows)
    return st.one_of(
        _leaf(rows), _dictionary_of(rows, depth), _list_of(rows, depth), _struct_of(rows, depth)
    )


@st.composite
def batches(draw: st.DrawFn) -> pa.RecordBatch:
    """Batches of any shape, some of them slices, with metadata."""
    rows = draw(st.integers(0, 6))
    columns = [draw(arrays(rows, 2)) for _ in range(draw(st.integers(1, 3)))]
    pairs = st.dictionaries(st.text(max_size=4), st.text(max_size=4), max_size=2)
    fields = [
        pa.field(f"c{i}", column.type, metadata=draw(pairs)) for i, column in enumerate(columns)
    ]
    batch = pa.record_batch(columns, schema=pa.schema(fields, metadata=draw(pairs)))
    start = draw(st.integers(0, rows))
    return batch.slice(start, draw(st.integers(0, rows - start)))
