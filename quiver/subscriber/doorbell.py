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
from collections.abc import Callable, Iterator


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

    @contextlib.contextmanager
    def armed(self) -> Iterator[Callable[[float], bool]]:
        """Listen from here on; the value waits up to so many seconds, ``True`` if it rang."""
        waiter = threading.Lock()
        waiter.acquire()
        self._waiters.append(waiter)
        try:
            yield lambda timeout: waiter.acquire(timeout=max(timeout, 0.0))
        finally:
            with contextlib.suppress(ValueError):  # it rang: a ring takes the waiter out
                self._waiters.remove(waiter)
