"""The process that dies.

It says what it is about to ask of the store before it asks, and what it was promised after
it was: each as one line, in one write to a pipe, so that a kill leaves whole lines only.
"""

from __future__ import annotations

import os
import threading
from itertools import count
from random import Random
from typing import Any, Final

import quiver
from quiver.errors import Backpressure, StoreClosed
from quiver.ingest.receipt import Receipt
from quiver.store.store import Store
from quiver.subscriber.subscription import Subscription
from tests.faults.world import SLOT, batch, number_of

THREADS: Final = 4
PER_THREAD: Final = 1_000_000
PER_ROUND: Final = THREADS * PER_THREAD
GROUP: Final = 4
SUBSCRIBERS: Final = ("fast", "slow")

SETTINGS: Final[dict[str, Any]] = {
    "reserve": "64KiB",
    "wal": {"rotation_target": "32KiB", "max_size": "512KiB", "max_rotated_files": 16},
    "segment": {"target_size": "24KiB", "max_open_duration": 0.05},
    "limits": {"max_bundle": "16KiB", "max_unsynced": "64KiB"},
    "subscribers": {"progress_interval": 0.02},
}
"""Small enough for segments, rotation and deletion to happen many times in a life."""


class Line:
    """The line to the outside."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def say(self, kind: str, *values: object) -> None:
        os.write(self._descriptor, f"{kind} {' '.join(map(str, values))}\n".encode())


def live(path: str, number: int, connection: Any) -> None:
    """Be the process of one round, until killed."""
    line = Line(connection.fileno())
    line.say("opening")
    store = quiver.open(path, background=True, **SETTINGS)
    subscriptions = [store.register(name) for name in SUBSCRIBERS]
    store.activate()
    line.say("ready")
    threads = [
        threading.Thread(target=_put, args=(store, line, number * PER_ROUND + index * PER_THREAD))
        for index in range(THREADS)
    ]
    threads += [
        threading.Thread(target=_take, args=(one, line, Random(number))) for one in subscriptions
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _put(store: Store, line: Line, first: int) -> None:
    numbers = count(first)
    random = Random(first)
    while True:
        waiting: list[tuple[int, Receipt]] = []
        for _ in range(random.randint(1, GROUP)):
            number = next(numbers)
            line.say("offered", number)
            try:
                waiting.append((number, store.put({SLOT: batch(number)}, timeout=5.0)))
            except Backpressure:
                continue
            except StoreClosed:
                return
        for number, receipt in waiting:
            receipt.wait(10.0)
            line.say("durable", number, *receipt.ref)


def _take(subscription: Subscription, line: Line, random: Random) -> None:
    most = 64 if subscription.name == "fast" else 16
    while True:
        taken = []
        for _ in range(random.randint(1, most)):
            bundle = subscription.next_bundle(0.05)
            if bundle is None:
                break
            number = number_of(dict(bundle.items()))
            line.say("asked", subscription.name, number)
            bundle.ack()
            taken.append(number)
        if taken and random.random() < 0.7:
            subscription.flush()
            for number in taken:
                line.say("kept", subscription.name, number)
