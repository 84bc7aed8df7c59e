"""Servers of the *current* version, for tests that are run by the code of 0.1.0.

The one file of this suite that was written anew, with ``conftest.py``: everything else is
as it was at 0.1.0.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

CURRENT = Path(os.environ["COMPAT_CURRENT"])
"""The repository whose server is tested."""


def free_port() -> int:
    """A port nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        found: int = probe.getsockname()[1]
        return found


class Forge:
    """The process that starts servers: see ``tests/compat/forge.py``."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "tests.compat.forge"],
            env={**os.environ, "PYTHONPATH": str(CURRENT)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        where = Path(self._answer()["quiver"])
        assert where.is_relative_to(CURRENT) and "build" not in where.parts, where

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, "the forge is gone"
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, **request: Any) -> dict[str, Any]:
        with self._lock:
            assert self._process.stdin is not None
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return self._answer()

    def close(self) -> None:
        """End it; it ends whatever servers are left."""
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        self._process.wait()


forge = cache(Forge)


class ServerProcess:
    """``quiver serve`` on a directory and a port that stay the same."""

    def __init__(self, root: Path, settings: Mapping[str, Any] | None = None) -> None:
        self.root = root
        self.port = free_port()
        self.http_port = 0
        self._settings = {
            "server.port": self.port,
            "http.port": 0,
            "reserve": 0,
            **(settings or {}),
            "server.root": str(root),
        }
        self._pid: int | None = None

    def start(self) -> None:
        """Start it and wait until it listens."""
        words = []
        for name, value in self._settings.items():
            said = value if isinstance(value, str) else json.dumps(value)
            words += ["--set", f"{name}={said}"]
        self.root.parent.mkdir(parents=True, exist_ok=True)
        log = self.root.parent / "server.log"
        answer = forge().ask(serve=words, log=str(log))
        assert "pid" in answer, log.read_text()[-2000:]
        self._pid = answer["pid"]
        self.port = int(answer["flight"].rpartition(":")[2])
        self._settings["server.port"] = self.port
        self.http_port = int(answer["http"].rpartition(":")[2])

    def kill(self) -> None:
        """As the kernel would, without a word."""
        self._end(signal.SIGKILL)

    def terminate(self, timeout: float = 30.0) -> int:
        """SIGTERM; the exit status."""
        return self._end(signal.SIGTERM, timeout)

    def stop(self) -> bool:
        """SIGTERM; whether it ended by itself, in time."""
        return self.terminate() == 0

    def _end(self, number: signal.Signals, timeout: float = 30.0) -> int:
        pid, self._pid = self._pid, None
        if pid is None:
            return 0
        status: int = forge().ask(end=pid, signal=int(number), timeout=timeout)["status"]
        return status

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        assert self._pid is not None
        return self._pid

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
