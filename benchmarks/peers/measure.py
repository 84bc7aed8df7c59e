"""One run: producers and a consumer as processes, and what the server took for them."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.data import telemetry
from benchmarks.peers.peer import Peer, Running

JOIN_SECONDS = 600.0
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Figures:
    """What one run gave: end to end, from the first send to the last ack."""

    mb_per_s: float
    rows_per_s: float
    p50_ms: float
    p99_ms: float
    disk_mb: float
    """On disk when all was acked."""
    written_mb: float
    """Written to the disk by the server, per the kernel."""
    cpu_s_per_gb: float
    """The server's processor time."""

    def as_dict(self) -> dict[str, float]:
        return {name: float(f"{value:.4g}") for name, value in asdict(self).items()}


def run_once(peer: Peer, size: int, producers: int, nbytes: int, root: Path) -> Figures:
    """``nbytes`` through a fresh server, in batches of ``size``."""
    each = max(1, nbytes // size // producers)
    with (
        tempfile.TemporaryDirectory(dir=root, prefix="peer-") as directory,
        peer.serve(Path(directory)) as server,
    ):
        context = multiprocessing.get_context("spawn")
        ready = context.Barrier(producers + 2)
        answers = context.SimpleQueue()
        workers = [
            context.Process(target=_produce, args=(peer, server.port, size, each, ready))
            for _ in range(producers)
        ]
        total = each * producers
        workers.append(
            context.Process(target=_consume, args=(peer, server.port, total, ready, answers))
        )
        for worker in workers:
            worker.start()
        ready.wait(JOIN_SECONDS)
        cpu, written, began = _cpu(server), _written(server), time.monotonic()
        for worker in workers:
            worker.join(JOIN_SECONDS)
            if worker.exitcode:
                raise RuntimeError(f"a process of {peer.name} ended with {worker.exitcode}")
        rows, p50, p99, ended = answers.get()
        elapsed = ended - began
        payload = total * telemetry(size).nbytes
        return Figures(
            mb_per_s=payload / elapsed / 1e6,
            rows_per_s=rows / elapsed,
            p50_ms=p50 * 1e3,
            p99_ms=p99 * 1e3,
            disk_mb=_on_disk(server.data) / 1e6,
            written_mb=(_written(server) - written) / 1e6,
            cpu_s_per_gb=(_cpu(server) - cpu) / payload * 1e9,
        )


def _produce(peer: Peer, port: int, size: int, count: int, ready: Any) -> None:
    batch = telemetry(size)
    ready.wait(JOIN_SECONDS)
    peer.produce(port, batch, count)


def _consume(peer: Peer, port: int, count: int, ready: Any, answers: Any) -> None:
    ready.wait(JOIN_SECONDS)
    rows, seconds = peer.consume(port, count)
    ended = time.monotonic()
    ordered = sorted(seconds)
    # A few numbers: more than a pipe holds would wait for somebody who waits for this process.
    p50, p99 = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    answers.put((rows, p50, p99, ended))


def _cpu(server: Running) -> float:
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def _written(server: Running) -> int:
    for line in Path(f"/proc/{server.pid}/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    return 0


def _on_disk(directory: Path) -> int:
    """Blocks in use, not lengths: files may have holes."""
    total = 0
    for path in directory.rglob("*"):
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue  # deleted meanwhile
        total += found.st_blocks * 512
    return total
