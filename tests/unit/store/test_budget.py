"""One disk budget for several stores."""

from __future__ import annotations

from typing import Any

import pytest

from quiver import Backpressure, DiskBudget
from quiver.errors import ConfigError
from quiver.metrics import CORE_BYTES, CORE_CAP_FRACTION
from tests.support.stores import World, ack_all, payload
from tests.unit.store.test_retention import CAP, SMALL


def fill(world: World) -> int:
    """Put until the budget says no; how many were taken."""
    for taken in range(500):
        try:
            world.store.put({"Logs": payload(3000, taken)}).wait()
        except Backpressure:
            return taken
    pytest.fail("never refused")


def test_stores_share_a_budget_evenly() -> None:
    """Scenario: two stores on one budget; one fills its half. Guarantee: it has to wait, the
    other has its half untouched, and together they keep within the whole."""
    budget = DiskBudget(2 * CAP)
    first, second = World(**SMALL), World(**SMALL)
    first.open(budget=budget, where="first")
    second.open(budget=budget, where="second")
    taken = fill(first)
    assert taken > 5
    assert fill(second) == taken
    used = [w.store.status().usage.on_disk for w in (first, second)]
    assert sum(used) <= 2 * CAP
    for world, name in ((first, "first"), (second, "second")):
        metrics = world.store.metrics
        assert metrics.gauge(CORE_BYTES, core_id=name).value > 0
        assert 0.5 < metrics.gauge(CORE_CAP_FRACTION, core_id=name).value <= 1


def test_a_store_that_closes_gives_its_part_back() -> None:
    """Scenario: one of two closes. Guarantee: the other has the whole budget, and a full one
    takes more at once."""
    budget = DiskBudget(2 * CAP)
    first, second = World(**SMALL), World(**SMALL)
    first.open(budget=budget, where="first")
    second.open(budget=budget, where="second")
    fill(first)
    second.store.close()
    assert first.store.status().cap == 2 * CAP
    assert fill(first) > 5


def test_a_store_that_would_not_fit_is_refused_and_leaves_nothing() -> None:
    """Scenario: a third store asks for a part that would be too small. Guarantee: refused by
    the setting's name; lock and share are free, the first two go on as before."""
    budget = DiskBudget(2 * CAP)
    worlds = [World(**SMALL) for _ in range(3)]
    for n in range(2):
        worlds[n].open(budget=budget, where=f"s{n}")
    before = worlds[0].store.status().cap
    small: dict[str, Any] = {"wal": {"rotation_target": "8KiB", "max_size": "96KiB"}}
    with pytest.raises(ConfigError, match="budget"):
        worlds[2].open(budget=budget, where="s2", **small)
    assert worlds[2].raw.locked == set()
    assert len(budget.shares()) == 2
    assert worlds[0].store.status().cap == before


def test_drop_oldest_and_backpressure_side_by_side() -> None:
    """Scenario: one store may drop, the other may not; neither has anyone who reads.
    Guarantee: the first goes on for ever, the second waits; neither takes from the other."""
    budget = DiskBudget(2 * CAP)
    dropping = World(**SMALL, retention={"size_cap_policy": "drop_oldest"})
    waiting = World(**SMALL)
    dropping.open(budget=budget, where="dropping")
    waiting.open(budget=budget, where="waiting")
    waiting.store.subscribe("r")
    taken = fill(waiting)
    for n in range(100):
        dropping.store.put({"Logs": payload(3000, n)}).wait()
        dropping.store.maintain()
    assert dropping.store.status().usage.on_disk <= CAP
    assert waiting.store.status().losses == ()
    assert ack_all(waiting.store, "r") == taken
