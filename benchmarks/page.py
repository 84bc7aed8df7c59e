"""The tables of ``docs/performance.md``, from the results: part of ``make pictures``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.budget import OUT as BUDGET
from benchmarks.peers.run import RESULTS as PEERS
from benchmarks.run import RESULTS as BARS
from benchmarks.run import figure

PAGE = Path(__file__).parents[1] / "docs" / "performance.md"


def fill(page: str) -> str:
    """The page with its tables replaced; those without results stay as they are."""
    for name, table in (("bars", bars()), ("budget", budget()), ("peers", peers())):
        if table:
            before, opening, rest = page.partition(f"<!-- {name} -->\n")
            page = before + opening + table + rest[rest.index(f"<!-- /{name} -->") :]
    return page


def bars() -> str:
    """One line per bar."""
    if not BARS.exists():
        return ""
    lines = ["| bar | what | against | ratio | spread | Quiver | reference | mark | goal |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    results: dict[str, dict[str, Any]] = json.loads(BARS.read_text())
    for name, one in results.items():
        sign = "≤" if one["lower_is_better"] else "≥"
        ratio = f"{one['ratio']:.2f}"
        lines.append(
            f"| {name} | {one['what']} | {one['reference']} |"
            f" {'**' + ratio + '**' if one['reached'] else ratio} |"
            f" {one['low']:.2f} to {one['high']:.2f} |"
            f" {figure(one['value'])} {one['unit']} |"
            f" {figure(one['reference_value'])} {one['unit']} |"
            f" {sign} {one['mark']:g} | {sign} {one['goal']:g} |"
        )
    machines = dict.fromkeys(f"{one['machine']}, {one['measured']}" for one in results.values())
    return "\n".join(lines) + f"\n\nMeasured on: {'; '.join(machines)}.\n"


def budget() -> str:
    """One line per stage."""
    if not BUDGET.exists():
        return ""
    said = json.loads(BUDGET.read_text())
    sizes = list(said["us"])
    lines = _by_size("stage, by itself: µs of processor per bundle", said["us"], sizes)
    lines.append("")
    lines += _by_size("in a running server, by thread", said["server_us"], sizes)
    return "\n".join(lines) + f"\n\nMeasured on: {said['machine']}.\n"


def _by_size(title: str, costs: dict[str, dict[str, float]], sizes: list[str]) -> list[str]:
    lines = [f"| {title} | {' | '.join(sizes)} |", "|---|" + "---|" * len(sizes)]
    for name in costs[sizes[-1]]:
        cells = (f"{costs[size].get(name, 0):,.1f}" for size in sizes)
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def peers() -> str:
    """One line per case."""
    if not PEERS.exists():
        return ""
    said = json.loads(PEERS.read_text())
    lines = ["| batch | producers | | MB/s | rows/s | p50 ms | p99 ms | on disk MB | CPU s/GB |"]
    lines.append("|---|---|---|---|---|---|---|---|---|")
    lines += [
        f"| {one['size']} | {one['producers']} | {one['peer']} | {figure(one['mb_per_s'])} |"
        f" {figure(one['rows_per_s'])} | {one['p50_ms']:.3g} | {one['p99_ms']:.3g} |"
        f" {figure(one['disk_mb'])} | {one['cpu_s_per_gb']:.2f} |"
        for one in said["cases"]
    ]
    lines += ["", *(f"- {name}: {how}" for name, how in said["configurations"].items())]
    return "\n".join(lines) + f"\n\nMeasured on: {said['machine']}.\n"


def main() -> None:
    PAGE.write_text(fill(PAGE.read_text()))
    print(PAGE)


if __name__ == "__main__":
    main()
