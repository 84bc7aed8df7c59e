"""Time, from one place, so that tests can own it.

A wall clock jumps: NTP corrects it, an operator sets it, a virtual machine resumes.  No jump
may forget, expire or delete anything, so a store keeps two times of its own
(:class:`StoreTimes`):

===============  ==========================================================================
store time       what ages count in: keys, committed versions, stages, retention.  Runs with
                 the monotonic clock while the store is open; at an open it is moved on by
                 what the wall clock says has passed, one hour at most at once
ingestion time   what a bundle is stamped with: the wall clock.  A jump is believed once it
                 has lasted for :data:`PATIENCE` seconds; one back for as long in store time,
                 which adds up over opens
===============  ==========================================================================

Neither drives order: order is the sequence.
"""

from __future__ import annotations

import time
from typing import Final, NamedTuple, Protocol

PATIENCE: Final = 60.0
"""Seconds a jump of the wall clock must last before ingestion time follows it."""
TOLERANCE: Final = 5.0
"""Seconds by which wall and monotonic clock may differ between two looks without a jump."""
DRIFT: Final = 1e-3
"""… and the share of the time between the looks: clocks that are slewed differ slowly."""
AT_ONCE: Final = 3600.0
"""Most seconds by which an open moves store time on at once."""
_NS: Final = 1_000_000_000


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


class TimeMark(NamedTuple):
    """Store time and wall clock at one moment, as the checkpoint has them."""

    store_ns: int
    wall_ns: int


class StoreTimes:
    """Store time and ingestion time of one open store.

    ``mark`` is the newest pair that was recorded before, ``last_ns`` the newest ingestion
    time; a new store has neither.  ``behind_ns`` is the store time at which the wall clock was
    first seen behind ``last_ns``, if it was.  :meth:`now_ns` may be called from any thread;
    :meth:`look` and :meth:`stamp` by one at a time.

    What an open does not credit at once (the store was closed for two days, says the wall
    clock) is credited when the wall clock has run on undisturbed for as long: by then it is
    believed.
    """

    def __init__(
        self,
        clock: Clock,
        mark: TimeMark | None = None,
        last_ns: int = 0,
        behind_ns: int | None = None,
    ) -> None:
        self._clock = clock
        self._wall = wall = clock.now_ns()
        self._mono = mono = clock.monotonic()
        self._opened = mono
        self._undisturbed_since = mono
        known = mark or TimeMark(last_ns or wall, last_ns or wall)
        passed = max(0, wall - known.wall_ns)
        at_once = min(passed, int(AT_ONCE * _NS))
        self._base = known.store_ns + at_once
        self._owed = passed - at_once
        self.jumps = 0
        """Jumps of the wall clock that were seen since the open."""
        self.last_jump = 0.0
        """By how many seconds the last one went, forward or (below 0) back."""
        self.last_ns = last_ns
        """The newest ingestion time given out."""
        self._stamped = mono
        self.behind_ns = behind_ns
        """Store time since which the wall clock is behind ``last_ns``."""
        self._note_behind()

    def now_ns(self) -> int:
        """Store time."""
        return self._base + int((self._clock.monotonic() - self._opened) * _NS)

    def mark(self) -> TimeMark:
        """For the checkpoint."""
        return TimeMark(self.now_ns(), self._clock.now_ns())

    def record(self) -> dict[str, int]:
        """All that the next open needs, for the checkpoint."""
        behind = {} if self.behind_ns is None else {"behind_ns": self.behind_ns}
        return {**self.mark()._asdict(), **behind}

    def _note_behind(self) -> None:
        if self._wall >= self.last_ns:
            self.behind_ns = None
        elif self.behind_ns is None:
            self.behind_ns = self.now_ns()

    def look(self) -> bool:
        """Compare the clocks; whether the wall clock has jumped since the last look."""
        wall, mono = self._clock.now_ns(), self._clock.monotonic()
        elapsed = mono - self._mono
        jump = (wall - self._wall) / _NS - elapsed
        self._wall, self._mono = wall, mono
        jumped = abs(jump) > TOLERANCE + DRIFT * elapsed
        if jumped:
            self.jumps += 1
            self.last_jump = jump
            self._undisturbed_since = mono
        elif self._owed and (mono - self._undisturbed_since) * _NS >= self._owed:
            self._base += self._owed
            self._owed = 0
        self._note_behind()
        return jumped

    def stamp(self) -> int:
        """The ingestion time of a bundle.

        After a jump forward time goes on by the monotonic clock until the jump is believed;
        after one back it stands still, for :data:`PATIENCE` seconds at most, over all opens,
        and then goes back: a clock that was wrong for days must not be wrong for days more.
        """
        self.look()
        wall, mono = self._wall, self._mono
        elapsed, self._stamped = mono - self._stamped, mono
        if self.behind_ns is None:
            step = (wall - self.last_ns) / _NS - elapsed
            believed = mono - self._undisturbed_since >= PATIENCE or not self.jumps
            if believed or not self.last_ns or step <= TOLERANCE + DRIFT * elapsed:
                self.last_ns = wall
            else:
                self.last_ns += int(elapsed * _NS)
            return self.last_ns
        if self.now_ns() - self.behind_ns >= PATIENCE * _NS:
            self.behind_ns = None
            self.last_ns = wall
        return self.last_ns
