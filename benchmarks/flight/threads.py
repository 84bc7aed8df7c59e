"""Which of a server's threads takes how much of a put, while puts come in.

Flight's handler runs in a thread of gRPC's, which is also the mother of the one that sends
receipts, so both carry its name; the busier one reads.  Python's own threads are those of
upkeep, which write segments.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.flight.processes import ServerProcess, producers, quiver_server
from benchmarks.flight.puts import Load

NETWORK: Final = "gRPC's threads: sockets and frames"
READER: Final = "the handler: take the message, check, encode, stage"
SENDER: Final = "the sender: write and sync the log, receipts"
UPKEEP: Final = "upkeep: segments"
SECONDS: Final = 1.0
SETTLED: Final = 0.3
"""Seconds after which a run goes on as it will."""

_TICKS: Final = os.sysconf("SC_CLK_TCK")


def in_the_server(size: int, directory: Path) -> dict[str, float]:
    """Microseconds of processor per bundle of this size, by role."""
    load = Load(size, nbytes=(3 << 30) if size > 64 << 10 else (512 << 20))
    count = load.nbytes // size
    job = {"stream": "budget", "size": size, "window": load.window, "mode": load.mode}
    with (
        tempfile.TemporaryDirectory(dir=directory) as root,
        producers(1) as (producer,),
        quiver_server(Path(root) / "root", calls__put_wait=30) as server,
    ):
        producer.begin({**job, "port": server.port, "count": count, "warm": (160 << 20) // size})
        producer.await_ready()
        producer.go()
        time.sleep(SETTLED)
        before = _ticks(server)
        time.sleep(SECONDS)
        after = _ticks(server)
        rate = count / producer.result()["seconds"]
    spent = {thread: after[thread] - before.get(thread, 0) for thread in after}
    per_bundle = 1e6 / _TICKS / (rate * SECONDS)
    return {role: ticks * per_bundle for role, ticks in _roles(spent).items()}


def _roles(spent: dict[tuple[str, str], int]) -> dict[str, int]:
    grpc = sorted((ticks for (_, name), ticks in spent.items() if name.startswith("grpcpp")))
    return {
        NETWORK: sum(ticks for (_, name), ticks in spent.items() if name == "event_engine"),
        READER: grpc[-1] if grpc else 0,
        SENDER: sum(grpc[:-1]),
        UPKEEP: sum(ticks for (_, name), ticks in spent.items() if name.startswith("python")),
    }


def _ticks(server: ServerProcess) -> dict[tuple[str, str], int]:
    """Processor time of each thread, by id and name."""
    found: dict[tuple[str, str], int] = {}
    for task in Path(f"/proc/{server.process.pid}/task").iterdir():
        try:
            head, _, rest = (task / "stat").read_text().rpartition(")")
        except OSError:
            continue  # it has ended since
        fields = rest.split()
        found[task.name, head.partition("(")[2]] = int(fields[11]) + int(fields[12])
    return found
