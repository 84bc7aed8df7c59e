"""The course of the demo: ``python -m examples.demo``, or ``make demo``."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from examples.demo import java
from examples.demo.report import next_steps, report
from examples.demo.rows import ROWS_PER_BUNDLE, STREAM, TASKS
from examples.demo.server import SHOWN, ServerProcess
from examples.demo.subscribers import Subscriber
from examples.demo.watchdog import PATIENCE, Watchdog
from flight_service.client import ClientError, Stream, connect

KILL_AT = 0.4


def choose_job(console: Console, *, spark: bool) -> str:
    """Spark if there is Java or it can be had, else the plain client."""
    if spark and not java.found() and java.can_install():
        with console.status("Spark needs Java, which is missing: installing it …"):
            java.install()
    if spark and not java.found():
        console.print(
            f"[yellow]Spark needs Java {java.NEEDED}, which is missing.[/] Install it with\n"
            f"  {java.COMMAND}\nand run this again; for now the plain Python client puts the rows."
        )
    return "spark_job" if spark and java.found() else "plain_job"


class Job:
    """The producer, as a process."""

    def __init__(self, name: str, url: str, rows: int, log: IO[str]) -> None:
        command = [sys.executable, "-m", f"examples.demo.{name}", url, str(rows)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)

    @property
    def over(self) -> bool:
        return self._process.poll() is not None

    def result(self) -> dict[str, Any] | None:
        """What it says it has put; nothing if it failed."""
        out, _ = self._process.communicate()
        lines = out.strip().splitlines()
        done: dict[str, Any] | None = None
        if self._process.returncode == 0 and lines:
            done = json.loads(lines[-1])
        return done

    def stop(self) -> None:
        """End it if it is still there."""
        if not self.over:
            self._process.terminate()
            self._process.wait()


def durable_bundles(stream: Stream) -> int:
    """Bundles on the server's disk so far, by their sequences; none while it is away."""
    try:
        return max(0, int(stream.status()["durable_before"]) - 1)
    except ClientError:
        return 0


def watch(
    console: Console,
    server: ServerProcess,
    stream: Stream,
    job: Job,
    everybody: list[Subscriber],
    dog: Watchdog,
) -> dict[str, Any] | None:
    """Follow it to the end, with a kill in the middle; what the job says it has put."""
    rows = everybody[0].rows
    columns = (
        TextColumn("  {task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f} rows"),
        TimeElapsedColumn(),
    )
    put: dict[str, Any] | None = None
    began: float | None = None
    with Progress(*columns, console=console) as bar:
        durable = bar.add_task("put, on the server's disk", total=rows)
        had = [bar.add_task(f"received by {one.name}", total=rows) for one in everybody]
        killed = False
        while put is None or any(one.received < rows for one in everybody):
            done = rows if put else min(rows, durable_bundles(stream) * ROWS_PER_BUNDLE)
            dog.progress(done, job.over, *(one.received for one in everybody))
            bar.update(durable, completed=done)
            for task, one in zip(had, everybody, strict=True):
                bar.update(task, completed=one.received)
            if done and began is None:
                began = time.monotonic()
            if not killed and done >= rows * KILL_AT:
                killed = True
                kill(bar.console, server)
            if job.over and put is None:
                put = job.result()
                if put is None:
                    return None
                put["seconds"] = time.monotonic() - (began or time.monotonic() - put["seconds"])
                behind = stream.lag(everybody[-1].name).bundles
                bar.console.print(f"  all is put; the archive is {behind:,} bundles behind")
                everybody[-1].hurry.set()
            time.sleep(0.05)
        bar.update(durable, completed=rows)
        for task, one in zip(had, everybody, strict=True):
            bar.update(task, completed=one.received)
    return put


def kill(console: Console, server: ServerProcess) -> None:
    """Without a word to anybody."""
    console.print("  [red]kill -9[/] of the server, in the middle of it all")
    server.end(signal.SIGKILL)
    pid = server.start()
    console.print(f"  the server is back (pid {pid}); nobody was told")


def run(rows: int, *, spark: bool, patience: float = PATIENCE) -> int:
    """Start, watch, compare; 0 if the promise was kept."""
    console = Console()
    name = choose_job(console, spark=spark)
    with tempfile.TemporaryDirectory(prefix="quiver-demo-") as root:
        server = ServerProcess(Path(root) / "data")
        who = f"a Spark job of {TASKS} tasks" if name == "spark_job" else "a producer"
        console.print(
            f"[bold]Quiver[/]: a server at {server.url}, {who} with {rows:,} rows, 2 subscribers"
        )
        server.start()
        log = Path(root) / "job.log"

        def show() -> None:
            sys.stderr.write(f"the server's log:\n{server.stacks()}\n")
            sys.stderr.write(f"the job's log:\n{log.read_text()[-SHOWN:]}\n")

        with Watchdog(show, patience) as dog:
            put, everybody = follow(console, server, name, rows, log, dog)
        if put is None:
            console.print(f"[red]the job failed:[/]\n{log.read_text()[-3000:]}")
            return 1
    report(console, put, everybody)
    next_steps(console)
    return 0 if all(one.kept for one in everybody) else 1


def follow(
    console: Console, server: ServerProcess, name: str, rows: int, log: Path, dog: Watchdog
) -> tuple[dict[str, Any] | None, list[Subscriber]]:
    """The job and its subscribers, from start to end; what was put, if all of it was."""
    try:
        with connect(server.url, wait=20) as client, log.open("w") as errors:
            stream = client.create_stream(STREAM)
            everybody = [
                Subscriber(stream, "exporter", rows, pace=0.0, careful=False),
                Subscriber(stream, "archive", rows, pace=0.05, careful=True),
            ]
            url = f"quiver://127.0.0.1:{server.port}/{STREAM}"
            job = Job(name, url, rows, errors)
            try:
                put = watch(console, server, stream, job, everybody, dog)
            finally:
                job.stop()
            for one in everybody:
                one.finish()
    finally:
        server.end(signal.SIGTERM)
    return put, everybody


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1_000_000, help="how many rows to put")
    parser.add_argument("--plain", action="store_true", help="without Spark")
    parser.add_argument(
        "--patience", type=float, default=PATIENCE, help="seconds without progress before it ends"
    )
    arguments = parser.parse_args()
    sys.exit(run(arguments.rows, spark=not arguments.plain, patience=arguments.patience))
