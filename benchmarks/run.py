"""``make bench``: measure all bars, or those named, and show what came out."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table

from benchmarks.bar import FULL, QUICK, Bar, Result, run_bar
from benchmarks.bars import BARS

RESULTS = Path(__file__).with_name("results.json")


def describe_machine() -> str:
    """What the figures were measured on."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >> 30
    return (
        f"{_processor()}, {os.cpu_count()} cores, {memory} GiB, Linux {platform.release()},"
        f" Python {platform.python_version()}, pyarrow {pa.__version__}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def show(console: Console, results: dict[Bar, Result]) -> None:
    """The table."""
    table = Table(title="Quiver against its references", caption=describe_machine())
    for heading in ("bar", "what", "ratio", "spread", "Quiver", "reference", "mark / goal"):
        table.add_column(
            heading, justify="left" if heading in ("bar", "what") else "right", min_width=4
        )
    for bar, result in results.items():
        sign = "≤" if bar.lower_is_better else "≥"
        colour = "green" if bar.reached(result.ratio) else "yellow"
        table.add_row(
            bar.name,
            f"{bar.what}\n[dim]against {bar.reference_name}[/]",
            f"[{colour}]{result.ratio:.2f}[/]",
            f"{result.low:.2f} to {result.high:.2f}",
            f"{figure(result.value)} {bar.unit}",
            f"{figure(result.reference)} {bar.unit}",
            f"{sign} {bar.mark:g} / {bar.goal:g}",
        )
    console.print(table)


def figure(value: float) -> str:
    """A number as people like to read it."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def as_json(bar: Bar, result: Result) -> dict[str, Any]:
    """One bar of ``results.json``."""
    return {
        "ratio": round(result.ratio, 3),
        "low": round(result.low, 3),
        "high": round(result.high, 3),
        "unit": bar.unit,
        "value": float(f"{result.value:.4g}"),
        "reference_value": float(f"{result.reference:.4g}"),
        "reference": bar.reference_name,
        "what": bar.what,
        "mark": bar.mark,
        "goal": bar.goal,
        "lower_is_better": bar.lower_is_better,
        "reached": bar.reached(result.ratio),
        **result.notes,
        "machine": describe_machine(),
        "measured": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


def save(bar: Bar, result: Result) -> None:
    """Keep a result, beside those of other bars; at once, since all of them take long."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    known[bar.name] = as_json(bar, result)
    order = {one.name: number for number, one in enumerate(BARS)}
    ordered = dict(sorted(known.items(), key=lambda item: order.get(item[0], len(order))))
    RESULTS.write_text(json.dumps(ordered, indent=2) + "\n")


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
            if not bar.is_possible:
                console.print(f"{bar.name} is left out: it needs {bar.needs}")
                continue
            with console.status(f"{bar.name}: {bar.what}"):
                results[bar] = run_bar(bar, QUICK if options.quick else FULL, Path(root))
            if not options.quick:
                save(bar, results[bar])
    show(console, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
