"""The real disk: one directory tree, through ``os``.

Everything here is one system call and its flags.  Files are 0600 and directories 0700,
descriptors are not inherited, and a symbolic link in place of a file is refused, so
that nobody can point a store's file at something else.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from quiver.disk import direct
from quiver.disk.direct import DirectWriter
from quiver.disk.seam import Bytes

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
# Who holds the lock is no secret: the one who is refused must be able to read it.
LOCK_MODE = 0o644

_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW


class PosixFile:
    """One descriptor; with ``direct`` it was opened to be written past the page cache."""

    __slots__ = ("_direct", "_fd")

    def __init__(self, fd: int, *, direct: bool = False) -> None:
        self._fd = fd
        self._direct = DirectWriter(fd) if direct else None

    def _live(self) -> int:
        # Python's own check raises ValueError for some calls and OSError for others.
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._fd

    def pwritev(self, buffers: Sequence[Bytes], offset: int) -> int:
        fd = self._live()
        if self._direct is not None:
            return self._direct.pwritev(buffers, offset)
        return os.pwritev(fd, buffers, offset)

    def pread(self, size: int, offset: int) -> bytes:
        # The kernel gives at most 2 GiB per call: ask on until there is no more.
        first = os.pread(self._live(), size, offset)
        if len(first) == size or not first:
            return first
        parts = [first]
        got = len(first)
        while got < size and (more := os.pread(self._live(), size - got, offset + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def pread_into(self, memory: memoryview, offset: int) -> int:
        got = 0
        while got < len(memory):
            count = os.preadv(self._live(), [memory[got:]], offset + got)
            if not count:
                break
            got += count
        return got

    def size(self) -> int:
        return os.fstat(self._live()).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self._live(), size)

    def fdatasync(self) -> None:
        os.fdatasync(self._live())

    def fsync(self) -> None:
        os.fsync(self._live())

    def close(self) -> None:
        # Forget the number first: after a failed close it may belong to another file.
        fd, self._fd = self._fd, -1
        if self._direct is not None:
            self._direct.close()
        if fd >= 0:
            os.close(fd)


class PosixLock:
    """A held ``flock``; the kernel drops it when the process dies."""

    __slots__ = ("_fd",)

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def release(self) -> None:
        # The file stays: removing it would let two processes lock two different inodes.
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class PosixDisk:
    """A directory, made absolute at once so that a later ``chdir`` can't move it."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))

    def _full(self, path: str) -> str:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{path!r} would leave the store's directory")
        return f"{self.root}/{path}" if path else self.root

    def create(self, path: str, *, bulk: bool = False) -> PosixFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE
        full = self._full(path)
        if bulk and direct.FLAG:
            try:
                return PosixFile(os.open(full, flags | direct.FLAG, FILE_MODE), direct=True)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # This file system doesn't know it, but may have made the file all the same.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(full)
        return PosixFile(os.open(full, flags, FILE_MODE))

    def open(self, path: str, *, write: bool = False) -> PosixFile:
        flags = (os.O_RDWR if write else os.O_RDONLY) | _SAFE
        return PosixFile(os.open(self._full(path), flags))

    def view(self, path: str) -> pa.Buffer:
        full = self._full(path)
        if os.path.islink(full):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        # Arrow's map, not mmap.mmap: the latter keeps a descriptor open per mapping.
        with pa.memory_map(full) as mapped:
            return mapped.read_buffer()

    def rename(self, source: str, target: str) -> None:
        os.rename(self._full(source), self._full(target))

    def unlink(self, path: str) -> None:
        os.unlink(self._full(path))

    def mkdir(self, path: str) -> None:
        """As the seam says; ``""`` makes the root, with its parents, and makes it durable.

        Nobody else can: the entries that name the root lie outside of it.
        """
        if not path:
            self._make_root()
            return
        full = self._full(path)
        try:
            os.mkdir(full, DIRECTORY_MODE)
        except FileExistsError:
            if not stat.S_ISDIR(os.lstat(full).st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), path) from None

    def _make_root(self) -> None:
        missing: list[Path] = []
        at = Path(self.root)
        while not at.is_dir():
            missing.append(at)
            at = at.parent
        for directory in reversed(missing):
            directory.mkdir(DIRECTORY_MODE, exist_ok=True)
            _sync_directory(str(directory.parent))

    def fsync_dir(self, path: str) -> None:
        _sync_directory(self._full(path))

    def listdir(self, path: str) -> list[str]:
        return sorted(os.listdir(self._full(path)))

    def stat_size(self, path: str) -> int | None:
        try:
            found = os.lstat(self._full(path))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return found.st_size if stat.S_ISREG(found.st_mode) else None

    def chmod(self, path: str, mode: int) -> None:
        os.chmod(self._full(path), mode)

    def allocate(self, path: str, size: int) -> None:
        """As the seam says; on failure a file that was not there before is gone again."""
        full = self._full(path)
        fresh = not os.path.lexists(full)
        fd = os.open(full, os.O_RDWR | os.O_CREAT | _SAFE, FILE_MODE)
        try:
            os.ftruncate(fd, min(size, os.fstat(fd).st_size))
            if size:
                os.posix_fallocate(fd, 0, size)
        except OSError:
            if fresh:
                os.unlink(full)
            raise
        finally:
            os.close(fd)

    def free_bytes(self) -> int:
        figures = os.statvfs(self.root)
        return figures.f_bavail * figures.f_frsize

    def lock(self, path: str, owner: bytes) -> PosixLock:
        fd = os.open(self._full(path), os.O_RDWR | os.O_CREAT | _SAFE, LOCK_MODE)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise
        # The lock is what counts; its label must not stop a start on a full disk.
        with contextlib.suppress(OSError):
            os.pwrite(fd, owner, 0)
            os.ftruncate(fd, len(owner))
        return PosixLock(fd)


def _sync_directory(full: str) -> None:
    fd = os.open(full, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
