"""P1: durable puts over Flight, 1 MiB bundles, one producer with a window, as shipped."""

from __future__ import annotations

from benchmarks.bar import Bar
from benchmarks.flight.puts import Load, against_discard

P1 = Bar(
    name="P1",
    what="durable put over Flight, 1 MiB bundles, one producer",
    unit="MB/s",
    reference_name="a Flight server that throws away what it reads",
    prepare=against_discard(Load(1 << 20, producers=1, nbytes=512 << 20)),
    mark=0.5,
    goal=0.8,
)
