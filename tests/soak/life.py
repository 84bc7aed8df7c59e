"""A store that is kept busy, closed and reopened, for as long as it is told to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, Final

import pyarrow as pa

import quiver
from quiver.errors import Backpressure, BundleGone, QuiverError, StoreClosed
from quiver.store.store import Store
from quiver.subscriber.subscription import Subscription
from tests.soak.samples import Sample, take

PRODUCERS: Final = 3
RESTART_SECONDS: Final = 10.0
SAMPLE_SECONDS: Final = 1.0
ROWS: Final = (1, 50, 400)
SUBSCRIBERS: Final = ("fast", "slow")

SETTINGS: Final[dict[str, Any]] = {
    "reserve": "1MiB",
    "max_mapped_segments": 16,
    "wal": {"rotation_target": "2MiB", "max_size": "24MiB", "max_rotated_files": 16},
    "segment": {"target_size": "2MiB", "max_open_duration": 0.5},
    "limits": {"max_bundle": "4MiB", "max_unsynced": "8MiB"},
    "retention": {"size_cap": "40MiB", "size_cap_policy": "drop_oldest"},
    "idempotency": {"window_count": 4096},
}


def batches() -> list[pa.RecordBatch]:
    """Small, medium and larger ones; one with a dictionary."""
    made = []
    for rows in ROWS:
        texts = pa.array([f"message {n % 7} from somewhere" for n in range(rows)])
        made.append(
            pa.record_batch(
                {"n": list(range(rows)), "text": texts, "kind": texts.dictionary_encode()}
            )
        )
    return made


class Life:
    """All lives of one store, in one process."""

    def __init__(self, directory: Path, seed: int) -> None:
        self._directory = directory
        self._random = Random(seed)
        self._batches = batches()
        self._lock = threading.Lock()
        self.bundles = 0
        self.acked = 0
        self.restarts = 0
        self.errors: list[BaseException] = []
        self.samples: list[Sample] = []

    def go_on(self, seconds: float) -> None:
        """Live for so long; errors of any thread end it."""
        began = time.monotonic()
        while (left := began + seconds - time.monotonic()) > 0 and not self.errors:
            self._one_life(min(left, RESTART_SECONDS), began)
            self.restarts += 1

    def _one_life(self, seconds: float, began: float) -> None:
        stop = threading.Event()
        store = quiver.open(self._directory, background=True, **SETTINGS)
        subscriptions = [store.register(name) for name in SUBSCRIBERS]
        store.activate()
        threads = [
            self._thread(self._produce, store, stop, index) for index in range(PRODUCERS)
        ] + [self._thread(self._consume, one, stop) for one in subscriptions]
        until = time.monotonic() + seconds
        while time.monotonic() < until and not self.errors:
            stop.wait(SAMPLE_SECONDS)
            elapsed = time.monotonic() - began
            self.samples.append(take(self._directory, elapsed, self.bundles, self.restarts))
        stop.set()
        for thread in threads:
            thread.join()
        store.close()

    def _thread(self, work: Callable[..., None], *arguments: object) -> threading.Thread:
        def guarded() -> None:
            try:
                work(*arguments)
            except StoreClosed:
                return
            except BaseException as error:
                self.errors.append(error)

        thread = threading.Thread(target=guarded)
        thread.start()
        return thread

    def _produce(self, store: Store, stop: threading.Event, index: int) -> None:
        random = Random(self._random.random() + index)
        while not stop.is_set():
            batch = random.choice(self._batches)
            key = f"{index}-{self.bundles}" if random.random() < 0.3 else None
            try:
                store.put({f"Slot{index}": batch}, key=key, timeout=2.0).wait()
            except Backpressure:
                continue
            except QuiverError as error:
                if error.code == "key_conflict":
                    continue
                raise
            with self._lock:
                self.bundles += 1
            stop.wait(random.random() * 0.004)

    def _consume(self, subscription: Subscription, stop: threading.Event) -> None:
        pause = 0.0 if subscription.name == "fast" else 0.002
        while not stop.is_set():
            bundle = subscription.next_bundle(0.1)
            if bundle is None:
                continue
            try:
                rows = sum(batch.num_rows for _, batch in bundle.items())
            except BundleGone:
                continue  # dropped for room while it was in hand
            assert rows in ROWS
            bundle.ack()
            self.acked += 1
            if pause:
                stop.wait(pause)
