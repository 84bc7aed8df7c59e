"""``quiver verify`` and ``quiver repair`` on a server's root: the files beside the stores."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from quiver.cli import app
from tests.wire.bare import act, fails, info, logs, put_slot
from tests.wire.conftest import MakeServer, connect


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture
def root(make_server: MakeServer, tmp_path: Path) -> Path:
    """Two streams, one of them made again, with policies and failed deliveries."""
    server = make_server()
    with connect(server) as client:
        for name in ("a", "b"):
            put_slot(client, name, [logs(1)])
            act(client, "register", stream=name, subscriber="s", max_deliveries=7)
            claimed = act(client, "claim", stream=name, subscriber="s")
            refs = [one["ref"] for one in claimed["bundles"]]
            act(client, "defer", stream=name, subscriber="s", refs=refs, delay_ms=0, reason="no")
        put_slot(client, "c", [logs(1)])
        act(client, "delete_stream", stream="c", confirm="c", force=True)
    server.stop()
    return tmp_path / "data"


def test_a_sound_root_is_sound(root: Path) -> None:
    """Scenario: nothing is wrong. Guarantee: said so, exit 0."""
    assert run("verify", root).exit_code == 0


@pytest.mark.parametrize("name", ["streams/a/service.json", "streams/a/failures.log"])
def test_a_changed_digit_beside_a_store_is_found(root: Path, name: str) -> None:
    """Scenario: one digit of a policy or of a delivery count changes. Guarantee: ``verify``
    names the file and what it means, exit 2; also as JSON."""
    path = root / name
    text = path.read_text()
    changed = text.replace('"max_deliveries":7', '"max_deliveries":8').replace('"s",0', '"s",1')
    assert changed != text
    path.write_text(changed)
    found = run("verify", root)
    assert found.exit_code == 2
    assert path.name in found.stdout
    answer = json.loads(run("verify", root, "--json").stdout)["stores"]
    assert not answer["a"]["sound"]
    assert answer["b"]["sound"]


def test_a_missing_service_file_is_found_and_mended(root: Path, make_server: MakeServer) -> None:
    """Scenario: a stream's service file is gone. Guarantee: ``verify`` says so; ``repair`` says
    what it would do and changes nothing; with ``--yes`` the stream is served again, with the
    server's settings and all its bundles."""
    path = root / "streams/a/service.json"
    path.unlink()
    assert run("verify", root).exit_code == 2
    planned = run("repair", root)
    assert planned.exit_code == 2
    assert "service.json" in planned.stdout
    assert not path.exists()
    assert run("repair", root, "--yes").exit_code == 0
    assert run("verify", root).exit_code == 0
    with connect(make_server()) as client:
        assert len(info(client, stream="a").endpoints) == 1


def test_a_damaged_service_file_is_kept_under_another_name(root: Path) -> None:
    """Scenario: a repair replaces a damaged service file. Guarantee: a person can still read
    what was in it."""
    path = root / "streams/a/service.json"
    path.write_text(path.read_text().replace('"max_deliveries":7', '"max_deliveries":8'))
    damaged = path.read_bytes()
    assert run("repair", root, "--yes").exit_code == 0
    assert (root / "streams/a/service.json.damaged").read_bytes() == damaged
    assert run("verify", root).exit_code == 0


def test_newer_files_beside_a_store_are_told_from_damage(root: Path) -> None:
    """Scenario: a later Quiver wrote a service file. Guarantee: exit 3, and ``repair --yes``
    leaves it as it is."""
    path = root / "streams/a/service.json"
    path.write_text('{"v":9,"crc32":"00000000","body":{}}')
    assert run("verify", root).exit_code == 3
    run("repair", root, "--yes")
    assert path.read_text() == '{"v":9,"crc32":"00000000","body":{}}'


def test_a_damaged_list_of_deleted_streams_stops_nobody(
    root: Path, make_server: MakeServer
) -> None:
    """Scenario: ``deleted.json`` is damaged. Guarantee: ``verify`` finds it; the server starts,
    and a stream that is made again sees no old number."""
    path = root / "deleted.json"
    path.write_text(path.read_text().replace('"c":1', '"c":0'))
    assert run("verify", root).exit_code == 2
    with connect(make_server()) as client:
        assert put_slot(client, "c", [logs(2)])[0]["ref"][0] > 1_000_000
        fails("unknown_stream", info, client, stream="nobody")
    assert (root / "deleted.json.damaged").exists()
