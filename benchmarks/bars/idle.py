"""Idle: the processor time of a server that nobody asks anything, with streams open."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.bar import Bar, Pair, Scale, limit
from benchmarks.flight.processes import quiver_server
from flight_service.client import connect

STREAMS = 50
SECONDS = 10.0
ALLOWED_PERCENT = 1.0
BATCH = pa.record_batch({"n": pa.array(range(10), pa.int64())})


@contextlib.contextmanager
def prepare(directory: Path, scale: Scale) -> Iterator[Pair]:
    streams, seconds = (2, 0.5) if scale.is_quick else (STREAMS, SECONDS)
    with (
        quiver_server(directory / "root") as server,
        connect(f"grpc://127.0.0.1:{server.port}") as client,
    ):
        for number in range(streams):
            stream = client.create_stream(f"idle{number}")
            stream.put({"Logs": BATCH})
            stream.flush()

        def measure() -> float:
            began, before = time.perf_counter(), server.cpu_seconds
            time.sleep(seconds)
            used = server.cpu_seconds - before
            return max(used, 1e-3) / (time.perf_counter() - began) * 100

        yield limit(measure, ALLOWED_PERCENT)


IDLE = Bar(
    name="idle",
    what="processor of an idle server with 50 open streams",
    unit="%",
    reference_name="what is allowed",
    prepare=prepare,
    mark=1.0,
    goal=0.5,
    lower_is_better=True,
    repetitions=3,
)
