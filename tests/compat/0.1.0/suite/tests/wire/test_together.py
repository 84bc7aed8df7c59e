"""Bundles that share a message: each is still a bundle of its own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_service.client import connect as open_client
from flight_service.protocol.wrapper import BY_NAME, SlotStream, rows_of, unwrap_batch, wrap
from flight_service.server import Server
from tests.wire.bare import act, command, get, info, logs, put_slot, receipts
from tests.wire.conftest import MakeServer, connect
from tests.wire.test_exchange import Live
from tests.wire.test_put_flow import TINY, big

Bundle = dict[str, pa.RecordBatch]
MIXED: list[Bundle] = [{"Logs": logs(0), "Other": logs(1, 2)}, {}, {"Logs": logs(3)}]


def together(*bundles: Bundle, **changes: Any) -> tuple[pa.RecordBatch, bytes]:
    """A message with all of these, under keys k0, k1, …"""
    said = [{"slots": len(one), "key": f"k{n}"} for n, one in enumerate(bundles)]
    return wrap(*bundles), json.dumps({"v": 1, "bundles": said, **changes}).encode()


def put(server: Server, *messages: tuple[pa.RecordBatch, bytes], **fields: Any) -> list[Any]:
    with connect(server) as client:
        writer, reader = client.do_put(command(stream="t", **fields), messages[0][0].schema)
        with writer:
            for message in messages:
                writer.write_with_metadata(*message)
            writer.done_writing()
            return receipts(reader)


def everything(server: Server) -> list[tuple[str | None, Bundle]]:
    """All bundles of the stream, with their keys."""
    with connect(server) as client:
        found = []
        for endpoint in info(client, stream="t").endpoints:
            found += get(client, endpoint.ticket)
        return [(note.get("key"), batches) for note, batches in found]


def test_each_bundle_of_a_message_is_one_of_its_own(server: Server) -> None:
    """Scenario: bundles with two slots, none and one come in one message, another alone.
    Guarantee: four receipts, counted on, and four bundles, equal to what was sent."""
    answers = put(server, together(*MIXED), (wrap({"Logs": logs(9)}), b'{"v":1,"key":"last"}'))
    assert [(one["n"], one["status"], one["key"]) for one in answers] == [
        (0, "ok", "k0"),
        (1, "ok", "k1"),
        (2, "ok", "k2"),
        (3, "ok", "last"),
    ]
    assert everything(server) == [
        *((f"k{n}", bundle) for n, bundle in enumerate(MIXED)),
        ("last", {"Logs": logs(9)}),
    ]


def test_one_that_is_refused_takes_nobody_along(server: Server) -> None:
    """Scenario: of five bundles one has a slot twice, one holds rubbish, one repeats a key.
    Guarantee: those are refused or told as duplicates, the others kept, in order."""
    good = {"Logs": logs(1)}
    batch, _ = together(good, good, good, good, good, good)
    streams = [cell.as_py() for cell in batch.column(2)]
    streams[3] = b"rubbish"
    batch = pa.record_batch([batch.column(0), batch.column(1), streams], schema=BY_NAME)
    keys = [("a", 1), ("twice", 2), ("rubbish", 1), ("a", 1), ("b", 1)]
    said = [{"slots": slots, "key": key} for key, slots in keys]
    answers = put(server, (batch, json.dumps({"v": 1, "bundles": said}).encode()))
    assert [one["status"] for one in answers] == ["ok", "rejected", "rejected", "dup", "ok"]
    assert [one.get("code") for one in answers[1:3]] == ["invalid_bundle"] * 2
    assert [key for key, _ in everything(server)] == ["a", "b"]


@pytest.mark.parametrize(
    ("message", "fields", "count"),
    [
        (lambda: together({"Logs": logs(1)}, {}, bundles=[{"slots": 1}, {"slots": 1}]), {}, 2),
        (lambda: together({"Logs": logs(1)}, {}, bundles=[{"slots": 0}]), {}, 1),
        (lambda: together({"Logs": logs(1)}, key="k"), {}, 1),
        (lambda: together({"Logs": logs(1)}, resend=0), {}, 1),
        (lambda: together(*[{}] * 65), {}, 1),
        (lambda: (logs(1), together({"Logs": logs(1)})[1]), {"mode": "slot", "slot": "Logs"}, 1),
    ],
    ids=["too-few-rows", "too-many-rows", "a-key-for-all", "resend", "too-many", "slot-mode"],
)
def test_a_message_that_does_not_add_up_is_refused_as_a_whole(
    server: Server,
    message: Callable[[], tuple[pa.RecordBatch, bytes]],
    fields: dict[str, str],
    count: int,
) -> None:
    """Scenario: the list of bundles does not fit the rows, or the call, or the rules.
    Guarantee: refused, nothing kept, and the call goes on."""
    last = (wrap({"Logs": logs(9)}), b'{"v":1,"key":"last"}')
    if fields:
        last = (logs(9), last[1])
    answers = put(server, message(), last, **fields)
    assert [one["status"] for one in answers] == ["rejected"] * count + ["ok"]
    assert {one["code"] for one in answers[:-1]} == {"bad_request"}
    assert [key for key, _ in everything(server)] == ["last"]


def test_a_full_stream_refuses_the_rest_of_a_message_in_turn(make_server: MakeServer) -> None:
    """Scenario: the stream is full in the middle of a message. Guarantee: the bundles before
    are kept, the one that finds no room and all behind it are to be sent again, in turn."""
    server = make_server(calls__put_wait=0.05)
    with connect(server) as client:
        act(client, "create_stream", stream="t", settings=TINY)
    answers = put(server, together(*[{"Logs": big(n)} for n in range(40)]))
    states = [one["status"] for one in answers]
    kept = states.index("retry")
    assert states == ["ok"] * kept + ["retry"] * (40 - kept)
    assert answers[kept]["code"] == "backpressure"
    assert {one["code"] for one in answers[kept + 1 :]} == {"out_of_turn"}
    assert [key for key, _ in everything(server)] == [f"k{n}" for n in range(kept)]


def test_a_writer_keeps_the_order_whatever_shares_a_message(make_server: MakeServer) -> None:
    """Scenario: a writer sends small bundles as fast as it can while the stream is full again
    and again and a reader makes room. Guarantee: all arrive, once, in their order."""
    server = make_server(calls__put_wait=0.02)
    count = 60
    with open_client(f"grpc://127.0.0.1:{server.port}") as client:
        stream = client.create_stream("t", TINY)
        stream.register("s")
        seen: list[int] = []
        with (
            stream.subscribe("s", prefetch=4) as subscription,
            stream.writer(window=32) as writer,
        ):
            pending = []
            for n in range(count):
                pending.append(writer.put({"Logs": big(n)}))
                if n % 8 == 7:
                    for _ in range(8):
                        bundle = subscription.next_bundle(30)
                        assert bundle is not None
                        seen.append(bundle["Logs"].column(0)[0].as_py())
                        bundle.ack()
            writer.flush(30)
            while len(seen) < count:
                bundle = subscription.next_bundle(30)
                assert bundle is not None
                seen.append(bundle["Logs"].column(0)[0].as_py())
                bundle.ack()
        assert seen == list(range(count))
        assert [one.result().ref for one in pending] == sorted(one.result().ref for one in pending)


def test_a_client_gets_as_many_in_a_message_as_it_asks_for(server: Server) -> None:
    """Scenario: seven bundles wait, the client takes three in a message. Guarantee: three,
    three and one; each with its own rows and its own credit; a lone one is listed too."""
    with connect(server) as client, connect(server) as producer:
        put(server, together(*MIXED))
        put_slot(producer, "t", [logs(n) for n in range(4)])
        live = Live(client, together=3)
        sizes: list[int] = []
        found: list[Bundle] = []
        while len(found) < 7:
            chunk = live.reader.read_chunk()
            told = json.loads(chunk.app_metadata.to_pybytes())["bundles"]
            row = iter(rows_of(chunk.data))
            sizes.append(len(told))
            for one in told:
                names = one.get("slots", [])
                found.append({name: unwrap_batch(SlotStream(*next(row))) for name in names})
            assert next(row, None) is None
        assert sizes == [3, 3, 1]
        assert found == [*MIXED, *({"Logs": logs(n)} for n in range(4))]
        live.end()


def test_credit_bounds_what_comes_together(server: Server) -> None:
    """Scenario: five bundles wait, credit for two, then for two more. Guarantee: no message
    has more than the credit left."""
    with connect(server) as client, connect(server) as producer:
        put_slot(producer, "t", [logs(n) for n in range(5)])
        live = Live(client, together=64, credit=2)
        for _ in range(2):
            told = json.loads(live.reader.read_chunk().app_metadata.to_pybytes())["bundles"]
            assert len(told) == 2
            live.say(credit=2, credit_bytes=1 << 20)
        live.end()


def test_no_more_than_64_are_asked_for(server: Server) -> None:
    """Scenario: a subscription that wants 65 in a message, or none. Guarantee: refused."""
    with connect(server) as client:
        for wrong in (0, 65):
            with pytest.raises(flight.FlightError, match="from 1 to 64"):
                Live(client, together=wrong)
