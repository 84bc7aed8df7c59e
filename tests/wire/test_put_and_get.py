"""Putting and reading over real Flight, with nothing but pyarrow on the client's side."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight

from tests.wire.bare import act, fails, get, info, logs, put_bundles, put_slot
from tests.wire.conftest import MakeServer, connect


def test_slot_mode_there_and_back(client: flight.FlightClient) -> None:
    """Scenario: three batches are put into a slot and read by a listing. Guarantee: each is
    answered durable with its ref, and comes back equal, in order."""
    batches = [logs(1, 2), logs(3), logs(4, 5)]
    found = put_slot(client, "t", batches)
    assert [one["status"] for one in found] == ["ok"] * 3
    assert [one["durability"] for one in found] == ["durable"] * 3
    assert [one["n"] for one in found] == [0, 1, 2]
    listing = info(client, stream="t", mode="slot", slot="Logs")
    (endpoint,) = listing.endpoints
    chunks = [chunk.data for chunk in client.do_get(endpoint.ticket)]
    assert [one.equals(want) for one, want in zip(chunks, batches, strict=True)] == [True] * 3
    refs = json.loads(listing.app_metadata)["refs"]
    assert sum(run[2] if len(run) == 3 else 1 for run in refs) == 3


def test_bundle_mode_there_and_back(client: flight.FlightClient) -> None:
    """Scenario: bundles with two slots, one with dictionaries, attributes and a key.
    Guarantee: all of it comes back."""
    words = pa.record_batch({"w": pa.array(["a", "b", "a"]).dictionary_encode()})
    notes = [{"key": "k/1", "attributes": {"a": "ü"}, "event_time": [3, 9]}, None]
    found = put_bundles(client, "t", [{"Logs": logs(1), "Words": words}, {"Words": words}], notes)
    assert [one["status"] for one in found] == ["ok", "ok"]
    (endpoint,) = info(client, stream="t").endpoints
    (first, one), (second, two) = get(client, endpoint.ticket)
    assert one["Logs"].equals(logs(1))
    assert one["Words"].equals(words)
    assert list(two) == ["Words"]
    assert (first["key"], first["attributes"], first["event_time"]) == ("k/1", {"a": "ü"}, [3, 9])
    assert [first["ref"], second["ref"]] == [one["ref"] for one in found]
    assert "key" not in second


def test_reads_from_memory_and_from_files_are_the_same(client: flight.FlightClient) -> None:
    """Scenario: the same ticket before and after the segment is written. Guarantee: the
    same answer, in both modes."""
    words = pa.record_batch({"w": pa.array(["a", None, "a"]).dictionary_encode()})
    put_bundles(client, "t", [{"Words": words}, {"Words": words.slice(1)}])
    bundle = info(client, stream="t").endpoints[0].ticket
    slot = info(client, stream="t", mode="slot", slot="Words").endpoints[0].ticket
    before = get(client, bundle), client.do_get(slot).read_all()
    assert act(client, "flush", stream="t") == {"v": 1, "segments": 1}
    after = get(client, bundle), client.do_get(slot).read_all()
    assert [note for note, _ in before[0]] == [note for note, _ in after[0]]
    assert all(
        a["Words"].equals(b["Words"]) for (_, a), (_, b) in zip(before[0], after[0], strict=True)
    )
    assert before[1].equals(after[1])


def test_keys_make_repeats_harmless(client: flight.FlightClient) -> None:
    """Scenario: a bundle is sent twice with its key, then the key with other content.
    Guarantee: the repeat is a success with the first ref; the conflict is rejected and the
    call goes on."""
    found = put_slot(
        client,
        "t",
        [logs(1), logs(1), logs(2), logs(3)],
        [{"key": "a"}, {"key": "a"}, {"key": "a"}, {"key": "b"}],
    )
    assert [one["status"] for one in found] == ["ok", "dup", "rejected", "ok"]
    assert found[1]["ref"] == found[0]["ref"]
    assert found[2]["code"] == "key_conflict"
    assert [one.get("key") for one in found] == ["a", "a", "a", "b"]


def test_a_lost_bundle_can_be_sent_again(make_server: MakeServer, tmp_path: Path) -> None:
    """Scenario: a segment is damaged while the server is down, a read finds it, its bundle goes
    on record as lost, and its producer sends it again under its key, in another layout.
    Guarantee: `ok` and durable with a new ref and no other field or status than ever; then `dup`
    of that one."""
    sent = {"key": "a"}
    server = make_server()
    with connect(server) as client:
        (first,) = put_slot(client, "t", [logs(1, 2)], [sent])
        act(client, "flush", stream="t")
    server.stop()
    (segment,) = (tmp_path / "data" / "streams" / "t").rglob("*.qseg")
    segment.chmod(0o600)
    data = bytearray(segment.read_bytes())
    message = logs(1, 2).serialize().to_pybytes()
    data[data.index(message) + len(message) - 64] ^= 1
    segment.write_bytes(data)
    with connect(make_server()) as client:
        ticket = json.dumps({"v": 1, "stream": "t", "refs": [first["ref"]]})
        fails("expired", get, client, flight.Ticket(ticket))
        (again,) = put_slot(client, "t", [logs(9, 1, 2, 9).slice(1, 2)], [sent])
        (third,) = put_slot(client, "t", [logs(1, 2)], [sent])
    assert [one["status"] for one in (first, again, third)] == ["ok", "ok", "dup"]
    assert again["durability"] == "durable"
    assert again.keys() == first.keys()
    assert first["ref"] != again["ref"] == third["ref"]


def test_one_bad_bundle_does_not_end_the_call(client: flight.FlightClient) -> None:
    """Scenario: bad envelopes between good bundles. Guarantee: rejected one by one, the
    good ones kept."""
    found = put_slot(
        client,
        "t",
        [logs(n) for n in range(4)],
        [None, {"unknown": 1}, {"attributes": {"a": "x" * 5000}}, None],
    )
    assert [one["status"] for one in found] == ["ok", "rejected", "rejected", "ok"]
    assert "known are" in found[1]["reason"]
    assert found[2]["code"] == "limit_exceeded"
    assert len(get(client, info(client, stream="t").endpoints[0].ticket)) == 2


def test_accepted_is_answered_at_once(client: flight.FlightClient) -> None:
    """Scenario: a put asks for `accepted` only. Guarantee: receipts say what was reached."""
    found = put_slot(client, "t", [logs(1)], durability="accepted")
    assert found[0]["durability"] in ("accepted", "durable")
    assert act(client, "wait_durable", stream="t", sequence=found[0]["sequence"]) == {"v": 1}


def test_projection_happens_on_the_server(client: flight.FlightClient) -> None:
    """Scenario: readers ask for some slots and columns. Guarantee: they get those alone."""
    wide = pa.record_batch({"a": [1], "b": [2], "c": [3]})
    put_bundles(client, "t", [{"Wide": wide, "Logs": logs(1)}])
    for _ in range(2):
        listing = info(client, stream="t", mode="slot", slot="Wide", columns=["c", "a"])
        table = client.do_get(listing.endpoints[0].ticket).read_all()
        assert table.column_names == ["c", "a"]
        listing = info(client, stream="t", slots=["Wide"], projection={"Wide": ["b"]})
        ((note, batches),) = get(client, listing.endpoints[0].ticket)
        assert note["slots"] == ["Wide"]
        assert batches["Wide"].schema.names == ["b"]
        act(client, "flush", stream="t")


def test_a_schema_change_makes_another_endpoint(client: flight.FlightClient) -> None:
    """Scenario: a slot's schema changes, and some bundles lack it. Guarantee: one endpoint
    per run with one schema, in order; those without are named."""
    put_slot(client, "t", [logs(1), logs(2)])
    put_slot(client, "t", [pa.record_batch({"other": ["x"]})])
    put_slot(client, "t", [logs(3)], slot="Else")
    put_slot(client, "t", [logs(4)])
    listing = info(client, stream="t", mode="slot", slot="Logs")
    tables = [client.do_get(endpoint.ticket).read_all() for endpoint in listing.endpoints]
    assert [table.num_rows for table in tables] == [2, 1, 1]
    assert [table.column_names for table in tables] == [["n"], ["other"], ["n"]]
    assert len(json.loads(listing.app_metadata)["without_slot"]) == 1


def test_empty_batches_and_bundles_are_kept(client: flight.FlightClient) -> None:
    """Scenario: a batch without rows, one without columns, a bundle without slots.
    Guarantee: batch i is ref i, also then."""
    put_slot(client, "t", [logs(1), logs(), logs(2)])
    put_bundles(client, "t", [{}])
    listing = info(client, stream="t", mode="slot", slot="Logs")
    chunks = [chunk.data.num_rows for chunk in client.do_get(listing.endpoints[0].ticket)]
    assert chunks == [1, 0, 1]
    assert get(client, info(client, stream="t").endpoints[0].ticket)[3][1] == {}


def test_ranges_by_ref_and_by_time(client: flight.FlightClient) -> None:
    """Scenario: plain reads by refs, from a ref, up to a ref, since and until a time.
    Guarantee: exactly those bundles."""
    for n in range(3):
        put_slot(client, "t", [logs(n)])
        act(client, "flush", stream="t")
    everything = get(client, info(client, stream="t").endpoints[0].ticket)
    refs = [note["ref"] for note, _ in everything]
    times = [note["ingestion_ts_ns"] for note, _ in everything]

    def rows(**fields: object) -> list[int]:
        listing = info(client, stream="t", **fields)
        return [
            batches["Logs"]["n"][0].as_py()
            for endpoint in listing.endpoints
            for _, batches in get(client, endpoint.ticket)
        ]

    assert rows(refs=[refs[2], refs[0]]) == [2, 0]
    assert rows(start=refs[1]) == [1, 2]
    assert rows(end=refs[1]) == [0]
    assert rows(start=refs[1], end=refs[2]) == [1]
    assert rows(since_ns=times[1]) == [1, 2]
    assert rows(until_ns=times[1]) == [0]
    assert rows(since_ns=times[2] + 1) == []
    assert rows(max_bundles=2) == [0, 1]
    assert json.loads(info(client, stream="t", max_bundles=2).app_metadata)["more"] is True


def test_what_is_not_there_is_said(client: flight.FlightClient) -> None:
    """Scenario: streams, refs and slots that don't exist. Guarantee: a typed error each."""
    put_slot(client, "t", [logs(1)])
    fails("unknown_stream", info, client, stream="nope")
    fails("unknown_bundle", info, client, stream="t", refs=[[0, 7]])
    error = fails("expired", info, client, stream="t", refs=[[7, 0]])
    assert error.details["outcome"] == "deleted"
    ticket = flight.Ticket(json.dumps({"v": 1, "stream": "t", "refs": [[0, 1]]}))
    fails("unknown_bundle", get, client, ticket)


def test_discovery(client: flight.FlightClient) -> None:
    """Scenario: ListFlights, GetSchema, ListActions. Guarantee: streams, slots and actions
    can be found with pyarrow alone."""
    put_bundles(client, "t", [{"Logs": logs(1), "Other": pa.record_batch({"x": ["a"]})}])
    paths = {tuple(p.decode() for p in one.descriptor.path) for one in client.list_flights()}
    assert paths == {("t",), ("t", "Logs"), ("t", "Other")}
    about = next(one for one in client.list_flights() if one.descriptor.path == [b"t"])
    told = json.loads(about.app_metadata)
    assert told["bundles"] == 1
    assert told["oldest_ns"] == told["newest_ns"] > 0
    assert about.total_bytes == told["nbytes"] > 0
    found = client.get_schema(flight.FlightDescriptor.for_path("t", "Logs"))
    assert found.schema.equals(logs().schema)
    listed = client.get_flight_info(flight.FlightDescriptor.for_path("t", "Logs"))
    assert client.do_get(listed.endpoints[0].ticket).read_all().num_rows == 1
    names = {action.type for action in client.list_actions()}
    assert {"register", "claim", "next", "ack", "health"} <= names
