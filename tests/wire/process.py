"""The real server as a process of its own, to be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]


def free_port() -> int:
    """A port nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


class ServerProcess:
    """``python -m flight_service.server`` on a directory and a port that stay the same."""

    def __init__(self, root: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.root = root
        self.port = free_port()
        self._settings = {
            "server.root": str(root),
            "server.port": self.port,
            "http.port": 0,
            "reserve": 0,
            **(settings or {}),
        }
        self._process: subprocess.Popen[str] | None = None
        self.http_port = 0

    def start(self) -> None:
        """Start it and wait until it listens."""
        variables = {
            "QUIVER_" + name.replace(".", "__").upper(): str(value)
            for name, value in self._settings.items()
        }
        log = open(self.root.parent / "server.log", "a")  # noqa: SIM115 - it is the child's
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flight_service.server"],
            cwd=REPOSITORY,
            env={**os.environ, **variables},
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        log.close()
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, (self.root.parent / "server.log").read_text()[-2000:]
        self.http_port = json.loads(line)["http"]

    def kill(self) -> None:
        """As the kernel would, without a word."""
        self._end(signal.SIGKILL)

    def terminate(self, timeout: float = 30.0) -> int:
        """SIGTERM; the exit status."""
        return self._end(signal.SIGTERM, timeout)

    def _end(self, number: signal.Signals, timeout: float = 30.0) -> int:
        process = self._process
        if process is None:
            return 0
        self._process = None
        process.send_signal(number)
        try:
            return process.wait(timeout)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
            if process.stdout is not None:
                process.stdout.close()

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
