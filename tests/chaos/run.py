"""Many rounds, one table."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.chaos.profiles import PROFILES
from tests.chaos.round import Outcome, play

COLUMNS: Final = (
    "rounds",
    "durable",
    "delivered",
    "acked",
    "lost",
    "troubles",
    "violations",
    "seconds",
)
COUNTED: Final = ("rounds", "durable", "delivered", "acked", "violations", "seconds")
BEGIN: Final = "<!-- chaos: begin -->"
END: Final = "<!-- chaos: end -->"


def run(
    names: Sequence[str],
    seconds: float,
    seed: int,
    where: Path,
    *,
    only: int | None = None,
    short: bool = False,
    told: Callable[[Outcome], None] = lambda outcome: None,
) -> list[Outcome]:
    """Rounds of these profiles in turn until the time is up, each at least once.

    With ``only``, that round of each of them and no other.  ``short`` rounds end when the time
    is up, also if not every profile has had one; the first one is played in any case.
    """
    outcomes: list[Outcome] = []
    deadline = time.monotonic() + seconds
    number = 0 if only is None else only
    while True:
        for name in names:
            enough = bool(outcomes) if short else number > 0
            if enough and only is None and time.monotonic() >= deadline:
                return outcomes
            directory = where / f"{name}-{seed}-{number}"
            outcome = play(PROFILES[name], seed, number, directory, short=short)
            told(outcome)
            outcomes.append(outcome)
        number += 1
        if only is not None:
            return outcomes


def rotated(names: Sequence[str], seed: int) -> list[str]:
    """The same in the same order, with the seed saying which one comes first."""
    first = seed % len(names)
    return [*names[first:], *names[:first]]


def say(outcome: Outcome) -> None:
    """A round on standard output: a line, and one more for each violation."""
    tally = outcome.tally
    verdict = "clean" if not outcome.violations else f"{len(outcome.violations)} VIOLATIONS"
    counts = f"{tally.durable:7,} durable {tally.lost:5,} lost on record {tally.kills:3} kills"
    head = f"{outcome.profile:12} round {outcome.number:<4} {outcome.seconds:5.1f} s"
    lines = [f"{head} {counts}  {verdict}"]
    done = ", ".join(f"{what} {count}" for what, count in sorted(tally.troubles.items()))
    lines.append(f"    {done or 'no trouble'}")
    lines += [f"    not played: {why}" for why in sorted(tally.obstacles)]
    lines += [f"    {violation}" for violation in outcome.violations]
    if outcome.violations:
        lines.append(f"    again: {outcome.replay}")
    sys.stdout.write("\n".join(lines) + "\n")
    sys.stdout.flush()


def not_played(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Profiles whose trouble took no effect in any of their rounds, and why."""
    found: dict[str, str] = {}
    for name in {one.profile: None for one in outcomes}:
        mine = [one for one in outcomes if one.profile == name]
        needs = PROFILES[name].needs
        if any(one.tally.troubles[what] for one in mine for what in needs):
            continue
        reasons = sorted({why for one in mine for why in one.tally.obstacles})
        found[name] = "; ".join(reasons) or f"none of: {', '.join(needs)}"
    return found


def blocked(outcomes: Sequence[Outcome]) -> set[str]:
    """Profiles that this machine does not allow: reported, and no failure."""
    unplayed = not_played(outcomes)
    return {one.profile for one in outcomes if one.profile in unplayed and one.tally.obstacles}


def failed(outcomes: Sequence[Outcome]) -> bool:
    """Whether a round broke the promise, or a profile that could be played was not."""
    if any(one.violations for one in outcomes):
        return True
    return bool(set(not_played(outcomes)) - blocked(outcomes))


def table(outcomes: Sequence[Outcome]) -> str:
    """A row for each profile."""
    head = ("profile", *COLUMNS)
    rows = [_row(outcomes, name) for name in PROFILES if any(o.profile == name for o in outcomes)]
    unplayed = not_played(outcomes)
    lines = [f"{head[0]:12}" + "".join(f"{one:>11}" for one in head[1:])]
    for row in rows:
        lines.append(f"{row['profile']:12}" + "".join(f"{row[one]:>11,}" for one in head[1:]))
        lines += [f"    {name}: {count}" for name, count in row["invariants"].items()]
        if row["profile"] in unplayed:
            lines.append(f"    NOT PLAYED: {unplayed[row['profile']]}")
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
        "troubles": sum(sum(one.tally.troubles.values()) for one in mine),
        "by_kind": dict(sum((one.tally.troubles for one in mine), Counter[str]())),
        "violations": sum(broken.values()),
        "seconds": round(sum(one.seconds for one in mine)),
        "invariants": dict(sorted(broken.items())),
    }


def as_markdown(outcomes: Sequence[Outcome]) -> str:
    """The table as it stands in the docs."""
    lines = [
        "| | rounds | answered durable | delivered | acked | trouble | violations | seconds |",
        "|---|--:|--:|--:|--:|---|--:|--:|",
    ]
    rows = [_row(outcomes, name) for name in PROFILES if any(o.profile == name for o in outcomes)]
    unplayed = not_played(outcomes)
    for row in rows:
        name = f"`{row['profile']}`: {PROFILES[row['profile']].what}"
        if row["profile"] in unplayed:
            name += f" (**not played**: {unplayed[row['profile']]})"
        done = ", ".join(f"{what} {count:,}" for what, count in sorted(row["by_kind"].items()))
        counts = [f"{row[one]:,}" for one in COUNTED]
        lines.append(f"| {name} | {' | '.join([*counts[:4], done, *counts[4:]])} |")
    sums = [f"**{sum(row[one] for row in rows):,}**" for one in COUNTED]
    lines.append(f"| **all** | {' | '.join([*sums[:4], '', *sums[4:]])} |")
    return "\n".join(lines)


def write_into(page: str, outcomes: Sequence[Outcome], seed: int, when: str) -> str:
    """The page with the last run's table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise SystemExit(f"the page has no {BEGIN} … {END}")
    line = f"The last run: {when}, {os.cpu_count()} cores, seed {seed}."
    return f"{before}{BEGIN}\n{line}\n\n{as_markdown(outcomes)}\n{END}{after}"


def document(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """The same for programs."""
    unplayed = not_played(outcomes)
    bad = {one.profile for one in outcomes if one.profile in unplayed} - blocked(outcomes)
    return {
        "tried": len(outcomes),
        "failed": sum(bool(one.violations) for one in outcomes) + len(bad),
        "not_played": unplayed,
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
