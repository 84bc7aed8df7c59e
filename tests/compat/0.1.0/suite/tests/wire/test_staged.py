"""Staged writes over Flight: all at once or not at all, once only, whatever breaks."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_service.protocol.errors import from_flight
from flight_service.protocol.wrapper import BY_NAME, wrap
from flight_service.server import Server
from tests.wire.bare import act, command, fails, get, info, logs, put_slot, receipts

JOB = {"stream": "t", "app": "job", "version": 0}


@pytest.fixture
def client(server: Server) -> Iterator[flight.FlightClient]:
    """A bare client of a server with an empty stream."""
    with flight.FlightClient(f"grpc://127.0.0.1:{server.port}") as client:
        act(client, "create_stream", stream="t")
        yield client


def stage(
    client: flight.FlightClient,
    attempt: str,
    *batches: pa.RecordBatch,
    app: str = "job",
    version: int = 0,
    finish: bool = True,
) -> None:
    """Write an attempt in slot mode."""
    name = {"app": app, "version": version, "attempt": attempt}
    found = put_slot(client, "t", batches, stage=name)
    assert {(one["status"], one["durability"]) for one in found} == {("ok", "staged")}
    assert not any("ref" in one or "sequence" in one for one in found)
    if finish:
        done = act(
            client, "finish_stage", **{**JOB, "app": app, "version": version},
            attempt=attempt, bundles=len(batches),
        )  # fmt: skip
        assert done["bundles"] == len(batches)


def values(client: flight.FlightClient) -> list[int]:
    """All rows anybody can see, in order."""
    answer = info(client, stream="t")
    found: list[int] = []
    for endpoint in answer.endpoints:
        for _, slots in get(client, endpoint.ticket):
            found += slots["Logs"]["n"].to_pylist()
    return found


def stages(client: flight.FlightClient) -> dict[str, Any]:
    status: dict[str, Any] = act(client, "status", stream="t")["streams"]["t"]["stages"]
    return status


def test_nothing_is_seen_before_the_commit_and_all_of_it_after(client: flight.FlightClient) -> None:
    """Scenario: two producers, one of them in two attempts, beside ordinary puts. Guarantee:
    the commit publishes the named attempts, in that order, and nothing else ever appears."""
    put_slot(client, "t", [logs(1)])
    stage(client, "a", logs(10), logs(11))
    stage(client, "b-lost", logs(20))
    stage(client, "b", logs(20))
    assert stages(client)["attempts"] == 3
    assert stages(client)["transactions"] == 1
    assert values(client) == [1]
    put_slot(client, "t", [logs(2)])
    done = act(client, "commit", **JOB, attempts=["b", "a"])
    assert (done["bundles"], done["rows"], done.get("repeated")) == (3, 3, None)
    assert values(client) == [1, 2, 20, 10, 11]
    put_slot(client, "t", [logs(3)])
    assert values(client) == [1, 2, 20, 10, 11, 3]
    assert stages(client)["attempts"] == 0


def test_bundle_mode_with_attributes_and_several_slots(client: flight.FlightClient) -> None:
    """Scenario: staged bundles of two slots, with attributes and event times. Guarantee: they
    are read back as they were put, and a subscriber gets them like all others."""
    act(client, "register", stream="t", subscriber="s")
    name = {"app": "job", "version": 0, "attempt": "a"}
    writer, reader = client.do_put(command(stream="t", stage=name), BY_NAME)
    bundle = {"Logs": logs(1, 2), "Attrs": pa.record_batch({"k": ["x"]})}
    note = b'{"v":1,"attributes":{"host":"h"},"event_time":[1,2]}'
    writer.write_with_metadata(wrap(bundle), note)
    assert receipts(reader, 1)[0]["status"] == "ok"
    writer.close()
    act(client, "finish_stage", **JOB, attempt="a", bundles=1)
    act(client, "commit", **JOB, attempts=["a"])
    (claimed,) = act(client, "claim", stream="t", subscriber="s")["bundles"]
    assert (claimed["attributes"], claimed["event_time"]) == ({"host": "h"}, [1, 2])
    ((_, slots),) = get(client, info(client, stream="t").endpoints[0].ticket)
    assert {slot: batch.to_pylist() for slot, batch in slots.items()} == {
        slot: batch.to_pylist() for slot, batch in bundle.items()
    }


def test_a_commit_happens_once_and_versions_only_rise(client: flight.FlightClient) -> None:
    """Scenario: the same commit again, with other attempts, an older version, a newer one.
    Guarantee: each version is published once; a repeat is a success that changes nothing."""
    stage(client, "a", logs(1), version=5)
    job = {**JOB, "version": 5}
    assert act(client, "begin", **job) == {"v": 1, "committed": False}
    act(client, "commit", **job, attempts=["a"])
    assert act(client, "begin", **job) == {"v": 1, "committed": True, "last": 5}
    assert act(client, "commit", **job, attempts=["a"])["repeated"] is True
    assert act(client, "commit", **job, attempts=["other"])["repeated"] is True
    assert act(client, "commit", **{**job, "version": 4}, attempts=[])["repeated"] is True
    assert act(client, "abort", **job)["attempts"] == 0
    assert values(client) == [1]
    stage(client, "b", logs(2), version=6)
    assert act(client, "commit", **{**job, "version": 6}, attempts=["b"])["bundles"] == 1
    assert act(client, "begin", **{**job, "app": "another"})["committed"] is False
    assert values(client) == [1, 2]


def test_abort_removes_everything_or_what_it_names(client: flight.FlightClient) -> None:
    """Scenario: finished and unfinished attempts; some are aborted by name, then all.
    Guarantee: nothing is left, nothing was seen, and none of them can be committed."""
    stage(client, "a", logs(1))
    stage(client, "b", logs(2))
    stage(client, "c", logs(3), finish=False)
    assert act(client, "abort", **JOB, attempts=["b", "never-was"])["attempts"] == 1
    fails("stage_not_found", act, client, "commit", **JOB, attempts=["a", "b"])
    assert act(client, "abort", **JOB)["attempts"] == 2
    assert stages(client)["attempts"] == 0
    fails("stage_not_found", act, client, "commit", **JOB, attempts=["a"])
    fails("stage_not_found", act, client, "finish_stage", **JOB, attempt="c", bundles=1)
    assert values(client) == []


def test_a_refused_commit_changes_nothing(client: flight.FlightClient) -> None:
    """Scenario: a commit names a finished attempt, an unfinished one, an unknown one, one
    twice. Guarantee: refused, nothing seen, and the right commit works afterwards."""
    stage(client, "a", logs(1))
    stage(client, "b", logs(2), finish=False)
    fails("stage_not_found", act, client, "commit", **JOB, attempts=["a", "b"])
    fails("stage_not_found", act, client, "commit", **JOB, attempts=["a", "c"])
    said = fails("invalid_input", act, client, "commit", **JOB, attempts=["a", "a"])
    assert "a" in said.message
    assert values(client) == []
    act(client, "finish_stage", **JOB, attempt="b", bundles=1)
    act(client, "commit", **JOB, attempts=["a", "b"])
    assert values(client) == [1, 2]


def test_a_stage_must_hold_what_its_producer_knows_of(client: flight.FlightClient) -> None:
    """Scenario: finish_stage with another count than there are bundles; then the right one,
    twice. Guarantee: an incomplete stage can't be finished; a repeat is answered the same."""
    stage(client, "a", logs(1), logs(2), finish=False)
    fails("stage_incomplete", act, client, "finish_stage", **JOB, attempt="a", bundles=3)
    fails("stage_incomplete", act, client, "finish_stage", **JOB, attempt="a", bundles=1)
    first = act(client, "finish_stage", **JOB, attempt="a", bundles=2)
    assert act(client, "finish_stage", **JOB, attempt="a", bundles=2) == first
    fails("stage_incomplete", act, client, "finish_stage", **JOB, attempt="a", bundles=3)


def test_an_attempt_is_written_once(client: flight.FlightClient) -> None:
    """Scenario: a second DoPut for an attempt that is open, and for one that is finished.
    Guarantee: refused: no bundle can come in twice that way."""
    name = {"app": "job", "version": 0, "attempt": "a"}
    stage(client, "a", logs(1), finish=False)
    fails("invalid_input", put_slot, client, "t", [logs(2)], stage=name)
    act(client, "finish_stage", **JOB, attempt="a", bundles=1)
    fails("invalid_input", put_slot, client, "t", [logs(2)], stage=name)
    act(client, "commit", **JOB, attempts=["a"])
    assert values(client) == [1]


def test_keys_have_no_place_in_a_stage(client: flight.FlightClient) -> None:
    """Scenario: a keyed bundle, between two others. Guarantee: that one is rejected, the
    others are in."""
    name = {"app": "job", "version": 0, "attempt": "a"}
    notes = [None, {"key": "k"}, None]
    found = put_slot(client, "t", [logs(1), logs(2), logs(3)], notes, stage=name)
    assert [one["status"] for one in found] == ["ok", "rejected", "ok"]
    act(client, "finish_stage", **JOB, attempt="a", bundles=2)
    act(client, "commit", **JOB, attempts=["a"])
    assert values(client) == [1, 3]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_whoever_still_writes_when_it_is_decided_is_told(
    client: flight.FlightClient, end: str
) -> None:
    """Scenario: an attempt is being written while its transaction is committed without it, or
    aborted. Guarantee: its call ends with `stage_ended`, and leaves nothing."""
    stage(client, "winner", logs(1))
    name = {"app": "job", "version": 0, "attempt": "late"}
    where = command(stream="t", mode="slot", slot="Logs", stage=name)
    writer, reader = client.do_put(where, logs().schema)
    writer.write_batch(logs(5))
    receipts(reader, 1)
    act(client, end, **JOB, **({"attempts": ["winner"]} if end == "commit" else {}))
    writer.write_batch(logs(6))
    assert reader.read() is None
    with pytest.raises(flight.FlightError) as caught:
        writer.close()
    assert from_flight(caught.value).code == "stage_ended"
    fails("stage_not_found", act, client, "finish_stage", **JOB, attempt="late", bundles=1)
    assert stages(client)["attempts"] == 0
    assert values(client) == ([1] if end == "commit" else [])


def test_a_committed_transaction_takes_nothing_more(client: flight.FlightClient) -> None:
    """Scenario: DoPut into a transaction that is committed, and into an older one. Guarantee:
    refused at once: it would be in vain."""
    act(client, "commit", **{**JOB, "version": 3}, attempts=[])
    for version in (3, 2):
        name = {"app": "job", "version": version, "attempt": "a"}
        said = fails("already_committed", put_slot, client, "t", [logs(1)], stage=name)
        assert said.details == {"last": 3}
    stage(client, "a", logs(1), version=4)


def test_rejected_bundles_are_not_in_the_stage(client: flight.FlightClient) -> None:
    """Scenario: a broken bundle among good ones, in bundle mode. Guarantee: its receipt says
    so, and the others can be committed."""
    name = {"app": "job", "version": 0, "attempt": "a"}
    broken = pa.RecordBatch.from_arrays(
        [pa.array(["Logs"]), pa.array([None], pa.binary()), pa.array([b"no"], pa.large_binary())],
        schema=BY_NAME,
    )
    writer, reader = client.do_put(command(stream="t", stage=name), BY_NAME)
    for batch in (wrap({"Logs": logs(1)}), broken, wrap({"Logs": logs(2)})):
        writer.write_batch(batch)
    assert [one["status"] for one in receipts(reader, 3)] == ["ok", "rejected", "ok"]
    writer.close()
    act(client, "finish_stage", **JOB, attempt="a", bundles=2)
    act(client, "commit", **JOB, attempts=["a"])
    assert values(client) == [1, 2]


def test_a_store_without_a_log_has_no_stages(client: flight.FlightClient) -> None:
    """Scenario: a stream in segment-only mode. Guarantee: refused in words, by begin too."""
    act(client, "create_stream", stream="plain", settings={"durability": "segment_only"})
    name = {"app": "job", "version": 0, "attempt": "a"}
    fails("invalid_input", put_slot, client, "plain", [logs(1)], stage=name)
