"""Putting when things don't go smoothly: pressure, silence, clients that leave."""

from __future__ import annotations

import json
import threading
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_service.protocol.wrapper import BY_NAME, wrap
from flight_service.server import Server
from tests.wire.bare import act, command, fails, info, logs, put_bundles, put_slot, receipts
from tests.wire.conftest import MakeServer, connect
from tests.wire.test_exchange import eventually

TINY: dict[str, Any] = {
    "segment": {"target_size": "64KiB"},
    "limits": {"max_bundle": "64KiB", "max_unsynced": "64KiB"},
    "wal": {"rotation_target": "64KiB", "max_size": "256KiB", "max_rotated_files": 10},
    "retention": {"size_cap": "512KiB"},
}
"""A stream that is full after a few bundles."""


def big(n: int = 0) -> pa.RecordBatch:
    """Some 32 KiB."""
    return pa.record_batch({"x": pa.array(range(n, n + 4_000), pa.int64())})


def fill(client: flight.FlightClient) -> list[dict[str, Any]]:
    """Put into ``t`` until it is full; all receipts."""
    return put_slot(client, "t", [big(n) for n in range(40)])


def test_a_full_stream_says_retry_fast_and_in_order(make_server: MakeServer) -> None:
    """Scenario: more is put than the disk budget holds. Guarantee: from the first `retry`
    on everything is `retry`, with a reason and a time; nothing hangs, nothing is skipped."""
    server = make_server(calls__put_wait=0.05)
    with connect(server) as client:
        act(client, "create_stream", stream="t", settings=TINY)
        found = fill(client)
        states = [one["status"] for one in found]
        first = states.index("retry")
        assert states == ["ok"] * first + ["retry"] * (40 - first)
        assert found[first]["code"] == "backpressure"
        assert "disk budget" in found[first]["reason"]
        assert found[first]["retry_after_ms"] > 0
        assert {one["code"] for one in found[first + 1 :]} == {"out_of_turn"}


def test_resending_goes_on_where_it_stopped(make_server: MakeServer) -> None:
    """Scenario: a full stream; a subscriber makes room; the refused bundle is sent again.
    Guarantee: before that one nothing is taken, from it on all is, in order."""
    server = make_server(calls__put_wait=0.05)
    with connect(server) as client, connect(server) as other:
        act(client, "create_stream", stream="t", settings=TINY)
        act(client, "register", stream="t", subscriber="s")
        writer, reader = client.do_put(command(stream="t", mode="slot", slot="Logs"), big().schema)
        n = 0
        while True:
            writer.write_batch(big(n))
            (receipt,) = receipts(reader, 1)
            if receipt["status"] == "retry":
                break
            n += 1
        writer.write_batch(big(n + 1))
        assert receipts(reader, 1)[0]["code"] == "out_of_turn"
        while (claimed := act(other, "claim", stream="t", subscriber="s"))["bundles"]:
            done = [one["ref"] for one in claimed["bundles"]]
            act(other, "ack", stream="t", subscriber="s", refs=done, durable=True)
        act(other, "flush", stream="t")
        act(other, "maintain", stream="t")
        writer.write_batch(big(n + 1))
        assert receipts(reader, 1)[0]["code"] == "out_of_turn"
        resend = json.dumps({"v": 1, "resend": receipt["n"]}).encode()
        writer.write_with_metadata(big(n), resend)
        again = receipts(reader, 1)[0]
        while again["status"] == "retry":
            act(other, "maintain", stream="t")
            writer.write_with_metadata(big(n), resend)
            again = receipts(reader, 1)[0]
        assert again["status"] == "ok"
        writer.write_batch(big(n + 1))
        assert receipts(reader, 1)[0]["status"] == "ok"
        writer.close()


def test_receipts_nobody_reads_stall_only_their_own_call(make_server: MakeServer) -> None:
    """Scenario: a producer sends and never reads receipts, then vanishes. Guarantee: others
    put and read meanwhile; its call ends with it, and the server is well."""
    server = make_server(calls__put_window=64)
    deaf, client = connect(server), connect(server)
    calls = [deaf.do_put(command(stream="t", mode="slot", slot="Logs"), logs().schema)]
    key = "k" * 200
    done = threading.Event()

    def shout() -> None:
        writer, _ = calls[0]
        try:
            for n in range(20_000):
                note = json.dumps({"v": 1, "key": f"{key}{n}"}).encode()
                writer.write_with_metadata(logs(n), note)
        except (pa.ArrowException, OSError):
            pass
        done.set()

    thread = threading.Thread(target=shout, daemon=True)
    thread.start()
    for n in range(20):
        assert put_slot(client, "t", [logs(n)])[0]["status"] == "ok"
        assert put_slot(client, "u", [logs(n)])[0]["status"] == "ok"
    assert info(client, stream="u").endpoints
    deaf.close()
    done.wait(30)
    thread.join()
    calls.clear()
    eventually(lambda: act(client, "status")["server"]["calls"]["running"] == 1, 10.0)
    client.close()


def test_the_end_of_a_put_is_no_commit(server: Server) -> None:
    """Scenario: a client sends and goes without waiting. Guarantee: what it had sent whole
    is kept or not, never half; the call and its threads are gone within a second."""
    with connect(server) as client:
        leaving = connect(server)
        writer, _ = leaving.do_put(command(stream="t"), BY_NAME)
        for n in range(10):
            writer.write_batch(wrap({"Logs": logs(n), "More": logs(n)}))
        leaving.close()
        del writer, leaving
        eventually(lambda: act(client, "status")["server"]["calls"]["running"] == 1, 5.0)
        assert put_slot(client, "t", [logs(1)])[0]["status"] == "ok"


@pytest.mark.parametrize("mode", ["slot", "bundle"])
def test_many_producers_at_once(server: Server, mode: str) -> None:
    """Scenario: eight producers with a window of their own. Guarantee: each bundle is
    answered once, in its producer's order, and all are there."""
    answers: dict[int, list[dict[str, Any]]] = {}

    def produce(who: int) -> None:
        with connect(server) as client:
            notes = [{"key": f"{who}/{n}"} for n in range(50)]
            batches = [logs(who, n) for n in range(50)]
            if mode == "slot":
                answers[who] = put_slot(client, "t", batches, notes)
            else:
                answers[who] = put_bundles(client, "t", [{"Logs": one} for one in batches], notes)

    threads = [threading.Thread(target=produce, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for who, found in answers.items():
        assert [one["key"] for one in found] == [f"{who}/{n}" for n in range(50)]
        assert sorted(one["sequence"] for one in found) == [one["sequence"] for one in found]
    assert len({tuple(one["ref"]) for found in answers.values() for one in found}) == 400


def test_a_cancelled_wait_frees_its_thread(server: Server) -> None:
    """Scenario: a claim with a long wait meets its client's deadline. Guarantee: the call is
    gone within a second of that, and the next bundle goes to somebody who is there."""
    with connect(server) as client:
        act(client, "create_stream", stream="t")
        body = json.dumps({"v": 1, "stream": "t", "subscriber": "s", "wait_ms": 30_000}).encode()
        options = flight.FlightCallOptions(timeout=0.3)
        with pytest.raises(flight.FlightTimedOutError):
            list(client.do_action(flight.Action("claim", body), options))
        eventually(lambda: act(client, "status")["server"]["calls"]["running"] == 1, 1.0)
        put_slot(client, "t", [logs(1)])
        claimed = act(client, "claim", stream="t", subscriber="s", wait_ms=5_000)
        assert len(claimed["bundles"]) == 1


def test_calls_are_counted_and_capped(make_server: MakeServer) -> None:
    """Scenario: more calls at a time than allowed. Guarantee: refused at once as
    too_many_calls, and served again when one has ended."""
    server = make_server(calls__max_calls=2)
    with connect(server) as client, connect(server) as other:
        act(client, "create_stream", stream="t")
        holds = [
            client.do_put(command(stream="t", mode="slot", slot="a"), logs().schema)
            for _ in range(2)
        ]
        for writer, _ in holds:
            writer.write_batch(logs(1))
        for _, reader in holds:
            assert receipts(reader, 1)[0]["status"] == "ok"
        error = fails("too_many_calls", act, other, "health")
        assert error.retryable
        for writer, _ in holds:
            writer.close()
        eventually(lambda: _healthy(other))


def _healthy(client: flight.FlightClient) -> bool:
    try:
        return bool(act(client, "health")["status"] == "ok")
    except Exception:
        return False


def test_puts_to_unknown_streams(make_server: MakeServer) -> None:
    """Scenario: auto_create off. Guarantee: a put to an unknown stream is refused, by the
    error on leaving, and makes nothing."""
    server = make_server(server__auto_create=False)
    with connect(server) as client:
        fails("unknown_stream", put_slot, client, "t", [logs(1)])
        assert act(client, "list_streams") == {"v": 1, "streams": []}
