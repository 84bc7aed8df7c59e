"""Runs, replays and the table: ``python -m tests.product [--runs N] [--seed S] [--only P]``."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.product.facts import Violation
from tests.product.interleavings import INTERLEAVINGS
from tests.product.steps import PROFILES, Profile, Run

PROCESSES: Final = 2
PAGE: Final = Path(__file__).parents[2] / "docs" / "reliability.md"
BEGIN: Final = "<!-- mutants: begin -->"
END: Final = "<!-- mutants: end -->"


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken sentence, and the line that shows it again."""

    sentence: str
    what: str
    place: str
    steps: tuple[str, ...]

    @property
    def replay(self) -> str:
        return f"python -m tests.product --replay {self.place}"

    def __str__(self) -> str:
        return f"{self.what}\n  {' '.join(self.steps)}\n  {self.replay}"


@dataclass(slots=True)
class Tally:
    """What was tried."""

    runs: int = 0
    steps: int = 0
    puts: int = 0
    damages: int = 0
    taken: set[str] = field(default_factory=set)
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)


def quiet() -> None:
    """A thousand damaged stores have too much to say."""
    logging.getLogger("quiver").setLevel(logging.CRITICAL + 1)


def try_one(seed: int, number: int, profile: Profile, tally: Tally) -> None:
    """One run; what it found goes to the tally."""
    began = time.monotonic()
    run = Run(seed, number, profile)
    place = f"{seed}:{number}:{profile.name}"
    try:
        run.go()
    except Violation as violation:
        found = Finding(violation.sentence, str(violation), place, tuple(run.steps))
        tally.findings.append(found)
    except Exception as error:  # nothing but the store's own words may come out of it
        what = f"goes_on: {type(error).__name__}: {error}"
        tally.findings.append(Finding("goes_on", what, place, tuple(run.steps)))
    tally.runs += 1
    tally.steps += len(run.steps)
    tally.puts += len(run.world.facts.puts)
    tally.damages += len(run.world.facts.history)
    tally.taken |= run.taken
    tally.seconds += time.monotonic() - began


def try_place(place: str, tally: Tally) -> None:
    """One place of an interleaving; what it found goes to the tally."""
    name, way, at, end = place.split(":")
    try:
        INTERLEAVINGS[name].play(way, int(at), end)
    except Violation as violation:
        tally.findings.append(Finding(violation.sentence, str(violation), place, (name,)))
    tally.runs += 1


def explore(seed: int, runs: int, only: str | None = None, *, stop: bool = False) -> Tally:
    """So many runs of each profile."""
    quiet()
    tally = Tally()
    for number in range(runs):
        for profile in PROFILES:
            if only in (None, profile.name):
                try_one(seed, number, profile, tally)
                if stop and tally.findings:
                    return tally
    return tally


def replay(place: str) -> Tally:
    """One run again, or one place of an interleaving."""
    tally = Tally()
    if place.count(":") == 3:
        try_place(place, tally)
        return tally
    seed, number, name = place.split(":")
    profile = next(one for one in PROFILES if one.name == name)
    try_one(int(seed), int(number), profile, tally)
    return tally


def mutants(processes: int, path: Path | None, *, write: bool) -> int:
    """Try every mutant; the table, and whether all were noticed."""
    from tests.product.mutants import hunt  # it has runs of its own

    began = time.monotonic()
    kills = hunt.hunt_all(processes)
    for line in hunt.report(kills):
        print(line)  # noqa: T201 - a command
    if path is not None:
        path.write_text(json.dumps(hunt.as_json(kills, time.monotonic() - began), indent=1))
    if write:
        PAGE.write_text(write_into(PAGE.read_text(), hunt.as_markdown(kills)))
    return 0 if all(kill.by for kill in kills) else 1


def write_into(page: str, table: str) -> str:
    """The page with the table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"{PAGE} has no {BEGIN} … {END}")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--runs", type=int, default=50, help="of each profile")
    parser.add_argument("--only", choices=[one.name for one in PROFILES])
    parser.add_argument(
        "--replay", help="seed:number:profile, or name:way:point:end, as a finding prints it"
    )
    parser.add_argument("--mutants", action="store_true", help="the engine broken on purpose")
    parser.add_argument("--processes", type=int, default=PROCESSES, help="for --mutants")
    parser.add_argument("--write", action="store_true", help="put the mutants' table into the docs")
    parser.add_argument("--json", type=Path, help="write the mutants' results here too")
    chosen = parser.parse_args()
    if chosen.mutants:
        return mutants(chosen.processes, chosen.json, write=chosen.write)
    if chosen.replay:
        tally = replay(chosen.replay)
    else:
        tally = explore(chosen.seed, chosen.runs, chosen.only)
    by_sentence = Counter(one.sentence for one in tally.findings)
    for sentence, count in by_sentence.most_common():
        first = next(one for one in tally.findings if one.sentence == sentence)
        print(f"{count:5} {first}\n")  # noqa: T201 - a command
    print(  # noqa: T201 - a command
        f"{tally.runs:,} runs, {tally.steps:,} steps, {tally.puts:,} puts, {tally.damages:,} files"
        f" damaged, {len(tally.findings)} findings, {tally.seconds:.0f} s"
    )
    return 1 if tally.findings else 0


if __name__ == "__main__":
    sys.exit(main())
