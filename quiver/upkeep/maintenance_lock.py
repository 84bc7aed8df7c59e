"""Re-entrant lock for upkeep.  After ``shut()``, acquiring it raises: the directory may have a new
owner.

A thread that waited for the lock while the store was being closed must not touch its files any
more, so the lock is checked again after it was acquired.
"""

from __future__ import annotations

import threading
from types import TracebackType

from quiver.errors import QuiverError


class MaintenanceLock:
    """One thread at a time, which may pass again while it is inside; none once it is shut."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._shut: QuiverError | None = None

    def shut(self, error: QuiverError) -> None:
        """From now on ``error`` is what everyone gets; waits for who is inside."""
        with self._lock:
            self._shut = error

    def __enter__(self) -> None:
        self._lock.acquire()
        if self._shut is not None:
            self._lock.release()
            raise self._shut.with_traceback(None)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()
