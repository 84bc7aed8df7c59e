"""Running the explorer over many workloads, in several processes, and the report."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import asdict, dataclass
from typing import Any, Final

from tests.crash.explorer import Explorer, Tally
from tests.crash.workloads import quiet

PROCESSES: Final = 2
MAX_WORKLOADS: Final = 100_000
MAX_FINDINGS: Final = 20
"""Broken promises after which a process gives up: the first few are what one reads."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a run tried and found."""

    tally: Tally
    seconds: float

    @property
    def rate(self) -> float:
        return self.tally.states / self.seconds if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        """For ``make prove``: plain values."""
        tally = self.tally
        return {
            "what": "crash states",
            "tried": tally.states,
            "second_crashes": tally.second,
            "points": tally.points,
            "workloads": tally.workloads,
            "seconds": round(self.seconds, 1),
            "states_per_second": round(self.rate),
            "failed": len(tally.findings),
            "kinds": dict(sorted(tally.kinds.items())),
            "findings": [
                {**asdict(finding), "replay": finding.replay} for finding in tally.findings
            ],
        }


def explore(states: int, seed: int = 1, processes: int = PROCESSES) -> Result:
    """Try at least so many states; each process takes every n-th workload."""
    began = time.monotonic()
    share = -(-states // processes)
    jobs = [(seed, share, first, processes) for first in range(processes)]
    tally = Tally()
    if processes == 1:
        tally.add(explore_some(*jobs[0]))
    else:
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            for part in pool.starmap(explore_some, jobs):
                tally.add(part)
    return Result(tally, time.monotonic() - began)


def explore_some(seed: int, states: int, first: int, step: int) -> Tally:
    """One process's part."""
    quiet()
    explorer = Explorer(seed, budget=states)
    for number in range(first, MAX_WORKLOADS, step):
        explorer.run(number)
        if explorer.finished or len(explorer.tally.findings) >= MAX_FINDINGS:
            break
    return explorer.tally
