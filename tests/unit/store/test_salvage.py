"""One flipped byte costs the bundles it touches: at an open, in a dump, in a repair."""

from __future__ import annotations

import errno

import pytest

from quiver import BundleRef, Config, Store
from quiver.disk.disk import Disk
from quiver.errors import BundleGone, QuiverError
from quiver.format.state import Loss
from quiver.offline.dump import dump
from quiver.offline.mend import mend
from quiver.offline.verify import verify
from tests.support.crashed import SETTINGS
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.rust import Image, batches_of
from tests.support.stores import World, batch, flipped, number_of

FIRST = "segments/0000000000000000.qseg"
NUMBERS = (10, 11, 12, 13)


def rotten(at: int = 2) -> World:
    """Four bundles in a segment that the log has let go; a byte of one has changed."""
    world = World()
    world.store.subscribe("reader", follow=False)
    world.sealed(*NUMBERS)
    world.sealed(20)
    reader = world.store.subscribe("reader", follow=False)
    reader.ack([(0, 0)])
    reader.flush()
    world.store.close()
    values = batch(NUMBERS[at])["n"].buffers()[1].to_pybytes()[:24]
    world.change(FIRST, lambda data: flipped(data, data.index(values) + 5))
    return world


def expected(loss: Loss) -> None:
    assert (loss.segment_seq, loss.bundles, loss.exact) == (0, 1, True)
    assert loss.indexes == ((2, 3),)
    assert dict(loss.subscribers) == {"reader": 1}


def left(world: World) -> list[int]:
    """What a new subscriber, and the one that had acked the first, are given."""
    assert world.drain("newcomer") == [10, 11, 13, 20]
    return world.drain("reader")


def without_end(world: World) -> None:
    """A start reads only the ends of segments that the log doesn't cover, so those go too; of
    themselves they cost no bundle: all they say is said elsewhere in the file."""
    world.change(FIRST, lambda data: data[:-20])


def test_an_open_salvages_what_is_intact() -> None:
    """Scenario: a segment is found damaged at an open, the log has nothing of it. Guarantee: the
    neighbours of the rotten bundle are served under their own refs; the loss is on record with
    its index; the damaged file is in quarantine; told once."""
    world = rotten()
    without_end(world)
    store = world.open()
    [loss] = store.report.lost
    expected(loss)
    assert left(world) == [11, 13, 20]
    with pytest.raises(BundleGone):
        store.read((0, 2))
    assert world.number_at(BundleRef(0, 3)) == 13
    assert len(world.files("quarantine/")) == 1
    assert world.restart().report.lost == ()


def test_a_dump_saves_what_is_intact() -> None:
    """Scenario: the same, dumped. Guarantee: everything but the rotten bundle is saved, that one
    is named, and nothing is changed."""
    world = rotten()
    before = world.raw.image()
    out = Disk(MemoryDisk())
    result = dump(Disk(world.raw), out)
    assert [one.ref for one in result.saved] == [(0, 0), (0, 1), (0, 3), (1, 0)]
    saved = [number_of(batches_of(one, out)[0]) for one in result.saved]
    assert saved == [10, 11, 13, 20]
    [lost] = result.lost
    assert (lost.file, lost.bundles, lost.refs) == (FIRST, 1, (BundleRef(0, 2),))
    assert world.raw.image() == before


def test_a_repair_keeps_what_is_intact() -> None:
    """Scenario: the same, repaired. Guarantee: as after an open, and nothing is left to repair."""
    world = rotten()
    mended = mend(Disk(world.raw), world.clock, where="mem")
    [loss] = mended.losses
    expected(loss)
    assert mended.written == (0,)
    assert verify(Disk(world.raw)).sound
    assert left(world) == [11, 13, 20]


def test_salvage_is_not_undone_by_a_crash() -> None:
    """Scenario: an open that salvages fails at each of its writes in turn; then comes another.
    Guarantee: what was intact is never lost, and the loss is on record once."""
    world = rotten()
    without_end(world)
    image: Image = dict(world.raw.image())
    writing = frozenset({"create", "pwritev", "fsync", "fsync_dir", "rename", "unlink", "mkdir"})
    at, done = 0, False
    while not done:
        raw = MemoryDisk.from_image(image, ["", "wal", "segments"])
        disk = Disk(FaultyDisk(raw, Fault(at, errno.EIO, ops=writing)))
        try:
            Store(disk, Config.load(env={}, reserve=0), where="mem", clock=world.clock)
            done = True
        except QuiverError:
            at += 1
        again = World(MemoryDisk.from_image(raw.image(), ["", "wal", "segments"]))
        [loss] = again.store.status().losses
        expected(loss)
        assert left(again) == [11, 13, 20], at
    assert at > 8


def test_the_end_that_the_log_has_is_used_too() -> None:
    """Scenario: the log has retired the first file with a segment's first bundles and still has
    the others; the segment's file is gone. Guarantee: what the log has is served under the same
    refs, the rest is on record."""
    world = World(**SETTINGS)
    world.store.subscribe("reader", follow=False)
    refs = world.put_durable(*range(40))
    assert {ref.segment_seq for ref in refs} == {0}
    assert len(world.files("wal/quiver.wal.")) > 2
    world.store.flush()
    world.put_durable(40)
    world.kill()
    world.change(FIRST, lambda _: None)
    world.open()
    numbers = world.drain("reader")
    assert 1 < len(numbers) < 41
    assert numbers == list(range(41))[-len(numbers) :]
    [loss] = world.store.status().losses
    assert (loss.bundles, loss.exact) == (41 - len(numbers), True)
    assert loss.indexes == ((0, 41 - len(numbers)),)
