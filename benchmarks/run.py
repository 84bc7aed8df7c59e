"""``make bench``: measure all bars, or those named, and show what came out."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.bar import FULL, QUICK, Bar, Result, run_bar
from benchmarks.bars import BARS

RESULTS = Path(__file__).with_name("results.json")


def describe_machine() -> str:
    """What the figures were measured on."""
    return f"{platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


def show(console: Console, results: dict[Bar, Result]) -> None:
    table = Table(title=f"Quiver against its references ({describe_machine()})")
    for heading in ("bar", "what", "ratio", "spread", "Quiver", "reference", "mark / goal"):
        table.add_column(heading, justify="left" if heading in ("bar", "what") else "right")
    for bar, result in results.items():
        reached = result.ratio >= bar.mark
        table.add_row(
            bar.name,
            f"{bar.what}\n[dim]against {bar.reference_name}[/]",
            f"[{'green' if reached else 'yellow'}]{result.ratio:.2f}[/]",
            f"{result.low:.2f} to {result.high:.2f}",
            f"{result.value:,.0f} {bar.unit}",
            f"{result.reference:,.0f} {bar.unit}",
            f"{bar.mark:g} / {bar.goal:g}",
        )
    console.print(table)


def save(results: dict[Bar, Result]) -> None:
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    for bar, result in results.items():
        known[bar.name] = {
            "ratio": round(result.ratio, 3),
            "low": round(result.low, 3),
            "high": round(result.high, 3),
            "unit": bar.unit,
            "value": round(result.value, 1),
            "reference_value": round(result.reference, 1),
            "reference": bar.reference_name,
            "machine": describe_machine(),
        }
    RESULTS.write_text(json.dumps(known, indent=2, sort_keys=True) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", default=[], help="names of bars, such as P2s")
    parser.add_argument("--quick", action="store_true", help="only check that each bar runs")
    parser.add_argument("--dir", type=Path, help="where to write; a real disk, not tmpfs")
    options = parser.parse_args()
    wanted = {name.lower() for name in options.only}
    bars = [bar for bar in BARS if not wanted or bar.name.lower() in wanted]
    if not bars:
        print(f"no such bar; there are {', '.join(bar.name for bar in BARS)}", file=sys.stderr)
        return 1
    console = Console()
    results: dict[Bar, Result] = {}
    with tempfile.TemporaryDirectory(dir=options.dir or Path.cwd(), prefix=".bench-") as root:
        for bar in bars:
            with console.status(f"{bar.name}: {bar.what}"):
                results[bar] = run_bar(bar, QUICK if options.quick else FULL, Path(root))
    show(console, results)
    if not options.quick:
        save(results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
