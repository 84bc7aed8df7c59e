"""Threads that report: whatever goes wrong in one of them fails the test."""

from __future__ import annotations

import faulthandler
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from random import Random
from typing import Any, Final

import pyarrow as pa

import quiver
from quiver.errors import Backpressure, StoreClosed
from quiver.ids import BundleRef
from quiver.ingest.receipt import Receipt
from quiver.store.store import Store
from quiver.subscriber.state import Outcome
from quiver.subscriber.subscription import Subscription

JOIN_SECONDS: Final = 40.0
PUT_SECONDS: Final = 20.0
SLOT: Final = "Logs"
WINDOW: Final = 16

TINY: Final[dict[str, Any]] = {
    "reserve": 4096,
    "max_mapped_segments": 3,
    "wal": {"rotation_target": "16KiB", "max_size": "160KiB", "max_rotated_files": 4},
    "segment": {"target_size": "12KiB", "max_open_duration": 0.03},
    "limits": {"max_bundle": "8KiB", "max_unsynced": "32KiB"},
    "subscribers": {"progress_interval": 0.01},
}
"""A store in which everything happens all the time."""


def tiny(**changes: Any) -> dict[str, Any]:
    """:data:`TINY` with some settings of its sections changed: ``wal={"flush": "every"}``."""
    merged = {name: dict(v) if isinstance(v, dict) else v for name, v in TINY.items()}
    for name, value in changes.items():
        if isinstance(value, dict):
            merged.setdefault(name, {}).update(value)
        else:
            merged[name] = value
    return merged


class Crew:
    """Starts threads and brings them home."""

    def __init__(self) -> None:
        self._threads: list[threading.Thread] = []
        self.errors: list[BaseException] = []
        self.stop = threading.Event()

    def start(self, work: Callable[..., None], *args: Any) -> threading.Thread:
        thread = threading.Thread(target=self._guarded, args=(work, args), daemon=True)
        self._threads.append(thread)
        thread.start()
        return thread

    def _guarded(self, work: Callable[..., None], args: tuple[Any, ...]) -> None:
        try:
            work(*args)
        except BaseException as error:
            self.errors.append(error)
            self.stop.set()

    def join(self, *threads: threading.Thread) -> None:
        """Wait for these threads, or all; a hang shows where everybody is."""
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in threads or self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))
            if thread.is_alive():
                faulthandler.dump_traceback(file=2)
                raise AssertionError(f"{thread.name} hangs")
        if self.errors:
            raise self.errors[0]


def batch_of(number: int) -> pa.RecordBatch:
    """A batch that says who it is, in every row: a torn or mixed-up read can't look right."""
    rows = 20 + number % 40
    return pa.record_batch(
        {"id": pa.array([number] * rows), "text": pa.array([f"bundle {number}"] * rows)}
    )


def number_of(batch: pa.RecordBatch) -> int:
    """Which one it is, after looking at all of it."""
    number: int = batch.column(0)[0].as_py()
    assert batch.equals(batch_of(number))
    return number


class Tally:
    """What was put and what became of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.durable: dict[int, BundleRef] = {}
        self.delivered: dict[str, Counter[int]] = defaultdict(Counter)
        self.outcomes: dict[str, Counter[int]] = defaultdict(Counter)

    def put(self, number: int, receipt: Receipt) -> None:
        with self._lock:
            known = self.durable.setdefault(number, receipt.ref)
        assert known == receipt.ref, "a repeat has another ref"

    def took(self, name: str, number: int) -> None:
        with self._lock:
            self.delivered[name][number] += 1

    def finished(self, name: str, number: int) -> None:
        with self._lock:
            self.outcomes[name][number] += 1

    def is_drained(self, *names: str) -> bool:
        with self._lock:
            return all(len(self.outcomes[name]) >= len(self.durable) for name in names)

    def check(self, *names: str) -> None:
        """Everything durable came to everybody, and ended once."""
        assert self.durable
        for name in names:
            assert set(self.outcomes[name]) == set(self.durable), name
            assert set(self.delivered[name]) == set(self.durable), name
            assert set(self.outcomes[name].values()) == {1}, name


def produce(
    crew: Crew, store: Store, tally: Tally, numbers: range, seed: int, *, until_closed: bool = False
) -> None:
    """Put numbers in, some of them twice by key, with a window of receipts under way."""
    random = Random(seed)
    window: list[tuple[int, Receipt]] = []

    def settle(keep: int) -> None:
        while len(window) > keep:
            number, receipt = window.pop(0)
            try:
                receipt.wait(PUT_SECONDS)
            except StoreClosed:
                assert until_closed
            else:
                assert receipt.done
                tally.put(number, receipt)

    for number in numbers:
        if crew.stop.is_set():
            break
        repeats = 2 if random.random() < 0.2 else 1
        key = f"key-{number}" if repeats == 2 or random.random() < 0.3 else None
        try:
            for _ in range(repeats):
                receipt = store.put({SLOT: batch_of(number)}, key=key, timeout=PUT_SECONDS)
                window.append((number, receipt))
        except StoreClosed:
            assert until_closed
            break
        except Backpressure:
            assert until_closed or crew.stop.is_set(), "no room for a long time"
            break
        settle(random.randrange(WINDOW))
    settle(0)


def consume(crew: Crew, subscription: Subscription, tally: Tally, seed: int) -> None:
    """Take bundles and do all that can be done with them, until told to stop."""
    random, name = Random(seed), subscription.name
    while not crew.stop.is_set():
        try:
            bundle = subscription.next_bundle(0.05)
        except StoreClosed:
            return
        if bundle is None:
            continue
        number = number_of(bundle[SLOT])
        tally.took(name, number)
        fate = random.random()
        if fate < 0.1:
            del bundle  # a handle that is lost gives its bundle back
        elif fate < 0.2:
            bundle.defer(random.choice([0.0, 0.001, 0.02]))
        else:
            try:
                how = bundle.reject("no") if fate < 0.25 else bundle.ack()
            except StoreClosed:
                return
            assert how is (Outcome.DROPPED if fate < 0.25 else Outcome.ACKED)
            tally.finished(name, number)


def wait_until(crew: Crew, done: Callable[[], object], what: str) -> None:
    """Wait for a state of affairs, as long as nobody failed."""
    deadline = time.monotonic() + JOIN_SECONDS
    while not done():
        if crew.errors:
            raise crew.errors[0]
        if time.monotonic() > deadline:
            faulthandler.dump_traceback(file=2)
            raise AssertionError(f"not in time: {what}")
        crew.stop.wait(0.005)


def left_in(path: str, name: str, **settings: Any) -> Counter[int]:
    """What a fresh subscriber of a store that was closed gets to see."""
    with quiver.open(path, **settings) as store:
        found: Counter[int] = Counter()
        for bundle in store.subscribe(name, follow=False):
            found[number_of(bundle[SLOT])] += 1
            bundle.ack()
        return found
