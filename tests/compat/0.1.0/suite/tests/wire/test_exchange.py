"""The live subscription, over real Flight."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_service.protocol.wrapper import unwrap, unwrap_batch
from flight_service.server import Server
from tests.wire.bare import act, command, logs, put_bundles, put_slot
from tests.wire.conftest import connect

MOMENT = 0.02


def eventually(check: Callable[[], bool], seconds: float = 5.0) -> None:
    """Wait until something is true; the wait is bounded, the check decides."""
    pause = threading.Event()
    for _ in range(int(seconds / MOMENT)):
        if check():
            return
        pause.wait(MOMENT)
    assert check()


class Live:
    """A subscription by bare pyarrow."""

    def __init__(self, client: flight.FlightClient, **fields: Any) -> None:
        asked = {"stream": "t", "subscriber": "s", **fields}
        self.writer, self.reader = client.do_exchange(command(**asked))
        self.ready = self.message()

    def message(self) -> dict[str, Any]:
        """The next message without data."""
        chunk = self.reader.read_chunk()
        assert chunk.data is None
        said: dict[str, Any] = json.loads(chunk.app_metadata.to_pybytes())
        return said

    def bundle(self) -> tuple[dict[str, Any], dict[str, pa.RecordBatch]]:
        """The next bundle."""
        chunk = self.reader.read_chunk()
        note = json.loads(chunk.app_metadata.to_pybytes())
        assert chunk.data is not None, note
        rows = zip(note.get("slots", []), unwrap(chunk.data), strict=True)
        return note, {name: unwrap_batch(row) for name, row in rows}

    def say(self, **fields: Any) -> None:
        self.writer.write_metadata(json.dumps({"v": 1, **fields}).encode())

    def end(self) -> None:
        self.writer.done_writing()
        self.writer.close()


def in_flight(client: flight.FlightClient) -> int:
    status = act(client, "status", stream="t")["streams"]["t"]["subscribers"]["s"]
    found: int = status["delivery"]["in_flight"]
    return found


def test_bundles_are_pushed_and_acked(server: Server) -> None:
    """Scenario: bundles of before and of during the subscription. Guarantee: all are pushed
    in order; acks on the same call count, durably if asked."""
    with connect(server) as client, connect(server) as producer:
        put_slot(producer, "t", [logs(0)])
        live = Live(client)
        assert live.ready["type"] == "ready"
        note, batches = live.bundle()
        assert batches["Logs"].equals(logs(0))
        put_slot(producer, "t", [logs(1)])
        second, _ = live.bundle()
        live.say(ack=[note["ref"], second["ref"]], durable=True, id=7)
        assert live.message() == {"v": 1, "type": "done", "id": 7, "durable": True}
        live.end()
        assert act(producer, "lag", stream="t")["subscribers"]["s"]["bundles"] == 0


def test_credit_bounds_what_is_sent(server: Server) -> None:
    """Scenario: credit for two bundles. Guarantee: no third comes before more is given."""
    with connect(server) as client, connect(server) as other:
        put_slot(other, "t", [logs(n) for n in range(5)])
        live = Live(client, credit=2)
        live.bundle()
        live.bundle()
        live.say(ping=True, id=1)
        assert live.message() == {"v": 1, "type": "pong", "id": 1}
        assert in_flight(other) == 2
        live.say(credit=1, credit_bytes=1)
        live.bundle()
        live.end()


def test_an_ended_call_gives_everything_back(server: Server) -> None:
    """Scenario: a client ends, and another just drops its connection. Guarantee: what they
    had is there for the next within a second, with its count."""
    with connect(server) as other:
        put_slot(other, "t", [logs(n) for n in range(3)])
        with connect(server) as client:
            live = Live(client)
            for _ in range(3):
                live.bundle()
            live.end()
        eventually(lambda: in_flight(other) == 0, 1.0)
        client = connect(server)
        live = Live(client)
        assert [live.bundle()[0]["delivery"] for _ in range(3)] == [2, 2, 2]
        live.reader.cancel()
        eventually(lambda: in_flight(other) == 0, 1.0)
        assert act(other, "status")["server"]["calls"]["running"] == 1
        client.close()


def test_nacks_and_rejections(server: Server) -> None:
    """Scenario: one bundle is deferred, one rejected. Guarantee: the first comes again with
    the reason, the second never."""
    with connect(server) as client, connect(server) as other:
        put_slot(other, "t", [logs(0), logs(1)])
        live = Live(client)
        first, second = live.bundle()[0], live.bundle()[0]
        live.say(defer=[first["ref"]], delay_ms=0, reason="busy")
        live.say(reject=[second["ref"]], reason="bad", id=3)
        seen: list[dict[str, Any]] = []
        while len(seen) < 3:
            chunk = live.reader.read_chunk()
            seen.append(json.loads(chunk.app_metadata.to_pybytes()))
        again = next(one for one in seen if one.get("delivery") == 2)
        assert (again["ref"], again["reason"]) == (first["ref"], "busy")
        live.say(ack=[first["ref"], second["ref"]], id=4)
        assert live.message() == {"v": 1, "type": "done", "id": 4, "refs": [second["ref"]]}
        live.end()


def test_a_silent_client_loses_its_lease(server: Server) -> None:
    """Scenario: a client is not heard of for its lease. Guarantee: its bundles go back, it
    is told which, and its late ack is refused."""
    with connect(server) as client, connect(server) as other:
        put_slot(other, "t", [logs(0)])
        live = Live(client, lease_ms=200, credit=1)
        note, _ = live.bundle()
        assert live.message() == {"v": 1, "type": "expired", "refs": [note["ref"]]}
        live.say(ack=[note["ref"]], id=1)
        assert live.message()["refs"] == [note["ref"]]
        live.end()


def test_pings_keep_the_lease(server: Server) -> None:
    """Scenario: a client works for longer than its lease and pings. Guarantee: it keeps
    its bundle."""
    with connect(server) as client, connect(server) as other:
        put_slot(other, "t", [logs(0)])
        live = Live(client, lease_ms=300)
        note, _ = live.bundle()
        pause = threading.Event()
        for n in range(10):
            pause.wait(0.1)
            live.say(ping=True, id=n)
            assert live.message()["type"] == "pong"
        live.say(ack=[note["ref"]], id=99)
        assert live.message() == {"v": 1, "type": "done", "id": 99}
        live.end()


def test_bad_messages_are_answered_not_fatal(server: Server) -> None:
    """Scenario: malformed messages on a live call. Guarantee: an error each, and the call
    goes on."""
    with connect(server) as client, connect(server) as other:
        put_slot(other, "t", [logs(0)])
        live = Live(client)
        note, _ = live.bundle()
        for bad in (b"x", b"{}", b'{"v":1,"nope":1}', b'{"v":1,"ack":5}', b"\xff" * 100):
            live.writer.write_metadata(bad)
            answer = live.message()
            assert (answer["type"], answer["code"]) == ("error", "bad_request")
        live.say(ack=[note["ref"]], id=1)
        assert live.message() == {"v": 1, "type": "done", "id": 1}
        live.end()


def test_projection_and_filters(server: Server) -> None:
    """Scenario: a live subscription for one column of one slot. Guarantee: that alone."""
    with connect(server) as client, connect(server) as other:
        wide = pa.record_batch({"a": [1], "b": [2]})
        put_bundles(other, "t", [{"Wide": wide, "Logs": logs(1)}])
        live = Live(client, slots=["Wide"], projection={"Wide": ["b"]})
        note, batches = live.bundle()
        assert note["slots"] == ["Wide"]
        assert batches["Wide"].schema.names == ["b"]
        live.end()


def test_a_client_that_never_reads_hurts_nobody(server: Server) -> None:
    """Scenario: a live subscriber with much credit reads nothing at all. Guarantee: another
    subscriber and a producer go on as if it weren't there."""
    big = pa.record_batch({"x": pa.array(range(20_000), pa.int64())})
    with connect(server) as stalled, connect(server) as client, connect(server) as producer:
        act(producer, "create_stream", stream="t")
        writer, _ = stalled.do_exchange(command(stream="t", subscriber="stalled", credit=4096))
        live = Live(client)
        for _ in range(3):
            put_slot(producer, "t", [big] * 40)
            taken = done = 0
            while taken < 40 or done < 40:
                chunk = live.reader.read_chunk()
                note = json.loads(chunk.app_metadata.to_pybytes())
                if chunk.data is None:
                    done += note["type"] == "done"
                    continue
                taken += 1
                live.say(ack=[note["ref"]], credit=1, credit_bytes=note["nbytes"])
        live.end()
        del writer


def test_subscribing_to_nothing_is_refused(server: Server) -> None:
    """Scenario: an unknown stream, a path instead of a command. Guarantee: typed errors."""
    with connect(server) as client:
        for where, code in (
            (command(stream="nope", subscriber="s"), "unknown_stream"),
            (flight.FlightDescriptor.for_path("t"), "bad_request"),
        ):
            writer, reader = client.do_exchange(where)
            with pytest.raises(flight.FlightError) as caught:
                reader.read_chunk()
            assert json.loads(caught.value.extra_info)["code"] == code
            del writer
