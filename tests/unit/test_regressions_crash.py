"""Defects that the crash explorer found, each kept from coming back."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.disk.memory import MemoryDisk
from quiver.engine import Store
from tests.crash.foreign import foreign_state

CONFIG = Config.load(env={}, reserve=0)


def opened(disk: MemoryDisk, config: Config = CONFIG) -> Store:
    return Store(Disk(disk), config, where="mem", clock=ManualClock())


@pytest.mark.parametrize(
    "path",
    [
        "quiver.state.tmp",
        "quiver.sub.ada.tmp",
        "segments/quiver.segment.seq.tmp",
        "segments/0000000000000007.qseg.tmp",
        "wal/quiver.wal.cursor.tmp",
    ],
)
def test_what_was_to_replace_a_file_is_gone_after_the_next_open(path: str) -> None:
    """Scenario: a crash between making a small file's replacement and renaming it.
    Guarantee: the next open removes the half-written file, whichever file it was for."""
    disk = MemoryDisk()
    opened(disk).close()
    image = {**disk.image(), path: b"half a fi"}
    disk = MemoryDisk.from_image(image)
    opened(disk).close()
    assert path not in disk.image()


def one(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array([number])})


@pytest.mark.parametrize("restart", [False, True])
def test_a_new_name_never_takes_over_a_slot_that_was_put_by_number(restart: bool) -> None:
    """Scenario: a bundle put under a slot number, then one under a new name, with a kill
    in between or without. Guarantee: the first is not called by the second's name."""
    disk = MemoryDisk()
    store = opened(disk)
    first = store.put({0: one(1)}).wait()
    if restart:
        disk.locked.clear()
        store = opened(disk)
    second = store.put({"Logs": one(2)}).wait()
    assert list(store.read(first.ref)) == ["slot0"]
    assert list(store.read(second.ref)) == ["Logs"]


def test_a_new_name_never_takes_over_a_slot_of_the_rust_crate() -> None:
    """Scenario: a directory of the Rust crate, whose slots have numbers only, is gone on
    with. Guarantee: its data does not change its name with the first put."""
    disk = MemoryDisk.from_image(foreign_state("tiny-clean").files)
    for _ in range(2):
        store = opened(disk)
        store.put({"Logs": one(2)}).wait()
        assert list(store.read((0, 0))) == ["slot0"]
        store.close()
