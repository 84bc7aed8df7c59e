"""Clients that are in use: the wire and client tests of a release against today's server."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from tests.compat import golden
from tests.support.compat import REPOSITORY, release

CHANGED = ("tests/wire/test_plan.py::test_a_plan_tells_what_was_lost",)
"""What is meant to differ: a bundle that every subscriber had finished is not counted as lost
any more, which this test of 0.1.0 expects."""
SECONDS = 300.0
"""Longest time a suite may take; it takes about one minute."""


@pytest.mark.timeout(SECONDS + 20)
@pytest.mark.parametrize("version", golden.VERSIONS)
def test_clients_of_a_release_work_with_this_server(version: str, tmp_path: Path) -> None:
    """Scenario: the release's client, its command line and bare pyarrow by the release's
    protocol page, as its own tests use them, in processes that run the release's code; the
    server is ``quiver serve`` of the current code. Guarantee: every one of these tests passes."""
    old = release(version)
    done = old.run(
        [
            *("-m", "pytest", "--quiet", "-n", "2", f"--basetemp={tmp_path}/suite"),
            *(f"--deselect={name}" for name in CHANGED),
        ],
        environment={"COMPAT_CURRENT": str(REPOSITORY)},
        cwd=old.kept / "suite",
        timeout=SECONDS,
    )
    assert done.returncode == 0, f"{done.stdout[-6000:]}\n{done.stderr[-2000:]}"


@pytest.mark.parametrize("version", golden.VERSIONS)
def test_a_release_runs_its_own_code(version: str, tmp_path: Path) -> None:
    """Scenario: a script is run by a release in the current tree's directory. Guarantee: the
    packages it imports are the release's; with the current tree first it would be refused."""
    script = tmp_path / "where.py"
    script.write_text("import quiver\nprint(quiver.__file__)\n")
    old = release(version)
    done = old.run([script], cwd=REPOSITORY)
    assert Path(done.stdout.strip()).is_relative_to(old.code), done
    misled = dataclasses.replace(old, code=REPOSITORY).environment()
    refused = subprocess.run(
        old.command(script), env=misled, capture_output=True, text=True, check=False
    )
    assert refused.returncode != 0
    assert f"not of {old.code}" in refused.stderr
