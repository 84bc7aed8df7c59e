"""Retention: what goes, when, in which order, and that it is on record before it does."""

from __future__ import annotations

from typing import Any

import pytest

import quiver
from quiver import Outcome
from quiver.errors import BundleGone
from quiver.metrics import GC_EVICTIONS, SEGMENT_DROPPED, SUBSCRIBER_DROPPED
from quiver.upkeep import sweeping
from quiver.upkeep.retention import plan
from tests.support.stores import World, payload

SMALL: dict[str, Any] = {
    "wal": {"rotation_target": "8KiB", "max_size": "40KiB", "max_rotated_files": 100},
    "segment": {"target_size": "8KiB"},
    "limits": {"max_bundle": "8KiB", "max_unsynced": "16KiB"},
}
CAP = 40 << 10  # log
CAP += 2 * (8 << 10)  # two segments: the smallest cap there is
CAP += 48 << 10  # and six more


def small(**retention: Any) -> World:
    return World(**SMALL, retention=retention)


def big_put(world: World, n: int) -> None:
    world.store.put({"Logs": payload(3000, n)}).wait()


def test_a_segment_goes_as_soon_as_all_are_done(world: World) -> None:
    """Scenario: two subscribers, one after the other. Guarantee: nothing goes while one
    isn't done; with the last ack the segment does, its number stays used."""
    refs = world.sealed(1)
    world.store.subscribe("b")
    world.drain("a")
    assert world.store.maintain().deleted == 0
    world.drain("b")
    assert world.store.maintain().deleted == 1
    assert world.files("segments/0") == []
    with pytest.raises(BundleGone):
        world.store.read(refs[0])
    assert world.store.metrics.counter(GC_EVICTIONS, reason="steady").value == 1


def test_without_subscribers_nothing_is_finished(world: World) -> None:
    """Scenario: nobody ever subscribed, much time passes. Guarantee: all is kept."""
    world.sealed(1)
    world.clock.advance(10**7)
    world.store.maintain()
    world.restart()
    assert world.drain() == [1]


def test_headroom_keeps_the_newest_finished(world: World) -> None:
    """Scenario: four finished segments and headroom for about two. Guarantee: the newest
    that fit stay, the older ones go."""
    world.sealed(0)
    size = world.store.status().usage.segments
    world.restart(retention={"steady_state_headroom": int(size * 2.5)})
    for n in range(1, 4):
        world.sealed(n)
    world.drain("r")
    world.store.maintain()
    assert world.store.segment_sequences() == [2, 3]


def test_finished_data_can_be_kept_for_a_time() -> None:
    """Scenario: `keep_after_finish` of an hour. Guarantee: finished data stays that long
    after it was finished, for going back, and then goes by itself."""
    world = World(retention={"keep_after_finish": "1h"})
    refs = world.sealed(1)
    world.drain("r")
    world.store.maintain()
    world.clock.advance(3500)
    assert world.store.maintain().deleted == 0
    world.store.subscribe("r").seek(refs[0])
    assert world.drain("r") == [1]
    world.store.maintain()
    world.clock.advance(3700)
    assert world.store.maintain().deleted == 1


def test_time_retention_takes_unfinished_data_on_record() -> None:
    """Scenario: an hour is the limit, a slow subscriber has done half of a segment.
    Guarantee: the segment goes an hour after it was taken in; what was not done is
    `dropped` for it, counted, in the ledger, and it goes on with what is left."""
    world = World(retention={"max_retain_after_ingestion_hours": 1})
    refs = world.sealed(1, 2)
    reader = world.store.subscribe("slow")
    reader.ack([refs[0]])
    world.clock.advance(3000)
    world.sealed(3)
    world.clock.advance(601)
    done = world.store.maintain()
    assert (done.deleted, done.dropped) == (1, 1)
    [loss] = world.store.status().losses
    assert (loss.segment_seq, loss.reason, dict(loss.subscribers)) == (0, "time", {"slow": 1})
    assert (
        world.store.metrics.counter(SUBSCRIBER_DROPPED, subscriber="slow", reason="time").value == 1
    )
    assert world.drain("slow") == [3]


def test_time_retention_counts_from_ingestion_across_a_replay() -> None:
    """Scenario: the bundle waits in the log for 50 minutes, a crash, replay, and its
    segment is written only then. Guarantee: its hour began when it was taken in."""
    world = World(retention={"max_retain_after_ingestion_hours": 1})
    world.put_durable(1)
    world.clock.advance(3000)
    world.power_cut()
    world.store.subscribe("r")
    world.store.maintain()
    assert world.store.maintain().dropped == 0
    world.clock.advance(601)
    world.store.maintain()
    assert world.store.segments() == []
    assert world.drain("r") == []


def test_time_comes_before_keeping() -> None:
    """Scenario: finished data is to be kept for a day, and nothing longer than an hour.
    Guarantee: after an hour it goes."""
    world = World(retention={"keep_after_finish": "24h", "max_retain_after_ingestion_hours": 1})
    world.sealed(1)
    world.drain("r")
    world.clock.advance(3700)
    assert world.store.maintain().deleted == 1
    assert world.store.metrics.counter(GC_EVICTIONS, reason="time").value == 1


def test_the_cap_takes_what_was_only_kept() -> None:
    """Scenario: finished data is kept for a day, and the store gets to its cap. Guarantee:
    puts go on, for kept data goes first, the oldest of it; unfinished data stays."""
    world = small(size_cap=CAP, keep_after_finish="24h")
    world.store.subscribe("r")
    for n in range(60):
        big_put(world, n)
        for bundle in world.store.subscribe("r", follow=False):
            bundle.ack()
        world.store.maintain()
    assert world.store.metrics.counter(GC_EVICTIONS, reason="size").value > 0
    assert world.store.status().usage.on_disk <= CAP
    assert world.store.segments(), "what fits is kept"
    assert world.store.status().losses == ()


def test_drop_oldest_leaves_no_stuck_reader() -> None:
    """Scenario: a reader holds a claim on the oldest bundle and stops; `drop_oldest` has to
    make room over and over. Guarantee: puts go on, the cap holds, what went is recorded as
    dropped for that reader, its late ack is answered, and it drains to the end."""
    world = small(size_cap=CAP, size_cap_policy="drop_oldest")
    reader = world.store.subscribe("slow")
    big_put(world, 0)
    held = reader.next_bundle()
    assert held is not None
    for n in range(1, 60):
        big_put(world, n)
        world.store.maintain()
        assert world.store.status().usage.on_disk <= CAP
    assert world.store.metrics.counter(SEGMENT_DROPPED, reason="size").value > 0
    assert held.ack() is Outcome.DROPPED
    rest = [b.ack() for b in world.store.subscribe("slow", follow=False)]
    assert 0 < len(rest) < 60
    assert world.store.lag("slow").bundles == 0
    losses = world.store.status().losses
    assert sum(loss.subscribers["slow"] for loss in losses) + len(rest) == 60


@pytest.mark.parametrize("policy", ["size", "time"])
def test_outcomes_are_durable_before_the_file_goes(policy: str) -> None:
    """Scenario: unfinished data is deleted. Guarantee: progress, ledger and floor are synced
    before the first unlink; the record shows the order."""
    if policy == "time":
        world = World(retention={"max_retain_after_ingestion_hours": 1})
        world.store.subscribe("r")
        world.sealed(1)
        world.clock.advance(3700)
    else:
        world = small(size_cap=CAP, size_cap_policy="drop_oldest")
        world.store.subscribe("r")
        for n in range(13):
            big_put(world, n)
        world.store.flush()
    world.store.flush_progress()
    before = len(world.faulty.calls)
    if policy == "size":
        for n in range(10):
            big_put(world, n)
    world.store.maintain()
    calls = world.faulty.calls[before:]
    unlinked = next(
        i for i, (op, path) in enumerate(calls) if op == "unlink" and path.endswith(".qseg")
    )
    renamed = {path.removesuffix(".tmp") for op, path in calls[:unlinked] if op == "rename"}
    assert {"quiver.sub.r", "quiver.state", "segments/quiver.segment.seq"} <= renamed
    assert ("fsync_dir", "segments") in calls[unlinked:]


@pytest.mark.parametrize("end", ["kill", "power_cut", "restart"])
def test_a_recorded_drop_is_known_afterwards(end: str) -> None:
    """Scenario: data was dropped, the store ends. Guarantee: the ledger and the outcome
    survive, and the reader is not stuck."""
    world = World(retention={"max_retain_after_ingestion_hours": 1})
    world.store.subscribe("r")
    world.sealed(1)
    world.clock.advance(3700)
    world.store.maintain()
    getattr(world, end)()
    status = world.store.status()
    assert [loss.reason for loss in status.losses] == ["time"]
    assert status.loss_totals["time.bundles"] == 1
    world.sealed(2)
    assert world.drain("r") == [2]


def test_what_is_only_in_the_log_is_never_dropped() -> None:
    """Scenario: an hour is the limit, and bundles older than that are only in the log.
    Guarantee: retention leaves them until they have a segment."""
    world = World(
        retention={"max_retain_after_ingestion_hours": 1}, segment={"max_open_duration": "100h"}
    )
    world.put_durable(1)
    world.clock.advance(7200)
    world.store.maintain()
    assert world.store.segments() == [(0, 1)]


def test_nobody_loses_what_they_came_back_to(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: between the look that finds a segment finished and its deletion, a subscriber
    seeks back to it. Guarantee: the segment stays, and the subscriber gets it again."""
    refs = world.sealed(1)
    world.drain("r")
    reader = world.store.subscribe("r", follow=False)

    def decide_then_seek(*arguments: Any, **options: Any) -> Any:
        decided = plan(*arguments, **options)
        assert len(decided.evictions) == 1
        reader.seek(refs[0])
        return decided

    monkeypatch.setattr(sweeping, "plan", decide_then_seek)
    assert world.store.maintain().deleted == 0
    monkeypatch.undo()
    assert world.drain("r") == [1]
    assert world.store.maintain().deleted == 1


def test_a_mapped_file_stays_counted(tmp_path: Any) -> None:
    """Scenario: a reader still holds a batch out of a segment that is deleted. Guarantee:
    the file stays, and its bytes count, until the reader lets go."""
    with quiver.open(tmp_path, reserve=0, read_mode="mmap") as store:
        ref = store.put({"Logs": payload(10_000)}).wait().ref
        store.flush()
        for bundle in store.subscribe("r", follow=False):
            bundle.ack()
        held = store.read(ref)["Logs"]
        assert store.maintain().deleted == 1
        assert store.status().usage.segments > 10_000
        assert list((tmp_path / "segments").glob("*.qseg"))
        assert len(held["blob"][0].as_py()) == 10_004
        del held, bundle
        store.maintain()
        assert store.status().usage.segments == 0
        assert not list((tmp_path / "segments").glob("*.qseg"))
