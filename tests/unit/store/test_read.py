"""Reading by ref: whole bundles, some slots, some columns; from memory and from files."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import quiver
from tests.support.stores import World

WIDE = pa.record_batch({"a": [1, 2], "b": ["x", "y"], "c": [1.5, 2.5]})


@pytest.fixture(params=["memory", "mmap", "pread"])
def placed(request: pytest.FixtureRequest) -> tuple[World, quiver.BundleRef]:
    """A bundle with three slots: in memory, and in a file read in either way."""
    mode = "pread" if request.param == "pread" else "mmap"
    world = World(read_mode=mode)
    ref = world.store.put({"A": WIDE, "B": WIDE.slice(1), "C": WIDE}).wait().ref
    if request.param != "memory":
        world.store.flush()
    return world, ref


def test_all_of_it(placed: tuple[World, quiver.BundleRef]) -> None:
    """Scenario: nothing is left out. Guarantee: every slot, equal to what was put."""
    world, ref = placed
    found = world.store.read(ref)
    assert list(found) == ["A", "B", "C"]
    assert found["A"].equals(WIDE)
    assert found["B"].equals(WIDE.slice(1))


def test_only_the_slots_asked_for(placed: tuple[World, quiver.BundleRef]) -> None:
    """Scenario: some slots, by name and by number, one that isn't there. Guarantee: those
    that are there, nothing else."""
    world, ref = placed
    assert list(world.store.read(ref, slots=["C", "A"])) == ["A", "C"]
    assert list(world.store.read(ref, slots=[1])) == ["B"]
    assert world.store.read(ref, slots=["nope"]) == {}
    assert world.store.read(ref, slots=[]) == {}


def test_only_the_columns_asked_for(placed: tuple[World, quiver.BundleRef]) -> None:
    """Scenario: columns of one slot, in another order. Guarantee: just those, in that order;
    other slots come whole."""
    world, ref = placed
    found = world.store.read(ref, columns={"A": ["c", "a"]})
    assert found["A"].equals(WIDE.select(["c", "a"]))
    assert found["C"].equals(WIDE)
    assert world.store.read(ref, ["A"], {"A": []})["A"].num_columns == 0


def test_a_column_that_a_bundle_lacks_is_left_out(
    placed: tuple[World, quiver.BundleRef],
) -> None:
    """Scenario: schemas drift, and a reader asks for a column that this bundle doesn't have.
    Guarantee: it gets those that are there; nothing is taken for damaged."""
    world, ref = placed
    assert world.store.read(ref, columns={"A": ["zzz", "b"]})["A"].equals(WIDE.select(["b"]))
    assert world.files("quarantine/") == []


def test_files_are_read_without_copies(tmp_path: Path) -> None:
    """Scenario: a large batch out of a mapped segment. Guarantee: no memory of its size is
    allocated for it: it is the file."""
    big = pa.record_batch({"n": pa.array(range(500_000), pa.int64())})
    with quiver.open(tmp_path, reserve=0, read_mode="mmap") as store:
        ref = store.put({"Logs": big}).wait().ref
        store.flush()
        store.read(ref)
        before = pa.total_allocated_bytes()
        found = store.read(ref)["Logs"]
        assert found.equals(big)
        assert pa.total_allocated_bytes() - before < 1_000_000
