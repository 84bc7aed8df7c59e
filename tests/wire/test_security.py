"""Who may call, and what for: tokens, certificates, grants, limits."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest
import yaml

from flight_service.protocol.actions import ACTIONS
from flight_service.protocol.errors import ServiceError, from_flight
from flight_service.server import Server, Settings
from flight_service.server import get as get_module
from flight_service.server.actions import Actions
from flight_service.server.auth import hash_token, read_principals
from flight_service.server.authz import ALL_VERBS, NOBODY_SPECIAL, TABLE, Grant, allowed, visible
from quiver.errors import ConfigError
from tests.wire.bare import act, command, fails, get, info, logs, put_slot
from tests.wire.conftest import MakeServer, connect
from tests.wire.test_exchange import eventually

STREAM = "mine-1"
TOKENS = {verb: f"{verb}-" + "x" * 40 for verb in (*sorted(ALL_VERBS), "none", "all", "elsewhere")}


def principals() -> dict[str, Any]:
    """A principal for each verb, one for all, one for none, one for other streams."""
    grants: dict[str, list[dict[str, Any]]] = {
        verb: [{"verbs": [verb], "streams": ["mine*"]}] for verb in ALL_VERBS
    }
    grants["none"] = []
    grants["all"] = [{"verbs": sorted(ALL_VERBS), "streams": ["*"]}]
    grants["elsewhere"] = [{"verbs": sorted(ALL_VERBS), "streams": ["other*"]}]
    return {
        "principals": {
            name: {"token": hash_token(TOKENS[name]), "grants": given}
            for name, given in grants.items()
        }
    }


@pytest.fixture
def auth_file(tmp_path: Path) -> Path:
    path = tmp_path / "auth.yaml"
    path.write_text(yaml.safe_dump(principals()))
    return path


@pytest.fixture
def guarded(make_server: MakeServer, auth_file: Path) -> Server:
    """A server with tokens, and a stream with a bundle."""
    server = make_server(auth__file=str(auth_file), auth__reload=0.01)
    with flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as client:
        options = bearer(TOKENS["all"])
        for door in ("create_stream",):
            body = json.dumps({"v": 1, "stream": STREAM}).encode()
            list(client.do_action(flight.Action(door, body), options))
        writer, reader = client.do_put(
            command(stream=STREAM, mode="slot", slot="Logs"), logs().schema, options
        )
        writer.write_batch(logs(1))
        reader.read()
        writer.close()
    return server


@pytest.fixture
def client(guarded: Server) -> Iterator[flight.FlightClient]:
    with flight.FlightClient(f"grpc://127.0.0.1:{guarded.port}") as client:
        yield client


def bearer(token: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(b"authorization", f"Bearer {token}".encode())])


BODIES: dict[str, dict[str, Any]] = {
    "register": {"subscriber": "s"},
    "unregister": {"subscriber": "nobody"},
    "drop_orphan": {"subscriber": "nobody"},
    "claim": {"subscriber": "s"},
    "next": {"subscriber": "s"},
    "ack": {"subscriber": "s", "refs": []},
    "reject": {"subscriber": "s", "refs": []},
    "defer": {"subscriber": "s", "refs": []},
    "renew": {"subscriber": "s", "lease": "x"},
    "seek": {"subscriber": "s", "to": "latest"},
    "wait_durable": {"sequence": 0},
    "begin": {"app": "a", "version": 0},
    "finish_stage": {"app": "a", "version": 0, "attempt": "x", "bundles": 0},
    "commit": {"app": "a", "version": 0, "attempts": ["x"]},
    "abort": {"app": "a", "version": 0},
    "drain": {"timeout_ms": 0},
    "delete_stream": {"confirm": "no"},
}


def knock(client: flight.FlightClient, door: str, options: Any) -> None:
    """Use one door of the server, on :data:`STREAM`."""
    if door.startswith("action:"):
        name = door.removeprefix("action:")
        body: dict[str, Any] = {"v": 1, **BODIES.get(name, {})}
        if "stream" in {info.name for info in ACTIONS[name].request.fields()}:
            body["stream"] = STREAM
        list(client.do_action(flight.Action(name, json.dumps(body).encode()), options))
        return
    rpc, _, subscribed = door.partition(":")
    if rpc == "do_put":
        where = command(stream=STREAM, mode="slot", slot="Logs")
        writer, reader = client.do_put(where, logs().schema, options)
        with writer:
            writer.write_batch(logs(1))
            writer.done_writing()
            reader.read()
    elif rpc == "do_get":
        ticket: dict[str, Any] = {"v": 1, "stream": STREAM, "refs": [[0, 0]]}
        if subscribed:
            ticket |= {"subscriber": "s", "lease": "forged"}
        client.do_get(flight.Ticket(json.dumps(ticket)), options).read_all()
    elif rpc == "do_exchange":
        writer, reader = client.do_exchange(command(stream=STREAM, subscriber="s"), options)
        reader.read_chunk()
        writer.close()
    elif rpc == "get_flight_info":
        fields = {"subscriber": "s"} if subscribed else {}
        client.get_flight_info(command(stream=STREAM, **fields), options)
    elif rpc == "get_schema":
        client.get_schema(flight.FlightDescriptor.for_path(STREAM), options)
    elif rpc == "list_flights":
        list(client.list_flights(options=options))
    else:
        assert rpc == "list_actions"
        list(client.list_actions(options))


def answer(client: flight.FlightClient, door: str, token: str | None) -> str:
    """The code a door answers with, ``ok`` if it opened."""
    options = bearer(token) if token is not None else flight.FlightCallOptions()
    try:
        knock(client, door, options)
    except (flight.FlightError, pa.ArrowException, StopIteration) as error:
        if "get_schema" in door and isinstance(error, pa.ArrowException):
            # Flight loses the class of errors of this call, not their text.
            text = str(error)
            return "unauthenticated" if "token" in text else "forbidden"
        return from_flight(error).code
    return "ok"


SHUT = ("forbidden", "unauthenticated")


@pytest.mark.parametrize("door", sorted(TABLE))
def test_every_door_opens_for_its_verb_and_no_other(client: flight.FlightClient, door: str) -> None:
    """Scenario: each RPC and action with each principal, with no token, a wrong one, and a
    grant for other streams. Guarantee: the table decides, and denies what it doesn't allow."""
    verb = TABLE[door]
    for name, token in TOKENS.items():
        if verb == NOBODY_SPECIAL or name in (verb, "all"):
            assert answer(client, door, token) not in SHUT, (door, name)
        elif door == "action:status" and name not in ("none", "elsewhere"):
            assert answer(client, door, token) == "forbidden", (door, name)
        else:
            assert answer(client, door, token) == "forbidden", (door, name)
    assert answer(client, door, None) == "unauthenticated"
    assert answer(client, door, "y" * 44) == "unauthenticated"
    assert answer(client, door, "") == "unauthenticated"


def test_the_table_has_every_door() -> None:
    """Scenario: the table against the protocol's actions and Flight's calls. Guarantee:
    none is missing, and no verb is unknown."""
    rpcs = {"do_put", "do_get", "do_exchange", "get_flight_info", "get_schema"}
    rpcs |= {"list_flights", "list_actions"}
    assert {door.partition(":")[0] for door in TABLE} == rpcs | {"action"}
    assert {f"action:{name}" for name in ACTIONS} <= set(TABLE)
    assert set(TABLE.values()) <= ALL_VERBS | {NOBODY_SPECIAL}


def test_nobody_sees_streams_they_have_no_verb_on(client: flight.FlightClient) -> None:
    """Scenario: listings for a principal with grants elsewhere. Guarantee: they are empty."""
    options = bearer(TOKENS["elsewhere"])
    assert list(client.list_flights(options=options)) == []
    for name, empty in (("list_streams", []), ("status", {})):
        (result,) = client.do_action(flight.Action(name, b""), options)
        assert json.loads(result.body.to_pybytes())["streams"] == empty


def test_tokens_are_reloaded_and_a_broken_file_changes_nothing(
    client: flight.FlightClient, auth_file: Path
) -> None:
    """Scenario: a token is revoked, then the file is broken, then mended. Guarantee: each
    change counts within moments, without a restart; a broken file locks nobody out or in."""
    changed = principals()
    del changed["principals"]["put"]
    auth_file.write_text(yaml.safe_dump(changed))
    eventually(lambda: answer(client, "do_put", TOKENS["put"]) == "unauthenticated")
    auth_file.write_text("principals: [nonsense")
    eventually(lambda: "auth" in _health(client).get("details", {}))
    assert answer(client, "do_put", TOKENS["all"]) == "ok"
    assert answer(client, "do_put", TOKENS["put"]) == "unauthenticated"
    os.replace(_write(auth_file.with_suffix(".new"), principals()), auth_file)
    eventually(lambda: answer(client, "do_put", TOKENS["put"]) == "ok")


def _write(path: Path, content: dict[str, Any]) -> Path:
    path.write_text(yaml.safe_dump(content))
    return path


def _health(client: flight.FlightClient) -> dict[str, Any]:
    (result,) = client.do_action(flight.Action("health", b""), bearer(TOKENS["all"]))
    body: dict[str, Any] = json.loads(result.body.to_pybytes())
    return body


def test_secrets_are_nowhere_on_disk_or_in_answers(
    client: flight.FlightClient, guarded: Server, auth_file: Path
) -> None:
    """Scenario: after calls with good and bad tokens. Guarantee: no token in the auth file,
    in status, or in an error."""
    assert not any(token in auth_file.read_text() for token in TOKENS.values())
    (result,) = client.do_action(flight.Action("status", b""), bearer(TOKENS["all"]))
    assert not any(token.encode() in result.body.to_pybytes() for token in TOKENS.values())
    wrong = "z" * 44
    with pytest.raises(flight.FlightUnauthenticatedError) as caught:
        list(client.list_actions(bearer(wrong)))
    assert wrong not in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "x: 1",
        "principals: []",
        "principals: {a: 5}",
        "principals: {a: {secret: x}}",
        "principals: {a: {token: plain}}",
        "principals: {a: {grants: 5}}",
        "principals: {a: {grants: [{verbs: [fly], streams: ['*']}]}}",
        "principals: {a: {grants: [{verbs: [put], streams: ['../*']}]}}",
        "principals: {a: {grants: [{verbs: [put]}]}}",
        "\x00",
    ],
)
def test_bad_auth_files_are_refused(tmp_path: Path, content: str) -> None:
    """Scenario: auth files with mistakes. Guarantee: the server doesn't start with them."""
    path = tmp_path / "auth.yaml"
    path.write_text(content)
    with pytest.raises(ConfigError):
        read_principals(str(path))


def test_grants_match_by_pattern() -> None:
    """Scenario: patterns. Guarantee: as in a shell, and case counts."""
    grant = (Grant(frozenset({"put"}), ("tele*", "a?")),)
    assert allowed(grant, "put", "telemetry")
    assert allowed(grant, "put", "ab")
    assert not allowed(grant, "put", "Telemetry")
    assert not allowed(grant, "read", "telemetry")
    assert not visible(grant, "abc")


@pytest.mark.parametrize(
    "settings",
    [
        {"server__host": "0.0.0.0"},
        {"server__host": "example.org"},
        {"tls__cert": "x"},
        {"tls__client_ca": "x"},
    ],
)
def test_open_doors_to_the_world_are_refused(settings: dict[str, Any]) -> None:
    """Scenario: listening beyond loopback without TLS or tokens. Guarantee: refused unless
    `insecure` says so."""
    with pytest.raises(ConfigError):
        Settings.load(env={}, **settings)
    if "server__host" in settings:
        assert Settings.load(env={}, **settings, server__insecure=True).server.insecure


def _openssl(*arguments: str, cwd: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=cwd, check=True, capture_output=True)


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small authority, a server's certificate and a client's."""
    where = tmp_path_factory.mktemp("tls")
    authority = "req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2"
    _openssl(*authority.split(" "), "-subj", "/CN=ca", cwd=where)
    for name in ("server", "client"):
        _openssl(
            *f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr"
            f" -subj /CN={name}".split(),
            cwd=where,
        )
        names = "DNS:localhost,IP:127.0.0.1" if name == "server" else "DNS:spark.internal"
        (where / "ext").write_text(f"subjectAltName={names}\n")
        _openssl(
            *f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial"
            f" -out {name}.pem -days 2 -extfile ext".split(),
            cwd=where,
        )
    return where


def _tls_client(port: int, certificates: Path, *, mutual: bool) -> flight.FlightClient:
    options: dict[str, Any] = {"tls_root_certs": (certificates / "ca.pem").read_bytes()}
    if mutual:
        options["cert_chain"] = (certificates / "client.pem").read_bytes()
        options["private_key"] = (certificates / "client.key").read_bytes()
    return flight.FlightClient(f"grpc+tls://localhost:{port}", **options)


def test_tls_and_client_certificates(
    make_server: MakeServer, certificates: Path, tmp_path: Path
) -> None:
    """Scenario: mutual TLS with a principal known by its certificate. Guarantee: with the
    certificate its grants hold; without one there is no connection."""
    principals = {
        "principals": {
            "spark": {
                "certificate": "spark.internal",
                "grants": [{"verbs": ["put"], "streams": ["mine*"]}],
            }
        }
    }
    auth = _write(tmp_path / "auth.yaml", principals)
    server = make_server(
        tls__cert=str(certificates / "server.pem"),
        tls__key=str(certificates / "server.key"),
        tls__client_ca=str(certificates / "ca.pem"),
        auth__file=str(auth),
    )
    with _tls_client(server.port, certificates, mutual=True) as client:
        no_token = flight.FlightCallOptions()
        knock(client, "do_put", no_token)
        with pytest.raises(flight.FlightUnauthorizedError):
            knock(client, "get_flight_info", no_token)
    with (
        _tls_client(server.port, certificates, mutual=False) as client,
        pytest.raises(flight.FlightUnavailableError),
    ):
        list(client.list_actions(flight.FlightCallOptions(timeout=5)))


def test_tls_alone(make_server: MakeServer, certificates: Path) -> None:
    """Scenario: TLS without client certificates. Guarantee: works, and plain text doesn't."""
    server = make_server(
        tls__cert=str(certificates / "server.pem"), tls__key=str(certificates / "server.key")
    )
    with _tls_client(server.port, certificates, mutual=False) as client:
        assert len(list(client.list_actions())) == len(ACTIONS)
    with (
        flight.FlightClient(f"grpc://localhost:{server.port}") as plain,
        pytest.raises((flight.FlightError, pa.ArrowException)),
    ):
        list(plain.list_actions(flight.FlightCallOptions(timeout=5)))


def test_errors_name_the_verb_and_the_stream(client: flight.FlightClient) -> None:
    """Scenario: a forbidden call. Guarantee: it says what would be needed."""
    try:
        knock(client, "do_put", bearer(TOKENS["read"]))
    except flight.FlightUnauthorizedError as error:
        said: ServiceError = from_flight(error)
    assert said.details == {"verb": "put", "stream": STREAM}


def test_the_unforeseen_is_answered_with_a_number(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario: a bug in a handler, before and in the middle of an answer. Guarantee: the
    client gets `internal` and a number; what happened is in the server's log under it, and
    nowhere else."""

    def broken(*arguments: Any, **options: Any) -> Any:
        raise RuntimeError("the secret payload")

    server = make_server()
    with connect(server) as client:
        put_slot(client, "t", [logs(1)])
        ticket = info(client, stream="t").endpoints[0].ticket
        monkeypatch.setattr(Actions, "_lag", broken)
        monkeypatch.setattr(get_module, "ready_next", broken)
        for call in (
            lambda: act(client, "lag", stream="t"),
            lambda: get(client, ticket),
        ):
            error = fails("internal", call)
            assert "secret" not in error.message
            assert error.details["incident"] in caplog.text
        assert act(client, "health")["status"] == "ok"
