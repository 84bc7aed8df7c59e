"""Putting a damaged file aside, where nothing is ever deleted by Quiver."""

from __future__ import annotations

from typing import Final

from quiver.disk.disk import Disk
from quiver.errors import LimitExceeded
from quiver.segment.info import QUARANTINE

MAX_NAMESAKES: Final = 10_000
"""Quarantined files of one name: more than this, and somebody must look."""


def set_aside(disk: Disk, path: str) -> str:
    """Move a file to ``quarantine/``; where it is from now on. :func:`settle_aside` is next."""
    disk.mkdir(QUARANTINE)
    base = f"{QUARANTINE}/{path.rpartition('/')[2]}"
    target, count = base, 0
    while disk.stat_size(target) is not None:
        count += 1
        if count > MAX_NAMESAKES:
            raise LimitExceeded(f"quarantined files called {base}", count, MAX_NAMESAKES)
        target = f"{base}.{count}"
    disk.rename(path, target)
    return target


def settle_aside(disk: Disk, path: str) -> None:
    """Make it durable that ``path`` was moved.

    The new name first: a crash between may leave two names, never none.
    """
    disk.fsync_dir(QUARANTINE)
    disk.fsync_dir(path.rpartition("/")[0])
