"""P7: put, poll and ack in a store with 1,000 segments and 1,000,000 bundles.

A subscriber that has finished nothing holds all of them; another is up to date, and its
turn is measured.  Both stores are open all the time, so that nothing but their size differs.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

import quiver
from benchmarks.bar import Bar, Pair, Scale

SEGMENTS = 1000
BUNDLES = 1000
TURNS = 3000
GROUP = 50
BATCH = pa.record_batch({"n": pa.array(range(10), pa.int64())})
SETTINGS: dict[str, Any] = {
    "segment__max_bundles": BUNDLES,
    "segment__max_open_duration": 3600,
}


def fill(path: Path, segments: int, bundles: int) -> None:
    """A backlog that somebody still needs."""
    settings = {**SETTINGS, "segment__max_bundles": bundles}
    with quiver.open(path, **settings) as store:
        store.register("behind")
        store.activate()
        for _ in range(segments * bundles):
            store.put({"Logs": BATCH}, timeout=10)
        store.flush()


def turns(store: quiver.Store, subscription: Any, count: int) -> float:
    """Put, poll, ack, a group at a time; bundles per second."""
    began = time.perf_counter()
    for _ in range(count // GROUP):
        for _ in range(GROUP):
            store.put({"Logs": BATCH}, timeout=10)
        store.sync()
        for _ in range(GROUP):
            bundle = subscription.next_bundle(10)
            if bundle is None:
                raise RuntimeError("a bundle that was put did not come")
            bundle.ack()
    return count / (time.perf_counter() - began)


@contextlib.contextmanager
def prepare(directory: Path, scale: Scale) -> Iterator[Pair]:
    segments, bundles = (5, 20) if scale.is_quick else (SEGMENTS, BUNDLES)
    count = GROUP if scale.is_quick else TURNS
    fill(directory / "full", segments, bundles)
    with (
        quiver.open(directory / "full", **SETTINGS) as full,
        quiver.open(directory / "empty", **SETTINGS) as empty,
    ):
        full.register("behind")
        empty.register("behind")
        here = full.subscribe("current", "latest")
        there = empty.subscribe("current", "latest")
        yield Pair(lambda: turns(full, here, count), lambda: turns(empty, there, count))


P7 = Bar(
    name="P7",
    what="put, poll and ack at 1,000 segments and 1,000,000 bundles",
    unit="bundles/s",
    reference_name="the same on an empty store",
    prepare=prepare,
    mark=0.9,
    goal=0.97,
)
