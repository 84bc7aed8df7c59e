"""Locks are taken in one order, everywhere: then no two threads can wait for each other."""

from __future__ import annotations

import contextlib
from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Final

import pytest

import quiver
from tests.stress.crew import SLOT, Crew, Tally, batch_of, consume, produce, tiny, wait_until
from tests.stress.locks import watched
from tests.stress.test_everything import come_and_go, look_around

pytestmark = pytest.mark.stress

BUNDLES: Final = 60
TRANSACTIONS: Final = 20
OUTSIDE: Final = 1_000_000
"""Numbers that nobody else puts."""

ORDER: Final = (
    "transaction/commit.py _turn",
    "upkeep/maintenance_lock.py _lock",
    "subscriber/registry.py _membership",
    "subscriber/subscriber.py _writing",
    "transaction/stage.py _lock",
    "wal/writer.py _turn",
    "wal/log_files.py names",
    "store/assembly.py lock",
    "subscriber/registry.py _lock",
    "subscriber/subscriber.py _lock",
)
"""As docs/adr/0009-locks.md has it. Behind these come only leaves."""


def transact(crew: Crew, store: quiver.Store, app: str) -> None:
    """Stage, commit and abort; a full store is no reason to end."""
    for version in range(TRANSACTIONS):
        if crew.stop.is_set():
            return
        with contextlib.suppress(quiver.Backpressure), store.stage(app, version, "a") as stage:
            stage.put({SLOT: batch_of(OUTSIDE + version)})
            stage.finish()
            if version % 3:
                store.commit(app, version, ["a"])
        store.abort(app, version)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"retention": {"size_cap": "1MiB"}}, id="log"),
        pytest.param({"durability": "segment_only"}, id="segment-only"),
    ],
)
def test_one_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    """Every call is made while every lock is watched: who holds one takes only later ones.

    All that are not named in the order are leaves: nothing is taken while one is held.
    """
    crew, tally = Crew(), Tally()
    with (
        watched(monkeypatch) as watch,
        quiver.open(tmp_path, background=True, **tiny(**settings)) as store,
    ):
        for seed in range(2):
            crew.start(consume, crew, store.subscribe("a"), tally, seed)
        crew.start(come_and_go, crew, store, "guest", 1)
        crew.start(look_around, crew, store, tally, 2)
        if store.config.durability == "wal":
            crew.start(transact, crew, store, "app")
            crew.start(transact, crew, store, "other")
        producer = crew.start(produce, crew, store, tally, range(BUNDLES), 3)
        crew.join(producer)
        wait_until(crew, lambda: tally.is_drained("a"), "all delivered")
        crew.stop.set()
        crew.join()
    place = {name: index for index, name in enumerate(ORDER)}
    backwards = [
        (held, taken)
        for held, taken in watch.edges
        if held not in place or (taken in place and place[taken] <= place[held])
    ]
    assert not backwards
    assert {name for edge in watch.edges for name in edge} > {
        "upkeep/maintenance_lock.py _lock",
        "store/assembly.py lock",
    }
    graph: TopologicalSorter[str] = TopologicalSorter()
    for held, taken in watch.edges:
        graph.add(taken, held)
    graph.prepare()  # raises for a circle
