"""What hangs is seen: in tests, in the demo, and in a server that is asked."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]

HANGS: Final = """
import threading

def test_waits_for_nobody():
    threading.Event().wait()
"""

DEMO: Final = """
import threading
from examples.demo.watchdog import Watchdog

def nobody_comes():
    threading.Event().wait()

with Watchdog(lambda: print("shown", flush=True), patience=0.2) as dog:
    dog.progress(1)
    nobody_comes()
"""


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        cwd=ROOT,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_test_that_hangs_prints_all_stacks(tmp_path: Path) -> None:
    """A test waits for ever, and nothing interrupts it: the run ends, and says where it was."""
    (tmp_path / "test_hang.py").write_text(HANGS)
    done = run(
        *("-m", "pytest", "-q", "-p", "tests.support.watchdog", "-p", "no:cacheprovider"),
        *("-c", str(ROOT / "pyproject.toml"), "--rootdir", str(tmp_path), str(tmp_path)),
        WATCHDOG_GRACE="-119",
    )
    assert done.returncode not in (0, 2, 4, 5), done.stdout
    assert "test_waits_for_nobody" in done.stderr, done.stderr[-2000:]


def test_a_demo_without_progress_ends_and_shows_why() -> None:
    """Nothing moves: the demo prints all stacks and what its processes know, and ends."""
    done = run("-c", DEMO)
    assert done.returncode == 1
    assert "no progress" in done.stderr
    assert "nobody_comes" in done.stderr
    assert done.stdout == "shown\n"
