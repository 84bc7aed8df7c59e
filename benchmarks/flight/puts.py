"""The put bars: the same producers against Quiver and against R, turn by turn."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.bar import Pair, Prepare, Scale
from benchmarks.data import telemetry
from benchmarks.flight.processes import (
    Producer,
    ServerProcess,
    discarding_server,
    producers,
    quiver_server,
)
from flight_service.client import Client, connect

WARM_BYTES: Final = 160 << 20
"""Before the clock starts: the log has been around once and writes over its own files."""
WINDOW_BYTES: Final = 16 << 20
MAX_WINDOW: Final = 256
QUIET_SECONDS: Final = 0.2


@dataclass(frozen=True, slots=True)
class Load:
    """What is put: bundles of a size, by so many producers at once, in all ``nbytes``."""

    size: int
    producers: int = 1
    mode: str = "slot"
    nbytes: int = 512 << 20

    @property
    def window(self) -> int:
        return max(4, min(MAX_WINDOW, WINDOW_BYTES // self.size))

    def count(self, scale: Scale) -> int:
        """Bundles per producer."""
        return max(1, min(self.nbytes, scale.nbytes) // self.size // self.producers)

    def warm(self, scale: Scale) -> int:
        warm = 0 if scale.is_quick else min(WARM_BYTES, self.nbytes // 2)
        return max(1, warm // self.size // self.producers)


@dataclass(slots=True)
class Side:
    """One of the two servers, and what its turns cost."""

    server: ServerProcess
    load: Load
    workers: Sequence[Producer]
    cpu: float = 0.0
    nbytes: float = 0.0

    def turn(self, stream: str, scale: Scale) -> float:
        """Put once; MB/s, from the first message to the last receipt of the last producer."""
        load, server = self.load, self.server
        count, warm = load.count(scale), load.warm(scale)
        job = {
            "port": server.port,
            "stream": stream,
            "size": load.size,
            "count": count,
            "warm": warm,
            "window": load.window,
            "mode": load.mode,
        }
        for worker in self.workers:
            worker.begin(job)
        for worker in self.workers:
            worker.await_ready()
        before, began = server.cpu_seconds, time.perf_counter()
        for worker in self.workers:
            worker.go()
        for worker in self.workers:
            worker.result()
        elapsed = time.perf_counter() - began
        settle(server)
        nbytes = float(count * len(self.workers) * telemetry(load.size).serialize().size)
        self.cpu += server.cpu_seconds - before
        self.nbytes += nbytes
        return nbytes / elapsed / 1e6


def settle(server: ServerProcess) -> None:
    """Wait until a server has nothing left to do: it must not disturb the other's turn."""
    busy = server.cpu_seconds
    while True:
        time.sleep(QUIET_SECONDS)  # nothing tells when another process is idle
        if (now := server.cpu_seconds) - busy < QUIET_SECONDS / 10:
            return
        busy = now


@contextlib.contextmanager
def put_alone(root: Path, load: Load, scale: Scale) -> Iterator[Callable[[], float]]:
    """What puts a load once, into a stream of its own, each time it is called; MB/s."""
    numbers = itertools.count()
    with (
        producers(load.producers) as workers,
        quiver_server(root, calls__put_wait=30) as server,
        connect(f"grpc://127.0.0.1:{server.port}") as client,
    ):
        side = Side(server, load, workers)
        yield lambda: _put_once(side, client, f"bench{next(numbers)}", scale)


def _put_once(side: Side, client: Client, stream: str, scale: Scale) -> float:
    figure = side.turn(stream, scale)
    client.delete_stream(stream)
    settle(side.server)
    return figure


def against_discard(load: Load, **settings: object) -> Prepare:
    """A bar's two sides for a load."""

    @contextlib.contextmanager
    def prepare(directory: Path, scale: Scale) -> Iterator[Pair]:
        numbers = itertools.count()
        with (
            producers(load.producers) as workers,
            discarding_server() as discarding,
            quiver_server(directory / "root", calls__put_wait=30, **settings) as server,
            connect(f"grpc://127.0.0.1:{server.port}") as client,
        ):
            ours, theirs = Side(server, load, workers), Side(discarding, load, workers)

            def measure() -> float:
                return _put_once(ours, client, f"bench{next(numbers)}", scale)

            def reference() -> float:
                return theirs.turn("none", scale)

            yield Pair(measure, reference, lambda: _notes(ours, theirs))

    return prepare


def _notes(ours: Side, theirs: Side) -> dict[str, float]:
    """Processor seconds per GB of both servers: steadier than any clock."""
    return {
        "cpu_s_per_gb": round(ours.cpu / ours.nbytes * 1e9, 3),
        "reference_cpu_s_per_gb": round(theirs.cpu / theirs.nbytes * 1e9, 3),
        "cpu_us_per_bundle": round(ours.cpu / ours.nbytes * ours.load.size * 1e6, 1),
        "reference_cpu_us_per_bundle": round(theirs.cpu / theirs.nbytes * ours.load.size * 1e6, 1),
        "peak_rss_mib": ours.server.peak_rss >> 20,
    }
