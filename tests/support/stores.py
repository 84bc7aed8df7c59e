"""A store on a disk in memory with a clock of its own: opened, crashed and opened again."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from quiver import (
    Background,
    BundleRef,
    Config,
    DiskBudget,
    ManualClock,
    MemoryBudget,
    Receipt,
    Store,
)
from quiver.disk.disk import Disk
from tests.support.faulty import FaultyDisk
from tests.support.memory_disk import MemoryDisk

SECONDS: Final = 30.0
"""Longest time a test waits for another thread; never reached when all is well."""


def batch(number: int = 0, rows: int = 3) -> pa.RecordBatch:
    """A record batch that can be told from others."""
    return pa.record_batch({"n": pa.array(range(number * 1000, number * 1000 + rows), pa.int64())})


def payload(size: int, number: int = 0) -> pa.RecordBatch:
    """A record batch of about so many bytes."""
    return pa.record_batch({"blob": pa.array([number.to_bytes(4, "big") + bytes(size)])})


def number_of(found: pa.RecordBatch) -> int:
    """Which :func:`batch` this is."""
    return int(found["n"][0].as_py()) // 1000


class World:
    """A directory that outlives its stores, and the time they live in."""

    def __init__(self, disk: MemoryDisk | None = None, **settings: Any) -> None:
        self.clock = ManualClock()
        self.raw = disk or MemoryDisk()
        self.settings: dict[str, Any] = {"reserve": 0} | settings
        self.faulty = FaultyDisk(self.raw)
        self._store: Store | None = None

    @property
    def store(self) -> Store:
        """The open store, opened on first use."""
        if self._store is None:
            self._store = self.open()
        return self._store

    def open(
        self,
        *,
        background: Background | bool = False,
        budget: DiskBudget | None = None,
        memory: MemoryBudget | None = None,
        where: str = "mem",
        **settings: Any,
    ) -> Store:
        """Open the directory; ``settings`` hold from here on."""
        self.settings |= settings
        self.faulty = FaultyDisk(self.raw)
        self._store = Store(
            Disk(self.faulty),
            Config.load(env={}, **self.settings),
            where=where,
            clock=self.clock,
            background=background,
            budget=budget,
            memory=memory,
        )
        return self._store

    def restart(self, **settings: Any) -> Store:
        """Close cleanly and open again."""
        self.store.close()
        return self.open(**settings)

    def kill(self, **settings: Any) -> Store:
        """The process dies, the machine doesn't: all that was written is there."""
        return self._again(self.raw.image(), self.raw.directories(), settings)

    def power_cut(self, **settings: Any) -> Store:
        """The machine dies: only what was synced is there."""
        left = self.raw.durability()
        return self._again(left.image(), left.directories(), settings)

    def _again(
        self, files: dict[str, bytes], directories: list[str], settings: dict[str, Any]
    ) -> Store:
        self.raw = MemoryDisk.from_image(files, directories)
        return self.open(**settings)

    def change(self, path: str, edit: Callable[[bytes], bytes | None]) -> None:
        """Change a file behind the store's back; ``None`` removes it. The store must be shut."""
        files = self.raw.image()
        changed = edit(files.pop(path))
        if changed is not None:
            files[path] = changed
        self.raw = MemoryDisk.from_image(files, self.raw.directories())
        self._store = None

    def files(self, prefix: str = "") -> list[str]:
        """Paths of all files that begin so."""
        return sorted(path for path in self.raw.image() if path.startswith(prefix))

    # Shorthand

    def put(self, number: int = 0, **options: Any) -> Receipt:
        return self.store.put({"Logs": batch(number)}, **options)

    def put_durable(self, *numbers: int) -> list[BundleRef]:
        """Put these, and wait until they are durable."""
        receipts = [self.put(number) for number in numbers]
        return [receipt.wait().ref for receipt in receipts]

    def sealed(self, *numbers: int) -> list[BundleRef]:
        """Put these into a segment of their own, written."""
        refs = self.put_durable(*numbers)
        self.store.flush()
        return refs

    def number_at(self, ref: BundleRef) -> int:
        return number_of(self.store.read(ref)["Logs"])

    def drain(self, name: str = "reader", *, order: str = "oldest") -> list[int]:
        """Everything a subscriber gets, acked, as numbers."""
        numbers = []
        for bundle in self.store.subscribe(name, order=order, follow=False):
            numbers.append(number_of(bundle["Logs"]))
            bundle.ack()
        return numbers


def ack_all(store: Store, name: str) -> int:
    """Finish everything a subscriber has; how many bundles."""
    return sum(bundle.ack() is not None for bundle in store.subscribe(name, follow=False))


def flipped(data: bytes, at: int = -1) -> bytes:
    """The same bytes with one bit turned; in the middle unless told."""
    at = len(data) // 2 if at < 0 else at
    return data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


def run_in_threads(*jobs: Callable[[], object]) -> None:
    """Run jobs at the same time; the first error of any is raised."""
    errors: list[BaseException] = []

    def guarded(job: Callable[[], object]) -> None:
        try:
            job()
        except BaseException as error:  # handed over to the test below
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(job,), daemon=True) for job in jobs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]
