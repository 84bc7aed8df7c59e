"""Clocks: one that tests own, and a store's own times, which no jump can hurry."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.clock import (
    AT_ONCE,
    PATIENCE,
    TOLERANCE,
    ManualClock,
    StoreTimes,
    SystemClock,
    TimeMark,
)

NS = 1_000_000_000
DAY = 86_400.0
HOUR = 3_600.0


def test_store_time_runs_with_the_monotonic_clock(clock: ManualClock) -> None:
    """Scenario: an hour passes while the wall clock jumps two days ahead and back. Guarantee:
    store time has moved by the hour, and both jumps were counted."""
    times = StoreTimes(clock)
    start = times.now_ns()
    clock.jump(2 * DAY)
    assert times.look()
    assert times.last_jump == pytest.approx(2 * DAY)
    clock.advance(HOUR)
    clock.jump(-2 * DAY)
    assert times.look()
    assert times.now_ns() - start == int(HOUR * NS)
    assert times.jumps == 2


@pytest.mark.parametrize("closed", [0.0, 60.0, HOUR])
def test_an_open_credits_what_has_passed_meanwhile(clock: ManualClock, closed: float) -> None:
    """Scenario: a store is closed for up to an hour. Guarantee: that counts at once."""
    mark = StoreTimes(clock).mark()
    clock.advance(closed)
    assert StoreTimes(clock, mark).now_ns() == mark.store_ns + int(closed * NS)


def test_an_open_under_a_wrong_clock_credits_an_hour_at_most(clock: ManualClock) -> None:
    """Scenario: a store is opened while the wall clock is two days ahead; it is set right, and
    the store opened again. Guarantee: two opens, two hours at most; an open with a clock that
    went back credits nothing and takes nothing away."""
    mark = StoreTimes(clock).mark()
    clock.jump(2 * DAY)
    ahead = StoreTimes(clock, mark)
    assert ahead.now_ns() == mark.store_ns + int(AT_ONCE * NS)
    again = ahead.mark()
    clock.jump(-2 * DAY)
    assert StoreTimes(clock, again).now_ns() == again.store_ns


def test_a_long_absence_is_credited_once_the_clock_is_believed(clock: ManualClock) -> None:
    """Scenario: a store was closed for a day, and runs on. Guarantee: one hour counts at once,
    the rest when the wall clock has run undisturbed for as long; a jump starts the wait anew."""
    mark = StoreTimes(clock).mark()
    clock.advance(DAY)
    times = StoreTimes(clock, mark)
    start = times.now_ns()
    clock.advance(DAY / 2)
    clock.jump(60.0)
    times.look()
    clock.advance(DAY - HOUR - 1)
    times.look()
    run = DAY / 2 + DAY - HOUR - 1
    assert times.now_ns() == start + int(run * NS)
    clock.advance(2)
    times.look()
    assert times.now_ns() == start + int((run + 2 + DAY - HOUR) * NS)


def test_clocks_that_drift_apart_slowly_do_not_jump(clock: ManualClock) -> None:
    """Scenario: the wall clock is slewed by half a millisecond a second for a day, looked at
    every minute. Guarantee: no jump."""
    times = StoreTimes(clock)
    for _ in range(1440):
        clock.advance(60.0)
        clock.jump(0.03)
        assert not times.look()


# Ingestion time


def test_ingestion_time_is_the_wall_clock(clock: ManualClock) -> None:
    """Scenario: time passes. Guarantee: stamps are the wall clock's."""
    times = StoreTimes(clock)
    for seconds in (0.0, 1.0, 90.0, 5 * DAY):
        clock.advance(seconds)
        assert times.stamp() == clock.now_ns()


def test_a_moment_ahead_leaves_no_trace(clock: ManualClock) -> None:
    """Scenario: the wall clock is two days ahead for a moment, with puts before, in and after
    it. Guarantee: no stamp is ahead, none goes back, and afterwards it is the wall clock."""
    times = StoreTimes(clock)
    before = times.stamp()
    clock.jump(2 * DAY)
    clock.advance(1.0)
    inside = times.stamp()
    clock.jump(-2 * DAY)
    clock.advance(1.0)
    after = times.stamp()
    assert before <= inside <= after == clock.now_ns()
    assert inside - before == NS


def test_a_lasting_jump_is_followed(clock: ManualClock) -> None:
    """Scenario: a clock that was two days behind is set right. Guarantee: stamps follow after
    the time of patience."""
    times = StoreTimes(clock)
    times.stamp()
    clock.jump(2 * DAY)
    times.stamp()
    clock.advance(PATIENCE)
    assert times.stamp() == clock.now_ns()


def test_after_a_lasting_jump_ahead_it_comes_back(clock: ManualClock) -> None:
    """Scenario: the wall clock is two days ahead for ten minutes, then right again; also with a
    restart in between. Guarantee: stamps stand still, and are right again after the time of
    patience instead of two days."""
    times = StoreTimes(clock)
    times.stamp()
    clock.jump(2 * DAY)
    times.stamp()
    clock.advance(600.0)
    ahead = times.stamp()
    assert ahead == clock.now_ns()
    clock.jump(-2 * DAY)
    assert times.stamp() == ahead
    times = StoreTimes(clock, times.mark(), times.last_ns)
    assert times.stamp() == ahead
    clock.advance(PATIENCE)
    assert times.stamp() == clock.now_ns()


@given(st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(0, PATIENCE / 60)), max_size=50))
def test_within_the_time_of_patience_ingestion_time_never_falls(
    moves: list[tuple[float, float]],
) -> None:
    """Scenario: a wall clock that jumps at will. Guarantee: ingestion time does not fall."""
    clock = ManualClock()
    times = StoreTimes(clock)
    stamps = [times.stamp()]
    for jump, seconds in moves:
        clock.jump(jump)
        clock.advance(seconds)
        stamps.append(times.stamp())
    assert stamps == sorted(stamps)


@given(
    st.lists(
        st.tuples(st.floats(-3e5, 3e5), st.floats(0, 7_200), st.booleans()), min_size=1, max_size=30
    )
)
def test_no_jump_hurries_store_time(moves: list[tuple[float, float, bool]]) -> None:
    """Scenario: jumps, time that passes, restarts. Guarantee: store time never falls, and never
    gains more than what really passed, one hour per open, and the tolerance of each look."""
    clock = ManualClock(2_000_000_000 * NS)
    times = StoreTimes(clock)
    start, passed, opens = times.now_ns(), 0.0, 0
    last = start
    for jump, seconds, restart in moves:
        clock.jump(jump)
        clock.advance(seconds)
        passed += seconds
        times.look()
        if restart:
            opens += 1
            times = StoreTimes(clock, times.mark(), times.last_ns)
        now = times.now_ns()
        assert last <= now
        last = now
    most = passed + opens * AT_ONCE + len(moves) * TOLERANCE
    assert last - start <= most * NS + 1000


def test_a_store_of_before_goes_on_from_its_newest_stamp(clock: ManualClock) -> None:
    """Scenario: a directory without a time mark. Guarantee: its ages go on from the newest
    ingestion time, under the same rule."""
    last = clock.now_ns() - 7 * int(DAY) * NS
    times = StoreTimes(clock, None, last)
    assert times.now_ns() == last + int(AT_ONCE * NS)
    assert times.mark() == TimeMark(times.now_ns(), clock.now_ns())


def test_a_manual_clock_moves_only_when_told(clock: ManualClock) -> None:
    """Scenario: advance and jump. Guarantee: a jump is no passing of time."""
    wall, monotonic = clock.now_ns(), clock.monotonic()
    clock.advance(1.5)
    assert clock.now_ns() == wall + 1_500_000_000
    clock.jump(-10)
    assert clock.now_ns() == wall - 8_500_000_000
    assert clock.monotonic() == monotonic + 1.5


def test_the_system_clock_is_the_systems() -> None:
    """Scenario: real time. Guarantee: nanoseconds since the epoch, and seconds that don't fall."""
    clock = SystemClock()
    assert clock.now_ns() > 1_600_000_000 * 10**9
    assert clock.monotonic() <= clock.monotonic()


def test_patience_adds_up_over_opens(clock: ManualClock) -> None:
    """Scenario: the clock was two days ahead and is right again; the store is opened anew every
    20 seconds. Guarantee: stamps stand still for the time of patience in all, and are the wall
    clock's from then on."""
    ahead = clock.now_ns() + int(2 * DAY) * NS
    times = StoreTimes(clock, TimeMark(ahead, ahead), ahead)
    stamps = []
    for _ in range(6):
        stamps.append(times.stamp() == clock.now_ns())
        clock.advance(PATIENCE / 3)
        times = StoreTimes(clock, times.mark(), times.last_ns, times.record().get("behind_ns"))
    assert stamps == [False, False, False, True, True, True]
    assert "behind_ns" not in times.record()
