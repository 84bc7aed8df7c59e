"""A bar: what is measured, against what, and how often."""

from __future__ import annotations

import contextlib
import importlib.util
import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
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


@dataclass(frozen=True, slots=True)
class Pair:
    """The two sides of a bar, set up: each call does the work once and returns the figure."""

    measure: Callable[[], float]
    reference: Callable[[], float]
    notes: Callable[[], dict[str, float]] = dict
    """What else is worth keeping, once all repetitions are done."""


Prepare = Callable[[Path, Scale], AbstractContextManager[Pair]]
"""Sets both sides up in an empty directory."""
Measure = Callable[[Path, Scale], float]
"""Does the work in an empty directory and returns the figure, in the bar's unit."""


def fresh(measure: Measure, reference: Measure) -> Prepare:
    """For sides that start anew, in a directory of their own, every time."""

    @contextlib.contextmanager
    def prepare(directory: Path, scale: Scale) -> Iterator[Pair]:
        def once(side: Measure) -> float:
            with tempfile.TemporaryDirectory(dir=directory) as empty:
                return side(Path(empty), scale)

        yield Pair(lambda: once(measure), lambda: once(reference))

    return prepare


def limit(measure: Callable[[], float], allowed: float) -> Pair:
    """For a figure that must keep within a bound, and is compared with nothing else."""
    return Pair(measure, lambda: allowed)


@dataclass(frozen=True, slots=True)
class Bar:
    """One line of the table: a higher ratio is better unless ``lower_is_better``."""

    name: str
    what: str
    unit: str
    reference_name: str
    prepare: Prepare
    mark: float
    goal: float
    lower_is_better: bool = False
    repetitions: int | None = None
    """Fewer than the scale says, for what takes long."""
    needs: str | None = None
    """A module without which the bar is left out."""

    @property
    def is_possible(self) -> bool:
        """Whether what it needs is installed."""
        return self.needs is None or importlib.util.find_spec(self.needs) is not None

    def reached(self, ratio: float) -> bool:
        """Whether a ratio is as good as the first mark asks for."""
        return ratio <= self.mark if self.lower_is_better else ratio >= self.mark


@dataclass(frozen=True, slots=True)
class Result:
    """Median ratio with the lowest and highest of the repetitions, and both figures."""

    ratio: float
    low: float
    high: float
    value: float
    reference: float
    notes: dict[str, float] = field(default_factory=dict)


def run_bar(bar: Bar, scale: Scale, root: Path) -> Result:
    """Interleave the two, so that a change in the machine's mood hits both."""
    values: list[float] = []
    references: list[float] = []
    with (
        tempfile.TemporaryDirectory(dir=root, prefix="quiver-bench-") as directory,
        bar.prepare(Path(directory), scale) as pair,
    ):
        for _ in range(min(scale.repetitions, bar.repetitions or scale.repetitions)):
            references.append(pair.reference())
            values.append(pair.measure())
        notes = pair.notes()
    ratios = [value / reference for value, reference in zip(values, references, strict=True)]
    return Result(
        ratio=statistics.median(ratios),
        low=min(ratios),
        high=max(ratios),
        value=statistics.median(values),
        reference=statistics.median(references),
        notes=notes,
    )
