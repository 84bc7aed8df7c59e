"""Types both ways, value by value: first the rules by themselves, then through real Spark."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from flight_service.client import BadRequest
from spark_client.casting import cast_from_spark, cast_to_spark, convert
from spark_client.shipping import ship
from spark_client.types import INTERVAL, LONG_NS, RULES, US, from_spark, struct_type, to_spark

BIG = 2**63 - 1
UTC = dt.UTC
WHEN = dt.datetime(2026, 2, 3, 4, 5, 6, 789012)  # noqa: DTZ001 - the zone is the case's
OLD = dt.datetime(1901, 1, 1)  # noqa: DTZ001

# Arrow type, values, the type in Spark, and the values there if they look different
CASES: dict[str, tuple[pa.DataType, list[Any], str, list[Any] | None]] = {
    "null": (pa.null(), [None], "void", None),
    "bool": (pa.bool_(), [True, False], "boolean", None),
    "int8": (pa.int8(), [-128, 127], "tinyint", None),
    "int16": (pa.int16(), [-(2**15), 2**15 - 1], "smallint", None),
    "int32": (pa.int32(), [-(2**31), 2**31 - 1], "int", None),
    "int64": (pa.int64(), [-(2**63), BIG], "bigint", None),
    "uint8": (pa.uint8(), [0, 255], "smallint", None),
    "uint16": (pa.uint16(), [0, 65_535], "int", None),
    "uint32": (pa.uint32(), [0, 2**32 - 1], "bigint", None),
    "uint64": (pa.uint64(), [0, 2**64 - 1], "decimal(20,0)", [Decimal(0), Decimal(2**64 - 1)]),
    "float16": (pa.float16(), [1.5, -65_504.0], "float", None),
    "float32": (pa.float32(), [1.5, float("inf")], "float", None),
    "float64": (pa.float64(), [0.1, -1e308], "double", None),
    "decimal32": (pa.decimal32(5, 2), [Decimal("-999.99")], "decimal(5,2)", None),
    "decimal64": (pa.decimal64(18, 0), [Decimal(10**17)], "decimal(18,0)", None),
    "decimal128": (pa.decimal128(38, 10), [Decimal("1.0000000001")], "decimal(38,10)", None),
    "decimal256": (pa.decimal256(38, 2), [Decimal("-7.25")], "decimal(38,2)", None),
    "decimal_zeros": (pa.decimal128(3, -2), [Decimal(12300)], "decimal(5,0)", None),
    "string": (pa.string(), ["", "säule", "🏹"], "string", None),
    "large_string": (pa.large_string(), ["", "x"], "string", None),
    "string_view": (pa.string_view(), ["short", "rather longer than twelve"], "string", None),
    "binary": (pa.binary(), [b"", b"\0\xff"], "binary", None),
    "large_binary": (pa.large_binary(), [b"x"], "binary", None),
    "binary_view": (pa.binary_view(), [b"rather longer than twelve"], "binary", None),
    "fixed": (pa.binary(4), [b"abcd", b"\0\0\0\0"], "binary", None),
    "date32": (pa.date32(), [dt.date(1, 1, 1), dt.date(9999, 12, 31)], "date", None),
    "date64": (pa.date64(), [dt.date(1969, 12, 31)], "date", None),
    "ts_s": (pa.timestamp("s", "UTC"), [OLD.replace(tzinfo=UTC)], "timestamp", None),
    "ts_ms": (pa.timestamp("ms", "Europe/Vienna"), [OLD.replace(tzinfo=UTC)], "timestamp", None),
    "ts_us": (pa.timestamp("us", "UTC"), [WHEN.replace(tzinfo=UTC)], "timestamp", None),
    "ts_ns": (pa.timestamp("ns", "UTC"), [WHEN.replace(tzinfo=UTC)], "timestamp", None),
    "ntz_ms": (pa.timestamp("ms"), [OLD], "timestamp_ntz", None),
    "ntz_ns": (pa.timestamp("ns"), [WHEN, OLD], "timestamp_ntz", None),
    "time_s": (pa.time32("s"), [dt.time(23, 59, 59)], "time(6)", None),
    "time_ms": (pa.time32("ms"), [dt.time(0, 0, 0, 1000)], "time(6)", None),
    "time_us": (pa.time64("us"), [dt.time(23, 59, 59, 999999)], "time(6)", None),
    "time_ns": (pa.time64("ns"), [dt.time(1, 2, 3, 4)], "time(6)", None),
    "dur_s": (pa.duration("s"), [dt.timedelta(days=-1)], "interval day to second", None),
    "dur_us": (pa.duration("us"), [dt.timedelta(microseconds=1)], "interval day to second", None),
    "dur_ns": (pa.duration("ns"), [dt.timedelta(seconds=1)], "interval day to second", None),
    "interval": (
        pa.month_day_nano_interval(),
        [pa.MonthDayNano([1, -2, BIG]), pa.MonthDayNano([0, 0, 0])],
        "struct<months:int,days:int,nanoseconds:bigint>",
        [(1, -2, BIG), (0, 0, 0)],
    ),
    "dict_string": (pa.dictionary(pa.uint8(), pa.string()), ["a", "b", "a"], "string", None),
    "dict_int": (pa.dictionary(pa.int16(), pa.uint32()), [1, 2**32 - 1, 1], "bigint", None),
    "dict_large": (pa.dictionary(pa.int8(), pa.large_string()), ["a"], "string", None),
    "ree": (pa.run_end_encoded(pa.int32(), pa.uint16()), [7, 7, 8], "int", None),
    "large_list": (pa.large_list(pa.uint8()), [[1, None], []], "array<smallint>", None),
    "list_view": (pa.list_view(pa.uint8()), [[1, 2], [], [3]], "array<smallint>", None),
    "fixed_list": (pa.list_(pa.float16(), 2), [[1.0, 2.5]], "array<float>", None),
    "map": (
        pa.map_(pa.dictionary(pa.uint8(), pa.string()), pa.uint16()),
        [[("k", 65_535), ("l", None)], []],
        "map<string,int>",
        [{"k": 65_535, "l": None}, {}],
    ),
    "struct": (
        pa.struct([("u", pa.uint64()), ("f", pa.binary(2)), ("n", pa.struct([("x", pa.uint8())]))]),
        [{"u": 2**64 - 1, "f": b"ab", "n": {"x": 9}}, {"u": None, "f": None, "n": None}],
        "struct<u:decimal(20,0),f:binary,n:struct<x:smallint>>",
        [(Decimal(2**64 - 1), b"ab", (9,)), (None, None, None)],
    ),
    "uuid": (pa.uuid(), [b"0123456789abcdef"], "binary", None),
}


def make(kind: pa.DataType, values: list[Any]) -> pa.Array:
    """The values as this type; some types can't be made from Python values at once."""
    if pa.types.is_run_end_encoded(kind):
        return pc.run_end_encode(pa.array(values, kind.value_type), kind.run_end_type)
    if pa.types.is_dictionary(kind):
        return pa.array(values, kind.value_type).dictionary_encode().cast(kind)
    if isinstance(kind, pa.BaseExtensionType):
        return pa.ExtensionArray.from_storage(kind, pa.array(values, kind.storage_type))
    if pa.types.is_map(kind) and pa.types.is_dictionary(kind.key_type):
        return convert(pa.array(values, pa.map_(pa.string(), kind.item_type)), kind, "made")
    return pa.array(values, kind)


def column(name: str) -> pa.Array:
    """A case's values between nulls, sliced so that nothing begins where its memory does."""
    kind, values, _, _ = CASES[name]
    array = make(kind, [None, None, *values, None, None])
    # pyarrow 26 loses the slice of a run-end encoded child.
    return array if pa.types.is_run_end_encoded(kind) else array[1:-1]


def wrapped(array: pa.Array, how: str) -> pa.Array:
    """The same inside a list, a struct, a map, or a list of structs."""
    ends = pa.array([0, 1, len(array)], pa.int32())
    if how == "list":
        return pa.ListArray.from_arrays(ends, array)
    if how == "struct":
        return pa.StructArray.from_arrays([array], ["x"])
    if how == "map":
        keys = pa.array([str(row) for row in range(len(array))])
        return pa.MapArray.from_arrays(ends, keys, array)
    return pa.LargeListArray.from_arrays(ends.cast(pa.int64()), wrapped(array, "struct"))


@pytest.mark.parametrize("how", ["plain", "list", "struct", "map", "list of structs"])
@pytest.mark.parametrize("name", CASES)
def test_there_and_back(name: str, how: str) -> None:
    """Scenario: values of every type, plain and nested, cast for Spark and back into the
    schema they came from. Guarantee: equal, valid, and in the type that Spark asks for."""
    array = column(name) if how == "plain" else wrapped(column(name), how)
    batch = pa.RecordBatch.from_arrays([array], ["c"])
    schema = to_spark(batch.schema)
    assert schema == to_arrow_schema(from_arrow_schema(schema), timezone="UTC")

    there = cast_to_spark(batch, schema)
    there.validate(full=True)
    assert there.schema == schema

    back = cast_from_spark(there, batch.schema)
    back.validate(full=True)
    assert back.schema == batch.schema
    assert back.column(0).to_pylist() == array.to_pylist()


@pytest.mark.parametrize("name", CASES)
def test_the_type_in_spark(name: str) -> None:
    """Scenario: each type. Guarantee: its type in Spark is the documented one."""
    kind, _, spark_type, _ = CASES[name]
    (field,) = struct_type(pa.schema([("c", kind)])).fields
    assert field.dataType.simpleString() == spark_type


def test_every_value_through_spark(spark: SparkSession) -> None:
    """Scenario: a column of each type, made by a worker as a source would, collected, and
    taken back by another worker as a sink would. Guarantee: Spark shows the right values,
    and what comes back equals what was there."""
    names = [name for name in CASES if name != "null"]
    length = max(len(column(name)) for name in names)
    columns = [make(CASES[name][0], [*CASES[name][1], *[None] * length][:length]) for name in names]
    batch = pa.RecordBatch.from_arrays(columns, names)
    sent = pa.BufferOutputStream()
    with pa.ipc.new_stream(sent, batch.schema) as writer:
        writer.write_batch(batch)
    stored = sent.getvalue().to_pybytes()

    def read(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from spark_client.casting import cast_to_spark
        from spark_client.types import to_spark

        for _ in batches:
            one = pa.ipc.open_stream(stored).read_next_batch()
            yield cast_to_spark(one, to_spark(one.schema))

    def back(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from spark_client.casting import cast_from_spark

        wanted = pa.ipc.open_stream(stored).read_next_batch()
        for one in batches:
            if one.num_rows:
                same = cast_from_spark(one, wanted.schema)
                wrong = [
                    name
                    for name in wanted.schema.names
                    if same.column(name).to_pylist() != wanted.column(name).to_pylist()
                ]
                yield pa.record_batch({"wrong": pa.array(wrong, pa.string())})

    schema = struct_type(batch.schema)
    frame = spark.range(1, numPartitions=1).mapInArrow(ship(read, "read"), schema)
    rows = frame.collect()
    for name in names:
        _, values, _, shown = CASES[name]
        seen = [_plain(row[name]) for row in rows]
        assert seen[: len(values)] == [_here(value) for value in shown or values], name
        assert set(map(str, seen[len(values) :])) <= {"None"}, name
    assert frame.mapInArrow(ship(back, "back"), "wrong string").collect() == []


def _plain(value: Any) -> Any:
    """Rows as tuples, bytes as bytes."""
    if isinstance(value, bytearray):
        return bytes(value)
    if isinstance(value, tuple):
        return tuple(_plain(one) for one in value)
    return value


def _here(value: Any) -> Any:
    """Spark shows instants without a zone, in the zone of the Python process."""
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return value.astimezone().replace(tzinfo=None)
    return value


FINE = [
    ("ts", pa.timestamp("ns", "UTC"), "bigint"),
    ("ntz", pa.timestamp("ns"), "bigint"),
    ("time", pa.time64("ns"), "bigint"),
    ("dur", pa.duration("ns"), "bigint"),
    ("us", pa.timestamp("us", "UTC"), "timestamp"),
    ("nested", pa.list_(pa.struct([("t", pa.timestamp("ns"))])), "array<struct<t:bigint>>"),
]


@pytest.mark.parametrize(("name", "kind", "spark_type"), FINE)
def test_nanoseconds_as_numbers(name: str, kind: pa.DataType, spark_type: str) -> None:
    """Scenario: timestampMode=long_ns, values finer than a microsecond. Guarantee: whole
    nanoseconds, and the same values back; coarser times stay times."""
    number = 1_001_000 if name == "us" else 1_001
    values: list[Any] = [number, None]
    plain = kind.value_type.field(0).type if name == "nested" else kind
    array = pa.array(values, pa.int64()).cast(plain)
    if name == "nested":
        array = pa.ListArray.from_arrays(
            pa.array([0, 1, 2], pa.int32()), pa.StructArray.from_arrays([array], ["t"])
        )
    batch = pa.RecordBatch.from_arrays([array], ["c"])
    schema = to_spark(batch.schema, LONG_NS)
    assert from_arrow_schema(schema).fields[0].dataType.simpleString() == spark_type
    there = cast_to_spark(batch, schema)
    if spark_type == "bigint":
        assert there.column(0).to_pylist() == values
    assert cast_from_spark(there, batch.schema).equals(batch)


def test_a_coarser_time_where_numbers_are_wanted() -> None:
    """Scenario: a stream whose times were microseconds once and nanoseconds later, read with
    long_ns. Guarantee: all are nanoseconds, none is a thousand times too small."""
    array = pa.array([1, None], pa.timestamp("us", "UTC"))
    assert convert(array, pa.int64(), "c").to_pylist() == [1_000, None]
    assert convert(pa.array([2], pa.int64()), pa.timestamp("ns"), "c").cast(
        pa.int64()
    ).to_pylist() == [2]


REFUSED: list[tuple[pa.Array, pa.DataType]] = [
    (pa.array([1_001], pa.timestamp("ns")), pa.timestamp("us")),
    (pa.array([1_001], pa.time64("ns")), pa.time64("ns")),
    (pa.array([1_001], pa.duration("ns")), pa.duration("us")),
    (pa.array([2**62], pa.timestamp("us")), pa.timestamp("ns")),
    (pa.array([2**62], pa.timestamp("us")), pa.int64()),
    (pa.array([-1]), pa.uint64()),
    (pa.array([256], pa.int16()), pa.uint8()),
    (pa.array([Decimal(2**64)], pa.decimal128(21, 0)), pa.uint64()),
    (pa.array([b"abc"]), pa.binary(2)),
    (pa.array([[1, 2, 3]]), pa.list_(pa.int64(), 2)),
    (pa.array([65_520.0], pa.float32()), pa.float16()),
    (
        pa.array([{"months": 1, "days": None, "nanoseconds": 1}], INTERVAL),
        pa.month_day_nano_interval(),
    ),
    (pa.array(list(range(200))), pa.dictionary(pa.int8(), pa.int64())),
]


@pytest.mark.parametrize(
    ("array", "target"), REFUSED, ids=lambda one: str(getattr(one, "type", one))
)
def test_what_does_not_fit_is_refused(array: pa.Array, target: pa.DataType) -> None:
    """Scenario: values that the target can't hold. Guarantee: an error that names the column
    and not the value; nothing is rounded, cut or wrapped."""
    with pytest.raises(BadRequest, match="column seen") as refused:
        convert(array, target, "seen")
    assert refused.value.code == "value_refused"
    assert "65520" not in refused.value.message
    assert str(2**62) not in refused.value.message


@pytest.mark.parametrize(
    "kind",
    [
        pa.sparse_union([pa.field("a", pa.int64())]),
        pa.dense_union([pa.field("a", pa.int64())]),
        pa.decimal256(50, 2),
        pa.struct([("deep", pa.list_(pa.sparse_union([pa.field("a", pa.int64())])))]),
    ],
    ids=str,
)
def test_types_without_a_place_are_named(kind: pa.DataType) -> None:
    """Scenario: types that Spark has nothing for. Guarantee: refused with the column's name,
    how deep it may be, and a way out."""
    with pytest.raises(BadRequest, match=r"column seen.*mode=bundle") as refused:
        to_spark(pa.schema([("seen", kind)]))
    assert refused.value.code == "unsupported_type"


def test_columns_are_found_by_name() -> None:
    """Scenario: a batch with its columns in another order, one missing, one more. Guarantee:
    Spark gets the schema it was told, nulls for what is missing."""
    batch = pa.record_batch({"more": [1], "b": pa.array([2], pa.uint8()), "a": ["x"]})
    schema = to_spark(pa.schema([("a", pa.string()), ("b", pa.uint8()), ("c", pa.binary(2))]))
    assert cast_to_spark(batch, schema).to_pylist() == [{"a": "x", "b": 2, "c": None}]


def test_what_spark_gives_is_kept_the_same_everywhere() -> None:
    """Scenario: frames of sessions in different zones, with large types. Guarantee: one and
    the same schema in the stream."""
    vienna = pa.schema([("t", pa.timestamp("us", "Europe/Vienna")), ("s", pa.large_string())])
    utc = pa.schema([("t", pa.timestamp("us", "UTC")), ("s", pa.string())])
    assert from_spark(vienna) == from_spark(utc) == utc
    batch = pa.RecordBatch.from_arrays([pa.array([0], vienna.field(0).type), ["x"]], schema=vienna)
    assert cast_from_spark(batch).schema == utc


@pytest.mark.parametrize(
    ("declared", "says"),
    [
        (pa.schema([("a", pa.int8()), ("z", pa.int8())]), "lacks z"),
        (pa.schema([]), "has a besides"),
        (pa.schema([pa.field("a", pa.int8(), nullable=False)]), "column a holds nulls"),
    ],
)
def test_a_declared_schema_is_held_to(declared: pa.Schema, says: str) -> None:
    """Scenario: a frame that isn't what was declared. Guarantee: refused, saying how."""
    with pytest.raises(BadRequest, match=says):
        cast_from_spark(pa.record_batch({"a": [1, None]}), declared)


def test_what_was_kept_as_it_is_says_nothing_of_the_next() -> None:
    """Scenario: batches that need nothing, each followed by one that does, of the same names.

    Guarantee: each is treated by its own schema and by the one declared for it.
    """
    plain = pa.record_batch({"a": ["x", None], "b": [1, 2]})
    large = plain.cast(pa.schema([("a", pa.large_string()), ("b", pa.int64())]))
    turned = plain.select(["b", "a"])
    strict = pa.schema([pa.field("a", pa.string(), nullable=False), ("b", pa.int64())])
    for _ in range(3):
        assert cast_from_spark(plain).equals(plain)
        assert cast_from_spark(large).equals(plain)
        assert cast_from_spark(turned).equals(turned)
        assert cast_from_spark(turned, plain.schema).equals(plain)
        assert cast_from_spark(plain, large.schema).equals(large)
        whole = plain.slice(0, 1)
        assert cast_from_spark(whole, strict).schema == strict
        with pytest.raises(BadRequest, match="column a holds nulls"):
            cast_from_spark(plain, strict)


def test_every_kind_of_arrow_type_has_a_rule() -> None:
    """Scenario: the cases above and the documented table. Guarantee: both are complete."""
    told = " ".join(arrow for arrow, _, _ in RULES)
    for word in ("uint64", "float16", "fixed_size_binary", "ns", "time32", "list_view", "union"):
        assert word in told
    assert {US, LONG_NS} == {"us", "long_ns"}
