"""``open()``: one test for each row of the table in :mod:`quiver.recovery.recover`."""

from __future__ import annotations

import logging
import re

import pytest

from quiver import Store
from quiver.disk.disk import Disk
from quiver.errors import (
    BundleGone,
    LayoutMismatch,
    ProgressCorrupt,
    StateCorrupt,
    StoreLocked,
    WalCorrupt,
)
from quiver.events import RECOVERY_PROGRESS
from quiver.metrics import RECOVERY_BUNDLES, SEGMENT_QUARANTINED, TORN_TAILS
from quiver.wal.contents import LogEntry
from tests.support.memory_disk import MemoryDisk
from tests.support.segments import data_of
from tests.support.stores import World, flipped

SEGMENT = "segments/0000000000000000.qseg"
FLOOR = "segments/quiver.segment.seq"


def test_nothing_at_all_is_a_new_store(world: World) -> None:
    """Found: an empty directory. Done: a store that works, and that was no recovery."""
    assert world.store.report.bundles_replayed == 0
    assert world.store.status().state == "ok"
    world.put_durable(1)
    assert world.drain() == [1]


def test_the_lock_refuses_a_second_opener(world: World) -> None:
    """Found: another store has the directory. Done: refused, nothing touched."""
    world.put_durable(1)
    before = world.raw.image()
    with pytest.raises(StoreLocked):
        World(world.raw).open()
    assert world.raw.image() == before


@pytest.mark.parametrize("path", [FLOOR, "quiver.state"])
@pytest.mark.parametrize("how", ["damaged", "missing"])
def test_small_files_that_are_damaged_or_gone_refuse(world: World, path: str, how: str) -> None:
    """Found: floor or checkpoint fails its checksum, or is gone though something says there
    was one. Done: refused with advice; nothing was changed."""
    world.store.subscribe("r")
    world.sealed(1)
    world.put_durable(2)
    world.store.close()
    world.change(path, flipped if how == "damaged" else lambda _: None)
    before = {p: d for p, d in world.raw.image().items() if p != "LOCK"}
    with pytest.raises(StateCorrupt) as caught:
        world.open()
    assert caught.value.details["file"] == path
    assert "quiver" in caught.value.advice
    assert {p: d for p, d in world.raw.image().items() if p != "LOCK"} == before


def test_a_synced_entry_that_is_bad_refuses(world: World) -> None:
    """Found: a bit flipped in an entry that a later one proves synced. Done: refused, with
    file, offset and what is sound around it; nothing was changed."""
    for n in range(6):
        world.put_durable(n)
    log = world.raw.image()["wal/quiver.wal"]
    third = [found.start() for found in re.finditer(rb"\xb5QV1", log)][2]
    world.change("wal/quiver.wal", lambda data: flipped(data, third + 100))
    with pytest.raises(WalCorrupt) as caught:
        world.open()
    assert {"file", "offset", "sequence"} <= set(caught.value.details)
    assert "Nothing was changed" in str(caught.value)


def test_a_missing_log_refuses(world: World) -> None:
    """Found: no log although one was begun. Done: refused."""
    world.put_durable(1)
    world.change("wal/quiver.wal", lambda _: None)
    with pytest.raises(WalCorrupt):
        world.open()


def test_a_log_that_lost_its_end_refuses(world: World) -> None:
    """Found: a log cut at an entry's border, while a segment knows of later entries. Done:
    refused: what is gone was synced."""
    world.put_durable(0)
    size = len(world.raw.image()["wal/quiver.wal"])
    world.sealed(1, 2)
    world.change("wal/quiver.wal", lambda data: data[: size - 64])
    with pytest.raises(WalCorrupt):
        world.open()


def test_another_slot_table_refuses() -> None:
    """Found: a log of another declared slot table. Done: refused, with advice."""
    world = World(slots={"Logs": 3})
    world.put_durable(1)
    with pytest.raises(LayoutMismatch):
        world.kill(slots={"Logs": 4})


def test_a_torn_end_is_cut_and_kept(world: World) -> None:
    """Found: an unfinished write at the end of the log, never promised. Done: cut, a copy in
    quarantine, counted and reported; everything before it is there; the next open is clean."""
    world.put_durable(1, 2)
    whole = world.raw.image()["wal/quiver.wal"]
    world.put(3)
    world.store.sync()
    world.change("wal/quiver.wal", lambda data: data[: len(whole) + 100])
    store = world.open()
    assert store.report.torn_bytes > 0
    assert store.metrics.counter(TORN_TAILS).value == 1
    assert world.files("quarantine/") != []
    assert world.drain("a") == [1, 2]
    world.put_durable(4)
    world.kill()
    assert world.store.report.torn_bytes == 0
    assert world.drain("b") == [1, 2, 4]


def test_a_log_without_segments_is_replayed(world: World) -> None:
    """Found: bundles only in the log, nothing was ever finalized. Done: they are there, in
    memory, written by the next upkeep, delivered once."""
    world.put_durable(*range(5))
    store = world.power_cut()
    assert store.report.bundles_replayed == 5
    assert store.metrics.gauge(RECOVERY_BUNDLES).value == 5
    assert world.drain() == list(range(5))
    world.store.flush_progress()
    world.store.flush()
    world.power_cut()
    assert world.store.report.bundles_replayed == 0
    assert world.drain() == []


def test_what_a_segment_holds_is_not_replayed(world: World) -> None:
    """Found: a segment's file, and the log that still has its entries. Done: the entries are
    passed over: nothing comes twice."""
    world.sealed(1, 2)
    world.put_durable(3)
    world.power_cut()
    assert world.store.report.bundles_replayed == 1
    assert world.drain() == [1, 2, 3]


@pytest.mark.parametrize("how", ["damaged", "missing", "cut"])
def test_a_bad_segment_is_rebuilt_from_the_log(world: World, how: str) -> None:
    """Found: a segment damaged, cut or gone, and a log that still covers it. Done: rebuilt
    under the same refs; a damaged file is set aside; nothing is lost."""
    refs = world.sealed(1, 2)
    edits = {"damaged": flipped, "missing": lambda _: None, "cut": lambda data: data[:-20]}
    world.change(SEGMENT, edits[how])  # type: ignore[arg-type]
    store = world.open()
    assert store.report.lost == ()
    if how != "missing":
        assert store.report.rebuilt == (0,)
        assert len(world.files("quarantine/")) == 1
    assert [world.number_at(ref) for ref in refs] == [1, 2]
    world.store.maintain()
    world.power_cut()
    assert world.drain() == [1, 2]


@pytest.mark.parametrize("how", ["missing", "cut"])
def test_a_bad_segment_without_a_log_is_recorded_as_lost(world: World, how: str) -> None:
    """Found: the same after a clean close, when the log has nothing of it. Done: set aside,
    recorded as lost for each subscriber, `degraded`; the rest is served; told once."""
    world.store.subscribe("r")
    world.sealed(1, 2)
    world.sealed(3)
    world.store.close()
    world.change(SEGMENT, (lambda _: None) if how == "missing" else (lambda d: d[:60]))
    store = world.open()
    [loss] = store.report.lost
    assert (loss.segment_seq, loss.reason) == (0, "damaged")
    assert store.status().state == "degraded"
    assert world.drain("r") == [3]
    with pytest.raises(BundleGone):
        store.read((0, 0))
    world.restart()
    assert world.store.report.lost == ()
    assert world.store.status().loss_totals["damaged.segments"] == 1


def test_damage_found_while_reading_is_recorded(world: World) -> None:
    """Found: a flipped byte in the middle of a segment that nothing but its checksum shows,
    at the first read. Done: its bundle is recorded as lost, the reader goes on with the next;
    the file is written again without it."""
    world.store.subscribe("r")
    world.sealed(1, 2)
    world.sealed(3)
    world.store.close()
    place = data_of(Disk(world.raw), 0, 0)
    world.change(SEGMENT, lambda data: flipped(data, place))
    store = world.open()
    assert store.status().state == "ok", "a start does not read all segments"
    assert world.drain("r") == [2, 3]
    store.flush()
    (copy,) = world.files("quarantine/")
    assert copy.startswith(f"quarantine/{SEGMENT.partition('/')[2]}.")
    assert store.metrics.counter(SEGMENT_QUARANTINED).value == 1
    status = store.status()
    assert status.state == "degraded"
    assert dict(status.losses[0].subscribers) == {"r": 1}
    assert status.losses[0].indexes == ((0, 1),)
    assert status.subscribers[0].lag.bundles == 0


def test_damage_found_while_reading_is_rebuilt_from_the_log(world: World) -> None:
    """Found: the same while the log still has it. Done: the reader gets its bundles, from
    memory, and the next upkeep writes the file again."""
    world.store.subscribe("r")
    refs = world.sealed(1, 2)
    raw = world.raw
    with raw.mutex:
        inode = raw._names["segments"]["0000000000000000.qseg"]
        assert inode is not None
        inode.data = flipped(bytes(inode.data), 70)
    assert world.number_at(refs[0]) == 1
    assert world.store.status().losses == ()
    assert world.drain("r") == [1, 2]
    assert len(world.files("quarantine/")) == 1


def test_a_deletion_that_a_crash_interrupted_is_finished(world: World) -> None:
    """Found: a segment's file whose number the floor calls gone. Done: deleted; its bundles
    don't come back."""
    world.sealed(1)
    segment = world.raw.image()[SEGMENT]
    world.drain("r")
    world.store.maintain()
    files = {**world.raw.image(), SEGMENT: segment}
    world.raw = type(world.raw).from_image(files, world.raw.directories())
    world.open()
    assert world.files("segments/0") == []
    assert world.drain("new") == []


def test_damaged_progress_refuses_by_default(world: World) -> None:
    """Found: a progress file that fails its check. Done: by policy; `fail` unless told."""
    world.store.subscribe("r")
    world.change("quiver.sub.r", flipped)
    with pytest.raises(ProgressCorrupt):
        world.open()


def test_half_written_files_are_removed(world: World) -> None:
    """Found: temporary files that a crash left. Done: gone after the open."""
    world.store.subscribe("r")
    world.sealed(1)
    left = ["segments/0000000000000007.qseg.tmp", "quiver.sub.r.tmp", "quiver.state.tmp"]
    files = {**world.raw.image(), **dict.fromkeys(left, b"half")}
    world.raw = type(world.raw).from_image(files, world.raw.directories())
    world.open()
    world.store.maintain()
    world.store.flush_progress()
    assert [path for path in world.files() if path.endswith(".tmp")] == []
    assert world.put(2).ref.segment_seq == 1


def test_files_of_others_are_left_alone(world: World) -> None:
    """Found: files that are none of ours. Done: ignored, and still there."""
    world.sealed(1)
    files = {**world.raw.image(), "segments/notes.txt": b"mine", "README": b"x"}
    world.raw = type(world.raw).from_image(files, world.raw.directories())
    world.open()
    assert world.drain() == [1]
    assert world.raw.image()["segments/notes.txt"] == b"mine"


def test_recovery_reads_no_segments_that_the_log_does_not_cover() -> None:
    """Scenario: many segments, a clean close, an open. Guarantee: of a segment only its tail
    is read: opening goes with the log's size, not with what is stored."""
    world = World()
    for n in range(20):
        world.sealed(*range(n * 10, n * 10 + 10))
    world.store.close()
    world.open()
    reads = [path for op, path in world.faulty.calls if op in ("view",) and "qseg" in path]
    assert reads == []


def test_recovery_can_be_watched(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario: a long recovery. Guarantee: a progress bar is told of every entry, and the
    log says every few seconds how far it is."""
    world.put_durable(*range(10))
    seen: list[int] = []

    def watch(entry: LogEntry) -> None:
        seen.append(entry.sequence)
        world.clock.advance(2)

    image = MemoryDisk.from_image(world.raw.image(), world.raw.directories())
    with caplog.at_level(logging.INFO, "quiver"):
        Store(Disk(image), world.store.config, where="x", clock=world.clock, watch=watch).close()
    assert seen == sorted(seen)
    assert len(seen) >= 10
    told = [r for r in caplog.records if getattr(r, "event", "") == RECOVERY_PROGRESS]
    assert len(told) == 3
    assert told[0].fields["entries"] > 2  # type: ignore[attr-defined]


def test_recovery_is_idempotent(world: World) -> None:
    """Scenario: a crash right after an open, several times. Guarantee: the same bundles and
    the same files each time, apart from the lock."""
    world.sealed(1)
    world.put_durable(2)
    world.kill()
    first = {p: d for p, d in world.raw.image().items() if p != "LOCK"}
    for _ in range(3):
        world.kill()
        assert {p: d for p, d in world.raw.image().items() if p != "LOCK"} == first
    assert world.drain() == [1, 2]
