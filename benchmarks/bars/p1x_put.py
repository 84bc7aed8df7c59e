"""P1x: durable puts over Flight, 100 KiB bundles, four producers with a window, as shipped."""

from __future__ import annotations

from benchmarks.bar import Bar
from benchmarks.flight.puts import Load, against_discard

P1X = Bar(
    name="P1x",
    what="durable put over Flight, 100 KiB bundles, four producers",
    unit="MB/s",
    reference_name="a Flight server that throws away what it reads",
    prepare=against_discard(Load(100 << 10, producers=4, nbytes=512 << 20)),
    mark=0.55,
    goal=0.75,
)
