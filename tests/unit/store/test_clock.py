"""Clocks go back and jump; order and promises don't."""

from __future__ import annotations

import pytest

from quiver.errors import StageNotFound
from quiver.events import CLOCK_JUMPED
from quiver.metrics import CLOCK_JUMPS
from tests.support.stores import World, batch


def test_ingestion_time_never_goes_back(world: World) -> None:
    """Scenario: the wall clock is set back an hour between two puts. Guarantee: ingestion
    times don't fall, sequences rise, delivery is in the order of arrival."""
    first = world.put(1).wait()
    world.clock.jump(-3600)
    second = world.put(2).wait()
    world.clock.jump(7200)
    third = world.put(3).wait()
    times = [r.ingestion_ts_ns for r in (first, second, third)]
    assert times == sorted(times)
    assert times[0] == times[1]
    assert first.sequence < second.sequence < third.sequence
    assert world.drain() == [1, 2, 3]


@pytest.mark.parametrize("end", ["restart", "kill", "power_cut"])
def test_it_does_not_go_back_across_a_restart_either(world: World, end: str) -> None:
    """Scenario: the clock is set back while the store is down. Guarantee: the next ingestion
    time is not before the last one that is durable."""
    last = world.put(1).wait().ingestion_ts_ns
    world.clock.jump(-86_400)
    getattr(world, end)()
    assert world.put(2).wait().ingestion_ts_ns >= last


def test_a_clock_set_back_deletes_and_keeps_nothing_wrongly() -> None:
    """Scenario: time retention of an hour, the clock set back a day, then two days ahead; then
    an hour passes. Guarantee: no jump deletes anything; what has been there for an hour goes."""
    world = World(retention={"max_retain_after_ingestion_hours": 1})
    world.sealed(1)
    world.clock.jump(-86_400)
    world.sealed(2)
    world.store.maintain()
    assert len(world.store.segments()) == 2
    world.clock.jump(3 * 86_400)
    world.store.maintain()
    assert len(world.store.segments()) == 2
    world.clock.advance(3500)
    assert world.store.maintain().deleted == 0
    world.clock.advance(200)
    assert world.store.maintain().deleted == 2


DAY = 86_400.0


def test_a_key_outlives_a_clock_that_is_ahead_for_a_moment(world: World) -> None:
    """Scenario: the wall clock is two days ahead while other keys are put, upkeep runs and the
    store is opened again; then it is right again. Guarantee: a repeat is a duplicate at every
    moment, also after a crash."""
    first = world.put(1, key="k").wait()
    world.clock.jump(2 * DAY)
    assert world.put(1, key="k").ref == first.ref
    world.put(2, key="other").wait()
    world.store.flush()
    world.store.maintain()
    world.kill()
    assert world.put(1, key="k").ref == first.ref
    world.clock.jump(-2 * DAY)
    world.restart()
    assert world.put(1, key="k").ref == first.ref


def test_a_committed_version_outlives_a_clock_that_is_ahead(world: World) -> None:
    """Scenario: a batch is committed; the wall clock goes a month ahead for a moment. Guarantee:
    the same batch, sent again then or later, is not committed twice."""

    def commit(attempt: str) -> bool:
        stage = world.store.stage("query", 7, attempt)
        stage.put({"Logs": batch(1)})
        stage.finish()
        return world.store.commit("query", 7, [attempt]).repeated

    assert not commit("a")
    world.clock.jump(60 * DAY)
    assert world.store.committed("query") == 7
    assert world.store.commit("query", 7, ["b"]).repeated
    world.kill()
    assert world.store.committed("query") == 7
    world.clock.jump(-60 * DAY)
    assert world.store.committed("query") == 7


def test_a_stage_outlives_a_clock_that_is_ahead() -> None:
    """Scenario: an attempt is finished; the wall clock goes a month ahead for a moment and
    upkeep runs. Guarantee: it can still be committed; after its time it can't."""
    world = World(transactions={"stage_ttl": "1h"})
    for attempt in ("a", "b"):
        stage = world.store.stage("query", 7, attempt)
        stage.put({"Logs": batch(1)})
        stage.finish()
    world.clock.jump(30 * DAY)
    world.store.maintain()
    world.kill()
    world.clock.jump(-30 * DAY)
    assert world.store.staged("query", 7, "a").bundles == 1
    world.clock.advance(2 * 3600.0)
    world.store.maintain()
    with pytest.raises(StageNotFound):
        world.store.staged("query", 7, "a")


def test_ingestion_times_are_right_again_after_a_moment_ahead(world: World) -> None:
    """Scenario: the wall clock is two days ahead for a moment, with a put and upkeep in it.
    Guarantee: no bundle's time is days ahead, and the next one has the wall clock's."""
    world.put(1).wait()
    world.clock.jump(2 * DAY)
    ahead = world.put(2).wait().ingestion_ts_ns
    world.store.maintain()
    world.clock.jump(-2 * DAY)
    world.clock.advance(1.0)
    world.restart()
    assert abs(ahead - world.clock.now_ns()) < 60e9
    assert world.put(3).wait().ingestion_ts_ns == world.clock.now_ns()


def test_a_jump_is_reported(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario: the wall clock jumps. Guarantee: an event with its size, and a metric."""
    world.put_durable(1)
    world.clock.jump(2 * DAY)
    world.store.maintain()
    assert world.store.metrics.counter(CLOCK_JUMPS).value == 1
    assert any(CLOCK_JUMPED in record.getMessage() for record in caplog.records)


def test_a_jump_ahead_makes_no_open_segment_old() -> None:
    """Scenario: the wall clock jumps ahead by a day. Guarantee: the open segment's age is
    time that passed, so it stays open."""
    world = World(segment={"max_open_duration": "5s"})
    world.put_durable(1)
    world.clock.jump(86_400)
    assert world.store.maintain().sealed == 0


def test_the_lag_is_never_negative(world: World) -> None:
    """Scenario: the clock is behind the oldest bundle's time. Guarantee: an age of zero."""
    world.put_durable(1)
    reader = world.store.subscribe("r")
    world.clock.jump(-100)
    assert reader.lag().age_seconds == 0.0


@pytest.mark.parametrize("durability", ["wal", "segment_only"])
@pytest.mark.parametrize("end", ["restart", "kill"])
def test_short_lived_processes_come_back_to_the_wall_clock(end: str, durability: str) -> None:
    """Scenario: a store is opened and written to while the clock is two days ahead; it is set
    right, and from then on a process runs every hour, for a second. Guarantee: the first one's
    time does not go back; from the second one on it is the wall clock's."""
    world = World(durability=durability)
    world.sealed(0)
    world.clock.jump(2 * DAY)
    getattr(world, end)()
    [ahead] = world.sealed(1)
    last = world.store.meta(ahead).ingestion_ts_ns
    world.clock.jump(-2 * DAY)
    getattr(world, end)()
    for run in range(4):
        receipt = world.put(10 + run)
        world.store.flush()
        stamp = receipt.wait().ingestion_ts_ns
        assert stamp == (world.clock.now_ns() if run else last)
        world.clock.advance(1.0)
        getattr(world, end)()
        world.clock.advance(3600.0)
        getattr(world, end)()


@pytest.mark.parametrize("end", ["restart", "kill"])
def test_a_correction_outlives_a_restart(world: World, end: str) -> None:
    """Scenario: the clock is two days ahead for long enough to be believed, then right for long
    enough; segments have times of both. Guarantee: an open does not go back to the later one."""
    world.put(0).wait()
    world.clock.jump(2 * DAY)
    world.put(1).wait()
    world.clock.advance(90.0)
    world.put(2).wait()
    world.clock.jump(-2 * DAY)
    world.put(3).wait()
    world.clock.advance(61.0)
    assert world.put(4).wait().ingestion_ts_ns == world.clock.now_ns()
    world.store.flush()
    for _ in range(2):
        getattr(world, end)()
        world.clock.advance(1.0)
        assert world.put(5).wait().ingestion_ts_ns == world.clock.now_ns()
        world.store.flush()
        world.store.maintain()
