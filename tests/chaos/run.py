"""Many rounds, one table."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.chaos.profiles import PROFILES
from tests.chaos.round import Outcome, play


def run(
    names: Sequence[str],
    seconds: float,
    seed: int,
    where: Path,
    *,
    only: int | None = None,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Rounds of these profiles in turn until the time is up, each at least once.

    With ``only``, that round of each of them and no other.
    """
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + seconds
    number = 0 if only is None else only
    while True:
        for name in names:
            if number and only is None and time.monotonic() >= deadline:
                return outcomes
            directory = where / f"{name}-{seed}-{number}"
            outcome = play(PROFILES[name], seed, number, directory)
            told(outcome)
            outcomes.append(outcome)
        number += 1
        if only is not None:
            return outcomes


def say(outcome: Outcome) -> None:
    """A round on standard output: a line, and one more for each violation."""
    tally = outcome.tally
    verdict = "clean" if not outcome.violations else f"{len(outcome.violations)} VIOLATIONS"
    counts = f"{tally.durable:7,} durable {tally.lost:5,} lost on record {tally.kills:3} kills"
    head = f"{outcome.profile:12} round {outcome.number:<4} {outcome.seconds:5.1f} s"
    lines = [f"{head} {counts}  {verdict}"]
    lines += [f"    {violation}" for violation in outcome.violations]
    if outcome.violations:
        lines.append(f"    again: {outcome.replay}")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def table(outcomes: Sequence[Outcome]) -> str:
    """A row for each profile."""
    head = ("profile", "rounds", "durable", "delivered", "acked", "lost", "kills", "violations")
    rows = [_row(outcomes, name) for name in PROFILES if any(o.profile == name for o in outcomes)]
    lines = [f"{head[0]:12}" + "".join(f"{one:>11}" for one in head[1:])]
    for row in rows:
        lines.append(f"{row['profile']:12}" + "".join(f"{row[one]:>11,}" for one in head[1:]))
        lines += [f"    {name}: {count}" for name, count in row["invariants"].items()]
    return "\n".join(lines)


def _row(outcomes: Sequence[Outcome], profile: str) -> dict[str, Any]:
    mine = [one for one in outcomes if one.profile == profile]
    broken = Counter(str(v.invariant) for one in mine for v in one.violations)
    return {
        "profile": profile,
        "rounds": len(mine),
        "durable": sum(one.tally.durable for one in mine),
        "delivered": sum(one.tally.delivered for one in mine),
        "acked": sum(one.tally.acked for one in mine),
        "lost": sum(one.tally.lost for one in mine),
        "kills": sum(one.tally.kills for one in mine),
        "violations": sum(broken.values()),
        "seconds": round(sum(one.seconds for one in mine)),
        "invariants": dict(sorted(broken.items())),
    }


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "profiles": [
            _row(outcomes, name) for name in PROFILES if any(o.profile == name for o in outcomes)
        ],
        "violations": [
            {
                "profile": one.profile,
                "seed": one.seed,
                "round": one.number,
                "invariant": str(violation.invariant),
                "stream": violation.stream,
                "detail": violation.detail,
                "bundles": list(violation.bundles),
                "replay": one.replay,
            }
            for one in outcomes
            for violation in one.violations
        ],
    }


def write_document(outcomes: Sequence[Outcome], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document(outcomes), indent=1) + "\n")
