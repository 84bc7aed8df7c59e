"""``make prove``: everything that could break the promise is tried, and one table says so.

::

    python -m tests.prove                     all of it, an hour and a half on two cores
    python -m tests.prove --only flips kill   some of it
    python -m tests.prove --write             and put the table into docs/reliability.md

Each row is a command of its own, so that what failed can be run alone: the table names it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

ROOT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = ROOT / "docs" / "reliability.md"
BEGIN: Final = "<!-- prove: begin -->"
END: Final = "<!-- prove: end -->"
LINES_OF_A_FAILURE: Final = 30


@dataclass(frozen=True)
class Trial:
    """One row: what is tried, and the command that does it."""

    name: str
    what: str
    command: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_pytest(self) -> bool:
        return "pytest" in self.command


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    trial: Trial
    tried: int
    failed: int
    seconds: float
    notes: Mapping[str, int]
    output: str

    @property
    def good(self) -> bool:
        return not self.failed and self.tried > 0


def _pytest(*arguments: str) -> tuple[str, ...]:
    return ("-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", "2", *arguments)


FULL: Final = {"QUIVER_FAULT_STEP": "1"}
TRIALS: Final = (
    Trial(
        "crash",
        "crash states: what a power cut may leave, opened and held against the promise",
        ("-m", "tests.crash", "--states", "250000", "--processes", "2"),
    ),
    Trial(
        "mutants",
        "engines with one fault each, which the crash states must catch",
        ("-m", "tests.crash", "mutants", "--processes", "2"),
    ),
    Trial(
        "product",
        "damage, settings, clock, interleavings, full disks and crashes combined, in seeded runs",
        _pytest("tests/product/test_product.py", "-k", "promise"),
        {"QUIVER_PRODUCT_RUNS": "1000"},
    ),
    Trial(
        "orders",
        "named interleavings: a call inside every step of another",
        _pytest("tests/product/test_interleavings.py", "-k", "promise"),
    ),
    Trial(
        "faults",
        "defects, rows of the owner's table and interleavings, each broken, which these must catch",
        ("-m", "tests.product", "--mutants", "--processes", "2"),
    ),
    Trial(
        "calls",
        "the n-th call to the disk fails, in nine ways",
        _pytest("tests/faults/test_nth_call.py"),
        FULL,
    ),
    Trial(
        "flips",
        "one byte flipped, every byte of every file",
        _pytest("tests/faults/test_flips.py", "-k", "flipped"),
        FULL,
    ),
    Trial(
        "cuts",
        "a file cut short, at every length",
        _pytest("tests/faults/test_flips.py", "-k", "cut"),
        FULL,
    ),
    Trial("missing", "files missing, swapped, doubled", _pytest("tests/faults/test_missing.py")),
    Trial(
        "full",
        "full disks: every size in memory, real tmpfs and ext4",
        _pytest("tests/faults/test_full_disk.py"),
    ),
    Trial(
        "kill",
        "kill -9 of a process with six threads on the real disk",
        _pytest("tests/kill"),
        {"QUIVER_KILL_ROUNDS": "300"},
    ),
    Trial(
        "server",
        "kill -9 of the server under load",
        _pytest("tests/wire/test_kill.py"),
        {"KILL_ROUNDS": "100"},
    ),
    Trial(
        "chaos",
        "rounds of a real server and clients in sixteen kinds of trouble, with an outside witness",
        ("-m", "tests.chaos", "--minutes", "20"),
    ),
    Trial(
        "fuzz",
        "changed and random files for every reader",
        _pytest("tests/fuzz"),
        {"QUIVER_FUZZ_EXAMPLES": "5000"},
    ),
    Trial("model", "generated programs against a model, with crashes", _pytest("tests/property")),
    Trial("threads", "many threads on the real disk", _pytest("tests/stress")),
    Trial(
        "defects",
        "the Rust crate's known defects, and our own",
        _pytest("-k", "regressions or promises"),
    ),
)


def run(trial: Trial) -> Outcome:
    """Run one row's command; a row that tried nothing has failed."""
    with tempfile.TemporaryDirectory() as scratch:
        results = Path(scratch) / "results"
        extra = (
            ("-o", "junit_family=xunit1", f"--junitxml={results}")
            if trial.is_pytest
            else ("--json", str(results))
        )
        began = time.monotonic()
        done = subprocess.run(
            [sys.executable, *trial.command, *extra],
            cwd=ROOT,
            env={**os.environ, **trial.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.monotonic() - began
        tried, failed, notes = _read(trial, results)
    failed = max(failed, done.returncode != 0)
    return Outcome(trial, tried, failed, seconds, notes, done.stdout + done.stderr)


def _read(trial: Trial, results: Path) -> tuple[int, int, Mapping[str, int]]:
    if not results.exists():
        return 0, 1, {}
    if not trial.is_pytest:
        values = json.loads(results.read_text())
        notes = {
            "behind a second crash": values.get("second_crashes", 0),
            "not played here": len(values.get("not_played", ())),
        }
        return values["tried"], values["failed"], {k: v for k, v in notes.items() if v}
    return _read_junit(results)


def _read_junit(results: Path) -> tuple[int, int, Mapping[str, int]]:
    """Tests say what they tried in properties; one that says nothing tried one thing."""
    tried = failed = 0
    notes: Counter[str] = Counter()
    for case in ElementTree.parse(results).iter("testcase"):
        if case.find("skipped") is not None:
            notes["skipped"] += 1
            continue
        failed += any(case.find(kind) is not None for kind in ("failure", "error"))
        properties = {one.get("name", ""): one.get("value", "") for one in case.iter("property")}
        tried += int(properties.pop("tried", "1"))
        notes.update({name: int(value) for name, value in properties.items()})
    return tried, failed, notes


# The table


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    """The table as it stands in the docs."""
    rows = ["| | tried | failed | seconds | |", "|---|--:|--:|--:|---|"]
    for one in outcomes:
        notes = "; ".join(f"{count:,} {name}" for name, count in sorted(one.notes.items()))
        rows.append(
            f"| `{one.trial.name}`: {one.trial.what} | {one.tried:,} | {one.failed:,}"
            f" | {one.seconds:,.0f} | {notes} |"
        )
    tried, seconds = sum(one.tried for one in outcomes), sum(one.seconds for one in outcomes)
    failed = sum(one.failed for one in outcomes)
    rows.append(f"| **all** | **{tried:,}** | **{failed:,}** | **{seconds:,.0f}** | |")
    return "\n".join(rows)


def as_text(outcomes: Sequence[Outcome]) -> str:
    """The table for a terminal."""
    lines = [f"{'':8} {'tried':>12} {'failed':>7} {'seconds':>8}"]
    for one in outcomes:
        mark = "" if one.good else "  FAILED"
        lines.append(
            f"{one.trial.name:8} {one.tried:12,} {one.failed:7,} {one.seconds:8,.0f}"
            f"  {one.trial.what}{mark}"
        )
    return "\n".join(lines)


def write_into(page: str, outcomes: Sequence[Outcome], when: datetime) -> str:
    """The page with the last run's table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE} has no {BEGIN} … {END}")
    machine = f"{os.cpu_count()} cores, Linux {platform.release().split('-')[0]}"
    version = f"Python {platform.python_version()}"
    line = f"The last run: {when:%Y-%m-%d}, {machine}, {version}."
    return f"{before}{BEGIN}\n{line}\n\n{as_markdown(outcomes)}\n{END}{after}"


def command_of(trial: Trial) -> str:
    """What to type to run one row alone."""
    settings = " ".join(f"{name}={value}" for name, value in trial.environment.items())
    return f"{settings} python {' '.join(trial.command)}".strip()


def main() -> int:
    names = [trial.name for trial in TRIALS]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="NAME")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    chosen = parser.parse_args()
    outcomes: list[Outcome] = []
    for trial in TRIALS:
        if trial.name in chosen.only:
            sys.stdout.write(f"{trial.name}: {trial.what} ...\n")
            sys.stdout.flush()
            outcomes.append(run(trial))
    for one in outcomes:
        if not one.good:
            sys.stdout.write(f"\n{one.trial.name} failed: {command_of(one.trial)}\n")
            sys.stdout.write("\n".join(one.output.splitlines()[-LINES_OF_A_FAILURE:]) + "\n")
    sys.stdout.write(f"\n{as_text(outcomes)}\n")
    if chosen.write:
        PAGE.write_text(write_into(PAGE.read_text(), outcomes, datetime.now(UTC)))
    return 0 if all(one.good for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
