"""``quiver health`` and the short way in that container engines use."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from flight_service.health import address, ask
from flight_service.server import Server
from quiver.cli import app
from tests.wire.process import REPOSITORY, free_port

SMALL = """
import runpy, sys
try:
    runpy.run_module("flight_service.health", run_name="__main__")
finally:
    print(*{"pyarrow", "typer", "quiver", "pydantic"} & set(sys.modules))
"""


@pytest.mark.parametrize(
    ("environment", "where"),
    [
        ({}, "http://127.0.0.1:8816"),
        ({"QUIVER_HTTP__PORT": "9000"}, "http://127.0.0.1:9000"),
        ({"QUIVER_HTTP__HOST": "0.0.0.0"}, "http://127.0.0.1:8816"),
        ({"QUIVER_HTTP__HOST": "::", "QUIVER_HTTP__PORT": ""}, "http://127.0.0.1:8816"),
        ({"QUIVER_HTTP__HOST": "10.1.2.3"}, "http://10.1.2.3:8816"),
        ({"QUIVER_HTTP__HOST": "fd00::7"}, "http://[fd00::7]:8816"),
    ],
)
def test_the_server_is_found_by_its_settings(environment: dict[str, str], where: str) -> None:
    """Scenario: the check runs in the server's own environment. Guarantee: it asks there."""
    assert address(environment) == where


def test_a_ready_server_is_told_from_one_that_is_not(server: Server) -> None:
    """Scenario: a server that serves, then drains, then is gone. Guarantee: 0, 1, 1, each
    with what it says."""
    url = f"http://127.0.0.1:{server.http_port}"
    ready = CliRunner().invoke(app, ["health", url, "--json"])
    assert ready.exit_code == 0
    assert json.loads(json.loads(ready.stdout)["answer"])["status"] == "ok"
    server.overview.stop()
    draining = CliRunner().invoke(app, ["health", url])
    assert draining.exit_code == 1
    assert "draining" in draining.output
    gone = CliRunner().invoke(app, ["health", f"http://127.0.0.1:{free_port()}"])
    assert gone.exit_code == 1
    assert "no answer" in gone.output


def test_the_short_way_in_is_cheap_and_ignores_proxies(server: Server) -> None:
    """Scenario: an engine asks every few seconds, on a machine with a proxy. Guarantee:
    exit code 0, without pyarrow and the rest being loaded."""
    environment = {
        **os.environ,
        "QUIVER_HTTP__PORT": str(server.http_port),
        "http_proxy": "http://127.0.0.1:9",
    }
    done = subprocess.run(
        [sys.executable, "-c", SMALL],
        cwd=REPOSITORY,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert '"ok"' in done.stdout
    assert done.stdout.splitlines()[-1] == ""


def test_what_is_no_server_is_no_crash() -> None:
    """Scenario: a wrong address. Guarantee: not ready, and why."""
    assert ask("http://127.0.0.1:1", timeout=1.0)[0] is False
