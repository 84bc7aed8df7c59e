"""A bar: what is measured, against what, and how often."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Scale:
    """How much work one repetition does: little when only the running is checked."""

    repetitions: int
    nbytes: int

    @property
    def is_quick(self) -> bool:
        return self.repetitions == 1


FULL = Scale(repetitions=7, nbytes=512 << 20)
QUICK = Scale(repetitions=1, nbytes=4 << 20)

Measure = Callable[[Path, Scale], float]
"""Does the work in an empty directory and returns the figure, in the bar's unit."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of the table: a higher ratio is better unless ``lower_is_better``."""

    name: str
    what: str
    unit: str
    reference_name: str
    measure: Measure
    reference: Measure
    mark: float
    goal: float
    lower_is_better: bool = False


@dataclass(frozen=True, slots=True)
class Result:
    """Median ratio with the lowest and highest of the repetitions, and both figures."""

    ratio: float
    low: float
    high: float
    value: float
    reference: float


def run_bar(bar: Bar, scale: Scale, root: Path) -> Result:
    """Interleave the two, so that a change in the machine's mood hits both."""
    values: list[float] = []
    references: list[float] = []
    for _ in range(scale.repetitions):
        references.append(_fresh(bar.reference, scale, root))
        values.append(_fresh(bar.measure, scale, root))
    ratios = [value / reference for value, reference in zip(values, references, strict=True)]
    return Result(
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        value=statistics.median(values),
        reference=statistics.median(references),
    )


def _fresh(measure: Measure, scale: Scale, root: Path) -> float:
    with tempfile.TemporaryDirectory(dir=root, prefix="quiver-bench-") as directory:
        return measure(Path(directory), scale)
