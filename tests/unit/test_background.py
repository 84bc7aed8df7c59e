"""The threads of the background: one flusher per store at a time, and no put forgotten."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from quiver.background import Background

PATIENCE = 10.0


class Staged:
    """A store that counts who flushes it, and what."""

    def __init__(self) -> None:
        self.flush_queued = self.flush_wanted = self.work_queued = self.watched = False
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
        return False

    def left_alone(self) -> None: ...

    def wait(self, condition: Callable[[Staged], bool]) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: condition(self), PATIENCE)


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
