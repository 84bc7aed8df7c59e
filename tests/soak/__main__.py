"""Run it: ``python -m tests.soak --minutes 60 --out docs/img/soak.png``."""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from tests.soak.life import Life
from tests.soak.picture import draw
from tests.soak.samples import as_csv, growing


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--dir", type=Path, help="where the store goes; a temporary one if not set")
    parser.add_argument("--out", type=Path, help="the picture")
    parser.add_argument("--csv", type=Path, help="the samples")
    chosen = parser.parse_args()
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryDirectory() as scratch:
        life = Life((chosen.dir or Path(scratch)) / "store", chosen.seed)
        life.go_on(chosen.minutes * 60)
    if chosen.csv:
        chosen.csv.write_text(as_csv(life.samples))
    title = (
        f"{chosen.minutes:g} minutes: {life.bundles:,} bundles put, {life.acked:,} acked,"
        f" {life.restarts:,} restarts"
    )
    if chosen.out and find_spec("matplotlib") is not None:
        draw(life.samples, chosen.out, title)
    problems = [*growing(life.samples), *(f"{error!r}" for error in life.errors)]
    last = life.samples[-1]
    sys.stdout.write(
        f"{title}; at the end {last.descriptors} descriptors, {last.threads} threads,"
        f" {last.memory >> 20} MiB resident, {last.disk >> 20} MiB on disk\n"
    )
    for problem in problems:
        sys.stdout.write(f"FAILED: {problem}\n")
    return bool(problems)


if __name__ == "__main__":
    sys.exit(main())
