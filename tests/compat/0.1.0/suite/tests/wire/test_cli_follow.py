"""``quiver subscribe --follow`` as a process: files roll by time, Ctrl-C and kill lose nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from flight_service.cli.subscribe import Interrupts
from flight_service.client import connect
from flight_service.server import Server
from tests.wire.bare import logs
from tests.wire.test_cli_data import rows_in
from tests.wire.test_exchange import eventually

COMMAND = [sys.executable, "-c", "from quiver.cli import app; app()", "subscribe", "t"]


@contextmanager
def follower(server: Server, to: Path, every: str) -> Iterator[subprocess.Popen[str]]:
    """A subscriber that writes JSON lines for ever."""
    words = ["--as", "s", "--to", str(to), "--follow", "--format", "jsonl", "--every", every]
    with subprocess.Popen(
        [*COMMAND, *words],
        env={**os.environ, "QUIVER_URL": f"grpc://127.0.0.1:{server.port}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def numbers(to: Path) -> list[int]:
    return [row["n"] for row in rows_in(to.glob("*.jsonl"))]


def test_files_appear_by_time_and_ctrl_c_finishes_the_last(server: Server, tmp_path: Path) -> None:
    """A file each moment while bundles come; at Ctrl-C what is in hand is written and acked."""
    to = tmp_path / "out"
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        stream = client.stream("t")
        stream.put({"Logs": logs(0)})
        with follower(server, to, "0.2s") as process:
            eventually(lambda: numbers(to) == [0], 30)
            stream.put({"Logs": logs(1)})
            eventually(lambda: numbers(to) == [0, 1], 30)
            eventually(lambda: stream.lag("s").bundles == 0)
        with follower(server, to, "1h") as process:
            stream.put({"Logs": logs(2)})
            eventually(lambda: len(list(to.glob("*.part"))) == 1, 30)
            assert numbers(to) == [0, 1]
            process.send_signal(signal.SIGINT)
            said, _ = process.communicate(timeout=30)
            assert process.returncode == 0, said
        assert "1 bundles, 1 rows in 1 files, all acked" in said
        assert numbers(to) == [0, 1, 2]
        assert stream.lag("s").bundles == 0


@pytest.mark.kill
def test_a_follower_killed_hard_leaves_no_row_twice(server: Server, tmp_path: Path) -> None:
    """Killed with rows in an unfinished file: they come again, once, to its successor."""
    to = tmp_path / "out"
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        stream = client.stream("t")
        stream.put({"Logs": logs(0)})
        with follower(server, to, "1h") as process:
            eventually(lambda: len(list(to.glob("*.part"))) == 1, 30)
            process.kill()
            process.wait(30)
        assert numbers(to) == []
        stream.put({"Logs": logs(1)})
        with follower(server, to, "0.2s"):
            eventually(lambda: numbers(to) == [0, 1], 30)
            eventually(lambda: stream.lag("s").bundles == 0)
    assert not list(to.glob("*.part"))


def test_ctrl_c_waits_until_a_bundle_is_whole() -> None:
    """Scenario: Ctrl-C while a bundle is being written to a file. Guarantee: it comes with
    the next wait, so nothing is acked that is half in a file."""
    interrupts = Interrupts()
    done = []
    with interrupts.held():
        signal.raise_signal(signal.SIGINT)
        done.append("written whole")
        with pytest.raises(KeyboardInterrupt), interrupts.welcome():
            done.append("waited")
    assert done == ["written whole"]
