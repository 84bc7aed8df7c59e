"""One writer per store: two would write over each other's log.

The kernel's ``flock`` decides, so a killed process never leaves a stale lock behind.
The file's text only says who holds it.  It names the host as well, since a pid alone
misleads when two containers share a volume.
"""

from __future__ import annotations

import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Final

from quiver.clock import Clock
from quiver.disk.disk import Disk
from quiver.disk.seam import RawLock
from quiver.errors import QuiverError, StoreLocked

LOCK_FILE: Final = "LOCK"
MAX_OWNER_BYTES: Final = 4096


@dataclass(frozen=True, slots=True)
class Owner:
    """Who writes to a store, and since when (ISO 8601, UTC)."""

    host: str
    pid: int
    started: str

    def describe(self) -> str:
        """For people: ``host web-1, pid 4121, since 2026-02-03 09:14 UTC``."""
        since = self.started[:16].replace("T", " ")
        return f"host {self.host}, pid {self.pid}, since {since} UTC"


def read_owner(disk: Disk) -> Owner | None:
    """What the lock file says; ``None`` if it says nothing sensible.

    It outlives its owner, so it tells who holds the lock only while the lock is held.
    """
    try:
        with disk.open(LOCK_FILE) as file:
            said = json.loads(file.pread(MAX_OWNER_BYTES, 0))
        return Owner(host=str(said["host"]), pid=int(said["pid"]), started=str(said["started"]))
    except (OSError, QuiverError, ValueError, TypeError, KeyError):
        return None


class StoreLock:
    """The held lock; a context manager."""

    def __init__(self, raw: RawLock, owner: Owner) -> None:
        self._raw = raw
        self.owner = owner

    @classmethod
    def acquire(cls, disk: Disk, clock: Clock, *, where: str) -> StoreLock:
        """Take the lock or raise ``StoreLocked`` at once; ``where`` names the store."""
        started = datetime.fromtimestamp(clock.now_ns() // 1_000_000_000, UTC).isoformat()
        owner = Owner(host=socket.gethostname(), pid=os.getpid(), started=started)
        try:
            raw = disk.lock(LOCK_FILE, json.dumps(asdict(owner)).encode())
        except BlockingIOError:
            raise _locked(read_owner(disk), where) from None
        return cls(raw, owner)

    def release(self) -> None:
        """Let another process write; a second time does nothing."""
        self._raw.release()

    def __enter__(self) -> StoreLock:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


def _locked(owner: Owner | None, where: str) -> StoreLocked:
    who = f" ({owner.describe()})" if owner is not None else ""
    return StoreLocked(
        f"cannot open {where}: another process{who} is writing to it.",
        advice=f"Stop it, or read without it: quiver inspect {where}",
        **(asdict(owner) if owner is not None else {}),
    )
