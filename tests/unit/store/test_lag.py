"""Lag in bundles, rows, bytes and age: exact where it can be, cheap where it must."""

from __future__ import annotations

import errno
import struct

import pytest

from quiver.metrics import SUBSCRIBER_LAG_BUNDLES
from quiver.subscriber import lag as lag_module
from tests.support.faulty import FOREVER, Fault
from tests.support.stores import World, flipped, payload


def test_lag_counts_bundles_rows_bytes_and_age(world: World) -> None:
    """Scenario: bundles in a file and in memory, one of them acked, time passes. Guarantee:
    every figure is that of what is left, the age that of the oldest of it."""
    reader = world.store.subscribe("r")
    assert reader.lag() == lag_module.Lag(0, 0, 0, 0.0)
    receipts = [world.put(n).wait() for n in range(2)]
    world.store.flush()
    world.clock.advance(10)
    receipts += [world.put(n).wait() for n in range(2, 5)]
    world.clock.advance(5)
    full = reader.lag()
    assert (full.bundles, full.rows, full.age_seconds) == (5, 15, 15.0)
    assert full.nbytes == sum(r.nbytes for r in receipts)
    reader.ack([receipts[0].ref, receipts[1].ref, receipts[3].ref])
    left = reader.lag()
    assert (left.bundles, left.rows, left.age_seconds, left.exact) == (2, 6, 5.0, True)
    assert left.nbytes == receipts[2].nbytes + receipts[4].nbytes
    assert world.store.lag("r") == left


def test_claimed_bundles_are_lag(world: World) -> None:
    """Scenario: a bundle is in somebody's hands. Guarantee: it is behind until it is done."""
    world.put_durable(1)
    reader = world.store.subscribe("r")
    bundle = reader.next_bundle()
    assert bundle is not None
    assert reader.lag().bundles == 1
    bundle.ack()
    assert reader.lag().bundles == 0


def test_untouched_segments_are_counted_without_reading_them(world: World) -> None:
    """Scenario: a backlog of many segments, nothing of it begun. Guarantee: all figures are
    exact, and not one file was opened for them."""
    receipts = []
    for n in range(10):
        receipts += [world.put(n * 2 + i).wait() for i in range(2)]
        world.store.flush()
    world.restart()
    reader = world.store.subscribe("new")
    before = len(world.faulty.calls)
    lag = reader.lag()
    assert (lag.bundles, lag.rows, lag.exact) == (20, 60, True)
    assert lag.nbytes == sum(r.nbytes for r in receipts)
    assert world.faulty.calls[before:] == []


def test_a_segment_begun_is_estimated_beyond_the_limit(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: more bundles than are looked at one by one, in segments begun. Guarantee:
    bundles exact, rows and bytes close, and it says that they were worked out."""
    monkeypatch.setattr(lag_module, "MAX_LAG_BUNDLES", 7)
    receipts = [world.store.put({"Logs": payload(100 + n)}).wait() for n in range(20)]
    world.store.flush()
    receipts += [world.store.put({"Logs": payload(100 + n)}).wait() for n in range(20)]
    reader = world.store.subscribe("r")
    reader.ack([receipts[0].ref, receipts[20].ref])
    lag = reader.lag()
    left = [r for i, r in enumerate(receipts) if i not in (0, 20)]
    assert (lag.bundles, lag.exact) == (38, False)
    assert lag.nbytes == pytest.approx(sum(r.nbytes for r in left), rel=0.1)


def test_lag_survives_damage(world: World) -> None:
    """Scenario: a segment begun turns out damaged while the lag is worked out. Guarantee: an
    answer, not an error; what was saved still counts."""
    world.store.subscribe("r")
    refs = world.sealed(1, 2)
    world.store.subscribe("r").ack([refs[0]])
    world.sealed(3)
    world.store.close()
    manifest = struct.Struct("<Q")  # where the footer says it is: a start doesn't read it
    world.change(
        "segments/0000000000000000.qseg",
        lambda data: flipped(data, manifest.unpack_from(data, len(data) - 28)[0] + 500),
    )
    world.open()
    world.store.lag("r")
    assert world.store.lag("r").bundles == 2


def test_what_waits_for_its_segment_is_lag() -> None:
    """Scenario: `deliver: sealed`, bundles answered durable, their segment not written yet, for
    a subscriber from the start and for one that came later. Guarantee: who is owed them is
    behind by them and nobody calls it drained; a bundle counts once, before and after."""
    world = World(deliver="sealed")
    early = world.store.subscribe("early")
    receipts = [world.put(n).wait() for n in range(2)]
    late = world.store.subscribe("late", start="latest")
    world.clock.advance(3)
    waiting = early.lag()
    assert (waiting.bundles, waiting.rows, waiting.age_seconds) == (2, 6, 3.0)
    assert (waiting.nbytes, waiting.exact) == (sum(r.nbytes for r in receipts), True)
    assert late.lag() == lag_module.Lag(0, 0, 0, 0.0)
    assert not world.store.all_subscribers_drained()
    assert gauge(world, "early") == 2
    assert gauge(world, "late") == 0
    world.store.flush()
    assert early.lag() == waiting
    assert world.drain("early") == [0, 1]
    assert early.lag().bundles == gauge(world, "early") == 0
    assert world.store.all_subscribers_drained()


def test_a_part_of_what_waits_is_worked_out() -> None:
    """Scenario: `deliver: sealed`, a subscriber that begins inside of a segment in memory.
    Guarantee: bundles exact, the rest of it in proportion, and it says so."""
    world = World(deliver="sealed")
    refs = world.put_durable(1, 2, 3, 4)
    reader = world.store.subscribe("r", start=refs[3])
    lag = reader.lag()
    assert (lag.bundles, lag.rows, lag.exact) == (1, 3, False)


def test_a_commit_that_waits_is_lag(world: World) -> None:
    """Scenario: a transaction is committed, and its file can't be made a segment yet.
    Guarantee: it is durable, so its bundles are lag, and the store is not drained."""
    reader = world.store.subscribe("r")
    with world.store.stage("app", 1, "a") as stage:
        stage.put({"Logs": payload(1)})
        stage.finish()
    world.faulty.strike(
        Fault(0, errno.EIO, times=FOREVER, ops=frozenset({"rename"}), under="stages/")
    )
    world.store.commit("app", 1, ["a"])
    assert reader.next_bundle() is None
    assert reader.lag().bundles == 1
    assert not world.store.all_subscribers_drained()


def gauge(world: World, subscriber: str) -> float:
    """The lag in bundles, as the metrics show it."""
    return next(
        sample.value
        for sample in world.store.metrics.snapshot()
        if sample.metric == SUBSCRIBER_LAG_BUNDLES and ("subscriber", subscriber) in sample.labels
    )
