"""What has been put and waits to be written: groups, and the room they will take.

Where files begin and end is decided when an entry is staged, not when it is written.
Only so can a put be refused exactly when the log is full, with nothing over the caps ever
promised.
"""

from __future__ import annotations

from typing import Final, Protocol

from quiver.errors import QuiverError
from quiver.format.crc import Bytes
from quiver.format.wal_header import HEADER_SIZE
from quiver.format.wal_scan import TERMINATOR

_TAIL: Final = len(TERMINATOR)
EMPTY_FILE: Final = HEADER_SIZE + _TAIL
"""Bytes of a log file without entries: the head, and what marks the end."""


class Completable(Protocol):
    """Somebody who waits for an entry; told once, whatever becomes of it."""

    def complete(self, error: QuiverError | None = None) -> None: ...


class Group:
    """Entries that are written and synced together, all in one file."""

    __slots__ = (
        "buffers",
        "count",
        "first",
        "last_segment",
        "nbytes",
        "new_file",
        "published",
        "receipts",
        "watermark",
    )

    def __init__(self, first: int, *, new_file: bool) -> None:
        self.first = first
        self.new_file = new_file
        self.buffers: list[Bytes] = []
        self.receipts: list[Completable] = []
        self.nbytes = 0
        self.count = 0
        self.last_segment = -1
        self.watermark: int | None = None
        self.published = False


class Plan:
    """How full the log will be once all that is staged is written.

    ``total`` counts the bytes of every file: a file is cut at its end when it is set
    aside, the newest one still has its terminator.  ``end`` is where the next entry goes
    in that one, ``None`` if it has to start a file.
    """

    __slots__ = ("end", "files", "max_files", "max_size", "target", "total")

    def __init__(self, *, target: int, max_size: int, max_files: int) -> None:
        self.target = target
        self.max_size = max_size
        self.max_files = max_files
        self.files = 0
        self.total = 0
        self.end: int | None = None

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

    def add(self, nbytes: int) -> bool:
        """Take an entry in; whether it starts a new file."""
        if new_file := self.starts_file(nbytes):
            self.end_file()
            self.files += 1
            self.total += EMPTY_FILE
            self.end = HEADER_SIZE
        assert self.end is not None
        self.total += nbytes
        self.end += nbytes
        return new_file

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

    def reset(self, *, files: int, total: int, end: int | None) -> None:
        """Start over from what is really there."""
        self.files, self.total, self.end = files, total, end
