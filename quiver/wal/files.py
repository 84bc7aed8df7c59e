"""Names in the ``wal`` directory, and what is known about each log file.

::

    quiver.wal          the active file
    quiver.wal.N        rotated, whole and synced before it got this name; N rises
    quiver.wal.spare    retired, kept to be written over
    quiver.wal.new      a file in the making
    quiver.wal.cursor   a hint, see :mod:`quiver.format.wal.cursor`
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from quiver.disk.disk import Disk
from quiver.format.wal.cursor import decode_cursor, encode_cursor
from quiver.format.wal.header import WalHeader

DIRECTORY: Final = "wal"
ACTIVE: Final = "wal/quiver.wal"
SPARE: Final = "wal/quiver.wal.spare"
NEW: Final = "wal/quiver.wal.new"
CURSOR: Final = "wal/quiver.wal.cursor"

_ROTATED = re.compile(r"quiver\.wal\.([0-9]{1,18})")


class LogName(NamedTuple):
    """A log file's place in the order; ``number`` is ``None`` for the active one."""

    path: str
    number: int | None


class SequenceRun(NamedTuple):
    """Sound entries without a gap: ``[start, end)`` in the file, from ``sequence`` on."""

    start: int
    end: int
    sequence: int | None


@dataclass(frozen=True, slots=True)
class LogFile:
    """What a log file holds, as far as it was found sound.

    ``last_segment`` is the highest segment any of its bundles belongs to, -1 for none; in
    a file of the Rust crate nothing says so, and recovery has to fill it in.
    """

    path: str
    number: int | None
    header: WalHeader
    size: int
    end: int
    runs: tuple[SequenceRun, ...]
    next_sequence: int
    last_segment: int
    entries: int
    bundles: int
    sealed: bool

    @property
    def header_shift(self) -> int:
        """What turns an offset in this file into a position of the log."""
        return self.header.position_start - self.header.size

    @property
    def position_end(self) -> int:
        """Position behind its last entry."""
        return self.end + self.header_shift


def rotated_path(number: int) -> str:
    """The name of the rotated file with this number."""
    return f"{ACTIVE}.{number}"


def log_names(disk: Disk) -> list[LogName]:
    """The log files in their order: by number, the active one last."""
    names = disk.listdir(DIRECTORY)
    rotated = sorted((int(match[1]), name) for name in names if (match := _ROTATED.fullmatch(name)))
    found = [LogName(f"{DIRECTORY}/{name}", number) for number, name in rotated]
    if "quiver.wal" in names:
        found.append(LogName(ACTIVE, None))
    return found


def read_cursor(disk: Disk) -> int | None:
    """The cursor's position, ``None`` without one; ``StateCorrupt`` for a damaged one."""
    try:
        return decode_cursor(disk.read(CURSOR))
    except FileNotFoundError:
        return None


def write_cursor(disk: Disk, position: int) -> None:
    """Put the cursor in place, durably."""
    disk.replace(CURSOR, encode_cursor(position))
