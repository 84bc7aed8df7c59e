"""The read bars: a stream's bundles over Flight, against a table in the memory of R."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pyarrow.flight as flight

from benchmarks.bar import Pair, Prepare, Scale
from benchmarks.data import telemetry
from benchmarks.flight.processes import discarding_server, quiver_server
from flight_service.client import connect
from flight_service.protocol.get import ReadCommand

MAX_BYTES: Final = 256 << 20
SLOT: Final = "Logs"
STREAM: Final = "bench"


def against_memory(size: int, mode: str) -> Prepare:
    """Both sides stream the same batches; the reader is this process."""

    @contextlib.contextmanager
    def prepare(directory: Path, scale: Scale) -> Iterator[Pair]:
        count = min(MAX_BYTES, scale.nbytes) // size
        batch = telemetry(size)
        with (
            discarding_server() as discarding,
            quiver_server(directory / "root") as server,
            connect(f"grpc://127.0.0.1:{server.port}") as client,
        ):
            stream = client.create_stream(STREAM)
            with stream.writer() as writer:
                for _ in range(count):
                    writer.put({SLOT: batch})
            stream.flush()
            ours = flight.FlightClient(f"grpc://127.0.0.1:{server.port}")
            theirs = flight.FlightClient(f"grpc://127.0.0.1:{discarding.port}")
            command = ReadCommand(
                stream=STREAM,
                mode=mode,
                slot=SLOT if mode == "slot" else None,
                max_bundles=4096,
                max_bytes=1 << 40,
            )
            endpoints = ours.get_flight_info(command.descriptor()).endpoints
            tickets = [endpoint.ticket for endpoint in endpoints]
            table = flight.Ticket(json.dumps({"size": size, "count": count}).encode())
            total = float(count * batch.nbytes)
            _read(ours, tickets, count)  # warm
            yield Pair(
                lambda: total / _read(ours, tickets, count) / 1e6,
                lambda: total / _read(theirs, [table], count) / 1e6,
            )

    return prepare


def _read(client: flight.FlightClient, tickets: list[flight.Ticket], count: int) -> float:
    """Take every batch in; seconds."""
    began = time.perf_counter()
    found = 0
    for ticket in tickets:
        reader = client.do_get(ticket)
        with contextlib.suppress(StopIteration):
            while True:
                reader.read_chunk()
                found += 1
    elapsed = time.perf_counter() - began
    if found != count:
        raise RuntimeError(f"{found} batches came, {count} were put")
    return elapsed
