"""Real servers on real sockets, for tests that speak Flight."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

from flight_service.server import Server, Settings
from flight_service.server.service import FlightService

MakeServer = Callable[..., Server]

RPCS = (
    "do_action",
    "do_exchange",
    "do_get",
    "do_put",
    "get_flight_info",
    "get_schema",
    "list_actions",
    "list_flights",
)

SMALL: dict[str, Any] = {
    "server__port": 0,
    "http__port": 0,
    "reserve": 0,
    "server__drain_timeout": "3s",
}
"""Any free port, and no bytes on disk that a test doesn't need."""


@pytest.fixture(autouse=True)
def _trace_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Coverage in Flight's own threads, which Python's threading doesn't know about."""
    trace = threading.gettrace()
    if trace is None:
        return
    for name in RPCS:
        monkeypatch.setattr(FlightService, name, _traced(getattr(FlightService, name), trace))


def _traced(handler: Callable[..., Any], trace: Any) -> Callable[..., Any]:
    def traced(*arguments: Any) -> Any:
        sys.settrace(trace)
        return handler(*arguments)

    return traced


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """Start servers in this process; they are stopped after the test."""
    servers: list[Server] = []

    def make(root: Path | None = None, **settings: Any) -> Server:
        where = str(root or tmp_path / "data")
        loaded = Settings.load(env={}, **{**SMALL, "server__root": where, **settings})
        server = Server(loaded)
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.stop()


@pytest.fixture
def server(make_server: MakeServer) -> Server:
    """A server with default settings."""
    return make_server()


def connect(server: Server) -> flight.FlightClient:
    """A bare client."""
    return flight.FlightClient(f"grpc://127.0.0.1:{server.port}")


@pytest.fixture
def client(server: Server) -> Iterator[flight.FlightClient]:
    """A bare client of :func:`server`."""
    with connect(server) as client:
        yield client
