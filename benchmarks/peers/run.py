"""``make peers``: Quiver, NATS JetStream and Redis Streams, turn by turn."""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.peers.measure import Figures, run_once
from benchmarks.peers.nats import Nats
from benchmarks.peers.peer import Peer
from benchmarks.peers.quiver import Quiver
from benchmarks.peers.redis import Redis
from benchmarks.run import describe_machine

RESULTS = Path(__file__).with_name("results.json")
PEERS: tuple[Peer, ...] = (Quiver(), Nats(), Redis())
SIZES = {"10 KiB": 10 << 10, "100 KiB": 100 << 10, "1 MiB": 1 << 20}
PRODUCERS = (1, 4)
NBYTES = {10 << 10: 64 << 20, 100 << 10: 512 << 20, 1 << 20: 1 << 30}
REPETITIONS = 3


def measure(quick: bool, root: Path, console: Console) -> list[dict[str, Any]]:
    """All peers, interleaved, so that a change in the machine's mood hits each."""
    peers = [peer for peer in PEERS if peer.available()]
    for peer in PEERS:
        if peer not in peers:
            console.print(f"{peer.name} is left out: its server or client is not installed")
    cases: list[dict[str, Any]] = []
    for label, size in SIZES.items():
        for producers in PRODUCERS:
            found: dict[str, list[Figures]] = {peer.name: [] for peer in peers}
            nbytes = 2 << 20 if quick else NBYTES[size]
            for _ in range(1 if quick else REPETITIONS):
                for peer in peers:
                    with console.status(f"{peer.name}, {label}, {producers} producers"):
                        found[peer.name].append(run_once(peer, size, producers, nbytes, root))
            case = {"size": label, "producers": producers}
            cases += [
                {"peer": name, **case, **_median(runs).as_dict()} for name, runs in found.items()
            ]
    return cases


def _median(runs: list[Figures]) -> Figures:
    return Figures(
        **{
            one.name: statistics.median(getattr(run, one.name) for run in runs)
            for one in fields(Figures)
        }
    )


def show(console: Console, cases: list[dict[str, Any]]) -> None:
    """The table, with how often Quiver does what the others do."""
    ours = {(c["size"], c["producers"]): c["mb_per_s"] for c in cases if c["peer"] == "Quiver"}
    table = Table(title="End to end, synced before acknowledged", caption=describe_machine())
    headings = ("size", "producers", "who", "MB/s", "rows/s", "p50 ms", "p99 ms")
    for heading in (*headings, "disk MB", "written MB", "CPU s/GB", "Quiver is"):
        table.add_column(heading, justify="left" if heading == "who" else "right")
    for case in cases:
        times = ours.get((case["size"], case["producers"]), 0.0) / case["mb_per_s"]
        table.add_row(
            case["size"],
            str(case["producers"]),
            case["peer"],
            f"{case['mb_per_s']:,.1f}",
            f"{case['rows_per_s']:,.0f}",
            f"{case['p50_ms']:.3g}",
            f"{case['p99_ms']:.3g}",
            f"{case['disk_mb']:,.0f}",
            f"{case['written_mb']:,.0f}",
            f"{case['cpu_s_per_gb']:.2f}",
            "" if case["peer"] == "Quiver" else f"{times:.1f} x",
        )
    console.print(table)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only check that each still runs")
    parser.add_argument("--dir", type=Path, help="where to write; a real disk, not tmpfs")
    options = parser.parse_args()
    console = Console(width=150)
    with tempfile.TemporaryDirectory(dir=options.dir or Path.cwd(), prefix=".peers-") as root:
        cases = measure(options.quick, Path(root), console)
    show(console, cases)
    if not options.quick:
        configurations = {peer.name: peer.configuration for peer in PEERS}
        said = {"machine": describe_machine(), "configurations": configurations, "cases": cases}
        RESULTS.write_text(json.dumps(said, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
