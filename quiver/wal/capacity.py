"""What has been put and waits to be written: groups, and the room they will take.

Where files begin and end is decided when an entry is staged, not when it is written.
Only so can a put be refused exactly when the log is full, with nothing over the caps ever
promised.  And only so can an entry be summed with the salt of its file while it is staged:
the salts of the newest file and of the one after it are drawn ahead.
"""

from __future__ import annotations

import secrets
from typing import Final, Protocol

from quiver.errors import QuiverError
from quiver.format.crc import Bytes
from quiver.format.wal.header import HEADER_SIZE, seed_of
from quiver.format.wal.scan import TERMINATOR

_TAIL: Final = len(TERMINATOR)
EMPTY_FILE: Final = HEADER_SIZE + _TAIL
"""Bytes of a log file without entries: the head, and what marks the end."""


class Completable(Protocol):
    """Somebody who waits for an entry; told once, whatever becomes of it."""

    def complete(self, error: QuiverError | None = None) -> None: ...


def draw_salt() -> int:
    """A salt for a new file. One whose seed is 0 would be as good as none."""
    while not seed_of(salt := secrets.randbits(32)):
        pass
    return salt


class Group:
    """Entries that are written and synced together, all in one file.

    ``salt`` is that of the file it starts, ``None`` if it goes on in the active one.
    """

    __slots__ = (
        "buffers",
        "count",
        "first",
        "last_segment",
        "nbytes",
        "published",
        "receipts",
        "salt",
        "watermark",
    )

    def __init__(self, first: int, salt: int | None) -> None:
        self.first = first
        self.salt = salt
        self.buffers: list[Bytes] = []
        self.receipts: list[Completable] = []
        self.nbytes = 0
        self.count = 0
        self.last_segment = -1
        self.watermark: int | None = None
        self.published = False


class LogPlan:
    """How full the log will be once all that is staged is written.

    ``total`` counts the bytes of every file: a file is cut at its end when it is set
    aside, the newest one still has its terminator.  ``end`` is where the next entry goes
    in that one, ``None`` if it has to start a file.  ``seed`` is that one's, and what its
    entries are summed with; the file after it will have ``next_salt``.
    """

    __slots__ = (
        "end",
        "files",
        "max_files",
        "max_size",
        "next_salt",
        "next_seed",
        "seed",
        "target",
        "total",
    )

    def __init__(self, *, target: int, max_size: int, max_files: int) -> None:
        self.target = target
        self.max_size = max_size
        self.max_files = max_files
        self.files = 0
        self.total = 0
        self.end: int | None = None
        self.seed = 0
        self._draw()

    def _draw(self) -> None:
        self.next_salt = draw_salt()
        self.next_seed = seed_of(self.next_salt)

    def seed_for(self, nbytes: int) -> int:
        """What an entry of this size is summed with, if it is the next to be added."""
        return self.next_seed if self.starts_file(nbytes) else self.seed

    def starts_file(self, nbytes: int) -> bool:
        """Whether an entry of this size goes into a new file: it would pass the target."""
        end = self.end
        return end is None or (end > HEADER_SIZE and end + nbytes + _TAIL > self.target)

    def fits(self, nbytes: int) -> bool:
        """Whether an entry of this size keeps within both caps."""
        total = self.total + nbytes
        if self.starts_file(nbytes):
            total += EMPTY_FILE if self.end is None else HEADER_SIZE
            return self.files < self.max_files and total <= self.max_size
        return total <= self.max_size

    def add(self, nbytes: int) -> int | None:
        """Take an entry in; the salt of the file it starts, ``None`` if it starts none."""
        salt = None
        if self.starts_file(nbytes):
            self.end_file()
            self.files += 1
            self.total += EMPTY_FILE
            self.end = HEADER_SIZE
            salt, self.seed = self.next_salt, self.next_seed
            self._draw()
        assert self.end is not None
        self.total += nbytes
        self.end += nbytes
        return salt

    def has_room_for_file(self) -> bool:
        """Whether a file with nothing in it keeps within both caps."""
        return self.files < self.max_files and self.total + HEADER_SIZE <= self.max_size

    def end_file(self) -> None:
        """Let the next entry start a file."""
        if self.end is not None:
            self.total -= _TAIL
            self.end = None

    def release(self, nbytes: int) -> None:
        """A file of this size is gone."""
        self.files -= 1
        self.total -= nbytes

    def reset(self, *, files: int, total: int, end: int | None, seed: int) -> None:
        """Start over from what is really there.

        A salt that was drawn for a file which did not come about is not used again.
        """
        self.files, self.total, self.end, self.seed = files, total, end, seed
        self._draw()
