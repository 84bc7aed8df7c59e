"""Quiver, as it is shipped."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from benchmarks.flight.processes import quiver_server
from benchmarks.peers.peer import SLOT, WAIT_SECONDS, WINDOW, Running
from flight_service.client import connect

STREAM = "peers"


class Quiver:
    """Durable puts through the client's writer, a live subscription that acks."""

    name = "Quiver"
    configuration = "defaults: segments and validation on, receipt after fdatasync"

    def available(self) -> bool:
        return True

    @contextlib.contextmanager
    def serve(self, directory: Path) -> Iterator[Running]:
        root = directory / "root"
        with quiver_server(root) as server:
            with connect(f"grpc://127.0.0.1:{server.port}") as client:
                client.create_stream(STREAM).register("out")
            yield Running(server.process.pid, server.port, root)

    def produce(self, port: int, batch: pa.RecordBatch, count: int) -> None:
        with (
            connect(f"grpc://127.0.0.1:{port}") as client,
            client.stream(STREAM).writer(window=WINDOW) as writer,
        ):
            for _ in range(count):
                writer.put({SLOT: batch}, attributes={"t": str(time.monotonic_ns())})

    def consume(self, port: int, count: int) -> tuple[int, list[float]]:
        rows, seconds = 0, []
        with (
            connect(f"grpc://127.0.0.1:{port}") as client,
            client.stream(STREAM).subscribe("out", prefetch=WINDOW) as subscription,
        ):
            for _ in range(count):
                bundle = subscription.next_bundle(WAIT_SECONDS)
                if bundle is None:
                    raise RuntimeError("a bundle did not come")
                rows += bundle[SLOT].num_rows
                seconds.append((time.monotonic_ns() - int(bundle.attributes["t"])) / 1e9)
                bundle.ack()
            subscription.flush(WAIT_SECONDS, durable=True)
        return rows, seconds
