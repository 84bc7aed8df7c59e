"""Puts that somebody promised to wait for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pyarrow as pa

import quiver

BATCH = pa.record_batch({"n": pa.array([1, 2, 3], pa.int64())})


def test_the_one_who_waits_does_the_work(tmp_path: Path) -> None:
    """Scenario: an awaited put, with a background, and the wait right behind it.

    Guarantee: it is durable when the wait returns.
    """
    with quiver.open(tmp_path / "store", background=True) as store:
        assert store.put({"Logs": BATCH}, awaited=True).wait(10).durable


def test_a_promise_to_wait_that_is_not_kept(tmp_path: Path) -> None:
    """Scenario: an awaited put that nobody waits for: its client has stopped reading.

    Guarantee: the background finds it all the same, and a subscriber gets it.
    """
    with quiver.open(tmp_path / "store", background=True) as store:
        receipt = store.put({"Logs": BATCH}, awaited=True)
        deadline = time.monotonic() + 10
        tick = threading.Event()
        while not receipt.done and time.monotonic() < deadline:
            tick.wait(0.01)
        assert receipt.durable
        assert store.subscribe("late").next_bundle(10) is not None
