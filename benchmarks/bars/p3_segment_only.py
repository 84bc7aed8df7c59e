"""P3: what leaving out the log gains, embedded, 100 KiB bundles with a window."""

from __future__ import annotations

from pathlib import Path

from benchmarks.bar import Bar, Scale, fresh
from benchmarks.bars.p2w_window import BUNDLE, WINDOW, ingest


def measure(directory: Path, scale: Scale) -> float:
    # Receipts come with whole segments here, so the window has to be larger than one.
    return ingest(directory, BUNDLE, scale.nbytes // BUNDLE, 4 * WINDOW, "segment_only")


def reference(directory: Path, scale: Scale) -> float:
    return ingest(directory, BUNDLE, scale.nbytes // BUNDLE, WINDOW)


P3 = Bar(
    name="P3",
    what="segment_only ingest",
    unit="MB/s",
    reference_name="the same with the log",
    prepare=fresh(measure, reference),
    mark=1.5,
    goal=2.0,
)
