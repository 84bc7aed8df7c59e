"""The client's words over real sockets: connect, put, read, look after streams."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice

import pyarrow as pa
import pytest

from flight_service.client import (
    BadRequest,
    Client,
    Closed,
    Disconnected,
    NotFound,
    Ref,
    Rejected,
    connect,
)
from flight_service.protocol.errors import ServiceError
from flight_service.server import Server
from tests.wire.bare import logs


@pytest.fixture
def q(server: Server) -> Iterator[Client]:
    """Our client of a server with default settings."""
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        yield client


def test_a_bundle_comes_back_as_it_was_put(q: Client) -> None:
    """Two slots, a dictionary, attributes, event time: all of it is there again."""
    words = pa.record_batch({"w": pa.array(["a", "b", "a"]).dictionary_encode()})
    stream = q.stream("t")
    receipt = stream.put(
        {"Logs": logs(1, 2), "Words": words},
        key="k",
        attributes={"host": "a"},
        event_time=(5, 9),
    )
    (bundle,) = stream.get(receipt.ref)
    assert (bundle.ref, bundle.sequence, bundle.key) == (receipt.ref, receipt.sequence, "k")
    assert bundle.attributes == {"host": "a"}
    assert bundle.info.event_time == (5, 9)
    assert list(bundle) == ["Logs", "Words"]
    assert bundle["Logs"].equals(logs(1, 2))
    assert bundle["Words"].equals(words)
    assert bundle.get("Metrics") is None
    with pytest.raises(KeyError, match="no slot 'Metrics'"):
        bundle["Metrics"]


def test_a_table_is_one_batch_and_an_empty_one_too(q: Client) -> None:
    """Tables of several chunks, or of none, make one bundle each."""
    stream = q.stream("t")
    table = pa.Table.from_batches([logs(1), logs(2, 3)])
    stream.put({"Logs": table})
    stream.put({"Logs": table.schema.empty_table()})
    assert [bundle["Logs"].num_rows for bundle in stream.read()] == [3, 0]
    with pytest.raises(TypeError, match="RecordBatch or a Table"):
        stream.put({"Logs": [1, 2]})


def test_a_key_makes_a_repeat_harmless_and_a_conflict_an_error(q: Client) -> None:
    """The same key with the same content is a success; with other content it is refused."""
    stream = q.stream("t")
    first = stream.put({"Logs": logs(1)}, key="k")
    again = stream.put({"Logs": logs(1)}, key="k")
    assert (again.duplicate, again.ref) == (True, first.ref)
    with pytest.raises(Rejected) as caught:
        stream.put({"Logs": logs(2)}, key="k")
    assert caught.value.code == "key_conflict"
    assert stream.put({"Logs": logs(3)}).ref != first.ref


def test_reads_by_range_by_time_and_by_slot(q: Client) -> None:
    """Every way to say which bundles gives those bundles, in order, and claims nothing."""
    stream = q.stream("t")
    refs = [stream.put({"Logs": logs(n), "Other": logs(-n)}).ref for n in range(5)]
    assert [bundle.ref for bundle in stream.read()] == refs
    assert [bundle.ref for bundle in stream.read(refs[1], refs[3])] == refs[1:3]
    assert [list(bundle) for bundle in stream.read(slots=["Other"])] == [["Other"]] * 5
    hour = timedelta(hours=1)
    now = datetime.now(tz=UTC)
    assert len(list(stream.read(since=now - hour, until=now + hour))) == 5
    assert list(stream.read(since=now + hour)) == []
    with pytest.raises(ValueError, match="time zone"):
        stream.read(since=now.replace(tzinfo=None)).__next__()
    table = pa.Table.from_batches(stream.batches("Logs", ["n"]))
    assert table["n"].to_pylist() == [0, 1, 2, 3, 4]


def test_long_reads_come_page_by_page(q: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """More bundles than a page holds, with a segment's end in between: all, once, in order."""
    monkeypatch.setattr("flight_service.client.reading.PAGE_BUNDLES", 7)
    stream = q.stream("t")
    for half in (range(10), range(10, 25)):
        with stream.writer() as writer:
            for number in half:
                writer.put({"Logs": logs(number)})
        stream.flush()
    assert [bundle["Logs"]["n"][0].as_py() for bundle in stream.read()] == list(range(25))
    assert [batch["n"][0].as_py() for batch in stream.batches("Logs")] == list(range(25))


def test_tail_begins_now_and_goes_on(q: Client) -> None:
    """What was there before is not shown; what comes is, as it comes."""
    stream = q.stream("t")
    stream.put({"Logs": logs(0)})
    live = stream.tail()
    for number in range(1, 4):
        stream.put({"Logs": logs(number)})
        assert next(live)["Logs"].equals(logs(number))
    first = next(iter(stream.read())).ref
    seen = [bundle["Logs"]["n"][0].as_py() for bundle in islice(stream.tail(first), 4)]
    assert seen == [0, 1, 2, 3]


def test_tail_of_a_stream_without_bundles(q: Client) -> None:
    """An empty stream is waited for."""
    stream = q.create_stream("t")
    live = stream.tail()
    stream.put({"Logs": logs(7)})
    assert next(live)["Logs"].equals(logs(7))


def test_streams_are_made_listed_and_deleted(q: Client) -> None:
    """The life of a stream, and what is said of one that is not there."""
    assert q.streams() == []
    made = q.create_stream("metrics", {"segment": {"target_size": "1MiB"}})
    assert made is q.stream("metrics")
    assert [one["name"] for one in q.streams()] == ["metrics"]
    assert made.status()["settings"] == {"segment": {"target_size": "1MiB"}}
    with pytest.raises(BadRequest):
        q.create_stream("metrics")
    q.create_stream("metrics", exist_ok=True)
    q.delete_stream("metrics")
    assert q.streams() == []
    with pytest.raises(NotFound):
        list(made.read())
    with pytest.raises(ServiceError, match="not a valid stream name"):
        q.stream("../etc")


def test_subscribers_are_registered_moved_and_removed(q: Client) -> None:
    """Lag, seek and outcomes by ref, without receiving anything."""
    stream = q.stream("t")
    refs = [stream.put({"Logs": logs(n)}).ref for n in range(4)]
    assert stream.register("early", max_deliveries=3).policy["max_deliveries"] == 3
    assert stream.register("late", start="latest").created
    assert not stream.register("late").created
    assert {name: lag.bundles for name, lag in stream.lags().items()} == {"early": 4, "late": 0}
    assert stream.ack("early", refs[:2], durable=True).durable
    assert stream.reject("early", refs[2:3], "broken").taken == 1
    assert stream.lag("early").bundles == 1
    stream.seek("late", refs[1])
    assert stream.lag("late").bundles == 3
    assert stream.unregister("late") == 3
    with pytest.raises(NotFound):
        stream.lag("late")
    (problem,) = stream.ack("early", [Ref(999, 0)]).problems
    assert problem.outcome == "unknown"


def test_upkeep_by_hand(q: Client) -> None:
    """flush, maintain, wait_durable, drain: each does what it says."""
    stream = q.stream("t")
    receipt = stream.put({"Logs": logs(1)})
    assert receipt.sequence is not None
    stream.wait_durable(receipt.sequence)
    assert stream.flush() == 1
    assert isinstance(stream.maintain(), dict)
    stream.register("s")
    assert stream.drain(timeout=0.1) is False
    assert q.status()["server"]["health"] == q.health() == "ok"


def test_nobody_there_is_said_plainly() -> None:
    """No server at an address: an error that names it, soon."""
    with pytest.raises(Disconnected, match="no Quiver server answers at grpc"):
        connect("grpc://127.0.0.1:1", wait=0.2)


def test_a_closed_client_is_closed(server: Server) -> None:
    """After close every word says so, and closing again is fine."""
    client = connect(f"grpc://127.0.0.1:{server.port}")
    stream = client.stream("t")
    stream.put({"Logs": logs(1)})
    client.close()
    client.close()
    with pytest.raises(Closed):
        client.streams()
    with pytest.raises(Closed):
        stream.put({"Logs": logs(2)})
