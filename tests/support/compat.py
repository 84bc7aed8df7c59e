"""Running the released versions that the tests hold on to, from their frozen wheels.

``tests/compat/<version>/`` holds the wheel of a release.  Its code is run in a process of its
own, never in the process of a test: both versions have the same package names.  Its
dependencies come from the environment the tests run in.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
COMPAT: Final = REPOSITORY / "tests" / "compat"
UNPACKED: Final = REPOSITORY / "build" / "compat"
SECONDS: Final = 100.0

# Where each package comes from is checked in every process: a search path that finds the
# current tree first would make every test here pass without testing anything.
_RUN: Final = """
import runpy, sys
_, code, kind, *sys.argv = sys.argv
import flight_service, quiver, spark_client
for package in (flight_service, quiver, spark_client):
    if not package.__file__.startswith(code + "/"):
        sys.exit(f"{package.__name__} is {package.__file__}, not of {code}")
if kind == "module":
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
else:
    runpy.run_path(sys.argv[0], run_name="__main__")
"""


@dataclass(frozen=True)
class Release:
    """A released version: what is kept of it, and its code, unpacked."""

    version: str
    kept: Path
    code: Path
    wheel: Path

    def command(self, *arguments: str | Path) -> list[str]:
        """``-m module …`` or ``script …``, to be run by this version's code."""
        kind, rest = "script", arguments
        if arguments[0] == "-m":
            kind, rest = "module", arguments[1:]
        # -P: neither the working directory nor the script's may come first.
        return [sys.executable, "-P", "-c", _RUN, str(self.code), kind, *map(str, rest)]

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """This version's code before everything else that could be imported."""
        return {**os.environ, **(more or {}), "PYTHONPATH": str(self.code)}

    def run(
        self,
        arguments: Sequence[str | Path],
        *,
        environment: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        timeout: float = SECONDS,
    ) -> subprocess.CompletedProcess[str]:
        """Run a module (``["-m", name, …]``) or a script of this version to its end."""
        return subprocess.run(
            self.command(*arguments),
            env=self.environment(environment),
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )


@cache
def release(version: str) -> Release:
    """A frozen release; its wheel is unpacked once, under ``build/``."""
    kept = COMPAT / version
    (wheel,) = kept.glob("*.whl")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    code = UNPACKED / f"{version}-{digest[:16]}"
    if not code.exists():
        UNPACKED.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(prefix=f"{version}.", dir=UNPACKED))
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(fresh)
        try:
            fresh.rename(code)  # several test processes may be at it: the first one wins
        except OSError:
            shutil.rmtree(fresh)
    return Release(version, kept, code, wheel)
