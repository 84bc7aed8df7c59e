"""A long recovery, told while it goes on: to the log, and to whoever shows a progress bar."""

from __future__ import annotations

from typing import Final

from structlog.stdlib import BoundLogger

from quiver.clock import Clock
from quiver.events import RECOVERY_PROGRESS
from quiver.recovery.recover import Watch
from quiver.wal.contents import LogEntry

TELL_SECONDS: Final = 5.0


class RecoveryWatch:
    """Sees every entry that recovery reads; says every few seconds how far it is."""

    def __init__(self, clock: Clock, log: BoundLogger, then: Watch | None) -> None:
        self._clock = clock
        self._log = log
        self._then = then
        self._told_at = clock.monotonic()
        self._entries = 0
        self._nbytes = 0

    def __call__(self, entry: LogEntry) -> None:
        self._entries += 1
        self._nbytes += len(entry.body)
        now = self._clock.monotonic()
        if now - self._told_at >= TELL_SECONDS:
            self._told_at = now
            self._log.info(
                RECOVERY_PROGRESS, file=entry.path, entries=self._entries, nbytes=self._nbytes
            )
        if self._then is not None:
            self._then(entry)
