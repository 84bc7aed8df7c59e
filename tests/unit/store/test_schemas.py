"""Which schemas a slot has, from directories and from memory."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver.errors import LimitExceeded
from quiver.store import schemas as module
from tests.support.memory_disk import MemoryFile
from tests.support.stores import World

ONE = pa.record_batch({"a": pa.array([1], pa.int32())})
TWO = pa.record_batch({"a": pa.array([1], pa.int64()), "b": ["x"]})
THREE = pa.record_batch({"a": pa.array(["x"]).dictionary_encode()})


def test_every_schema_of_every_slot() -> None:
    """Scenario: schemas change within a segment, between segments and in memory.
    Guarantee: each is named once, under its slot, in the order they came."""
    world = World()
    world.store.put({"A": ONE, "B": TWO})
    world.store.put({"A": TWO})
    world.store.flush()
    world.store.put({"A": ONE})
    world.store.put({"A": THREE})
    world.store.sync()
    expected = {"A": [ONE.schema, TWO.schema, THREE.schema], "B": [TWO.schema]}
    assert world.store.schemas() == expected
    world.restart()
    assert world.store.schemas() == expected
    assert world.store.schemas() == expected


def test_nothing_put_nothing_known() -> None:
    """Scenario: an empty store. Guarantee: no slot, no error."""
    assert World().store.schemas() == {}


def test_a_file_is_not_read_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: the schemas of a large file. Guarantee: its footers are read, its data isn't,
    and a second look reads nothing."""
    world = World(read_mode="pread")
    world.store.put({"A": pa.record_batch({"blob": [bytes(1 << 20)]})})
    world.store.flush()
    world.restart()
    read = 0
    pread = MemoryFile.pread

    def counted(self: MemoryFile, size: int, offset: int) -> bytes:
        nonlocal read
        found = pread(self, size, offset)
        read += len(found)
        return found

    monkeypatch.setattr(MemoryFile, "pread", counted)
    world.store.schemas()
    assert 0 < read < 1 << 17
    read = 0
    world.store.schemas()
    assert read == 0


def test_a_damaged_file_is_left_to_who_knows() -> None:
    """Scenario: a segment's footer is damaged behind the store's back. Guarantee: no error:
    the segment is rebuilt or set aside as by any read, and the others are told."""
    world = World()
    world.store.put({"A": ONE})
    world.store.flush()
    world.store.put({"A": TWO})
    world.store.flush()
    name = "segments/0000000000000000.qseg"
    file = world.raw.open(name, write=True)
    file.pwritev([bytes(20)], file.size() - 20)
    file.close()
    assert TWO.schema in world.store.schemas()["A"]
    assert world.store.status().problems or ONE.schema in world.store.schemas()["A"]


def test_too_many_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: more schemas than are kept. Guarantee: a clear error, never a short list."""
    monkeypatch.setattr(module, "MAX_SCHEMAS", 2)
    world = World()
    for found in (ONE, TWO, THREE):
        world.store.put({"A": found})
    world.store.sync()
    with pytest.raises(LimitExceeded, match="schemas of a store"):
        world.store.schemas()
