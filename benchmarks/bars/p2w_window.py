"""P2w: embedded durable ingest, 100 KiB bundles, 256 in flight.

Against the same bytes written and synced in groups of the same size, once: what the disk
gives.  Quiver also checks, encodes, and writes everything a second time, into segments.
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path

import quiver
from benchmarks import raw
from benchmarks.bar import Bar, Scale, fresh
from benchmarks.data import telemetry

BUNDLE = 100 << 10
WINDOW = 256
MAX_GROUP = 16 << 20


def ingest(directory: Path, bundle: int, count: int, window: int, durability: str = "wal") -> float:
    """Put ``count`` bundles with a window in flight, to the last receipt; MB/s."""
    batch = telemetry(bundle)
    with quiver.open(directory / "store", background=True, durability=durability) as store:
        waiting: deque[quiver.Receipt] = deque()
        began = time.perf_counter()
        for _ in range(count):
            waiting.append(store.put({"Logs": batch}, timeout=60))
            if len(waiting) >= window:
                waiting.popleft().wait()
        if durability == "segment_only":
            store.flush()
        while waiting:
            waiting.popleft().wait()
        elapsed = time.perf_counter() - began
    return count * len(memoryview(batch.serialize())) / elapsed / 1e6


def measure(directory: Path, scale: Scale) -> float:
    return ingest(directory, BUNDLE, scale.nbytes // BUNDLE, WINDOW)


def reference(directory: Path, scale: Scale) -> float:
    message = memoryview(telemetry(BUNDLE).serialize()).cast("B")
    group = min(WINDOW, MAX_GROUP // len(message))
    return raw.append(directory, message, scale.nbytes // BUNDLE, group)


P2W = Bar(
    name="P2w",
    what="embedded durable ingest, 100 KiB bundles, window 256",
    unit="MB/s",
    reference_name="pwritev + fdatasync of the same bytes in groups",
    prepare=fresh(measure, reference),
    mark=0.2,
    goal=0.5,
)
