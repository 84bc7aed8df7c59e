"""Servers of the current version, where the tests of 0.1.0 had one in their own process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

import flight_service
import quiver
from tests.wire.process import CURRENT, ServerProcess, forge

MakeServer = Callable[..., ServerProcess]

SMALL: dict[str, Any] = {
    "server__port": 0,
    "http__port": 0,
    "reserve": 0,
    "server__drain_timeout": "3s",
}
"""Any free port, and no bytes on disk that a test doesn't need."""


def pytest_sessionstart() -> None:
    """The client's side is the release, or nothing is tested here."""
    for package in (flight_service, quiver):
        assert (CURRENT / "build" / "compat") in Path(package.__file__).parents, package.__file__


def pytest_sessionfinish() -> None:
    if forge.cache_info().currsize:
        forge().close()


def serve(root: Path, **settings: Any) -> ServerProcess:
    """A server that has started."""
    named = {name.replace("__", "."): value for name, value in {**SMALL, **settings}.items()}
    server = ServerProcess(root, named)
    server.start()
    return server


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """Start servers; they are killed after the test."""
    servers: list[ServerProcess] = []

    def make(root: Path | None = None, **settings: Any) -> ServerProcess:
        servers.append(serve(root or tmp_path / "data", **settings))
        return servers[-1]

    yield make
    for server in servers:
        server.kill()


@pytest.fixture
def server(make_server: MakeServer) -> ServerProcess:
    """A server with default settings."""
    return make_server()


def connect(server: ServerProcess) -> flight.FlightClient:
    """A bare client."""
    return flight.FlightClient(f"grpc://127.0.0.1:{server.port}")


@pytest.fixture
def client(server: ServerProcess) -> Iterator[flight.FlightClient]:
    """A bare client of :func:`server`."""
    with connect(server) as client:
        yield client
