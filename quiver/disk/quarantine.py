"""``quarantine/``: where damaged files go, and where Quiver never deletes anything.

:func:`move` takes a file away that nothing refers to any more.  :func:`copy` is for a file
that must keep its name until something sound is renamed over it.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import Final

from quiver.disk.disk import TMP_SUFFIX, Disk
from quiver.errors import LimitExceeded, QuiverError

QUARANTINE: Final = "quarantine"
MAX_NAMESAKES: Final = 10_000
"""Quarantined files of one name: with more than this somebody has to look."""
CHUNK: Final = 1 << 20


def move(disk: Disk, path: str) -> str:
    """Move a file to ``quarantine/``, durably; its new path.

    The new name is synced before the old one goes: a crash may leave two names, never none.
    """
    disk.make_directory(QUARANTINE)  # durably: a name in a lost directory is lost
    base = f"{QUARANTINE}/{path.rpartition('/')[2]}"
    target, count = base, 0
    while disk.stat_size(target) is not None:
        count += 1
        if count > MAX_NAMESAKES:
            raise LimitExceeded(f"quarantined files called {base}", count, MAX_NAMESAKES)
        target = f"{base}.{count}"
    disk.rename(path, target)
    disk.fsync_dir(QUARANTINE)
    disk.fsync_dir(path.rpartition("/")[0])
    return target


def copy(
    disk: Disk, path: str, offset: int = 0, length: int | None = None, *, name: str = ""
) -> str:
    """Copy a file, or a part of it, to ``quarantine/``, durably; the copy's path.

    The copy is named for its content (``name`` or the file's, then the checksum): doing it
    again after a crash makes no second one.
    """
    with disk.open(path) as file:
        end = file.size() if length is None else offset + length

        def pieces() -> Iterable[bytes]:
            at = offset
            while at < end and (data := file.pread(min(CHUNK, end - at), at)):
                yield data
                at += len(data)

        crc = size = 0
        for data in pieces():
            crc, size = zlib.crc32(data, crc), size + len(data)
        target = f"{QUARANTINE}/{name or path.rpartition('/')[2]}.{crc:08x}"
        if disk.stat_size(target) != size:
            disk.check_room(target, size)
            _write(disk, target, pieces())
    return target


def _write(disk: Disk, target: str, pieces: Iterable[bytes]) -> None:
    disk.make_directory(QUARANTINE)  # durably: a name in a lost directory is lost
    partial = target + TMP_SUFFIX
    disk.unlink(partial, missing_ok=True)
    try:
        with disk.create(partial) as file:
            at = 0
            for data in pieces:
                at += file.write_all([data], at)
            file.fsync()
    except QuiverError:
        disk.unlink(partial, missing_ok=True)
        raise
    disk.rename(partial, target)
    disk.fsync_dir(QUARANTINE)
