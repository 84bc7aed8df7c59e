"""A server whose descriptors are used up by connections: puts wait, nothing is poisoned."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any, Final
from urllib.request import urlopen

import pyarrow as pa
import pytest

from flight_service.client import Client, connect
from tests.wire.process import ServerProcess

ROOM: Final = 60
"""Descriptors that the server may open beyond those it has when it is idle."""
SETTINGS: Final = {
    "wal.rotation_target": "32KiB",
    "wal.max_size": "512KiB",
    "segment.target_size": "24KiB",
    "limits.max_bundle": "16KiB",
    "limits.max_unsynced": "64KiB",
}
"""Every few puts need another log file and another segment."""


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number] * 500})


def descriptors(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def until(true: Callable[[], bool], what: str, seconds: float = 30.0) -> None:
    deadline = time.monotonic() + seconds
    pause = threading.Event()
    while not true():
        assert time.monotonic() < deadline, what
        pause.wait(0.05)


def http(server: ServerProcess, page: str) -> str:
    with urlopen(f"http://127.0.0.1:{server.http_port}{page}", timeout=5) as answer:
        return str(answer.read().decode())


class Flood:
    """Plain TCP connections to a port, opened and closed so that the server stays at its limit."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._open: list[socket.socket] = []
        self._random = Random(6)

    def add(self, count: int) -> None:
        for _ in range(count):
            with contextlib.suppress(OSError):
                one = socket.create_connection(("127.0.0.1", self._port), timeout=1.0)
                self._open.append(one)

    def hover(self) -> None:
        """Some go, as many come."""
        gone = self._random.randint(1, 5)
        for _ in range(min(gone, len(self._open))):
            self._open.pop(self._random.randrange(len(self._open))).close()
        self.add(gone)

    def end(self) -> None:
        for one in self._open:
            one.close()
        self._open.clear()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ServerProcess]:
    root = tmp_path / "data"
    root.mkdir()
    with ServerProcess(root, SETTINGS) as server:
        yield server


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with connect(server.url) as client:
        yield client


def lower_the_limit(server: ServerProcess) -> int:
    limit = descriptors(server.pid) + ROOM
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (limit, limit))
    return limit


def test_the_server_raises_its_own_limit(tmp_path: Path) -> None:
    """The soft limit of a process is small by default; the server takes what it is allowed."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    root = tmp_path / "data"
    root.mkdir()
    server = ServerProcess(root)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard) // 2, hard))
    try:
        server.start()
        assert resource.prlimit(server.pid, resource.RLIMIT_NOFILE) == (hard, hard)
    finally:
        server.kill()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.timeout(180)
def test_connections_hover_at_the_limit(server: ServerProcess, client: Client) -> None:
    """Connections take every descriptor and never stay the same; puts go on meanwhile.

    Every put is answered `durable` or can be tried again; no stream is poisoned. When the
    connections are gone, the server answers new ones by itself, and everything is there.
    """
    stream = client.create_stream("s")
    refs = [stream.put({"Logs": batch(0)}).ref]
    limit = lower_the_limit(server)
    flood = Flood(server.port)
    flood.add(2 * ROOM)
    until(lambda: descriptors(server.pid) >= limit - 1, "the flood did not fill the server")
    over = threading.Event()

    def hover() -> None:
        while not over.wait(0.005):
            flood.hover()

    hovering = threading.Thread(target=hover)
    hovering.start()
    try:
        with stream.writer() as writer:
            pending = [writer.put({"Logs": batch(number)}) for number in range(1, 600)]
            refs += [one.result(60.0).ref for one in pending]
    finally:
        over.set()
        hovering.join()
        flood.end()
    until(lambda: descriptors(server.pid) < limit - ROOM // 2, "connections stayed open")

    def answers() -> bool:
        with contextlib.suppress(Exception), connect(server.url, wait=1.0) as again:
            return bool(again.health() == "ok")
        return False

    until(answers, "the server answers no new connection")
    status: Any = json.loads(http(server, "/status"))["streams"]["s"]
    assert status["state"] == "open", status["problems"]
    with connect(server.url) as again:
        found = [one["Logs"]["n"][0].as_py() for one in again.stream("s").get(*refs)]
        assert found == list(range(600))
        again.stream("s").put({"Logs": batch(600)})


def test_few_descriptors_are_a_named_problem(server: ServerProcess, client: Client) -> None:
    """Few are left, not none: health says so by name, metrics say how many, and puts go on."""
    client.create_stream("s").put({"Logs": batch(0)})
    free = "quiver_server_descriptors_free"
    assert client.health() == "ok"
    limit = lower_the_limit(server)
    flood = Flood(server.port)
    flood.add(ROOM - 10)
    until(lambda: descriptors(server.pid) >= limit - 15, "the flood did not fill the server")
    until(lambda: client.health() == "degraded", "health does not say so")
    ready = json.loads(http(server, "/readyz"))
    assert "few file descriptors are left" in ready["details"]["descriptors"]
    metrics = dict(
        line.rsplit(" ", 1)
        for line in http(server, "/metrics").splitlines()
        if not line.startswith("#")
    )
    assert float(metrics[free]) < 20
    assert float(metrics["quiver_server_descriptors_limit"]) == limit
    client.stream("s").put({"Logs": batch(1)})
    flood.end()
    until(lambda: client.health() == "ok", "health does not recover")


@pytest.mark.timeout(180)
def test_http_survives_a_lack_of_descriptors(server: ServerProcess, client: Client) -> None:
    """Connections to HTTP that can't be accepted: it waits for descriptors, then answers."""
    client.create_stream("s")
    limit = lower_the_limit(server)
    flood = Flood(server.port)
    flood.add(2 * ROOM)
    until(lambda: descriptors(server.pid) >= limit - 1, "the flood did not fill the server")
    asking = Flood(server.http_port)
    asking.add(20)
    stat = Path(f"/proc/{server.pid}/stat")

    def ticks() -> int:
        fields = stat.read_text().rpartition(")")[2].split()
        return int(fields[11]) + int(fields[12])

    before = ticks()
    threading.Event().wait(2.0)  # long enough to tell a busy loop from a server that waits
    assert ticks() - before < os.sysconf("SC_CLK_TCK")
    asking.end()
    flood.end()

    def answers() -> bool:
        with contextlib.suppress(OSError):
            return bool(http(server, "/healthz") == "ok\n")
        return False

    until(answers, "HTTP does not answer any more")
