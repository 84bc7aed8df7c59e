"""Making a log that was read fit to go on from, before anything of it is served.

Kept apart from reading, so that the tools that only look can't write.  It is safe to be
interrupted and done again: each step leaves a log that reads the same.

1. A torn tail is copied to ``quarantine/`` and cut off.
2. The last file is cut behind its last entry in any case, and gets a terminator again.  A
   group that was never synced may have left whole entries behind a hole; later a new entry
   of the right length could bring them back.
3. What no later entry proves to be synced is written again and synced.  After a kill it
   may be in the page cache only, and after a failed fsync the cache shows bytes that the
   disk does not have (Rebello et al., ATC '20).  That holds for the seal of a clean close,
   too: a file is cut behind it once it is synced, so one with more behind it proves nothing.
4. A file that was about to become the active one gets its name; other files in the making
   and the spare are removed.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Final

from quiver.disk import quarantine
from quiver.disk.disk import Disk
from quiver.errors import StorageFull
from quiver.format.wal.scan import TERMINATOR
from quiver.wal.contents import LogContents, TornTail
from quiver.wal.files import ACTIVE, DIRECTORY, NEW, SPARE, LogFile

REWRITE_CHUNK: Final = 1024 * 1024
"""Small enough to stay in the cache between being read and being written."""
_WRITABLE: Final = 0o600


@dataclass(frozen=True, slots=True)
class TailRepair:
    """What was done. ``copies`` are the files in quarantine, one per torn tail.

    A copy is missing when the disk had no room for it: what is cut was never promised,
    and a full disk must not keep a store from opening.
    """

    copies: tuple[str, ...]
    cut_bytes: int
    rewritten_bytes: int


def repair_tail(disk: Disk, contents: LogContents) -> TailRepair:
    """Cut what is torn, make durable what was read, and clear up."""
    copies = []
    cut = rewritten = 0
    for torn in contents.torn_tails:
        copy = _quarantine(disk, torn) if torn.length else None
        if copy is not None:
            copies.append(copy)
        if torn.until is None:
            cut += _cut(disk, torn.file, torn.offset)
    is_closed = _is_closed(contents)
    if contents.files and not is_closed:
        last = contents.files[-1]
        if not _is_terminated(disk, last):
            _cut(disk, last.path, last.end)
        rewritten = _rewrite(disk, last, contents.proven_end)
        if contents.sealed:
            _cut(disk, last.path, last.end)  # as the close would have done
    if contents.files:
        _name_active(disk, contents.files[-1])
    _clear_up(disk, must_sync=bool(contents.files) and not is_closed)
    return TailRepair(tuple(copies), cut, rewritten)


def _is_closed(contents: LogContents) -> bool:
    """Whether the log was closed cleanly, to the end: its seal was synced, and then cut to."""
    if not contents.sealed:
        return False
    last = contents.files[-1]
    return last.size == last.end


def _quarantine(disk: Disk, torn: TornTail) -> str | None:
    """Keep a copy; on a full disk there is none."""
    name = torn.file.rpartition("/")[2]
    name = f"{name}-at-{torn.offset}-sequence-{torn.sequence}"
    try:
        return quarantine.copy(disk, torn.file, torn.offset, torn.length, name=name)
    except StorageFull:
        return None


def _cut(disk: Disk, path: str, end: int) -> int:
    """Cut a file, durably; a file with no head left goes altogether."""
    size = disk.stat_size(path) or 0
    if end == 0:
        disk.unlink(path)
        disk.fsync_dir(DIRECTORY)
        return size
    if size > end:
        disk.chmod(path, _WRITABLE)  # the Rust crate makes its rotated files read-only
        with disk.open(path, write=True) as file:
            file.truncate(end)
            file.fsync()
    return size - end


def _is_terminated(disk: Disk, last: LogFile) -> bool:
    """Whether nothing but a terminator is behind the last entry."""
    with disk.open(last.path) as file:
        return file.pread(len(TERMINATOR) + 1, last.end) == TERMINATOR


def _rewrite(disk: Disk, last: LogFile, proven_end: int) -> int:
    at = min(proven_end, last.end)
    disk.chmod(last.path, _WRITABLE)
    with disk.open(last.path, write=True) as file:
        memory = memoryview(bytearray(min(REWRITE_CHUNK, last.end - at)))
        while at < last.end and (got := file.pread_into(memory[: last.end - at], at)):
            at += file.write_all([memory[:got]], at)
        if not last.header.foreign:
            with contextlib.suppress(StorageFull):  # without it the end is only less certain
                file.write_all([TERMINATOR], last.end)
        file.fsync()
    return max(0, last.end - proven_end)


def _name_active(disk: Disk, last: LogFile) -> None:
    """End a rotation that was cut short."""
    if last.path in (NEW, SPARE):
        disk.rename(last.path, ACTIVE)
        disk.fsync_dir(DIRECTORY)


def _clear_up(disk: Disk, *, must_sync: bool) -> None:
    names = disk.listdir(DIRECTORY)
    strays = [path for path in (NEW, SPARE) if path.rpartition("/")[2] in names]
    for path in strays:
        disk.unlink(path)
    if strays or must_sync:
        disk.fsync_dir(DIRECTORY)
