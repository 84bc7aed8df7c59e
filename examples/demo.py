"""The promise, shown: a server is killed hard under load, and nothing is missing after.

Run it with ``make demo``.  It starts a server, two producers that put telemetry, and two
subscribers: ``exporter`` keeps up, ``archive`` takes its time.  In the middle the server is
killed with ``SIGKILL`` and started again; producers and subscribers are not told.  At the
end each row of the table compares what was answered *durable* with what each subscriber
received.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from flight_service.client import Client, Delivered, Stream, Writer, connect

ROWS = 500
WINDOW = 64
LEVELS = ["DEBUG", "INFO", "WARN", "ERROR"]
PRODUCERS = 2
STREAM = "telemetry"
BATCH = 32
"""Bundles the archive takes before it makes its acks durable."""


def make_logs(number: int) -> pa.RecordBatch:
    """Log records that can be told apart, the same for the same number."""
    rng = random.Random(number)
    return pa.record_batch(
        {
            "id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64()),
            "level": pa.array([rng.choice(LEVELS) for _ in range(ROWS)]).dictionary_encode(),
            "body": [f"request {number}/{row} took {rng.randrange(900)} ms" for row in range(ROWS)],
        }
    )


class ServerProcess:
    """A real server in a process of its own."""

    def __init__(self, root: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._environment = {
            **os.environ,
            "QUIVER_SERVER__ROOT": str(root),
            "QUIVER_SERVER__PORT": str(self.port),
            "QUIVER_HTTP__ENABLED": "false",
        }
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def start(self) -> int:
        """Start it and wait until it listens; its process id."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flight_service.server"],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit("the server did not start")
        json.loads(line)
        return self._process.pid

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait until the process is gone."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None


class Producers:
    """Threads that put bundles, every one with a key, and count the receipts."""

    def __init__(self, stream: Stream, bundles: int) -> None:
        self._share = bundles // PRODUCERS
        self.writers = [stream.writer(window=WINDOW) for _ in range(PRODUCERS)]
        self.promised: dict[str, tuple[int, int]] = {}
        self._threads = [
            threading.Thread(target=self._produce, args=[who, writer], daemon=True)
            for who, writer in enumerate(self.writers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def _produce(self, who: int, writer: Writer) -> None:
        first = who * self._share
        with writer:
            pendings = [
                writer.put({"Logs": make_logs(number)}, key=f"n{number}")
                for number in range(first, first + self._share)
            ]
        for pending in pendings:
            self.promised[pending.key] = pending.result().ref

    @property
    def durable(self) -> int:
        """Bundles whose receipts say durable, so far."""
        return sum(writer.stats.bundles for writer in self.writers)

    @property
    def nbytes(self) -> int:
        return sum(writer.stats.nbytes for writer in self.writers)

    def join(self) -> None:
        for thread in self._threads:
            thread.join()


class Consumer:
    """A subscriber that checks what it gets and remembers which bundles it has had."""

    def __init__(self, stream: Stream, name: str, *, pace: float, careful: bool) -> None:
        self.name = name
        self.seen: dict[str, set[tuple[int, int]]] = {}
        self.times: Counter[str] = Counter()
        self.wrong = 0
        self.hurry = threading.Event()
        self._pace = pace
        self._careful = careful
        self._enough = threading.Event()
        self.bundles = stream.subscribe(name)
        self._thread = threading.Thread(target=self._consume, daemon=True)
        self._thread.start()

    def _consume(self) -> None:
        with self.bundles:
            while not self._enough.is_set():
                bundle = self.bundles.next_bundle(timeout=0.2)
                if bundle is not None:
                    self._take(bundle)

    def _take(self, bundle: Delivered) -> None:
        logs, key = bundle["Logs"], bundle.key or "?"
        self.wrong += not logs.equals(make_logs(int(key.removeprefix("n"))), check_metadata=True)
        self.seen.setdefault(key, set()).add(bundle.ref)
        self.times[key] += 1
        bundle.ack()
        if self._careful and len(self.times) % BATCH == 0:
            self.bundles.flush(durable=True)
        if self._pace:
            self.hurry.wait(self._pace)

    def finish(self) -> None:
        """It has had everything: end."""
        self._enough.set()
        self._thread.join()

    @property
    def again(self) -> int:
        """Deliveries of bundles it had had already."""
        return self.times.total() - len(self.times)


def watch(client: Client, server: ServerProcess, bundles: int, console: Console) -> list[Consumer]:
    """Run everything; the consumers, and what the producers were promised, for the table."""
    stream = client.create_stream(STREAM)
    for name in ("exporter", "archive"):
        stream.register(name)
    producers = Producers(stream, bundles)
    consumers = [
        Consumer(stream, "exporter", pace=0.0, careful=False),
        Consumer(stream, "archive", pace=0.02, careful=True),
    ]
    began = time.monotonic()
    producers.start()
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console) as bar:
        put = bar.add_task("put, answered durable", total=bundles)
        had = [bar.add_task(f"received by {one.name}", total=bundles) for one in consumers]
        killed = False
        while any(len(one.times) < bundles for one in consumers):
            bar.update(put, completed=producers.durable)
            for task, one in zip(had, consumers, strict=True):
                bar.update(task, completed=len(one.times))
            if not killed and producers.durable >= bundles * 0.4:
                killed = True
                bar.console.print("  [red]kill -9[/] of the server, in the middle of it all")
                server.end(signal.SIGKILL)
                pid = server.start()
                bar.console.print(f"  the server is back (pid {pid}); nobody was told")
            if producers.durable >= bundles and not consumers[1].hurry.is_set():
                elapsed = time.monotonic() - began
                console.print(
                    f"  all is put: {producers.nbytes / elapsed / 1e6:,.1f} MB/s durable, the"
                    f" outage included; the archive is {stream.lag('archive').bundles:,} behind"
                )
                consumers[1].hurry.set()
            time.sleep(0.05)
        bar.update(put, completed=producers.durable)
        for task, one in zip(had, consumers, strict=True):
            bar.update(task, completed=len(one.times))
    producers.join()
    for one in consumers:
        one.finish()
    report(console, producers, consumers)
    return consumers


def report(console: Console, producers: Producers, consumers: list[Consumer]) -> None:
    """What was promised, beside what each subscriber has."""
    table = Table(title="What was promised, and what is there")
    table.add_column("")
    table.add_column("producers", justify="right")
    for one in consumers:
        table.add_column(one.name, justify="right")
    promised = len(producers.promised)
    table.add_row("bundles", f"{promised:,}", *(f"{len(one.times):,}" for one in consumers))
    table.add_row(
        "rows", f"{promised * ROWS:,}", *(f"{len(one.times) * ROWS:,}" for one in consumers)
    )
    lost, doubled, wrong = zip(*(faults(producers, one) for one in consumers), strict=True)
    for name, counts in (("lost", lost), ("doubled", doubled), ("not as put", wrong)):
        table.add_row(f"[bold]{name}", "", *(f"[bold]{count:,}" for count in counts))
    table.add_row("delivered a second time", "", *(f"{one.again:,}" for one in consumers))
    reconnects = sum(writer.stats.reconnects for writer in producers.writers)
    table.add_row(
        "connections lost", f"{reconnects}", *(str(c.bundles.reconnects) for c in consumers)
    )
    console.print(table)
    console.print(
        "  Delivered a second time: acked just before the kill, and that was not on disk yet."
        f"\n  The archive makes its acks durable every {BATCH} bundles; ack(durable=True): none."
    )


def faults(producers: Producers, consumer: Consumer) -> tuple[int, int, int]:
    """Bundles lost, kept under two refs, and not equal to what was put."""
    lost = sum(ref not in consumer.seen.get(key, ()) for key, ref in producers.promised.items())
    doubled = sum(len(refs) - 1 for refs in consumer.seen.values())
    return lost, doubled, consumer.wrong


def run(bundles: int) -> int:
    """Start, watch, compare; 0 if the promise was kept."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="quiver-demo-") as root:
        server = ServerProcess(Path(root) / "data")
        console.print(
            f"[bold]Quiver[/]: a server at {server.url}, {PRODUCERS} producers with"
            f" {bundles * ROWS:,} rows, 2 subscribers"
        )
        server.start()
        try:
            with connect(server.url, wait=20) as client:
                consumers = watch(client, server, bundles, console)
        finally:
            server.end(signal.SIGTERM)
    console.print(
        "\nNow try:\n"
        "  quiver serve                                  a server of your own\n"
        "  quiver bench                                  how fast it is here\n"
        "  quiver put telemetry FILE.parquet             and look: quiver tail telemetry"
    )
    complete = all(len(one.times) == bundles and not one.wrong for one in consumers)
    return 0 if complete and not any(len(r) > 1 for c in consumers for r in c.seen.values()) else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, add_help=True)
    parser.add_argument("--bundles", type=int, default=2_000, help="how many bundles to put")
    arguments = parser.parse_args()
    sys.exit(run(arguments.bundles))
