"""Running with a fault until it is noticed, and the report."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from tests.product.facts import SENTENCES
from tests.product.interleavings import INTERLEAVINGS
from tests.product.mutants import MUTANTS
from tests.product.mutants.plugin import NAME
from tests.product.mutants.tools import Mutant
from tests.product.run import Tally, quiet, try_one
from tests.product.steps import PROFILES

ROOT: Final = Path(__file__).parents[3]
SEED: Final = 1
RUNS: Final = 150
"""Of each profile; a mutant that survives them counts as not noticed."""
SECONDS: Final = 120
"""For a test of another suite."""

_OWN_FAULTS: Final = ("TypeError", "AttributeError", "NameError")
"""A patch that doesn't fit any more would be noticed too, for no good reason."""


@dataclass(frozen=True, slots=True)
class Kill:
    """How a mutant was noticed, or (``by`` empty) that it was not."""

    mutant: str
    by: str
    tries: int
    place: str = ""
    what: str = ""


def hunt(one: Mutant) -> Kill:
    """Try with a fault until it is noticed."""
    if one.scenes[0].startswith("tests/"):
        return _hunt_elsewhere(one)
    quiet()
    with one.apply():
        tries = 0
        for place, sentence, what in _tries(one):
            tries += 1
            if sentence:
                if any(error in what for error in _OWN_FAULTS):
                    raise RuntimeError(f"the mutant {one.name} does not fit the engine: {what}")
                return Kill(one.name, sentence, tries, place, what)
    return Kill(one.name, "", tries)


def _tries(one: Mutant) -> Iterator[tuple[str, str, str]]:
    """Place, broken sentence (or none), and what was wrong."""
    name, _, way = one.scenes[0].partition(":")
    if name in INTERLEAVINGS:
        for place, violation in INTERLEAVINGS[name].everywhere(way):
            yield place, "" if violation is None else violation.sentence, str(violation)
        return
    for number in range(RUNS):
        for profile in (profile for profile in PROFILES if profile.name in one.scenes):
            tally = Tally()
            try_one(SEED, number, profile, tally)
            found = tally.findings[0] if tally.findings else None
            place = f"{SEED}:{number}:{profile.name}"
            yield place, found.sentence if found else "", found.what if found else ""


def _hunt_elsewhere(one: Mutant) -> Kill:
    """Have the test of another suite fail, in a process with the fault."""
    place = one.scenes[0]
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.product.mutants.plugin"]
    done = subprocess.run(
        [sys.executable, *command, place],
        cwd=ROOT,
        env={**os.environ, NAME: one.name, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=SECONDS,
        check=False,
    )
    failed = done.returncode == 1 and "1 failed" in done.stdout
    if failed and any(f"E   {error}" in done.stdout for error in _OWN_FAULTS):
        raise RuntimeError(f"the mutant {one.name} does not fit: {done.stdout}")
    return Kill(one.name, "a test" if failed else "", 1, place, done.stdout[-2000:])


def hunt_named(name: str) -> Kill:
    """As :func:`hunt`, for another process: a patch can't be sent there."""
    return hunt(next(one for one in MUTANTS if one.name == name))


def hunt_all(processes: int) -> list[Kill]:
    """Every mutant."""
    names = [one.name for one in MUTANTS]
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=8) as pool:
        return pool.map(hunt_named, names, chunksize=1)


def as_json(kills: Sequence[Kill], seconds: float) -> dict[str, Any]:
    """For ``make prove``: plain values."""
    return {
        "what": "mutants of the product",
        "tried": len(kills),
        "seconds": round(seconds, 1),
        "failed": sum(not kill.by for kill in kills),
        "kills": [asdict(kill) for kill in kills],
    }


def report(kills: Sequence[Kill]) -> Iterator[str]:
    """The table for a terminal, line by line."""
    width = max(len(kill.mutant) for kill in kills)
    for kill in kills:
        how = f"{kill.by} ({kill.tries}: {kill.place})" if kill.by else "SURVIVED"
        yield f"{kill.mutant:{width}}  {how}"


def described(one: Mutant) -> str:
    """What a mutant breaks, for readers who know of no numbers."""
    return "a defect of 0.1.0" if one.of.startswith("defect") else one.of


def as_markdown(kills: Sequence[Kill]) -> str:
    """The table for the docs: nothing in it changes from run to run."""
    found = {kill.mutant: kill for kill in kills}
    rows = ["| | the fault | noticed by |", "|---|---|---|"]
    for one in MUTANTS:
        kill = found[one.name]
        by = f"`{kill.by}`: {SENTENCES[kill.by]}" if kill.by in SENTENCES else ""
        if kill.by and not by:
            path, _, test = kill.place.partition("::")
            by = f"`{test}` in `{path}`"
        rows.append(f"| {described(one)} | `{one.name}`: {one.what} | {by or '**nothing**'} |")
    return "\n".join(rows)
