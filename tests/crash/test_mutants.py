"""The tester is tested: the engine with a fault is always found out."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest

from tests.crash.mutants import MUTANTS, Mutant
from tests.crash.mutants.hunt import hunt

pytestmark = pytest.mark.crash


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_is_noticed(mutant: Mutant) -> None:
    """Scenario: one thing in the engine is wrong. Guarantee: within its budget of states
    the explorer finds one that breaks the promise, and names the sentence broken."""
    kill = hunt(mutant)
    assert kill.invariant, f"{mutant.name} survived {kill.states} states"


def test_there_are_enough_of_them() -> None:
    """Scenario: the list of mutants. Guarantee: at least twenty, each with its own name."""
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= 20


def test_a_patch_is_taken_back() -> None:
    """Scenario: a mutant was tried. Guarantee: the engine behind it is whole again."""
    before = {mutant.name: mutant.apply for mutant in MUTANTS}
    for mutant in MUTANTS:
        with mutant.apply():
            pass
    sound = Mutant("none", _nothing, ("plain",))
    assert hunt(sound, budget=150).invariant == ""
    assert before == {mutant.name: mutant.apply for mutant in MUTANTS}


def _nothing() -> AbstractContextManager[Any]:
    return nullcontext()
