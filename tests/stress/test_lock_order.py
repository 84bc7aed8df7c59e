"""Locks are taken in one order, everywhere: then no two threads can wait for each other."""

from __future__ import annotations

from graphlib import TopologicalSorter
from pathlib import Path
from typing import Any, Final

import pytest

import quiver
from tests.stress.crew import Crew, Tally, consume, produce, tiny, wait_until
from tests.stress.locks import watched
from tests.stress.test_everything import come_and_go, look_around

pytestmark = pytest.mark.stress

BUNDLES: Final = 60

ORDER: Final = (
    "gate.py _lock",
    "subscriber/registry.py _membership",
    "subscriber/subscriber.py _writing",
    "wal/writer.py _turn",
    "wal/active.py names",
    "assembly.py lock",
    "subscriber/registry.py _lock",
    "subscriber/subscriber.py _lock",
)
"""As docs/adr/0009-locks.md has it. Behind these come only leaves."""


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
    assert {name for edge in watch.edges for name in edge} > {"gate.py _lock", "assembly.py lock"}
    graph: TopologicalSorter[str] = TopologicalSorter()
    for held, taken in watch.edges:
        graph.add(taken, held)
    graph.prepare()  # raises for a circle
