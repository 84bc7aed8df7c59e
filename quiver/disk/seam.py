"""The seam: the only calls Quiver makes to a disk.

Two homes implement it, :class:`~quiver.disk.posix.PosixDisk` and the recording
:class:`~tests.support.memory_disk.MemoryDisk`, and test wrappers that make the n-th call fail.
They raise plain ``OSError``; :class:`~quiver.disk.disk.Disk` turns that into Quiver's
own errors.  Paths are relative to the store's root, with ``/`` between parts.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import pyarrow as pa

Bytes: TypeAlias = bytes | bytearray | memoryview | pa.Buffer


AT_A_LIMIT: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""The process or the system has no more descriptors, or the kernel no memory: for now."""


class NotOpened(OSError):
    """A directory could not be opened, for one of these reasons: no sync was asked for.

    Unlike a sync that failed, this says nothing about what the disk holds: it can be tried
    again.
    """


class RawFile(Protocol):
    """One open file. Positional I/O only: there is no shared file offset to get wrong."""

    def pwritev(self, buffers: Sequence[Bytes], offset: int) -> int:
        """Write, perhaps only in part; the number of bytes written."""
        ...

    def pread(self, size: int, offset: int) -> bytes:
        """Read up to ``size`` bytes; fewer only at the end of the file."""
        ...

    def pread_into(self, memory: memoryview, offset: int) -> int:
        """Fill ``memory``; the number of bytes read, fewer only at the end of the file."""
        ...

    def size(self) -> int: ...

    def truncate(self, size: int) -> None: ...

    def fdatasync(self) -> None: ...

    def fsync(self) -> None: ...

    def close(self) -> object:
        """Close; a second time does nothing, whichever thread it is."""
        ...


class RawDisk(Protocol):
    """One directory tree."""

    def create(self, path: str, *, bulk: bool = False) -> RawFile:
        """A new empty file, open for reading and writing; ``FileExistsError`` if there.

        ``bulk``: it will be written once, from front to end, and not read soon.
        """
        ...

    def open(self, path: str, *, write: bool = False) -> RawFile:
        """An existing file; never follows a symbolic link."""
        ...

    def view(self, path: str) -> pa.Buffer:
        """The whole file as read-only memory (a mapping), to be used only when sealed."""
        ...

    def rename(self, source: str, target: str) -> None: ...

    def unlink(self, path: str) -> None: ...

    def mkdir(self, path: str) -> None:
        """Make a directory, mode 0700; fine if it is there."""
        ...

    def fsync_dir(self, path: str) -> None:
        """Make a directory's entries durable; ``NotOpened`` if that was not even tried."""
        ...

    def listdir(self, path: str) -> list[str]:
        """Names in a directory, sorted; ``FileNotFoundError`` if it isn't there."""
        ...

    def stat_size(self, path: str) -> int | None:
        """Size of a file, or ``None`` if there is none."""
        ...

    def chmod(self, path: str, mode: int) -> None: ...

    def allocate(self, path: str, size: int) -> None:
        """Make a file whose ``size`` bytes are really reserved on the disk."""
        ...

    def free_bytes(self) -> int:
        """Bytes an unprivileged writer could still use on this file system."""
        ...

    def lock(self, path: str, owner: bytes) -> RawLock:
        """Take the exclusive lock, or raise ``BlockingIOError`` at once."""
        ...


class RawLock(Protocol):
    """A held lock; dies with the process."""

    def release(self) -> None: ...
