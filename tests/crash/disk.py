"""The recording disk of the explorer, and its record folded into what may be lost.

Beyond what :mod:`tests.support.oplog` models there is one more way to lose bytes: an fsync
that fails.  The kernel then calls the pages clean, so a second fsync succeeds and proves
nothing (Rebello et al., ATC '20).  :class:`LostSync` records such a failure.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from tests.support.memory_disk import MemoryDisk, MemoryFile, _Inode
from tests.support.oplog import Durability, Op, Sync, SyncDir, settle

Image: TypeAlias = Mapping[str, bytes]


@dataclass(frozen=True, slots=True)
class LostSync:
    """An fsync that failed: what was pending may be on the disk, for good, or not."""

    inode: int


Record: TypeAlias = Op | LostSync


class Killed(BaseException):
    """The process ends here. Not an ``Exception``: nobody in a dead process handles it."""


class CrashDisk(MemoryDisk):
    """Keeps its :attr:`records`; fails a sync, or kills the process, when asked to."""

    def __init__(self, *, record: bool = True, capacity: int | None = None) -> None:
        super().__init__(record=record, capacity=capacity)
        self.records: list[Record] = []
        self.fail_syncs_in: int | None = None
        """Fail the file sync after so many good ones; ``None``: none."""
        self.fail_dir_syncs_in: int | None = None
        """The same for syncs of directories: their names stay at risk."""
        self.sync_failed = False
        """Whether a sync has failed since the process began."""
        self.die_in: int | None = None
        """Kill the process after so many more records; ``None``: it lives."""
        self.die_after: type[Record] | None = None
        """Kill the process after the next record of this kind."""
        self.dead = False
        self.watch: Callable[[Record], None] | None = None
        """Told of each record before it counts."""

    def revive(self) -> None:
        """Another process starts; what was written is still there, synced or not."""
        self.dead = False
        self.die_in = self.die_after = self.capacity = None
        self.fail_syncs_in = self.fail_dir_syncs_in = None
        self.sync_failed = False
        self.locked.clear()

    def log(self, op: Op) -> None:
        if not self.record:
            return
        self._live()
        if isinstance(op, Sync) and self.fail_syncs_in is not None:
            self.fail_syncs_in -= 1
            if self.fail_syncs_in < 0:
                self.fail_syncs_in = None
                self.sync_failed = True
                self._keep(LostSync(op.inode))
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        if isinstance(op, SyncDir) and self.fail_dir_syncs_in is not None:
            self.fail_dir_syncs_in -= 1
            if self.fail_dir_syncs_in < 0:
                self.fail_dir_syncs_in = None
                self.sync_failed = True
                raise OSError(errno.EIO, os.strerror(errno.EIO))
        self._keep(op)

    def _keep(self, record: Record) -> None:
        if self.watch is not None:
            self.watch(record)
        self.records.append(record)
        if self.die_in is not None:
            self.die_in -= 1
        if (self.die_in is not None and self.die_in < 0) or (
            self.die_after is not None and isinstance(record, self.die_after)
        ):
            self.dead = True
            raise Killed

    # A dead process changes nothing any more, whatever its handlers try

    def _live(self) -> None:
        if self.dead:
            raise Killed

    def grant(self, inode: _Inode, offset: int, length: int) -> int:
        self._live()
        return super().grant(inode, offset, length)

    def fit(self, inode: _Inode, size: int) -> None:
        self._live()
        super().fit(inode, size)

    def create(self, path: str, *, bulk: bool = False) -> MemoryFile:
        self._live()
        return super().create(path)

    def rename(self, source: str, target: str) -> None:
        self._live()
        super().rename(source, target)

    def unlink(self, path: str) -> None:
        self._live()
        super().unlink(path)

    def mkdir(self, path: str) -> None:
        self._live()
        super().mkdir(path)

    def allocate(self, path: str, size: int) -> None:
        self._live()
        super().allocate(path, size)


class Fold(Durability):
    """What is safe and what is at risk after a prefix of the record."""

    def __init__(self, files: Image, directories: Iterable[str] = ()) -> None:
        super().__init__(files, directories)
        self.limbo: dict[int, bytes] = {}
        """Contents of files with a failed sync, if what was pending then got through."""

    def take(self, record: Record) -> None:
        """Take in the next record."""
        if isinstance(record, LostSync):
            unsynced = self.pending.pop(record.inode, [])
            base = self.limbo.get(record.inode, self.contents[record.inode])
            self.limbo[record.inode] = settle(base, unsynced)
            return
        if isinstance(record, Sync) and record.inode in self.limbo:
            unsynced = self.pending.get(record.inode, [])
            self.limbo[record.inode] = settle(self.limbo[record.inode], unsynced)
        self.apply(record)
