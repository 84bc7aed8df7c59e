"""Backpressure: a named reason, at once, with a hint; and it passes by itself."""

from __future__ import annotations

import errno
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from quiver import Background, Backpressure, MemoryBudget, Reason, Store, SystemClock
from quiver.errors import ConfigError, StorageFull
from quiver.metrics import INGEST_THROTTLE, SEGMENT_FINALIZED
from quiver.upkeep.sealing import MAX_PAUSE
from tests.support.faulty import FOREVER, Fault
from tests.support.stores import SECONDS, World, ack_all, payload, run_in_threads
from tests.unit.store.test_retention import CAP, SMALL

NO_SEGMENTS = Fault(
    at=0, error=errno.EIO, ops=frozenset({"create"}), under="segments/0", times=FOREVER
)


MANY = 500


def big() -> pa.RecordBatch:
    return payload(3000)


def put_until_refused(store: Store, *, wait: bool = True) -> tuple[int, Backpressure]:
    """Put and wait, again and again; how many were taken, and the refusal."""
    for taken in range(MANY):
        try:
            receipt = store.put({"Logs": big()})
            if wait:
                receipt.wait()
        except Backpressure as error:
            return taken, error
    pytest.fail("never refused")


def refused(world: World, put: Any) -> Backpressure:
    with pytest.raises(Backpressure) as caught:
        put()
    error = caught.value
    assert error.retryable
    assert error.retry_after_ms > 0
    assert world.store.metrics.counter(INGEST_THROTTLE, reason=str(error.reason)).value >= 1
    return error


def test_too_much_that_is_not_durable() -> None:
    """Scenario: a background that doesn't sync yet, and more is put than may be under way.
    Guarantee: `admission`; after the sync the same put comes in."""
    world = World(
        limits={"max_unsynced": "64KiB", "max_bundle": "64KiB"},
        wal={"flush": "interval", "flush_interval": "60s"},
    )
    with Background(1, 1) as background:
        store = world.open(background=background)
        taken, error = put_until_refused(store, wait=False)
        assert error.reason is Reason.ADMISSION
        assert taken * 3000 <= 64 << 10
        store.sync()
        store.put({"Logs": big()})
        store.close()


def test_without_a_background_a_put_makes_its_own_way() -> None:
    """Scenario: the same limit, no background, nobody waits for anything. Guarantee: puts
    sync what is staged by themselves and none is refused."""
    world = World(limits={"max_unsynced": "64KiB", "max_bundle": "64KiB"})
    receipts = [world.store.put({"Logs": big()}) for _ in range(100)]
    receipts[-1].wait()
    assert all(receipt.durable for receipt in receipts)


def test_segments_that_can_not_be_written() -> None:
    """Scenario: two segments are full and can't be written. Guarantee: `rollover`, nothing
    is lost, and when the disk is well again puts come in."""
    world = World(segment={"max_bundles": 2, "max_unfinalized": 2})
    world.put_durable(0)
    world.faulty.strike(NO_SEGMENTS)
    world.put_durable(1, 2, 3)
    error = refused(world, lambda: world.put(4))
    assert error.reason is Reason.ROLLOVER
    world.faulty.heal()
    world.clock.advance(MAX_PAUSE)
    world.put_durable(4)
    assert world.drain() == [0, 1, 2, 3, 4]


def test_segments_that_wait_for_a_full_disk_say_so() -> None:
    """Scenario: the disk is full; the log, which writes over its own files, is not, and
    segments wait. Guarantee: `storage_full`, the cause, and puts go on when there is room."""
    world = World(segment={"max_bundles": 2, "max_unfinalized": 2})
    world.put_durable(0)
    world.faulty.strike(replace(NO_SEGMENTS, error=errno.ENOSPC))
    world.put_durable(1, 2, 3)
    error = refused(world, lambda: world.put(4))
    assert isinstance(error, StorageFull)
    assert error.reason is Reason.DISK
    world.faulty.heal()
    world.clock.advance(MAX_PAUSE)
    world.put_durable(4)
    assert world.drain() == [0, 1, 2, 3, 4]


def test_a_full_log_ends_in_a_segment_and_then_in_backpressure() -> None:
    """Scenario: the log reaches its cap while segments can't be written. Guarantee:
    `wal_full`, never a file or a byte over the caps; afterwards it goes on by itself."""
    world = World(**(SMALL | {"segment": {"target_size": "8KiB", "max_unfinalized": 16}}))
    world.store.put({"Logs": big()}).wait()
    world.faulty.strike(NO_SEGMENTS)
    _, error = put_until_refused(world.store)
    assert error.reason is Reason.WAL_FULL
    log = {p: d for p, d in world.raw.image().items() if p.startswith("wal/quiver.wal")}
    assert sum(map(len, log.values())) <= 40 << 10
    world.faulty.heal()
    world.clock.advance(MAX_PAUSE)
    for _ in range(50):
        world.store.put({"Logs": big()}).wait()
        log = {p: d for p, d in world.raw.image().items() if p.startswith("wal/quiver.wal")}
        assert sum(map(len, log.values())) <= (40 << 10) + 24, "and the cursor"


def test_the_number_of_log_files_is_bounded() -> None:
    """Scenario: three files are allowed and segments can't be written. Guarantee: never a
    fourth; `wal_full` instead."""
    world = World(
        wal={"rotation_target": "16KiB", "max_size": "1MiB", "max_rotated_files": 3},
        segment={"target_size": "8KiB", "max_unfinalized": 16},
        limits={"max_bundle": "8KiB", "max_unsynced": "16KiB"},
    )
    world.store.put({"Logs": big()}).wait()
    world.faulty.strike(NO_SEGMENTS)
    error = None
    for _ in range(100):
        try:
            world.store.put({"Logs": big()}).wait()
        except Backpressure as caught:
            error = caught
            break
        files = [f for f in world.files("wal/") if not f.endswith(".cursor")]
        assert len(files) <= 3
    assert error is not None
    assert error.reason is Reason.WAL_FULL


def test_the_disk_budget() -> None:
    """Scenario: a cap, the policy `backpressure`, a subscriber that takes nothing.
    Guarantee: `disk` with the cap, the policy and the slowest subscriber in the message;
    the cap holds; once that subscriber is done, puts come in again."""
    world = World(**SMALL, retention={"size_cap": CAP})
    world.store.subscribe("archive")
    taken, error = put_until_refused(world.store)
    assert error.reason is Reason.DISK
    assert taken > 5
    for words in ("disk budget", "policy backpressure", '"archive"', f"{taken} bundles behind"):
        assert words in str(error)
    assert world.store.status().usage.on_disk <= CAP
    assert ack_all(world.store, "archive") == taken
    for _ in range(5):
        world.store.put({"Logs": big()}).wait()


def test_no_subscriber_is_named_as_the_reason() -> None:
    """Scenario: the same without any subscriber. Guarantee: the message says that nobody is
    there to finish anything."""
    world = World(**SMALL, retention={"size_cap": CAP})
    _, error = put_until_refused(world.store)
    assert "no subscriber" in str(error)


def test_a_full_disk_is_told_by_the_receipt_and_passes() -> None:
    """Scenario: the file system is full, then has room again. Guarantee: `StorageFull`, no
    bundle of it is ever delivered, reads and acks go on, `status` says so; with room, puts
    work again and nothing has to be restarted."""
    world = World(reserve="64KiB")
    world.put_durable(1, 2)
    reader = world.store.subscribe("r")
    world.raw.capacity = world.raw.used + 100
    receipt = world.store.put({"Logs": payload(50_000)})
    with pytest.raises(StorageFull):
        receipt.wait()
    assert world.store.status().state == "degraded"
    assert "full" in str(world.store.status())
    bundle = reader.next_bundle()
    assert bundle is not None
    bundle.ack()
    reader.flush()
    world.raw.capacity = None
    world.store.maintain()
    assert world.store.status().state == "ok"
    world.put_durable(3)
    world.power_cut()
    assert world.drain("r") == [2, 3]


def test_the_reserve_keeps_acks_working_on_a_full_disk() -> None:
    """Scenario: not one byte is free, and everything is acked. Guarantee: the reserve gives
    the room to write progress, segments go, and the reserve comes back."""
    world = World(reserve="64KiB")
    for n in range(3):
        world.store.put({"Logs": payload(100_000, n)}).wait()
    world.store.flush()
    world.raw.capacity = world.raw.used
    for bundle in world.store.subscribe("r", follow=False):
        bundle.ack()
    assert world.store.maintain().deleted == 1
    world.store.maintain()
    assert world.store.status().usage.reserve == 64 << 10
    world.put_durable(9)


def test_a_full_disk_does_not_keep_a_store_from_opening() -> None:
    """Scenario: killed on a full disk, opened again with no byte free but the reserve.
    Guarantee: it opens, shows its data, and acks can be saved."""
    world = World(reserve="64KiB")
    world.put_durable(1)
    world.raw.capacity = world.raw.used
    files, capacity = world.raw.image(), world.raw.used
    world.raw = type(world.raw).from_image(files, world.raw.directories(), capacity=capacity)
    world.open()
    reader = world.store.subscribe("r")
    bundle = reader.next_bundle()
    assert bundle is not None
    bundle.ack()
    reader.flush()


def test_memory_is_shared_and_the_largest_is_written_first() -> None:
    """Scenario: three stores share memory for about ten bundles; one holds most. Guarantee:
    at three quarters the large one is asked to write, the small ones are left alone; at the
    cap puts wait with `memory`, in all of them; after one round they come in again."""
    memory = MemoryBudget("40KiB")
    worlds = [World() for _ in range(3)]
    large, *small = [w.open(where=f"s{n}", memory=memory) for n, w in enumerate(worlds)]
    for store in small:
        store.put({"Logs": big()}).wait()
    for _ in range(9):
        large.put({"Logs": big()}).wait()
    small[0].maintain()  # measures, for all
    assert [w.files("segments/0") for w in worlds] == [[], [], []]
    large.maintain()
    assert [len(w.files("segments/0")) for w in worlds] == [1, 0, 0]
    while memory.used < memory.cap + 10_000:
        large.put({"Logs": big()}).wait()
    memory.measure(1e9)
    with pytest.raises(Backpressure) as caught:
        small[1].put({"Logs": big()})
    assert caught.value.reason is Reason.MEMORY
    large.maintain()
    small[1].put({"Logs": big()}).wait()
    for store in (large, *small):
        store.close()
    assert memory.used == 0


def test_a_put_that_finds_memory_full_writes_its_own_segment() -> None:
    """Scenario: one store without a background fills the budget alone. Guarantee: it is not
    refused: it writes what it holds and goes on."""
    world = World()
    memory = MemoryBudget(20_000)
    store = world.open(memory=memory)
    for _ in range(50):
        store.put({"Logs": big()}).wait()
        store.maintain()
        memory.measure(1e9, again=True)
    assert memory.used <= 20_000
    with pytest.raises(ConfigError):
        MemoryBudget(0)


def test_a_put_waits_for_room_as_long_as_it_was_told() -> None:
    """Scenario: the budget is used up; one put may wait a moment, one not at all, one long
    enough for another thread's acks. Guarantee: the first two are refused, the third comes
    in as soon as there is room."""
    world = World(**SMALL, retention={"size_cap": CAP})
    world.clock = SystemClock()  # type: ignore[assignment]
    store = world.open(background=True)
    reader = store.subscribe("r", follow=False)
    reason = None
    while reason is not Reason.DISK:  # a busy worker may be the reason before
        try:
            store.put({"Logs": big()}, timeout=0.2).wait()
        except Backpressure as error:
            reason = error.reason
    with pytest.raises(Backpressure):
        store.put({"Logs": big()})

    def ack() -> None:
        for bundle in reader:
            bundle.ack()

    run_in_threads(lambda: store.put({"Logs": big()}, timeout=SECONDS).wait(), ack)
    store.close()


def test_early_finalize_under_disk_pressure() -> None:
    """Scenario: the store is close to its cap, and the open segment is more than half full.
    Guarantee: the next round writes it early, so that it can be cleaned up."""
    # A segment well above what each of its files costs on top.
    settings = SMALL | {"segment": {"target_size": "32KiB"}}
    settings["wal"] = SMALL["wal"] | {"max_size": "80KiB"}
    cap = CAP + (168 << 10)
    world = World(**settings, retention={"size_cap": cap})
    early = world.store.metrics.counter(SEGMENT_FINALIZED, trigger="pressure")
    while not early.value:
        usage = world.store.status().usage
        world.store.put({"Logs": payload(300)}).wait()
        world.store.maintain()
    assert 16_384 - 1000 < usage.unwritten < 32_768, "at least half full, not quite full"
    assert usage.committed > cap - 3 * 32_768, "and close to the cap"
