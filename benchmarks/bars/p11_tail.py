"""P11: the slowest puts of a store that writes and deletes segments all the time.

Both stores get the same puts, one at a time and each awaited.  In one of them a segment is
full every 40 bundles, and a subscriber finishes everything, so that files come and go.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import quiver
from benchmarks.bar import Bar, Pair, Scale
from benchmarks.data import telemetry

BUNDLE = 10 << 10
COUNT = 3000
BUSY: dict[str, Any] = {"segment__target_size": 40 * BUNDLE}
IDLE: dict[str, Any] = {
    "segment__target_size": "1GiB",
    "segment__max_open_duration": 3600,
    "wal__max_size": "4GiB",
    "wal__max_rotated_files": 100,
}


def p99(store: quiver.Store, count: int) -> float:
    """Microseconds of the put that 99 of 100 are faster than."""
    batch = telemetry(BUNDLE)
    seconds = []
    for _ in range(count):
        began = time.perf_counter()
        store.put({"Logs": batch}, timeout=10).wait()
        seconds.append(time.perf_counter() - began)
    return sorted(seconds)[count * 99 // 100] * 1e6


@contextlib.contextmanager
def prepare(directory: Path, scale: Scale) -> Iterator[Pair]:
    count = 100 if scale.is_quick else COUNT
    with (
        quiver.open(directory / "busy", background=True, **BUSY) as busy,
        quiver.open(directory / "idle", background=True, **IDLE) as idle,
    ):
        subscription = busy.subscribe("all")
        ended = threading.Event()

        def finish() -> None:
            while not ended.is_set():
                bundle = subscription.next_bundle(0.1)
                if bundle is not None:
                    bundle.ack()

        consumer = threading.Thread(target=finish)
        consumer.start()
        try:
            yield Pair(lambda: p99(busy, count), lambda: p99(idle, count))
        finally:
            ended.set()
            consumer.join()


P11 = Bar(
    name="P11",
    what="p99 of a put while segments are written and deleted",
    unit="us",
    reference_name="the idle store",
    prepare=prepare,
    mark=2.5,
    goal=1.5,
    lower_is_better=True,
)
