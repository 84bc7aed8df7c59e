"""A segment found damaged while serving: what can be saved is saved, the rest is on record."""

from __future__ import annotations

import pytest

from quiver import BundleRef
from quiver import metrics as m
from quiver.disk.disk import Disk
from quiver.errors import BundleGone, StorageFull
from quiver.format.record import LOST_ATTRIBUTE, BundleMeta
from quiver.segment.info import segment_path
from quiver.segment.open_segment import OpenSegment
from quiver.segment.reader import SegmentReader
from quiver.segment.salvage import Salvaged
from quiver.upkeep import healing
from tests.support.faulty import FOREVER, Fault
from tests.support.stores import World
from tests.unit.store.test_damage_and_crash import rot


def saves(*lost: int) -> object:
    """A salvage that finds everything but these bundles intact."""

    def salvage(disk: Disk, path: str, seq: int) -> Salvaged | None:
        reader = SegmentReader.open(disk, seq, mode="pread", verify=False)
        segment = OpenSegment(seq)
        for index in range(len(reader)):
            if index in lost:
                segment.append((), BundleMeta(attributes={LOST_ATTRIBUTE: "damaged"}))
            else:
                segment.append(reader.encoded(index), reader.meta(index))
        return Salvaged(segment, lost, reader.info)

    return salvage


@pytest.fixture
def damaged(world: World, monkeypatch: pytest.MonkeyPatch) -> World:
    """Segment 0 with bundles 0 to 3, which the log has not any more; "fast" has finished 0 and
    1, "slow" has finished 0; bundle 1 of its file is damaged."""
    fast = world.store.subscribe("fast", follow=False)
    slow = world.store.subscribe("slow", follow=False)
    refs = world.sealed(0, 1, 2, 3)
    fast.ack(refs[:2])
    slow.ack(refs[:1])
    world.restart()
    rot(world, 0)
    monkeypatch.setattr(healing, "salvage", saves(1))
    return world


def lost(world: World, index: int) -> bool:
    try:
        world.store.read(BundleRef(0, index))
    except BundleGone as gone:
        return gone.details["outcome"] == "lost"
    return False


@pytest.mark.parametrize("crash", [None, "kill", "power_cut"])
@pytest.mark.parametrize("rewritten", [False, True])
def test_only_what_is_damaged_is_lost(damaged: World, crash: str | None, rewritten: bool) -> None:
    """Scenario: one bundle of a segment is damaged, a read finds out, and the process may die
    before the file is written again. Guarantee: the neighbours are read; the lost one is
    `lost`, on record for the one subscriber that needed it; finished ones stay finished."""
    world = damaged
    assert [world.number_at(BundleRef(0, index)) for index in (0, 2, 3)] == [0, 2, 3]
    assert lost(world, 1)
    (loss,) = world.store.losses
    assert (loss.segment_seq, loss.bundles, loss.indexes) == (0, 1, ((1, 2),))
    assert dict(loss.subscribers) == {"slow": 1}
    assert world.store.metrics.counter(m.SUBSCRIBER_LOST, subscriber="slow").value == 1
    assert world.store.status().state == "degraded"
    if rewritten:
        world.store.flush()
        assert len(world.files("quarantine/")) == 1
    if crash is not None:
        getattr(world, crash)()
    assert lost(world, 1)
    assert len(world.store.losses) == 1, "on record once"
    assert world.drain("fast") == [2, 3]
    assert world.drain("slow") == [2, 3]


def test_what_all_have_finished_is_no_loss(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: the damaged bundle was finished by everybody. Guarantee: nothing on record as
    lost, the damage is told, the others are read."""
    reader = world.store.subscribe("r", follow=False)
    refs = world.sealed(0, 1, 2)
    reader.ack(refs[:1])
    world.restart()
    rot(world, 0)
    monkeypatch.setattr(healing, "salvage", saves(0))
    assert world.number_at(refs[1]) == 1
    assert world.store.losses == ()
    assert "every subscriber had finished" in world.store.status().problems[0]
    assert world.drain("r") == [1, 2]


def test_without_a_subscriber_nothing_is_finished(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the same, and nobody has subscribed yet. Guarantee: it is a loss."""
    refs = world.sealed(0, 1)
    world.restart()
    rot(world, 0)
    monkeypatch.setattr(healing, "salvage", saves(0))
    assert world.number_at(refs[1]) == 1
    (loss,) = world.store.losses
    assert (loss.bundles, loss.indexes, dict(loss.subscribers)) == (1, ((0, 1),), {})


def test_a_segment_of_which_nothing_is_left(
    damaged: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: nothing can be saved. Guarantee: all that somebody needed is on record before
    the file is set aside; a crash right then records nothing twice."""
    monkeypatch.setattr(healing, "salvage", lambda disk, path, seq: None)
    assert lost(damaged, 2)
    (loss,) = damaged.store.losses
    assert (loss.bundles, loss.indexes) == (3, ((1, 4),))
    assert dict(loss.subscribers) == {"fast": 2, "slow": 3}
    assert len(damaged.files("quarantine/")) == 1
    damaged.power_cut()
    assert lost(damaged, 2)
    assert len(damaged.store.losses) == 1
    assert damaged.drain("fast") == damaged.drain("slow") == []


def test_a_crash_between_ledger_and_file(damaged: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: nothing can be saved, and the process dies when the loss is on record and the
    file is still in its place. Guarantee: the next open moves it, and records nothing again."""
    monkeypatch.setattr(healing, "salvage", lambda disk, path, seq: None)
    damaged.faulty.strike(
        Fault(0, error=5, ops=frozenset({"rename"}), under="segments/0", times=FOREVER)
    )
    with pytest.raises(Exception, match="rename"):
        damaged.store.read(BundleRef(0, 2))
    assert len(damaged.store.losses) == 1
    assert segment_path(0) in damaged.files()
    damaged.kill()
    assert segment_path(0) not in damaged.files()
    assert damaged.files("quarantine/")
    assert lost(damaged, 2)
    assert len(damaged.store.losses) == 1


def test_a_full_disk_does_not_keep_the_saved_from_being_read(damaged: World) -> None:
    """Scenario: damage on a disk that is full. Guarantee: the saved bundles are read from
    memory, and written when there is room."""
    damaged.faulty.strike(
        Fault(0, error=28, ops=frozenset({"create"}), under="quarantine/", times=FOREVER)
    )
    assert damaged.number_at(BundleRef(0, 3)) == 3
    with pytest.raises(StorageFull):
        damaged.store.flush()
    assert damaged.number_at(BundleRef(0, 2)) == 2
    damaged.faulty.heal()
    damaged.store.flush()
    damaged.power_cut()
    assert damaged.drain("fast") == [2, 3]


def test_a_file_that_vanished_is_rebuilt(world: World) -> None:
    """Scenario: somebody removes a segment's file; the log still has it. Guarantee: it is read
    all the same, and written again."""
    refs = world.sealed(1, 2)
    world.store._disk.unlink(segment_path(0))
    assert world.number_at(refs[1]) == 2
    world.store.flush()
    assert segment_path(0) in world.files()


def test_a_file_that_vanished_for_good_is_on_record(world: World) -> None:
    """Scenario: the same, and the log has nothing of it. Guarantee: a loss on record, not a
    silent deletion."""
    world.store.subscribe("r")
    world.sealed(1, 2)
    world.restart()
    world.store._disk.unlink(segment_path(0))
    assert lost(world, 0)
    (loss,) = world.store.losses
    assert (loss.bundles, dict(loss.subscribers)) == (2, {"r": 2})
