"""One look at a directory: everything read, nothing changed, nothing refused.

The store may be written to meanwhile.  So the order is progress, log, stages, segments, in
which a bundle can only move towards what is read later, and the whole look is taken again
if files came or went during it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias, TypeVar

from quiver.disk.disk import Disk
from quiver.errors import Busy, NotFound
from quiver.format.floor import FLOOR_PATH
from quiver.offline.index import LogIndex
from quiver.recovery.survey import Findings, SegmentFiles, survey
from quiver.segment.info import SEGMENTS, parse_name
from quiver.subscriber.progress import FILE_PREFIX
from quiver.wal.contents import LogEntry
from quiver.wal.files import log_names

MAX_LOOKS: Final = 20
"""A store that changes faster than it can be read this many times is too busy."""

Watch: TypeAlias = Callable[[str, int], None]
"""Called with a file's path and how many of its bytes were just read."""
Look: TypeAlias = Findings[LogIndex]
R = TypeVar("R")


def look(disk: Disk, *, watch: Watch | None = None, check: bool = True) -> Look:
    """Look at everything, again if it changed meanwhile."""
    if not holds_a_store(disk):
        raise no_store()

    def once() -> Look | None:
        before = _stamp(disk)
        found = _look_once(disk, watch, check)
        return found if _stamp(disk) == before else None

    return until_still(once)


def until_still(attempt: Callable[[], R | None]) -> R:
    """Try until no file goes away meanwhile, and the answer is not ``None``."""
    for _ in range(MAX_LOOKS):
        try:
            found = attempt()
        except FileNotFoundError:
            continue  # a segment was finished and deleted, or a log file retired, in between
        if found is not None:
            return found
    raise Busy(
        "the store changes faster than it can be read.",
        advice="Stop its writer, or try again when it is less busy.",
    )


def no_store() -> NotFound:
    """The error for a directory that isn't one."""
    return NotFound(
        "there is no store here: neither a log nor a segment nor a checkpoint.",
        advice="Name the directory that has wal/ and segments/ in it.",
    )


def holds_a_store(disk: Disk) -> bool:
    """Whether anything in a directory is a store's."""
    top = disk.listdir("")
    return (
        bool(log_names(disk))
        or any(parse_name(name) is not None for name in disk.listdir(SEGMENTS))
        or disk.stat_size(FLOOR_PATH) is not None
        or "quiver.state" in top
        or any(name.startswith(FILE_PREFIX) for name in top)
    )


def _look_once(disk: Disk, watch: Watch | None, check: bool) -> Look:
    seen: dict[str, int] = {}

    def told(entry: LogEntry) -> None:
        if watch is not None:
            end = entry.offset + len(entry.body)
            watch(entry.path, end - seen.get(entry.path, 0))
            seen[entry.path] = end

    files = SegmentFiles(disk, check=check, watch=watch)
    index = LogIndex(disk)
    found = survey(
        disk, files, lambda _: index, layout_hash=None, watch=told, newer=[], check_stages=check
    )
    for seq in files.numbers:
        files.is_sound(seq)
    return found


def _stamp(disk: Disk) -> object:
    """Changes when a file comes or goes: what a look must not straddle."""
    try:
        floor = disk.read(FLOOR_PATH)
    except FileNotFoundError:
        floor = b""
    segments = [name for name in disk.listdir(SEGMENTS) if parse_name(name) is not None]
    return floor, segments, log_names(disk)
