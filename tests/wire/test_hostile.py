"""Hostile input over the wire: a typed refusal each, nothing kept, the server as before."""

from __future__ import annotations

import contextlib
import json
import resource
import socket
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_service.protocol.errors import ServiceError, from_flight
from flight_service.protocol.wrapper import BY_NAME, BY_NUMBER
from flight_service.server import Server, Settings
from tests.wire import hostile
from tests.wire.bare import act, command, info, logs, put_slot, receipts
from tests.wire.conftest import SMALL, connect

REFUSALS = frozenset(
    {
        "bad_request", "invalid_name", "invalid_input", "invalid_bundle", "invalid_config",
        "limit_exceeded", "unknown_stream", "unknown_bundle", "unknown_subscriber", "expired",
        "unknown_action", "stream_exists", "slot_not_in_bundle", "key_conflict",
        "stage_not_found",
    }
)  # fmt: skip
"""What bad input is answered with: never `internal`."""

REFS = [[0, 0]]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    root = tmp_path_factory.mktemp("hostile") / "data"
    server = Server(Settings.load(env={}, **{**SMALL, "server__root": str(root)}))
    server.start()
    with connect(server) as client:
        put_slot(client, "t", [logs(1)])
        act(client, "register", stream="t", subscriber="s")
    yield server
    server.stop()


@pytest.fixture
def client(server: Server) -> Iterator[flight.FlightClient]:
    """A client; afterwards the server must be healthy, and hold what it held."""
    with connect(server) as client:
        yield client
    with connect(server) as probe:
        assert act(probe, "health")["status"] == "ok"
        assert [one["name"] for one in act(probe, "list_streams")["streams"]] == ["t"]
        status = act(probe, "status", stream="t")["streams"]["t"]
        assert status["bundles"] == 1
        assert status["subscribers"]["s"]["claimed"] == 0


def refused(call: Any, *codes: str) -> ServiceError:
    """The typed error a call ends with; no traceback in it."""
    try:
        call()
    except (flight.FlightError, pa.ArrowException, OSError) as error:
        said = from_flight(error)
    except ServiceError as error:
        said = error
    else:
        raise AssertionError("was not refused")
    assert said.code in (codes or REFUSALS), f"{said.code}: {said.message}"
    assert "Traceback" not in said.message
    assert 'File "' not in said.message
    return said


def put(client: flight.FlightClient, body: bytes) -> None:
    where = flight.FlightDescriptor.for_command(body)
    writer, reader = client.do_put(where, BY_NAME)
    with writer:
        writer.done_writing()
        reader.read()


@pytest.mark.parametrize("kind", hostile.MALFORMED)
def test_malformed_put_commands(client: flight.FlightClient, kind: str) -> None:
    """Scenario: descriptors that are no command. Guarantee: refused in words."""
    refused(lambda: put(client, hostile.MALFORMED[kind]))


@pytest.mark.parametrize("body", hostile.PUT_COMMANDS)
def test_bad_put_commands(client: flight.FlightClient, body: bytes) -> None:
    """Scenario: commands with bad values. Guarantee: refused, no stream is made."""
    refused(lambda: put(client, body))


@pytest.mark.parametrize("kind", hostile.MALFORMED)
def test_malformed_read_commands(client: flight.FlightClient, kind: str) -> None:
    """Scenario: GetFlightInfo with nonsense. Guarantee: refused in words."""
    where = flight.FlightDescriptor.for_command(hostile.MALFORMED[kind])
    refused(lambda: client.get_flight_info(where))


@pytest.mark.parametrize("body", hostile.READ_COMMANDS)
def test_bad_read_commands(client: flight.FlightClient, body: bytes) -> None:
    """Scenario: reads with bad values. Guarantee: refused, nothing is claimed."""
    where = flight.FlightDescriptor.for_command(body)
    refused(lambda: client.get_flight_info(where))


@pytest.mark.parametrize("kind", hostile.MALFORMED)
def test_malformed_tickets(client: flight.FlightClient, kind: str) -> None:
    """Scenario: tickets that are none. Guarantee: refused in words."""
    ticket = flight.Ticket(hostile.MALFORMED[kind])
    refused(lambda: client.do_get(ticket).read_all())


@pytest.mark.parametrize("body", hostile.TICKETS)
def test_bad_and_forged_tickets(client: flight.FlightClient, body: bytes) -> None:
    """Scenario: tickets with bad values, forged leases, refs that never were. Guarantee:
    a ticket gives nothing that its caller could not have anyway."""
    refused(lambda: client.do_get(flight.Ticket(body)).read_all())


def exchange(client: flight.FlightClient, body: bytes) -> None:
    where = flight.FlightDescriptor.for_command(body)
    writer, reader = client.do_exchange(where)
    try:
        reader.read_chunk()
    finally:
        del writer


@pytest.mark.parametrize("kind", hostile.MALFORMED)
def test_malformed_subscriptions(client: flight.FlightClient, kind: str) -> None:
    """Scenario: DoExchange with nonsense. Guarantee: refused in words."""
    refused(lambda: exchange(client, hostile.MALFORMED[kind]))


@pytest.mark.parametrize("body", hostile.SUBSCRIBE_COMMANDS)
def test_bad_subscriptions(client: flight.FlightClient, body: bytes) -> None:
    """Scenario: subscriptions with bad values. Guarantee: refused, nobody is registered."""
    refused(lambda: exchange(client, body))


@pytest.mark.parametrize(
    ("action", "kind", "body"),
    hostile.ACTION_BODIES,
    ids=[f"{action}: {kind}" for action, kind, _ in hostile.ACTION_BODIES],
)
def test_malformed_action_bodies(
    client: flight.FlightClient, action: str, kind: str, body: bytes
) -> None:
    """Scenario: every action with nonsense. Guarantee: refused in words, nothing done."""
    said = refused(lambda: list(client.do_action(flight.Action(action, body))))
    if kind == "unknown field":
        assert "known are" in said.message


@pytest.mark.parametrize(
    ("action", "fields"),
    hostile.ACTION_VALUES,
    ids=[f"{n}: {a[:20]}" for n, (a, _) in enumerate(hostile.ACTION_VALUES)],
)
def test_bad_action_values(
    client: flight.FlightClient, action: str, fields: dict[str, Any]
) -> None:
    """Scenario: actions with bad values, and names that are no action. Guarantee: refused."""
    refused(lambda: act(client, action, **fields))


@pytest.mark.parametrize("name", hostile.ODD_NAMES, ids=repr)
def test_odd_names_everywhere(client: flight.FlightClient, name: Any) -> None:
    """Scenario: path tricks, reserved and odd Unicode names, wrong types, as stream,
    subscriber and slot, in commands, paths, tickets and actions. Guarantee: each refused."""
    body = json.dumps({"v": 1, "stream": name}).encode()
    refused(lambda: put(client, body))
    refused(lambda: act(client, "create_stream", stream=name))
    ticket = flight.Ticket(json.dumps({"v": 1, "stream": name, "refs": REFS}))
    refused(lambda: client.do_get(ticket).read_all())
    refused(lambda: act(client, "register", stream="t", subscriber=name))
    if name is not None:
        refused(lambda: info(client, stream=name))
        refused(lambda: info(client, stream="t", mode="slot", slot=name))
        refused(lambda: info(client, stream="t", subscriber=name))
    if isinstance(name, str):
        path = flight.FlightDescriptor.for_path(name, "Logs")
        refused(lambda: client.get_flight_info(path))


def one_put(
    client: flight.FlightClient, where: Any, batch: pa.RecordBatch, note: bytes | None = None
) -> dict[str, Any]:
    """Send one message; its receipt."""
    writer, reader = client.do_put(where, batch.schema)
    if note is None:
        writer.write_batch(batch)
    else:
        writer.write_with_metadata(batch, note)
    found = receipts(reader, 1)
    writer.close()
    return found[0]


def rejected(receipt: dict[str, Any]) -> None:
    assert receipt["status"] == "rejected", receipt
    assert receipt["code"] in REFUSALS, receipt
    assert "Traceback" not in receipt["reason"]


SLOT = {"stream": "t", "mode": "slot", "slot": "Logs"}


@pytest.mark.parametrize("note", hostile.ENVELOPES)
def test_bad_envelopes(client: flight.FlightClient, note: bytes) -> None:
    """Scenario: envelopes that are none, or too large. Guarantee: that bundle is rejected."""
    rejected(one_put(client, command(**SLOT), logs(1), note))


@pytest.mark.parametrize(
    ("name", "batch"), hostile.broken_arrays().items(), ids=list(hostile.broken_arrays())
)
def test_broken_arrays_in_slot_mode(
    client: flight.FlightClient, name: str, batch: pa.RecordBatch
) -> None:
    """Scenario: arrays that point outside of their memory. Guarantee: rejected before they
    are stored, or refused by Flight itself before they arrive; never a reader's problem."""
    try:
        receipt = one_put(client, command(**SLOT), batch)
    except (flight.FlightError, pa.ArrowException, IndexError) as error:
        # Arrow's own writer or reader may stop it first: the server lives all the same.
        stopped = str(error)
    else:
        rejected(receipt)
        stopped = ""
    assert "Traceback" not in stopped, name


def wrapper(ipc: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array(["Logs"], pa.utf8()),
            pa.array([None], pa.binary()),
            pa.array([ipc], pa.large_binary()),
        ],
        schema=BY_NAME,
    )


STREAMS = hostile.streams()


@pytest.mark.parametrize("name", STREAMS)
def test_bad_streams_in_bundle_mode(client: flight.FlightClient, name: str) -> None:
    """Scenario: cut, spliced, flipped and exploding IPC streams. Guarantee: rejected, or, a
    flipped bit that Arrow can't see, taken as the valid data it is; never a crash."""
    receipt = one_put(client, command(stream="t"), wrapper(STREAMS[name]))
    if receipt["status"] == "ok":
        assert name.startswith("flip"), name
        _take_away(client, receipt["ref"])
    else:
        rejected(receipt)


def _take_away(client: flight.FlightClient, ref: list[int]) -> None:
    """Valid after all: it must be readable. Then the stream is made anew."""
    ticket = json.dumps({"v": 1, "stream": "t", "refs": [ref]})
    client.do_get(flight.Ticket(ticket)).read_all()
    act(client, "delete_stream", stream="t", confirm="t", force=True)
    put_slot(client, "t", [logs(1)])
    act(client, "register", stream="t", subscriber="s")


def test_broken_arrays_in_bundle_mode(client: flight.FlightClient) -> None:
    """Scenario: the same broken arrays as IPC streams. Guarantee: each rejected."""
    for name, batch in hostile.broken_arrays().items():
        try:
            data = hostile.ipc(batch)
        except (pa.ArrowException, IndexError):
            continue  # Arrow won't write it
        assert name
        rejected(one_put(client, command(stream="t"), wrapper(data)))


@pytest.mark.parametrize(
    "schema",
    [
        pa.schema([]),
        pa.schema([("slot", pa.uint16())]),
        pa.schema([("slot", pa.int64()), ("schema_fp", pa.binary()), ("ipc", pa.large_binary())]),
        pa.schema([("slot", pa.uint16()), ("ipc", pa.large_binary()), ("schema_fp", pa.binary())]),
        BY_NUMBER.append(pa.field("more", pa.int64())),
        logs().schema,
    ],
)
def test_other_columns_than_the_wrappers(client: flight.FlightClient, schema: pa.Schema) -> None:
    """Scenario: bundle mode with another schema. Guarantee: the call is refused."""

    def send() -> None:
        writer, reader = client.do_put(command(stream="t"), schema)
        with writer:
            writer.done_writing()
            reader.read()

    refused(send, "bad_request")


@pytest.mark.parametrize(
    "rows",
    [
        ([1, 1], [None, None], [b"x", b"x"]),
        ([64], [None], [b"x"]),
        ([65_535], [None], [b"x"]),
        ([1], [b"short"], [b"x"]),
        ([1], [b"x" * 1_000], [b"x"]),
        ([*range(64), 5], [None] * 65, [b"x"] * 65),
        ([], [], []),
    ],
)
def test_bad_rows_of_the_wrapper(client: flight.FlightClient, rows: Any) -> None:
    """Scenario: slots twice, out of range, too many; odd fingerprints. Guarantee: rejected;
    a bundle without slots is a bundle."""
    slots, prints, streams = rows
    batch = pa.RecordBatch.from_arrays(
        [
            pa.array(slots, pa.uint16()),
            pa.array(prints, pa.binary()),
            pa.array(streams, pa.large_binary()),
        ],
        schema=BY_NUMBER,
    )
    receipt = one_put(client, command(stream="t"), batch)
    if not slots:
        assert receipt["status"] == "ok"
        _take_away(client, receipt["ref"])
    else:
        rejected(receipt)


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\xff" * 100,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00",
        b"\x00" * 10_000,
        b"SSH-2.0-x\r\n",
    ],
)
def test_other_protocols_on_the_port(
    server: Server, client: flight.FlightClient, data: bytes
) -> None:
    """Scenario: bytes that are no gRPC, and connections cut in the middle. Guarantee: they
    cost nobody anything."""
    raw = socket.create_connection(("127.0.0.1", server.port), timeout=5)
    with raw, contextlib.suppress(OSError):  # the server may hang up first
        raw.sendall(data)
        raw.shutdown(socket.SHUT_WR)


def test_half_open_and_idle_connections(server: Server, client: flight.FlightClient) -> None:
    """Scenario: 300 connections that say nothing. Guarantee: calls go on."""
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(300)]
    assert len(list(client.list_actions())) > 20
    for one in idle:
        one.close()


def test_idle_calls(server: Server, client: flight.FlightClient) -> None:
    """Scenario: 300 calls opened and left alone, then dropped. Guarantee: bounded, and gone
    with their clients."""
    with connect(server) as other:
        calls = [other.do_put(command(**SLOT), logs().schema) for _ in range(300)]
        assert act(client, "health")["status"] == "ok"
        calls.clear()


def test_memory_stays_within_bounds() -> None:
    """Scenario: after everything above, bombs included. Guarantee: the process never took
    more than a gigabyte and a half."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert peak < 1_500 * 1024, f"{peak:,} KiB"
