"""A disk in memory that remembers everything done to it.

For tests: it is fast to reopen (hundreds of thousands of crash states), can be full, and
its log says what a power cut may leave (:mod:`tests.support.oplog` has the rules).  It
behaves as the real one does: a name leads to an inode, handles survive rename and unlink,
and what was read before a later write does not change.

The lock file is there but not in the log: what it says means nothing after a crash.
File modes are logged, not enforced.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Final

import pyarrow as pa

from quiver.disk.seam import Bytes
from tests.support.oplog import (
    Allocate,
    Chmod,
    Create,
    Durability,
    Mkdir,
    Op,
    Rename,
    Sync,
    SyncDir,
    Truncate,
    Unlink,
    Write,
    overlay,
    parent,
    resize,
)

UNLIMITED: Final = 1 << 40
"""What :meth:`MemoryDisk.free_bytes` says when there is no capacity set."""


def _error(number: int, path: str = "") -> OSError:
    # OSError itself picks the subclass: ENOENT becomes FileNotFoundError, and so on.
    return OSError(number, os.strerror(number), path)


@lru_cache(maxsize=8)
def _zeros(size: int) -> bytes:
    # One shared object per size: a reserve costs nothing each time a store is reopened.
    return bytes(size)


class _Inode:
    """Bytes with a number. ``data`` is immutable until written to: images are shared."""

    __slots__ = ("data", "linked", "number", "opens")

    def __init__(self, number: int, data: bytes | bytearray) -> None:
        self.number = number
        self.data = data
        self.linked = True
        self.opens = 0

    def frozen(self) -> bytes:
        if not isinstance(self.data, bytes):
            self.data = bytes(self.data)
        return self.data

    def thawed(self) -> bytearray:
        if not isinstance(self.data, bytearray):
            self.data = bytearray(self.data)
        return self.data


class MemoryFile:
    """One open file."""

    __slots__ = ("_disk", "_inode", "_open", "_write")

    def __init__(self, disk: MemoryDisk, inode: _Inode, *, write: bool) -> None:
        self._disk = disk
        self._inode = inode
        self._write = write
        self._open = True
        inode.opens += 1

    def _use(self, *, write_errno: int = 0) -> _Inode:
        if not self._open:
            raise _error(errno.EBADF)
        if write_errno and not self._write:
            raise _error(write_errno)
        return self._inode

    def pwritev(self, buffers: Sequence[Bytes], offset: int) -> int:
        inode = self._use(write_errno=errno.EBADF)
        data = b"".join(buffers)
        if not data:
            return 0
        with self._disk.mutex:
            data = data[: self._disk.grant(inode, offset, len(data))]
            overlay(inode.thawed(), offset, data)
            self._disk.log(Write(inode.number, offset, data))
        return len(data)

    def pread(self, size: int, offset: int) -> bytes:
        inode = self._use()
        with self._disk.mutex, memoryview(inode.data) as data:
            return bytes(data[offset : offset + size])

    def pread_into(self, memory: memoryview, offset: int) -> int:
        found = self.pread(len(memory), offset)
        memory[: len(found)] = found
        return len(found)

    def size(self) -> int:
        return len(self._use().data)

    def truncate(self, size: int) -> None:
        inode = self._use(write_errno=errno.EINVAL)
        with self._disk.mutex:
            self._disk.fit(inode, size)
            resize(inode.thawed(), size)
            self._disk.log(Truncate(inode.number, size))

    def fdatasync(self) -> None:
        self._disk.log(Sync(self._use().number, data_only=True))

    def fsync(self) -> None:
        self._disk.log(Sync(self._use().number, data_only=False))

    def close(self) -> None:
        if self._open:
            self._open = False
            with self._disk.mutex:
                self._inode.opens -= 1
                self._disk.reclaim(self._inode)


class MemoryLock:
    """A held lock; also dies with its disk."""

    __slots__ = ("_disk", "_path")

    def __init__(self, disk: MemoryDisk, path: str) -> None:
        self._disk = disk
        self._path: str | None = path

    def release(self) -> None:
        if self._path is not None:
            self._disk.locked.discard(self._path)
            self._path = None


class MemoryDisk:
    """An empty disk; :meth:`from_image` starts from files.

    ``ops`` is the log, ``capacity`` the size in bytes (``None``: no end), which a test
    may change while the disk is in use.
    """

    def __init__(self, *, record: bool = True, capacity: int | None = None) -> None:
        self.ops: list[Op] = []
        self.record = record
        self.capacity = capacity
        self.used = 0
        self.locked: set[str] = set()
        # May be taken again: a file that is garbage is closed wherever the collector runs.
        self.mutex = threading.RLock()
        # Directory path to its names; a name leads to an inode, or None: a directory.
        self._names: dict[str, dict[str, _Inode | None]] = {"": {}}
        self._inodes = 0
        self._base: tuple[Mapping[str, bytes], tuple[str, ...]] = ({}, ())

    @classmethod
    def from_image(
        cls,
        files: Mapping[str, bytes],
        directories: Iterable[str] = (),
        *,
        record: bool = True,
        capacity: int | None = None,
    ) -> MemoryDisk:
        """A disk with these files, all durable. The bytes are shared, not copied.

        Directories of files are made; name others (empty ones) in ``directories``.
        """
        disk = cls(record=record, capacity=capacity)
        directories = tuple(directories)
        for path in directories:
            disk._make_parents(path)
        names = disk._names
        for path, content in files.items():
            where, _, name = path.rpartition("/")
            if where not in names:
                disk._make_parents(where)
            names[where][name] = disk._new_inode(content)
            disk.used += len(content)
        disk._base = (files, directories)
        return disk

    def _make_parents(self, path: str) -> None:
        if path not in self._names:
            where, _, name = path.rpartition("/")
            self._make_parents(where)
            self._names[where][name] = None
            self._names[path] = {}

    def image(self) -> dict[str, bytes]:
        """All files as they are now, synced or not: what a killed *process* leaves."""
        with self.mutex:
            return {
                f"{where}/{name}" if where else name: inode.frozen()
                for where, names in self._names.items()
                for name, inode in names.items()
                if inode is not None
            }

    def directories(self) -> list[str]:
        """All directories but the root, parents first."""
        return [path for path in self._names if path]

    def durability(self) -> Durability:
        """What a power cut right now may leave; replays the whole log."""
        if not self.record:
            raise ValueError("this disk keeps no log")
        state = Durability(*self._base)
        for op in self.ops:
            state.apply(op)
        return state

    # For files of this disk; the mutex is held

    def log(self, op: Op) -> None:
        if self.record:
            self.ops.append(op)

    def grant(self, inode: _Inode, offset: int, length: int) -> int:
        """How much of a write fits; as on a real disk, what fits is written."""
        growth = offset + length - len(inode.data)
        if growth > 0:
            if self.capacity is not None and growth > self.capacity - self.used:
                lacking = self.used + growth - self.capacity
                if lacking >= length:
                    raise _error(errno.ENOSPC)
                length -= lacking
                growth -= lacking
            self.used += growth
        return length

    def fit(self, inode: _Inode, size: int) -> None:
        """Account for a new size, or refuse it."""
        growth = size - len(inode.data)
        if self.capacity is not None and growth > max(0, self.capacity - self.used):
            raise _error(errno.ENOSPC)
        self.used += growth

    def reclaim(self, inode: _Inode) -> None:
        """The bytes of a file without name come free when nobody has it open."""
        if not inode.linked and not inode.opens:
            self.used -= len(inode.data)

    # Names

    def _new_inode(self, data: bytes) -> _Inode:
        self._inodes += 1
        return _Inode(self._inodes, data)

    def _place(self, path: str) -> tuple[dict[str, _Inode | None], str]:
        """The directory a path lies in, and its name there."""
        where, _, name = path.rpartition("/")
        names = self._names.get(where)
        if names is None:
            raise self._no_directory(where)
        return names, name

    def _no_directory(self, path: str) -> OSError:
        while parent(path) not in self._names:
            path = parent(path)
        is_file = self._names[parent(path)].get(path.rpartition("/")[2]) is not None
        return _error(errno.ENOTDIR if is_file else errno.ENOENT, path)

    def _file(self, path: str) -> tuple[dict[str, _Inode | None], str, _Inode]:
        names, name = self._place(path)
        try:
            inode = names[name]
        except KeyError:
            raise _error(errno.ENOENT, path) from None
        if inode is None:
            raise _error(errno.EISDIR, path)
        return names, name, inode

    # The seam

    def create(self, path: str, *, bulk: bool = False) -> MemoryFile:
        with self.mutex:
            return MemoryFile(self, self._add(path), write=True)

    def _add(self, path: str) -> _Inode:
        names, name = self._place(path)
        if name in names:
            raise _error(errno.EEXIST, path)
        inode = names[name] = self._new_inode(b"")
        self.log(Create(path, inode.number))
        return inode

    def open(self, path: str, *, write: bool = False) -> MemoryFile:
        with self.mutex:
            return MemoryFile(self, self._file(path)[2], write=write)

    def view(self, path: str) -> pa.Buffer:
        with self.mutex:
            return pa.py_buffer(self._file(path)[2].frozen())

    def rename(self, source: str, target: str) -> None:
        with self.mutex:
            self._place(source)
            target_names, target_name = self._place(target)
            names, name, inode = self._file(source)
            replaced = target_names.get(target_name)
            if replaced is inode:
                return
            if replaced is None and target_name in target_names:
                raise _error(errno.EISDIR, target)
            del names[name]
            target_names[target_name] = inode
            if replaced is not None:
                replaced.linked = False
                self.reclaim(replaced)
            number = None if replaced is None else replaced.number
            self.log(Rename(source, target, inode.number, number))

    def unlink(self, path: str) -> None:
        with self.mutex:
            names, name, inode = self._file(path)
            del names[name]
            inode.linked = False
            self.reclaim(inode)
            self.log(Unlink(path, inode.number))

    def mkdir(self, path: str) -> None:
        with self.mutex:
            if path in self._names:
                return
            names, name = self._place(path)
            if name in names:
                raise _error(errno.ENOTDIR, path)
            names[name] = None
            self._names[path] = {}
            self.log(Mkdir(path))

    def fsync_dir(self, path: str) -> None:
        with self.mutex:
            self._directory(path)
            self.log(SyncDir(path))

    def _directory(self, path: str) -> dict[str, _Inode | None]:
        names = self._names.get(path)
        if names is None:
            raise self._no_directory(path)
        return names

    def listdir(self, path: str) -> list[str]:
        with self.mutex:
            return sorted(self._directory(path))

    def stat_size(self, path: str) -> int | None:
        with self.mutex:
            names = self._names.get(parent(path))
            if names is None:
                return None
            inode = names.get(path.rpartition("/")[2])
            return None if inode is None else len(inode.data)

    def chmod(self, path: str, mode: int) -> None:
        with self.mutex:
            self.log(Chmod(path, self._file(path)[2].number, mode))

    def allocate(self, path: str, size: int) -> None:
        with self.mutex:
            names, name = self._place(path)
            if self.capacity is not None and size > self.capacity - self.used and name not in names:
                raise _error(errno.ENOSPC, path)
            inode = self._file(path)[2] if name in names else self._add(path)
            self.fit(inode, size)
            if inode.data:
                resize(inode.thawed(), size)
            else:
                inode.data = _zeros(size)
            self.log(Allocate(inode.number, size))

    def free_bytes(self) -> int:
        return UNLIMITED if self.capacity is None else max(0, self.capacity - self.used)

    def lock(self, path: str, owner: bytes) -> MemoryLock:
        with self.mutex:
            if path in self.locked:
                raise _error(errno.EAGAIN, path)
            names, name = self._place(path)
            if name not in names:
                names[name] = self._new_inode(b"")
            inode = self._file(path)[2]
            self.used += len(owner) - len(inode.data)
            inode.data = owner
            self.locked.add(path)
        return MemoryLock(self, path)
