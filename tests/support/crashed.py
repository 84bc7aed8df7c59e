"""A store of ours, crashed in the middle of things, to be looked at and damaged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import pyarrow as pa

from quiver import BundleRef, Config, ManualClock, Store
from quiver.disk.disk import Disk
from tests.support.memory_disk import MemoryDisk
from tests.support.rust import Image, number_of, numbered

SETTINGS: Final[dict[str, Any]] = {
    "reserve": 0,
    "segment": {"target_size": "64KiB"},
    "limits": {"max_bundle": "64KiB"},
    "wal": {"rotation_target": "4KiB", "max_size": "1GiB", "max_rotated_files": 100},
}


@dataclass(frozen=True)
class Crashed:
    """An image, and what is in it by ref."""

    image: Image
    bundles: dict[BundleRef, int]
    acked: set[BundleRef]


def logs(number: int) -> pa.RecordBatch:
    return numbered(number)[0]


@cache
def mostly_sealed() -> Crashed:
    """Three segments, and four bundles in a single log file."""
    return _crash(puts=14, flushes=(3, 6, 9), done=(0, 1, 2, 3, 5, 10, 11))


@cache
def mostly_in_log() -> Crashed:
    """One segment, and 32 bundles of the next in several log files."""
    return _crash(puts=36, flushes=(3,), done=(0, 1, 3, 4, 5, 9, 20, 21, 35))


def _crash(puts: int, flushes: tuple[int, ...], done: tuple[int, ...]) -> Crashed:
    """``exporter`` has acked what is ``done``, ``idle`` nothing; then the process died."""
    disk = Disk(MemoryDisk())
    store = Store(disk, Config.load(env={}, **SETTINGS), where="mem", clock=ManualClock())
    exporter = store.subscribe("exporter", follow=False)
    store.register("idle")
    bundles: dict[BundleRef, int] = {}
    for number in range(puts):
        receipt = store.put({"Logs": logs(number)}, key=f"key-{number}")
        bundles[receipt.wait().ref] = number
        if number in flushes:
            store.flush()
    acked = set()
    for bundle in exporter:
        if number_of(bundle["Logs"]) in done:
            bundle.ack()
            acked.add(bundle.ref)
    store.flush_progress()
    raw = disk.raw
    assert isinstance(raw, MemoryDisk)
    return Crashed(dict(raw.image()), bundles, acked)


def disk_of(image: Image) -> Disk:
    return Disk(MemoryDisk.from_image(image))


def image_of(disk: Disk) -> Image:
    raw = disk.raw
    assert isinstance(raw, MemoryDisk)
    return dict(raw.image())
