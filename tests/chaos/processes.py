"""Processes of a round: started, killed by their id, asked for their stacks."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

REPOSITORY: Final = Path(__file__).parents[2]
SITE: Final = Path(__file__).parent / "site"
END_SECONDS: Final = 20.0
QUIVER: Final = (sys.executable, "-c", "from quiver.cli import app; app()")
"""The command ``quiver``, of the tree these tests are in."""


class FakeClock:
    """The wall clock of the processes that are given its environment."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.set(0.0)

    def set(self, seconds: float) -> None:
        """Be off by so much from now on."""
        data = struct.pack("<q", int(seconds * 1e9))
        if not self._path.exists():
            self._path.write_bytes(data)
            return
        with self._path.open("r+b") as file:  # in place: others have it mapped
            file.write(data)

    @property
    def environment(self) -> dict[str, str]:
        return {"CHAOS_CLOCK": str(self._path)}


def environment(more: Mapping[str, str]) -> dict[str, str]:
    """Of a process of ours: our tree first, none of the caller's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("QUIVER_")}
    path = f"{SITE}{os.pathsep}{REPOSITORY}"
    return {**kept, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1", **more}


class Process:
    """A child, with its output in a file and its stacks for the asking."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        directory: Path,
        *,
        more: Mapping[str, str] | None = None,
        prepare: Callable[[], None] | None = None,
        announces: bool = False,
    ) -> None:
        self.name = name
        self.log = directory / f"{name}.log"
        self._stacks = directory / f"{name}.stacks"
        with self.log.open("a") as log:
            self._process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment({"CHAOS_STACKS": str(self._stacks), **(more or {})}),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE if announces else log,
                stderr=log,
                preexec_fn=prepare,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        """How it ended, if it did."""
        return self._process.poll()

    def first_line(self) -> bytes:
        """What it announces; empty if it ended without."""
        assert self._process.stdout is not None
        return self._process.stdout.readline()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to a process that may have ended."""
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(number)

    def wait(self, seconds: float) -> bool:
        """Whether it ended in time."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """As the kernel would; also a stopped one."""
        self.signal(signal.SIGKILL)
        self._process.wait(END_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()

    def terminate(self) -> bool:
        """SIGTERM; ``False`` if it had to be killed."""
        self.signal(signal.SIGTERM)
        ended = self.wait(END_SECONDS)
        self.kill()
        return ended

    def stacks(self) -> str:
        """What all its threads are doing."""
        self.signal(signal.SIGUSR1)
        self.wait(0.5)
        return self._stacks.read_text() if self._stacks.exists() else ""

    def tail(self, count: int = 2000) -> str:
        """The end of its output."""
        return self.log.read_text(errors="replace")[-count:] if self.log.exists() else ""


def run(command: Sequence[str], seconds: float = 60.0) -> tuple[int, str]:
    """A command that ends by itself: its status and standard output; -1 if it does not end."""
    try:
        done = subprocess.run(
            command,
            cwd=REPOSITORY,
            env=environment({}),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return -1, ""
    return done.returncode, done.stdout
