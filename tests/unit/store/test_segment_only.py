"""`segment_only`: no log; a bundle is durable when its segment's file is."""

from __future__ import annotations

import errno
from typing import Any

import pytest

from quiver import Background
from quiver.errors import StoreClosed, UnknownBundle
from tests.support.faulty import FOREVER, Fault
from tests.support.stores import SECONDS, World, batch, flipped


def world_without_log(**settings: Any) -> World:
    return World(durability="segment_only", **settings)


def test_there_is_no_log() -> None:
    """Scenario: puts, a flush, a close. Guarantee: not one log file; everything comes back."""
    world = world_without_log()
    refs = world.sealed(1, 2)
    world.store.close()
    assert [path for path in world.files("wal/") if "quiver.wal" in path] == []
    world.open()
    assert [world.number_at(ref) for ref in refs] == [1, 2]
    assert world.drain() == [1, 2]


def test_waiting_writes_the_segment() -> None:
    """Scenario: no background, a put waited for, a power cut. Guarantee: waiting wrote it;
    what was not waited for is gone, and was never called durable."""
    world = world_without_log()
    kept = world.put(1).wait()
    lost = world.put(2)
    assert not lost.durable
    with pytest.raises(UnknownBundle):
        world.store.read(lost.ref)
    world.power_cut()
    assert world.number_at(kept.ref) == 1
    assert world.drain() == [1]


def test_only_what_is_sealed_is_delivered() -> None:
    """Scenario: bundles in memory, a subscriber looks. Guarantee: nothing before the
    segment is written, all of it after."""
    world = world_without_log()
    world.put(1)
    assert world.drain() == []
    world.store.flush()
    assert world.drain() == [1]


def test_with_a_background_the_triggers_decide() -> None:
    """Scenario: a background, segments of three bundles, somebody waits for the first.
    Guarantee: the wait ends when the third fills the segment, not before."""
    world = world_without_log(segment={"max_bundles": 3})
    with Background(1, 1) as background:
        store = world.open(background=background)
        first = world.put(1)
        world.put(2)
        assert not first.done
        world.put(3)
        assert first.wait(timeout=SECONDS).durable
        store.close()


def test_a_failed_segment_is_tried_again() -> None:
    """Scenario: the disk is full, then has room. Guarantee: no false durable, the bundles
    stay in memory, the next try makes them durable."""
    world = world_without_log()
    receipt = world.put(1)
    world.faulty.strike(Fault(at=0, error=errno.ENOSPC, ops=frozenset({"create"})))
    with pytest.raises(Exception, match="no space"):
        receipt.wait()
    assert not receipt.durable
    assert receipt.wait().durable
    world.power_cut()
    assert world.drain() == [1]


def test_closing_tells_those_who_wait() -> None:
    """Scenario: the store is closed while its segment can't be written. Guarantee: the close
    says so, and the receipt will never claim to be durable, nor keep anyone waiting."""
    world = world_without_log()
    receipt = world.put(1)
    world.faulty.strike(Fault(at=0, error=errno.EIO, ops=frozenset({"create"}), times=FOREVER))
    with pytest.raises(Exception, match="create"):
        world.store.close()
    with pytest.raises(StoreClosed):
        receipt.wait(timeout=1)


@pytest.mark.parametrize("end", ["kill", "power_cut", "restart"])
def test_names_sequences_and_progress_are_kept(end: str) -> None:
    """Scenario: the store ends and goes on. Guarantee: slot names, the order of sequences
    and acks are as before."""
    world = world_without_log()
    first = world.put(1).wait()
    assert world.drain("r") == [1]
    world.store.flush_progress()
    getattr(world, end)()
    second = world.put(2).wait()
    assert second.sequence > first.sequence
    assert world.drain("r") == [2]
    assert set(world.store.read(second.ref)) == {"Logs"}


@pytest.mark.parametrize("end", ["kill", "power_cut", "restart"])
def test_a_store_can_change_its_mode(end: str) -> None:
    """Scenario: from log to no log and back, with bundles only in the log. Guarantee: all of
    it is there each time, under its refs."""
    world = World()
    refs = world.put_durable(1, 2)
    getattr(world, end)(durability="segment_only")
    refs += world.sealed(3)
    getattr(world, end)(durability="wal")
    refs += world.put_durable(4)
    getattr(world, end)()
    assert [world.number_at(ref) for ref in refs] == [1, 2, 3, 4]
    assert world.drain() == [1, 2, 3, 4]


def test_keys_outlive_damage_that_cost_no_bundle() -> None:
    """Scenario: a keyed bundle is in one segment only, a byte between its streams rots, and the
    process is killed. Guarantee: the bundle is there, and its repeat is a duplicate."""
    world = world_without_log()
    ref = world.put(1, key="k").wait().ref
    path = f"segments/{ref.segment_seq:016x}.qseg"
    world.change(path, lambda data: flipped(data, len(data) // 3))
    store = world.kill()
    assert (world.number_at(ref), store.losses) == (1, ())
    again = world.put(1, key="k").wait()
    assert (again.duplicate, again.ref) == (True, ref)


def test_keys_of_a_damaged_segment_keep_their_order() -> None:
    """Scenario: of three segments with a key each the first one rots, and the process is killed;
    a new slot makes the store write its checkpoint. Guarantee: the next start finds a checkpoint
    that it can read, and every repeat is a duplicate."""
    world = world_without_log()
    refs = [world.put(number, key=f"k{number}").wait().ref for number in range(3)]
    path = f"segments/{refs[0].segment_seq:016x}.qseg"
    world.change(path, lambda data: flipped(data, len(data) // 3))
    world.kill().put({"Traces": batch(3)}, key="k3").wait()
    world.kill()
    again = [world.put(number, key=f"k{number}").wait() for number in range(3)]
    assert [(one.duplicate, one.ref) for one in again] == [(True, ref) for ref in refs]


@pytest.mark.parametrize("at", [0.1, 0.5, 0.9])
def test_names_outlive_damage_of_the_only_segment_that_has_them(at: float) -> None:
    """Scenario: a slot's first bundle is in one segment, whose file rots while the process is
    killed; there is no log. Guarantee: what can be read of it has its slot's name."""
    world = world_without_log()
    ref = world.store.put({"Traces": batch(1)}).wait().ref
    path = f"segments/{ref.segment_seq:016x}.qseg"
    world.change(path, lambda data: flipped(data, int(len(data) * at)))
    store = world.kill()
    if not store.losses:
        assert list(store.read(ref)) == ["Traces"]
    again = store.put({"Traces": batch(2)}).wait().ref
    assert list(world.kill().read(again)) == ["Traces"]
