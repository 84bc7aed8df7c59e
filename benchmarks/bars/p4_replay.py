"""P4: replay over Flight, slot mode, 100 KiB batches, warm."""

from __future__ import annotations

from benchmarks.bar import Bar
from benchmarks.flight.reads import against_memory

P4 = Bar(
    name="P4",
    what="replay over Flight, slot mode, 100 KiB batches, warm",
    unit="MB/s",
    reference_name="a Flight server that streams a table in memory",
    prepare=against_memory(100 << 10, "slot"),
    mark=0.9,
    goal=0.98,
)
