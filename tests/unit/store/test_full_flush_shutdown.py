"""Shutdown that leaves nothing: stop intake, flush, wait for subscribers, end."""

from __future__ import annotations

import threading

import pytest

from quiver import Background, SystemClock
from quiver.errors import StoreClosed
from tests.support.stores import SECONDS, World, number_of, run_in_threads


def test_drain_waits_for_everyone() -> None:
    """Scenario: two subscribers work off a backlog while the store is drained. Guarantee:
    new puts are refused at once, both get everything, then `drain` is done and nothing is
    left on disk."""
    world = World()
    world.clock = SystemClock()  # type: ignore[assignment]
    with Background(1, 2) as background:
        store = world.open(background=background)
        readers = [store.subscribe(name) for name in ("a", "b")]
        for n in range(50):
            world.put(n)
        seen: list[list[int]] = [[], []]
        draining = threading.Event()

        def consume(index: int) -> None:
            draining.wait(SECONDS)
            for bundle in readers[index]:
                seen[index].append(number_of(bundle["Logs"]))
                bundle.ack()

        def shut_down() -> None:
            threading.Timer(0.05, draining.set).start()
            assert store.drain(timeout=SECONDS)
            with pytest.raises(StoreClosed, match="drained"):
                world.put(99)
            store.close()

        run_in_threads(lambda: consume(0), lambda: consume(1), shut_down)
    assert seen == [list(range(50))] * 2
    assert world.files("segments/0") == []


def test_drain_gives_up_in_time() -> None:
    """Scenario: one subscriber takes nothing. Guarantee: `drain` says so when time is up, the
    store is still open, and after a restart the rest is there."""
    world = World()
    world.clock = SystemClock()  # type: ignore[assignment]
    world.store.subscribe("slow")
    world.put(1)
    assert not world.store.drain(timeout=0.05)
    world.restart()
    assert world.drain("slow") == [1]


def test_drain_writes_everything_first(world: World) -> None:
    """Scenario: bundles accepted and not synced, no subscriber. Guarantee: after `drain` all
    of it is in segment files."""
    receipts = [world.put(n) for n in range(3)]
    assert world.store.drain(timeout=0)
    assert all(r.durable for r in receipts)
    assert len(world.files("segments/0")) == 1
    world.power_cut()
    assert world.drain() == [0, 1, 2]


def test_orphans_count(world: World) -> None:
    """Scenario: a subscriber that isn't back yet. Guarantee: the store is not drained while
    it has something left."""
    world.store.register("away")
    world.sealed(1)
    world.restart()
    assert world.store.activate() == ["away"]
    assert not world.store.drain(timeout=0)
