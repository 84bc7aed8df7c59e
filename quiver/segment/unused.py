"""A segment number that was never given out, for a directory that can't be opened."""

from __future__ import annotations

from typing import Final

from quiver.disk.disk import Disk
from quiver.errors import QuiverError
from quiver.format.floor import FLOOR_PATH, decode_floor
from quiver.segment.info import SEGMENTS, parse_name

NUMBERS_SKIPPED: Final = 1 << 20
"""Numbers passed over: a log that can't be read may have used some that nothing else names."""


def unused_segment(disk: Disk) -> int:
    """A number above every one that files and floor know of, with a margin."""
    known = [0]
    try:
        known += [seq + 1 for name in disk.listdir(SEGMENTS) if (seq := parse_name(name))]
        known.append(decode_floor(disk.read(FLOOR_PATH)).next_segment)
    except (QuiverError, FileNotFoundError):
        pass  # damaged or missing: that is why it can't be opened
    return max(known) + NUMBERS_SKIPPED
