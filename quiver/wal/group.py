"""Who calls commit, and how everybody else waits for it.

Without a background thread the first one who waits *leads*: it commits the oldest group
itself, while others wait for it; groups form behind the running sync by themselves, so a
lone put never waits for company.  With :meth:`Commits.run` in a thread of the engine's,
that thread leads and all others wait.

============  ===================================================================
``every``     each entry is a group of its own (the writer sees to it)
``group``     one sync serves all who wait; at once when idle
``interval``  the background thread lets entries gather for ``flush_interval``
============  ===================================================================
"""

from __future__ import annotations

import threading
from typing import Final, Protocol

from quiver.clock import Clock, SystemClock
from quiver.config import WalConfig
from quiver.errors import StoreClosed, WaitTimeout
from quiver.wal.writer import WalWriter

IDLE_WATERMARK: Final = 0.05
"""Seconds without work after which the last group gets its proof."""
LONGEST_SLEEP: Final = 1.0
"""The background thread looks up at least this often, whatever it was told."""


class Waitable(Protocol):
    """A receipt, as far as waiting for it goes."""

    @property
    def done(self) -> bool: ...


class Commits:
    """Group commit for one log."""

    def __init__(self, writer: WalWriter, config: WalConfig, clock: Clock | None = None) -> None:
        self._writer = writer
        self._clock = clock if clock is not None else SystemClock()
        self._gather = config.flush_interval if config.flush == "interval" else 0.0
        self._max_group = config.max_group
        self._finished = threading.Condition(threading.Lock())
        self._work = threading.Condition(threading.Lock())
        self._leading = False
        self._running = False
        self._sleeping = False

    @property
    def running(self) -> bool:
        """Whether a background thread does the committing."""
        return self._running

    # Those who wait

    def wait(self, receipt: Waitable, timeout: float | None = None) -> None:
        """Return when the receipt is done; lead the commit if nobody else does."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while not receipt.done:
            if self._take_lead(receipt, deadline) and not self._lead() and not receipt.done:
                raise StoreClosed("nothing is staged for this receipt any more.")

    def flush(self) -> None:
        """Commit everything that is staged now; failures are the receipts' to tell."""
        last = self._writer.next_sequence
        while self._writer.durable_before < last and self._writer.commit():
            self._tell()
        self._tell()

    def _take_lead(self, receipt: Waitable, deadline: float | None) -> bool:
        """Whether to lead; else someone did meanwhile, and the receipt may be done."""
        with self._finished:
            if receipt.done:
                return False
            if not self._leading and not self._running:
                self._leading = True
                return True
            left = None if deadline is None else deadline - self._clock.monotonic()
            if left is not None and left <= 0:
                raise WaitTimeout("the bundle is not durable yet.", advice="Wait again.")
            self._finished.wait(left)
            return False

    def _lead(self) -> int:
        try:
            return self._writer.commit()
        finally:
            with self._finished:
                self._leading = False
                self._finished.notify_all()

    # The background thread

    def kick(self) -> None:
        """Something was staged. Cheap while the background thread is busy anyway."""
        if self._sleeping:
            with self._work:
                self._work.notify()

    def run(self, stop: threading.Event) -> None:
        """Commit whatever is staged until told to stop, then what is left.

        After setting ``stop``, :meth:`wake` it.  When it ends by an error, waiting
        threads lead again: nobody is left hanging.
        """
        with self._finished:
            self._running = True
        try:
            while not stop.is_set():
                self._round(stop)
            while self._writer.commit():
                self._tell()
        finally:
            with self._finished:
                self._running = False
                self._finished.notify_all()

    def wake(self) -> None:
        """Make the background thread look up, for instance at its stop event."""
        with self._work:
            self._work.notify_all()

    def _round(self, stop: threading.Event) -> None:
        if self._writer.staged_bytes == 0 and not self._sleep(stop, IDLE_WATERMARK):
            if self._writer.watermark():
                self._writer.commit()
            else:
                self._sleep(stop, LONGEST_SLEEP)
            return
        if self._gather:
            self._let_gather(stop)
            self.flush()
        else:
            self._writer.commit()
            self._tell()

    def _let_gather(self, stop: threading.Event) -> None:
        deadline = self._clock.monotonic() + self._gather
        with self._work:
            while not stop.is_set() and self._writer.staged_bytes < self._max_group:
                left = deadline - self._clock.monotonic()
                if left <= 0:
                    return
                self._work.wait(left)

    def _sleep(self, stop: threading.Event, longest: float) -> bool:
        """Wait for work; whether there is any.

        ``_sleeping`` is set before looking, and whoever stages looks at it afterwards, so
        one of the two always sees the other.
        """
        with self._work:
            self._sleeping = True
            try:
                if self._writer.staged_bytes == 0 and not stop.is_set():
                    self._work.wait(longest)
                return self._writer.staged_bytes > 0 or stop.is_set()
            finally:
                self._sleeping = False

    def _tell(self) -> None:
        with self._finished:
            self._finished.notify_all()
