"""What a process uses, over time, and whether it stays the same."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from statistics import median
from typing import Final

SLACK: Final = {"descriptors": 16, "threads": 4, "memory": 48 << 20, "disk": 8 << 20}
"""What may come and go: a segment that is being read, a thread that ends, a page cache."""
GROWTH: Final = 0.10


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment."""

    seconds: float
    descriptors: int
    threads: int
    memory: int
    """Resident bytes."""
    disk: int
    """Bytes of all files of the store."""
    bundles: int
    """Put so far."""
    restarts: int


def take(directory: Path, seconds: float, bundles: int, restarts: int) -> Sample:
    """Look at this process and its store's directory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return Sample(
        seconds,
        len(os.listdir("/proc/self/fd")),
        threading.active_count(),
        pages * os.sysconf("SC_PAGE_SIZE"),
        _bytes_below(directory),
        bundles,
        restarts,
    )


def _bytes_below(directory: Path) -> int:
    total = 0
    for path in directory.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # deleted meanwhile
    return total


def growing(samples: Sequence[Sample]) -> list[str]:
    """What has grown, from the second quarter (warm by then) to the last; in words."""
    quarter = len(samples) // 4
    if quarter < 2:
        return []
    early, late = samples[quarter : 2 * quarter], samples[-quarter:]
    found = []
    for name, slack in SLACK.items():
        before, after = _level(early, name), _level(late, name)
        if after > before * (1 + GROWTH) + slack:
            found.append(f"{name} grew from {before:,.0f} to {after:,.0f}")
    return found


def _level(samples: Sequence[Sample], name: str) -> float:
    value: Callable[[Sample], int] = lambda sample: int(getattr(sample, name))  # noqa: E731
    return median(map(value, samples))


def as_csv(samples: Sequence[Sample]) -> str:
    """One line per sample."""
    names = [field.name for field in fields(Sample)]
    rows = [",".join(f"{getattr(sample, name):g}" for name in names) for sample in samples]
    return "\n".join([",".join(names), *rows, ""])
