"""``quiver serve`` on a directory and a port that stay the same from life to life."""

from __future__ import annotations

import contextlib
import os
import resource
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.chaos.processes import QUIVER, Process
from tests.wire.process import free_port


class Server:
    """The real server, started and ended as often as wanted."""

    def __init__(self, root: Path, logs: Path, more: Mapping[str, str]) -> None:
        self.root = root
        self.port = free_port()
        self._logs = logs
        self._more = dict(more)
        self.process: Process | None = None
        self.descriptors: int | None = None
        """Most files it may have open; the system's own limit if left out."""

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def start(self, settings: Mapping[str, Any], slow_ms: float = 0.0) -> bool:
        """Start it and wait until it listens; ``False`` if it ended instead."""
        command = [*QUIVER, "serve", "--root", str(self.root), "--json", "--log", "json"]
        command += ["--port", str(self.port), "--http-port", "0"]
        for name, value in settings.items():
            command += ["--set", f"{name}={value}"]
        more = {**self._more, "CHAOS_SLOW": str(slow_ms)}
        self.process = Process(
            "server", command, self._logs, more=more, prepare=self._prepare(), announces=True
        )
        if self.process.first_line():
            return True
        self.process.kill()
        self.process = None
        return False

    def _prepare(self) -> Callable[[], None] | None:
        most = self.descriptors
        if most is None:
            return None
        return lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

    @property
    def open_files(self) -> int:
        """Descriptors that it has now."""
        try:
            return 0 if self.process is None else len(os.listdir(f"/proc/{self.process.pid}/fd"))
        except FileNotFoundError:
            return 0

    def limit_memory(self, more: int) -> bool:
        """Let it have so many bytes more than it has now, and no more; whether that worked."""
        if self.process is None:
            return False
        pid = self.process.pid
        try:
            status = Path(f"/proc/{pid}/status").read_text()
            (held,) = [line.split()[1] for line in status.splitlines() if line.startswith("VmData")]
            _, most = resource.prlimit(pid, resource.RLIMIT_DATA)
            resource.prlimit(pid, resource.RLIMIT_DATA, (int(held) * 1024 + more, most))
        except (OSError, ValueError):
            return False
        return True

    def free_memory(self) -> None:
        """Take the limit away."""
        if self.process is not None:
            with contextlib.suppress(OSError):
                _, most = resource.prlimit(self.process.pid, resource.RLIMIT_DATA)
                resource.prlimit(self.process.pid, resource.RLIMIT_DATA, (most, most))

    def kill(self) -> None:
        """kill -9."""
        if self.process is not None:
            self.process.kill()
            self.process = None

    def terminate(self) -> bool:
        """SIGTERM; whether it ended in time."""
        if self.process is None:
            return True
        process, self.process = self.process, None
        return process.terminate()

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.running
