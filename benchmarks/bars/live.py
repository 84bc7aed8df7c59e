"""Live: how long after its receipt a live subscriber has a bundle, against one fdatasync."""

from __future__ import annotations

import contextlib
import os
import statistics
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.bar import Bar, Pair, Scale
from benchmarks.data import telemetry
from benchmarks.flight.processes import quiver_server
from flight_service.client import connect

BUNDLE = 4 << 10
COUNT = 500


@contextlib.contextmanager
def prepare(directory: Path, scale: Scale) -> Iterator[Pair]:
    count = 20 if scale.is_quick else COUNT
    batch = telemetry(BUNDLE)
    whole: list[float] = []
    with (
        quiver_server(directory / "root") as server,
        connect(f"grpc://127.0.0.1:{server.port}") as client,
        connect(f"grpc://127.0.0.1:{server.port}") as other,
    ):
        stream = client.create_stream("live")
        subscription = other.stream("live").subscribe("live")
        came = threading.Semaphore(0)
        times: list[float] = []

        def listen() -> None:
            for bundle in subscription:
                times.append(time.perf_counter())
                bundle.ack()
                came.release()

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()

        def measure() -> float:
            later: list[float] = []
            times.clear()
            with stream.writer() as writer:
                for index in range(count):
                    began = time.perf_counter()
                    writer.put({"Logs": batch}).result(10)
                    durable = time.perf_counter()
                    if not came.acquire(timeout=10):
                        raise RuntimeError("a durable bundle did not come")
                    later.append(max(0.0, times[index] - durable))
                    whole.append(times[index] - began)
            return statistics.median(later) * 1e6

        def reference() -> float:
            return _fdatasync(directory / "raw", count)

        yield Pair(measure, reference, lambda: {"end_to_end_p50_us": _micros(whole)})
        subscription.close()


def _micros(seconds: list[float]) -> float:
    return round(statistics.median(seconds) * 1e6, 1)


def _fdatasync(path: Path, count: int) -> float:
    """Median microseconds of a small write and its sync."""
    data = bytes(BUNDLE)
    seconds = []
    fd = os.open(path, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        for index in range(count):
            began = time.perf_counter()
            os.pwrite(fd, data, index % 100 * BUNDLE)
            os.fdatasync(fd)
            seconds.append(time.perf_counter() - began)
    finally:
        os.close(fd)
    return statistics.median(seconds) * 1e6


LIVE = Bar(
    name="live",
    what="from the receipt to the live subscriber, over Flight, p50",
    unit="us",
    reference_name="pwrite + fdatasync of 4 KiB, p50",
    prepare=prepare,
    mark=2.0,
    goal=1.0,
    lower_is_better=True,
)
