"""The named interleavings: in every way, at every point, with every end."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.product.interleavings import INTERLEAVINGS, Interleaving
from tests.product.run import quiet, replay

pytestmark = pytest.mark.crash

CASES = [(one, way) for one in INTERLEAVINGS.values() for way in one.ways]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("one", "way"), CASES, ids=lambda part: getattr(part, "name", part))
def test_the_promise_holds(
    one: Interleaving, way: str, record_property: Callable[[str, object], None]
) -> None:
    """Scenario: a call inside every step of another, and the end of the process or the machine.
    Guarantee: no sentence of the promise is broken."""
    quiet()
    played = list(one.everywhere(way))
    record_property("tried", len(played))
    broken = [f"{violation}\n  {place}" for place, violation in played if violation is not None]
    assert not broken, "\n".join(broken[:3])
    assert len(played) > 10


def test_a_place_can_be_replayed() -> None:
    """Scenario: a place by its name. Guarantee: it is played, and the same each time."""
    quiet()
    tally = replay("put_inside_upkeep:flush:7:kill")
    assert tally.runs == 1
    assert tally.findings == []
