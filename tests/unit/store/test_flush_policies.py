"""When the log is synced: for every entry, for a group, or by time."""

from __future__ import annotations

import threading

import pytest

from quiver import Background, SystemClock
from quiver.errors import WaitTimeout, WalCorrupt
from quiver.metrics import WAL_SYNCS
from tests.support.stores import SECONDS, World, flipped, run_in_threads


def syncs(world: World) -> float:
    return world.store.metrics.counter(WAL_SYNCS).value


def test_every_syncs_each_put() -> None:
    """Scenario: `flush: every`, nobody waits. Guarantee: each put is durable when it
    returns, each by a sync of its own."""
    world = World(wal={"flush": "every"})
    world.put(9)  # names its slot in an entry of its own
    before = syncs(world)
    receipts = [world.put(n) for n in range(4)]
    assert all(r.durable for r in receipts)
    assert syncs(world) - before == 4
    world.power_cut()
    assert world.drain() == [9, 0, 1, 2, 3]


def test_a_group_shares_one_sync(world: World) -> None:
    """Scenario: `flush: group`, a hundred puts, one waits. Guarantee: one sync for all."""
    receipts = [world.put(n) for n in range(100)]
    before = syncs(world)
    receipts[50].wait()
    assert all(r.durable for r in receipts)
    assert syncs(world) - before == 1


def test_many_who_wait_share_syncs(world: World) -> None:
    """Scenario: eight threads put and wait, each on its own. Guarantee: all are durable, and
    there were no more syncs than puts."""
    before = syncs(world)

    def produce() -> None:
        for n in range(25):
            assert world.put(n).wait(SECONDS).durable

    run_in_threads(*[produce] * 8)
    assert syncs(world) - before <= 200
    world.power_cut()
    assert len(world.drain()) == 200


def test_groups_are_bounded() -> None:
    """Scenario: far more is staged than one group may hold. Guarantee: several groups, each
    within the limit, all durable in the end."""
    world = World(wal={"max_group": 1024})
    receipts = [world.put(n) for n in range(10)]
    before = syncs(world)
    receipts[-1].wait()
    assert syncs(world) - before >= 5
    assert all(r.durable for r in receipts)


def test_interval_gathers_until_its_time() -> None:
    """Scenario: `flush: interval` with a background, by a clock that stands still. Guarantee:
    nothing is synced, however long one waits in vain; when time passes all of it is, by one
    sync, though nobody puts or waits any more."""
    world = World(wal={"flush": "interval", "flush_interval": "1s"})
    with Background(1, 1) as background:
        store = world.open(background=background)
        receipts = [world.put(n) for n in range(5)]
        assert not any(r.durable for r in receipts)
        before = syncs(world)
        pause = threading.Event()
        for _ in range(1000):
            if receipts[0].done:
                break
            world.clock.advance(0.01)
            pause.wait(0.01)
        assert all(r.durable for r in receipts)
        assert syncs(world) - before == 1
        store.close()


def test_interval_without_a_background_syncs_for_who_waits() -> None:
    """Scenario: `flush: interval`, no background. Guarantee: waiting makes it durable, as
    nobody else would."""
    world = World(wal={"flush": "interval", "flush_interval": "60s"})
    assert world.put(1).wait().durable


def test_a_wait_ends_in_time() -> None:
    """Scenario: the sync is far off and the wait is short. Guarantee: `WaitTimeout`, and the
    receipt can be waited for again."""
    world = World(wal={"flush": "interval", "flush_interval": "60s"})
    world.clock = SystemClock()  # type: ignore[assignment]
    with Background(1, 1) as background:
        store = world.open(background=background)
        receipt = world.put(1)
        with pytest.raises(WaitTimeout):
            receipt.wait(timeout=0.02)
        store.sync()
        assert receipt.wait(timeout=0.02).durable
        store.close()


def test_a_background_syncs_without_anyone_waiting() -> None:
    """Scenario: `flush: group` with a background; puts, and nobody waits. Guarantee: they
    become durable all the same, and a subscriber is told."""
    world = World()
    with Background(1, 1) as background:
        store = world.open(background=background)
        reader = store.subscribe("r")
        receipt = world.put(1)
        bundle = reader.next_bundle(timeout=None)
        assert bundle is not None
        assert receipt.durable
        store.close()


def test_an_idle_log_gets_its_watermark() -> None:
    """Scenario: the last group was synced, nothing follows. Guarantee: upkeep adds the entry
    that proves it, so that a flipped bit there is damage, not an unfinished write."""
    world = World()
    world.put_durable(1)
    last = len(world.raw.image()["wal/quiver.wal"]) - 120
    world.store.maintain()
    world.store.maintain()
    world.change("wal/quiver.wal", lambda data: flipped(data, last))
    with pytest.raises(WalCorrupt):
        world.open()
