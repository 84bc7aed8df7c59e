"""Waiting for segments to be written: without a log that is what makes a bundle durable,
and with one it makes the room that a put may be waiting for."""

from __future__ import annotations

import threading
from collections.abc import Callable

from quiver.clock import Clock
from quiver.errors import WaitTimeout
from quiver.forking import guard
from quiver.ingest.receipt import Receipt


class SealWait:
    """Makes receipts of a ``segment_only`` store come true.

    Without a background whoever waits has the segments written; with one, the segment's
    own triggers decide, and everybody waits for them.  ``check`` raises when nothing will
    be written any more.
    """

    def __init__(self, seal: Callable[[], object], check: Callable[[], None], clock: Clock) -> None:
        self._seal = seal
        self._clock = clock
        self._sealed = threading.Condition(threading.Lock())
        self._check = check
        self.patient = False
        """Set when somebody else does the writing."""
        self.told = 0
        """How often something happened; only rises."""
        guard(self)

    def wait(self, receipt: Receipt, timeout: float | None) -> None:
        """Return when the receipt is done."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while not receipt.done:
            if not self.patient:
                self._seal()
                continue
            with self._sealed:
                left = None if deadline is None else deadline - self._clock.monotonic()
                if left is not None and left <= 0:
                    raise WaitTimeout("the bundle is not durable yet.", advice="Wait again.")
                if not receipt.done:
                    self._check()
                    self._sealed.wait(left)

    def tell(self) -> None:
        """Something happened: let those who wait look again."""
        with self._sealed:
            self.told += 1
            self._sealed.notify_all()

    def pause(self, seen: int, seconds: float) -> None:
        """Wait until something has happened since :attr:`told` was ``seen``; not for long."""
        with self._sealed:
            if self.told == seen:
                self._sealed.wait(seconds)
