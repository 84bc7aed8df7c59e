"""A Python for Spark's workers that has pyspark and pyarrow, and nothing else.

It is an environment of its own whose packages are links to those of the one that runs the
tests: exact, and made in a second.  What isn't linked can't be imported, neither this
project nor what it needs.
"""

from __future__ import annotations

import fcntl
import sysconfig
import venv
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
PACKAGES = ("pyspark", "py4j", "pyarrow", "pyarrow.libs")


def bare_python() -> Path:
    """The interpreter; made once, and again when the versions change."""
    installed = Path(sysconfig.get_paths()["purelib"])
    wanted = sorted(one.name for one in installed.iterdir() if one.name.split("-")[0] in PACKAGES)
    where = REPOSITORY / "build" / "bare-python"
    made = where / "made-from"
    where.parent.mkdir(exist_ok=True)
    with (where.parent / "bare-python.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.read_text().split("\n") != [str(installed), *wanted]:
            venv.create(where, with_pip=False, symlinks=True, clear=True)
            (packages,) = where.glob("lib/python*/site-packages")
            for name in wanted:
                (packages / name).symlink_to(installed / name)
            made.write_text("\n".join([str(installed), *wanted]))
    return where / "bin" / "python"
