"""Segments: when they are closed, how they are written, and that their numbers stay used."""

from __future__ import annotations

import errno
from typing import Any

import pyarrow as pa
import pytest

from quiver import BundleRef
from quiver.errors import IoFault, QuiverError
from quiver.metrics import SEGMENT_FINALIZE_FAILED, SEGMENT_FINALIZED, WAL_SYNCS
from tests.support.batches import dictionary
from tests.support.faulty import FOREVER, Fault
from tests.support.stores import World, batch, payload


def finalized(world: World, trigger: str) -> float:
    return world.store.metrics.counter(SEGMENT_FINALIZED, trigger=trigger).value


TRIGGERS: dict[str, tuple[dict[str, Any], int]] = {
    "size": ({"target_size": 2000}, 2),
    "bundles": ({"max_bundles": 3}, 3),
    "rows": ({"max_rows": 7}, 3),
}


@pytest.mark.parametrize("trigger", TRIGGERS)
def test_a_full_segment_is_written(trigger: str) -> None:
    """Scenario: puts until one limit is reached. Guarantee: at that put, not before, the
    segment gets its file, the trigger is counted, and the next put starts another."""
    settings, full_at = TRIGGERS[trigger]
    world = World(segment=settings)
    for n in range(full_at):
        assert world.files("segments/0") == []
        world.store.put({"Logs": payload(800, n) if trigger == "size" else batch(n)})
    assert world.files("segments/0") == ["segments/0000000000000000.qseg"]
    assert finalized(world, trigger) == 1
    assert world.put(9).ref == BundleRef(1, 0)


def test_streams_close_a_segment() -> None:
    """Scenario: every put has another schema, three streams are allowed. Guarantee: the
    third closes the segment."""
    world = World(segment={"max_streams": 3, "max_variants": 3})
    refs = [world.store.put({"Logs": pa.record_batch({f"c{n}": [1]})}).wait().ref for n in range(4)]
    assert [ref.segment_seq for ref in refs] == [0, 0, 0, 1]
    assert finalized(world, "streams") == 1


def test_dictionaries_that_change_close_a_segment_at_their_own_limit() -> None:
    """Scenario: one schema, another dictionary in each bundle. Guarantee: they share a
    segment up to the cap on variants, and each comes back with its own dictionary."""
    world = World(segment={"max_streams": 4, "max_variants": 4})
    batches = [
        pa.RecordBatch.from_arrays([dictionary([0, 0], pa.array([f"v{n}"]), pa.int8())], ["level"])
        for n in range(5)
    ]
    refs = [world.store.put({"Logs": b}).wait().ref for b in batches]
    world.store.flush()
    assert [ref.segment_seq for ref in refs] == [0, 0, 0, 0, 1]
    assert finalized(world, "variants") == 1
    for ref, wanted in zip(refs, batches, strict=True):
        assert world.store.read(ref)["Logs"].equals(wanted, check_metadata=True)


def test_an_idle_segment_is_written_when_its_time_is_up() -> None:
    """Scenario: one put, then nothing but time. Guarantee: `maintain` leaves it alone
    before its age and writes it after, though nobody puts any more."""
    world = World(segment={"max_open_duration": "5s"})
    world.put_durable(1)
    world.clock.advance(4.9)
    assert world.store.maintain().sealed == 0
    world.clock.advance(0.2)
    assert world.store.maintain().sealed == 1
    assert finalized(world, "age") == 1


def test_age_counts_from_the_first_bundle() -> None:
    """Scenario: the store idles for an hour, then bundles come in quick succession.
    Guarantee: they share a segment; the idle time isn't theirs."""
    world = World(segment={"max_open_duration": "5s"})
    world.clock.advance(3600)
    refs = []
    for n in range(10):
        refs += world.put_durable(n)
        world.store.maintain()
        world.clock.advance(0.1)
    assert {ref.segment_seq for ref in refs} == {0}


def test_flush_and_close_write_what_there_is(world: World) -> None:
    """Scenario: `flush()`, later a close. Guarantee: each writes the open segment, and the
    reason is counted."""
    world.put_durable(1)
    assert world.store.flush() == 1
    assert world.store.flush() == 0
    assert finalized(world, "flush") == 1
    world.put_durable(2)
    store = world.store
    store.close()
    assert store.metrics.counter(SEGMENT_FINALIZED, trigger="shutdown").value == 1
    assert len(world.files("segments/0")) == 2


@pytest.mark.parametrize("error", [errno.EIO, errno.ENOSPC])
def test_a_failed_finalize_loses_nothing_and_is_tried_again(world: World, error: int) -> None:
    """Scenario: the disk refuses the segment's file. Guarantee: all bundles can be read and
    are in the log (a power cut proves it), and the next try writes the same segment."""
    refs = world.put_durable(1, 2)
    world.faulty.strike(Fault(at=0, error=error, ops=frozenset({"create"})))
    with pytest.raises(QuiverError):
        world.store.flush()
    assert world.store.metrics.counter(SEGMENT_FINALIZE_FAILED).value == 1
    assert [world.number_at(ref) for ref in refs] == [1, 2]
    later = world.put_durable(3)
    assert world.store.flush() == 2
    world.power_cut()
    assert [world.number_at(ref) for ref in (*refs, *later)] == [1, 2, 3]


def test_a_put_is_not_failed_by_its_segment() -> None:
    """Scenario: the put that fills a segment, and the segment can't be written. Guarantee:
    the put is answered as always: it is in the log, and a retry would double it."""
    world = World(segment={"max_bundles": 2})
    world.put(1)
    world.faulty.strike(Fault(at=0, error=errno.EIO, ops=frozenset({"create"})))
    receipt = world.put(2)
    assert receipt.wait().durable
    assert world.files("segments/0") == []
    world.store.maintain()
    assert len(world.files("segments/0")) == 1
    assert world.drain() == [1, 2]


def test_a_round_of_upkeep_goes_on_when_a_segment_can_not_be_written(world: World) -> None:
    """Scenario: segments can't be written for an I/O fault, and acks wait to be saved.
    Guarantee: the acks become durable in that round; the fault is told all the same."""
    reader = world.store.subscribe("r", follow=False)
    world.sealed(1)
    world.put_durable(2)
    bundle = reader.next_bundle()
    assert bundle is not None
    bundle.ack()
    world.clock.advance(10)
    create = frozenset({"create"})
    world.faulty.strike(Fault(at=0, error=errno.EIO, ops=create, times=1))
    with pytest.raises(IoFault):
        world.store.maintain()
    world.power_cut()
    assert world.drain("r") == [2]


def test_numbers_never_come_back(world: World) -> None:
    """Scenario: everything is finished and deleted, the store closed, opened and crashed,
    several times over. Guarantee: no segment number is ever used again."""
    seen: list[int] = []
    for end in ("restart", "kill", "power_cut", "restart"):
        seen += [ref.segment_seq for ref in world.sealed(1)]
        assert world.drain() == [1]
        world.store.maintain()
        assert world.files("segments/0") == []
        getattr(world, end)()
    assert seen == sorted(set(seen))


def test_numbers_of_lost_segments_stay_used_without_a_log() -> None:
    """Scenario: `segment_only`: a number was given out, and its segment lost in a crash.
    Guarantee: the number isn't given to other data: whoever holds the old ref gets nothing
    rather than something else."""
    world = World(durability="segment_only")
    world.sealed(1)
    lost = world.put(2).ref
    world.power_cut()
    assert world.put(3).ref.segment_seq > lost.segment_seq


def test_the_files_a_segment_leaves(world: World) -> None:
    """Scenario: a segment is written. Guarantee: sixteen digits in its name, no temporary
    file left, mode 0440, synced before its name and its directory after."""
    world.put_durable(1)
    before = len(world.faulty.calls)
    world.store.flush()
    ops = [op for op, path in world.faulty.calls[before:] if path.startswith("segments")]
    steps = [op for op in ops if op in ("create", "fsync", "rename", "fsync_dir", "chmod")]
    assert steps[:5] == ["create", "fsync", "rename", "fsync_dir", "chmod"]
    assert world.files("segments/0") == ["segments/0000000000000000.qseg"]
    assert not [path for path in world.files() if path.endswith(".tmp")]


def test_the_log_goes_when_segments_have_it_all() -> None:
    """Scenario: several log files, all of whose bundles get into segments; nobody has acked
    anything. Guarantee: the old log files go; what is in them is in the segments."""
    world = World(
        wal={"rotation_target": "4KiB", "max_size": "64MiB", "max_rotated_files": 1000},
        segment={"target_size": "8KiB"},
        limits={"max_bundle": "1MiB"},
    )
    world.store.subscribe("slow")
    for n in range(60):
        world.put_durable(n)
    world.store.flush()
    log = [f for f in world.files("wal/") if not f.endswith((".cursor", ".spare"))]
    assert len(log) <= 2
    assert world.store.metrics.counter(WAL_SYNCS).value == 60
    assert sum(op == "rename" and p == "wal/quiver.wal" for op, p in world.faulty.calls) > 3
    world.power_cut()
    assert world.drain("slow") == list(range(60))


def test_what_only_the_log_has_keeps_its_files(world: World) -> None:
    """Scenario: segments can't be written at all for a while. Guarantee: the log keeps
    every file, and a power cut loses nothing."""
    world.put_durable(*range(5))
    world.faulty.strike(Fault(at=0, error=errno.EIO, ops=frozenset({"create"}), times=FOREVER))
    with pytest.raises(IoFault):
        world.store.flush()
    world.power_cut()
    assert world.drain() == list(range(5))


def test_a_clean_close_leaves_a_tidy_directory() -> None:
    """Scenario: megabytes went through the log, then a clean close. Guarantee: what is left
    is the segments, small state files, and a log of a few bytes; it opens as it was."""
    world = World(
        wal={"rotation_target": "1MiB", "max_size": "64MiB"},
        segment={"target_size": "512KiB"},
        limits={"max_bundle": "1MiB"},
    )
    refs = [world.store.put({"Logs": payload(100_000, n)}).wait().ref for n in range(30)]
    world.store.close()
    log = {path: data for path, data in world.raw.image().items() if path.startswith("wal/")}
    assert sum(len(data) for data in log.values()) < 1024, {p: len(d) for p, d in log.items()}
    world.open()
    assert world.store.report.bundles_replayed == 0
    assert world.put(1).ref > refs[-1]
    assert len(world.store.read(refs[0])["Logs"]) == 1
    world.restart()
    assert len(world.store.segments()) == len({ref.segment_seq for ref in refs}) + 1


def test_an_old_log_file_is_closed_though_nothing_is_written() -> None:
    """Scenario: a log file with bundles that are all in segments, and an age limit; nobody
    puts any more. Guarantee: at that age it makes way for an empty one and goes, once."""
    world = World(wal={"max_idle_age": "60s"})
    world.store.subscribe("r")
    world.sealed(1, 2)
    size = world.store.status().usage.log
    world.clock.advance(59)
    world.store.maintain()
    assert world.store.status().usage.log >= size
    world.clock.advance(2)
    assert world.store._upkeep.is_due()
    world.store.maintain()
    assert len([p for p in world.files("wal/quiver.wal") if "cursor" not in p]) <= 2
    world.clock.advance(61)
    world.store.maintain()
    assert not world.store._upkeep.is_due()
    world.power_cut()
    assert world.drain("r") == [1, 2]
