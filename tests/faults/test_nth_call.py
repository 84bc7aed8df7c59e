"""The n-th call fails: every call of a workload, in every way a call can fail."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Final

import pytest

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.disk.seam import RawDisk
from quiver.store.store import Store
from tests.faults.world import Witness, check, config, meaningful
from tests.support.faulty import FOREVER, Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1200)]

_SYNCS: Final = frozenset({"fsync", "fdatasync", "fsync_dir"})
_WRITES: Final = frozenset({"pwritev"})

KINDS: Final = {
    "EIO": Fault(0, errno.EIO),
    "ENOSPC": Fault(0, errno.ENOSPC),
    "EINTR": Fault(0, errno.EINTR),
    "EIO, though it was done": Fault(0, errno.EIO, after=True),
    "full from here on": Fault(0, errno.ENOSPC, times=FOREVER),
    "dead from here on": Fault(0, errno.EIO, times=FOREVER),
    "short write": Fault(0, short=True, ops=_WRITES),
    "short write, then ENOSPC": Fault(0, errno.ENOSPC, short=True, ops=_WRITES),
    "mmap ENOMEM": Fault(0, errno.ENOMEM, ops=frozenset({"view"})),
}
STEP: Final = int(os.environ.get("QUIVER_FAULT_STEP", "4"))
"""`make prove` takes every call, `make test` every so many."""

MODES: Final = {
    "wal": config(wal={"max_idle_age": 30.0}),
    "segment_only": config(durability="segment_only", segment={"max_bundles": 3}),
    "transactions": config(segment={"target_size": "1KiB", "max_bundles": 2}),
}


class World:
    """The workload's clock goes on from one store to the next."""

    def __init__(self, raw: RawDisk, settings: Config) -> None:
        self.raw = raw
        self.settings = settings
        self.clock = ManualClock()
        self.disks: list[Disk] = []

    def open(self) -> Store:
        self.disks.append(Disk(self.raw))
        return Store(self.disks[-1], self.settings, where="mem", clock=self.clock)


def workload(world: World, witness: Witness, mode: str) -> None:
    """Puts alone and in groups, two subscribers, segments, rotation, deletion, a restart."""
    if mode == "transactions":
        transactions(world, witness)
        return
    store = witness.attempt(world.open) or witness.attempt(world.open)
    if store is None:
        return
    first_life(world, store, witness)
    witness.attempt(store.close)
    again = witness.attempt(world.open)
    witness.given.clear()  # acks that were not kept are gone with the process
    if again is not None:
        second_life(again, witness)


def first_life(world: World, store: Store, witness: Witness) -> None:
    a = witness.join(store, "a")
    witness.attempt(store.activate)
    numbers = iter(range(100))
    for size in (1, 3, 4):
        put_group(store, witness, numbers, size)
    if a is not None:
        witness.ack_next(a, 6)
        witness.keep(a)
    witness.attempt(store.flush)
    b = witness.join(store, "b")
    put_group(store, witness, numbers, 3)
    for one in (a, b):
        if one is not None:
            witness.ack_next(one, 5)
    world.clock.advance(60.0)
    witness.attempt(store.maintain)
    put_group(store, witness, numbers, 3)


def transactions(world: World, witness: Witness) -> None:
    """Commits of one file and of several, merged and not, puts between, a restart, repeats."""
    store = witness.attempt(world.open) or witness.attempt(world.open)
    if store is None:
        return
    numbers = iter(range(100))
    put_group(store, witness, numbers, 1)
    witness.transact(store, "app", 0, [300, 301, 302, 303], [304])
    put_group(store, witness, numbers, 2)
    witness.transact(store, "app", 1, [310], [311])
    witness.commit(store, "app", 1)
    witness.attempt(store.flush)
    witness.attempt(store.close)
    again = witness.attempt(world.open)
    if again is not None:
        witness.commit(again, "app", 1)
        witness.transact(again, "app", 2, [320, 321])
        put_group(again, witness, numbers, 1)
        witness.attempt(again.maintain)


def put_group(store: Store, witness: Witness, numbers: Iterator[int], size: int) -> None:
    for _ in range(size):
        number = next(numbers)
        witness.put(store, number, key=f"key {number}" if number % 4 == 0 else None)
    witness.settle()


def second_life(store: Store, witness: Witness) -> None:
    a = witness.join(store, "a") if "a" in witness.joined else None
    witness.attempt(store.activate)
    for number in range(200, 204):
        witness.put(store, number)
    witness.settle()
    if a is not None:
        witness.ack_next(a, 3)
        witness.keep(a)
    witness.attempt(store.flush)
    witness.attempt(store.maintain)


def calls(mode: str) -> list[str]:
    """The workload's calls when nothing fails."""
    disk = FaultyDisk(MemoryDisk(record=False))
    witness = Witness()
    workload(World(disk, MODES[mode]), witness, mode)
    assert not witness.errors
    assert len(witness.durable) == (4 if mode == "transactions" else 18)
    assert all(asked.answered for asked in witness.asked_commits.values())
    return [op for op, _ in disk.calls]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_the_nth_call_fails(
    mode: str, kind: str, record_property: Callable[[str, object], None]
) -> None:
    """Whatever fails, and whenever: no false promise, no loss, a clean reopen.

    Each put gets an answer; everything fails with Quiver's own errors; afterwards all that
    was called durable is there once and equal, in what the process left and in what a
    power cut would have left, and the store goes on.
    """
    shape = KINDS[kind]
    made = [op for op in calls(mode) if not shape.ops or op in shape.ops]
    for at in range(0, len(made), STEP):
        raw = MemoryDisk()
        disk = FaultyDisk(raw, replace(shape, at=at))
        world, witness = World(disk, MODES[mode]), Witness()
        try:
            workload(world, witness, mode)
            files, durable = raw.image(), raw.durability()
            check(files, witness, MODES[mode])
            if meaningful(left := durable.image()) != meaningful(files):
                check(left, witness, MODES[mode], durable.directories())
            if disk.fired and disk.fired[0][0] in _SYNCS:
                assert any(one.poison.cause for one in world.disks), "a failed sync went unnoticed"
            assert all(str(error) for error in witness.errors)
        except AssertionError as error:
            raise AssertionError(f"call {at} ({made[at]}), {kind}: {error}") from error
    record_property("tried", len(range(0, len(made), STEP)))
