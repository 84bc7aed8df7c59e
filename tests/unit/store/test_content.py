"""The content hash: the same rows are the same content, however they lie in memory."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.bundle.content_hash import content_hash_0_1, hash_content
from quiver.errors import KeyConflict
from quiver.format.arrow.ipc import encode_batch
from quiver.format.keys import KeyRecord
from quiver.format.record import EncodedSlot
from tests.support.stores import World, batch

TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "int8": (pa.int8(), [1, None, 3, -4, None, 6, 7, 8, 9, 10]),
    "int64": (pa.int64(), [1, None, 3, 4, 5, 6, 7, 8, 9, None]),
    "double": (pa.float64(), [1.5, None, -0.0, 4.0, 5.0, 1e300, 7.0, 8.0, 9.0, 0.0]),
    "bool": (pa.bool_(), [True, None, False, True, True, False, None, True, True, False]),
    "null": (pa.null(), [None] * 10),
    "time": (pa.timestamp("us", "UTC"), [1, None, 3, 4, 5, 6, 7, 8, 9, 10]),
    "decimal": (pa.decimal128(9, 2), [1, None, 3, 4, 5, 6, 7, 8, 9, 10]),
    "fixed": (pa.binary(3), [b"abc", None, b"def", b"ghi", b"abc", b"abc", None, b"x" * 3] * 2),
    "string": (pa.string(), ["a", None, "", "bcd", "é", "f", None, "g", "h", "ij"]),
    "large_string": (pa.large_string(), ["a", None, "", "bcd", "é", "f", None, "g", "h", "ij"]),
    "binary": (pa.binary(), [b"a", None, b"", b"bcd", b"\0", b"f", None, b"g", b"h", b"ij"]),
    "list": (pa.list_(pa.int32()), [[1], None, [], [2, None], [3], [4, 5], None, [6], [7], [8]]),
    "large_list": (pa.large_list(pa.string()), [["a"], None, [], ["b", None]] * 3),
    "fixed_list": (pa.list_(pa.int16(), 2), [[1, 2], None, [3, None], [4, 5]] * 3),
    "map": (pa.map_(pa.string(), pa.int8()), [[("a", 1)], None, [], [("b", None)]] * 3),
    "struct": (
        pa.struct([("a", pa.int8()), ("b", pa.list_(pa.string()))]),
        [{"a": 1, "b": ["x"]}, None, {"a": None, "b": None}, {"a": 2, "b": []}] * 3,
    ),
    "dictionary": (
        pa.dictionary(pa.int8(), pa.string()),
        ["a", None, "b", "a", "c", "b", None, "a", "d", "a"],
    ),
    "nested dictionary": (
        pa.list_(pa.dictionary(pa.int32(), pa.string())),
        [["a", "b"], None, ["b"], [], ["a", None]] * 2,
    ),
}


def hashed(array: pa.Array) -> bytes:
    """The content hash of a bundle with this one column."""
    rows = pa.record_batch([array], ["c"])
    return hash_content([(EncodedSlot(0, bytes(32), encode_batch(rows)), rows)], {})


def array_of(name: str, values: list[Any]) -> pa.Array:
    return pa.array(values, TYPES[name][0])


def under_nulls(array: pa.Array) -> pa.Array:
    """The same values with the bytes under each null, and behind the end, made to be others."""
    buffers = [None if one is None else bytearray(bytes(one)) for one in array.buffers()]
    width = array.type.bit_width // 8
    data = buffers[1]
    assert data is not None
    for row, valid in enumerate(array.is_valid().to_pylist()):
        if not valid:
            data[row * width : (row + 1) * width] = b"\x5a" * width
    validity = buffers[0]
    assert validity is not None
    for bit in range(len(array), len(validity) * 8):
        validity[bit // 8] ^= 1 << bit % 8
    return pa.Array.from_buffers(
        array.type, len(array), [None if b is None else pa.py_buffer(bytes(b)) for b in buffers]
    )


@pytest.mark.parametrize("name", TYPES)
def test_a_slice_is_what_it_shows(name: str) -> None:
    """Scenario: rows as an array of their own, as a slice of a longer one at every offset, and
    with a validity bitmap that nothing needs. Guarantee: one hash for the same rows."""
    values = TYPES[name][1]
    alone = array_of(name, values)
    for before in range(1, 10):
        longer = array_of(name, [*(values * 2)[-before:], *values, *values[:3]])
        assert hashed(longer.slice(before, len(values))) == hashed(alone), before
    whole = [value for value in values if value is not None]
    padded = array_of(name, [None, *whole]).slice(1)
    assert hashed(padded) == hashed(array_of(name, whole))
    assert hashed(alone.slice(0, 0)) == hashed(array_of(name, []))


@pytest.mark.parametrize("name", [one for one in TYPES if one != "null"])
def test_other_values_are_other_content(name: str) -> None:
    """Scenario: one row differs, is null, is gone, or two are exchanged. Guarantee: another
    hash each."""
    values = TYPES[name][1]
    found = {hashed(array_of(name, values))}
    variants = [
        values[:-1],
        [*values, None],
        [*values[1:2], *values[:1], *values[2:]],
        [None, *values[1:]],
        [values[2], *values[1:]],
    ]
    for variant in variants:
        found.add(hashed(array_of(name, variant)))
    assert len(found) == 1 + len(variants)


@pytest.mark.parametrize("name", ["int8", "int64", "double", "time", "decimal", "fixed"])
def test_what_is_under_a_null_is_not_content(name: str) -> None:
    """Scenario: other bytes under the nulls and in the bitmap's spare bits. Guarantee: the same
    hash, where the messages differ."""
    clean = array_of(name, TYPES[name][1])
    dirty = under_nulls(clean)
    assert dirty.equals(clean)
    assert hashed(dirty) == hashed(clean)
    rows = [pa.record_batch([one], ["c"]) for one in (clean, dirty)]
    old = [content_hash_0_1([EncodedSlot(0, bytes(32), encode_batch(one))]) for one in rows]
    assert old[0] != old[1], "the test makes no difference"


def test_strings_under_a_null_are_not_content() -> None:
    """Scenario: a null string whose offsets enclose bytes, and data that begins in the middle.
    Guarantee: the hash of the plain array."""
    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (2, 3, 6, 8)))
    data = pa.py_buffer(b"??axxxbc??")
    odd = pa.Array.from_buffers(pa.string(), 3, [pa.py_buffer(b"\xfd"), offsets, data])
    assert odd.to_pylist() == ["a", None, "bc"]
    assert hashed(odd) == hashed(pa.array(["a", None, "bc"]))


def test_a_dictionary_counts_by_its_values() -> None:
    """Scenario: the same column with its dictionary in another order, with entries that no row
    uses, with one value twice, with a null in the dictionary. Guarantee: one hash."""
    plain = pa.array(["a", "b", None, "a"]).dictionary_encode()

    def of(indices: list[int | None], dictionary: list[str | None]) -> pa.Array:
        return pa.DictionaryArray.from_arrays(
            pa.array(indices, pa.int32()), pa.array(dictionary, pa.string())
        )

    for same in (
        of([1, 0, None, 1], ["b", "a"]),
        of([2, 1, None, 2], ["unused", "b", "a", "more"]),
        of([0, 1, None, 2], ["a", "b", "a"]),
        of([0, 1, 2, 0], ["a", "b", None]),
    ):
        assert same.to_pylist() == plain.to_pylist()
        assert hashed(same) == hashed(plain)
    assert hashed(of([1, 0, None, 1], ["a", "b"])) != hashed(plain)


@given(
    st.lists(st.one_of(st.none(), st.text(max_size=3)), max_size=30),
    st.integers(0, 9),
    st.booleans(),
)
def test_any_column_of_strings(values: list[str | None], before: int, coded: bool) -> None:
    """Scenario: any strings, alone or within something longer, plain or coded. Guarantee: the
    hash is equal exactly if the values are."""
    longer = pa.array(["x", None] * 5 + values + ["y"], pa.string())
    alone = pa.array(values, pa.string())
    if coded:
        longer, alone = longer.dictionary_encode(), alone.dictionary_encode()
    part = longer.slice(10, len(values))
    assert hashed(part) == hashed(alone)
    other = longer.slice(10 - before, len(values))
    assert (hashed(other) == hashed(alone)) == (other.to_pylist() == alone.to_pylist())


def test_rare_types_are_hashed_by_their_encoding() -> None:
    """Scenario: unions, views and run ends, of which one row differs. Guarantee: each has a
    hash, and another one for other values."""
    union = pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
    )
    view = pa.array(["a", None, "a string too long to lie in the view"], pa.string_view())
    coded = pa.DictionaryArray.from_arrays(pa.array([1, 0], pa.int8()), view.slice(0, 2))
    within = pa.array([["a", None], None], pa.list_(pa.string_view()))
    ends = pa.RunEndEncodedArray.from_arrays(pa.array([1, 3], pa.int32()), pa.array(["a", "b"]))
    for array in (union, view, coded, within, ends):
        assert hashed(array) == hashed(array)
        assert hashed(array) != hashed(array.slice(0, 1))


def test_a_retry_in_another_layout_is_a_repeat(world: World) -> None:
    """Scenario: a producer builds its retry anew: a slice of a table, an IPC stream, garbage
    under a null. Guarantee: each is answered with the first ref; other rows are refused."""
    rows = pa.record_batch({"n": pa.array([1, None, 3]), "s": ["x", None, "z"]})
    first = world.store.put({"Logs": rows}, key="k").wait()
    longer = pa.record_batch({"n": pa.array([9, 1, None, 3, 9]), "s": ["?", "x", None, "z", "?"]})
    dirty = pa.record_batch([under_nulls(rows["n"]), rows["s"]], ["n", "s"])
    for same in (longer.slice(1, 3), dirty):
        assert same.to_pylist() == rows.to_pylist()
        assert world.store.put({"Logs": same}, key="k").ref == first.ref
        stream = pa.py_buffer(b"".join(bytes(b) for b in encode_batch(same).buffers()))
        assert world.store.put_ipc({"Logs": stream}, key="k").ref == first.ref
    with pytest.raises(KeyConflict, match="other content"):
        world.store.put({"Logs": longer.slice(0, 3)}, key="k")
    world.kill()
    assert world.store.put({"Logs": longer.slice(1, 3)}, key="k").ref == first.ref


def test_a_hash_of_0_1_0_still_answers(world: World) -> None:
    """Scenario: a key that 0.1.0 remembered with its own hash of the messages. Guarantee: a
    retry of the same bytes is a repeat, other content is refused."""
    first = world.put(1, key="k").wait()
    window = world.store._parts.ingest.window
    old = content_hash_0_1([EncodedSlot(0, bytes(32), encode_batch(batch(1)))])
    window.add(KeyRecord("k", old, first.ref, first.sequence, first.ingestion_ts_ns))
    assert world.put(1, key="k").ref == first.ref
    with pytest.raises(KeyConflict):
        world.put(2, key="k")
    with pytest.raises(KeyConflict):
        world.put(1, key="k", content_hash=b"g" * 32)


def test_offsets_that_only_basic_validation_lets_through(world: World) -> None:
    """Scenario: `validation: basic`, and a keyed bundle whose offsets lead outside of the data.
    Guarantee: refused, not followed."""
    from quiver.errors import InvalidBundle

    offsets = pa.py_buffer(b"".join(n.to_bytes(4, "little") for n in (0, 1 << 30, 2, 3)))
    bad = pa.Array.from_buffers(
        pa.string(), 3, [pa.py_buffer(b"\x05"), offsets, pa.py_buffer(b"abc")]
    )
    store = World(validation="basic").store
    with pytest.raises(InvalidBundle):
        store.put({"Logs": pa.record_batch([bad], ["s"])}, key="k")
