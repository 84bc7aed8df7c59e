"""A server of the current version on the data of a release, asked in the release's words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pyarrow.flight as flight
import pytest

from flight_service.server import Server, Settings
from flight_service.server.failures import decode_failures
from quiver.format.checked_json import decode_checked
from tests.compat import golden
from tests.compat.conversation import Player, Step, differences
from tests.compat.reading import unpack
from tests.support.batches import same
from tests.wire.test_exchange import eventually

ROOTS: Final = golden.names("roots")
CONVERSATIONS: Final = golden.names("wire")
HEALTH: Final[Step] = {"call": "action", "type": "health", "body": '{"v": 1}'}

Serve = Callable[[Path, dict[str, Any]], tuple[Server, flight.FlightClient]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server on a root and wait until it has opened every stream."""
    servers: list[Server] = []

    def start(root: Path, settings: dict[str, Any]) -> tuple[Server, flight.FlightClient]:
        server = Server(Settings.load(env={}, server__root=str(root), **settings))
        servers.append(server)
        server.start()
        client = flight.connect(f"grpc://127.0.0.1:{server.port}")
        player = Player(client)
        eventually(lambda: player.play(HEALTH)["status"] == "ok")
        return server, client

    yield start
    for server in servers:
        server.stop()


@pytest.mark.parametrize("name", CONVERSATIONS)
def test_a_conversation_is_answered_as_it_was(name: str, serve: Serve, tmp_path: Path) -> None:
    """Scenario: every action, every form of ticket, descriptor, envelope and message of the
    release, sent byte for byte to a server on the release's root; leases of before the
    restart among them. Guarantee: the same answers and refusals, with no field that a client
    of the release would not know."""
    said = golden.manifest("wire", name)
    version = name.partition("/")[0]
    root = golden.unpacked("roots", f"{version}/{said['root']}", tmp_path)
    _, client = serve(root, said["settings"])
    problems: list[str] = []
    with client:
        player = Player(client)
        for number, step in enumerate(said["steps"]):
            what = f"{number} {step['call']} {step.get('type', step.get('body', ''))}"
            found = json.loads(json.dumps(player.play(step)))
            problems += [f"{what} {one}" for one in differences(found, step["answer"], step)]
    assert not problems, "\n".join(problems)


@pytest.mark.parametrize("name", ROOTS)
def test_a_root_is_served_with_all_its_streams(name: str, serve: Serve, tmp_path: Path) -> None:
    """Scenario: a server starts on the root that a release's server left, stopped or killed.
    Guarantee: every stream is there, the deleted one is not and its files are removed; every
    bundle has its rows; what ``service.json`` said of subscribers, settings and schemas is
    still said after a stop; a second start finds the same."""
    manifest = golden.manifest("roots", name)
    root = golden.unpacked("roots", name, tmp_path)
    for _ in range(2):
        server, client = serve(root, manifest["settings"])
        with client:
            _check_streams(client, manifest["streams"])
        assert list((root / "trash").iterdir()) == []
        server.stop()
        for stream, wanted in manifest["streams"].items():
            if wanted["service"] is not None:
                _same_record(root / "streams" / stream, wanted["service"])


def _check_streams(client: flight.FlightClient, streams: dict[str, Any]) -> None:
    player = Player(client)
    listed = player.play({"call": "action", "type": "list_streams", "body": '{"v": 1}'})
    assert [one["name"] for one in listed["streams"]] == sorted(streams)
    for stream, wanted in streams.items():
        refs = [one["ref"] for one in wanted["bundles"]]
        ticket = json.dumps({"v": 1, "stream": stream, "refs": refs})
        found = player.play({"call": "get", "ticket": ticket})
        for one, other in zip(found, wanted["bundles"], strict=True):
            assert one["about"]["ref"] == other["ref"]
            assert one["about"].get("key") == other["key"]
            assert one["about"].get("attributes", {}) == other["attributes"]
            for row, name in zip(one["rows"], one["about"]["slots"], strict=True):
                same(unpack(row["data"]), unpack(other["slots"][name]["data"]))
        lag = player.play(
            {"call": "action", "type": "lag", "body": json.dumps({"v": 1, "stream": stream})}
        )["subscribers"]
        left = {who: one["left"] for who, one in wanted["subscribers"].items()}
        assert {who: one["bundles"] for who, one in lag.items()} == left


def _same_record(place: Path, wanted: dict[str, Any]) -> None:
    """Whatever else a later version keeps, nothing of what was kept may be forgotten."""
    found = decode_checked((place / "service.json").read_bytes(), "service.json")
    failures, _, damaged = decode_failures((place / "failures.log").read_bytes(), "failures.log")
    assert not damaged
    assert found["settings"] == wanted["settings"]
    for who, one in wanted.get("subscribers", {}).items():
        assert one["policy"].items() <= found["subscribers"][who]["policy"].items()
        kept = failures.get(who, {})
        counted = [[*ref, failure.count, failure.reason] for ref, failure in kept.items()]
        assert sorted(counted) == sorted(one["failures"])
    for slot, schemas in wanted.get("schemas", {}).items():
        assert set(schemas) <= set(found["schemas"][slot])
