"""The ``quiver`` command, as it is typed: what it prints, what it exits with."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner, Result

import quiver
from quiver.cli import app, commands
from quiver.clock import SystemClock
from quiver.disk.disk import Disk
from quiver.disk.lock import StoreLock
from quiver.disk.posix import PosixDisk
from tests.support.crashed import SETTINGS, logs, mostly_in_log
from tests.support.rust import FIXTURES, Image

runner = CliRunner()


def run(*arguments: object) -> Result:
    return runner.invoke(app, [str(argument) for argument in arguments])


def answer(*arguments: object) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return document


def put_down(image: Image, root: Path) -> Path:
    for path, data in image.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_bytes(data)
    return root


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store that crashed, on the real disk."""
    return put_down(mostly_in_log().image, tmp_path / "telemetry")


@pytest.fixture
def damaged(store: Path) -> Path:
    """The same with a flipped byte in the middle of its log."""
    path = store / "wal" / "quiver.wal.3"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    return store


def contents(root: Path) -> Image:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file()}


@pytest.fixture
def read_only(damaged: Path) -> Iterator[Path]:
    """A directory in which nothing may be written, and, even for root, nothing is."""
    before = contents(damaged)
    for path in [*damaged.rglob("*"), damaged]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    yield damaged
    for path in [damaged, *damaged.rglob("*")]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    assert contents(damaged) == before


# which stores are meant


@pytest.mark.parametrize("below", ["streams/{}/store", "{}/store", "{}"])
def test_all_streams_of_a_server_at_once(store: Path, tmp_path: Path, below: str) -> None:
    """Scenario: the root of a server, its directory of streams, or stores side by side;
    a deleted stream is still in the trash. Guarantee: each store is found, under its own
    name, and what is in the trash is none."""
    root = tmp_path / "root"
    for name in ("a", "b"):
        shutil.copytree(store, root / below.format(name))
    shutil.copytree(store, root / "trash" / "c.0123" / "store")
    assert sorted(answer("verify", root)["stores"]) == ["a", "b"]


# inspect


def test_inspect(store: Path) -> None:
    """A table for people: bundles, segments, log files, subscribers and how far behind."""
    result = run("inspect", store)
    assert result.exit_code == 0
    for word in ("36 bundles", "72 rows", "Logs = 0", "wal/quiver.wal.2", "exporter", "idle"):
        assert word in result.stdout


def test_inspect_json(store: Path) -> None:
    """The same for programs."""
    found = answer("inspect", store)
    assert (found["sound"], found["bundles"], found["rows"]) == (True, 36, 72)
    assert [s["state"] for s in found["segments"]] == ["sealed", "in log"]
    lag = {s["name"]: (s["acked"], s["lag_bundles"]) for s in found["subscribers"]}
    assert lag == {"exporter": (9, 27), "idle": (0, 36)}
    assert found["bytes"] == sum(map(len, contents(store).values()))


def test_inspect_of_a_rust_directory() -> None:
    """A directory of the Rust crate is shown like any other."""
    found = answer("inspect", FIXTURES / "multislot" / "data")
    assert (found["written_by"], found["bundles"]) == ("the Rust crate", 20)


def test_many_segments_are_cut_short(tmp_path: Path) -> None:
    """A long list shows both of its ends; ``--all`` shows it whole."""
    with quiver.open(tmp_path / "s", reserve=0) as opened:
        for number in range(30):
            opened.put({"Logs": logs(number)})
            opened.flush()
    assert "10 more" in run("inspect", tmp_path / "s").stdout
    assert "10 more" not in run("inspect", tmp_path / "s", "--all").stdout


# verify


def test_verify_sound(store: Path) -> None:
    """Exit code 0."""
    result = run("verify", store)
    assert result.exit_code == 0
    assert "sound" in result.stdout
    assert answer("verify", store)["problems"] == []


def test_verify_damaged(damaged: Path) -> None:
    """Exit code 2, with file, place, and what it costs; nothing is changed."""
    before = contents(damaged)
    result = run("verify", damaged)
    assert result.exit_code == 2
    assert "wal/quiver.wal.3 byte" in result.stdout
    assert "1 bundle lost" in result.stdout
    found = answer("verify", damaged)
    assert (found["sound"], found["lost_bundles"]) == (False, 1)
    assert found["problems"][0]["offset"] > 0
    assert contents(damaged) == before


def test_verify_a_missing_segment(store: Path) -> None:
    """The floor knows which segments must be there."""
    os.unlink(store / "segments" / "0000000000000000.qseg")
    result = run("verify", store)
    # Its entries are still in the log, so no bundle is lost.
    assert result.exit_code == 0
    os.unlink(store / "wal" / "quiver.wal.1")
    result = run("verify", store)
    assert result.exit_code == 2
    assert "lost" in result.stdout


# dump


def test_dump(store: Path, tmp_path: Path) -> None:
    """Bundles as plain Arrow streams, and a list of them."""
    out = tmp_path / "out"
    result = run("dump", store, "--out", out)
    assert result.exit_code == 0
    assert "saved 36 bundles" in result.stdout
    manifest = json.loads((out / "manifest.json").read_text())
    assert isinstance(manifest, list)
    assert set(manifest[0]) == {"ref", "sequence", "ingestion_ts_ns", "slots", "subscribers"}
    assert set(manifest[0]["slots"][0]) == {"slot", "fingerprint", "rows", "file"}
    assert manifest[4]["ref"] == [1, 0]
    assert manifest[4]["subscribers"] == {"exporter": "acked", "idle": "pending"}
    for number, line in enumerate(manifest):
        segment, index = line["ref"]
        path = out / f"{segment}.{index}" / "0.arrows"
        assert out / line["slots"][0]["file"] == path
        assert pa.ipc.open_stream(path.read_bytes()).read_all()["n"][0].as_py() == number * 100
    assert not (out / "lost.json").exists()


def test_dump_of_a_damaged_store(damaged: Path, tmp_path: Path) -> None:
    """Saves what is sound, lists what is lost, exit code 2, changes nothing."""
    before = contents(damaged)
    result = run("dump", damaged, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert "saved 35 bundles" in result.stdout
    assert "1 bundle lost" in result.stdout
    lost = json.loads((tmp_path / "out" / "lost.json").read_text())
    (one,) = lost["lost"]
    assert (one["file"], one["bundles"], len(one["refs"])) == ("wal/quiver.wal.3", 1, 1)
    assert contents(damaged) == before


def test_dump_refuses_a_directory_with_something_in_it(store: Path, tmp_path: Path) -> None:
    """Unless told to."""
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    result = run("dump", store, "--out", out)
    assert result.exit_code == 1
    assert "not empty" in result.stderr
    assert os.listdir(out) == ["mine.txt"]
    assert run("dump", store, "--out", out, "--force").exit_code == 0
    assert run("dump", store, "--out", out, "--force").exit_code == 0
    assert (out / "mine.txt").read_text() == "mine"
    assert len(json.loads((out / "manifest.json").read_text())) == 36


def test_dump_refuses_to_write_into_the_store(store: Path) -> None:
    """The store is never changed, by nobody's mistake."""
    for out in (store, store / "out"):
        result = run("dump", store, "--out", out, "--force")
        assert result.exit_code == 1
        assert "inside of the store" in result.stderr
    assert not (store / "out").exists()


def test_dump_json(store: Path, tmp_path: Path) -> None:
    """What was done, for programs."""
    found = answer("dump", store, "--out", tmp_path / "out")
    assert (found["sound"], found["saved"], found["lost"]) == (True, 36, [])


def test_dump_while_a_writer_runs(tmp_path: Path) -> None:
    """No lock is needed, and what is durable is saved."""
    with quiver.open(tmp_path / "s", **SETTINGS) as opened:
        for number in range(5):
            opened.put({"Logs": logs(number)}).wait()
        assert run("dump", tmp_path / "s", "--out", tmp_path / "out").exit_code == 0
        assert run("verify", tmp_path / "s").exit_code == 0
        assert run("inspect", tmp_path / "s").exit_code == 0
        opened.put({"Logs": logs(5)}).wait()
    assert len(json.loads((tmp_path / "out" / "manifest.json").read_text())) == 5


def test_all_but_repair_work_where_nothing_can_be_written(read_only: Path, tmp_path: Path) -> None:
    """Files and directories that can't be written to are no obstacle."""
    assert run("inspect", read_only).exit_code == 2
    assert run("verify", read_only).exit_code == 2
    assert run("dump", read_only, "--out", tmp_path / "out").exit_code == 2
    assert run("repair", read_only).exit_code == 2


# repair


def test_repair_says_what_it_would_do(damaged: Path) -> None:
    """Without ``--yes`` nothing is changed."""
    before = contents(damaged)
    result = run("repair", damaged)
    assert result.exit_code == 2
    assert "would be done" in result.stdout
    assert "wal/quiver.wal.3 byte" in result.stdout
    assert "--yes" in result.stdout
    assert contents(damaged) == before


def test_repair(damaged: Path) -> None:
    """With ``--yes`` the store opens again, without the one bundle, which is on record."""
    with pytest.raises(quiver.QuiverError):
        quiver.open(damaged, **SETTINGS)
    result = run("repair", damaged, "--yes")
    assert result.exit_code == 0
    assert "repaired" in result.stdout
    assert "1 bundles recorded as lost" in result.stdout
    assert run("verify", damaged).exit_code == 0
    assert "on record as lost" in run("inspect", damaged).stdout
    with quiver.open(damaged, clock=quiver.ManualClock(), **SETTINGS) as store:
        assert store.lag("idle").bundles == 35
        again = store.put({"Logs": logs(7)}, key="key-7")
        assert again.wait().ref == (1, 3)
    assert len(list((damaged / "quarantine").iterdir())) >= 5


def test_repair_of_a_sound_store(store: Path) -> None:
    """There is nothing to do."""
    before = contents(store)
    result = run("repair", store, "--yes")
    assert result.exit_code == 0
    assert "nothing to repair" in result.stdout
    assert contents(store) == before


def test_repair_needs_the_lock(damaged: Path) -> None:
    """Two must not write to one store: the error names who does."""
    with StoreLock.acquire(Disk(PosixDisk(damaged)), SystemClock(), where=str(damaged)):
        result = run("repair", damaged, "--yes")
    assert result.exit_code == 1
    assert result.stderr.startswith(f"quiver: cannot open {damaged}: another process (host ")
    assert f"pid {os.getpid()}" in result.stderr


# What is wrong with what was typed


@pytest.mark.parametrize("command", ["inspect", "verify", "repair", "dump"])
def test_wrong_directories(command: str, tmp_path: Path) -> None:
    """Two lines, what and what to do, no traceback, exit code 1."""
    (tmp_path / "file").write_text("no store")
    (tmp_path / "empty").mkdir()
    more = ["--out", tmp_path / "out"] if command == "dump" else []
    for name in ("nowhere", "file", "empty"):
        result = run(command, tmp_path / name, *more)
        assert result.exit_code == 1
        lines = result.stderr.splitlines()
        assert len(lines) == 2
        assert lines[0].startswith(f"quiver: cannot open {tmp_path / name}: ")
        assert lines[1].startswith("  ")
    assert not (tmp_path / "nowhere").exists()
    assert os.listdir(tmp_path / "empty") == []


def test_wrong_usage(store: Path) -> None:
    """Exit code 1: 2 means that a store is damaged."""
    for arguments in (["inspekt"], ["dump", store], ["verify"], ["verify", store, "--nosuch"]):
        result = run(*arguments)
        assert result.exit_code == 1, arguments
        assert "Error" in result.stderr


def test_help_teaches() -> None:
    """Every command shows examples and what its exit code means."""
    assert "inspect" in run("--help").stdout
    for command in ("inspect", "verify", "repair", "dump"):
        result = run(command, "--help")
        assert result.exit_code == 0
        assert f"quiver {command} ./telemetry" in result.stdout
        assert "Exit codes: 0 sound" in result.stdout


def test_a_defect_is_no_traceback(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong inside is told in two lines, unless a developer asks."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("inside")

    monkeypatch.setattr("quiver.cli.verify.verify", broken)
    result = run("verify", store)
    assert result.exit_code == 1
    assert "ZeroDivisionError: inside" in result.stderr
    assert "Traceback" not in result.output
    monkeypatch.setenv("QUIVER_DEBUG", "1")
    assert isinstance(run("verify", store).exception, ZeroDivisionError)


# Several stores


def test_a_directory_of_stores(tmp_path: Path, store: Path) -> None:
    """A server's root has one store per stream: all of them are looked at."""
    shutil.copytree(store, tmp_path / "root" / "one")
    shutil.copytree(FIXTURES / "tiny-clean" / "data", tmp_path / "root" / "two")
    root = tmp_path / "root"
    found = answer("inspect", root)["stores"]
    assert {name: one["bundles"] for name, one in found.items()} == {"one": 36, "two": 3}
    assert run("verify", root).exit_code == 0
    assert run("dump", root, "--out", tmp_path / "out").exit_code == 0
    assert len(json.loads((tmp_path / "out" / "two" / "manifest.json").read_text())) == 3
    data = bytearray((root / "two" / "segments" / "0000000000000000.qseg").read_bytes())
    data[100] ^= 1
    (root / "two" / "segments" / "0000000000000000.qseg").write_bytes(bytes(data))
    result = run("verify", root)
    assert result.exit_code == 2
    assert result.stdout.index("one") < result.stdout.index("damaged")
    assert run("repair", root, "--yes").exit_code == 0
    assert run("verify", root).exit_code == 0


# Commands of others


def test_other_packages_add_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a package names a module in the entry point group, another one's dependencies are
    not installed. Guarantee: the first command runs; the other is listed, and says what to
    install."""

    class Module:
        @staticmethod
        def register(app: typer.Typer) -> None:
            app.command("hello", help="Greets.")(lambda: typer.echo("hello"))

    def lacking() -> object:
        raise ModuleNotFoundError("no", name="prometheus_client")

    found = [
        SimpleNamespace(name="hello", load=lambda: Module),
        SimpleNamespace(name="serve", load=lacking),
    ]
    monkeypatch.setattr(commands, "entry_points", lambda group: found)
    assert run("hello").stdout == "hello\n"
    refused = run("serve", "--port", "1")
    assert refused.exit_code == 1
    assert "needs the package prometheus_client" in refused.stderr
    assert "pip install 'quiver-buffer[server]'" in refused.stderr
    listed = run("--help").stdout
    assert "Greets." in listed
    assert "Not installed." in listed
    assert "inspect" in listed


def test_the_version() -> None:
    """Scenario: somebody asks which version is installed. Guarantee: one line says it."""
    assert run("--version").stdout == f"quiver {version('quiver-buffer')}\n"
