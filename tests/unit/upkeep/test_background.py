"""The threads of the background: one flusher per store at a time, and no put forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from quiver.upkeep import background as module
from quiver.upkeep.background import DOZE_TURNS, Background

PATIENCE = 10.0


class Staged:
    """A store that counts who flushes it, and what."""

    def __init__(self) -> None:
        self.flush_queued = self.flush_wanted = self.work_queued = self.watched = False
        self.goes_by_the_clock = False
        self.looks = 0
        self.staged = self.flushed = 0
        self.inside = self.most_inside = self.flushes = 0
        self.changed = threading.Condition()
        self.gate = threading.Event()
        self.gate.set()

    def flush_staged(self) -> None:
        with self.changed:
            self.inside += 1
            self.most_inside = max(self.most_inside, self.inside)
            upto = self.staged
            self.changed.notify_all()
        self.gate.wait(PATIENCE)
        with self.changed:
            self.inside -= 1
            self.flushes += 1
            self.flushed = max(self.flushed, upto)
            self.changed.notify_all()

    def work(self) -> None: ...

    def look(self, now_queued: Background) -> bool:
        with self.changed:
            self.looks += 1
            self.changed.notify_all()
        return False

    def left_alone(self) -> None: ...

    def wait(self, condition: Callable[[Staged], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self), PATIENCE)


def _was_looked_at(times: int, store: Staged) -> bool:
    return store.looks >= times


@pytest.fixture
def background() -> Iterator[Background]:
    with Background(4, 1) as background:
        yield background


def test_a_busy_store_takes_one_flusher(background: Background) -> None:
    """Scenario: many puts while a sync is running. Guarantee: they wait for the next one in
    one place; the other flushers stay free for other stores."""
    busy, other = Staged(), Staged()
    busy.gate.clear()
    for _ in range(100):
        busy.staged += 1
        background.flush_soon(busy)
        if busy.staged == 1:
            busy.wait(lambda store: store.inside == 1)
    other.staged = 1
    background.flush_soon(other)
    other.wait(lambda store: store.flushed == 1)
    assert busy.most_inside == 1
    busy.gate.set()
    busy.wait(lambda store: store.flushed == 100)
    assert busy.flushes == 2


def test_no_put_is_forgotten(background: Background) -> None:
    """Scenario: four threads stage and ask for flushes as fast as they can. Guarantee:
    whenever the last has asked, everything staged gets flushed without another word."""
    store = Staged()

    def put() -> None:
        for _ in range(500):
            with store.changed:
                store.staged += 1
            background.flush_soon(store)

    for _ in range(5):
        threads = [threading.Thread(target=put) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        store.wait(lambda one: one.flushed == one.staged)
    assert store.flushed == 10_000


def test_idle_stores_take_turns(background: Background, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: many idle stores, one of which goes by the clock. Guarantee: that one is looked
    at each time, all others once in a round."""
    monkeypatch.setattr(module, "DOZE_SECONDS", 0.02)
    idle = [Staged() for _ in range(2 * DOZE_TURNS)]
    clocked = Staged()
    clocked.goes_by_the_clock = True
    for store in (*idle, clocked):
        background.attach(store)
    clocked.wait(lambda store: store.looks >= 3 * DOZE_TURNS)
    looks = [store.looks for store in idle]
    assert 1 <= min(looks) <= max(looks) <= 5


def test_who_asks_to_be_watched_is_looked_at_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: the ticker sleeps for ten minutes; a store asks to be watched. Guarantee: it
    is looked at, each time that it asks."""
    monkeypatch.setattr(module, "DOZE_SECONDS", 600.0)
    with Background(1, 1) as background:
        store = Staged()
        for number in range(1, 4):
            background.watch(store)
            store.wait(partial(_was_looked_at, number))
