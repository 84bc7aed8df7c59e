"""A client, and a server in this process, after a fork: refused at once, with advice."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pytest

from tests.wire.process import REPOSITORY, ServerProcess

SECONDS: Final = 60

CLIENT: Final = """
import os, signal, sys
import pyarrow as pa
from flight_service.client import Forked, connect

def refused(call):
    try:
        call()
    except Forked as error:
        assert error.code == "forked" and "spawn" in str(error), error
        return
    raise SystemExit("it was not refused")

batch = pa.record_batch({"n": [1]})
with connect(sys.argv[1]) as client:
    stream = client.create_stream("s", exist_ok=True)
    stream.put({"Logs": batch})
    writer = stream.writer()
    pending = writer.put({"Logs": batch})
    pending.result()
    bundles = stream.subscribe("a")
    held = bundles.next_bundle(10)
    if os.fork() == 0:
        signal.alarm(20)
        for call in (
            lambda: client.health(), lambda: client.stream("s"), lambda: client.close(),
            lambda: stream.put({"Logs": batch}), lambda: writer.put({"Logs": batch}),
            lambda: writer.close(), lambda: next(bundles), lambda: bundles.close(),
            lambda: held.ack(), lambda: connect(sys.argv[1]),
        ):
            refused(call)
        sys.exit(0)
    code = os.waitstatus_to_exitcode(os.wait()[1])
    held.ack(durable=True)
    writer.close()
    bundles.close()
    stream.put({"Logs": batch})
sys.exit(code)
"""

WORKER: Final = """
import os, signal, sys
import pyarrow as pa
from flight_service.client import connect

for _ in range(2):
    if os.fork() == 0:
        signal.alarm(20)
        with connect(sys.argv[1]) as client:
            client.create_stream("s", exist_ok=True).put({"Logs": pa.record_batch({"n": [1]})})
        sys.exit(0)
    code = os.waitstatus_to_exitcode(os.wait()[1])
    assert code == 0, code
with connect(sys.argv[1]) as client:
    assert client.health() == "ok"
"""

SERVER: Final = """
import os, signal, sys
from flight_service.server import Server, Settings
from quiver.errors import Forked

loaded = Settings.load(
    env={}, server__port=0, http__port=0, reserve=0, server__root=sys.argv[1],
    server__drain_timeout="3s",
)
server = Server(loaded)
server.start()
if os.fork() == 0:
    signal.alarm(20)
    for call in (lambda: server.start(), lambda: server.stop(), lambda: server.port):
        try:
            call()
        except Forked:
            continue
        os._exit(1)
    os._exit(0)
code = os.waitstatus_to_exitcode(os.wait()[1])
assert server.stop()
sys.exit(code)
"""


def run(program: str, *arguments: str) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program, *arguments],
        cwd=REPOSITORY,
        timeout=SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "Traceback" not in done.stderr, done.stderr[-4000:]


@pytest.mark.timeout(SECONDS * 2)
def test_a_client_is_refused_in_a_child(tmp_path: Path) -> None:
    """Connect, put, subscribe, fork. The child's calls, and connecting anew, raise `Forked`.

    Each of them would hang. The child ends normally, and the parent's calls go on.
    """
    root = tmp_path / "data"
    root.mkdir()
    with ServerProcess(root) as server:
        run(CLIENT, server.url)


def test_workers_forked_before_the_first_connection(tmp_path: Path) -> None:
    """As PySpark's daemon does: it has the client loaded, and its workers connect."""
    root = tmp_path / "data"
    root.mkdir()
    with ServerProcess(root) as server:
        run(WORKER, server.url)


def test_a_server_is_refused_in_a_child(tmp_path: Path) -> None:
    """A process that serves forks: the child can't stop or use the server, the parent can.

    The child leaves with `os._exit`, as multiprocessing's do: at a normal exit Arrow would
    wait for the threads of the server.
    """
    run(SERVER, str(tmp_path / "data"))
