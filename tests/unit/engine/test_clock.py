"""Clocks go back and jump; order and promises don't."""

from __future__ import annotations

import pytest

from tests.support.stores import World


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
    """Scenario: time retention of an hour, the clock set back a day, then forth again.
    Guarantee: nothing goes before its hour by the store's own times."""
    world = World(retention={"max_retain_after_ingestion_hours": 1})
    world.sealed(1)
    world.clock.jump(-86_400)
    world.sealed(2)
    world.store.maintain()
    assert len(world.store.segments()) == 2
    world.clock.jump(86_400 + 3500)
    world.store.maintain()
    assert len(world.store.segments()) == 2
    world.clock.jump(200)
    assert world.store.maintain().deleted == 2


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
