"""Environments that have what an installation would have, and nothing else.

A real virtual environment, with the wheel installed by pip.  The distributions that the wheel
requires, and those that these require, are linked from the environment the tests run in: nothing
is downloaded, and versions are those of ``constraints.txt``.  Whatever is not required is not
there.  ``pip check`` confirms that the set is complete and that its versions fit.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.metadata import Distribution, PathDistribution, distribution
from pathlib import Path
from typing import Final
from zipfile import Path as ZipPath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT: Final = Path(__file__).parents[2]
PIP: Final = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input")


def build_wheel(to: Path) -> Path:
    """The wheel of this checkout."""
    options = ["--no-deps", "--no-index", "--no-build-isolation", "--quiet"]
    run([*PIP, "wheel", *options, "--wheel-dir", to, ROOT], cwd=to)
    (wheel,) = to.glob("*.whl")
    return wheel


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment with the wheel in it."""

    path: Path

    def python(self, code: str, *arguments: object) -> str:
        """Run some Python there; what it printed. It must succeed."""
        done = run([self.path / "bin/python", "-c", code, *arguments], cwd=self.path)
        return done.stdout

    def quiver(self, *arguments: object, expect: int = 0) -> subprocess.CompletedProcess[str]:
        """Run the command as people do."""
        return run([self.path / "bin/quiver", *arguments], cwd=self.path, expect=expect)

    def has(self, module: str) -> bool:
        """Whether a module could be imported there."""
        code = (
            "import importlib.util, sys; print(importlib.util.find_spec(sys.argv[1]) is not None)"
        )
        return self.python(code, module).strip() == "True"


def make_environment(path: Path, wheel: Path, extras: Iterable[str] = ()) -> Environment:
    """What ``pip install quiver-buffer[…]`` makes."""
    found = _closure(_requirements(_metadata(wheel), frozenset(extras)))
    made = _make(path, wheel, found)
    run([*PIP[:3], "--python", path / "bin/python", *PIP[3:], "check"], cwd=path)
    return made


def make_bare_environment(path: Path, wheel: Path, *packages: str) -> Environment:
    """The wheel without what it requires, and these packages."""
    return _make(path, wheel, _closure(map(Requirement, packages)))


def run(command: list[object], *, cwd: Path, expect: int = 0) -> subprocess.CompletedProcess[str]:
    """Run a program outside of the checkout, without this process's settings of Python."""
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=cwd, env=clean_environment(), capture_output=True, text=True, check=False
    )
    assert done.returncode == expect, f"{words}: {done.returncode}\n{done.stdout}{done.stderr}"
    return done


def clean_environment() -> dict[str, str]:
    """The environment without what would change what Python imports."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _make(path: Path, wheel: Path, found: Iterable[Distribution]) -> Environment:
    venv.create(path, with_pip=False, symlinks=True)
    (site,) = path.glob("lib/python3*/site-packages")
    here = Path(sysconfig.get_path("purelib"))
    for one in found:
        for name in _top_level(one):
            (site / name).symlink_to(here / name)
    options = ["--no-deps", "--no-index", "--quiet"]
    run([*PIP[:3], "--python", path / "bin/python", *PIP[3:], "install", *options, wheel], cwd=path)
    return Environment(path)


def _top_level(one: Distribution) -> set[str]:
    """The files and directories in ``site-packages`` that are a distribution's."""
    names = {file.parts[0] for file in one.files or ()}
    return names - {"..", "__pycache__"}


def _metadata(wheel: Path) -> Distribution:
    (info,) = (one for one in ZipPath(wheel).iterdir() if one.name.endswith(".dist-info"))
    return PathDistribution(info)


def _requirements(one: Distribution, extras: frozenset[str]) -> Iterator[Requirement]:
    for text in one.requires or ():
        need = Requirement(text)
        marker = need.marker
        if marker is None or any(marker.evaluate({"extra": name}) for name in extras | {""}):
            yield need


def _closure(wanted: Iterable[Requirement]) -> list[Distribution]:
    """The distributions that satisfy these, and all that they require."""
    found: dict[str, Distribution] = {}
    seen: set[tuple[str, frozenset[str]]] = set()
    todo = list(wanted)
    while todo:
        need = todo.pop()
        name, extras = canonicalize_name(need.name), frozenset(need.extras)
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        found[name] = distribution(need.name)
        todo += _requirements(found[name], extras)
    return list(found.values())
