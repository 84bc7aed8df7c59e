"""A disk whose n-th call fails.

Run a workload once without faults and count ``len(disk.calls)``; then run it again for
each n and each kind of fault.  A failed sync is not passed on, so on a recording disk
the bytes stay at risk, as they would.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import pyarrow as pa

from quiver.disk.seam import Bytes, RawDisk, RawFile, RawLock

FOREVER: Final = 1 << 62

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that goes wrong, at the ``at``-th (from 0) call that ``ops`` names."""

    at: int
    error: int | None = None
    """The errno to fail with; ``None`` only makes sense together with ``short``."""
    short: bool = False
    """A write stops half way: then it fails with ``error``, or just says so."""
    after: bool = False
    """The call does its work and fails all the same."""
    times: int = 1
    """That many calls in a row; ``FOREVER`` for a disk that stays full."""
    ops: frozenset[str] = frozenset()
    """Names of seam calls, such as ``pwritev``; empty means all."""
    under: str = ""
    """Only calls for paths that begin so."""


class FaultyDisk:
    """Passes everything on to ``raw``, but for the faults."""

    def __init__(self, raw: RawDisk, *faults: Fault) -> None:
        self._raw = raw
        self._plan: tuple[Fault, ...] = faults
        self._seen = [0] * len(faults)
        self._lock = threading.RLock()
        self.calls: list[tuple[str, str]] = []
        self.fired: list[tuple[str, str]] = []

    def arm(self, *faults: Fault) -> None:
        """From now on these are the faults, counted from here."""
        with self._lock:
            self._plan = faults
            self._seen = [0] * len(faults)

    def strike(self, *faults: Fault) -> None:
        """From now on these faults, counted from here."""
        with self._lock:
            self._plan = faults
            self._seen = [0] * len(faults)

    def heal(self) -> None:
        """From now on nothing fails."""
        with self._lock:
            self._plan = ()

    def due(self, op: str, path: str) -> Fault | None:
        """Count this call; the fault to strike it with, if any."""
        with self._lock:
            self.calls.append((op, path))
            struck: Fault | None = None
            for index, fault in enumerate(self._plan):
                if (fault.ops and op not in fault.ops) or not path.startswith(fault.under):
                    continue
                past = self._seen[index] - fault.at
                self._seen[index] += 1
                bites = fault.error is not None or op == "pwritev"
                if struck is None and bites and 0 <= past < fault.times:
                    struck = fault
            if struck is not None:
                self.fired.append((op, path))
            return struck

    def call(self, op: str, path: str, work: Callable[[], T]) -> T:
        fault = self.due(op, path)
        if fault is None or fault.error is None:
            return work()
        if fault.after:
            work()
        raise OSError(fault.error, os.strerror(fault.error), path)

    def create(self, path: str, *, bulk: bool = False) -> RawFile:
        raw = self.call("create", path, lambda: self._raw.create(path, bulk=bulk))
        return FaultyFile(self, raw, path)

    def open(self, path: str, *, write: bool = False) -> RawFile:
        raw = self.call("open", path, lambda: self._raw.open(path, write=write))
        return FaultyFile(self, raw, path)

    def view(self, path: str) -> pa.Buffer:
        return self.call("view", path, lambda: self._raw.view(path))

    def rename(self, source: str, target: str) -> None:
        self.call("rename", source, lambda: self._raw.rename(source, target))

    def unlink(self, path: str) -> None:
        self.call("unlink", path, lambda: self._raw.unlink(path))

    def mkdir(self, path: str) -> None:
        self.call("mkdir", path, lambda: self._raw.mkdir(path))

    def fsync_dir(self, path: str) -> None:
        self.call("fsync_dir", path, lambda: self._raw.fsync_dir(path))

    def listdir(self, path: str) -> list[str]:
        return self.call("listdir", path, lambda: self._raw.listdir(path))

    def stat_size(self, path: str) -> int | None:
        return self.call("stat_size", path, lambda: self._raw.stat_size(path))

    def chmod(self, path: str, mode: int) -> None:
        self.call("chmod", path, lambda: self._raw.chmod(path, mode))

    def allocate(self, path: str, size: int) -> None:
        self.call("allocate", path, lambda: self._raw.allocate(path, size))

    def free_bytes(self) -> int:
        return self.call("free_bytes", "", self._raw.free_bytes)

    def lock(self, path: str, owner: bytes) -> RawLock:
        return self.call("lock", path, lambda: self._raw.lock(path, owner))


class FaultyFile:
    """A file of a :class:`FaultyDisk`."""

    def __init__(self, disk: FaultyDisk, raw: RawFile, path: str) -> None:
        self._disk = disk
        self._raw = raw
        self._path = path

    def pwritev(self, buffers: Sequence[Bytes], offset: int) -> int:
        fault = self._disk.due("pwritev", self._path)
        if fault is None:
            return self._raw.pwritev(buffers, offset)
        count = 0
        if fault.short:
            whole = b"".join(buffers)
            count = self._raw.pwritev([whole[: (len(whole) + 1) // 2]], offset)
        elif fault.after:
            count = self._raw.pwritev(buffers, offset)
        if fault.error is not None:
            raise OSError(fault.error, os.strerror(fault.error), self._path)
        return count

    def pread(self, size: int, offset: int) -> bytes:
        return self._disk.call("pread", self._path, lambda: self._raw.pread(size, offset))

    def pread_into(self, memory: memoryview, offset: int) -> int:
        return self._disk.call("pread", self._path, lambda: self._raw.pread_into(memory, offset))

    def size(self) -> int:
        return self._disk.call("size", self._path, self._raw.size)

    def truncate(self, size: int) -> None:
        self._disk.call("truncate", self._path, lambda: self._raw.truncate(size))

    def fdatasync(self) -> None:
        self._disk.call("fdatasync", self._path, self._raw.fdatasync)

    def fsync(self) -> None:
        self._disk.call("fsync", self._path, self._raw.fsync)

    def close(self) -> None:
        # Really closed in any case: the kernel frees the descriptor even when it complains.
        self._raw.close()
        self._disk.call("close", self._path, lambda: None)
