"""One schema out of many: what widens into what, what is new, what can't be."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest

from flight_service.client.errors import BadRequest
from spark_client.casting import cast_to_spark
from spark_client.source.schema import (
    arrow_schema,
    newcomers,
    pick_slot,
    slot_schema,
    spark_schema,
    union,
)


def made(*schemas: pa.Schema, **options: object) -> pa.Schema:
    chosen: dict[str, object] = {"columns": None, "metadata": False, "timestamp_mode": "us"}
    return slot_schema(list(schemas), **{**chosen, **options})  # type: ignore[arg-type]


def of(kind: pa.DataType) -> pa.Schema:
    return pa.schema([("c", kind)])


STRUCT_A = pa.struct([("a", pa.int32()), ("b", pa.string())])
STRUCT_B = pa.struct([("c", pa.uint8()), ("a", pa.int64())])

WIDENING = [
    (pa.int8(), pa.int64(), pa.int64()),
    (pa.uint8(), pa.int8(), pa.int16()),
    (pa.uint32(), pa.int8(), pa.int64()),
    (pa.uint64(), pa.int64(), pa.decimal128(20, 0)),
    (pa.int16(), pa.float32(), pa.float32()),
    (pa.int32(), pa.float32(), pa.float64()),
    (pa.int64(), pa.float64(), pa.float64()),
    (pa.float16(), pa.float64(), pa.float64()),
    (pa.decimal128(10, 2), pa.decimal128(8, 4), pa.decimal128(12, 4)),
    (pa.decimal128(4, 2), pa.int32(), pa.decimal128(12, 2)),
    (pa.null(), pa.string(), pa.string()),
    (pa.string(), pa.null(), pa.string()),
    (pa.dictionary(pa.int8(), pa.string()), pa.large_string(), pa.string()),
    (pa.timestamp("s", "UTC"), pa.timestamp("ms", "Asia/Tokyo"), pa.timestamp("us", "UTC")),
    (pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us")),
    (pa.duration("s"), pa.duration("ns"), pa.duration("us")),
    (pa.time32("s"), pa.time64("us"), pa.time64("ns")),
    (pa.binary(4), pa.binary(8), pa.binary()),
    (pa.date64(), pa.date32(), pa.date32()),
    (pa.list_(pa.int8()), pa.large_list(pa.int64()), pa.list_(pa.field("element", pa.int64()))),
    (
        STRUCT_A,
        STRUCT_B,
        pa.struct([("a", pa.int64()), ("b", pa.string()), ("c", pa.int16())]),
    ),
    (
        pa.map_(pa.string(), STRUCT_A),
        pa.map_(pa.string(), pa.struct([("z", pa.bool_())])),
        pa.map_(pa.string(), pa.struct([("a", pa.int32()), ("b", pa.string()), ("z", pa.bool_())])),
    ),
]


@pytest.mark.parametrize(("one", "other", "both"), WIDENING, ids=[str(w[2]) for w in WIDENING])
def test_types_widen(one: pa.DataType, other: pa.DataType, both: pa.DataType) -> None:
    """Scenario: a column is of two types. Guarantee: of one that holds both, whichever came
    first, and as Spark wants it; values of either fit in."""
    found = made(of(one), of(other))
    assert found.field("c").type == both
    if "struct" not in str(both):  # whose fields stand as they came
        assert made(of(other), of(one)) == found
    assert arrow_schema(spark_schema(found)) == found
    for kind in (one, other):
        cast_to_spark(pa.RecordBatch.from_arrays([pa.nulls(2, kind)], schema=of(kind)), found)


def test_values_survive_or_are_refused() -> None:
    """Scenario: whole numbers in a column that is a float now. Guarantee: those it can hold
    are held, those it can't are refused by name."""
    found = made(of(pa.int64()), of(pa.float64()))
    fits = cast_to_spark(pa.record_batch({"c": pa.array([2**53], pa.int64())}), found)
    assert fits["c"].to_pylist() == [2.0**53]
    with pytest.raises(BadRequest, match="column c"):
        cast_to_spark(pa.record_batch({"c": pa.array([2**53 + 1], pa.int64())}), found)
    found = made(of(pa.decimal128(4, 2)), of(pa.int32()))
    whole = cast_to_spark(pa.record_batch({"c": pa.array([7], pa.int32())}), found)
    assert whole["c"].to_pylist() == [Decimal("7.00")]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (pa.string(), pa.int64()),
        (pa.string(), pa.binary()),
        (pa.timestamp("us"), pa.timestamp("us", "UTC")),
        (pa.date32(), pa.timestamp("us")),
        (pa.decimal128(38, 0), pa.decimal128(38, 10)),
        (pa.list_(pa.int8()), pa.int8()),
        (pa.list_(pa.int8()), pa.list_(pa.string())),
        (pa.decimal128(4, 2), pa.float64()),
    ],
)
def test_what_does_not_mix(one: pa.DataType, other: pa.DataType) -> None:
    """Scenario: two types that nothing holds both of. Guarantee: an error that names the column
    and says what to do; without the column, no error."""
    with pytest.raises(BadRequest, match=r"column c.*columns.*mode=bundle") as caught:
        made(of(one), of(other))
    assert caught.value.code == "schema_conflict"
    others = [of(one).append(pa.field("d", pa.int8())), of(other)]
    assert made(*others, columns=["d"]).names == ["d"]


def test_the_union_keeps_order_and_projection_its_own() -> None:
    """Scenario: columns come and go. Guarantee: the order they came in, or the one asked for;
    a column that nobody has is refused with the nearest."""
    one = pa.schema([("a", pa.int8()), ("b", pa.int8())])
    other = pa.schema([("c", pa.int8()), ("a", pa.int8())])
    assert made(one, other).names == ["a", "b", "c"]
    assert made(one, other, columns=["c", "a"]).names == ["c", "a"]
    with pytest.raises(BadRequest, match=r"no column|no bundle has a column 'bb'.*'b'"):
        made(one, other, columns=["bb"])


def test_earlier_schemas_help_and_do_not_hinder() -> None:
    """Scenario: schemas of bundles that are gone: one with a column more, one in conflict.
    Guarantee: the column is known, the conflict is nobody's any more; with no bundle left they
    are all there is."""
    now = of(pa.int32())
    earlier = [pa.schema([("c", pa.int64()), ("old", pa.string())]), of(pa.string())]
    assert union([now], earlier) == {"c": pa.int64(), "old": pa.string()}
    assert union([], earlier) == {"c": pa.int64(), "old": pa.string()}
    assert list(union([now], earlier, ["old"])) == ["old"]


def test_metadata_and_names() -> None:
    """Scenario: metadata is asked for; names that come twice or are taken. Guarantee: behind
    the data; refused with what to do."""
    found = made(of(pa.int8()), metadata=True)
    assert found.names == ["c", "_ref", "_sequence", "_ingested_at", "_slot"]
    assert arrow_schema(spark_schema(found)) == found
    with pytest.raises(BadRequest, match="a column _slot of its own"):
        made(pa.schema([("_slot", pa.int8())]), metadata=True)
    with pytest.raises(BadRequest, match="'c' comes twice"):
        made(pa.schema([("c", pa.int8()), ("c", pa.int8())]))


def test_types_spark_has_none_for() -> None:
    """Scenario: a union column. Guarantee: refused by name, with the way around it."""
    kind = pa.sparse_union([pa.field("a", pa.int8()), pa.field("b", pa.string())])
    with pytest.raises(BadRequest, match=r"column c: Spark has no type.*mode=bundle"):
        made(of(kind))


def test_what_is_new() -> None:
    """Scenario: a bundle's schema beside the one Spark knows. Guarantee: every column and
    every field of a struct that is new is named, at any depth, and nothing else."""
    known = made(
        pa.schema(
            [
                ("a", STRUCT_A),
                ("l", pa.list_(STRUCT_A)),
                ("m", pa.map_(pa.string(), STRUCT_A)),
                ("d", pa.string()),
            ]
        )
    )
    same = pa.schema(
        [("d", pa.dictionary(pa.int8(), pa.large_string())), ("l", pa.large_list(STRUCT_A))]
    )
    assert newcomers(same, known) == []
    other = pa.schema(
        [
            ("a", STRUCT_B),
            ("l", pa.list_(STRUCT_B)),
            ("m", pa.map_(pa.string(), STRUCT_B)),
            ("n", pa.int8()),
        ]
    )
    assert newcomers(other, known) == ["a.c", "l[].c", "m.value.c", "n"]


def test_which_slot() -> None:
    """Scenario: streams with none, one and several slots. Guarantee: the only one needs no
    name; everything else is said."""
    assert pick_slot({"A": []}, None) == "A"
    assert pick_slot({"A": [], "B": []}, "B") == "B"
    for schemas, slot, message in (
        ({}, None, "no bundles"),
        ({"A": [], "B": []}, None, "several slots: A, B"),
        ({"A": []}, "X", "the slot 'X'; there are A"),
    ):
        with pytest.raises(BadRequest, match=message):
            pick_slot(schemas, slot)
