"""Half a minute of chaos; ``make chaos`` goes on for as long as asked.

``QUIVER_CHAOS_SECONDS`` is for all profiles together: they are played in turn, in short rounds,
until the time is up.  ``QUIVER_CHAOS_SEED`` says which profile comes first and what happens in
each round; it is the number of the day if left out, so that half a minute a day gets around to
all of them.  A failure prints the line that plays its round again.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final

import pytest

from tests.chaos.judge import Invariant, Violation
from tests.chaos.profiles import IN_CI, PROFILES
from tests.chaos.round import Outcome
from tests.chaos.run import (
    BEGIN,
    END,
    as_markdown,
    document,
    failed,
    not_played,
    rotated,
    run,
    table,
    write_into,
)
from tests.chaos.stage import Tally
from tests.prove import PAGE

SECONDS: Final = float(os.environ.get("QUIVER_CHAOS_SECONDS", "30"))
SEED: Final = int(os.environ.get("QUIVER_CHAOS_SEED", str(int(time.time()) // 86_400)))
LONGEST_ROUND: Final = 240


@pytest.mark.chaos
@pytest.mark.timeout(LONGEST_ROUND + SECONDS)
def test_the_promise_holds_in_trouble(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Scenario: a real server and clients in processes of their own, in one kind of trouble after
    the other.

    Guarantee: whatever was answered durable is delivered, once and equal, or on record; and the
    trouble did take effect.
    """
    outcomes = run(rotated(IN_CI, SEED), SECONDS, SEED, tmp_path, short=True)
    found = [f"{violation}\n  {one.replay}" for one in outcomes for violation in one.violations]
    assert not found, "\n".join(found)
    assert not failed(outcomes), "\n".join(
        f"{name} was not played: {why}\n  {one.replay}"
        for name, why in not_played(outcomes).items()
        for one in outcomes
        if one.profile == name
    )
    record_property("tried", len(outcomes))
    record_property("answered durable", sum(one.tally.durable for one in outcomes))


# The runner itself

GOOD = Outcome("kill", 7, 3, 5.0, Tally(9, 8, 7, troubles=Counter({"killed": 2})), ())


def test_the_list_for_ci_names_profiles() -> None:
    """Scenario: a profile is renamed. Guarantee: the tests still run what they name, each of
    them in its turn."""
    assert set(IN_CI) <= set(PROFILES)
    assert sorted(rotated(IN_CI, 12)) == sorted(IN_CI)
    assert {rotated(IN_CI, seed)[0] for seed in range(len(IN_CI))} == set(IN_CI)


def test_a_profile_whose_trouble_never_came_has_failed() -> None:
    """Scenario: rounds end well because nothing was done to them. Guarantee: that is a failure,
    told by name; what the machine does not allow is told, too, and no failure."""
    idle = replace(GOOD, tally=Tally(9, 8, 7))
    assert not failed([GOOD])
    assert not failed([idle, GOOD]), "it happened in another round"
    assert failed([idle])
    assert not_played([idle]) == {"kill": "none of: killed"}
    assert "NOT PLAYED" in table([idle])
    assert document([idle])["failed"] == 1
    barred = replace(GOOD, profile="full", tally=Tally(9, obstacles=Counter({"no mount": 1})))
    assert not failed([GOOD, barred])
    assert not_played([GOOD, barred]) == {"full": "no mount"}
    assert "**not played**: no mount" in as_markdown([GOOD, barred])


def test_every_outcome_prints_the_line_that_plays_it_again() -> None:
    """Scenario: a round failed, a whole one or a short one. Guarantee: its own line."""
    assert GOOD.replay == "make chaos SEED=7 PROFILE=kill ROUND=3"
    assert replace(GOOD, short=True).replay == (
        "python -m tests.chaos --seed 7 --profile kill --round 3 --short"
    )


def test_the_table_goes_onto_the_page() -> None:
    """Scenario: ``--write``. Guarantee: what stands between the marks is replaced, nothing else."""
    bad = replace(GOOD, violations=(Violation(Invariant.STUCK, "t", "no put"),))
    page = write_into(f"before\n{BEGIN}\nold\n{END}\nafter\n", [GOOD, bad], 7, "2026-01-02")
    assert page.startswith("before\n")
    assert page.endswith(f"{END}\nafter\n")
    assert "old" not in page
    what = PROFILES["kill"].what
    assert f"| `kill`: {what} | 2 | 18 | 16 | 14 | killed 4 | 1 | 10 |" in page
    assert "2026-01-02" in page
    assert "seed 7" in page
    with pytest.raises(SystemExit):
        write_into("no marks", [GOOD], 7, "2026-01-02")
    text = PAGE.read_text()
    assert text.index(BEGIN) < text.index(END)
