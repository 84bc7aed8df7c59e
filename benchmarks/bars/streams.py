"""Streams: what a put costs in a server with 500 streams, against one with a single one."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.bar import Bar, Pair, Scale
from benchmarks.flight.processes import producers, quiver_server
from benchmarks.flight.puts import Load, Side, settle
from flight_service.client import Client, connect

STREAMS = 500
BATCH = pa.record_batch({"n": pa.array(range(10), pa.int64())})


@contextlib.contextmanager
def prepare(directory: Path, scale: Scale) -> Iterator[Pair]:
    load = Load(100 << 10, nbytes=256 << 20)
    numbers = itertools.count()
    with (
        producers(1) as workers,
        quiver_server(directory / "many", calls__put_wait=30) as many,
        quiver_server(directory / "one", calls__put_wait=30) as one,
        connect(f"grpc://127.0.0.1:{many.port}") as among,
        connect(f"grpc://127.0.0.1:{one.port}") as alone,
    ):
        for number in range(5 if scale.is_quick else STREAMS - 1):
            among.create_stream(f"other{number}").put({"Logs": BATCH})
        settle(many)  # their segments are written five seconds later

        def turn(side: Side, client: Client) -> float:
            stream = f"bench{next(numbers)}"
            figure = side.turn(stream, scale)
            client.delete_stream(stream)
            return figure

        ours, theirs = Side(many, load, workers), Side(one, load, workers)
        yield Pair(lambda: turn(ours, among), lambda: turn(theirs, alone))


STREAMS_BAR = Bar(
    name="streams",
    what="durable put over Flight, 100 KiB, in a server with 500 streams",
    unit="MB/s",
    reference_name="a server with one stream",
    prepare=prepare,
    mark=0.9,
    goal=0.97,
    repetitions=5,
)
