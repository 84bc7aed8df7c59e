"""Damage found while serving, and then a crash: nothing that is still there is declared gone."""

from __future__ import annotations

from typing import Final

import pytest

from quiver import BundleRef
from quiver.disk.disk import Disk
from quiver.segment.info import segment_path
from tests.support.stores import World, flipped

FIRST: Final = BundleRef(1, 0)


def rot(world: World, seq: int, at: int = 70) -> None:
    """Flip a bit of a segment file under the open store, as a disk does."""
    with Disk(world.raw).open(segment_path(seq), write=True) as file:
        file.write_all([flipped(file.pread(1, at), 0)], at)
        file.fsync()


def served(world: World) -> World:
    """Segments 1 to 3, written, and all of them still in the log; "r" has finished the one in
    the middle.  Segment 0 was swept before, so the floor has passed them."""
    reader = world.store.subscribe("r", follow=False)
    first = world.sealed(0)
    world.sealed(1, 2)
    middle = world.sealed(3)
    world.sealed(4)
    reader.ack(first)
    world.store.maintain()
    reader.ack(middle)
    world.store.flush_progress()
    return world


@pytest.mark.parametrize("crash", ["kill", "power_cut"])
@pytest.mark.parametrize("rewritten", [False, True])
def test_a_rebuilt_segment_is_not_gone(world: World, crash: str, rewritten: bool) -> None:
    """Scenario: a read finds segment 1 damaged and it is rebuilt from the log into memory;
    another segment is swept before, or after, it is written again; then a crash.
    Guarantee: its bundles are there afterwards and nothing is on record as lost."""
    served(world)
    rot(world, 1)
    assert world.number_at(FIRST) == 1
    assert world.store._upkeep.sweeping.sweep().deleted == 1
    if rewritten:
        world.store.flush()
        world.store.flush_progress()
    getattr(world, crash)()
    store = world.store
    assert store.losses == ()
    assert store.status().state == "ok"
    assert world.drain("r") == [1, 2, 4]


def test_a_second_restart_keeps_the_rewritten_file(world: World) -> None:
    """Scenario: as above, and the segment was written again before two restarts. Guarantee:
    the sound file is not taken for one whose deletion was decided."""
    served(world)
    rot(world, 1)
    assert world.number_at(FIRST) == 1
    world.store._upkeep.sweeping.sweep()
    world.store.flush()
    world.kill()
    world.restart()
    assert segment_path(1) in world.files()
    assert world.drain("r") == [1, 2, 4]


def test_an_open_that_rebuilds_one_and_loses_another(world: World) -> None:
    """Scenario: an open finds segment 0 lost and segment 1 damaged but still in the log; the
    process is killed right after. Guarantee: the next open still finds segment 1."""
    world.store.subscribe("r")
    world.sealed(1, 2)
    world.restart()
    world.sealed(3, 4)
    world.kill()
    world.change(segment_path(0), lambda data: None)
    world.change(segment_path(1), lambda data: flipped(data, 70))
    world.open()
    world.kill()
    world.kill()
    assert [loss.segment_seq for loss in world.store.losses] == [0]
    assert world.drain("r") == [3, 4]


def test_what_is_deleted_above_a_rebuilt_segment_stays_deleted(world: World) -> None:
    """Scenario: segment 1 is rebuilt into memory; segment 2, above it, is finished by all and
    deleted; crash. Guarantee: segment 2 does not come back from the log."""
    served(world)
    rot(world, 1)
    assert world.number_at(FIRST) == 1
    assert world.store._upkeep.sweeping.sweep().deleted == 1
    world.kill()
    assert [seq for seq, _ in world.store.segments()] == [1, 3]
    assert world.drain("late") == [1, 2, 4]


def test_the_log_of_a_rebuilt_segment_is_kept(world: World) -> None:
    """Scenario: a segment is rebuilt from the log into memory, and the log rotates behind it
    before it is written again. Guarantee: the log files that hold its only copy stay."""
    served(world)
    rot(world, 1)
    assert world.number_at(FIRST) == 1
    wal = world.store._wal
    assert wal is not None
    wal.rotate()
    world.store._upkeep.sealing.retire_log()
    world.power_cut()
    assert world.drain("r") == [1, 2, 4]
