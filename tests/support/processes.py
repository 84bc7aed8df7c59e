"""A real server in a process of its own: started, killed hard, started again."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import Any

READY_SECONDS = 30


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class ServerProcess:
    """``python -m flight_service.server`` over a directory, always on the same port."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.root = root
        self.port = free_port()
        self._settings = {
            "server.root": str(root),
            "server.port": self.port,
            "http.enabled": False,
            "reserve": 0,
            **{name.replace("__", "."): value for name, value in settings.items()},
        }
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, and return once it says that it listens."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("QUIVER_")}
        for name, value in self._settings.items():
            env["QUIVER_" + name.upper().replace(".", "__")] = json.dumps(value)
        self._process = subprocess.Popen(
            [sys.executable, "-m", "flight_service.server"],
            env=env,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the server did not start: {self._process.wait(READY_SECONDS)}"

    def kill(self) -> None:
        """``kill -9``."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """``kill``: it drains and leaves; its exit status."""
        return self._end(signal.SIGTERM)

    def _end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        code = process.wait(READY_SECONDS)
        assert process.stdout is not None
        process.stdout.close()
        return code

    def __enter__(self) -> ServerProcess:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.kill()
