"""P1s: durable puts over Flight, 10 KiB bundles, one producer with a window, as shipped."""

from __future__ import annotations

from benchmarks.bar import Bar
from benchmarks.flight.puts import Load, against_discard

P1S = Bar(
    name="P1s",
    what="durable put over Flight, 10 KiB bundles, one producer",
    unit="MB/s",
    reference_name="a Flight server that throws away what it reads",
    prepare=against_discard(Load(10 << 10, producers=1, nbytes=128 << 20)),
    mark=0.72,
    goal=0.9,
)
