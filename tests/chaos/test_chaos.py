"""Half a minute of chaos; ``make chaos`` goes on for as long as asked.

``QUIVER_CHAOS_SECONDS`` is for all profiles together; each plays one round at least.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.profiles import IN_CI, PROFILES
from tests.chaos.run import run

SECONDS: Final = float(os.environ.get("QUIVER_CHAOS_SECONDS", "30"))
SEED: Final = int(os.environ.get("QUIVER_CHAOS_SEED", "15"))
LONGEST_ROUND: Final = 240

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(LONGEST_ROUND + SECONDS)]


@pytest.mark.parametrize("profile", IN_CI)
def test_the_promise_holds_in_trouble(
    profile: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Scenario: a real server and clients in processes of their own, in one kind of trouble.

    Guarantee: whatever was answered durable is delivered, once and equal, or on record.
    """
    outcomes = run([profile], SECONDS / len(IN_CI), SEED, tmp_path)
    found = [f"{violation}\n  {one.replay}" for one in outcomes for violation in one.violations]
    assert not found, "\n".join(found)
    assert all(one.tally.durable for one in outcomes)
    record_property("tried", len(outcomes))
    record_property("answered durable", sum(one.tally.durable for one in outcomes))


def test_the_list_for_ci_names_profiles() -> None:
    """Scenario: a profile is renamed. Guarantee: the tests still run what they name."""
    assert set(IN_CI) <= set(PROFILES)
