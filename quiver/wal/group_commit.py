"""Who calls commit, and how everybody else waits for it.

The first one who waits *leads*: it commits the oldest group itself, while the others wait
for it.  Groups form behind the running sync by themselves, so a lone put never waits for
company.  No thread is needed; a background thread that calls :meth:`Commits.flush` just
makes it happen before anybody waits.

============  ===================================================================
``every``     each entry is a group of its own (the writer sees to it)
``group``     one sync serves all who wait; at once when idle
``interval``  with a background (:attr:`Commits.gather`) nobody leads: entries
              gather until :meth:`Commits.due`, and everybody waits for that
============  ===================================================================
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Protocol

from quiver.clock import Clock, SystemClock
from quiver.errors import StoreClosed, WaitTimeout
from quiver.forking import guard
from quiver.wal.writer import WalWriter

if TYPE_CHECKING:
    from quiver.config import WalConfig


class Waitable(Protocol):
    """A receipt, as far as waiting for it goes."""

    @property
    def done(self) -> bool: ...


class Commits:
    """Group commit for one log."""

    def __init__(self, writer: WalWriter, config: WalConfig, clock: Clock | None = None) -> None:
        self._writer = writer
        self._clock = clock if clock is not None else SystemClock()
        self._interval = config.flush_interval
        self._max_group = config.max_group
        self._finished = writer.finished
        self._leader: int | None = None  # the thread that commits for all
        self._since: float | None = None
        self._seen = 0
        self.gather = False
        """Set when somebody else commits, by time: then waiting only waits."""
        guard(self)

    def wait(self, receipt: Waitable, timeout: float | None = None) -> None:
        """Return when the receipt is done; lead the commit if nobody else does."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        me = threading.get_ident()
        while not receipt.done:
            try:
                leads = self._take_lead(me, receipt, deadline)
                if leads and not self._writer.commit() and not receipt.done:
                    raise StoreClosed("nothing is staged for this receipt any more.")
            finally:  # also when interrupted: nobody leads while somebody seems to
                if self._leader == me:
                    self._step_down()

    def _take_lead(self, me: int, receipt: Waitable, deadline: float | None) -> bool:
        """Whether to lead; else someone did meanwhile, and the receipt may be done."""
        with self._finished:
            if receipt.done:
                return False
            if self._leader is None and not self.gather:
                self._leader = me
                return True
            left = None if deadline is None else deadline - self._clock.monotonic()
            if left is not None and left <= 0:
                raise WaitTimeout("the bundle is not durable yet.", advice="Wait again.")
            self._finished.wait(left)
            return False

    def _step_down(self) -> None:
        with self._finished:
            self._leader = None
            self._finished.notify_all()

    def tell(self) -> None:
        """Let all who wait look again: who leads may have changed."""
        with self._finished:
            self._finished.notify_all()

    def flush(self) -> None:
        """Commit everything that is staged now; failures are the receipts' to tell."""
        self._since = None
        last = self._writer.next_sequence
        while self._writer.durable_before < last and self._writer.commit():
            pass

    def left_over(self) -> bool:
        """Whether what was staged at the last look still is; to be asked now and then."""
        before, self._seen = self._seen, self._writer.next_sequence
        return self._writer.durable_before < before

    def due(self) -> bool:
        """Whether staged entries have gathered long enough, or enough of them.

        To be asked now and then: time counts from the first look that saw something.
        """
        staged = self._writer.staged_bytes
        if not staged:
            self._since = None
            return False
        now = self._clock.monotonic()
        if self._since is None:
            self._since = now
        return now - self._since >= self._interval or staged >= self._max_group
