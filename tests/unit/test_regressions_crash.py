"""Defects that the crash explorer found, each kept from coming back."""

from __future__ import annotations

import contextlib
import random

import pyarrow as pa
import pytest

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.format.progress import decode_progress
from quiver.format.state import decode_state
from quiver.store.store import Store
from tests.crash.disk import CrashDisk, Fold, Killed, Record
from tests.crash.foreign import foreign_state
from tests.crash.states import states
from tests.support.memory_disk import MemoryDisk
from tests.support.oplog import Rename

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


def test_names_that_a_killed_process_left_are_durable_before_others_are_given() -> None:
    """Scenario: a process is killed between the two renames of a rotation, before the
    directory is synced; the next one ends the rotation; then the power goes. Guarantee:
    in whatever order the names reached the disk, the store opens and has the bundle."""
    disk = CrashDisk()
    opened(disk).put({"Logs": one(1)}).wait()
    disk.revive()
    store = opened(disk)  # a log that was found is set aside by the first put
    disk.watch = lambda record: _kill_at(disk, record, Rename)
    with pytest.raises(Killed):
        store.put({"Logs": one(2)}).wait()
    disk.revive()
    disk.watch = None
    done = len(disk.records)
    opened(disk)
    fold = Fold({})
    for at, record in enumerate(disk.records):
        fold.take(record)
        for state in states(fold, random.Random(1), 64) if at >= done else ():
            found = opened(MemoryDisk.from_image(state.files, state.directories))
            assert found.read((0, 0))["Logs"].equals(one(1))


def test_a_seal_that_was_never_synced_proves_nothing() -> None:
    """Scenario: a process is killed anywhere in its close, also between writing the log's seal
    and syncing it; the next one takes a put; then the power goes. Guarantee: whatever of the
    page cache was lost, the store opens and has both bundles."""
    for steps in range(40):
        disk = CrashDisk()
        store = opened(disk)
        store.put({"Logs": one(1)}).wait()
        disk.die_in = steps
        with contextlib.suppress(Killed):
            store.close()
        disk.revive()
        refs = [opened(disk).put({"Logs": one(2)}).wait().ref]
        fold = Fold({})
        for record in disk.records:
            fold.take(record)
        for state in states(fold, random.Random(1), 64):
            found = opened(MemoryDisk.from_image(state.files, state.directories))
            assert found.read((0, 0))["Logs"].equals(one(1))
            assert found.read(refs[0])["Logs"].equals(one(2))


def test_keys_and_names_from_a_time_without_a_log_outlive_it() -> None:
    """Scenario: a store without a log is killed, then opened with one, then killed again.
    Guarantee: keys and slot names that only its segments had are known both times."""
    without = Config.load(env={}, reserve=0, durability="segment_only")
    disk = MemoryDisk()
    first = opened(disk, without).put({"Logs": one(1)}, key="k").wait()
    for _ in range(2):
        disk.locked.clear()
        store = opened(disk)
        again = store.put({"Logs": one(1)}, key="k").wait()
        assert (again.duplicate, again.ref) == (True, first.ref)
        assert list(store.read(first.ref)) == ["Logs"]


def test_time_is_that_of_bundles_not_of_what_else_is_in_the_log() -> None:
    """Scenario: a bundle is put, the wall clock is set back, the idle store writes a
    watermark and is killed. Guarantee: the next bundle is not older than the first."""
    disk, clock = MemoryDisk(), ManualClock()
    store = Store(Disk(disk), CONFIG, where="mem", clock=clock)
    first = store.put({"Logs": one(1)}).wait()
    clock.jump(-1000)
    clock.advance(1)
    store.maintain()
    disk.locked.clear()
    store = Store(Disk(disk), CONFIG, where="mem", clock=clock)
    assert store.put({"Logs": one(2)}).wait().ingestion_ts_ns >= first.ingestion_ts_ns


def test_time_outlives_the_bundle_that_had_it() -> None:
    """Scenario: bundles are put and finished until their segments are deleted and their log
    files retired; then the wall clock is set back and the process killed. Guarantee: the
    next bundle is not older than the last one was."""
    config = Config.load(env={}, reserve=0, wal__max_idle_age=1.0)
    disk, clock = MemoryDisk(), ManualClock()
    store = Store(Disk(disk), config, where="mem", clock=clock)
    subscription = store.subscribe("ada")
    for number in range(2):
        last = store.put({"Logs": one(number)}).wait()
        subscription.ack([last.ref])
        store.flush()
        for _ in range(3):
            clock.advance(2)
            store.maintain()
    assert store.segments() == []
    clock.jump(-1000)
    disk.locked.clear()
    store = Store(Disk(disk), config, where="mem", clock=clock)
    assert store.put({"Logs": one(9)}).wait().ingestion_ts_ns >= last.ingestion_ts_ns


def test_what_somebody_loses_is_on_record_before_anything_else_knows() -> None:
    """Scenario: a cap makes the store drop a segment that a subscriber still needs; the
    power goes at any point. Guarantee: wherever the subscriber's file calls a bundle
    dropped, the ledger has it."""
    config = Config.load(
        env={},
        reserve=0,
        wal={"rotation_target": 2048, "max_size": 12288, "max_rotated_files": 6},
        segment={"target_size": 2048, "max_bundles": 2},
        limits={"max_bundle": 2048},
        retention={"size_cap": 12288 + 4096 + 6000, "size_cap_policy": "drop_oldest"},
    )
    disk = CrashDisk()
    store = opened(disk, config)
    store.subscribe("ada")
    for number in range(12):
        store.put({"Logs": one(number)}).wait()
        store.maintain()
    fold, seen = Fold({}), 0
    for record in disk.records:
        fold.take(record)
        for state in states(fold, random.Random(1), 512):
            files = state.files
            if "quiver.sub.ada" in files:
                marked = decode_progress(files["quiver.sub.ada"]).entries.items()
                dropped = {seq for seq, entry in marked if entry.dropped}
                if dropped:
                    seen += 1
                    losses = decode_state(files["quiver.state"]).losses
                    assert dropped <= {loss.segment_seq for loss in losses}
    assert seen


def _kill_at(disk: CrashDisk, record: Record, kind: type) -> None:
    if isinstance(record, kind):
        disk.die_in = 0
