"""Start: how much longer a store with 1,000 segments takes to open than one without."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import quiver
from benchmarks.bar import Bar, Pair, Scale, limit
from benchmarks.bars.p7_backlog import fill

SEGMENTS = 1000
ALLOWED_SECONDS = 1.0


def opened(path: Path) -> float:
    """Seconds until it takes puts."""
    began = time.perf_counter()
    with quiver.open(path):
        return time.perf_counter() - began


@contextlib.contextmanager
def prepare(directory: Path, scale: Scale) -> Iterator[Pair]:
    fill(directory / "full", 5 if scale.is_quick else SEGMENTS, 10)
    fill(directory / "empty", 0, 10)

    def measure() -> float:
        empty = opened(directory / "empty")
        return max(1e-6, opened(directory / "full") - empty)

    yield limit(measure, ALLOWED_SECONDS)


START = Bar(
    name="start",
    what="opening a store with 1,000 segments, beyond an empty one",
    unit="s",
    reference_name="what is allowed",
    prepare=prepare,
    mark=1.0,
    goal=0.3,
    lower_is_better=True,
)
