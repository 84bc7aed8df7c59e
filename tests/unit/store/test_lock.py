"""One writer: a second opener is refused and told who has the store."""

from __future__ import annotations

from pathlib import Path

import pytest

import quiver
from quiver.errors import StoreLocked, WalCorrupt
from tests.support.stores import World, batch, flipped


def test_a_second_opener_is_refused_with_the_owner_named(tmp_path: Path) -> None:
    """Scenario: the same directory twice, on a real disk. Guarantee: the second is refused
    with host, process id and since when, and with what can be done; the first goes on."""
    with quiver.open(tmp_path, reserve=0) as store:
        with pytest.raises(StoreLocked) as caught:
            quiver.open(tmp_path, reserve=0)
        assert {"host", "pid"} <= set(caught.value.details)
        assert "pid" in str(caught.value)
        assert "quiver inspect" in caught.value.advice
        store.put({"Logs": batch()}).wait()


def test_closing_gives_the_store_back(tmp_path: Path) -> None:
    """Scenario: closed, opened again, also after a block left by an exception. Guarantee:
    the lock is free each time."""
    quiver.open(tmp_path, reserve=0).close()
    with pytest.raises(ZeroDivisionError), quiver.open(tmp_path, reserve=0):
        raise ZeroDivisionError
    quiver.open(tmp_path, reserve=0).close()


def test_a_failed_open_holds_nothing(world: World) -> None:
    """Scenario: an open is refused for damage. Guarantee: lock and share of the disk budget
    are free: once it is repaired, the same process can open it."""
    budget = quiver.DiskBudget(10 << 30)
    for n in range(6):
        world.put_durable(n)
    good = world.raw.image()["wal/quiver.wal"]
    world.change("wal/quiver.wal", lambda data: flipped(data, 800))
    with pytest.raises(WalCorrupt):
        world.open(budget=budget)
    assert world.raw.locked == set()
    assert budget.shares() == []
    world.change("wal/quiver.wal", lambda _: good)
    world.open(budget=budget)
    assert len(budget.shares()) == 1
