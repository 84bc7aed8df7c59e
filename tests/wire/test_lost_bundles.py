"""Bundles that turn out damaged, or are deleted, between a claim and what comes after it."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_service.protocol.exchange import SubscribeCommand
from flight_service.protocol.get import FlightMeta
from flight_service.server import Server, service
from flight_service.server.exchange import ExchangeCall
from flight_service.server.get import listed as look_into
from flight_service.server.leases import ConsumerGroup
from flight_service.server.stream import ServedStream
from quiver.errors import BundleGone, SegmentDamage
from quiver.segment.segments import Pin
from tests.wire.bare import act, fails, get, info, logs, put_slot
from tests.wire.conftest import MakeServer, connect
from tests.wire.test_exchange import Live, eventually, in_flight

BASE = 1_000_000
"""Values that occur once in a file: bundle *i* holds ``BASE + i``."""


def sealed(make_server: MakeServer, count: int, stream: str = "t", **settings: Any) -> Server:
    """A server with ``count`` bundles in one segment file, and nothing of them in its log."""
    server = make_server(**settings)
    with connect(server) as client:
        put_slot(client, stream, [logs(BASE + n) for n in range(count)])
        act(client, "register", stream=stream, subscriber="s")
        act(client, "flush", stream=stream)
    server.stop()
    return make_server(**settings)


def rot(root: Path, *bundles: int, stream: str = "t") -> None:
    """Flip a byte in each of these bundles."""
    (path,) = root.glob(f"data/streams/{stream}/**/segments/*.qseg")
    path.chmod(0o640)
    data = bytearray(path.read_bytes())
    for bundle in bundles:
        at = data.find((BASE + bundle).to_bytes(8, "little"))
        assert at >= 0
        data[at] ^= 0x40
    with path.open("r+b") as file:
        file.write(data)


@pytest.fixture
def rots_after_the_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    """A claim verifies what it hands out; bytes may rot right behind that."""
    monkeypatch.setattr(Pin, "check", lambda self, index: None)


def received(live: Live, count: int) -> list[dict[str, Any]]:
    return [live.bundle()[0] for _ in range(count)]


@pytest.mark.usefixtures("rots_after_the_claim")
@pytest.mark.parametrize("together", [1, 4])
def test_a_lost_bundle_does_not_end_a_subscription(
    make_server: MakeServer, tmp_path: Path, together: int
) -> None:
    """Scenario: two of six bundles rot between their claim and being sent. Guarantee: the other
    four arrive, nothing stays claimed, the call goes on with new bundles and ends in order."""
    server = sealed(make_server, 6)
    rot(tmp_path, 2, 5)
    with connect(server) as client, connect(server) as producer:
        live = Live(client, credit=100, together=together)
        refs: list[list[int]] = []
        while len(refs) < 4:
            chunk = live.reader.read_chunk()
            note = json.loads(chunk.app_metadata.to_pybytes())
            assert chunk.data is not None, note
            refs += [one["ref"] for one in note.get("bundles", [note])]
        assert refs == [[0, 0], [0, 1], [0, 3], [0, 4]]
        live.say(ack=refs, durable=True, id=1)
        assert live.message() == {"v": 1, "type": "done", "id": 1, "durable": True}
        assert in_flight(producer) == 0
        put_slot(producer, "t", [logs(7)])
        chunk = live.reader.read_chunk()
        assert chunk.data is not None
        live.end()
        losses = act(producer, "status", stream="t")["streams"]["t"]["losses"]
        assert sum(one["bundles"] for one in losses) == 2, losses


@pytest.mark.usefixtures("rots_after_the_claim")
def test_an_ended_call_leaves_no_thread_behind(make_server: MakeServer, tmp_path: Path) -> None:
    """Scenario: a client ends its call while a bundle claimed for it is lost and its segment is
    deleted already. Guarantee: the handler returns without an error, after its pusher has ended:
    one that still writes would write into memory that Flight has freed."""
    server = sealed(make_server, 4)
    rot(tmp_path, 1)
    with connect(server) as client, connect(server) as other:
        live = Live(client, credit=100)
        notes = received(live, 3)
        live.say(ack=[note["ref"] for note in notes], durable=True, id=1)
        live.message()
        eventually(lambda: not list(tmp_path.glob("data/streams/t/**/segments/*.qseg")))
        live.writer.done_writing()
        with pytest.raises(StopIteration):
            live.reader.read_chunk()
        live.writer.close()
        eventually(lambda: not [t for t in threading.enumerate() if t.name == "quiver-push"])
        assert in_flight(other) == 0


class _Pipe:
    """The two ends of a call: the client is gone at once, and writes take their time."""

    def __init__(self) -> None:
        self.writing = threading.Event()
        self.go_on = threading.Event()

    def begin(self, schema: pa.Schema) -> None:
        pass

    def write_metadata(self, data: bytes) -> None:
        pass

    def write_with_metadata(self, batch: pa.RecordBatch, data: pa.Buffer) -> None:
        self.writing.set()
        self.go_on.wait(5)

    def read_chunk(self) -> Any:
        self.writing.wait(5)
        threading.Timer(0.1, self.go_on.set).start()
        raise StopIteration


def test_the_pusher_ends_before_the_handler_whatever_happens(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: giving claims back fails while the pusher is in the middle of a write.
    Guarantee: the handler returns only after the pusher has ended."""
    with connect(server) as client:
        put_slot(client, "t", [logs(1)])

    def release(*_: Any, **__: Any) -> int:
        raise BundleGone("not here any more.")

    monkeypatch.setattr(ConsumerGroup, "release", release)
    pipe = _Pipe()
    with server._streams.use("t") as stream:  # no client can make the two meet
        command = SubscribeCommand(stream="t", subscriber="s", credit=8)
        call = ExchangeCall(stream, command, pipe, pipe, stopping=lambda: False)
        with pytest.raises(BundleGone):
            call.run()
        assert not [t for t in threading.enumerate() if t.name == "quiver-push"]


def test_a_time_in_a_segment_with_lost_bundles(make_server: MakeServer, tmp_path: Path) -> None:
    """Scenario: reads, plans and seeks by time, in a segment whose middle and newest bundles are
    lost, with a later segment behind it. Guarantee: every bundle that is there is found."""
    server = sealed(make_server, 9)
    with connect(server) as client:
        described = info(client, stream="t", describe=True).app_metadata
        times = json.loads(described)["times_ns"]
        rot(tmp_path, 4, 8)
        fails("expired", everything, client)
        later = put_slot(client, "t", [logs(1)])[0]["ref"]
        here = [[0, n] for n in range(8) if n != 4] + [later]
        assert listed(client) == here
        assert listed(client, since_ns=times[0]) == here
        assert listed(client, since_ns=times[3]) == here[3:]
        assert listed(client, since_ns=times[8] + 1) == [later]
        assert listed(client, until_ns=times[8] + 1) == here[:-1]
        planned = act(client, "plan", stream="t", since_ns=times[0])
        assert planned["start"] == [0, 0]
        assert act(client, "plan", stream="t", since_ns=times[8] + 1)["start"] == later
        sought = act(client, "seek", stream="t", subscriber="s", to=times[3])
        assert sought["ref"] == [0, 3]
        claimed = act(client, "claim", stream="t", subscriber="s")["bundles"]
        assert [one["ref"] for one in claimed] == here[3:]


def everything(client: flight.FlightClient) -> list[tuple[dict[str, Any], Any]]:
    return [one for end in info(client, stream="t").endpoints for one in get(client, end.ticket)]


def listed(client: flight.FlightClient, **fields: Any) -> list[list[int]]:
    found = FlightMeta.decode(info(client, stream="t", **fields).app_metadata)
    return [list(ref) for ref in found.refs]


def test_a_lost_newest_bundle_hides_no_schema_and_no_stream(
    make_server: MakeServer, tmp_path: Path
) -> None:
    """Scenario: a stream's newest bundle is lost. Guarantee: GetSchema finds the schema in an
    older one, and ListFlights lists it and the others with slots and times."""
    server = sealed(make_server, 3)
    with connect(server) as client:
        put_slot(client, "u", [logs(1)])
        rot(tmp_path, 0, 2)
        fails("expired", everything, client)
        slot = flight.FlightDescriptor.for_path("t", "Logs")
        assert client.get_schema(slot).schema == logs(1).schema
        found = {tuple(one.descriptor.path): one for one in client.list_flights()}
        assert set(found) == {(b"t",), (b"t", b"Logs"), (b"u",), (b"u", b"Logs")}
        meta = json.loads(found[(b"t",)].app_metadata)
        assert meta["oldest_ns"] == meta["newest_ns"]


def test_one_stream_in_trouble_does_not_fail_a_listing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: looking into one of two streams fails. Guarantee: both are listed."""
    with connect(server) as client:
        for name in ("t", "u"):
            put_slot(client, name, [logs(1)])

        def in_trouble(stream: ServedStream) -> list[flight.FlightInfo]:
            if stream.name == "t":
                raise SegmentDamage("not readable.")
            return look_into(stream)

        monkeypatch.setattr(service, "listed", in_trouble)
        paths = {tuple(one.descriptor.path) for one in client.list_flights()}
        assert paths == {(b"t",), (b"u",), (b"u", b"Logs")}


@pytest.mark.usefixtures("rots_after_the_claim")
def test_poison_that_is_lost_is_not_tried_for_ever(make_server: MakeServer, tmp_path: Path) -> None:
    """Scenario: a bundle has failed as often as it may, and rots before it is a dead letter.
    Guarantee: it is on record as lost, and nothing of it waits any more."""
    server = sealed(make_server, 2)
    with connect(server) as client:
        who = {"stream": "t", "subscriber": "s"}
        act(client, "register", **who, max_deliveries=1, backoff_ms=0)
        act(client, "claim", **who, max_bundles=1)
        act(client, "defer", **who, refs=[[0, 0]], delay_ms=0, reason="no")
        rot(tmp_path, 0)
        claimed = act(client, "claim", **who, wait_ms=300)
        assert [one["ref"] for one in claimed["bundles"]] == [[0, 1]]

        def pending() -> int:
            status = act(client, "status", stream="t")["streams"]["t"]["subscribers"]["s"]
            found: int = status["delivery"]["dead_letters_pending"]
            return found

        eventually(lambda: pending() == 0, 3)
        losses = act(client, "status", stream="t")["streams"]["t"]["losses"]
        assert sum(one["bundles"] for one in losses) == 1
