"""``python -m tests.crash``: explore, replay one state, or try the mutants.

::

    python -m tests.crash --states 100000 --seed 1 --json out.json
    python -m tests.crash replay 1:17:203:5
    python -m tests.crash mutants --json out.json
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tests.crash.explorer import check_place
from tests.crash.invariants import Violation
from tests.crash.mutants.hunt import as_json, hunt_all, report
from tests.crash.run import PROCESSES, explore
from tests.crash.workloads import quiet


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.crash", description=__doc__)
    parser.add_argument(
        "command", nargs="?", default="explore", choices=("explore", "replay", "mutants")
    )
    parser.add_argument("place", nargs="?", help="SEED:WORKLOAD:POINT:STATE of a state to replay")
    parser.add_argument("--states", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--json", type=Path, help="write the results here too")
    options = parser.parse_args()
    quiet()
    if options.command == "replay":
        return replay(options.place)
    if options.command == "mutants":
        return mutants(options.processes, options.json)
    result = explore(options.states, options.seed, options.processes)
    say(
        f"{result.tally.states:,} crash states of {result.tally.workloads:,} workloads in"
        f" {result.seconds:.0f} s ({result.rate:,.0f}/s), {result.tally.second:,} of them behind"
        f" a second crash: {len(result.tally.findings)} violations"
    )
    for finding in result.tally.findings:
        say(str(finding))
    keep(options.json, result.as_json())
    return 1 if result.tally.findings else 0


def replay(place: str) -> int:
    """Show one state again."""
    try:
        workload, state = check_place(place)
    except Violation as violation:
        say(f"violated: {violation}")
        return 1
    files = {} if state is None else state.files
    say(f"{place} ({workload.profile.name}) is fine: {len(files)} files")
    return 0


def mutants(processes: int, path: Path | None) -> int:
    """Try every mutant."""
    began = time.monotonic()
    kills = hunt_all(processes)
    for line in report(kills):
        say(line)
    keep(path, as_json(kills, time.monotonic() - began))
    return 0 if all(kill.invariant for kill in kills) else 1


def keep(path: Path | None, values: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(values, indent=1))


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")


if __name__ == "__main__":
    sys.exit(main())
