"""Feed one reader for as long as you like.

    python -m tests.fuzz wal --seconds 60
    python -m tests.fuzz segment --seconds 600 --corpus corpus/segment

With atheris (``pip install '.[fuzz]'``) the changes follow coverage, otherwise chance.
"""

from __future__ import annotations

import argparse
import sys
import time
from importlib.util import find_spec
from random import Random

from tests.fuzz.mutations import apply, at_random
from tests.fuzz.targets import Target, feed, targets


def at_random_for(target: Target, seconds: float, seed: int) -> int:
    """Change files at random; how many."""
    random = Random(seed)
    tried = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        data = apply(random.choice(target.seeds), at_random(random))
        feed(target, target.fix(data) if random.random() < 0.5 and len(data) > 4 else data)
        tried += 1
    return tried


def by_coverage(name: str, seconds: float, corpus: str | None) -> None:
    """Let atheris lead; it ends the process itself."""
    import atheris

    with atheris.instrument_imports(include=["quiver"]):
        for module in [name for name in sys.modules if name.startswith(("quiver", "tests"))]:
            del sys.modules[module]
        from tests.fuzz import targets as instrumented

    target = instrumented.targets()[name]

    def one(data: bytes) -> None:
        instrumented.feed(target, data)
        if len(data) > 4:
            instrumented.feed(target, target.fix(data))

    arguments = [sys.argv[0], f"-max_total_time={seconds:.0f}", "-rss_limit_mb=2048", "-timeout=20"]
    atheris.Setup([*arguments, *([corpus] if corpus else [])], one)
    atheris.Fuzz()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=sorted(targets()))
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--corpus", help="a directory that atheris keeps its finds in")
    parser.add_argument("--random", action="store_true", help="without atheris, even if it is here")
    chosen = parser.parse_args()
    if find_spec("atheris") is not None and not chosen.random:
        by_coverage(chosen.target, chosen.seconds, chosen.corpus)
    else:
        tried = at_random_for(targets()[chosen.target], chosen.seconds, chosen.seed)
        sys.stdout.write(f"{chosen.target}: {tried:,} files, only typed errors\n")


if __name__ == "__main__":
    main()
