"""Closing at any moment: everyone gets an answer, and what was durable is there."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest

import quiver
from quiver.errors import StoreClosed, UnknownSubscriber, WaitTimeout
from quiver.store.store import Store
from quiver.upkeep.background import Background
from tests.stress.crew import (
    SLOT,
    Crew,
    Tally,
    batch_of,
    left_in,
    number_of,
    produce,
    tiny,
    wait_until,
)

pytestmark = pytest.mark.stress

ROUNDS = 4
STORES = 5
MANY = 1_000_000
"""More bundles than anybody puts before the store closes."""
EXTRA = -7


def follow(store: Store, name: str, tally: Tally) -> None:
    """Iterate until the store is closed: that must end it."""
    for bundle in store.subscribe(name):
        number = number_of(bundle[SLOT])
        tally.took(name, number)
        try:
            bundle.ack()
        except StoreClosed:
            continue
        tally.finished(name, number)


def pester(crew: Crew, store: Store, seed: int) -> None:
    """Everything a user may call while somebody else closes."""
    random = Random(seed)
    calls: list[Callable[[], object]] = [
        store.flush,
        store.maintain,
        store.sync,
        store.flush_progress,
        lambda: store.register("late"),
        lambda: store.unregister("late"),
        lambda: store.wait_durable(MANY, 0.01),
    ]
    while True:
        try:
            random.choice(calls)()
        except StoreClosed:
            return
        except (UnknownSubscriber, WaitTimeout):
            pass  # as it should be


@pytest.mark.usefixtures("_frantic")
@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="group"),
        pytest.param({"wal": {"flush": "interval"}}, id="interval"),
        pytest.param({"durability": "segment_only"}, id="segment-only"),
    ],
)
def test_closed_in_the_middle(tmp_path: Path, settings: dict[str, Any]) -> None:
    """A store closes while puts, waits, iterations, upkeep and registrations are under way.

    All of them end, and every bundle whose receipt said durable is delivered after a
    reopen, once, unless it was finished before.
    """
    chosen = tiny(**settings)
    seen, durable = Tally(), Tally()
    for turn in range(ROUNDS):
        crew = Crew()
        store = quiver.open(tmp_path, background=turn % 2 == 0, **chosen)
        store.register("late")
        crew.start(follow, store, "a", seen)
        crew.start(follow, store, "a", seen)
        crew.start(pester, crew, store, turn)
        for n in range(2):
            numbers = range(MANY * (2 * turn + n), MANY * (2 * turn + n + 1))
            crew.start(lambda *a: produce(*a, until_closed=True), crew, store, durable, numbers, n)
        crew.stop.wait(0.02 + 0.25 * Random(turn).random())
        store.close()
        crew.join()
    again = left_in(str(tmp_path), "a", **chosen)
    assert set(durable.durable) <= set(seen.outcomes["a"]) | set(again)
    # Acks of the last moments may not have reached the disk: those come twice, no others.
    assert set(again.values()) <= {1}


def test_stores_of_one_background(tmp_path: Path) -> None:
    """Stores share threads and close one after the other, the rest going on undisturbed.

    What each said was durable is there after a reopen, and in that store only.
    """
    crew = Crew()
    tallies = [Tally() for _ in range(STORES)]
    paths = [str(tmp_path / str(n)) for n in range(STORES)]
    with Background(2, 2) as background:
        stores = [quiver.open(path, background=background, **tiny()) for path in paths]
        for n, store in enumerate(stores):
            store.register("a")
            numbers = range(MANY * n, MANY * (n + 1))
            crew.start(
                lambda *a: produce(*a, until_closed=True), crew, store, tallies[n], numbers, n
            )
        for store, tally in zip(stores[1:], tallies[1:], strict=True):
            wait_until(crew, tally.durable.__len__, "something durable")
            store.close()
        # The threads end before the first store does: it goes on without.
    assert stores[0].put({SLOT: batch_of(EXTRA)}, timeout=20).wait().durable
    stores[0].close()
    crew.join()
    for n, path in enumerate(paths):
        found = left_in(path, "a", **tiny())
        assert set(tallies[n].durable) <= set(found)
        assert all(number // MANY == n for number in found if number != EXTRA)
        assert set(found.values()) == {1}


def test_open_and_close_leave_nothing(tmp_path: Path) -> None:
    """Twenty lives of a store, each with threads, readers and subscribers: nothing piles up."""
    for turn in range(20):
        with quiver.open(tmp_path, background=True, **tiny(read_mode="pread")) as store:
            subscription = store.subscribe("a", follow=False)
            store.put({SLOT: batch_of(EXTRA)}).wait()
            store.flush()
            for bundle in subscription:
                assert number_of(bundle[SLOT]) == EXTRA
                if turn % 3:
                    bundle.ack()
