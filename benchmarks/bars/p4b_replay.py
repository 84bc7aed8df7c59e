"""P4b: replay over Flight, bundle mode, 100 KiB batches, warm."""

from __future__ import annotations

from benchmarks.bar import Bar
from benchmarks.flight.reads import against_memory

P4B = Bar(
    name="P4b",
    what="replay over Flight, bundle mode, 100 KiB batches, warm",
    unit="MB/s",
    reference_name="a Flight server that streams a table in memory",
    prepare=against_memory(100 << 10, "bundle"),
    mark=0.55,
    goal=0.8,
)
