"""A disk that fills up or fails under many threads: every receipt gets its answer."""

from __future__ import annotations

import errno
import time
from pathlib import Path
from random import Random
from typing import Any

import pytest

from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.disk.posix import PosixDisk
from quiver.errors import (
    Backpressure,
    IoFault,
    Poisoned,
    StorageFull,
    StoreClosed,
)
from quiver.ingest.receipt import Receipt
from quiver.store.status import State
from quiver.store.store import Store
from quiver.subscriber.subscription import Subscription
from tests.stress.crew import SLOT, Crew, Tally, batch_of, left_in, number_of, tiny, wait_until
from tests.support.faulty import FOREVER, Fault, FaultyDisk

pytestmark = [pytest.mark.stress, pytest.mark.usefixtures("_frantic")]

SYNCS = frozenset({"fdatasync", "fsync"})
WRITES = frozenset({"pwritev", "create", "allocate"})
IDLE_SECONDS = 0.6
SETTINGS = [
    pytest.param({}, id="group"),
    pytest.param({"wal": {"flush": "interval"}}, id="interval"),
    pytest.param({"durability": "segment_only"}, id="segment-only"),
]


def open_on(disk: FaultyDisk, settings: dict[str, Any]) -> Store:
    config = Config.load(env={}, **tiny(**settings))
    return Store(Disk(disk), config, where="faulty", background=True)


def insist(crew: Crew, store: Store, tally: Tally, failed: list[int], first: int) -> None:
    """Put number after number, whatever happens, until told to stop or poisoned."""
    number = first
    window: list[tuple[int, Receipt]] = []
    random = Random(first)
    while not crew.stop.is_set():
        number += 1
        try:
            window.append((number, store.put({SLOT: batch_of(number)}, timeout=0.05)))
        except (Backpressure, StorageFull, IoFault):
            continue
        except (Poisoned, StoreClosed):
            break
        if random.random() < 0.2:
            settle(window, tally, failed)
    settle(window, tally, failed)


def settle(window: list[tuple[int, Receipt]], tally: Tally, failed: list[int]) -> None:
    while window:
        number, receipt = window.pop(0)
        try:
            receipt.wait(20)
        except (StorageFull, IoFault, Poisoned, StoreClosed):
            failed.append(number)
        else:
            tally.put(number, receipt)
        assert receipt.done or failed


def take(subscription: Subscription, tally: Tally) -> None:
    """Consume as long as the store lets us; a full disk is no reason to stop reading."""
    for bundle in subscription:
        number = number_of(bundle[SLOT])
        tally.took("a", number)
        try:
            bundle.ack()
        except StoreClosed:
            return
        tally.finished("a", number)


@pytest.mark.parametrize("settings", SETTINGS)
def test_full_again_and_again(tmp_path: Path, settings: dict[str, Any]) -> None:
    """The disk is full in bursts while producers insist and a consumer reads.

    No thread hangs or dies, every receipt is answered, and each durable bundle, none else
    twice, has come to the consumer by the time the disk has room and all is quiet.
    """
    disk = FaultyDisk(PosixDisk(tmp_path))
    crew, tally, failed = Crew(), Tally(), list[int]()
    with open_on(disk, settings) as store:
        crew.start(take, store.subscribe("a"), tally)
        producers = [crew.start(insist, crew, store, tally, failed, n * 10**6) for n in range(3)]
        random = Random(1)
        for _ in range(8):
            crew.stop.wait(0.05)
            disk.arm(
                Fault(random.randrange(5), errno.ENOSPC, ops=WRITES, times=random.choice([1, 50])),
            )
            crew.stop.wait(0.05)
            disk.heal()
        crew.stop.wait(0.1)
        crew.stop.set()
        crew.join(*producers)
        store.flush()
        wait_until(Crew(), lambda: tally.is_drained("a"), "all delivered")
    crew.join()
    assert disk.fired
    assert set(tally.durable) <= set(tally.outcomes["a"])
    assert set(tally.outcomes["a"].values()) == {1}
    assert not left_in(str(tmp_path), "a", **tiny(**settings))


@pytest.mark.parametrize("settings", SETTINGS)
def test_a_failed_sync_ends_it_for_all(tmp_path: Path, settings: dict[str, Any]) -> None:
    """A sync fails under load: the store is poisoned, and nobody is left waiting for it.

    Reading goes on; closing works; a new process finds everything that was durable.
    """
    disk = FaultyDisk(PosixDisk(tmp_path))
    crew, tally, failed = Crew(), Tally(), list[int]()
    store = open_on(disk, settings)
    store.register("a")
    producers = [crew.start(insist, crew, store, tally, failed, n * 10**6) for n in range(3)]
    crew.stop.wait(0.15)
    disk.arm(Fault(0, errno.EIO, ops=SYNCS, times=FOREVER))
    crew.join(*producers)
    disk.heal()
    assert store.status().state is State.POISONED
    assert tally.durable
    for number, ref in tally.durable.items():
        assert number_of(store.read(ref)[SLOT]) == number
    assert idle_cost() < 0.2, "a poisoned store keeps a core busy"
    store.close()
    assert set(tally.durable) <= set(left_in(str(tmp_path), "a", **tiny(**settings)))


def idle_cost() -> float:
    """The part of a core that everything here takes while nobody does anything."""
    began, used = time.monotonic(), time.process_time()
    pause = Crew().stop
    pause.wait(IDLE_SECONDS)
    return (time.process_time() - used) / (time.monotonic() - began)


def test_a_full_disk_is_no_busy_loop(tmp_path: Path) -> None:
    """The disk stays full, with a segment to write, acks to keep and a watermark wanted.

    Upkeep tries again now and then, not as fast as it can.
    """
    disk = FaultyDisk(PosixDisk(tmp_path))
    with open_on(disk, {}) as store:
        subscription = store.subscribe("a")
        store.put({SLOT: batch_of(1)}).wait()
        disk.arm(Fault(0, errno.ENOSPC, ops=WRITES, times=FOREVER))
        bundle = subscription.next_bundle(5)
        assert bundle is not None
        bundle.ack()
        before = len(disk.calls)
        cost = idle_cost()
        calls = len(disk.calls) - before
        disk.heal()
        assert cost < 0.2
        assert 0 < calls < 200, "it must go on trying, but not all the time"
        store.maintain()
        assert store.status().state is State.OK
