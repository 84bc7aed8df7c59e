"""No room: refused with a reason, nothing lost, and well again by itself when there is room."""

from __future__ import annotations

import contextlib
import random
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pyarrow as pa
import pytest

import quiver
from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.disk.reserve import RESERVE_FILE
from quiver.errors import Backpressure, Reason, StorageFull
from quiver.format.state import STATE_NAME
from quiver.store.store import Store
from quiver.subscriber.subscription import Subscription
from tests.faults.world import SLOT, Witness, batch, check, config, look, open_store
from tests.support.memory_disk import MemoryDisk

pytestmark = pytest.mark.fault

MOST_PUTS: Final = 5000
SMALLEST: Final = 6_000
LARGEST: Final = 60_000

REAL: Final[dict[str, Any]] = {
    "reserve": "256KiB",
    "wal": {"rotation_target": "256KiB", "max_size": "2MiB", "max_rotated_files": 12},
    "segment": {"target_size": "256KiB", "max_unfinalized": 4},
    "limits": {"max_bundle": "128KiB", "max_unsynced": "1MiB"},
}


def fill(store: Store, witness: Witness, numbers: Iterator[int]) -> Backpressure:
    """Put until the disk is full; what was said then."""
    for _ in range(MOST_PUTS):
        number = next(numbers)
        failed = len(witness.errors)
        witness.put(store, number)
        witness.settle()
        if len(witness.errors) > failed:
            error = witness.errors[-1]
            assert isinstance(error, Backpressure), error
            return error
    raise AssertionError("the disk never got full")


def ack_all(witness: Witness, subscription: Subscription) -> None:
    witness.ack_next(subscription, MOST_PUTS)
    witness.keep(subscription)


# In memory, at every size


@pytest.mark.parametrize("first", range(4))
def test_a_disk_of_every_size(first: int, record_property: Callable[[str, object], None]) -> None:
    """Wherever the room ends: `StorageFull` says so, and all that was durable is there.

    Acks still become durable, by the reserve; a restart on the full disk works; and with
    more room everything goes on without one.
    """
    sizes = range(SMALLEST + 250 * first, LARGEST, 1000)
    for size in sizes:
        raw = MemoryDisk(capacity=size)
        numbers = iter(range(MOST_PUTS * 3))
        witness = Witness()
        store = open_store(raw)
        a = witness.join(store, "a")
        store.activate()
        assert a is not None, witness.errors
        error = fill(store, witness, numbers)
        assert error.reason in (Reason.DISK, Reason.WAL_FULL, Reason.ROLLOVER)
        assert error.retryable
        witness.ack_next(a, 3)
        witness.keep(a)
        assert witness.kept["a"] == witness.asked.get("a", set()), "acks need no room"
        raw.locked.clear()
        check_full(raw.image(), size, witness)
        raw.capacity = None
        before = len(witness.durable)
        store.maintain()
        for _ in range(3):
            witness.put(store, next(numbers))
        witness.settle()
        assert len(witness.durable) == before + 3, "there is room again, and no put works"
        check(raw.image(), witness)
    record_property("tried", len(sizes))


def test_a_disk_smaller_than_two_reserves() -> None:
    """Scenario: a disk with room for one reserve and not for two, filled to every byte around the
    place where the log leaves less than a progress file needs. Guarantee: acks become durable."""
    for size in range(6_360, 6_420):
        store = open_store(MemoryDisk(capacity=size))
        witness = Witness()
        a = witness.join(store, "a")
        store.activate()
        assert a is not None, witness.errors
        fill(store, witness, iter(range(MOST_PUTS)))
        witness.ack_next(a, 3)
        witness.keep(a)
        assert witness.kept.get("a") == witness.asked["a"], (size, witness.errors[-1])


def check_full(files: dict[str, bytes], size: int, witness: Witness) -> None:
    """A restart on the full disk: it opens, and everything is there to be read."""
    again = MemoryDisk.from_image(
        files, record=False, capacity=max(size, sum(map(len, files.values())))
    )
    found = look(open_store(again))
    for number in witness.durable:
        assert number in found.bundles or witness.may_be_gone(number)


def test_the_error_says_what_and_when() -> None:
    """A typed error with a named reason and when to try again; durable data is not doubted."""
    store = open_store(MemoryDisk(capacity=9_000), config(segment={"target_size": "8KiB"}))
    witness = Witness()
    error = fill(store, witness, iter(range(MOST_PUTS)))
    assert isinstance(error, StorageFull)
    assert (error.code, error.reason) == ("storage_full", Reason.DISK)
    assert error.retry_after_ms > 0
    assert "no space left" in str(error)


def test_deleting_makes_room_by_itself() -> None:
    """Full of unread data; the subscriber reads and acks: the next puts find room."""
    raw = MemoryDisk(capacity=40_000)
    store = open_store(raw)
    witness = Witness()
    numbers = iter(range(MOST_PUTS * 3))
    a = witness.join(store, "a")
    store.activate()
    assert a is not None
    for _ in range(3):
        fill(store, witness, numbers)
        ack_all(witness, a)
        store.maintain()
        before = len(witness.durable)
        witness.put(store, next(numbers))
        witness.settle()
        assert len(witness.durable) == before + 1
    raw.locked.clear()
    check(raw.image(), witness)


# On a real file system


def _mount(kind: str, where: Path, scratch: Path) -> str | None:
    """Mount a small file system; why not, if it can't be."""
    where.mkdir()
    if kind == "tmpfs":
        command = ["mount", "-t", "tmpfs", "-o", "size=8m", "quiver", str(where)]
    else:
        if shutil.which(f"mkfs.{kind}") is None:
            return f"mkfs.{kind} is not installed"
        image = scratch / "image"
        with image.open("wb") as file:
            file.truncate((320 if kind == "xfs" else 12) << 20)
        force = ["-F"] if kind == "ext4" else ["-f"]
        made = subprocess.run([f"mkfs.{kind}", "-q", *force, str(image)], capture_output=True)
        if made.returncode:
            return f"mkfs.{kind}: {made.stderr.decode().strip()}"
        command = ["mount", "-o", "loop", str(image), str(where)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr.strip() or "not permitted" if done.returncode else None


@pytest.fixture(params=["tmpfs", "ext4", "xfs"])
def small_disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A real, small file system; skipped where it can't be mounted."""
    where = tmp_path / "mount"
    problem = _mount(request.param, where, tmp_path)
    if problem is not None:
        pytest.skip(f"can't mount a small {request.param} here: {problem}")
    yield where
    subprocess.run(["umount", str(where)], check=True)


def big(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number], "text": ["x" * 20_000]})


def eat(where: Path) -> Path:
    """Take all the room there is."""
    filler = where / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12, 1):
            try:
                while file.write(bytes(size)):
                    pass
            except OSError:
                continue
    return filler


def test_a_real_disk_gets_full(small_disk: Path) -> None:
    """Full, refused; acks durable; a restart on the full disk; room again, well again."""
    path = small_disk / "store"
    store = quiver.open(path, **REAL)
    a = store.subscribe("a")
    durable = [store.put({SLOT: big(n)}).wait().ref for n in range(20)]
    filler = eat(small_disk)
    refused: Backpressure | None = None
    for number in range(20, 500):
        try:
            durable.append(store.put({SLOT: big(number)}).wait().ref)
        except Backpressure as error:
            refused = error
            break
    assert isinstance(refused, Backpressure)
    assert refused.reason in (Reason.DISK, Reason.ROLLOVER, Reason.WAL_FULL)
    for _ in range(5):
        bundle = a.next_bundle()
        assert bundle is not None
        bundle.ack()
    a.flush()
    with contextlib.suppress(Backpressure):
        store.close()
    again = quiver.open(path, **REAL)
    assert again.register("a").pending_bundle_count == len(durable) - 5
    assert [len(again.read(ref)) for ref in durable] == [1] * len(durable)
    filler.unlink()
    again.maintain()
    more = [again.put({SLOT: big(n)}).wait().ref for n in range(1000, 1010)]
    again.close()
    final = quiver.open(path, **REAL)
    assert [len(final.read(ref)) for ref in [*durable, *more]] == [1] * (len(durable) + 10)
    final.close()


def test_a_full_disk_without_a_reserve_still_reads(small_disk: Path) -> None:
    """Nothing set aside: acks may have to wait, and say so; everything can still be read."""
    path = small_disk / "store"
    store = quiver.open(path, **{**REAL, "reserve": 0})
    refs = [store.put({SLOT: big(n)}).wait().ref for n in range(20)]
    store.flush()
    filler = eat(small_disk)
    assert [len(store.read(ref)) for ref in refs] == [1] * 20
    filler.unlink()
    store.close()


@pytest.mark.parametrize("target", ["1MiB", "64MiB"], ids=["sealed as it came", "all at once"])
def test_a_full_window_of_keys_does_not_hold_the_log(target: str) -> None:
    """Scenario: 65,000 idempotency keys are remembered, the disk is full, and the only
    subscriber finishes everything. Guarantee: the log is released with the reserve alone, and
    every key is still known after a restart on the full disk."""
    raw = MemoryDisk(record=False)
    settings = Config.load(
        env={},
        validation="off",
        wal={"rotation_target": "4MiB", "max_size": "512MiB", "max_rotated_files": 200},
        segment={"target_size": target},
        idempotency={"window_count": 65_000},  # a segment would be full with a few more
    )
    store = open_store(raw, settings)
    a = store.subscribe("a")
    rows = pa.record_batch({"n": pa.array([1], pa.int8())})
    rng = random.Random(10)
    keys = [str(UUID(int=rng.getrandbits(128))) for _ in range(settings.idempotency.window_count)]
    ref = [store.put({SLOT: rows}, key=key).ref for key in keys][-1]
    store.sync()
    raw.capacity = sum(map(len, raw.image().values()))
    with contextlib.suppress(StorageFull):
        store.maintain()
    for _ in keys:
        bundle = a.next_bundle(timeout=0)
        assert bundle is not None
        bundle.ack()
    a.flush()
    store.flush()
    store.maintain()
    files = [path for path in raw.image() if path.startswith("wal/quiver.wal.")]
    assert len(files) <= 2, files
    raw.locked.clear()
    again = open_store(MemoryDisk.from_image(raw.image(), record=False, capacity=raw.capacity))
    assert again.put({SLOT: rows}, key=keys[0]).duplicate
    assert again.put({SLOT: rows}, key=keys[-1]).ref == ref


def settled(store: Store, name: str, count: int, *, reject: bool = False) -> None:
    """Finish so many bundles and have that on disk."""
    subscription = store.subscribe(name, follow=False)
    for _ in range(count):
        bundle = subscription.next_bundle(timeout=0)
        assert bundle is not None
        if reject:
            bundle.reject()
        else:
            bundle.ack()
    store.flush_progress()


def test_a_ledger_larger_than_the_reserve() -> None:
    """Scenario: rejects have made the checkpoint larger than the reserve that is configured; then
    another process takes all the space. Guarantee: acks and rejects become durable, each reject
    with its row."""
    raw = MemoryDisk(record=False)
    store = open_store(raw, config(wal={"max_rotated_files": 200}))
    store.register("a")
    store.register("behind")  # holds everything, so that nothing is deleted
    for number in range(100):
        store.put({SLOT: batch(number)}).wait()
        store.flush()
    settled(store, "a", 80, reject=True)
    store.maintain()
    size = raw.stat_size(STATE_NAME)
    assert size is not None
    assert size > config().reserve
    raw.capacity = raw.used
    settled(store, "a", 5, reject=True)
    settled(store, "a", 5)
    raw.locked.clear()
    again = open_store(MemoryDisk.from_image(raw.image(), record=False, capacity=raw.capacity))
    assert again.register("a").pending_bundle_count == 10
    assert sum(one.bundles for one in again.losses) == 85


@pytest.mark.parametrize("left", [0, 9_000])
def test_what_the_reserve_frees_is_for_small_files(left: int) -> None:
    """Scenario: the disk is full, the reserve is released for an ack, and segments wait to be
    written while producers go on trying. Guarantee: neither takes the space that the next acks
    need, and the store is well again by itself when all is acked."""
    raw = MemoryDisk(record=False)
    clock = ManualClock()
    settings = config(reserve="32KiB", segment={"max_unfinalized": 16})
    store = Store(Disk(raw), settings, where="mem", clock=clock)
    store.register("a")
    store.register("b")
    for number in range(100):
        store.put({SLOT: batch(number)}).wait()
    raw.capacity = raw.used + left
    for _ in range(25):
        for name in ("a", "b"):
            settled(store, name, 2)
        kept = raw.free_bytes() + (raw.stat_size(RESERVE_FILE) or 0)
        assert kept > settings.reserve // 2, "the reserve was taken"
        for number in range(3):
            with contextlib.suppress(Backpressure):
                store.put({SLOT: batch(number)}).wait()
        with contextlib.suppress(Backpressure):
            store.flush()
        clock.advance(2.0)
        store.maintain()
    for name in ("a", "b"):
        for bundle in store.subscribe(name, follow=False):
            bundle.ack()
    for _ in range(3):
        clock.advance(20.0)
        store.maintain()
    store.put({SLOT: batch(1)}).wait()


def test_a_log_that_nobody_needs_makes_room() -> None:
    """Scenario: puts have filled the disk, all of them in the log file that is written to; then
    all is acked. Guarantee: that file goes, and puts are taken again."""
    raw = MemoryDisk(record=False, capacity=60_000)
    clock = ManualClock()
    settings = config(
        reserve="16KiB",
        wal={"rotation_target": "64KiB", "max_size": "256KiB"},
        segment={"target_size": "64KiB"},
    )
    store = Store(Disk(raw), settings, where="mem", clock=clock)
    store.register("a")
    witness = Witness()
    numbers = iter(range(MOST_PUTS))
    fill(store, witness, numbers)
    for bundle in store.subscribe("a", follow=False):
        bundle.ack()
    store.flush_progress()
    for _ in range(3):
        clock.advance(20.0)
        store.maintain()
    before = len(witness.durable)
    for _ in range(10):
        witness.put(store, next(numbers))
    witness.settle()
    assert len(witness.durable) == before + 10
