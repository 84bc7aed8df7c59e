"""The product, seeded: every profile a number of runs, the same ones each time.

``QUIVER_PRODUCT_RUNS`` sets how many of each profile (``make prove`` takes many more).
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import pytest

from tests.product.run import explore, quiet, replay
from tests.product.steps import PROFILES, Profile, Run

pytestmark = pytest.mark.crash

RUNS: Final = int(os.environ.get("QUIVER_PRODUCT_RUNS", "80"))
SEED: Final = 1
ENOUGH: Final = 40
"""Runs in which every step of a profile is drawn, and meets something to be done to."""


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_the_promise_holds(
    profile: Profile, record_property: Callable[[str, object], None]
) -> None:
    """Scenario: seeded runs of puts, acks, upkeep and restarts, with the trouble the profile is
    for, and everything else besides. Guarantee: no sentence of the promise is broken; what is
    missing is on record, and what is on record was touched by damage."""
    tally = explore(SEED, RUNS, profile.name)
    record_property("tried", tally.runs)
    assert not tally.findings, "\n\n".join(str(one) for one in tally.findings[:3])
    assert tally.puts > RUNS
    if RUNS >= ENOUGH:  # each step was taken, and the trouble that it is for has come
        assert {*profile.weights, *profile.effects} - tally.taken == set()


@pytest.mark.parametrize("profile", PROFILES, ids=lambda profile: profile.name)
def test_a_run_is_decided_by_its_seed(profile: Profile) -> None:
    """Scenario: the same run twice. Guarantee: the same steps, the same bytes on the disk: a
    line that a finding prints shows it again."""
    quiet()
    found = []
    for _ in range(2):
        run = Run(7, 3, profile)
        run.go()
        found.append((run.steps, dict(run.world.disk.image())))
    assert found[0][0] == found[1][0]
    assert found[0][1] == found[1][1]


def test_a_finding_can_be_replayed() -> None:
    """Scenario: a run by the name that a finding prints. Guarantee: it is that run."""
    quiet()
    tally = replay(f"{SEED}:0:{PROFILES[0].name}")
    assert tally.runs == 1
    assert tally.steps > 10
