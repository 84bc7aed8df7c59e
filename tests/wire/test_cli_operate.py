"""The commands that run a server, look at one, and look after its streams."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from flight_service.cli.status import view
from flight_service.client import connect
from flight_service.server import Server
from quiver.cli import app
from quiver.cli.frame import out
from tests.wire.bare import logs

Run = Callable[..., Result]
COMMANDS = [
    *("serve", "put", "get", "subscribe", "tail", "ack", "streams", "subscribers", "lag"),
    *("status", "health", "bench", "token", "completion"),
]


@pytest.fixture
def run(server: Server) -> Run:
    """Run a command against the server; it must succeed unless told otherwise."""

    def runner(*words: str, code: int = 0) -> Result:
        environment = {"QUIVER_URL": f"grpc://127.0.0.1:{server.port}", "COLUMNS": "200"}
        result = CliRunner().invoke(app, list(words), env=environment)
        assert result.exit_code == code, result.output
        return result

    return runner


def told(result: Result) -> Any:
    return json.loads(result.stdout)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_teaches_with_examples(command: str) -> None:
    """--help says what it does and shows how, with commands that begin as one types them."""
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120"})
    assert result.exit_code == 0
    assert "Examples" in result.output
    assert f"quiver {command}" in result.output


@pytest.mark.parametrize("command", [name for name in COMMANDS if name != "completion"])
def test_every_command_has_json(command: str) -> None:
    """Programs can read every answer."""
    result = CliRunner().invoke(app, [command, "--help"], env={"COLUMNS": "120"})
    assert "--json" in result.output or command == "tail"


def test_streams_are_made_listed_and_deleted(run: Run, tmp_path: Path) -> None:
    """With settings from a file; guarded deletion."""
    settings = tmp_path / "t.yaml"
    settings.write_text("segment: {target_size: 1MiB}\n")
    assert "no streams yet" in run("streams").output
    run("streams", "--create", "t", "--settings", str(settings))
    assert [one["name"] for one in told(run("streams", "--json"))] == ["t"]
    assert re.search(r"^t +closed", run("streams").output, re.MULTILINE)
    run("subscribers", "t", "--add", "s")
    assert re.search(r"^t +open +0 .* 1$", run("streams").output, re.MULTILINE)
    assert "Say --yes" in run("streams", "--delete", "t", code=1).output
    run("streams", "--delete", "t", "--yes")
    assert told(run("streams", "--json")) == []


def test_subscribers_and_lag(run: Run, server: Server) -> None:
    """Added, moved, looked at, alarmed about, removed."""
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        for number in range(3):
            client.stream("t").put({"Logs": logs(number)})
    assert "no subscribers yet" in run("subscribers", "t").output
    run("subscribers", "t", "--add", "late", "--start", "latest")
    assert told(run("lag", "t", "--json"))["late"]["bundles"] == 0
    run("subscribers", "t", "--seek", "late", "--start", "0.1")
    assert told(run("lag", "t", "--subscriber", "late", "--json"))["late"]["bundles"] == 2
    run("lag", "t", "--most", "2")
    run("lag", "t", "--most", "1", code=1)
    assert "2 bundles to go" in run("subscribers", "t", "--remove", "late", code=1).output
    run("subscribers", "t", "--remove", "late", "--yes")
    assert told(run("subscribers", "t", "--json")) == {}


def test_status_once_and_watched(run: Run, server: Server) -> None:
    """One look as a table and as JSON; a watch of two looks; the view has rates."""
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        stream = client.stream("t")
        stream.put({"Logs": logs(1)})
        stream.register("s")
        before = client.status()
        stream.put({"Logs": logs(2)})
        after = client.status()
    assert told(run("status", "--json"))["server"]["health"] == "ok"
    assert "t/s" in run("status").output
    lines = run("status", "--watch", "--count", "2", "--every", "0.1", "--json").stdout
    assert len(lines.splitlines()) == 2
    assert "t/s" in run("status", "--watch", "--count", "1").output
    with out.capture() as captured:
        out.print(view("x", after, before, 0.5))
    assert re.search(r"^t +open +2 +2 ", captured.get(), re.MULTILINE)


def test_bench_reports_both_sides_and_leaves_nothing(run: Run) -> None:
    """A short run: everything put was received, and its stream is gone."""
    words = ("bench", "--seconds", "0.3", "--size", "10KiB", "--producers", "2")
    answer = told(run(*words, "--json"))
    assert answer["put"]["bundles"] == answer["receive"]["bundles"] > 0
    assert answer["put"]["p50_ms"] <= answer["put"]["p99_ms"]
    assert told(run("streams", "--json")) == []
    assert "bundles/s" in run(*words).output


def test_completion_is_printed_and_answers() -> None:
    """The shell's script, and what it gets when it asks."""
    script = CliRunner().invoke(app, ["completion", "bash"]).stdout
    assert "_QUIVER_COMPLETE" in script
    assert CliRunner().invoke(app, ["completion", "cmd.exe"]).exit_code == 1
    asked = {**os.environ, "_QUIVER_COMPLETE": "complete_bash", "COMP_WORDS": "quiver su"}
    code = "from quiver.cli import app; app(prog_name='quiver')"
    answer = subprocess.run(
        [sys.executable, "-c", code],
        env={**asked, "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert set(answer.stdout.split()) == {"subscribe", "subscribers"}


def test_a_token_is_shown_with_its_hash() -> None:
    """What the client needs, and what the server's file needs."""
    answer = told(CliRunner().invoke(app, ["token", "--json"]))
    digest = hashlib.sha256(answer["token"].encode()).hexdigest()
    assert answer["hash"] == f"sha256:{digest}"
    assert "principals:" in CliRunner().invoke(app, ["token"]).output


def test_serve_lists_its_settings() -> None:
    """Every setting with its name in the environment; nothing is started."""
    rows = told(CliRunner().invoke(app, ["serve", "--settings", "--json"]))
    known = {row["name"]: row["env"] for row in rows}
    assert known["server.port"] == "QUIVER_SERVER__PORT"
    assert known["wal.max_size"] == "QUIVER_WAL__MAX_SIZE"
    defaults = {row["name"]: row["default"] for row in rows}
    assert defaults["server.idle_close"] == "300s"
    assert defaults["calls.put_wait"] == "250ms"
    assert "wal.max_size" in CliRunner().invoke(app, ["serve", "--settings"]).output


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--set", "wal.max_sice=1GiB"], "wal.max_size"),
        (["--set", "nonsense"], "is not a setting"),
        (["--host", "0.0.0.0"], "is not loopback and TLS is off"),
        (["--log", "loud"], "is not a form of log"),
        (["--config", "nowhere.yaml"], "nowhere.yaml can't be read"),
    ],
)
def test_serve_refuses_what_makes_no_sense(tmp_path: Path, words: list[str], message: str) -> None:
    """Two lines and exit code 1, and nothing listens."""
    root = ["--root", str(tmp_path / "data"), "--port", "0", "--http-port", "0"]
    result = CliRunner().invoke(app, ["serve", *root, *words], env={"COLUMNS": "200"})
    assert result.exit_code == 1, result.output
    assert message in result.output.replace("\n", " ")


@pytest.mark.kill
def test_serve_from_start_to_sigterm(tmp_path: Path) -> None:
    """File, environment and flags together; the log is JSON; SIGTERM ends it in order; a
    second server on the same directory is told who has it."""
    config = tmp_path / "q.yaml"
    config.write_text("reserve: 0\nserver: {drain_timeout: 3s}\n")
    command = [sys.executable, "-c", "from quiver.cli import app; app()", "serve"]
    flags = ["--config", str(config), "--port", "0", "--http-port", "0", "--log", "json", "--json"]
    environment = {**os.environ, "QUIVER_SERVER__ROOT": str(tmp_path / "data")}
    with subprocess.Popen(
        [*command, *flags],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        said = ""
        while not said.endswith("}\n"):
            line = process.stdout.readline()
            assert line, process.stderr.read()
            said += line
        where = json.loads(said)
        with connect(where["flight"]) as client:
            client.stream("t").put({"Logs": logs(1)})
        second = subprocess.run(
            [*command, *flags], env=environment, capture_output=True, text=True, check=False
        )
        assert second.returncode == 1
        assert f"pid {process.pid}" in second.stderr
        process.send_signal(signal.SIGTERM)
        events = [json.loads(line)["event"] for line in process.stderr]
        assert process.wait(30) == 0
    assert "quiver.server.started" in events
    assert "quiver.server.stopped" in events


def test_the_commands_belong_to_the_one_command() -> None:
    """quiver is one command: the library's tools and the server's, in two groups."""
    group = typer.main.get_command(app)
    assert set(COMMANDS) | {"inspect", "verify", "repair", "dump"} <= set(group.list_commands(None))  # type: ignore[attr-defined]


def test_status_tells_what_is_staged(server: Server, run: Run) -> None:
    """Scenario: an attempt is finished and another is being written; then they are aborted.
    Guarantee: status says so as long as it is so."""
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        stream = client.stream("t")
        with stream.stage("job", 0) as share:
            share.put({"Logs": logs(1)})
        other = stream.stage("job", 0)
        other.put({"Logs": logs(2)})
        other.flush()
        said = " ".join(run("status").output.split())
        assert "t: 2 attempts of 1 transactions are staged" in said
        assert "1 being written" in said
        other.discard()
        stream.abort("job", 0)
        assert "staged" not in run("status").output
