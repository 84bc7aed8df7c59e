"""What is read equals what was written: every Arrow type, through every way it can take."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings

from tests.support.batches import batches, dictionary, same, zoo
from tests.support.stores import World

ZOO = zoo()


@pytest.mark.parametrize("way", ["memory", "segment", "kill", "power_cut", "restart", "no_log"])
def test_every_kind_of_array_comes_back(way: str) -> None:
    """Scenario: one bundle for each Arrow type: whole, as a slice, without rows; read from
    memory, from a segment, after crashes. Guarantee: types, key widths, values, nulls and
    all metadata are what was put."""
    world = World(durability="segment_only" if way == "no_log" else "wal")
    refs = {name: world.store.put({"Logs": b}).ref for name, b in ZOO.items()}
    world.store.sync()
    if way == "segment":
        world.store.flush()
    elif way not in ("memory", "no_log"):
        getattr(world, way)()
    for name, ref in refs.items():
        found = world.store.read(ref)["Logs"]
        try:
            same(found, ZOO[name])
        except AssertionError as error:
            raise AssertionError(f"{name} came back changed") from error


@settings(max_examples=30)
@given(batches(), batches())
def test_any_batch_comes_back(first: pa.RecordBatch, second: pa.RecordBatch) -> None:
    """Scenario: generated batches, nested, with dictionaries, sliced. Guarantee: equal from
    memory, from the log after a crash, and from the segment."""
    world = World(limits={"max_nesting": 64})
    refs = [world.store.put({"A": b, "B": first}).wait().ref for b in (first, second)]
    for step in (lambda: None, world.power_cut, world.store.flush, lambda: world.store.flush()):
        step()
        for ref, wanted in zip(refs, (first, second), strict=True):
            found = world.store.read(ref)
            same(found["A"], wanted)
            same(found["B"], first)


def test_dictionaries_that_change_inside_a_segment() -> None:
    """Scenario: one slot, one schema, dictionaries that grow, shrink, repeat and reorder
    within one segment. Guarantee: each bundle keeps the very dictionary it came with."""
    world = World()
    values = [["a", "b"], ["a", "b", "c"], ["c"], ["a", "b"], ["b", "a"], []]
    wanted = [
        pa.RecordBatch.from_arrays(
            [dictionary([0] * bool(v), pa.array(v, pa.utf8()), pa.uint8())], ["level"]
        )
        for v in values
    ]
    refs = [world.store.put({"Logs": b}).wait().ref for b in wanted]
    for step in (world.store.flush, world.power_cut):
        step()
        for ref, batch in zip(refs, wanted, strict=True):
            found = world.store.read(ref)["Logs"]
            same(found, batch)
            assert found["level"].dictionary.equals(batch["level"].dictionary)
