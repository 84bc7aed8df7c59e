"""How much memory the open segments of several stores may take together.

A bundle stays in memory until its segment is written.  Each store by itself is bounded
(two segments), five hundred of them are not.  They register with one budget::

    0 ──────────────── press ─────────────── cap
         come in         │  the largest are    │  puts wait: ``memory``
                         │  written early      │

It is measured in the background and by ``maintain()``; a put only reads a flag.  So it
can be passed by what comes in between two looks, never by more than each store's own
bound.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from quiver.errors import ConfigError
from quiver.forking import guard
from quiver.units import parse_size

MEASURE_SECONDS: Final = 0.01
"""A look at all stores at most this often, however many of them ask for it."""
RETRY_MS: Final = 50


class MemoryShare:
    """One store's view of the budget: two flags, read without a lock."""

    __slots__ = ("_budget", "full", "held", "press")

    def __init__(self, budget: MemoryBudget, held: Callable[[], int]) -> None:
        self._budget = budget
        self.held = held
        self.full = False
        """No more puts for now."""
        self.press = False
        """This store is one of those that should write their open segment."""

    @property
    def cap(self) -> int:
        return self._budget.cap

    def measure(self, now: float, *, again: bool = False) -> None:
        """Look at all stores, unless somebody just has; ``again``: even then."""
        self._budget.measure(now, again=again)

    def close(self) -> None:
        """Leave the budget. Fine to call twice."""
        self._budget.leave(self)


class MemoryBudget:
    """A cap on bytes in memory, ``"256MiB"`` or a number, for all stores that share it."""

    def __init__(self, cap: int | str) -> None:
        self.cap = parse_size(cap) if isinstance(cap, str) else cap
        if self.cap < 1:
            raise ConfigError(f"a memory budget of {self.cap} bytes holds nothing.", value=cap)
        self._lock = threading.Lock()
        self._shares: list[MemoryShare] = []
        self._measured_at = float("-inf")
        self._was_pressed = False
        guard(self)

    @property
    def used(self) -> int:
        """Bytes in memory right now, all stores together."""
        return sum(share.held() for share in self._shares)

    def join(self, held: Callable[[], int]) -> MemoryShare:
        """Take part; ``held`` says how many bytes a store has in memory."""
        share = MemoryShare(self, held)
        with self._lock:
            self._shares = [*self._shares, share]
        return share

    def leave(self, share: MemoryShare) -> None:
        with self._lock:
            self._shares = [one for one in self._shares if one is not share]

    def measure(self, now: float, *, again: bool = False) -> None:
        """Set everyone's flags by what is held now."""
        with self._lock:
            if not again and 0 <= now - self._measured_at < MEASURE_SECONDS:
                return
            self._measured_at = now
            total = self.used
            # From three quarters on, down to a half: the largest first, since many small
            # segments would help nobody.
            is_pressed = 4 * total >= 3 * self.cap
            if is_pressed or self._was_pressed:  # mostly not, and there may be hundreds
                self._set_flags(total, total - self.cap // 2 if is_pressed else 0)
            self._was_pressed = is_pressed

    def _set_flags(self, total: int, excess: int) -> None:
        held = sorted(((one.held(), one) for one in self._shares), key=lambda pair: -pair[0])
        for nbytes, share in held:
            share.full = total >= self.cap
            share.press = excess > 0 and nbytes > 0
            excess -= nbytes
