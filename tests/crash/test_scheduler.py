"""The scheduler's own tests: what is chosen is replayed, and what hangs is told."""

from __future__ import annotations

import random
import threading
from typing import Any

import pyarrow as pa
import pytest

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.store.store import Store
from tests.crash.disk import CrashDisk, Killed
from tests.crash.scheduler import Hang, Scheduler, simulated


def make(seed: int = 1) -> Scheduler:
    return Scheduler(random.Random(seed), ManualClock())


def race(seed: int) -> int:
    """A counter that is read and written under two holds of its lock: a lost update."""
    scheduler = make(seed)
    with simulated(scheduler):
        lock, count = threading.Lock(), [0]

        def add() -> None:
            for _ in range(3):
                with lock:
                    seen = count[0]
                with lock:
                    count[0] = seen + 1

        scheduler.run(("a", add), ("b", add))
        return count[0]


def test_a_race_is_found_and_found_again() -> None:
    """Scenario: a lost update under 50 seeds. Guarantee: some seeds show it, some don't, and
    each shows the same thing twice."""
    found = [race(seed) for seed in range(50)]
    assert min(found) < 6 <= max(found)
    assert found == [race(seed) for seed in range(50)]


def enter(lock: threading.Lock, other: Any) -> None:
    inside = vars(enter).setdefault("inside", [])
    for _ in range(3):
        with lock:
            inside.append(1)
            with other, other:
                assert len(inside) == 1
            inside.pop()


def test_a_lock_is_one_tasks_at_a_time() -> None:
    """Scenario: two tasks under one lock, with points inside. Guarantee: never both."""
    for seed in range(30):
        scheduler = make(seed)
        with simulated(scheduler):
            lock, other = threading.Lock(), threading.RLock()
            ended = scheduler.run(*((name, lambda: enter(lock, other)) for name in "abc"))  # noqa: B023 - run at once
        assert [task.error for task in ended] == [None] * 3


def test_a_deadlock_is_told() -> None:
    """Scenario: two locks in opposite order. Guarantee: some seed hangs, and says who waits."""
    hung: list[str] = []
    for seed in range(30):
        scheduler = make(seed)
        with simulated(scheduler):
            one, two = threading.Lock(), threading.Lock()

            def take(first: threading.Lock, second: threading.Lock) -> None:
                with first, second:
                    pass

            try:
                scheduler.run(
                    ("ab", lambda one=one, two=two: take(one, two)),  # type: ignore[misc]
                    ("ba", lambda one=one, two=two: take(two, one)),  # type: ignore[misc]
                )
            except Hang as hang:
                hung.append(str(hang))
    assert 0 < len(hung) < 30
    assert all("ab:" in one and "ba:" in one for one in hung)


def test_conditions_and_events_wake_and_time_out() -> None:
    """Scenario: one waits for an event that is set, one for a condition nobody notifies.
    Guarantee: the first wakes; the second ends when its time on the clock is over."""
    scheduler = make()
    with simulated(scheduler):
        event, condition = threading.Event(), threading.Condition()
        told: list[object] = []

        def patient() -> None:
            with condition:
                told.append(condition.wait(5.0))

        scheduler.run(
            ("waits", lambda: told.append(event.wait())), ("sets", event.set), ("patient", patient)
        )
    assert sorted(map(str, told)) == ["False", "True"]


def test_a_killed_process_takes_all_tasks_with_it() -> None:
    """Scenario: one task is killed while another waits inside a lock. Guarantee: both end."""
    scheduler = make()
    ended: list[str] = []
    with simulated(scheduler):
        lock = threading.Lock()

        def dies() -> None:
            with lock:
                raise Killed

        def waits() -> None:
            try:
                for _ in range(1000):
                    with lock:
                        pass
            finally:
                ended.append("waits")

        with pytest.raises(Killed):
            scheduler.run(("waits", waits), ("dies", dies))
    assert ended == ["waits"]


def run_store(seed: int) -> tuple[list[str], int]:
    clock = ManualClock()
    scheduler = Scheduler(random.Random(seed), clock)
    with simulated(scheduler):
        disk = CrashDisk()
        config = Config.load(env={}, reserve=0, segment={"max_bundles": 2})
        store = Store(Disk(disk), config, where="sim", clock=clock)
        batch = pa.record_batch({"n": [1]})

        def put(slot: str) -> None:
            for _ in range(4):
                store.put({slot: batch}).wait()

        def upkeep() -> None:
            for _ in range(3):
                store.flush()
                store.maintain()

        for task in scheduler.run(
            ("logs", lambda: put("Logs")), ("spans", lambda: put("Spans")), ("upkeep", upkeep)
        ):
            if task.error is not None:
                raise task.error
        found = [sorted(store.read(ref)) for seq, n in store.segments() for ref in _refs(seq, n)]
        store.close()
    return [name for names in found for name in names], scheduler.switches


def _refs(seq: int, count: int) -> list[tuple[int, int]]:
    return [(seq, index) for index in range(count)]


def test_a_store_runs_under_it_and_the_same_seed_is_the_same_run() -> None:
    """Scenario: two producers beside upkeep, on many seeds. Guarantee: every put is there, the
    order depends on the seed alone, and seeds differ."""
    runs = [run_store(seed) for seed in range(12)]
    assert all(sorted(found) == ["Logs"] * 4 + ["Spans"] * 4 for found, _ in runs)
    assert len({tuple(found) for found, _ in runs}) > 1
    assert runs == [run_store(seed) for seed in range(12)]
