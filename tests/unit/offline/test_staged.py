"""Offline tools and staged writes."""

from __future__ import annotations

from quiver.clock import ManualClock
from quiver.disk.disk import Disk
from quiver.format.segment.file import MIN_SIZE
from quiver.format.segment.guard import SEAL_SIZE, decode_seal
from quiver.format.segment.stage import StageKey, stage_path
from quiver.format.state import STATE_NAME
from quiver.offline.dump import dump
from quiver.offline.mend import mend
from quiver.offline.repair import RepairPlan
from quiver.offline.summary import summarize
from quiver.offline.verify import verify
from quiver.segment.info import segment_path
from quiver.segment.reader import load_info
from tests.support.memory_disk import MemoryDisk
from tests.support.segments import data_of
from tests.support.stores import World, batch, flipped

PENDING = stage_path(StageKey("app", 1, "a1").id, 0)
WAITING = stage_path(StageKey("app", 2, "a2").id, 0)


def staged() -> World:
    """Version 0 committed and published, 1 committed only, 2 finished; puts around."""
    world = World()
    world.put(1).wait()
    for version in range(3):
        with world.store.stage("app", version, f"a{version}") as stage:
            stage.put({"Logs": batch(10 + version)})
            stage.put({"Logs": batch(20 + version)})
            stage.finish()
        if version == 1:
            world.store._upkeep.seal_quietly = lambda: None  # type: ignore[method-assign]
        if version < 2:
            world.store.commit("app", version, [f"a{version}"])
    world.put(2).wait()
    return world


def disk_of(world: World) -> Disk:
    world.raw.locked.clear()
    return Disk(world.raw)


def flip(data: bytes) -> bytes:
    return data[:300] + bytes([data[300] ^ 1]) + data[301:]


def test_a_look_shows_stages_and_commits() -> None:
    """Scenario: a store that crashed between a commit and its segments. Guarantee: sound; all
    committed bundles are shown and dumped, what only waits is shown apart."""
    disk = disk_of(staged())
    summary = summarize(disk, ManualClock())
    assert summary.sound
    assert summary.bundles == 6
    assert [(row.attempt, row.state, row.bundles) for row in summary.stages] == [
        ("a2", "finished", 2)
    ]
    assert [(row.app, row.version) for row in summary.transactions] == [("app", 1)]
    assert [row.state for row in summary.segments] == ["sealed", "sealed", "committed", "in log"]
    assert any("wait for their commit" in note for note in summary.notes)
    assert verify(disk).sound
    saved = dump(disk, Disk(MemoryDisk())).saved
    assert [one.ref for one in saved] == [(0, 0), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    assert len({one.sequence for one in saved[3:5]}) == 1


def test_damaged_staged_files_are_named() -> None:
    """Scenario: a byte of a waiting stage, and of a committed file, has changed. Guarantee: both
    are problems, with what they cost; a repair sets them aside, records the bundle that is lost
    and makes the other one a segment of its transaction."""
    world = staged()
    world.change(PENDING, flip)
    world.change(WAITING, flip)
    disk = disk_of(world)
    verdict = verify(disk)
    assert {problem.file for problem in verdict.problems} == {PENDING, WAITING}
    assert verdict.lost_bundles == 1
    assert {PENDING, WAITING} <= {action.file for action in RepairPlan(disk).actions}
    mended = mend(disk, ManualClock(), where="mem")
    assert [(loss.segment_seq, loss.indexes) for loss in mended.losses] == [(2, ((0, 1),))]
    assert len(world.files("quarantine/")) == 2
    store = world.open()
    assert [seq for seq, _ in store.segments()] == [0, 1, 2, 3]
    assert load_info(disk, 2).transaction == ("app", 1)
    assert store.committed("app") == 1
    assert len(store.status().losses) == 1
    assert store.stages() == []


def test_a_repair_without_the_log_publishes_what_it_committed() -> None:
    """Scenario: the log is damaged behind a commit that is not published. Guarantee: the repair
    publishes it before the log is set aside; its version is remembered."""
    world = staged()
    for _ in range(3):
        world.put(3).wait()
    world.change("wal/quiver.wal", lambda data: _flip_last_put(data))
    disk = disk_of(world)
    assert not verify(disk).sound
    mend(disk, ManualClock(), where="mem")
    store = world.open()
    assert (2, 2) in store.segments()
    assert store.commit("app", 1, ["a1"]).repeated
    assert not store.commit("app", 2, ["a2"]).repeated


def _flip_last_put(data: bytes) -> bytes:
    """Inside an entry that later ones prove to be synced: the second put from the end."""
    at = data.rindex(b"\xb5QV1", 0, data.rindex(b"\xb5QV1")) + 60
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def test_a_lost_checkpoint_leaves_the_versions_that_segments_name() -> None:
    """Scenario: everything is published, the log is gone on, the checkpoint is damaged.
    Guarantee: a repair knows the committed versions again, from the segments themselves."""
    world = World()
    world.store.subscribe("a")
    with world.store.stage("app", 5, "a") as stage:
        stage.put({"Logs": batch(1)})
        stage.finish()
    world.store.commit("app", 5, ["a"])
    for number in range(10):
        world.put(number).wait()
    world.store.close()  # lets the log go: all of it is in segments
    world.change("quiver.state", lambda data: data[:50] + b"\xff" + data[51:])
    disk = disk_of(world)
    assert not RepairPlan(disk).found.replay.commits
    mend(disk, ManualClock(), where="mem")
    assert world.open().commit("app", 5, ["a"]).repeated


def committed(*, closed: bool) -> World:
    """Version 5 committed and published as segment 0; closed, the log has no commit any more."""
    world = World()
    world.store.subscribe("a", follow=False)
    with world.store.stage("app", 5, "a") as stage:
        stage.put({"Logs": batch(1)})
        stage.put({"Logs": batch(2)})
        stage.finish()
    world.store.commit("app", 5, ["a"])
    if closed:
        world.store.close()
    return world


def _flip_tables(data: bytes) -> bytes:
    """A byte of the directory: the file can't be read as it is, and all of it is intact."""
    seal = decode_seal(data[len(data) - MIN_SIZE - SEAL_SIZE :][:SEAL_SIZE])
    assert seal is not None
    return flipped(data, seal.directory_offset + seal.directory_length // 2)


def repaired(world: World) -> World:
    mend(disk_of(world), ManualClock(), where="mem")
    return world


def test_a_version_that_only_damaged_tables_name() -> None:
    """Scenario: the log entry of a commit and the tables of its segment are damaged. Guarantee:
    a repair salvages the segment, and with it what it was committed with."""
    world = committed(closed=False)
    world.put(3).wait()
    world.put(4).wait()
    world.change(segment_path(0), _flip_tables)
    at = world.raw.image()["wal/quiver.wal"].index(b"app")
    world.change("wal/quiver.wal", lambda data: flipped(data, at))
    store = repaired(world).open()
    assert store.commit("app", 5, ["a"]).repeated
    assert load_info(disk_of(world), 0).transaction == ("app", 5)
    assert world.drain("a") == [1, 2, 3, 4]


def test_a_segment_that_is_written_again_keeps_its_transaction() -> None:
    """Scenario: a bundle of a committed segment, or its tables, rot; an open or a repair writes
    the segment again; then the checkpoint rots. Guarantee: the version is still known."""
    for repair in (False, True):
        for tables in (False, True):
            world = committed(closed=True)
            if tables:
                world.change(segment_path(0), _flip_tables)
            else:
                at = data_of(disk_of(world), 0, 0)
                world.change(segment_path(0), lambda data, at=at: flipped(data, at))  # type: ignore[misc]
            if repair:
                repaired(world)
            world.open().close()
            assert load_info(disk_of(world), 0).transaction == ("app", 5)
            world.change(STATE_NAME, flipped)
            assert repaired(world).open().commit("app", 5, ["a"]).repeated


def test_a_lost_version_stays_committed() -> None:
    """Scenario: the segment of a commit is lost, and the batch is committed again. Guarantee: the
    loss is on record, and the commit is answered as repeated: versions only rise."""
    for repair in (False, True):
        world = committed(closed=True)
        world.change(segment_path(0), lambda _: None)
        if repair:
            repaired(world)
        store = world.open()
        assert [(loss.segment_seq, loss.bundles) for loss in store.losses] == [(0, 2)]
        assert store.commit("app", 5, ["a"]).repeated
