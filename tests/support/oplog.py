"""What was done to a disk, and what a crash may leave of it.

:class:`~tests.support.memory_disk.MemoryDisk` records each change as one of the frozen values
below.  A crash may come between any two of them.  Which contents it may then leave
behind is decided by the prefix of the log up to there; :class:`Durability` folds such a
prefix, one record at a time.

Legal states after a crash
--------------------------
**Bytes of a file** (by inode: names don't matter).  ``contents[inode]`` is what it held
at its last ``Sync``; a new file starts empty, a file of the base image whole.  Of the
changes since, ``pending[inode]``, *any subset* may have reached the disk, applied in
order.  Each ``Write`` may moreover be torn: any subset of its sectors arrived, and where
it grew the file, the missing ones read as zeros or as anything at all; the new size may
have arrived without a single byte of data.  ``Sync`` makes bytes and size durable,
``data_only`` or not: the difference is the mode, which no promise rests on and which
is not modelled (``Chmod`` is in the log for the record only).

**Names** (by directory).  ``entries`` is what all directories held at their last
``SyncDir``.  Of the changes since, ``pending_entries``, any subset may have reached the
disk, applied in order: a file may be there without its bytes, and the bytes without a
name.  ``Sync`` of a file never makes its *name* durable: ext4 does so, POSIX does not
promise it.  A stricter model of a journal allows only prefixes of the list.

**Rename** is atomic inside a directory: the old or the new state, never neither, never
both.  Between two directories, the file may also be under both names (take
:func:`linked` instead of the rename); never under neither, until one directory alone has
been synced.  From there on the other half is pending by itself, so the target's
directory must be synced first: the source's alone may lose the file.

**Directories.**  A name counts only if the directory it is in is there, up to the root.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

DIRECTORY: Final = 0
"""Stands for a directory where a file's name would lead to an inode."""


@dataclass(frozen=True, slots=True)
class Create:
    """A name now leads to an inode; as a record in the log, a new and empty one."""

    path: str
    inode: int


@dataclass(frozen=True, slots=True)
class Write:
    inode: int
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut, or grown with zeros."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Allocate:
    """Brought to exactly this size, the new bytes zero and reserved on the disk."""

    inode: int
    size: int


@dataclass(frozen=True, slots=True)
class Sync:
    """``fdatasync`` (``data_only``) or ``fsync``."""

    inode: int
    data_only: bool


@dataclass(frozen=True, slots=True)
class Rename:
    """``replaced`` is the inode that lost its name to this, if there was one."""

    source: str
    target: str
    inode: int
    replaced: int | None


@dataclass(frozen=True, slots=True)
class Unlink:
    path: str
    inode: int


@dataclass(frozen=True, slots=True)
class Mkdir:
    path: str


@dataclass(frozen=True, slots=True)
class SyncDir:
    path: str


@dataclass(frozen=True, slots=True)
class Chmod:
    path: str
    inode: int
    mode: int


DataOp: TypeAlias = Write | Truncate | Allocate
EntryOp: TypeAlias = Create | Rename | Unlink | Mkdir
Op: TypeAlias = DataOp | EntryOp | Sync | SyncDir | Chmod
Entries: TypeAlias = dict[str, int]
"""Path to inode, or to :data:`DIRECTORY`; the root itself is not listed."""


def parent(path: str) -> str:
    """The directory a path lies in; ``""`` is the root."""
    return path.rpartition("/")[0]


def settle(content: bytes, ops: Iterable[DataOp]) -> bytes:
    """The bytes of a file after these changes, in this order."""
    data = bytearray(content)
    for op in ops:
        if isinstance(op, Write):
            overlay(data, op.offset, op.data)
        else:
            resize(data, op.size)
    return bytes(data)


def overlay(data: bytearray, offset: int, new: bytes) -> None:
    """Write into a file's bytes; a gap before ``offset`` fills with zeros."""
    if new and offset > len(data):
        data.extend(bytes(offset - len(data)))
    data[offset : offset + len(new)] = new


def resize(data: bytearray, size: int) -> None:
    """Cut a file's bytes or let them grow with zeros."""
    if size < len(data):
        del data[size:]
    else:
        data.extend(bytes(size - len(data)))


def enter(entries: Entries, op: EntryOp) -> None:
    """Apply one change of names."""
    if isinstance(op, Create):
        entries[op.path] = op.inode
    elif isinstance(op, Mkdir):
        entries[op.path] = DIRECTORY
    elif isinstance(op, Unlink):
        entries.pop(op.path, None)
    else:
        entries.pop(op.source, None)
        entries[op.target] = op.inode


def linked(op: Rename) -> Create:
    """A rename between directories of which only the new name arrived."""
    return Create(op.target, op.inode)


def touches(op: EntryOp, directory: str) -> bool:
    """Whether a change of names is one of this directory."""
    if isinstance(op, Rename):
        return parent(op.target) == directory or parent(op.source) == directory
    return parent(op.path) == directory


class Durability:
    """What is safe and what is at risk after a prefix of the log.

    Start it with the disk's base image, then :meth:`apply` record after record; between
    any two, the attributes describe a crash at that point.  Inodes of the base image are
    numbered from 1 in its order, as ``MemoryDisk.from_image`` does.
    """

    def __init__(self, files: Mapping[str, bytes], directories: Iterable[str] = ()) -> None:
        self.contents: dict[int, bytes] = {}
        self.pending: dict[int, list[DataOp]] = {}
        self.entries: Entries = dict.fromkeys(directories, DIRECTORY)
        self.pending_entries: list[EntryOp] = []
        for inode, (path, content) in enumerate(files.items(), start=1):
            self.contents[inode] = content
            self.entries[path] = inode
            while path := parent(path):
                self.entries[path] = DIRECTORY

    def apply(self, op: Op) -> None:
        """Take in the next record of the log."""
        if isinstance(op, (Write, Truncate, Allocate)):
            self.pending.setdefault(op.inode, []).append(op)
        elif isinstance(op, Sync):
            unsynced = self.pending.pop(op.inode, None)
            if unsynced:
                self.contents[op.inode] = settle(self.contents[op.inode], unsynced)
        elif isinstance(op, SyncDir):
            self._sync_entries(op.path)
        elif not isinstance(op, Chmod):
            if isinstance(op, Create):
                self.contents[op.inode] = b""
            self.pending_entries.append(op)

    def _sync_entries(self, directory: str) -> None:
        still: list[EntryOp] = []
        for op in self.pending_entries:
            if not touches(op, directory):
                still.append(op)
            elif isinstance(op, Rename) and parent(op.source) != parent(op.target):
                halves: tuple[EntryOp, EntryOp] = (linked(op), Unlink(op.source, op.inode))
                for half in halves:
                    if touches(half, directory):
                        enter(self.entries, half)
                    else:
                        still.append(half)
            else:
                enter(self.entries, op)
        self.pending_entries = still

    def image(
        self,
        *,
        contents: Mapping[int, bytes] | None = None,
        entries: Sequence[EntryOp] = (),
    ) -> dict[str, bytes]:
        """The files a crash leaves: the durable state, with these chances taken.

        ``contents`` replaces the bytes of some inodes, ``entries`` are the pending
        changes of names that made it.  With neither: all that was at risk is lost.
        """
        names = self.entries
        if entries:
            names = dict(names)
            for op in entries:
                enter(names, op)
        chosen = contents or {}
        safe = self.contents
        return {
            path: chosen[inode] if inode in chosen else safe[inode]
            for path, inode in names.items()
            if inode != DIRECTORY and _reachable(path, names)
        }

    def directories(self, entries: Sequence[EntryOp] = ()) -> list[str]:
        """The directories that go with :meth:`image`, empty ones too."""
        names = dict(self.entries)
        for op in entries:
            enter(names, op)
        return [path for path, it in names.items() if it == DIRECTORY and _reachable(path, names)]


def _reachable(path: str, names: Entries) -> bool:
    while path := parent(path):
        if names.get(path) != DIRECTORY:
            return False
    return True
