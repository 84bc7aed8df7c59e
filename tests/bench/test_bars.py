"""Every bar still runs. How fast is for ``make bench`` to say: tests that time are flaky."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.bar import QUICK, Bar, run_bar
from benchmarks.bars import BARS


@pytest.mark.slow
@pytest.mark.parametrize("bar", BARS, ids=lambda bar: bar.name)
def test_a_bar_measures_something(bar: Bar, tmp_path: Path) -> None:
    """Scenario: one small repetition. Guarantee: both sides do their work and give a figure."""
    if not bar.is_possible:
        pytest.skip(f"needs {bar.needs}")
    result = run_bar(bar, QUICK, tmp_path)
    assert result.value > 0
    assert result.reference > 0
