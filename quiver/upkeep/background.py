"""Threads, for those who ask for them: a few, shared by any number of stores.

A store does nothing by itself: its log is committed by whoever waits, its upkeep by
``maintain()``.  :class:`Background` does both instead: flushers commit staged puts as
soon as there are any (groups form behind a running sync), workers write segments, flush
progress and delete, and one ticker finds out what has become due.  It looks at busy
stores often, at idle ones seldom: they cost next to nothing.  So whatever makes something
due by time (a put, an outcome) asks for its store to be watched.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from queue import SimpleQueue
from types import TracebackType
from typing import Final, Protocol

from quiver.errors import Forked, InvalidInput, QuiverError
from quiver.events import BACKGROUND_FAILED, get_logger
from quiver.forking import guard

TICK_SECONDS: Final = 0.02
"""How often a store is looked at that has something under way."""
DOZE_SECONDS: Final = 0.5
"""How often others are that do something by the clock alone."""
DOZE_TURNS: Final = 10
"""All the rest take turns: one in so many of them is looked at each time."""
DEFAULT_FLUSHERS: Final = 4
DEFAULT_WORKERS: Final = 2

_log = get_logger()


class Driven(Protocol):
    """What a store lets the background do."""

    flush_queued: bool
    flush_wanted: bool
    """Something was staged since the last flush began."""
    work_queued: bool
    watched: bool
    """Whether the ticker looks at it often."""

    @property
    def goes_by_the_clock(self) -> bool:
        """Whether something may become due though nobody does anything."""
        ...

    def flush_staged(self) -> None:
        """Commit until nothing is staged."""
        ...

    def work(self) -> None:
        """Do what upkeep is due."""
        ...

    def look(self, now_queued: Background) -> bool:
        """Ask ``now_queued`` for what is due by time; whether to look again very soon."""
        ...

    def left_alone(self) -> None:
        """The background ends: from now on those who wait do the work."""
        ...


class Background:
    """A pool of threads for the stores attached to it."""

    def __init__(self, flushers: int = DEFAULT_FLUSHERS, workers: int = DEFAULT_WORKERS) -> None:
        self._stores: list[Driven] = []
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._stirred = threading.Event()
        self._woken: deque[Driven] = deque()
        self._flushes: SimpleQueue[Driven | None] = SimpleQueue()
        self._work: SimpleQueue[Driven | None] = SimpleQueue()
        self._threads = [
            *(self._thread(f"quiver-flush-{n}", self._run_flushes) for n in range(flushers)),
            *(self._thread(f"quiver-work-{n}", self._run_work) for n in range(workers)),
            self._thread("quiver-tick", self._run_ticks),
        ]
        self._flushers, self._workers = flushers, workers
        guard(self)
        for thread in self._threads:
            thread.start()

    def _thread(self, name: str, target: Callable[[], None]) -> threading.Thread:
        return threading.Thread(target=target, name=name, daemon=True)

    def attach(self, store: Driven) -> None:
        """Drive a store from now on."""
        with self._lock:
            if self._stop.is_set():
                raise InvalidInput(
                    "this background has been closed: it would drive nothing.",
                    advice="Make a new one.",
                )
            self._stores = [*self._stores, store]

    def detach(self, store: Driven) -> None:
        with self._lock:
            self._stores = [s for s in self._stores if s is not store]

    def flush_soon(self, store: Driven) -> None:
        """Have the store's staged puts committed; cheap to call for every put.

        A store stays queued while it is being flushed: a second thread would only wait for
        the first one's sync, and be missing elsewhere.
        """
        store.flush_wanted = True  # said before the look: see _run_flushes
        if not store.flush_queued:
            store.flush_queued = True
            self._flushes.put(store)

    def work_soon(self, store: Driven) -> None:
        """Have the store's upkeep done."""
        if not store.work_queued:
            store.work_queued = True
            self._work.put(store)

    def _run_flushes(self) -> None:
        while (store := self._flushes.get()) is not None:
            store.flush_wanted = False
            _guarded(store.flush_staged)
            store.flush_queued = False
            if store.flush_wanted:  # staged since, by a put that saw it queued
                self.flush_soon(store)

    def _run_work(self) -> None:
        while (store := self._work.get()) is not None:
            store.work_queued = False
            _guarded(store.work)

    def watch(self, store: Driven) -> None:
        """Have the store looked at often: something will be due soon. Cheap for every put."""
        if not store.watched:
            store.watched = True
            self._woken.append(store)
            self._stirred.set()

    def _run_ticks(self) -> None:
        busy: list[Driven] = []
        doze_over, turn = 0.0, 0
        while not self._stop.is_set():
            self._stirred.clear()  # before the look: what comes during it is looked at next
            now = time.monotonic()
            woken = [self._woken.popleft() for _ in range(len(self._woken))]
            if now >= doze_over:
                woken += self._dozing(turn)
                doze_over, turn = now + DOZE_SECONDS, (turn + 1) % DOZE_TURNS
            busy = [store for store in dict.fromkeys([*busy, *woken]) if self._look(store)]
            self._stirred.wait(TICK_SECONDS if busy else max(0.0, doze_over - now))

    def _dozing(self, turn: int) -> list[Driven]:
        return [
            store
            for number, store in enumerate(self._stores)
            if number % DOZE_TURNS == turn or store.goes_by_the_clock
        ]

    def _look(self, store: Driven) -> bool:
        # Said before the look: a put that comes too late for it asks to be watched.
        store.watched = False
        store.watched = _guarded(partial(store.look, self))
        return store.watched

    def close(self) -> None:
        """End the threads, after what they are doing; the stores go on without."""
        with self._lock:
            self._stop.set()
        self._stirred.set()
        for _ in range(self._flushers):
            self._flushes.put(None)
        for _ in range(self._workers):
            self._work.put(None)
        for thread in self._threads:
            thread.join()
        for store in self._stores:
            store.left_alone()

    def __enter__(self) -> Background:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Forked:
            if kind is None:  # an error on its way out says more
                raise


def _guarded(step: Callable[[], object]) -> bool:
    """What a step says; one that fails must not end the thread that drives the others."""
    try:
        return bool(step())
    except QuiverError as error:
        _log.warning(BACKGROUND_FAILED, code=error.code, error=str(error))
    except Exception:
        _log.exception(BACKGROUND_FAILED, code="bug")
    return False
