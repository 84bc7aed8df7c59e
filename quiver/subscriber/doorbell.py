"""Waking who waits for bundles, without losing a ring.

A condition variable needs its lock to notify.  A claim can come back from ``__del__``,
which may run inside the very code that holds such a lock, so ringing must not take one:
it only takes waiters from a deque and releases them, each a single step for the
interpreter.

Waiting is: arm, look whether there is work, wait.  Whoever rings after the arming is
heard, so nothing gets lost between the look and the wait.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable


class Doorbell:
    """Rings for all who have armed it."""

    def __init__(self) -> None:
        self._waiters: deque[threading.Lock] = deque()

    def ring(self) -> None:
        """Wake everyone who waits; callable from anywhere, never blocks."""
        for _ in range(len(self._waiters)):
            try:
                waiter = self._waiters.popleft()
            except IndexError:  # another ring was faster
                return
            waiter.release()

    def armed(self) -> Armed:
        """Listen from here on, as long as the block lasts."""
        return Armed(self._waiters)


class Armed:
    """Somebody who listens.  A class, since a generator takes several times as long to leave,
    and leaving is on the way of every live bundle."""

    __slots__ = ("_rang", "_waiter", "_waiters")

    def __init__(self, waiters: deque[threading.Lock]) -> None:
        self._waiters = waiters
        self._waiter = threading.Lock()
        self._rang = False

    def __enter__(self) -> Callable[[float], bool]:
        self._waiter.acquire()
        self._waiters.append(self._waiter)
        return self._heard

    def _heard(self, timeout: float) -> bool:
        """Wait up to so many seconds; ``True`` if it rang."""
        self._rang = self._waiter.acquire(timeout=max(timeout, 0.0))
        return self._rang

    def __exit__(self, *error: object) -> None:
        if not self._rang:  # a ring takes the waiter out
            with contextlib.suppress(ValueError):  # it rang just now
                self._waiters.remove(self._waiter)
