"""Acks: how many bundles a second one subscriber finishes, durably, over Flight."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.bar import Bar, Pair, Scale, limit
from benchmarks.flight.processes import quiver_server
from flight_service.client import connect

COUNT = 20_000
WANTED = 10_000.0
BATCH = pa.record_batch({"n": pa.array(range(10), pa.int64())})


@contextlib.contextmanager
def prepare(directory: Path, scale: Scale) -> Iterator[Pair]:
    count = 200 if scale.is_quick else COUNT
    with (
        quiver_server(directory / "root", calls__put_wait=30) as server,
        connect(f"grpc://127.0.0.1:{server.port}") as client,
    ):
        stream = client.create_stream("acks")
        stream.register("one")

        def measure() -> float:
            with stream.writer(window=1024) as writer:
                for _ in range(count):
                    writer.put({"Logs": BATCH})
            began = time.perf_counter()
            with stream.subscribe("one", prefetch=1024) as subscription:
                for _ in range(count):
                    bundle = subscription.next_bundle(30)
                    if bundle is None:
                        raise RuntimeError("a bundle did not come")
                    bundle.ack()
                subscription.flush(30, durable=True)
                return count / (time.perf_counter() - began)

        yield limit(measure, WANTED)


ACKS = Bar(
    name="acks",
    what="bundles received and acked, durable at the end, one subscriber over Flight",
    unit="acks/s",
    reference_name="what is asked for",
    prepare=prepare,
    mark=1.0,
    goal=2.0,
    repetitions=5,
)
