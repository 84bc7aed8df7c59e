"""NATS JetStream, through nats-py.

``sync_interval: always`` syncs every message before it is acknowledged; without it the
server syncs every two minutes.  Publishing is asynchronous with a window, consuming a pull
consumer with explicit acks, both as the documentation of the client recommends for speed.
The server's queue of messages not yet stored is raised from 128 MB: with four windows of large
messages it would refuse some, which the client doesn't tell whoever waits for them.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa

from benchmarks.peers.peer import WAIT_SECONDS, WINDOW, Running, decode, encode, free_port, running

FETCH = 64
CONFIGURATION = """
listen: 127.0.0.1:{port}
max_payload: 8MB
jetstream {{
  store_dir: "{data}", max_file_store: 64GB, sync_interval: always
  max_buffered_size: 2GB, max_buffered_msgs: 100000
}}
"""


def _program() -> str | None:
    beside = Path(sys.executable).with_name("nats-server")
    return str(beside) if beside.exists() else shutil.which("nats-server")


class Nats:
    """One stream with file storage, one durable pull consumer."""

    name = "NATS JetStream"
    configuration = (
        "file storage, sync_interval: always, async publish, pull consumer, room for 2 GB unstored"
    )

    def available(self) -> bool:
        return _program() is not None and importlib.util.find_spec("nats") is not None

    @contextlib.contextmanager
    def serve(self, directory: Path) -> Iterator[Running]:
        program, port, data = _program(), free_port(), directory / "data"
        assert program is not None
        config = directory / "nats.conf"
        config.write_text(CONFIGURATION.format(port=port, data=data))
        with running([program, "--config", str(config)], port, data) as server:
            asyncio.run(_declare(port))
            yield server

    def produce(self, port: int, batch: pa.RecordBatch, count: int) -> None:
        asyncio.run(_produce(port, batch, count))

    def consume(self, port: int, count: int) -> tuple[int, list[float]]:
        return asyncio.run(_consume(port, count))


async def _connected(port: int) -> tuple[Any, Any]:
    import nats

    connection = await nats.connect(f"nats://127.0.0.1:{port}")
    return connection, connection.jetstream(timeout=WAIT_SECONDS, publish_async_max_pending=WINDOW)


async def _declare(port: int) -> None:
    connection, stream = await _connected(port)
    await stream.add_stream(name="peers", subjects=["peers"], storage="file")
    await connection.close()


async def _produce(port: int, batch: pa.RecordBatch, count: int) -> None:
    connection, stream = await _connected(port)
    waiting = []
    for _ in range(count):
        header = {"t": str(time.monotonic_ns())}
        waiting.append(
            await stream.publish_async(
                "peers", encode(batch), wait_stall=WAIT_SECONDS, headers=header
            )
        )
    await asyncio.gather(*waiting)
    await connection.close()


async def _consume(port: int, count: int) -> tuple[int, list[float]]:
    connection, stream = await _connected(port)
    seconds: list[float] = []
    rows = 0
    subscription = await stream.pull_subscribe("peers", durable="out")
    while len(seconds) < count:
        for message in await subscription.fetch(FETCH, timeout=WAIT_SECONDS):
            rows += decode(message.data).num_rows
            seconds.append((time.monotonic_ns() - int(message.headers["t"])) / 1e9)
            await message.ack()
    await connection.flush()
    await connection.close()
    return rows, seconds
