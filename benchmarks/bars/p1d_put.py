"""P1d: as P1, against what the disk takes: every byte to a log, synced, and to a segment.

No Flight, no Arrow, no receipts: two threads that write what has to be written.  It tells
what is left for everything else.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

from benchmarks import raw
from benchmarks.bar import Bar, Pair, Scale
from benchmarks.data import telemetry
from benchmarks.flight.puts import Load, put_alone

LOAD = Load(1 << 20, producers=1, nbytes=512 << 20)
GROUP = 4
"""Bundles per sync: what comes together behind a running one."""


@contextlib.contextmanager
def prepare(directory: Path, scale: Scale) -> Iterator[Pair]:
    message = memoryview(telemetry(LOAD.size).serialize()).cast("B")

    def reference() -> float:
        with tempfile.TemporaryDirectory(dir=directory) as empty:
            return raw.twice(Path(empty), message, LOAD.count(scale), GROUP)

    with put_alone(directory / "root", LOAD, scale) as measure:
        yield Pair(measure, reference)


P1D = Bar(
    name="P1d",
    what="durable put over Flight, 1 MiB bundles, one producer",
    unit="MB/s",
    reference_name="the same bytes to a log and to segments, by two plain threads",
    prepare=prepare,
    mark=0.5,
    goal=0.8,
)
