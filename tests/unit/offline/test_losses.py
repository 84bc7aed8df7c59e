"""What a repair puts on record where nothing tells which bundles are lost."""

from __future__ import annotations

import errno

from quiver import ManualClock
from quiver.disk.disk import Disk
from quiver.errors import QuiverError
from quiver.format.state import STATE_NAME, Checkpoint, decode_state
from quiver.offline.mend import mend
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.stores import World, flipped

WRITING = frozenset({"create", "pwritev", "fsync", "fsync_dir", "rename", "unlink", "mkdir"})


def lose_the_newest(world: World, number: int) -> None:
    """Put a bundle that only the log has, and let its entry rot: no bundle is behind it, so no row
    can name it."""
    world.put(number).wait()
    world.store.maintain()  # an entry behind it, which proves that it was durable
    world.kill()
    image = world.raw.image()["wal/quiver.wal"]
    at = image.index((number * 1000).to_bytes(8, "little"))
    world.change("wal/quiver.wal", lambda data: flipped(data, at))


def checkpoint(raw: MemoryDisk) -> Checkpoint:
    return decode_state(raw.image()[STATE_NAME])


def stored() -> World:
    """A store with a bundle in a segment."""
    world = World()
    world.store.subscribe("s", follow=False)
    world.put(0).wait()
    world.store.flush()
    return world


def test_two_losses_that_look_alike_are_two() -> None:
    """Scenario: the newest bundle is lost with the end of the log; after a repair the same happens
    to another. Guarantee: both are on record and counted."""
    world = stored()
    for number in (1, 2):
        lose_the_newest(world, number)
        mended = mend(Disk(world.raw), world.clock, where="mem")
        assert [(one.bundles, one.indexes) for one in mended.losses] == [(1, ())]
        world.open()
    state = checkpoint(world.raw)
    assert [(one.bundles, one.exact) for one in state.losses] == [(1, False)] * 2
    assert state.loss_totals["damaged.bundles"] == 2
    assert len({one.sequence for one in state.losses}) == 2


def test_a_loss_is_counted_once_however_often_the_repair_is_interrupted() -> None:
    """Scenario: a repair fails at any call, and is done again. Guarantee: one row."""
    world = stored()
    lose_the_newest(world, 1)
    image, directories = world.raw.image(), world.raw.directories()
    at, finished = 0, False
    while not finished:
        raw = MemoryDisk.from_image(image, directories)
        faulty = FaultyDisk(raw, Fault(at, errno.EIO, ops=WRITING))
        try:
            mend(Disk(faulty), ManualClock(), where="mem")
        except QuiverError:
            at += 1
        else:
            finished = True
        again = MemoryDisk.from_image(raw.image(), raw.directories())
        mend(Disk(again), ManualClock(), where="mem")
        state = checkpoint(again)
        assert len(state.losses) == 1, at
        assert state.loss_totals["damaged.bundles"] == 1, at
    assert at > 10
