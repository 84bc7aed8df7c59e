"""Pauses before a group: taken where they bring company, not where they can't."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

from flight_service.server.pacing import FEW, MAX_ABSTAIN, MAX_STEPS, STEP_SECONDS, Pacing


class Producer:
    """How many of its bundles wait, as it goes on sending while others sleep."""

    def __init__(self, rate: int, window: int = 1 << 30) -> None:
        self.rate, self.window = rate, window
        self.waiting = 0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.waiting = min(self.window, self.waiting + self.rate)

    def groups(self, count: int, start: int) -> Iterator[float]:
        """Seconds slept before each group, with ``start`` bundles waiting at its beginning."""
        pacing = Pacing(self.sleep)
        for _ in range(count):
            self.slept.clear()
            self.waiting = start
            pacing.pause(lambda: self.waiting)
            yield sum(self.slept)


def test_a_stream_of_bundles_gathers() -> None:
    """Scenario: bundles keep coming. Guarantee: each group is given its whole pause, and no
    longer than that."""
    assert set(Producer(rate=5).groups(50, FEW)) == {MAX_STEPS * STEP_SECONDS}


def test_who_waits_for_each_is_never_kept_waiting() -> None:
    """Scenario: a producer with one, two, three bundles in flight. Guarantee: no pause."""
    for start in range(FEW):
        assert set(Producer(rate=1).groups(50, start)) == {0.0}


def test_a_full_window_ends_the_pause() -> None:
    """Scenario: a producer that may have 16 in flight fills that up at once. Guarantee: the
    pause ends with the step that brings nothing more."""
    assert set(Producer(rate=12, window=16).groups(50, FEW)) == {2 * STEP_SECONDS}


def test_a_pause_for_nothing_is_not_repeated() -> None:
    """Scenario: the window is full whenever a group is due. Guarantee: ever fewer pauses are
    tried, though they are tried again some day."""
    slept = list(Producer(rate=0).groups(5000, FEW))
    tried = [at for at, seconds in enumerate(slept) if seconds]
    assert set(slept) == {0.0, STEP_SECONDS}
    assert [b - a for a, b in itertools.pairwise(tried)][:5] == [2, 3, 5, 9, 17]
    assert max(b - a for a, b in itertools.pairwise(tried)) == MAX_ABSTAIN + 1


def test_company_wins_a_pacing_back() -> None:
    """Scenario: pauses were useless for long, then bundles come in streams again. Guarantee:
    the next try that pays off makes pauses the rule again."""
    producer = Producer(rate=0)
    groups = producer.groups(200, FEW)
    for _ in range(60):
        next(groups)
    producer.rate = 5
    rest = list(groups)
    assert rest[-1] == MAX_STEPS * STEP_SECONDS
    assert rest.count(0.0) < 70
