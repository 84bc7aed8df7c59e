"""The product is tested: an engine with a fault is found out, by the sentence that is named."""

from __future__ import annotations

import re

import pytest

from quiver.segment import segments
from tests.product.facts import SENTENCES
from tests.product.interleavings import INTERLEAVINGS
from tests.product.mutants import MUTANTS, Mutant
from tests.product.mutants.hunt import described, hunt
from tests.product.run import BEGIN, END, PAGE

pytestmark = pytest.mark.crash

DEFECTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 15, 16)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_fault_is_noticed(mutant: Mutant) -> None:
    """Scenario: one thing in the engine, or in the server, is wrong. Guarantee: within a bounded
    number of seeded runs the sentence named for it is broken, or the test named for it fails."""
    kill = hunt(mutant)
    assert kill.by, f"{mutant.name} survived {kill.tries} tries"
    assert not mutant.by or kill.by in mutant.by, kill.what


def test_nothing_is_left_out() -> None:
    """Scenario: the list. Guarantee: each defect, each row of the owner's table and each named
    interleaving has a mutant."""
    of = {mutant.of for mutant in MUTANTS}
    assert {f"defect {number}" for number in DEFECTS} <= of
    assert {f"row {row}" for row in _rows()} <= of
    scenes = {scene.partition(":")[0] for mutant in MUTANTS for scene in mutant.scenes}
    assert set(INTERLEAVINGS) <= scenes


def _rows() -> set[str]:
    """The transitions in the owner's table, as its docstring draws it."""
    table = (segments.__doc__ or "").split("transition     from")[1].split("At a start")[0]
    return set(re.findall(r"^([a-z_]+) {2,}\S", table, re.MULTILINE))


def test_the_page_has_the_table() -> None:
    """Scenario: the reliability page. Guarantee: it lists every mutant, with a sentence or a test
    that notices it: `python -m tests.product --mutants --write` puts the table there."""
    table = PAGE.read_text().partition(BEGIN)[2].partition(END)[0]
    rows = re.findall(r"^\| (.+?) \| `(\w+)`: .+ \| `(\w+)`", table, re.MULTILINE)
    assert [(of, name) for of, name, _ in rows] == [(described(one), one.name) for one in MUTANTS]
    for one, (_, _, by) in zip(MUTANTS, rows, strict=True):
        allowed = one.by or (one.scenes[0].partition("::")[2],)
        assert by in allowed
        assert one.by == () or by in SENTENCES
