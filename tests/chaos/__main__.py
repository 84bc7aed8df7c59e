"""``python -m tests.chaos``: rounds for some minutes, a table, and its JSON beside it.

::

    python -m tests.chaos --minutes 10
    python -m tests.chaos --profile kill,rest --seed 7
    python -m tests.chaos --profile kill --seed 7 --round 3     one round again
    python -m tests.chaos --minutes 60 --write                  the table into the docs

It fails for a violation, and for a profile whose trouble took effect in none of its rounds.
What this machine does not allow (mounting a small file system) is reported as not played.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from random import SystemRandom
from typing import Final

from tests.chaos.profiles import PROFILES
from tests.chaos.run import failed, run, say, table, write_document, write_into

RESULT: Final = Path("build") / "chaos.json"
PAGE: Final = Path(__file__).resolve().parents[2] / "docs" / "reliability.md"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--profile", default="all", help=f"all, or some of {', '.join(PROFILES)}")
    parser.add_argument("--seed", type=int, default=None, help="by chance if left out")
    parser.add_argument("--round", type=int, default=None, help="only this one")
    parser.add_argument("--json", type=Path, default=RESULT, help="where the table goes as JSON")
    parser.add_argument("--keep", type=Path, default=None, help="where rounds are played and kept")
    parser.add_argument("--short", action="store_true", help="one step of trouble in each round")
    parser.add_argument("--write", action="store_true", help="put the table into the docs")
    chosen = parser.parse_args()
    names = list(PROFILES) if chosen.profile == "all" else chosen.profile.split(",")
    unknown = [name for name in names if name not in PROFILES]
    if unknown:
        parser.error(f"there is no profile {unknown[0]}; there are {', '.join(PROFILES)}")
    seed = SystemRandom().randrange(1_000_000) if chosen.seed is None else chosen.seed
    where = chosen.keep or Path(tempfile.mkdtemp(prefix="quiver-chaos-"))
    sys.stdout.write(f"seed {seed}; rounds with violations are kept in {where}\n")
    outcomes = run(
        names, chosen.minutes * 60, seed, where, only=chosen.round, short=chosen.short, told=say
    )
    sys.stdout.write(f"\n{table(outcomes)}\n")
    write_document(outcomes, chosen.json)
    if chosen.write:
        PAGE.write_text(
            write_into(PAGE.read_text(), outcomes, seed, f"{datetime.now(UTC):%Y-%m-%d}")
        )
    return 1 if failed(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
