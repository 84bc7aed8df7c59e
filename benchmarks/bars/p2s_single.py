"""P2s: embedded, one bundle at a time, each awaited: the latency of one durable put.

Before the clock starts the log has been around once and writes over its own files, as the
reference does.  Segments are written by a thread beside it.
"""

from __future__ import annotations

import time
from pathlib import Path

import quiver
from benchmarks import raw
from benchmarks.bar import Bar, Scale, fresh
from benchmarks.data import telemetry

BUNDLE = 128_000
MAX_COUNT = 1000
WARM_BYTES = 200 << 20


def measure(directory: Path, scale: Scale) -> float:
    batch = telemetry(BUNDLE)
    count = min(MAX_COUNT, scale.nbytes // BUNDLE)
    with quiver.open(directory / "store", background=True) as store:
        for _ in range(0 if scale.is_quick else WARM_BYTES // BUNDLE):
            store.put({"Logs": batch}, timeout=60).wait()
        began = time.perf_counter()
        for _ in range(count):
            store.put({"Logs": batch}, timeout=60).wait()
        elapsed = time.perf_counter() - began
    return count * len(memoryview(batch.serialize())) / elapsed / 1e6


def reference(directory: Path, scale: Scale) -> float:
    message = memoryview(telemetry(BUNDLE).serialize()).cast("B")
    return raw.append(directory, message, min(MAX_COUNT, scale.nbytes // BUNDLE), 1)


P2S = Bar(
    name="P2s",
    what="embedded durable put, 128 KB, one at a time, each awaited",
    unit="MB/s",
    reference_name="pwritev + fdatasync of the same bytes, one by one",
    prepare=fresh(measure, reference),
    mark=0.9,
    goal=1.0,
)
