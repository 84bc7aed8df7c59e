"""The promise, shown: put a few thousand bundles, kill the process hard, look again.

Run it with ``make demo``.  A child process puts telemetry into a store and writes down,
outside of it, every bundle that was answered *durable*.  In the middle it is killed with
``SIGKILL``, twice.  Then the store is opened again, a subscriber drains it, and each row
of the table compares what was promised with what is there.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import quiver

ROWS = 500
WINDOW = 64
LEVELS = ["DEBUG", "INFO", "WARN", "ERROR"]


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


def produce(directory: Path, witness: Path, first: int, count: int) -> None:
    """Child: put bundles and note each one down once it is durable."""
    with quiver.open(directory, background=True) as store, witness.open("a") as notes:
        waiting: deque[tuple[int, quiver.Receipt]] = deque()

        def note_oldest() -> None:
            number, receipt = waiting.popleft()
            ref = receipt.wait().ref
            notes.write(f"{number} {ref.segment_seq} {ref.bundle_index}\n")
            notes.flush()

        for number in range(first, first + count):
            waiting.append(
                (number, store.put({"Logs": make_logs(number)}, key=f"n{number}", timeout=30))
            )
            if len(waiting) >= WINDOW:
                note_oldest()
        while waiting:
            note_oldest()


@dataclass(frozen=True, slots=True)
class Promise:
    """A line of the witness."""

    number: int
    ref: quiver.BundleRef


def promises(witness: Path) -> list[Promise]:
    """Everything that was answered durable; a line cut by the kill promises nothing."""
    text = witness.read_text() if witness.exists() else ""
    lines = text[: text.rfind("\n") + 1].splitlines()
    return [
        Promise(int(number), quiver.BundleRef(int(segment), int(index)))
        for number, segment, index in (line.split() for line in lines)
    ]


def run_until(
    directory: Path, witness: Path, *, first: int, count: int, kill_at: int | None
) -> None:
    """Run the child; kill it once it has promised ``kill_at`` bundles in all."""
    command = [sys.executable, __file__, "produce", str(directory), str(witness)]
    child = subprocess.Popen([*command, str(first), str(count)])
    with _progress() as bar:
        task = bar.add_task("bundles answered durable", total=kill_at or first + count)
        while child.poll() is None:
            done = len(promises(witness))
            bar.update(task, completed=done)
            if kill_at is not None and done >= kill_at:
                os.kill(child.pid, signal.SIGKILL)
            time.sleep(0.02)
        bar.update(task, completed=len(promises(witness)))
    if kill_at is None and child.returncode != 0:
        raise SystemExit(f"the producer failed with exit code {child.returncode}")


def _progress() -> Progress:
    return Progress(
        TextColumn("  {task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f} of {task.total:,.0f}"),
        TimeElapsedColumn(),
    )


def drain(directory: Path) -> tuple[Counter[int], int, int]:
    """How often each bundle was delivered, wrong contents, and rows in all."""
    delivered: Counter[int] = Counter()
    wrong = rows = 0
    with quiver.open(directory) as store, _progress() as bar:
        backlog = store.register("archive", start="earliest").lag().bundles
        task = bar.add_task("bundles delivered and acked", total=backlog)
        for bundle in store.subscribe("archive", follow=False):
            logs = bundle["Logs"]
            number = logs["id"][0].as_py() // ROWS
            wrong += not logs.equals(make_logs(number), check_metadata=True)
            delivered[number] += 1
            rows += logs.num_rows
            bundle.ack()
            bar.advance(task)
    return delivered, wrong, rows


def run(count: int) -> int:
    """Parent: produce, kill, produce, kill, finish, compare."""
    console = Console()
    with tempfile.TemporaryDirectory(prefix="quiver-demo-") as root:
        directory, witness = Path(root) / "telemetry", Path(root) / "witness.txt"
        began = time.monotonic()
        for attempt, fraction in enumerate((0.3, 0.6, None), start=1):
            first = max((p.number + 1 for p in promises(witness)), default=0)
            kill_at = None if fraction is None else int(count * fraction)
            ending = "to the end" if kill_at is None else f"killed with -9 after {kill_at:,}"
            console.print(f"[bold]Producer, run {attempt}[/]: from bundle {first:,}, {ending}")
            run_until(directory, witness, first=first, count=count - first, kill_at=kill_at)
        elapsed = time.monotonic() - began
        console.print("[bold]Subscriber[/]: a new one, from the earliest bundle on")
        delivered, wrong, rows = drain(directory)
        promised = promises(witness)
        size = sum(file.stat().st_size for file in directory.rglob("*") if file.is_file())

    numbers = {promise.number for promise in promised}
    refs = {promise.ref for promise in promised}
    lost = len(numbers - delivered.keys())
    doubled = sum(times - 1 for times in delivered.values())
    table = Table(title="What was promised, and what is there")
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("bundles answered durable", f"{len(numbers):,}")
    table.add_row("their refs, all different", f"{len(refs):,}")
    table.add_row("hard kills in between", "2")
    table.add_row("bundles delivered", f"{sum(delivered.values()):,}")
    table.add_row("rows delivered", f"{rows:,}")
    table.add_row("[bold]lost", f"[bold]{lost:,}")
    table.add_row("[bold]doubled", f"[bold]{doubled:,}")
    table.add_row("[bold]not equal to what was put", f"[bold]{wrong:,}")
    table.add_row("left on disk after the acks", f"{size / 2**20:,.1f} MiB")
    table.add_row("time with kills and restarts", f"{elapsed:,.1f} s")
    console.print(table)
    good = not (lost or doubled or wrong) and len(refs) == len(numbers)
    console.print("[green]Nothing was lost." if good else "[red]The promise was broken.")
    if good:
        console.print(
            "\nTry next:\n"
            "  make test                            every claim, checked\n"
            "  .venv/bin/quiver --help              look into a store, check it\n"
            "  README.md                            the same in ten lines of your own code"
        )
    return 0 if good else 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bundles", type=int, default=6000, help="how many bundles to put")
    if len(sys.argv) == 6 and sys.argv[1] == "produce":
        produce(Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5]))
        return 0
    return run(parser.parse_args().bundles)


if __name__ == "__main__":
    sys.exit(main())
