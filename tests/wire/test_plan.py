"""What readers with many hands ask: plans, schemas, and acks by position."""

from __future__ import annotations

import re
import urllib.request
from pathlib import Path

import pyarrow as pa
import pytest

from flight_service.client import BadRequest, Client, Expired, NotFound, connect
from flight_service.protocol.actions import Ack, Outcomes
from flight_service.protocol.get import FlightMeta, ReadCommand
from flight_service.protocol.names import Ref
from flight_service.server import Server
from tests.wire.conftest import MakeServer
from tests.wire.process import ServerProcess

LOGS = pa.record_batch({"body": ["a", "b"], "n": pa.array([1, 2], pa.int32())})
WIDER = pa.record_batch({"n": pa.array([1], pa.int64()), "host": ["x"]})


@pytest.fixture
def q(server: Server) -> Client:
    return connect(f"grpc://127.0.0.1:{server.port}")


def refs_of(runs: tuple[tuple[int, int, int], ...]) -> list[Ref]:
    return [Ref(segment, first + n) for segment, first, count in runs for n in range(count)]


def test_a_plan_names_every_bundle_once(q: Client) -> None:
    """Scenario: bundles in two files and in memory, cut by count. Guarantee: the parts hold
    every bundle once, in order, none larger than asked, and the sums are right."""
    stream = q.stream("plans")
    put = []
    for size in (5, 4, 3):
        put += [stream.put({"Logs": LOGS}).ref for _ in range(size)]
        if size != 3:
            stream.flush()
    planned = stream.plan(max_bundles=4)
    assert [ref for part in planned.parts for ref in refs_of(part.runs)] == put
    assert all(part.bundles <= 4 for part in planned.parts)
    assert sum(part.rows for part in planned.parts) == 2 * len(put)
    assert sum(part.nbytes for part in planned.parts) > 0
    assert (planned.start, planned.end, planned.more) == (put[0], planned.latest, False)
    assert planned.parts[-1].end == planned.latest
    whole = stream.plan()
    assert [part.bundles for part in whole.parts] == [12]
    assert whole.parts[0].nbytes == sum(part.nbytes for part in planned.parts)


def test_a_plan_admits_no_more_than_asked(q: Client) -> None:
    """Scenario: one part, limited by count or by bytes, from a position in the middle.
    Guarantee: it begins there, keeps the limit, and says that there is more."""
    stream = q.stream("admission")
    put = [stream.put({"Logs": LOGS}).ref for _ in range(6)]
    size = stream.plan().parts[0].nbytes // 6
    by_count = stream.plan(put[2], max_bundles=2, max_parts=1)
    assert (refs_of(by_count.parts[0].runs), by_count.more) == (put[2:4], True)
    by_bytes = stream.plan(put[2], max_bytes=size * 3 + 1, max_parts=1)
    assert (refs_of(by_bytes.parts[0].runs), by_bytes.more) == (put[2:5], True)
    one_anyway = stream.plan(put[2], max_bytes=1, max_parts=1)
    assert refs_of(one_anyway.parts[0].runs) == put[2:3]
    assert stream.plan(max_parts=0).parts == ()
    assert stream.plan(by_count.latest).parts == ()


def test_a_plan_by_time(q: Client) -> None:
    """Scenario: a range by ingestion time, whose ends are the bundles' own times. Guarantee:
    the start is in, the end is out."""
    stream = q.stream("times")
    put = [stream.put({"Logs": LOGS}) for _ in range(4)]
    times = [
        one.ingestion_ts_ns for one in stream.get(*[one.ref for one in put]) if one.ingestion_ts_ns
    ]
    planned = stream.plan(since=times[1], until=times[3])
    assert refs_of(planned.parts[0].runs) == [one.ref for one in put[1:3]]
    assert (planned.start, planned.end) == (put[1].ref, put[3].ref)
    assert stream.plan(since=times[3] + 1).parts == ()
    with pytest.raises(NotFound, match="no-such"):
        q.stream("no-such").plan()


def test_a_plan_tells_what_was_lost(make_server: MakeServer) -> None:
    """Scenario: a policy drops segments that a subscriber had not finished. Guarantee: a
    plan from before tells which, and how many bundles of that subscriber; one from behind
    tells nothing."""
    server = make_server()
    q = connect(f"grpc://127.0.0.1:{server.port}")
    settings = {
        "segment": {"target_size": "64KiB"},
        "limits": {"max_bundle": "64KiB", "max_unsynced": "64KiB"},
        "wal": {"rotation_target": "64KiB", "max_size": "256KiB"},
        "retention": {"size_cap": "512KiB", "size_cap_policy": "drop_oldest"},
        "reserve": 0,
    }
    q.create_stream("small", settings)
    stream = q.stream("small")
    big = pa.record_batch({"x": pa.array(range(4000), pa.int64())})
    first = stream.put({"Logs": big}).ref
    stream.register("slow")
    stream.ack("slow", [first])
    while not stream.plan((0, 0), subscriber="slow").lost:
        stream.put({"Logs": big}, timeout=20)
    told = stream.plan((0, 0), subscriber="slow")
    (lost, *_) = told.lost
    everyone = {one.segment: one.bundles for one in stream.plan((0, 0)).lost}
    assert lost.segment == first.segment
    assert everyone[lost.segment] == lost.bundles, "what all had finished is not lost"
    assert refs_of(told.parts[0].runs)[0].segment > lost.segment
    assert stream.plan(told.latest, subscriber="slow").lost == ()
    assert stream.plan((0, 0), subscriber="nobody").lost == ()


def test_every_schema_once(q: Client) -> None:
    """Scenario: schemas change between bundles and slots, metadata too. Guarantee: each
    schema of a slot once, without its metadata, and only of the slots that exist."""
    stream = q.stream("drift")
    noted = LOGS.replace_schema_metadata({"job": "7"})
    for bundle in ({"Logs": LOGS}, {"Logs": noted, "Attrs": WIDER}, {"Logs": WIDER}):
        stream.put(bundle)
        stream.flush()
    assert stream.schemas() == {"Logs": [LOGS.schema, WIDER.schema], "Attrs": [WIDER.schema]}
    q.create_stream("nothing")
    assert q.stream("nothing").schemas() == {}


def test_schemas_outlive_their_bundles(make_server: MakeServer) -> None:
    """Scenario: a stream is read to its end and its segments are deleted; then another schema
    comes, and the server restarts. Guarantee: the earlier schemas are known all the time,
    apart from those that bundles have."""
    server = make_server()
    stream = connect(f"grpc://127.0.0.1:{server.port}").stream("drained")
    stream.put({"Logs": LOGS})
    stream.put({"Logs": WIDER})
    stream.flush()
    assert stream.schemas(earlier=True) == {}
    stream.register("s")
    stream.ack_before("s", stream.end(), durable=True)
    stream.maintain()
    earlier = {"Logs": [LOGS.schema, WIDER.schema]}
    assert (stream.schemas(), stream.schemas(earlier=True)) == ({}, earlier)
    stream.put({"Logs": WIDER})
    server.stop()
    stream = connect(f"grpc://127.0.0.1:{make_server().port}").stream("drained")
    assert stream.schemas() == {"Logs": [WIDER.schema]}
    assert stream.schemas(earlier=True) == {"Logs": [LOGS.schema]}


def test_an_ack_by_position_frees_what_lies_before(q: Client) -> None:
    """Scenario: some bundles are claimed by somebody, others by nobody; all before a
    position are acked. Guarantee: those are finished for good and their segment is deleted;
    the claim is gone, and what lies behind is delivered."""
    q.create_stream("positions")
    stream = q.stream("positions")
    stream.register("spark")
    put = [stream.put({"Logs": LOGS}).ref for _ in range(3)]
    stream.flush()
    put += [stream.put({"Logs": LOGS}).ref for _ in range(2)]
    with stream.subscribe("spark", prefetch=2) as bundles:
        held = next(iter(bundles))
        assert held.ref == put[0]
        assert stream.ack_before("spark", put[4], durable=True) == 4
        assert stream.ack_before("spark", put[4]) == 0
    assert stream.lag("spark").bundles == 1
    stream.maintain()
    assert stream.plan().start == put[3]
    with stream.subscribe("spark", follow=False) as bundles:
        assert [one.ref for one in bundles] == [put[4]]
    assert stream.register("spark").position == put[4]


def test_a_registration_tells_its_position(q: Client) -> None:
    """Scenario: new subscribers at either end, and a known one. Guarantee: the answer says
    where each stands, and nobody becomes an orphan by it."""
    stream = q.stream("registered")
    put = [stream.put({"Logs": LOGS}).ref for _ in range(3)]
    assert stream.register("old").position == put[0]
    assert stream.register("new", start="latest").position == stream.plan().latest
    assert stream.register("old").status == "registered"
    stream.ack("old", put[:2])
    known = stream.register("old", start="latest")
    assert (known.created, known.position) == (False, put[2])


def test_an_ack_says_what_it_is_about(q: Client) -> None:
    """Scenario: an ack of nothing, and one by position under a lease. Guarantee: refused."""
    stream = q.stream("acks")
    ref = stream.put({"Logs": LOGS}).ref
    stream.register("s")
    asked = (
        Ack(stream="acks", subscriber="s"),
        Ack(stream="acks", subscriber="s", before=ref, lease="x"),
    )
    for one in asked:
        with pytest.raises(BadRequest, match=r"^Ack: "):
            stream._connection.action("ack", one, Outcomes)
    assert stream.ack("s", []).taken == 0


def test_a_slot_is_read_with_its_times(q: Client) -> None:
    """Scenario: slot mode, with `describe`. Guarantee: the info has sequence and time of each
    bundle, equal to what bundle mode tells beside the data; without it, neither."""
    stream = q.stream("described")
    put = [stream.put({"Logs": LOGS}).ref for _ in range(3)]
    bundles = stream.get(*put)
    command = ReadCommand(stream="described", mode="slot", slot="Logs", describe=True)
    meta = FlightMeta.decode(stream._connection.info(command.descriptor()).app_metadata)
    assert meta.refs == tuple(put)
    assert meta.sequences == tuple(one.sequence for one in bundles)
    assert meta.times_ns == tuple(one.ingestion_ts_ns for one in bundles)
    plain = ReadCommand(stream="described", mode="slot", slot="Logs")
    meta = FlightMeta.decode(stream._connection.info(plain.descriptor()).app_metadata)
    assert (meta.sequences, meta.times_ns) == ((), ())


# Reading a part


def runs(refs: list[Ref]) -> list[tuple[int, int, int]]:
    return [(segment, index, 1) for segment, index in refs]


def test_a_part_is_read_by_slot(q: Client) -> None:
    """Scenario: schemas change, some bundles lack the slot, one is empty; more bundles than
    fit a page. Guarantee: each bundle's batch once, in order, with its ref, place and time."""
    stream = q.stream("parts")
    empty = LOGS.slice(0, 0)
    with stream.writer() as writer:
        pending = [writer.put({"Logs": LOGS})]
        pending.append(writer.put({"Attrs": WIDER}))
        pending += [writer.put({"Logs": WIDER if n % 3 else LOGS}) for n in range(2_500)]
        pending += [writer.put({"Logs": empty}), writer.put({"Attrs": WIDER})]
    (part,) = stream.plan().parts
    found = list(stream.slot_part(part.runs, "Logs"))
    without = {1, len(pending) - 1}
    put = [one.result() for n, one in enumerate(pending) if n not in without]
    assert [one.ref for one in found] == [one.ref for one in put]
    assert [one.sequence for one in found] == [one.sequence for one in put]
    assert all(one.ingestion_ts_ns for one in found)
    assert found[0].batch.equals(LOGS)
    assert [one.batch.num_rows for one in found][-2:] == [2, 0]
    narrow = list(stream.slot_part(part.runs, "Logs", ["host"]))
    assert {tuple(one.batch.schema.names) for one in narrow} == {(), ("host",)}
    assert len(narrow) == len(found)


def test_a_part_is_read_as_bundles(q: Client) -> None:
    """Scenario: the same part as whole bundles, and narrowed. Guarantee: all of each bundle,
    or what was asked for."""
    stream = q.stream("parts")
    refs = [stream.put({"Logs": LOGS, "Attrs": WIDER}, key=f"k{n}").ref for n in range(3)]
    found = list(stream.bundle_part(runs(refs)))
    assert [one.key for one in found] == ["k0", "k1", "k2"]
    assert found[0]["Attrs"].equals(WIDER)
    assert pa.ipc.open_stream(found[0].streams()[0].ipc).read_next_batch().equals(LOGS)
    (narrow, *_) = stream.bundle_part(runs(refs), ["Attrs"], {"Attrs": ["host"]})
    assert (list(narrow), narrow["Attrs"].schema.names) == (["Attrs"], ["host"])


def test_bundles_of_a_part_that_are_gone(q: Client) -> None:
    """Scenario: the first segment of a part is finished and deleted before it is read.
    Guarantee: an error that says so; or, if somebody takes note, the rest, and the note."""
    stream = q.stream("gone")
    refs = [stream.put({"Logs": LOGS}).ref for _ in range(2)]
    stream.flush()
    refs += [stream.put({"Logs": LOGS}).ref for _ in range(2)]
    stream.register("s")
    stream.ack("s", refs[:2], durable=True)
    stream.maintain()
    with pytest.raises(Expired, match="not here any more"):
        list(stream.slot_part(runs(refs), "Logs"))
    noted: list[Ref] = []
    found = list(stream.slot_part(runs(refs), "Logs", on_gone=noted.extend))
    assert ([one.ref for one in found], noted) == (refs[2:], refs[:2])
    found_whole = list(stream.bundle_part(runs([*refs, Ref(99, 0)]), on_gone=noted.extend))
    assert [one.ref for one in found_whole] == refs[2:]
    assert noted[2:] == [*refs[:2], Ref(99, 0)]


def test_a_part_larger_than_a_call_may_bring(make_server: MakeServer) -> None:
    """Scenario: a page of bundles is more than the server sends at a time. Guarantee: they
    are asked for in smaller pages, not refused."""
    server = make_server(calls__read_bytes="1MiB")
    stream = connect(f"grpc://127.0.0.1:{server.port}").stream("large")
    batch = pa.record_batch({"x": pa.array([7] * 40_000, pa.int64())})
    with stream.writer() as writer:
        pending = [writer.put({"Logs": batch}) for _ in range(40)]
    refs = [one.result().ref for one in pending]
    assert [one.ref for one in stream.slot_part(runs(refs), "Logs")] == refs


def test_a_part_is_read_through_a_restart(tmp_path: Path) -> None:
    """Scenario: the server is killed in the middle of a part, and started again. Guarantee:
    the reader gets every bundle once, in order."""
    with ServerProcess(tmp_path / "data") as server, connect(server.url) as q:
        stream = q.stream("restart")
        large = pa.record_batch({"blob": [bytes(1 << 20)]})
        with stream.writer() as writer:
            pending = [writer.put({"Logs": large}) for _ in range(150)]
        refs = [one.result().ref for one in pending]
        reading = stream.slot_part(runs(refs), "Logs")
        found = [next(reading).ref for _ in range(3)]
        server.kill()
        server.start()
        found += [one.ref for one in reading]
        assert found == refs


def test_what_is_sent_is_counted(q: Client, server: Server) -> None:
    """Scenario: a whole slot is read, then one narrow column of it. Guarantee: the server's
    counter says how much was sent, and less for less."""
    stream = q.stream("counted")
    wide = pa.record_batch({"n": [1], "blob": [bytes(100_000)]})
    refs = [stream.put({"Logs": wide}).ref for _ in range(5)]

    def sent() -> int:
        page = urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics").read()
        (value,) = re.findall(rb'quiver_sent_bytes_total{stream="counted"} (\S+)', page)
        return int(float(value))

    list(stream.slot_part(runs(refs), "Logs"))
    whole = sent()
    assert whole > 500_000
    list(stream.slot_part(runs(refs), "Logs", ["n"]))
    assert sent() - whole < 1_000
    list(stream.bundle_part(runs(refs)))
    assert sent() - whole > 500_000
