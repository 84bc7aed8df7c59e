"""Servers and producers as processes: started, asked, measured, ended."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Numeric libraries start threads that spin; a producer has no use for them.
_ENVIRONMENT = {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class ServerProcess:
    """A server that listens."""

    process: subprocess.Popen[str]
    port: int
    http: int | None

    @property
    def cpu_seconds(self) -> float:
        """Processor time it took so far, in the kernel and outside."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def peak_rss(self) -> int:
        """Most memory it ever held, in bytes."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0


@contextlib.contextmanager
def quiver_server(root: Path, **settings: Any) -> Iterator[ServerProcess]:
    """Quiver as it is shipped, on free ports; ``wal__max_size=…`` sets ``wal.max_size``."""
    values = {"server__root": str(root), "server__port": 0, "http__port": 0, **settings}
    environment = {f"QUIVER_{name.upper()}": str(value) for name, value in values.items()}
    with _started("flight_service.server", environment) as server:
        yield server


@contextlib.contextmanager
def discarding_server() -> Iterator[ServerProcess]:
    """R."""
    with _started("benchmarks.flight.discard", {}) as server:
        yield server


@contextlib.contextmanager
def _started(module: str, environment: dict[str, str]) -> Iterator[ServerProcess]:
    with _running([module], environment, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError(f"{module} did not start: {process.wait()}")
        said = json.loads(line)
        yield ServerProcess(process, said["flight"], said.get("http"))


class Producer:
    """A process that puts; see :mod:`benchmarks.flight.producer`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def begin(self, job: dict[str, Any]) -> None:
        """Give it a job, up to the point where it is ready to go."""
        self._say(json.dumps(job))

    def await_ready(self) -> None:
        self._hear("ready")

    def go(self) -> None:
        self._say("go")

    def result(self) -> dict[str, float]:
        """What it measured."""
        return dict(json.loads(self._hear()))

    def _say(self, line: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _hear(self, expected: str | None = None) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline().strip()
        if not line or (expected is not None and line != expected):
            raise RuntimeError(f"a producer said {line!r}")
        return line


@contextlib.contextmanager
def producers(count: int) -> Iterator[list[Producer]]:
    """Idle producers."""
    with contextlib.ExitStack() as stack:
        yield [
            Producer(stack.enter_context(_running(["benchmarks.flight.producer"], {})))
            for _ in range(count)
        ]


@contextlib.contextmanager
def _running(
    module: list[str], environment: dict[str, str], stderr: int | None = None
) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, "-m", *module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        env={**os.environ, **_ENVIRONMENT, **environment},
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        if process.stdout is not None:
            process.stdout.close()
