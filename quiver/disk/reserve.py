"""Bytes kept back for the day the disk is full.

A store that can't write acks, progress or its checkpoint can't delete anything either,
and so never gets out of a full disk by itself.  The reserve is a file of really
allocated bytes: letting go of it makes room for those small writes.

For those alone: while it is released, log, segments and stages leave as many bytes free
(:meth:`Disk.check_room <quiver.disk.disk.Disk.check_room>`).  Were they to take them, the next
ack would find the disk as full as before.
"""

from __future__ import annotations

import threading
from typing import Final

from quiver.disk.disk import Disk
from quiver.errors import StorageFull

RESERVE_FILE: Final = "quiver.reserve"


class Reserve:
    """``size`` bytes set aside; 0 means none. :meth:`restore` takes them the first time too."""

    def __init__(self, disk: Disk, size: int) -> None:
        self._disk = disk
        self._size = size
        self._held = 0
        self._was_released = False
        self._lock = threading.Lock()

    @property
    def held(self) -> int:
        """Bytes set aside right now."""
        return self._held

    @property
    def size(self) -> int:
        """Bytes that are to be set aside."""
        return self._size

    @property
    def is_whole(self) -> bool:
        """Whether all that is to be set aside is."""
        return self._held == self._size

    def require(self, size: int) -> None:
        """Set aside at least so many bytes from the next :meth:`restore` on, if any at all.

        It doubles: a file that grows by and by is not followed byte by byte.
        """
        with self._lock:
            while 0 < self._size < size:
                self._size *= 2

    def release(self) -> int:
        """Give the bytes to the small files; how many that were.

        Nothing is synced: no promise rests on the file being gone.
        """
        with self._lock:
            freed, self._held = self._disk.stat_size(RESERVE_FILE) or 0, 0
            self._was_released = True
            if freed:  # a disk that is too small for a reserve has nothing to keep free
                self._disk.held_back = freed
            self._disk.unlink(RESERVE_FILE, missing_ok=True)
            return freed

    def restore(self) -> bool:
        """Set the bytes aside again; ``False`` while there is no room for it.

        Once released it asks for twice the room it takes.  Otherwise it would snatch the first
        bytes that come free, and the store would swing between full and not full.  At a start it
        takes what there is: a small disk needs a reserve more than a large one.
        """
        with self._lock:
            if self._size and self._held == self._size:
                return True
            there = self._disk.stat_size(RESERVE_FILE)
            if not self._size:
                self._disk.held_back = 0
                if there is not None:  # from a time when there was to be one
                    self._disk.unlink(RESERVE_FILE, missing_ok=True)
                return True
            missing = self._size - (there or 0)
            to_spare = self._size if self._was_released else 0
            if missing > 0 and self._disk.free_bytes() < missing + to_spare:
                return False
            try:
                self._disk.allocate(RESERVE_FILE, self._size)
            except StorageFull:
                return False
            self._held = self._size
            self._disk.held_back = 0
            return True
