"""A real server in a process of its own, to be killed."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

SHOWN: Final = 20_000
"""Characters of the log that are shown when something hangs."""


class ServerProcess:
    """A server on a port and a directory that stay the same."""

    def __init__(self, root: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._environment = {
            **os.environ,
            "QUIVER_SERVER__ROOT": str(root),
            "QUIVER_SERVER__PORT": str(self.port),
            "QUIVER_HTTP__ENABLED": "false",
        }
        self._log = root.parent / "server.log"
        self._process: subprocess.Popen[str] | None = None

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def start(self) -> int:
        """Start it and wait until it listens; its process id."""
        with self._log.open("a") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "flight_service.server"],
                env=self._environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self._process.stdout is not None
        if not (line := self._process.stdout.readline()):
            raise SystemExit("the server did not start")
        json.loads(line)
        return self._process.pid

    def stacks(self) -> str:
        """The end of its log, with the stacks of all its threads; then it is ended."""
        if self._process is not None:
            self._process.send_signal(signal.SIGUSR1)
            time.sleep(1.0)  # it may hang: nothing else says that it is done
            self._process.kill()
        return self._log.read_text()[-SHOWN:]

    def end(self, number: signal.Signals) -> None:
        """Send a signal and wait until the process is gone."""
        if self._process is not None:
            self._process.send_signal(number)
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None
