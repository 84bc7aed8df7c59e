"""Locks that remember in which order they were taken."""

from __future__ import annotations

import linecache
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pytest

import quiver

ROOT: Final = Path(quiver.__file__).parent
# Its locks are no locks but bells: taken by one thread, released by another.
BELLS: Final = "subscriber/doorbell.py"

Edge = tuple[str, str]


class Watch:
    """Which lock was taken while which other was held, by any thread."""

    def __init__(self) -> None:
        self._held = threading.local()
        self.edges: set[Edge] = set()

    def taken(self, name: str) -> None:
        held: list[str] = self._held.__dict__.setdefault("names", [])
        if name not in held:  # one that may be taken again, or several of a kind
            self.edges.update((other, name) for other in held)
        held.append(name)

    def released(self, name: str) -> None:
        held: list[str] = self._held.names
        held.reverse()
        held.remove(name)
        held.reverse()


class WatchedLock:
    """A lock of either kind that tells a :class:`Watch`."""

    def __init__(self, lock: Any, name: str, watch: Watch) -> None:
        self._lock = lock
        self._name = name
        self._watch = watch

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        got: bool = self._lock.acquire(blocking, timeout)
        if got:
            self._watch.taken(self._name)
        return got

    def release(self) -> None:
        self._watch.released(self._name)
        self._lock.release()

    def locked(self) -> bool:
        return bool(self._lock.locked())

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def _name_of(frame: FrameType) -> str | None:
    """``wal/writer.py _turn`` for the lock that a line of the library makes."""
    path = Path(frame.f_code.co_filename)
    if not path.is_relative_to(ROOT):
        return None
    where = path.relative_to(ROOT).as_posix()
    line = linecache.getline(str(path), frame.f_lineno)
    target = line.partition("=")[0].partition(":")[0].strip().removeprefix("self.")
    return None if where == BELLS else f"{where} {target}"


@contextmanager
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Every lock that the library makes from here on is watched."""
    watch = Watch()

    def maker(real: Any) -> Any:
        def make() -> Any:
            name = _name_of(sys._getframe(1))
            return real() if name is None else WatchedLock(real(), name, watch)

        return make

    with monkeypatch.context() as patch:
        patch.setattr(threading, "Lock", maker(threading.Lock))
        patch.setattr(threading, "RLock", maker(threading.RLock))
        yield watch
