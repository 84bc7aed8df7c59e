"""P1m: durable puts over Flight, 100 KiB bundles, one producer with a window, as shipped."""

from __future__ import annotations

from benchmarks.bar import Bar
from benchmarks.flight.puts import Load, against_discard

P1M = Bar(
    name="P1m",
    what="durable put over Flight, 100 KiB bundles, one producer",
    unit="MB/s",
    reference_name="a Flight server that throws away what it reads",
    prepare=against_discard(Load(100 << 10, producers=1, nbytes=512 << 20)),
    mark=0.58,
    goal=0.8,
)
