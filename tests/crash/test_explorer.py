"""The promise under every crash that some thousand states can show.

``QUIVER_CRASH_STATES`` sets how many: 10,000 for developers, 100,000 in CI; ``make prove`` tries
more.
"""

from __future__ import annotations

import os

import pytest

from tests.crash.explorer import check_place
from tests.crash.profiles import PROFILES
from tests.crash.run import explore
from tests.crash.workloads import generate, quiet

STATES = int(os.environ.get("QUIVER_CRASH_STATES", "10000"))
SEED = 1

pytestmark = pytest.mark.crash


@pytest.mark.timeout(900)
def test_no_crash_state_breaks_the_promise() -> None:
    """Scenario: seeded workloads of all profiles, cut at every point of their record.
    Guarantee: in each legal state the store opens and every invariant holds."""
    result = explore(STATES, SEED)
    assert not result.tally.findings, "\n".join(str(f) for f in result.tally.findings)
    assert result.tally.states >= STATES
    assert result.tally.second > STATES // 50


def test_a_workload_is_decided_by_its_number() -> None:
    """Scenario: the same workload twice. Guarantee: the same record and notes, so that a
    failing state can be shown again by its number."""
    quiet()
    first, second = generate(5, 2), generate(5, 2)
    assert first.steps == second.steps
    assert [e.records for e in first.epochs] == [e.records for e in second.epochs]
    assert [[(at, type(n)) for at, n in e.notes] for e in first.epochs] == [
        [(at, type(n)) for at, n in e.notes] for e in second.epochs
    ]


@pytest.mark.parametrize("profile", range(len(PROFILES)), ids=lambda p: PROFILES[p].name)
def test_each_profile_does_what_it_is_for(profile: int) -> None:
    """Scenario: twenty workloads of a profile. Guarantee: every step it is weighted for
    was taken, puts became durable, and no run broke the promise by itself."""
    quiet()
    runs = [generate(3, number, profile) for number in range(20)]
    taken = {step for run in runs for step in run.steps}
    assert set(PROFILES[profile].weights) <= taken
    notes = {type(n).__name__ for run in runs for e in run.epochs for _, n in e.notes}
    assert {"Durable", "Settled", "Kept", "Deleted"} <= notes
    assert PROFILES[profile].drops == ("Dropped" in notes)
    assert [run.violation for run in runs if run.violation] == []


def test_a_state_can_be_replayed() -> None:
    """Scenario: one state by its number, as a failure prints it. Guarantee: it is found,
    opened and checked again."""
    quiet()
    workload, state = check_place("1:0:12:0")
    assert workload.profile.name == PROFILES[0].name
    assert state is not None
    assert state.files
