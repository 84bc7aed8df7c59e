"""The server as a whole: how it is doing, in one place for Flight and HTTP."""

from __future__ import annotations

import threading
from importlib import metadata
from typing import Any

from flight_service.protocol.actions import Health, StatusReport
from flight_service.server.auth import Authenticator
from flight_service.server.limits import Gate
from flight_service.server.stream import ServedStream
from flight_service.server.streams import Streams
from quiver.clock import Clock
from quiver.disk.descriptors import DESCRIPTORS
from quiver.store.status import State


class ServerOverview:
    """Knows whether the server is recovering, ready, degraded or stopping."""

    def __init__(self, streams: Streams, gate: Gate, auth: Authenticator, clock: Clock) -> None:
        self._streams = streams
        self._gate = gate
        self._auth = auth
        self._clock = clock
        self._started = clock.monotonic()
        self._stopping = threading.Event()
        self.recovered = threading.Event()
        self.recovery_done = 0
        self.recovery_total = 0

    def stopping(self) -> bool:
        """Whether the server takes no more work."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """From here on new work is refused."""
        self._stopping.set()

    def health(self) -> Health:
        """The worst that is true, and what it is about."""
        problems: dict[str, Any] = dict(self._streams.damage())
        for stream in self._streams.opened():
            status = stream.store.status()
            if status.state is not State.OK:
                problems[stream.name] = f"{status.state}: {'; '.join(status.problems)}"
        if self._streams.problem is not None:
            problems["deleted.json"] = self._streams.problem
        if self._auth.problem is not None:
            problems["auth"] = self._auth.problem
        headroom = DESCRIPTORS.headroom()
        if headroom.is_low:
            problems["descriptors"] = headroom.describe()
        if self.stopping():
            word = "draining"
        elif not self.recovered.is_set():
            word = "recovering"
        else:
            word = "degraded" if problems else "ok"
        return Health(status=word, details=problems or None)

    def calls(self) -> dict[str, Any]:
        """Calls running, at most, and refused."""
        return self._gate.status()

    def status(self, names: list[str]) -> StatusReport:
        """The server, and these streams."""
        health = self.health()
        server: dict[str, Any] = {
            "version": _version(),
            "uptime_seconds": round(self._clock.monotonic() - self._started, 3),
            "health": health.status,
            "recovery": {
                "streams": self.recovery_total,
                "streams_done": self.recovery_done,
                "entries_read": self._streams.replayed,
            },
            "calls": self.calls(),
            "streams": len(self._streams.names()),
            "open_streams": len(self._streams.opened()),
        }
        opened = {stream.name: stream for stream in self._streams.opened()}
        streams = {
            name: stream_status(opened[name])
            if name in opened
            else {"state": self._streams.state(name)}
            for name in names
        }
        for name, problem in self._streams.damage().items():
            if name in streams:
                streams[name] = {"state": self._streams.state(name), "problem": problem}
        return StatusReport(server=server, streams=streams)


def stream_status(stream: ServedStream) -> dict[str, Any]:
    """One open stream, for JSON."""
    status: dict[str, Any] = stream.store.status().as_dict()
    status.pop("where")
    groups = stream.groups()
    subscribers = {
        str(one["name"]): {
            **one,
            "delivery": groups[one["name"]].status() if one["name"] in groups else None,
        }
        for one in status["subscribers"]
    }
    return {
        **status,
        "state": "open" if status["state"] == "ok" else status["state"],
        "settings": dict(stream.settings),
        "end": list(stream.store.end),
        "stages": stream.stages.status(),
        "subscribers": subscribers,
    }


def _version() -> str:
    try:
        return metadata.version("quiver-buffer")
    except metadata.PackageNotFoundError:
        return "unknown"
