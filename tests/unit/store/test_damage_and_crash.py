"""Damage found while serving, and then a crash: nothing that is still there is declared gone."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import pytest

from quiver import BundleRef, Config, ManualClock, Store
from quiver.disk.disk import Disk
from quiver.disk.seam import RawDisk
from quiver.format.state import STATE_NAME, decode_state, encode_state
from quiver.segment.info import segment_path
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.stores import World, batch, flipped

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


class Killed(BaseException):
    """The process dies here."""


class DyingDisk(FaultyDisk):
    """Lets so many calls through that change something; the next one kills the process."""

    CHANGES: Final = frozenset(
        {"create", "rename", "unlink", "mkdir", "fsync_dir", "pwritev", "fsync", "fdatasync"}
    )

    def __init__(self, raw: RawDisk, left: int) -> None:
        super().__init__(raw)
        self.left = left

    def due(self, op: str, path: str) -> Fault | None:
        if op in self.CHANGES:
            if self.left == 0:
                raise Killed
            self.left -= 1
        return super().due(op, path)


def damaged_before(world: World, *, finished: bool) -> World:
    """Segment 0 has two bundles and is cut short, and only the progress of "r" says how many
    there were: it has finished one of them, or both, and one behind them."""
    world.store.register("r")
    refs = world.sealed(0, 1)
    world.restart()
    later = world.sealed(2, 3, 4)
    done = [*(refs if finished else refs[:1]), later[0]]
    world.store.subscribe("r", follow=False).ack(done)
    world.store.flush_progress()
    state = decode_state(world.raw.image()[STATE_NAME])
    world.kill()
    world.change(segment_path(0), lambda data: data[:700])
    world.change(STATE_NAME, lambda data: encode_state(replace(state, bundle_counts={})))
    return world


@pytest.mark.parametrize("power_cut", [False, True])
@pytest.mark.parametrize("finished", [False, True])
def test_an_open_that_finds_damage_dies_at_every_step(finished: bool, power_cut: bool) -> None:
    """Scenario: an open finds a segment of which nothing is left, and dies at each of its changes
    in turn; so does the next one, later; then the subscriber acks and leaves, and the store is
    opened twice more. Guarantee: the loss is on record once, with the bundles that were there,
    and a segment that was finished is never on record; a lost one's file is in quarantine."""
    files = damaged_before(World(), finished=finished).raw.image()
    lost = [] if finished else [(0, 1, ((1, 2),), True)]
    config = Config.load(env={}, reserve=0)
    for step in range(500):
        raw = MemoryDisk.from_image(files)
        died = False
        for left in (step, step + 3):
            disk = DyingDisk(raw, left)
            try:
                Store(Disk(disk), config, where="mem", clock=ManualClock())
            except Killed:
                died = True
            raw.locked.clear()
            image = raw.durability().image() if power_cut else raw.image()
            raw = MemoryDisk.from_image(image)
        world = World(raw)
        world.store.subscribe("r", follow=False).ack([BundleRef(1, 1), BundleRef(1, 2)])
        world.store.flush_progress()
        world.kill()
        world.store.unregister("r")
        world.kill()
        rows = [
            (one.segment_seq, one.bundles, one.indexes, one.exact) for one in world.store.losses
        ]
        assert rows == lost, step
        assert bool(world.files("quarantine/")) or finished, step
        if not died:
            return
    raise AssertionError("it never got through")


def test_a_reclaimed_segment_above_a_rebuilt_one_stays_reclaimed(world: World) -> None:
    """Scenario: segment 0 is rebuilt from the log and not written again yet; an open finds
    segment 1, a transaction's that is finished, damaged; the only subscriber leaves; crash.
    Guarantee: segment 1 is not on record as lost, and segment 0 is still there."""
    reader = world.store.subscribe("r", follow=False)
    world.sealed(1)
    with world.store.stage("app", 0, "a") as stage:
        stage.put({"Logs": batch(2)})
        stage.finish()
    done = world.store.commit("app", 0, ["a"])
    world.store.flush()
    assert done.first_ref is not None
    reader.ack([done.first_ref])
    world.store.flush_progress()
    rot(world, 0)
    assert world.number_at(BundleRef(0, 0)) == 1
    world.kill()
    world.change(segment_path(1), lambda data: data[:700])
    assert world.open().report.reclaimed == (1,)
    world.store.unregister("r")
    world.kill()
    assert world.store.losses == ()
    assert world.store.report.reclaimed == ()
    assert world.drain("late") == [1]
