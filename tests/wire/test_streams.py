"""Many streams under one root: made, listed, deleted, asleep, damaged."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pyarrow.flight as flight
import pytest

from flight_service.server import Server, streams
from flight_service.server.stream import ServedStream
from tests.wire.bare import act, fails, get, info, logs, put_slot
from tests.wire.conftest import MakeServer, connect
from tests.wire.test_exchange import eventually

SMALL_STREAM: dict[str, Any] = {
    "segment": {"target_size": "64KiB"},
    "limits": {"max_bundle": "64KiB", "max_unsynced": "64KiB"},
    "wal": {"rotation_target": "64KiB", "max_size": "1MiB", "max_rotated_files": 16},
}


def names(client: flight.FlightClient) -> dict[str, str]:
    listed = act(client, "list_streams")["streams"]
    return {one["name"]: one["state"] for one in listed}


def test_create_list_delete(client: flight.FlightClient) -> None:
    """Scenario: a stream's life. Guarantee: made once, with its settings; deleted only by
    its name twice, and not while somebody needs it unless forced."""
    assert act(client, "create_stream", stream="a", settings=SMALL_STREAM)["created"] is True
    fails("stream_exists", act, client, "create_stream", stream="a")
    again = act(client, "create_stream", stream="a", if_not_exists=True)
    assert again["created"] is False
    fails("invalid_name", act, client, "create_stream", stream="A")
    bad = {"wal": {"flsh": 1}}
    error = fails("invalid_config", act, client, "create_stream", stream="b", settings=bad)
    assert "wal.flush" in error.message
    put_slot(client, "a", [logs(1)])
    act(client, "register", stream="a", subscriber="s")
    status = act(client, "status", stream="a")["streams"]["a"]
    assert status["settings"] == SMALL_STREAM
    fails("bad_request", act, client, "delete_stream", stream="a", confirm="b")
    fails("not_drained", act, client, "delete_stream", stream="a", confirm="a")
    assert names(client) == {"a": "open"}
    act(client, "delete_stream", stream="a", confirm="a", force=True)
    assert names(client) == {}
    fails("unknown_stream", info, client, stream="a")
    # Made again, it goes on with its numbers: a ref names one bundle for good.
    assert put_slot(client, "a", [logs(2)])[0]["ref"] == [1, 0]


def test_what_nobody_was_shown_yet_is_not_deleted(client: flight.FlightClient) -> None:
    """Scenario: only written segments are delivered, and a durable bundle waits for its own;
    the stream is to be deleted. Guarantee: refused without force, and the lag says why."""
    act(client, "create_stream", stream="a", settings={"deliver": "sealed"})
    act(client, "register", stream="a", subscriber="s")
    assert put_slot(client, "a", [logs(1)])[0]["status"] == "ok"
    fails("not_drained", act, client, "delete_stream", stream="a", confirm="a")
    assert act(client, "lag", stream="a")["subscribers"]["s"]["bundles"] == 1
    act(client, "flush", stream="a")
    assert act(client, "lag", stream="a")["subscribers"]["s"]["bundles"] == 1
    done = [one["ref"] for one in act(client, "claim", stream="a", subscriber="s")["bundles"]]
    act(client, "ack", stream="a", subscriber="s", refs=done, durable=True)
    act(client, "delete_stream", stream="a", confirm="a")


def test_a_deleted_stream_is_gone_from_disk(server: Server, client: flight.FlightClient) -> None:
    """Scenario: a stream with data is deleted. Guarantee: no byte of it is left."""
    put_slot(client, "a", [logs(1)])
    assert os.path.exists(os.path.join(server.streams.root, "streams", "a"))
    act(client, "delete_stream", stream="a", confirm="a", force=True)
    assert os.listdir(os.path.join(server.streams.root, "streams")) == []
    assert os.listdir(os.path.join(server.streams.root, "trash")) == []


def test_streams_and_settings_survive_a_restart(make_server: MakeServer) -> None:
    """Scenario: streams with settings of their own; restart. Guarantee: all are there."""
    server = make_server()
    with connect(server) as client:
        act(client, "create_stream", stream="a", settings=SMALL_STREAM)
        put_slot(client, "a", [logs(1)])
        put_slot(client, "b", [logs(2)])
    assert server.stop()
    with connect(make_server()) as client:
        assert set(names(client)) == {"a", "b"}
        assert act(client, "status", stream="a")["streams"]["a"]["settings"] == SMALL_STREAM
        for name in "ab":
            assert len(get(client, info(client, stream=name).endpoints[0].ticket)) == 1


def test_a_damaged_stream_stops_nobody_else(make_server: MakeServer, tmp_path: Path) -> None:
    """Scenario: one stream's service file is garbage, another's log is overwritten.
    Guarantee: the server starts, names both as damaged with the reason, serves the third,
    and can delete a damaged one when told so twice."""
    server = make_server()
    with connect(server) as client:
        for name in "abc":
            put_slot(client, name, [logs(1), logs(2)])
    server.stop()
    streams = tmp_path / "data" / "streams"
    (streams / "a" / "service.json").write_text("{nonsense")
    for file in (streams / "b" / "store").rglob("quiver.segment.seq"):
        file.write_bytes(b"\xff" * file.stat().st_size)
    with connect(make_server()) as client:
        eventually(lambda: act(client, "health")["status"] == "degraded")
        assert set(act(client, "health")["details"]) == {"a", "b"}
        assert names(client)["c"] == "open"
        error = fails("stream_damaged", put_slot, client, "a", [logs(1)])
        assert not error.retryable
        fails("stream_damaged", info, client, stream="b")
        assert put_slot(client, "c", [logs(3)])[0]["status"] == "ok"
        status = act(client, "status")["streams"]
        assert (status["a"]["state"], status["c"]["state"]) == ("damaged", "open")
        fails("stream_damaged", act, client, "delete_stream", stream="b", confirm="b")
        act(client, "delete_stream", stream="b", confirm="b", force=True)
        assert set(names(client)) == {"a", "c"}


def test_idle_streams_sleep_and_wake(make_server: MakeServer) -> None:
    """Scenario: nobody uses a stream for a while. Guarantee: it is closed; the next use
    opens it with everything in it; one with a claim out stays open."""
    server = make_server(server__idle_close=0.3)
    with connect(server) as client:
        put_slot(client, "a", [logs(1)])
        put_slot(client, "b", [logs(1)])
        act(client, "claim", stream="b", subscriber="s")
        eventually(lambda: names(client) == {"a": "closed", "b": "open"})
        assert len(get(client, info(client, stream="a").endpoints[0].ticket)) == 1
        assert names(client)["a"] == "open"


def test_a_stream_at_rest_is_not_ticked_for(
    make_server: MakeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: streams are put into and left alone; then one of them is claimed from, with a
    short lease. Guarantee: none costs a tick while nobody uses it; the lease ends in time."""
    monkeypatch.setattr(streams, "IDLE_TICK_SECONDS", 600.0)
    server = make_server(server__idle_close=600)
    ticked: list[str] = []
    tick = ServedStream.tick

    def counted(stream: ServedStream, now: float) -> None:
        ticked.append(stream.name)
        tick(stream, now)

    monkeypatch.setattr(ServedStream, "tick", counted)
    with connect(server) as client:
        for name in "ab":
            put_slot(client, name, [logs(1)])

        def is_quiet() -> bool:
            ticked.clear()
            time.sleep(0.3)
            return not ticked

        eventually(is_quiet)
        act(client, "claim", stream="b", subscriber="s", lease_ms=1000)
        eventually(lambda: not server.streams.opened()[1].busy)
        assert set(ticked) == {"b"}
        eventually(is_quiet)


def test_a_place_is_made_for_the_next_stream(make_server: MakeServer) -> None:
    """Scenario: more streams than may be open, then all places in use. Guarantee: the
    longest unused is closed for the next; with none to close, a typed refusal."""
    server = make_server(server__max_open_streams=2)
    with connect(server) as client:
        for name in "abcd":
            assert put_slot(client, name, [logs(1)])[0]["status"] == "ok"
        assert sorted(names(client).values()) == ["closed", "closed", "open", "open"]
        for name in "cd":
            act(client, "claim", stream=name, subscriber="s")
        error = fails("busy", put_slot, client, "a", [logs(1)])
        assert error.details["limit"] == "server.max_open_streams"


def test_the_number_of_streams_is_bounded(make_server: MakeServer) -> None:
    """Scenario: a client makes streams without end. Guarantee: the limit is named."""
    server = make_server(server__max_streams=3)
    with connect(server) as client:
        for name in "abc":
            act(client, "create_stream", stream=name)
        error = fails("limit_exceeded", act, client, "create_stream", stream="d")
        assert error.details["limit"] == "server.max_streams"
        fails("limit_exceeded", put_slot, client, "e", [logs(1)])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_five_hundred_streams(make_server: MakeServer) -> None:
    """Scenario: 500 streams, all used, then all listed. Guarantee: threads and files stay
    bounded by what may be open, not by what there is; every one can be read."""
    server = make_server(server__max_open_streams=40, **SMALL_STREAM)
    with connect(server) as client:
        put_slot(client, "s0", [logs(0)])
        threads, files = threading.active_count(), len(os.listdir("/proc/self/fd"))
        for n in range(500):
            assert put_slot(client, f"s{n}", [logs(n)])[0]["status"] == "ok"
        assert threading.active_count() <= threads + 2
        assert len(os.listdir("/proc/self/fd")) <= files + 40 * 6
        assert len(names(client)) == 500
        assert list(names(client).values()).count("open") <= 40
        for n in range(0, 500, 50):
            ((_, batches), *_rest) = get(client, info(client, stream=f"s{n}").endpoints[0].ticket)
            assert batches["Logs"].equals(logs(n))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_subscribers(client: flight.FlightClient) -> None:
    """Scenario: a thousand names register on one stream. Guarantee: each gets everything,
    and listing their lag works."""
    act(client, "create_stream", stream="t")
    for n in range(1_000):
        act(client, "register", stream="t", subscriber=f"s{n}")
    put_slot(client, "t", [logs(1)])
    lag = act(client, "lag", stream="t")["subscribers"]
    assert len(lag) == 1_000
    assert {one["bundles"] for one in lag.values()} == {1}
    assert len(act(client, "claim", stream="t", subscriber="s999")["bundles"]) == 1


def test_drain_stops_puts_and_waits(client: flight.FlightClient) -> None:
    """Scenario: a drain with a subscriber behind. Guarantee: puts are answered `retry`, the
    drain says whether all was finished."""
    put_slot(client, "t", [logs(1)])
    act(client, "register", stream="t", subscriber="s")
    assert act(client, "drain", stream="t", timeout_ms=50)["drained"] is False
    (receipt,) = put_slot(client, "t", [logs(2)])
    assert (receipt["status"], receipt["code"]) == ("retry", "draining")
    act(client, "ack", stream="t", subscriber="s", refs=[[0, 0]])
    assert act(client, "drain", stream="t", timeout_ms=5_000)["drained"] is True


def test_maintain_and_wait_durable(client: flight.FlightClient) -> None:
    """Scenario: upkeep on request; waiting for a sequence. Guarantee: answers in numbers,
    and a sequence that was never given out is no reason to wait."""
    (receipt,) = put_slot(client, "t", [logs(1)], durability="accepted")
    act(client, "wait_durable", stream="t", sequence=receipt["sequence"])
    fails("unknown_bundle", act, client, "wait_durable", stream="t", sequence=10**9)
    work = act(client, "maintain", stream="t")["work"]
    assert all(isinstance(value, int) for value in work.values()), work
    json.dumps(work)
