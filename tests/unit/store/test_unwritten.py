"""A segment that everybody has finished before it is its turn is not written at all."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from quiver.errors import BundleGone, IoFault
from quiver.metrics import SEGMENT_FINALIZED, SEGMENT_UNWRITTEN
from quiver.segment.closing import Trigger
from quiver.upkeep.sealing import HOLD_SECONDS, Sealing
from tests.support.faulty import Fault
from tests.support.stores import World, batch


def unwritten(world: World) -> float:
    return world.store.metrics.counter(SEGMENT_UNWRITTEN).value


def begun(world: World, name: str) -> None:
    """A subscriber that has finished the first bundle of a segment."""
    sub = world.store.subscribe(name)
    world.put_durable(1)
    bundle = sub.next_bundle()
    assert bundle is not None
    bundle.ack()


def test_what_all_have_finished_gets_no_file(world: World) -> None:
    """Scenario: a subscriber has acked everything before the segment is closed.
    Guarantee: nothing is written, and all that is left of it is that its number is used."""
    world.store.subscribe("a")
    refs = world.put_durable(1, 2)
    world.drain("a")
    world.store.flush()
    assert world.files("segments/0") == []
    assert unwritten(world) == 1
    assert world.store.metrics.counter(SEGMENT_FINALIZED, trigger="flush").value == 0
    with pytest.raises(BundleGone):
        world.store.read(refs[0])
    world.restart()
    assert world.drain("a") == []
    assert world.put_durable(3)[0].segment_seq > refs[0].segment_seq


@pytest.mark.parametrize("clean", [True, False])
def test_it_does_not_come_back(world: World, clean: bool) -> None:
    """Scenario: let go, then the process ends, cleanly or not. Guarantee: nobody is given
    any of it again, and what came later is there."""
    world.store.subscribe("a")
    world.put_durable(1)
    world.drain("a")
    world.store.flush()
    world.put_durable(2)
    if clean:
        world.restart()
    else:
        world.power_cut()
    assert world.drain("a") == [2]


def test_it_does_not_come_back_behind_one_that_is_kept(world: World) -> None:
    """Scenario: segment 0 has an open bundle, segment 1 is finished and let go; then a crash
    while the log still has it. Guarantee: only the open bundle is given out."""
    sub = world.store.subscribe("a")
    world.put_durable(1)
    world.store.flush()
    world.put_durable(2)
    first, second = sub.next_bundle(), sub.next_bundle()
    assert first is not None
    assert second is not None
    second.ack()
    world.store.flush()
    assert unwritten(world) == 1
    world.store.flush_progress()
    world.kill()
    assert world.drain("a") == [1]


def test_one_bundle_that_is_wanted_keeps_all(world: World) -> None:
    """Scenario: two subscribers, one of them has yet to ack a bundle. Guarantee: the segment
    is written, and that one gets its bundle after a crash."""
    world.store.subscribe("a")
    world.store.subscribe("b")
    world.put_durable(1)
    world.drain("a")
    world.store.flush()
    assert unwritten(world) == 0
    assert len(world.files("segments/0")) == 1
    world.power_cut()
    assert world.drain("b") == [1]


@pytest.mark.parametrize(
    "keep",
    [
        {"keep_after_finish": 60.0},
        {"keep_after_finish_bytes": "1MiB"},
        {"steady_state_headroom": "1MiB"},
    ],
)
def test_what_retention_keeps_is_written(keep: dict[str, Any]) -> None:
    """Scenario: finished data is to be kept for going back. Guarantee: it gets its file."""
    world = World(retention=keep)
    world.store.subscribe("a")
    world.put_durable(1)
    world.drain("a")
    world.store.flush()
    assert unwritten(world) == 0
    assert len(world.files("segments/0")) == 1


def test_without_subscribers_all_is_written(world: World) -> None:
    """Scenario: nobody has subscribed yet. Guarantee: the segment is written for whoever
    will."""
    world.put_durable(1)
    world.store.flush()
    assert unwritten(world) == 0
    assert world.drain("late") == [1]


def test_a_key_is_remembered(world: World) -> None:
    """Scenario: a keyed bundle is finished and let go, the log too; its producer repeats it
    after a restart. Guarantee: it is recognised."""
    world.store.subscribe("a")
    first = world.store.put({"Logs": batch(1)}, key="k").wait()
    world.drain("a")
    world.store.flush()
    world.restart()
    again = world.store.put({"Logs": batch(1)}, key="k").wait()
    assert again.duplicate
    assert again.ref == first.ref
    assert world.drain("a") == []


def test_a_full_disk_is_freed_without_room_for_a_segment() -> None:
    """Scenario: the disk is full, all bundles are acked and only in the log. Guarantee: upkeep
    lets them go, though there is no room to write a segment."""
    world = World(reserve=4096)
    world.store.subscribe("a")
    world.put_durable(*range(40))
    world.drain("a")
    world.store.flush_progress()
    world.raw.capacity = world.raw.used
    world.store.flush()
    assert unwritten(world) == 1
    assert world.files("segments/0") == []


# Waiting a moment for those who are about to finish


def closed(world: World, *numbers: int) -> Sealing:
    """A closed segment with these bundles, in the hands of nobody."""
    world.put_durable(*numbers)
    with world.store._lock:
        world.store._segments.closed(Trigger.SIZE)
    return world.store._upkeep.sealing


def test_it_waits_for_those_who_keep_up(world: World) -> None:
    """Scenario: a subscriber is in the middle of a closed segment. Guarantee: it isn't written
    yet; it is its turn as soon as the subscriber has finished, and then gets no file."""
    begun(world, "a")
    sealing = closed(world, 2)
    assert not sealing.is_ready()
    assert sealing.try_all(patient=True) == (0, None)
    world.drain("a")
    assert sealing.is_ready()
    assert sealing.try_all(patient=True) == (1, None)
    assert unwritten(world) == 1


def test_it_does_not_wait_for_ever(world: World) -> None:
    """Scenario: the subscriber stops in the middle. Guarantee: after a moment it is written."""
    begun(world, "a")
    sealing = closed(world, 2)
    assert not sealing.is_ready()
    world.clock.advance(HOLD_SECONDS)
    assert sealing.is_ready()
    sealing.try_all(patient=True)
    assert len(world.files("segments/0")) == 1


def test_it_does_not_wait_where_that_is_no_use(world: World) -> None:
    """Scenario: a subscriber that hasn't begun the segment; nobody at all. Guarantee: its turn
    is at once."""
    world.store.subscribe("behind")
    assert closed(world, 1, 2).is_ready()
    lonely = World()
    assert closed(lonely, 1).is_ready()


def test_it_does_not_wait_when_room_is_needed(world: World) -> None:
    """Scenario: a second segment is closed; or a put is refused for want of room. Guarantee:
    nothing is left in memory for later."""
    begun(world, "a")
    sealing = closed(world, 2)
    assert not sealing.is_ready()
    sealing.hurry()
    assert sealing.is_ready()
    sealing.try_all(patient=True)
    world.put_durable(3)
    world.drain("a")
    sealing = closed(world, 4)
    assert not sealing.is_ready()
    closed(world, 5)
    assert sealing.is_ready()


def test_a_failed_try_changes_nothing(world: World) -> None:
    """Scenario: the floor can't be written when a finished segment is let go. Guarantee: the
    error is told, the segment is still there, and the next try succeeds."""
    world.store.subscribe("a")
    world.put_durable(1)
    world.drain("a")
    world.store.flush_progress()
    world.faulty.arm(Fault(0, error=errno.EIO, ops=frozenset({"rename"})))
    with pytest.raises(IoFault):
        world.store.flush()
    assert unwritten(world) == 0
    assert world.drain("a") == []
    world.store.flush()
    assert unwritten(world) == 1
    world.kill()
    assert world.drain("a") == []
