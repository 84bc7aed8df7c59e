"""Upkeep that can't get anywhere: bounded work, and a pause before it is tried again."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import Final

import pytest

from quiver import metrics as m
from quiver.errors import Backpressure
from quiver.segment.closing import Trigger
from tests.support.faulty import FOREVER, Fault
from tests.support.stores import World

NO_ROOM: Final = Fault(
    at=0, error=errno.ENOSPC, ops=frozenset({"create"}), under="segments/0", times=FOREVER
)


def full() -> World:
    """A disk without room for another segment, and two of them in memory that wait for it."""
    world = World(segment={"max_bundles": 2, "max_unfinalized": 2})
    world.put_durable(0)
    world.faulty.strike(NO_ROOM)  # the log goes on: it writes over its own files
    world.put_durable(1, 2, 3)
    return world


def refuse(world: World, puts: int, step: float) -> None:
    """A producer that doesn't give up; so many seconds between its tries."""
    for number in range(puts):
        with pytest.raises(Backpressure):
            world.put(number)
        world.clock.advance(step)


def failures(world: World) -> float:
    return world.store.metrics.counter(m.SEGMENT_FINALIZE_FAILED).value


def test_a_full_disk_is_not_tried_all_the_time() -> None:
    """Scenario: a full disk, and a producer that tries 100 times a second for 20 seconds.
    Guarantee: writing the segment is tried again after rising pauses, not with every put."""
    world = full()
    refuse(world, 2000, 0.01)
    assert 3 <= failures(world) <= 10


def test_the_background_does_not_try_all_the_time_either() -> None:
    """Scenario: the same, and the background asks what is due 100 times a second. Guarantee:
    it is due seldom, and other work is still done when it is."""
    world = full()
    for _ in range(2000):
        if world.store._upkeep.is_due():
            world.store.work()
        world.clock.advance(0.01)
    assert 3 <= failures(world) <= 10
    reader = world.store.subscribe("r", follow=False)
    bundle = next(iter(reader))
    bundle.ack()
    world.clock.advance(1.0)
    assert world.store._upkeep.is_due()
    world.store.work()
    assert not world.store._registry.dirty


def test_room_that_returns_ends_the_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: after many failures somebody makes room on the disk. Guarantee: the next put
    gets in, without waiting for the end of the pause."""
    world = full()
    disk = world.store._disk
    monkeypatch.setattr(disk, "free_bytes", lambda: 100)
    refuse(world, 100, 0.1)
    world.faulty.heal()
    refuse(world, 1, 0.0)
    monkeypatch.setattr(disk, "free_bytes", lambda: 1 << 30)
    world.put_durable(4)
    assert world.drain() == [0, 1, 2, 3, 4]


def test_bytes_that_are_freed_end_the_pause() -> None:
    """Scenario: the same, and a subscriber has finished a segment, which is deleted. Guarantee:
    what waited is tried again at once."""
    world = World(
        segment={"max_bundles": 2, "max_unfinalized": 2}, retention={"steady_state_headroom": 1}
    )
    reader = world.store.subscribe("r", follow=False)
    refs = world.put_durable(0, 1)
    world.faulty.strike(NO_ROOM)
    world.put_durable(2, 3, 4, 5)
    refuse(world, 100, 0.1)
    world.faulty.heal()
    refuse(world, 1, 0.0)
    reader.ack(refs)
    world.store.work()
    world.store.work()
    assert world.store.status().unwritten_segments == 0


def test_sealing_commits_no_more_than_it_needs(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a closed segment waits for its last group, and producers stage a new bundle
    behind every commit. Guarantee: sealing commits up to that group and goes on."""
    store = world.store
    world.put(1)
    wal = store._wal
    assert wal is not None
    commit: Callable[[], int] = wal.commit
    count = 0

    def and_another() -> int:
        nonlocal count
        done = commit()
        count += 1
        if count < 200:
            world.put(count + 1)
        return done

    monkeypatch.setattr(wal, "commit", and_another)
    with store._lock:
        store._parts.segments.closed(Trigger.FLUSH)
    assert store._upkeep.sealing.seal_one()
    assert count == 1
