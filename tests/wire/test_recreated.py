"""Streams that are deleted and made again, and the small files that decide about a stream."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pyarrow.flight as flight
import pytest

from flight_service.protocol.errors import from_flight
from flight_service.server import Server, deleted
from tests.wire.bare import act, fails, get, info, logs, put_slot
from tests.wire.conftest import MakeServer, connect
from tests.wire.test_streams import SMALL_STREAM, names


def remake(client: flight.FlightClient, stream: str) -> None:
    act(client, "delete_stream", stream=stream, confirm=stream, force=True)
    act(client, "create_stream", stream=stream)


def test_a_late_ack_of_the_old_stream_finishes_nothing_of_the_new(
    client: flight.FlightClient,
) -> None:
    """Scenario: bundles are delivered, the stream is deleted, made again and filled; then acks
    of the old delivery arrive, with the old lease, without one, and by position. Guarantee:
    every bundle of the new stream is delivered."""
    put_slot(client, "t", [logs(n) for n in range(3)])
    old = act(client, "claim", stream="t", subscriber="s")
    refs = [one["ref"] for one in old["bundles"]]
    old_end = [refs[-1][0] + 1, 0]
    remake(client, "t")
    new = [one["ref"] for one in put_slot(client, "t", [logs(n) for n in range(10, 13)])]
    assert min(new) >= old_end
    act(client, "register", stream="t", subscriber="s")
    for fields in ({"refs": refs, "lease": old["lease"]}, {"refs": refs}, {"before": old_end}):
        assert act(client, "ack", stream="t", subscriber="s", **fields)["taken"] == 0
    assert [one["ref"] for one in act(client, "claim", stream="t", subscriber="s")["bundles"]] == (
        new
    )


def test_a_ticket_of_the_old_stream_is_expired(client: flight.FlightClient) -> None:
    """Scenario: a ticket is used after its stream was made again. Guarantee: ``expired``,
    never the new stream's data under the old refs."""
    put_slot(client, "t", [logs(1)])
    (endpoint,) = info(client, stream="t").endpoints
    remake(client, "t")
    put_slot(client, "t", [logs(2)])
    fails("expired", get, client, endpoint.ticket)
    slot = json.loads(endpoint.ticket.ticket) | {"mode": "slot", "slot": "Logs"}
    ticket = flight.Ticket(json.dumps(slot))
    with pytest.raises(flight.FlightError) as refused:
        client.do_get(ticket).read_all()
    assert from_flight(refused.value).code == "expired"


def test_numbers_go_on_over_restarts_and_damage(make_server: MakeServer, tmp_path: Path) -> None:
    """Scenario: a stream is deleted and the server restarted; then one that can't even be
    opened is deleted by force. Guarantee: neither name sees an old number again."""
    server = make_server()
    with connect(server) as client:
        put_slot(client, "t", [logs(1)])
        act(client, "flush", stream="t")
        put_slot(client, "t", [logs(2)])
        act(client, "delete_stream", stream="t", confirm="t", force=True)
    server.stop()
    server = make_server()
    with connect(server) as client:
        (first,) = put_slot(client, "t", [logs(3)])
        assert first["ref"] == [2, 0]
    server.stop()
    (floor,) = (tmp_path / "data" / "streams" / "t").rglob("quiver.segment.seq")
    floor.write_bytes(b"nonsense")
    with connect(make_server()) as client:
        fails("stream_damaged", info, client, stream="t")
        remake(client, "t")
        (second,) = put_slot(client, "t", [logs(4)])
        assert second["ref"][0] > first["ref"][0]


def test_many_deleted_names_cost_bounded_space(
    server: Server, client: flight.FlightClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: more names are deleted than are remembered one by one. Guarantee: the file
    stays small, and no name, remembered or not, sees an old number again."""
    monkeypatch.setattr(deleted, "MAX_NAMES", 2)
    for name in "abcd":
        for n in range(2):
            put_slot(client, name, [logs(n)])
            act(client, "flush", stream=name)
        act(client, "delete_stream", stream=name, confirm=name, force=True)
    body = json.loads((Path(server.streams.root) / "deleted.json").read_text())["body"]
    assert set(body["streams"]) == {"c", "d"}
    for name in "abcd":
        assert put_slot(client, name, [logs(9)])[0]["ref"][0] >= 2


# service.json


def test_any_change_of_the_service_file_is_noticed(make_server: MakeServer, tmp_path: Path) -> None:
    """Scenario: a digit of a setting, or of a subscriber's policy, is changed on disk.
    Guarantee: the stream is refused with the reason and nothing is written; the others are
    served; with the file put back all is as it was."""
    server = make_server()
    with connect(server) as client:
        act(client, "create_stream", stream="a", settings=SMALL_STREAM)
        put_slot(client, "a", [logs(1)])
        act(client, "register", stream="a", subscriber="s", max_deliveries=3)
        put_slot(client, "b", [logs(1)])
    server.stop()
    path = tmp_path / "data" / "streams" / "a" / "service.json"
    sound = path.read_bytes()
    for old, new in ((b"64KiB", b"94KiB"), (b'"max_deliveries":3', b'"max_deliveries":9')):
        assert old in sound
        changed = sound.replace(old, new, 1)
        path.write_bytes(changed)
        server = make_server()
        with connect(server) as client:
            error = fails("stream_damaged", put_slot, client, "a", [logs(2)])
            assert "service.json" in error.message
            assert "checksum" in error.message
            assert put_slot(client, "b", [logs(2)])[0]["status"] == "ok"
        server.stop()
        assert path.read_bytes() == changed
    path.write_bytes(sound)
    with connect(make_server()) as client:
        assert act(client, "status", stream="a")["streams"]["a"]["settings"] == SMALL_STREAM
        answer = act(client, "register", stream="a", subscriber="s")
        assert answer["policy"]["max_deliveries"] == 3


def test_a_missing_service_file_is_noticed(make_server: MakeServer, tmp_path: Path) -> None:
    """Scenario: a stream's service file was deleted. Guarantee: refused, since settings and
    policies are not known; a directory with neither is no stream, and its name is free."""
    server = make_server()
    with connect(server) as client:
        put_slot(client, "a", [logs(1)])
    server.stop()
    streams = tmp_path / "data" / "streams"
    (streams / "a" / "service.json").unlink()
    (streams / "half-made").mkdir()
    with connect(make_server()) as client:
        assert set(names(client)) == {"a"}
        error = fails("stream_damaged", put_slot, client, "a", [logs(2)])
        assert "missing" in error.message
        assert put_slot(client, "half-made", [logs(2)])[0]["status"] == "ok"


def test_a_newer_service_file_refuses_the_stream_by_name(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """Scenario: a later Quiver wrote the service file. Guarantee: the stream is refused as
    written by a newer version, not as damaged, and not a byte of it changes."""
    server = make_server()
    with connect(server) as client:
        put_slot(client, "a", [logs(1)])
    server.stop()
    place = tmp_path / "data" / "streams" / "a"
    (place / "service.json").write_text('{"v":7,"crc32":"00000000","body":{}}')
    before = {p: p.read_bytes() for p in place.rglob("*") if p.is_file()}
    server = make_server()
    with connect(server) as client:
        error = fails("unsupported_version", put_slot, client, "a", [logs(2)])
        assert "version 7" in error.message
        assert names(client)["a"] == "newer"
    server.stop()
    assert {p: p.read_bytes() for p in place.rglob("*") if p.is_file()} == before


def test_service_file_of_version_1_moves_its_failures(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """Scenario: a stream of 0.1.0, with failed deliveries in its service file. Guarantee: they
    count on, from a file of their own, and the service file has a checksum from then on."""
    server = make_server()
    with connect(server) as client:
        put_slot(client, "a", [logs(1)])
        act(client, "register", stream="a", subscriber="s", max_deliveries=5)
    server.stop()
    place = tmp_path / "data" / "streams" / "a"
    body = json.loads((place / "service.json").read_text())["body"]
    body.pop("first_segment")
    body["subscribers"]["s"]["failures"] = [[0, 0, 3, "connection lost"]]
    (place / "service.json").write_text(json.dumps({"v": 1, **body}))
    for _ in range(2):
        server = make_server()
        with connect(server) as client:
            (bundle,) = act(client, "claim", stream="a", subscriber="s")["bundles"]
            assert (bundle["delivery"], bundle["reason"]) == (4, "connection lost")
        server.stop()
    assert json.loads((place / "service.json").read_text())["v"] == 2
    assert "failures" not in (place / "service.json").read_text()


def test_failed_deliveries_survive_a_copy_of_the_directory(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """Scenario: deliveries fail, their counts are written, and the stream's directory is copied
    while the server runs, as a crash would leave it. Guarantee: the counts go on."""
    server = make_server()
    with connect(server) as client:
        put_slot(client, "a", [logs(1)])
        act(client, "register", stream="a", subscriber="s", backoff_ms=0)
        for _ in range(2):
            claimed = act(client, "claim", stream="a", subscriber="s", wait_ms=1000)
            refs = [one["ref"] for one in claimed["bundles"]]
            act(client, "defer", stream="a", subscriber="s", refs=refs, delay_ms=0, reason="no")
        (stream,) = server.streams.opened()
        stream.save_failures()
        shutil.copy(tmp_path / "data" / "streams" / "a" / "failures.log", tmp_path / "kept")
    server.stop()
    shutil.copy(tmp_path / "kept", tmp_path / "data" / "streams" / "a" / "failures.log")
    with connect(make_server()) as client:
        (bundle,) = act(client, "claim", stream="a", subscriber="s")["bundles"]
        assert (bundle["delivery"], bundle["reason"]) == (3, "no")


def test_a_ticket_does_not_outlive_its_root(make_server: MakeServer, tmp_path: Path) -> None:
    """Scenario: a server's root is wiped, and its producers send other data under the same refs;
    then tickets of before are used. Guarantee: ``expired`` in both modes, while a ticket that a
    client wrote itself, without a uuid, reads what is there."""
    server = make_server()
    with connect(server) as client:
        put_slot(client, "t", [logs(1)])
        old = [
            *info(client, stream="t").endpoints,
            *info(client, stream="t", mode="slot", slot="Logs").endpoints,
        ]
    server.stop()
    shutil.rmtree(tmp_path / "data")
    with connect(make_server()) as client:
        put_slot(client, "t", [logs(2)])
        for endpoint in old:
            with pytest.raises(flight.FlightError) as refused:
                client.do_get(endpoint.ticket).read_all()
            assert from_flight(refused.value).code == "expired"
        (new,) = info(client, stream="t").endpoints
        assert [batches["Logs"] for _, batches in get(client, new.ticket)] == [logs(2)]
        own = flight.Ticket(json.dumps({"v": 1, "stream": "t", "refs": [[0, 0]]}))
        assert [batches["Logs"] for _, batches in get(client, own)] == [logs(2)]


def test_an_ack_that_names_its_stream_does_not_outlive_it(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """Scenario: bundles are read, the root is wiped and filled with others under the same refs;
    then their acks come, which name the stream's uuid as the ticket has it. Guarantee:
    ``expired``, nothing is finished; with the uuid of the stream that is there they count."""
    server = make_server()
    with connect(server) as client:
        put_slot(client, "t", [logs(1)])
        old = json.loads(info(client, stream="t").endpoints[0].ticket.ticket)["uuid"]
    server.stop()
    shutil.rmtree(tmp_path / "data")
    with connect(make_server()) as client:
        put_slot(client, "t", [logs(2)])
        act(client, "register", stream="t", subscriber="s")
        late = {"stream": "t", "subscriber": "s", "uuid": old}
        fails("expired", act, client, "ack", **late, refs=[[0, 0]])
        fails("expired", act, client, "ack", **late, before=[1, 0])
        fails("expired", act, client, "reject", **late, refs=[[0, 0]])
        now = json.loads(info(client, stream="t").endpoints[0].ticket.ticket)["uuid"]
        answer = act(client, "ack", **{**late, "uuid": now}, refs=[[0, 0]])
        assert answer["taken"] == 1
