"""Pictures of the results, for the documentation: ``docs/img/bars.svg``, ``peers.svg``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from benchmarks.peers.run import RESULTS as PEERS
from benchmarks.run import RESULTS as BARS

IMAGES = Path(__file__).parents[1] / "docs" / "img"
REACHED, MISSED, GOAL = "#2a7f62", "#c9822b", "#444444"
COLOURS = ("#2a7f62", "#5b7db1", "#b15b5b")


def _save(figure: Figure, name: str) -> Path:
    path = IMAGES / name
    IMAGES.mkdir(exist_ok=True)
    # Without a date and with names from the content, the same results give the same file.
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None})
    return path


def draw_bars(results: dict[str, dict[str, Any]]) -> Path:
    """Each bar as a part of its first mark: to the right of 1 is reached."""
    names = list(results)[::-1]
    figure = Figure(figsize=(8, 0.34 * len(names) + 1))
    axes = figure.subplots()
    for row, name in enumerate(names):
        one = results[name]
        value = _towards(one, one["ratio"])
        ends = sorted((_towards(one, one["low"]), _towards(one, one["high"])))
        axes.barh(row, value, color=REACHED if one["reached"] else MISSED)
        axes.plot(ends, [row, row], color=GOAL, linewidth=1)
        axes.plot(_towards(one, one["goal"]), row, marker="|", color=GOAL, markersize=12)
    axes.axvline(1.0, color=GOAL, linewidth=1)
    axes.set_yticks(range(len(names)), names)
    axes.set_xlim(0, 4)
    axes.set_xlabel("times the first mark (the line); tick: the goal; thin line: the spread")
    return _save(figure, "bars.svg")


def _towards(one: dict[str, Any], ratio: float) -> float:
    """How good a ratio is, 1 being the mark, whichever way is better."""
    mark = float(one["mark"])
    found = mark / max(ratio, 1e-9) if one["lower_is_better"] else ratio / mark
    return min(found, 4.0)


def draw_peers(cases: list[dict[str, Any]]) -> Path:
    """MB/s end to end, by size and number of producers."""
    peers = list(dict.fromkeys(case["peer"] for case in cases))
    groups = list(dict.fromkeys((case["size"], case["producers"]) for case in cases))
    figure = Figure(figsize=(8, 3.6))
    axes = figure.subplots()
    width = 0.8 / len(peers)
    for number, peer in enumerate(peers):
        found = {(c["size"], c["producers"]): c["mb_per_s"] for c in cases if c["peer"] == peer}
        places = [index + (number - (len(peers) - 1) / 2) * width for index in range(len(groups))]
        heights = [found.get(group, 0.0) for group in groups]
        axes.bar(places, heights, width, label=peer, color=COLOURS[number % len(COLOURS)])
    labels = [f"{size}\n{count} producer{'s' if count > 1 else ''}" for size, count in groups]
    axes.set_xticks(range(len(groups)), labels)
    axes.set_ylabel("MB/s, end to end, synced")
    axes.legend(frameon=False)
    return _save(figure, "peers.svg")


def main() -> int:
    import matplotlib

    matplotlib.rcParams["svg.hashsalt"] = "quiver"
    if BARS.exists():
        print(draw_bars(json.loads(BARS.read_text())))
    if PEERS.exists():
        print(draw_peers(json.loads(PEERS.read_text())["cases"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
