"""Clocks: one that tests own, one that never runs backwards."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from quiver.clock import IngestionClock, ManualClock, SystemClock


def test_ingestion_time_stands_still_while_the_wall_clock_is_behind(clock: ManualClock) -> None:
    """Scenario: the wall clock is set back an hour. Guarantee: ingestion time doesn't go back,
    and moves on once the wall clock has caught up."""
    ingestion = IngestionClock(clock)
    before = ingestion.next_ns()
    clock.jump(-3600)
    assert ingestion.next_ns() == before
    clock.advance(3601)
    assert ingestion.next_ns() == before + 1_000_000_000


def test_ingestion_time_holds_across_a_restart(clock: ManualClock) -> None:
    """Scenario: restart with the last time known and a clock that is behind it. Guarantee: no
    time before the last one is given."""
    last = clock.now_ns() + 5_000_000_000
    assert IngestionClock(clock, last).next_ns() == last


@given(st.lists(st.floats(-1e6, 1e6), max_size=50))
def test_ingestion_time_never_falls(jumps: list[float]) -> None:
    """Scenario: a wall clock that jumps at will. Guarantee: ingestion time never falls."""
    clock = ManualClock()
    ingestion = IngestionClock(clock)
    times = [ingestion.next_ns()]
    for jump in jumps:
        clock.jump(jump)
        times.append(ingestion.next_ns())
    assert times == sorted(times)


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
