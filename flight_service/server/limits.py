"""How much callers may use at a time.

Flight has no limits of its own: every call gets a thread.  So calls are counted, in all
and by principal, and refused at once beyond their caps, with ``too_many_calls``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from flight_service.protocol.errors import ServiceError
from flight_service.server.settings import CallsSection


class Gate:
    """Counts running calls."""

    def __init__(self, settings: CallsSection) -> None:
        self._settings = settings
        self._lock = threading.Lock()
        self._idle = threading.Condition(self._lock)
        self._running: dict[str, int] = {}
        self._total = 0
        self.peak = 0
        self.refused = 0

    @contextmanager
    def call(self, principal: str) -> Iterator[None]:
        """One running call of a principal."""
        limits = self._settings
        with self._lock:
            mine = self._running.get(principal, 0)
            if self._total >= limits.max_calls:
                raise self._full("calls.max_calls", limits.max_calls)
            if mine >= limits.max_calls_per_principal:
                raise self._full("calls.max_calls_per_principal", limits.max_calls_per_principal)
            self._running[principal] = mine + 1
            self._total += 1
            self.peak = max(self.peak, self._total)
        try:
            yield
        finally:
            with self._idle:
                self._total -= 1
                left = self._running[principal] - 1
                if left:
                    self._running[principal] = left
                else:
                    del self._running[principal]
                self._idle.notify_all()

    def _full(self, limit: str, maximum: int) -> ServiceError:
        self.refused += 1
        return ServiceError(
            "too_many_calls",
            f"{maximum:,} calls are running, the limit ({limit}).",
            details={"limit": limit, "maximum": maximum, "retry_after_ms": 100},
        )

    @property
    def running(self) -> int:
        return self._total

    def wait_idle(self, timeout: float) -> bool:
        """Wait until no call runs; ``False`` when time is up."""
        with self._idle:
            return self._idle.wait_for(lambda: self._total == 0, timeout)

    def status(self) -> dict[str, Any]:
        """For ``status``."""
        with self._lock:
            return {"running": self._total, "peak": self.peak, "refused": self.refused}
