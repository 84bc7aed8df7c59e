"""P5 and P5v: embedded reads of a written segment, batch by batch, 100 KiB each, warm.

P5 reads from a mapping that was verified once.  P5v reads as a store does by default: each
batch is read into memory and verified, each time.  Both are compared with Arrow on a mapping,
so what verification costs is what lies between them.
"""

from __future__ import annotations

import time
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc

import quiver
from benchmarks.bar import Bar, Scale, fresh
from benchmarks.data import telemetry

BUNDLE = 100 << 10
MAX_BYTES = 64 << 20
PASSES = 20


def _touch(batch: pa.RecordBatch) -> int:
    """Look at the numbers, so that both sides really get at the memory."""
    return int(pc.sum(batch.column(0)).as_py())


def mapped(directory: Path, scale: Scale) -> float:
    return measure(directory, scale, "mmap")


def verified(directory: Path, scale: Scale) -> float:
    return measure(directory, scale, "pread")


def measure(directory: Path, scale: Scale, read_mode: str) -> float:
    batch = telemetry(BUNDLE)
    count = min(MAX_BYTES, scale.nbytes) // BUNDLE
    with quiver.open(directory / "store", read_mode=read_mode) as store:
        refs = [store.put({"Logs": batch}).ref for _ in range(count)]
        store.flush()
        _ = [_touch(store.read(ref)["Logs"]) for ref in refs]
        began = time.perf_counter()
        for _ in range(PASSES):
            for ref in refs:
                _touch(store.read(ref)["Logs"])
        elapsed = time.perf_counter() - began
    return float(PASSES * count * batch.nbytes) / elapsed / 1e6


def reference(directory: Path, scale: Scale) -> float:
    batch = telemetry(BUNDLE)
    count = min(MAX_BYTES, scale.nbytes) // BUNDLE
    path = directory / "plain.arrow"
    with pa.ipc.new_file(str(path), batch.schema) as writer:
        for _ in range(count):
            writer.write_batch(batch)
    with pa.memory_map(str(path)) as mapped:
        reader = pa.ipc.open_file(mapped)
        _ = [_touch(reader.get_batch(index)) for index in range(count)]
        began = time.perf_counter()
        for _ in range(PASSES):
            for index in range(count):
                _touch(reader.get_batch(index))
        elapsed = time.perf_counter() - began
    return float(PASSES * count * batch.nbytes) / elapsed / 1e6


P5 = Bar(
    name="P5",
    what="embedded read from a mapped segment, verified once, 100 KiB batches",
    unit="MB/s",
    reference_name="pa.ipc.open_file on a memory map of the same data",
    prepare=fresh(mapped, reference),
    mark=0.9,
    goal=0.95,
)
P5V = Bar(
    name="P5v",
    what="embedded read with every block verified (the default), 100 KiB batches",
    unit="MB/s",
    reference_name="pa.ipc.open_file on a memory map of the same data",
    prepare=fresh(verified, reference),
    mark=0.6,
    goal=0.8,
)
