"""Redis Streams, through redis-py.

``appendfsync always`` syncs the append-only file before it answers, once for all commands
of a round of its event loop: pipelines get group commit.  The default syncs each second.
The consumer reads through a group, and acks and deletes what it has, batch by batch.
"""

from __future__ import annotations

import contextlib
import importlib.util
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.peers.peer import WAIT_SECONDS, WINDOW, Running, decode, encode, free_port, running

FETCH = 64
PIPELINE = WINDOW // 4
"""Commands sent together; a synchronous client waits for their answers before the next."""


def _client(port: int) -> Any:
    import redis

    return redis.Redis(port=port, socket_timeout=WAIT_SECONDS)


class Redis:
    """One stream, one consumer group."""

    name = "Redis Streams"
    configuration = "appendonly yes, appendfsync always, pipelined XADD, XREADGROUP, XACK + XDEL"

    def available(self) -> bool:
        return (
            shutil.which("redis-server") is not None
            and importlib.util.find_spec("redis") is not None
        )

    @contextlib.contextmanager
    def serve(self, directory: Path) -> Iterator[Running]:
        port, data = free_port(), directory / "data"
        data.mkdir()
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--save", ""]
        command += ["--dir", str(data), "--appendonly", "yes", "--appendfsync", "always"]
        with running(command, port, data) as server:
            _client(port).xgroup_create("peers", "out", id="0", mkstream=True)
            yield server

    def produce(self, port: int, batch: pa.RecordBatch, count: int) -> None:
        client = _client(port)
        for first in range(0, count, PIPELINE):
            pipeline = client.pipeline(transaction=False)
            for _ in range(min(PIPELINE, count - first)):
                pipeline.xadd("peers", {"t": str(time.monotonic_ns()), "d": encode(batch)})
            pipeline.execute()

    def consume(self, port: int, count: int) -> tuple[int, list[float]]:
        client = _client(port)
        seconds: list[float] = []
        rows = 0
        while len(seconds) < count:
            found = client.xreadgroup("out", "one", {"peers": ">"}, count=FETCH, block=1000)
            for _, messages in found or ():
                for _, fields in messages:
                    rows += decode(fields[b"d"]).num_rows
                    seconds.append((time.monotonic_ns() - int(fields[b"t"])) / 1e9)
                ids = [number for number, _ in messages]
                pipeline = client.pipeline(transaction=False)
                pipeline.xack("peers", "out", *ids)
                pipeline.xdel("peers", *ids)
                pipeline.execute()
        return rows, seconds
