"""Interleavings that are chosen, not hoped for.

Several calls of one store run as cooperating tasks, one at a time.  A task can be left where
threads meet: when it takes or gives back a lock, waits for a condition or an event, and at
every call of the disk, which takes the disk's own lock.  Which task goes on at each of these
points is drawn from one seeded generator, so a run is decided by its seed and can be had
again.

The tasks are greenlets.  :func:`simulated` replaces ``threading.Lock``, ``RLock``,
``Condition``, ``Event`` and ``get_ident`` while a store and its disk are made and used; what
is made then knows the scheduler.  Nothing in the store names the switch points, so they stay
where they are when code moves.

Outside of a task the replacements behave as the real ones do for a single thread.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

import greenlet

SWITCH: Final = 0.5
"""Chance to go on with another task at a point where a lock is taken."""
SWITCH_AFTER: Final = 0.15
"""The same where a lock was given back: few mistakes show only there."""
MAX_SWITCHES: Final = 20_000
"""Of one run; more means that the tasks wait for each other in a circle."""


_thread_ident: Final = threading.get_ident


class Hang(Exception):
    """No task can go on, or they never end."""


class Advance(Protocol):
    """The clock that waits with a time limit go by."""

    def monotonic(self) -> float: ...

    def advance(self, seconds: float) -> None: ...


@dataclass(eq=False, slots=True)
class Task:
    """One call on its way."""

    name: str
    run: Callable[[], object]
    let: greenlet.greenlet | None = None
    blocked: bool = False
    until: float | None = None
    """When a wait with a time limit ends by itself."""
    timed_out: bool = False
    error: BaseException | None = None
    trail: list[str] = field(default_factory=list)


class Scheduler:
    """Runs tasks by turns; ``rng`` decides whose turn it is."""

    def __init__(self, rng: random.Random, clock: Advance) -> None:
        self._rng = rng
        self._clock = clock
        self._hub = greenlet.getcurrent()
        self._thread = _thread_ident()
        self._tasks: list[Task] = []
        self._current: Task | None = None
        self._inside: int | None = None
        self.switches = 0

    @property
    def current(self) -> Task | None:
        """The task that runs now; ``None`` outside of all, also on a thread of Arrow's own
        that reads for a task: nothing else runs meanwhile."""
        return self._current if _thread_ident() == self._thread else None

    def run(
        self, *tasks: tuple[str, Callable[[], object]], inside: int | None = None
    ) -> list[Task]:
        """Run these to their ends, by turns; each with the error it ended with, if any.

        With ``inside`` the first is left once, at its so-manieth point, and goes on when the
        others have ended: so a call can be put inside every step of another.

        If one ends with a ``BaseException`` that is no ``Exception`` (the process was
        killed), the others end with it too, wherever they are.
        """
        self._hub = greenlet.getcurrent()
        self._tasks = [Task(name, run) for name, run in tasks]
        for task in self._tasks:
            task.let = greenlet.greenlet(lambda task=task: self._body(task), self._hub)
        self.switches = 0
        self._inside = inside
        left = list(self._tasks)
        try:
            while left:
                self._resume(self._choose(left))
                left = [task for task in left if not self._is_over(task)]
                fatal = next((t.error for t in self._tasks if _is_fatal(t.error)), None)
                if fatal is not None:
                    self._kill(left, fatal)
                    raise fatal
        except Hang:
            self._kill(left, greenlet.GreenletExit())
            raise
        finally:
            self._current = None
        return self._tasks

    def _body(self, task: Task) -> None:
        try:
            task.run()
        except BaseException as error:  # told by `run`, once all have ended
            task.error = error

    def _is_over(self, task: Task) -> bool:
        return task.let is None or task.let.dead

    def _choose(self, left: list[Task]) -> Task:
        self.switches += 1
        if self.switches > MAX_SWITCHES:
            raise Hang(self._picture("the tasks never end"))
        ready = [task for task in left if not task.blocked]
        if ready and self._inside is not None:
            first = self._tasks[0]
            begun = len(first.trail) > self._inside
            return next((t for t in ready if (t is first) is not begun), ready[0])
        if ready:
            return self._rng.choice(ready)
        timed = [task for task in left if task.until is not None]
        if not timed:
            raise Hang(self._picture("every task waits for another"))
        task = min(timed, key=lambda one: one.until or 0.0)
        assert task.until is not None
        self._clock.advance(max(0.0, task.until - self._clock.monotonic()))
        task.blocked, task.until, task.timed_out = False, None, True
        return task

    def _resume(self, task: Task) -> None:
        assert task.let is not None
        self._current = task
        task.let.switch()
        self._current = None

    def _kill(self, left: list[Task], error: BaseException) -> None:
        for task in left:
            assert task.let is not None
            if not task.let.dead:
                self._current = task
                task.let.throw(type(error))
        self._current = None

    def _picture(self, what: str) -> str:
        lines = [f"{task.name}: … {' '.join(task.trail[-6:])}" for task in self._tasks]
        return "; ".join([what, *lines])

    # What the replacements call

    def point(self, what: str, chance: float = SWITCH) -> None:
        """A place where another task may go on."""
        task = self.current
        if task is None:
            return
        task.trail.append(what)
        if self._inside is not None:
            if task is self._tasks[0] and len(task.trail) == self._inside + 1:
                self._hub.switch()
        elif len(self._tasks) > 1 and self._rng.random() < chance:
            self._hub.switch()

    def block(self, what: str, timeout: float | None = None) -> bool:
        """Leave the task until :meth:`wake`; ``False`` if its time was over first."""
        task = self.current
        if task is None:
            if timeout is None:
                raise Hang(f"{what}: nobody else runs")
            self._clock.advance(timeout)
            return False
        task.trail.append(f"waits:{what}")
        task.blocked, task.timed_out = True, False
        task.until = None if timeout is None else self._clock.monotonic() + timeout
        self._hub.switch()
        return not task.timed_out

    def wake(self, task: Task) -> None:
        """Let a blocked task go on in its turn."""
        task.blocked, task.until = False, None


def _is_fatal(error: BaseException | None) -> bool:
    return error is not None and not isinstance(error, Exception)


class SimLock:
    """``threading.Lock`` for tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._held = False
        self._waiting: deque[Task] = deque()

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        self._scheduler.point("lock")
        while self._held:
            if not blocking or timeout == 0:
                return False
            if not self._wait(None if timeout < 0 else timeout):
                return False
        self._held = True
        return True

    def _wait(self, timeout: float | None) -> bool:
        task = self._scheduler.current
        if task is not None:
            self._waiting.append(task)
        try:
            return self._scheduler.block("lock", timeout)
        finally:
            if task is not None and task in self._waiting:
                self._waiting.remove(task)

    def release(self) -> None:
        if not self._held:
            raise RuntimeError("release unlocked lock")
        self._held = False
        if self._waiting:
            self._scheduler.wake(self._waiting.popleft())
        self._scheduler.point("unlock", SWITCH_AFTER)

    def locked(self) -> bool:
        return self._held

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()


class SimRLock(SimLock):
    """``threading.RLock`` for tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        super().__init__(scheduler)
        self._owner: Task | None = None
        self._depth = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._depth and self._owner is self._scheduler.current:
            self._depth += 1
            return True
        if not super().acquire(blocking, timeout):
            return False
        self._owner, self._depth = self._scheduler.current, 1
        return True

    def release(self) -> None:
        if not self._depth:
            raise RuntimeError("cannot release un-acquired lock")
        self._depth -= 1
        if not self._depth:
            self._owner = None
            super().release()

    def save(self) -> int:
        """Give it back whole, however deep; how deep it was."""
        depth, self._depth, self._owner = self._depth, 0, None
        super().release()
        return depth

    def restore(self, depth: int) -> None:
        super().acquire()
        self._owner, self._depth = self._scheduler.current, depth


class SimCondition:
    """``threading.Condition`` for tasks."""

    def __init__(self, scheduler: Scheduler, lock: SimLock | None = None) -> None:
        self._scheduler = scheduler
        self._lock = SimRLock(scheduler) if lock is None else lock
        self._waiting: deque[Task] = deque()
        self.acquire = self._lock.acquire
        self.release = self._lock.release

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        task = self._scheduler.current
        if task is not None:
            self._waiting.append(task)
        depth = 1
        if isinstance(self._lock, SimRLock):
            depth = self._lock.save()
        else:
            self._lock.release()
        try:
            if task is not None and task not in self._waiting:
                return True  # notified before it could even sleep
            return self._scheduler.block("condition", timeout)
        finally:
            if task is not None and task in self._waiting:
                self._waiting.remove(task)
            if isinstance(self._lock, SimRLock):
                self._lock.restore(depth)
            else:
                self._lock.acquire()

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        found = predicate()
        while not found and self.wait(timeout):
            found = predicate()
        return found or predicate()

    def notify(self, n: int = 1) -> None:
        for _ in range(min(n, len(self._waiting))):
            self._scheduler.wake(self._waiting.popleft())

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class SimEvent:
    """``threading.Event`` for tasks."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._changed = SimCondition(scheduler, SimLock(scheduler))
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        with self._changed:
            self._set = True
            self._changed.notify_all()

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        with self._changed:
            return bool(self._changed.wait_for(self.is_set, timeout))


ROOT: Final = str(Path(__file__).parents[2])
"""Code below it gets the replacements; the standard library and others keep the real ones."""


@contextlib.contextmanager
def simulated(scheduler: Scheduler) -> Iterator[None]:
    """What our packages make inside has locks that know the scheduler."""
    idents: dict[int, int] = {}

    def get_ident() -> int:
        task = scheduler.current
        return 0 if task is None else idents.setdefault(id(task), len(idents) + 1)

    made: dict[str, Callable[..., object]] = {
        "Lock": lambda: SimLock(scheduler),
        "RLock": lambda: SimRLock(scheduler),
        "Condition": lambda lock=None: SimCondition(scheduler, lock),
        "Event": lambda: SimEvent(scheduler),
        "get_ident": get_ident,
    }
    real = {name: getattr(threading, name) for name in made}
    for name in made:
        setattr(threading, name, _for_ours(made[name], real[name]))
    try:
        yield
    finally:
        for name, value in real.items():
            setattr(threading, name, value)


def _for_ours(ours: Callable[..., object], theirs: Callable[..., object]) -> Callable[..., object]:
    def make(*arguments: Any) -> object:
        file = sys._getframe(1).f_code.co_filename
        is_ours = file.startswith(ROOT) and "site-packages" not in file
        return (ours if is_ours else theirs)(*arguments)

    return make
