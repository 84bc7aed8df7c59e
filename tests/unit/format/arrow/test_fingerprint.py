"""Schema fingerprints: stable for ever, and different for every difference."""

from __future__ import annotations

import itertools
import struct

import pyarrow as pa
import pytest

from quiver.format.arrow.fingerprint import MAX_DEPTH, canonical, dictionary_ids, schema_fingerprint
from quiver.format.arrow.flatbuf import FlatbufferError
from tests.support.batches import Celsius, zoo

PINNED = {
    "int64": "7c210994681775cb9cec579ac402c256ac6199b201f17158fd8cb11a52db0a91",
    "everything": "79b9f374574de7e176a6cbe1ddd1115178985f99642edefa95b772be47942d5a",
    "described": "63e089fe795a4bb295b0e1fb2df2b0d0a49545e667309332f21d43743378a174",
    "unregistered": "6f40c678812775279f6a472e1a0e2827d24b98957222ff26a40d669c9d68d2d1",
    "no_rows_no_columns": "56ef72cd18a3aa83704a569347b5f0e717af09a4b44dc4ecd08e50eef3133000",
    "sparse_union": "1eec77cb7e85cc13cb56e200ddfe7a322a1d332e28433b0dfc13f98d51ef862d",
    "tensor": "2c9cbb09756f7597355296a3a29eb655da3e18b21a47a0cd22c380a641423567",
}


def _one(kind: pa.DataType, name: str = "c", **options: object) -> pa.Schema:
    return pa.schema([pa.field(name, kind, **options)])


UNION = [pa.field("a", pa.int8()), pa.field("b", pa.utf8())]
DIFFERENT = [
    pa.schema([]),
    pa.schema([], metadata={"k": "v"}),
    pa.schema([], metadata={"k": "w"}),
    pa.schema([], metadata={"kv": ""}),
    _one(pa.int8()),
    _one(pa.int8(), name="d"),
    _one(pa.int8(), nullable=False),
    _one(pa.int8(), metadata={"k": "v"}),
    _one(pa.int8(), metadata={"k": "v", "l": ""}),
    pa.schema([pa.field("c", pa.int8()), pa.field("d", pa.int8())]),
    pa.schema([pa.field("d", pa.int8()), pa.field("c", pa.int8())]),
    *(_one(kind) for kind in (pa.uint8(), pa.int16(), pa.int32(), pa.int64(), pa.uint64())),
    *(_one(kind) for kind in (pa.float16(), pa.float32(), pa.float64(), pa.bool_(), pa.null())),
    *(_one(kind) for kind in (pa.utf8(), pa.large_utf8(), pa.string_view())),
    *(_one(kind) for kind in (pa.binary(), pa.large_binary(), pa.binary_view())),
    *(_one(pa.binary(width)) for width in (1, 32)),
    *(_one(kind) for kind in (pa.date32(), pa.date64(), pa.month_day_nano_interval())),
    *(_one(kind) for kind in (pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"))),
    *(_one(pa.duration(unit)) for unit in ("s", "ms", "us", "ns")),
    *(_one(pa.timestamp(unit)) for unit in ("s", "ms", "us", "ns")),
    *(_one(pa.timestamp("s", zone)) for zone in ("UTC", "+00:00")),
    *(_one(pa.decimal128(*digits)) for digits in ((5, 2), (6, 2), (5, 3), (5, -2))),
    *(_one(kind(5, 2)) for kind in (pa.decimal32, pa.decimal64, pa.decimal256)),
    *(
        _one(kind(pa.int8()))
        for kind in (pa.list_, pa.large_list, pa.list_view, pa.large_list_view)
    ),
    _one(pa.list_(pa.field("item", pa.int8(), nullable=False))),
    _one(pa.list_(pa.field("element", pa.int8()))),
    _one(pa.list_(pa.field("item", pa.int8(), metadata={"k": "v"}))),
    *(_one(pa.list_(pa.int8(), length)) for length in (1, 2)),
    _one(pa.struct([])),
    _one(pa.struct([pa.field("a", pa.int8())])),
    _one(pa.struct(UNION)),
    _one(pa.map_(pa.utf8(), pa.int8())),
    _one(pa.map_(pa.utf8(), pa.int8(), keys_sorted=True)),
    _one(pa.dense_union(UNION)),
    _one(pa.sparse_union(UNION)),
    _one(pa.sparse_union(UNION, [5, 6])),
    _one(pa.run_end_encoded(pa.int16(), pa.int8())),
    _one(pa.run_end_encoded(pa.int32(), pa.int8())),
    *(_one(pa.dictionary(index, pa.utf8())) for index in (pa.int8(), pa.uint8(), pa.int32())),
    _one(pa.dictionary(pa.int8(), pa.large_utf8())),
    _one(pa.dictionary(pa.int8(), pa.utf8(), ordered=True)),
    _one(pa.list_(pa.dictionary(pa.int8(), pa.utf8()))),
    _one(pa.uuid()),
    _one(pa.fixed_shape_tensor(pa.int8(), [2])),
    _one(pa.fixed_shape_tensor(pa.int8(), [2], dim_names=["x"])),
    _one(Celsius(1)),
    _one(Celsius(2)),
]


@pytest.mark.parametrize("name", PINNED)
def test_pinned(name: str) -> None:
    """These never change: they are in files and in other people's tables."""
    schema = zoo()[name].schema
    assert schema_fingerprint(schema).hex() == PINNED[name]


def test_the_encoding_is_the_one_described() -> None:
    """One schema spelled out by hand, byte by byte, as the module's text says."""
    schema = pa.schema(
        [pa.field("ab", pa.dictionary(pa.int8(), pa.utf8()), nullable=False, metadata={"k": "v"})],
        metadata={"z": "1", "a": "2"},
    )
    number = (1).to_bytes(8, "little")
    spelled = b"".join(
        (
            b"QVS1",
            b"\1\0\0\0",  # one field
            b"\2\0\0\0ab\0",  # its name, not nullable
            b"\5",  # Utf8
            b"\1" + (8).to_bytes(8, "little") + number + bytes(8),  # int8 keys, not ordered
            b"\0\0\0\0",  # no children
            b"\1\0\0\0\1\0\0\0k\1\0\0\0v",
            b"\2\0\0\0\1\0\0\0a\1\0\0\x002\1\0\0\0z\1\0\0\x001",
        )
    )
    assert canonical(schema.serialize().to_pybytes()) == spelled


def test_every_difference_counts() -> None:
    """Names, order, types and each of their parameters, nullability, metadata."""
    found = [schema_fingerprint(schema) for schema in DIFFERENT]
    for (one, a), (other, b) in itertools.combinations(zip(DIFFERENT, found, strict=True), 2):
        assert a != b, (one, other)


def test_the_order_of_metadata_does_not_count() -> None:
    """Metadata is a set of pairs, in a schema and in a field."""
    one = pa.schema([pa.field("c", pa.int8(), metadata={"a": "1", "b": "2"})], {"x": "1", "y": "2"})
    two = pa.schema([pa.field("c", pa.int8(), metadata={"b": "2", "a": "1"})], {"y": "2", "x": "1"})
    assert schema_fingerprint(one) == schema_fingerprint(two)


def test_registering_an_extension_type_changes_nothing() -> None:
    """The same bytes have the same fingerprint, whoever reads them."""
    schema = _one(Celsius(3))
    unregistered = pa.ipc.read_schema(schema.serialize())
    assert unregistered.field(0).type == pa.int32()
    assert schema_fingerprint(unregistered) == schema_fingerprint(schema)


def _fields_that_share_their_children(levels: int, width: int) -> bytes:
    """A small schema message that describes ``width ** levels`` fields."""
    vtables = struct.pack("<I5H4H8Hxx", 40, 10, 8, 0, 0, 4, 8, 8, 0, 4, 16, 8, 0, 0, 0, 0, 0, 4)
    message_at, schema_at, field_at = 4, 14, 22
    data = bytearray(vtables)
    assert len(data) == 40

    def table(vtable: int) -> None:
        data.extend(struct.pack("<iI", len(data) - vtable, 4))

    table(message_at)
    table(schema_at)
    data.extend(struct.pack("<II", 1, 4))
    for level in range(levels):
        table(field_at)
        children = width if level < levels - 1 else 0
        vector = len(data)
        end = vector + 4 + 4 * children
        data.extend(struct.pack("<I", children))
        for child in range(children):
            data.extend(struct.pack("<I", end - (vector + 4 + 4 * child)))
    return bytes(8) + bytes(data)


def test_a_hostile_schema_ends() -> None:
    """Fields that share their children multiply without end: there is a limit to it."""
    assert dictionary_ids(_fields_that_share_their_children(3, 4)) == frozenset()
    with pytest.raises(FlatbufferError, match="fields"):
        dictionary_ids(_fields_that_share_their_children(30, 10))
    with pytest.raises(FlatbufferError):
        canonical(_fields_that_share_their_children(30, 10))


def test_nesting_has_a_limit() -> None:
    """Deeper than any schema that makes sense: refused, not recursed into."""
    kind = pa.int8()
    for _ in range(MAX_DEPTH):
        kind = pa.list_(kind)
    with pytest.raises(FlatbufferError, match="levels"):
        schema_fingerprint(_one(kind))
