"""What a peer offers to be measured."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

WAIT_SECONDS = 30.0
WINDOW = 256
"""Messages in flight per producer."""
SLOT = "Logs"


@dataclass(frozen=True, slots=True)
class Running:
    """A server that takes connections."""

    pid: int
    port: int
    data: Path


class Peer(Protocol):
    """A way to keep messages; producers and consumers run in processes of their own."""

    name: str
    configuration: str
    """What was set, in a line, for the table."""

    def available(self) -> bool:
        """Whether its server and client are installed."""
        ...

    def serve(self, directory: Path) -> AbstractContextManager[Running]:
        """Run a server, with a stream that is ready for use."""
        ...

    def produce(self, port: int, batch: pa.RecordBatch, count: int) -> None:
        """Send the batch so often, each time with the time; return when all is durable."""
        ...

    def consume(self, port: int, count: int) -> tuple[int, list[float]]:
        """Take so many out and ack them; rows, and the seconds each was on its way."""
        ...


def encode(batch: pa.RecordBatch) -> bytes:
    """An Arrow IPC stream: what those carry who carry bytes."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return bytes(sink.getvalue())


def decode(data: bytes) -> pa.RecordBatch:
    """Back to rows."""
    with pa.ipc.open_stream(data) as reader:
        return reader.read_next_batch()


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def running(command: list[str], port: int, data: Path) -> Iterator[Running]:
    """A server process, from its first connection to its end."""
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + WAIT_SECONDS
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"{command[0]} does not listen") from None
                time.sleep(0.05)
        yield Running(process.pid, port, data)
    finally:
        process.terminate()
        process.wait(WAIT_SECONDS)
