"""What a repair puts on record where nothing tells which bundles are lost."""

from __future__ import annotations

import errno

from quiver import ManualClock
from quiver.disk.disk import Disk
from quiver.errors import QuiverError
from quiver.format.floor import FLOOR_PATH
from quiver.format.state import STATE_NAME, Checkpoint, decode_state
from quiver.offline.mend import mend
from quiver.offline.verify import verify
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.stores import World, batch, flipped

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
    interrupt_everywhere(world, bundles=1)


def test_an_interrupted_repair_does_not_count_the_log_it_was_setting_aside() -> None:
    """Scenario: a log of several files, damaged in its oldest; the repair fails at any call, also
    between two files of the log, and is done again. Guarantee: the one loss there was."""
    world = World(wal={"rotation_target": 64 << 10, "max_rotated_files": 2000})
    world.store.subscribe("s", follow=False)
    for number in range(8):
        world.store.put({"Logs": batch(number, rows=3000)}).wait()
    world.kill()
    logs = world.files("wal/quiver.wal.")
    assert len(logs) > 1
    at = world.raw.image()[logs[0]].index((1000).to_bytes(8, "little"))
    world.change(logs[0], lambda data: flipped(data, at))
    interrupt_everywhere(world, bundles=1)


def test_a_log_that_only_contradicts_itself_is_not_counted_as_lost() -> None:
    """Scenario: the end of the log is cut off at a whole entry, and a subscriber knows better; the
    repair fails at any call, and is done again. Guarantee: the one loss there was."""
    world = World()
    world.put_durable(0, 1)
    cut = len(world.raw.image()["wal/quiver.wal"])
    world.put_durable(2)
    assert world.drain("s") == [0, 1, 2]
    world.store.subscribe("t", follow=False)
    world.kill()
    world.change("wal/quiver.wal", lambda data: data[:cut])
    interrupt_everywhere(world, bundles=None)


def test_a_number_is_never_given_out_twice_after_repairs() -> None:
    """Scenario: the only bundle behind a repaired log is lost with the next log, and then the
    floor is damaged. Guarantee: its ref is not given to another one."""
    world = stored()
    lose_the_newest(world, 1)
    mend(Disk(world.raw), world.clock, where="mem")
    world.open()
    given = world.put_durable(2)[0]
    world.store.maintain()
    world.kill()
    at = world.raw.image()["wal/quiver.wal"].index((2000).to_bytes(8, "little"))
    world.change("wal/quiver.wal", lambda data: flipped(data, at))
    mend(Disk(world.raw), world.clock, where="mem")
    world.change(FLOOR_PATH, lambda data: flipped(data, 20))
    mend(Disk(world.raw), world.clock, where="mem")
    world.open()
    assert world.put_durable(3)[0] > given


def interrupt_everywhere(world: World, bundles: int | None) -> None:
    """Have a repair fail at every call, once each, and do it again."""
    image, directories = world.raw.image(), world.raw.directories()
    whole = MemoryDisk.from_image(image, directories)
    mend(Disk(whole), ManualClock(), where="mem")
    expected = checkpoint(whole)
    if bundles is not None:
        assert expected.loss_totals["damaged.bundles"] == bundles
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
        assert state.losses == expected.losses, at
        assert state.loss_totals == expected.loss_totals, at
        assert verify(Disk(again)).sound
    assert at > 10
