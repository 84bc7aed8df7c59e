"""The real disk: one directory tree, through ``os``.

Everything here is one system call and its flags.  Files are 0600 and directories 0700,
descriptors are not inherited, and a symbolic link in place of a file is refused, so
that nobody can point a store's file at something else.

A sync of a directory needs a descriptor, and is asked for after names have been changed:
too late to find out that there is none.  So while the store's lock is held, the directories
directly below its root stay open from their first sync on.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa

from quiver.disk import direct
from quiver.disk.descriptors import DESCRIPTORS, Holder
from quiver.disk.direct import DirectWriter
from quiver.disk.seam import AT_A_LIMIT, Bytes, NotOpened
from quiver.forking import guard

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
# Who holds the lock is no secret: the one who is refused must be able to read it.
LOCK_MODE = 0o644

_SAFE = os.O_CLOEXEC | os.O_NOFOLLOW


class PosixFile(Holder):
    """One descriptor; with ``direct`` it was opened to be written past the page cache."""

    __slots__ = ("_direct",)

    def __init__(self, fd: int, *, direct: bool = False) -> None:
        super().__init__(fd)
        self._direct = DirectWriter(fd) if direct else None

    def pwritev(self, buffers: Sequence[Bytes], offset: int) -> int:
        fd = self.live()
        if self._direct is not None:
            return self._direct.pwritev(buffers, offset)
        return os.pwritev(fd, buffers, offset)

    def pread(self, size: int, offset: int) -> bytes:
        # The kernel gives at most 2 GiB per call: ask on until there is no more.
        first = os.pread(self.live(), size, offset)
        if len(first) == size or not first:
            return first
        parts = [first]
        got = len(first)
        while got < size and (more := os.pread(self.live(), size - got, offset + got)):
            parts.append(more)
            got += len(more)
        return b"".join(parts)

    def pread_into(self, memory: memoryview, offset: int) -> int:
        got = 0
        while got < len(memory):
            count = os.preadv(self.live(), [memory[got:]], offset + got)
            if not count:
                break
            got += count
        return got

    def size(self) -> int:
        return os.fstat(self.live()).st_size

    def truncate(self, size: int) -> None:
        os.ftruncate(self.live(), size)

    def fdatasync(self) -> None:
        os.fdatasync(self.live())

    def fsync(self) -> None:
        os.fsync(self.live())

    def close(self) -> bool:
        closed = super().close()
        if closed and self._direct is not None:
            self._direct.close()
        return closed


class PosixLock(Holder):
    """A held ``flock``; the kernel drops it when the process dies.

    ``on_release`` is called before another process can get it.
    """

    __slots__ = ("_on_release",)

    def __init__(self, fd: int, on_release: Callable[[], None]) -> None:
        super().__init__(fd)
        self._on_release = on_release

    def release(self) -> None:
        with DESCRIPTORS.changing():
            fd = self.disown()
            if fd < 0:
                return
            self._on_release()
            # Said, not left to the close: a copy of the descriptor, in a child between fork
            # and exec, would keep it.  The file stays: removing it would let two processes
            # lock two different inodes.
            fcntl.flock(fd, fcntl.LOCK_UN)
            DESCRIPTORS.close(fd)


class _Directory(Holder):
    """An open directory, to be synced any number of times."""

    __slots__ = ("_lock",)

    def __init__(self, fd: int) -> None:
        super().__init__(fd)
        self._lock = threading.Lock()  # it must not be closed, and its number reused, in a sync

    @classmethod
    def open(cls, full: str) -> _Directory:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        try:
            return _opened(cls, lambda: os.open(full, flags))
        except OSError as error:
            if error.errno not in AT_A_LIMIT:
                raise
            raise NotOpened(error.errno, error.strerror, full) from error

    def is_at(self, full: str) -> bool:
        """Whether the name still leads here: a directory may have been made anew."""
        with self._lock:
            return self._fd >= 0 and os.path.samestat(os.fstat(self._fd), os.stat(full))

    def sync(self) -> bool:
        """Sync it; ``False`` if it is closed by now."""
        with self._lock:
            if self._fd < 0:
                return False
            os.fsync(self._fd)
            return True

    def close(self) -> bool:
        with self._lock:
            return super().close()


H = TypeVar("H", bound=Holder)


def _opened(make: Callable[[int], H], call: Callable[[], int]) -> H:
    """A holder for what ``call`` opens."""
    with DESCRIPTORS.changing():
        return make(DESCRIPTORS.open(call))


class PosixDisk:
    """A directory, made absolute at once so that a later ``chdir`` can't move it."""

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = os.path.abspath(os.fspath(root))
        self._directories: dict[str, _Directory] | None = None  # none without the lock
        guard(self)

    def _full(self, path: str) -> str:
        if path.startswith("/") or ".." in path.split("/"):
            raise ValueError(f"{path!r} would leave the store's directory")
        return f"{self.root}/{path}" if path else self.root

    def create(self, path: str, *, bulk: bool = False) -> PosixFile:
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | _SAFE
        full = self._full(path)
        if bulk and direct.FLAG:
            try:
                return _opened(
                    lambda fd: PosixFile(fd, direct=True),
                    lambda: os.open(full, flags | direct.FLAG, FILE_MODE),
                )
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
                # This file system doesn't know it, but may have made the file all the same.
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(full)
        return _opened(PosixFile, lambda: os.open(full, flags, FILE_MODE))

    def open(self, path: str, *, write: bool = False) -> PosixFile:
        flags = (os.O_RDWR if write else os.O_RDONLY) | _SAFE
        full = self._full(path)
        return _opened(PosixFile, lambda: os.open(full, flags))

    def view(self, path: str) -> pa.Buffer:
        full = self._full(path)
        if os.path.islink(full):
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
        # Arrow's map, not mmap.mmap: the latter keeps a descriptor open per mapping.
        with DESCRIPTORS.changing(), DESCRIPTORS.open(lambda: pa.memory_map(full)) as mapped:
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
        full, kept = self._full(path), self._directories
        if kept is None or "/" in path:
            _sync_directory(full)
            return
        known = kept.get(path)
        if known is None or not known.is_at(full):
            known = self._keep_open(path, _Directory.open(full))
        if not known.sync():  # the lock was released meanwhile
            _sync_directory(full)

    def _keep_open(self, path: str, directory: _Directory) -> _Directory:
        with DESCRIPTORS.turn:
            replaced: _Directory | None = directory
            if self._directories is not None:
                replaced = self._directories.get(path)
                self._directories[path] = directory
        if replaced is not None:
            replaced.close()
        return directory

    def _close_directories(self) -> None:
        with DESCRIPTORS.turn:
            directories, self._directories = self._directories or {}, None
        for directory in directories.values():
            directory.close()

    def listdir(self, path: str) -> list[str]:
        full = self._full(path)
        with DESCRIPTORS.changing():
            return sorted(DESCRIPTORS.open(lambda: os.listdir(full)))

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
        flags = os.O_RDWR | os.O_CREAT | _SAFE
        file = _opened(PosixFile, lambda: os.open(full, flags, FILE_MODE))
        try:
            file.truncate(min(size, file.size()))
            if size:
                os.posix_fallocate(file.live(), 0, size)
        except OSError:
            if fresh:
                os.unlink(full)
            raise
        finally:
            file.close()

    def free_bytes(self) -> int:
        figures = os.statvfs(self.root)
        return figures.f_bavail * figures.f_frsize

    def lock(self, path: str, owner: bytes) -> PosixLock:
        full, flags = self._full(path), os.O_RDWR | os.O_CREAT | _SAFE
        lock = _opened(
            lambda fd: PosixLock(fd, self._close_directories),
            lambda: os.open(full, flags, LOCK_MODE),
        )
        fd = lock.live()
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise
        # The lock is what counts; its label must not stop a start on a full disk.
        with contextlib.suppress(OSError):
            os.pwrite(fd, owner, 0)
            os.ftruncate(fd, len(owner))
        self._directories = {}
        DESCRIPTORS.keep_reserve()
        return lock


def _sync_directory(full: str) -> None:
    directory = _Directory.open(full)
    try:
        directory.sync()
    finally:
        directory.close()
