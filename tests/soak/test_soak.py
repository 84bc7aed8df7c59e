"""The long run in short, and the judge of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.soak.life import Life
from tests.soak.samples import SLACK, Sample, growing

FLAT = [Sample(float(n), 30, 9, 200 << 20, 90 << 20, n * 100, n // 10) for n in range(40)]


def test_flat_is_flat() -> None:
    """Noise within the slack is no growth."""
    noisy = [replace(one, memory=one.memory + (n % 5 << 20)) for n, one in enumerate(FLAT)]
    assert growing(noisy) == []


@pytest.mark.parametrize("name", SLACK)
def test_growth_is_noticed(name: str) -> None:
    """Whatever rises by half during the run is named."""
    rising = [
        replace(one, **{name: int(getattr(one, name) * (1 + n / 10)) + n * SLACK[name] // 4})
        for n, one in enumerate(FLAT)
    ]
    assert [problem.split()[0] for problem in growing(rising)] == [name]


def test_a_short_life(tmp_path: Path) -> None:
    """Some seconds of everything, without an error in any thread."""
    life = Life(tmp_path / "store", seed=1)
    life.go_on(3.0)
    assert not life.errors
    assert life.bundles > 0
    assert life.acked > 0
    assert life.samples
