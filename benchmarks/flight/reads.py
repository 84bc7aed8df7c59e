"""The read bars: a stream's bundles over Flight, against a table in the memory of R."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow.flight as flight

from benchmarks.bar import Pair, Prepare, Scale
from benchmarks.data import telemetry
from benchmarks.flight.processes import ServerProcess, discarding_server, quiver_server
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
            _read(theirs, [table], count)
            sides = Side(ours, server, tickets, count), Side(theirs, discarding, [table], count)
            yield Pair(
                lambda: total / sides[0].read() / 1e6,
                lambda: total / sides[1].read() / 1e6,
                lambda: {**sides[0].notes(""), **sides[1].notes("reference_")},
            )

    return prepare


@dataclass(slots=True)
class Side:
    """A server that is read from, and the processor time that took."""

    client: flight.FlightClient
    server: ServerProcess
    tickets: list[flight.Ticket]
    count: int
    server_cpu: float = 0.0
    reader_cpu: float = 0.0
    bundles: int = 0

    def read(self) -> float:
        """Take every batch in; seconds."""
        server, reader = self.server.cpu_seconds, time.process_time()
        elapsed = _read(self.client, self.tickets, self.count)
        self.server_cpu += self.server.cpu_seconds - server
        self.reader_cpu += time.process_time() - reader
        self.bundles += self.count
        return elapsed

    def notes(self, whose: str) -> dict[str, float]:
        """Processor time per bundle, of either end."""
        return {
            f"{whose}cpu_us_per_bundle": round(self.server_cpu / self.bundles * 1e6, 1),
            f"{whose}reader_cpu_us_per_bundle": round(self.reader_cpu / self.bundles * 1e6, 1),
        }


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
