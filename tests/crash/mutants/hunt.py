"""Exploring with a fault until it is noticed, and the report."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.crash.explorer import Explorer
from tests.crash.mutants import MUTANTS
from tests.crash.mutants.tools import Mutant
from tests.crash.profiles import number_of
from tests.crash.workloads import quiet

BUDGET: Final = 6000
"""States after which a mutant counts as not noticed."""
PER_WORKLOAD: Final = 200
"""States of one workload: a fault shows sooner in another workload than in more of one."""
WORKLOADS: Final = 24
"""Workloads tried of each profile that a mutant is likely to show in."""

_OWN_FAULTS: Final = ("TypeError", "AttributeError", "NameError")
"""A patch that doesn't fit any more would be noticed too, for no good reason."""


@dataclass(frozen=True, slots=True)
class Kill:
    """How a mutant was noticed, or (``invariant`` empty) that it was not."""

    mutant: str
    invariant: str
    states: int
    place: str
    what: str


def hunt(one: Mutant, seed: int = 7, budget: int = BUDGET) -> Kill:
    """Explore with a fault until it is noticed."""
    quiet()
    numbers = [(number, number_of(name)) for number in range(WORKLOADS) for name in one.profiles]
    explorer = Explorer(seed, budget=budget, per_workload=PER_WORKLOAD, stop_early=True)
    with one.apply():
        for number, profile in numbers:
            explorer.run(number, profile)
            if explorer.finished:
                break
    tally = explorer.tally
    if not tally.findings:
        return Kill(one.name, "", tally.states, "", "")
    found = tally.findings[0]
    if any(error in found.what for error in _OWN_FAULTS):
        raise RuntimeError(f"the mutant {one.name} does not fit the engine: {found.what}")
    return Kill(one.name, found.invariant, tally.states, found.place, found.what)


def hunt_named(name: str) -> Kill:
    """As :func:`hunt`, for another process: a patch can't be sent there."""
    return hunt(next(one for one in MUTANTS if one.name == name))


def hunt_all(processes: int) -> list[Kill]:
    """Every mutant, each in a process that knows no other."""
    names = [one.name for one in MUTANTS]
    with multiprocessing.get_context("spawn").Pool(processes, maxtasksperchild=8) as pool:
        return pool.map(hunt_named, names, chunksize=1)


def as_json(kills: Sequence[Kill], seconds: float) -> dict[str, Any]:
    """For ``make prove``: plain values."""
    return {
        "what": "mutants",
        "tried": len(kills),
        "seconds": round(seconds, 1),
        "failed": sum(not kill.invariant for kill in kills),
        "kills": [asdict(kill) for kill in kills],
    }


def report(kills: Sequence[Kill]) -> Iterator[str]:
    """The table, line by line."""
    width = max(len(kill.mutant) for kill in kills)
    for kill in kills:
        by = kill.invariant or "NOT NOTICED"
        yield f"{kill.mutant:<{width}}  {by:<20} {kill.states:>6,} states  {kill.place}"
