"""Point by point through a record, state by state at each point.

:class:`Explorer` keeps what one run needs: which states it has seen, how many it may
try, and what it found.  A state counts once: the same files under the same promise need
not be opened twice.  Of the states that pass, a seeded few are crashed again: their own
recovery, and a little work behind it, is a record like any other.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from quiver.clock import ManualClock
from tests.crash.chance import decided
from tests.crash.checker import Checker
from tests.crash.invariants import Violation
from tests.crash.oracle import Oracle
from tests.crash.states import State
from tests.crash.walk import draw, flips, walk
from tests.crash.workloads import Workload, generate, small_bundle
from tests.crash.world import Epoch, World, listening

MAX_STATES: Final = 1000
"""States tried of one workload: rather more workloads than every tear of one write."""
SECOND_CRASHES: Final = 0.01
"""Share of the states that are crashed again."""
SECOND_STATES: Final = 30
"""Most states tried behind one second crash."""
SECOND_SHARE: Final = 0.35
"""Share of the states behind a second crash that are tried."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A broken promise, and the line that shows it again."""

    place: str
    invariant: str
    what: str
    profile: str
    steps: tuple[str, ...]

    @property
    def replay(self) -> str:
        return f"python -m tests.crash replay {self.place}"

    def __str__(self) -> str:
        return f"{self.what}\n  {self.profile}: {' '.join(self.steps)}\n  {self.replay}"


@dataclass(slots=True)
class Tally:
    """What was tried."""

    states: int = 0
    second: int = 0
    flips: int = 0
    points: int = 0
    workloads: int = 0
    seconds: float = 0.0
    kinds: Counter[str] = field(default_factory=Counter)
    findings: list[Finding] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        self.states += other.states
        self.second += other.second
        self.flips += other.flips
        self.points += other.points
        self.workloads += other.workloads
        self.seconds += other.seconds
        self.kinds += other.kinds
        self.findings += other.findings


class Explorer:
    """Explores workloads one after the other until it has tried enough."""

    def __init__(
        self,
        seed: int,
        *,
        budget: int,
        per_workload: int = MAX_STATES,
        stop_early: bool = False,
    ) -> None:
        self._seed = seed
        self._budget = budget
        self._per_workload = per_workload
        self._stop_early = stop_early
        self.tally = Tally()

    @property
    def finished(self) -> bool:
        tally = self.tally
        return tally.states >= self._budget or (self._stop_early and bool(tally.findings))

    def run(self, number: int, profile: int | None = None) -> None:
        """Explore one workload, as far as the budget goes."""
        began = time.monotonic()
        workload = generate(self._seed, number, profile)
        place = f"{self._seed}:{number}" + ("" if profile is None else f"@{profile}")
        tally = self.tally
        tally.workloads += 1
        tally.points += sum(len(epoch.records) + 1 for epoch in workload.epochs)
        tally.kinds.update(f"step {step}" for step in workload.steps)
        tally.kinds.update(
            f"op {type(record).__name__}" for epoch in workload.epochs for record in epoch.records
        )
        tally.kinds[f"profile {workload.profile.name}"] += 1
        if workload.violation is not None:
            self._found(f"{place}:run", workload.violation, workload)
        self._damage(workload, place)
        self._explore(workload, place)
        tally.seconds += time.monotonic() - began

    def _explore(self, workload: Workload, place: str) -> None:
        """Check the states of a workload; of very many, a seeded choice."""
        visit = _Visit(workload)
        share = self._per_workload / max(1, _count(workload, place))
        for where, state, oracle in walk(workload.epochs, place, workload.sector):
            if self.finished:
                return
            if not visit.is_new(state, oracle) or (share < 1 and draw(where) >= share):
                continue
            self.tally.states += 1
            try:
                visit.checker.check(state, oracle)
                if draw(f"second {where}") < SECOND_CRASHES:
                    self._again(visit, where, state, oracle)
            except Violation as violation:
                self._found(where, violation, workload)

    def _again(self, visit: _Visit, where: str, state: State, oracle: Oracle) -> None:
        """Crash inside the recovery of this state, or in the little work behind it."""
        epochs = second_life(visit.workload, state, oracle, where)
        tried = 0
        for place, second, promised in walk(epochs, where, visit.workload.sector, oracle.copy()):
            if tried >= SECOND_STATES or self.finished:
                return
            life = "" if promised.version == oracle.version else where
            if draw(place) >= SECOND_SHARE or not visit.is_new(second, promised, life):
                continue
            tried += 1
            self.tally.states += 1
            self.tally.second += 1
            try:
                visit.checker.check(second, promised)
            except Violation as violation:
                self._found(place, violation, visit.workload)

    def _damage(self, workload: Workload, place: str) -> None:
        """Flip a bit in synced entries of some states: that must not pass for a torn tail."""
        checker = Checker(workload.now_ns)
        for where, state, oracle in flips(workload.epochs, place):
            if self.finished:
                return
            self.tally.flips += 1
            try:
                checker.damage(state, oracle)
            except Violation as violation:
                self._found(where, violation, workload)

    def _found(self, place: str, violation: Violation, workload: Workload) -> None:
        self.tally.findings.append(
            Finding(
                place,
                violation.invariant,
                str(violation),
                workload.profile.name,
                tuple(workload.steps),
            )
        )


def _count(workload: Workload, place: str) -> int:
    """How many different states a workload has."""
    visit = _Visit(workload)
    return sum(
        visit.is_new(state, oracle)
        for _, state, oracle in walk(workload.epochs, place, workload.sector)
    )


def second_life(workload: Workload, state: State, oracle: Oracle, where: str) -> list[Epoch]:
    """The record of a recovery and of a little work behind it."""
    rng = random.Random(where)
    assert oracle.config is not None
    world = World(
        oracle.config,
        ManualClock(workload.now_ns),
        state=state,
        oracle=oracle.copy(),
    )
    with decided(where), listening(world):
        world.open()
        receipt = world.put(small_bundle(rng, len(world.oracle.puts)), "again")
        if receipt is not None and not receipt.done:
            world.wait(receipt)
        world.call(world.store.maintain, keeps=True)
        if rng.random() < 0.5:
            world.close()
    return world.epochs


class _Visit:
    """What is kept while one workload is explored."""

    def __init__(self, workload: Workload) -> None:
        self.workload = workload
        self.checker = Checker(workload.now_ns)
        self._seen: set[tuple[int, str, int]] = set()

    def is_new(self, state: State, oracle: Oracle, life: str = "") -> bool:
        """Whether these files were not seen yet under this promise."""
        files = hash((frozenset(state.files.items()), frozenset(state.directories)))
        key = (files, life, oracle.version)
        if key in self._seen:
            return False
        self._seen.add(key)
        return True


def check_place(place: str) -> tuple[Workload, State | None]:
    """Check one state by its number; raises :class:`Violation` if it breaks the promise."""
    parts = place.split(":")
    number, _, profile = parts[1].partition("@")
    workload = generate(int(parts[0]), int(number), int(profile) if profile else None)
    if parts[2] == "flip":
        state, oracle = _find(flips(workload.epochs, ":".join(parts[:2])), place)
        Checker(workload.now_ns).damage(state, oracle)
        return workload, state
    if parts[2] == "run":
        if workload.violation is not None:
            raise workload.violation
        return workload, None
    first = ":".join(parts[:4])
    state, oracle = _find(walk(workload.epochs, ":".join(parts[:2]), workload.sector), first)
    if len(parts) > 4:
        epochs = second_life(workload, state, oracle, first)
        state, oracle = _find(walk(epochs, first, workload.sector, oracle.copy()), place)
    Checker(workload.now_ns).check(state, oracle)
    return workload, state


def _find(states: Iterator[tuple[str, State, Oracle]], place: str) -> tuple[State, Oracle]:
    for where, state, oracle in states:
        if where == place:
            return state, oracle
    raise ValueError(f"there is no state {place}")
