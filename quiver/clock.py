"""Time, from one place, so that tests can own it.

Ingestion time drives retention and diagnostics, never order: order is the sequence.
:class:`IngestionClock` therefore only promises not to run backwards.
"""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """What the store asks of time."""

    def now_ns(self) -> int:
        """Wall clock, nanoseconds since the epoch, UTC. May jump."""
        ...

    def monotonic(self) -> float:
        """Seconds for measuring durations. Never jumps."""
        ...


class SystemClock:
    """The machine's own clocks, without a step in between: every put looks at them."""

    now_ns = staticmethod(time.time_ns)
    monotonic = staticmethod(time.monotonic)


class ManualClock:
    """A clock that moves only when told to: for tests and simulations."""

    def __init__(self, now_ns: int = 1_700_000_000_000_000_000) -> None:
        self._now_ns = now_ns
        self._monotonic = 0.0

    def now_ns(self) -> int:
        return self._now_ns

    def monotonic(self) -> float:
        return self._monotonic

    def advance(self, seconds: float) -> None:
        """Let time pass, on both clocks."""
        self._now_ns += int(seconds * 1e9)
        self._monotonic += seconds

    def jump(self, seconds: float) -> None:
        """Set the wall clock forward or back without time passing."""
        self._now_ns += int(seconds * 1e9)


class IngestionClock:
    """Wall time that never goes back, not even across restarts (give it the last one)."""

    def __init__(self, clock: Clock, last_ns: int = 0) -> None:
        self._clock = clock
        self.last_ns = last_ns

    def next_ns(self) -> int:
        """Now, or the last time given if the wall clock has gone back since."""
        now = self._clock.now_ns()
        if now > self.last_ns:
            self.last_ns = now
        return self.last_ns
