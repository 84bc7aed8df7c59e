"""Claims, leases, redelivery and poison, over real Flight."""

from __future__ import annotations

import json
import threading
from typing import Any

import pyarrow.flight as flight
import pytest

from flight_service.server import Server
from tests.wire.bare import act, fails, get, info, logs, put_bundles, put_slot
from tests.wire.conftest import MakeServer, connect
from tests.wire.test_exchange import eventually
from tests.wire.test_put_flow import TINY, big


def claim(client: flight.FlightClient, **fields: Any) -> dict[str, Any]:
    """Claim for the subscriber ``s`` of the stream ``t``."""
    return act(client, "claim", **{"stream": "t", "subscriber": "s", **fields})


def refs(claimed: dict[str, Any]) -> list[list[int]]:
    return [bundle["ref"] for bundle in claimed["bundles"]]


def finish(client: flight.FlightClient, what: str, **fields: Any) -> dict[str, Any]:
    return act(client, what, **{"stream": "t", "subscriber": "s", **fields})


def test_claim_read_ack(client: flight.FlightClient) -> None:
    """Scenario: a subscriber claims through GetFlightInfo, reads, acks durably. Guarantee:
    each bundle is delivered once, and what is acked does not come again."""
    put_slot(client, "t", [logs(n) for n in range(5)])
    first = info(client, stream="t", subscriber="s", max_bundles=3)
    (endpoint,) = first.endpoints
    assert endpoint.expiration_time is not None
    found = get(client, endpoint.ticket)
    assert [batches["Logs"]["n"][0].as_py() for _, batches in found] == [0, 1, 2]
    assert [note["delivery"] for note, _ in found] == [1, 1, 1]
    lease = json.loads(first.app_metadata)["lease"]
    done = [note["ref"] for note, _ in found]
    answer = finish(client, "ack", refs=done, lease=lease, durable=True)
    assert answer == {"v": 1, "taken": 3, "durable": True}
    assert len(refs(claim(client))) == 2
    assert claim(client)["bundles"] == []


def test_slot_mode_claims(client: flight.FlightClient) -> None:
    """Scenario: a claim in slot mode. Guarantee: native batches under the lease's ticket."""
    put_slot(client, "t", [logs(1), logs(2)])
    claimed = info(client, stream="t", subscriber="s", mode="slot", slot="Logs")
    assert client.do_get(claimed.endpoints[0].ticket).read_all().num_rows == 2


def test_competing_consumers_share_the_work(server: Server) -> None:
    """Scenario: four consumers of one name claim at once. Guarantee: every bundle goes to
    exactly one of them."""
    with connect(server) as client:
        put_slot(client, "t", [logs(n) for n in range(200)])
    found: list[list[list[int]]] = []

    def consume() -> None:
        with connect(server) as client:
            while mine := refs(claim(client, max_bundles=7)):
                found.append(mine)
                finish(client, "ack", refs=mine)

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    every = [tuple(ref) for mine in found for ref in mine]
    assert len(every) == len(set(every)) == 200


def test_two_subscribers_each_get_everything(client: flight.FlightClient) -> None:
    """Scenario: two names on one stream. Guarantee: each has its own progress."""
    put_slot(client, "t", [logs(n) for n in range(3)])
    assert len(refs(claim(client))) == 3
    assert len(refs(claim(client, subscriber="other"))) == 3


def test_leases_end_and_can_be_renewed(client: flight.FlightClient) -> None:
    """Scenario: two claims; one is renewed, one forgotten. Guarantee: the forgotten one
    comes back with its count, without a pull in between; an outcome for it under the old
    lease is refused and says what is true."""
    put_slot(client, "t", [logs(1), logs(2)])
    kept = claim(client, max_bundles=1, lease_ms=60_000)
    lost = claim(client, max_bundles=1, lease_ms=100)
    renewed = finish(client, "renew", lease=kept["lease"], lease_ms=120_000)
    assert renewed["held"] == 1
    assert renewed["expires_ns"] > kept["expires_ns"]
    again = claim(client, wait_ms=5_000)
    assert refs(again) == refs(lost)
    assert again["bundles"][0]["delivery"] == 2
    assert again["bundles"][0]["reason"] == "lease expired"
    late = finish(client, "ack", refs=refs(lost), lease=lost["lease"])
    assert (late["taken"], late["problems"][0]["outcome"]) == (0, "reclaimed")
    fails("expired", finish, client, "renew", lease=lost["lease"])
    ticket = {"v": 1, "stream": "t", "refs": refs(lost), "subscriber": "s", "lease": lost["lease"]}
    error = fails("expired", get, client, flight.Ticket(json.dumps(ticket)))
    assert error.details["outcome"] == "reclaimed"


def test_partial_renewal_gives_the_rest_back(client: flight.FlightClient) -> None:
    """Scenario: a lease over three bundles is renewed for one. Guarantee: two come again."""
    put_slot(client, "t", [logs(n) for n in range(3)])
    claimed = claim(client)
    first, *others = refs(claimed)
    assert finish(client, "renew", lease=claimed["lease"], refs=[first])["held"] == 1
    assert refs(claim(client)) == others


def test_in_flight_is_bounded_and_redelivery_passes(client: flight.FlightClient) -> None:
    """Scenario: max_in_flight of two bundles. Guarantee: no third is handed out; one that
    comes back is delivered again, though others are still in flight."""
    act(client, "create_stream", stream="t")
    finish(client, "register", max_in_flight=2)
    put_slot(client, "t", [logs(n) for n in range(5)])
    claimed = claim(client)
    assert len(refs(claimed)) == 2
    assert claim(client)["bundles"] == []
    first, second = refs(claimed)
    finish(client, "defer", refs=[first], delay_ms=0, reason="later")
    again = claim(client)
    assert refs(again) == [first]
    assert again["bundles"][0]["reason"] == "later"
    finish(client, "ack", refs=[second])
    assert len(refs(claim(client))) == 1


def test_in_flight_bytes_are_bounded(client: flight.FlightClient) -> None:
    """Scenario: a byte limit smaller than a bundle. Guarantee: one at a time, never none."""
    act(client, "create_stream", stream="t")
    finish(client, "register", max_in_flight_bytes=1)
    put_slot(client, "t", [logs(1), logs(2)])
    assert len(refs(claim(client))) == 1
    assert claim(client)["bundles"] == []


def test_backoff_delays_and_grows(client: flight.FlightClient) -> None:
    """Scenario: a bundle is deferred without a delay of its own. Guarantee: it is not there
    at once, and comes back by the policy's backoff."""
    act(client, "create_stream", stream="t")
    finish(client, "register", backoff_ms=300, backoff_max_ms=300)
    put_slot(client, "t", [logs(1)])
    mine = refs(claim(client))
    finish(client, "defer", refs=mine)
    assert claim(client)["bundles"] == []
    again = claim(client, wait_ms=5_000)
    assert refs(again) == mine


@pytest.mark.parametrize("poison", ["drop", "dead_letter"])
def test_poison_goes_where_the_policy_says(client: flight.FlightClient, poison: str) -> None:
    """Scenario: a bundle fails max_deliveries times. Guarantee: it is delivered no more, the
    others are; a dead letter has its data, origin, reason and count."""
    act(client, "create_stream", stream="t")
    finish(client, "register", max_deliveries=2, poison=poison)
    put_bundles(client, "t", [{"Logs": logs(7)}, {"Logs": logs(8)}], [{"key": "k"}, None])
    for _ in range(2):
        bad = refs(claim(client, max_bundles=1))
        finish(client, "defer", refs=bad, delay_ms=0, reason="can't parse")
    assert refs(claim(client)) != bad
    if poison == "drop":
        fails("unknown_stream", info, client, stream="t-dead")
        return
    letter = _first_bundle(client, "t-dead")
    note, batches = letter
    assert batches["Logs"].equals(logs(7))
    told = note["attributes"]
    assert told["quiver.origin.stream"] == "t"
    assert told["quiver.origin.subscriber"] == "s"
    assert told["quiver.origin.deliveries"] == "2"
    assert told["quiver.origin.reason"] == "can't parse"
    assert told["quiver.origin.key"] == "k"


def test_a_dead_letter_waits_for_room(client: flight.FlightClient) -> None:
    """Scenario: the stream of the dead is full when poison comes. Guarantee: the bundle is
    neither delivered again nor finished until its letter is safe; then it is."""
    act(client, "create_stream", stream="grave", settings=TINY)
    act(client, "register", stream="grave", subscriber="reader")
    put_slot(client, "grave", [big(n) for n in range(40)])
    act(client, "create_stream", stream="t")
    finish(client, "register", max_deliveries=1, dead_letter_stream="grave")
    put_slot(client, "t", [big()])
    finish(client, "defer", refs=refs(claim(client)), delay_ms=0)
    assert claim(client)["bundles"] == []
    assert act(client, "lag", stream="t")["subscribers"]["s"]["bundles"] == 1
    letters = 0

    def settled() -> bool:
        nonlocal letters
        taken = act(client, "claim", stream="grave", subscriber="reader")["bundles"]
        letters += sum("quiver.origin.ref" in one.get("attributes", {}) for one in taken)
        done = [one["ref"] for one in taken]
        act(client, "ack", stream="grave", subscriber="reader", refs=done, durable=True)
        act(client, "flush", stream="grave")
        act(client, "maintain", stream="grave")
        return letters == 1

    eventually(settled, 20.0)
    eventually(lambda: act(client, "lag", stream="t")["subscribers"]["s"]["bundles"] == 0)


def _first_bundle(client: flight.FlightClient, stream: str) -> Any:
    done = threading.Event()
    for _ in range(100):
        names = [one["name"] for one in act(client, "list_streams")["streams"]]
        if stream in names:
            claimed = act(client, "claim", stream=stream, subscriber="reader", wait_ms=1000)
            if claimed["bundles"]:
                ref = claimed["bundles"][0]["ref"]
                ticket = json.dumps({"v": 1, "stream": stream, "refs": [ref]})
                return get(client, flight.Ticket(ticket))[0]
        done.wait(0.05)
    raise AssertionError("no dead letter came")


def test_block_stops_until_somebody_decides(client: flight.FlightClient) -> None:
    """Scenario: poison policy block. Guarantee: nothing more is delivered, the error names
    the bundle, and rejecting it goes on."""
    act(client, "create_stream", stream="t")
    finish(client, "register", max_deliveries=1, poison="block")
    put_slot(client, "t", [logs(1), logs(2)])
    bad = refs(claim(client, max_bundles=1))
    finish(client, "defer", refs=bad, delay_ms=0)
    error = fails("blocked", claim, client)
    assert error.details["ref"] == bad[0]
    assert finish(client, "reject", refs=bad, reason="given up")["taken"] == 1
    assert len(refs(claim(client))) == 1


def test_slot_filters_finish_what_nobody_wants(client: flight.FlightClient) -> None:
    """Scenario: a subscriber needs one slot only. Guarantee: bundles without it are done."""
    act(client, "create_stream", stream="t")
    finish(client, "register", slots=["Logs"])
    put_bundles(client, "t", [{"Other": logs(1)}, {"Logs": logs(2)}, {"Other": logs(3)}])
    mine = refs(claim(client))
    assert len(mine) == 1
    finish(client, "ack", refs=mine)
    assert claim(client)["bundles"] == []
    assert act(client, "lag", stream="t")["subscribers"]["s"]["bundles"] == 0


def test_seek_and_start_positions(client: flight.FlightClient) -> None:
    """Scenario: starts at the latest, at a ref, at a time; seeks back. Guarantee: exactly
    what lies behind the position is delivered.

    The one that starts at the earliest comes first and finishes nothing: a segment that every
    known subscriber has finished, or has started behind, is deleted."""
    put_slot(client, "t", [logs(0), logs(1), logs(2)])
    act(client, "flush", stream="t")
    notes = [note for note, _ in get(client, info(client, stream="t").endpoints[0].ticket)]
    for name, start, count in (
        ("all", "earliest", 3),
        ("late", "latest", 0),
        ("at", notes[1]["ref"], 2),
        ("since", notes[2]["ingestion_ts_ns"], 1),
    ):
        act(client, "register", stream="t", subscriber=name, start=start)
        act(client, "maintain", stream="t")  # now what may be deleted is, and not by chance
        assert len(refs(claim(client, subscriber=name))) == count, name
    act(client, "seek", stream="t", subscriber="late", to=notes[1]["ref"])
    assert len(refs(claim(client, subscriber="late"))) == 2
    act(client, "seek", stream="t", subscriber="late", to="latest")
    assert refs(claim(client, subscriber="late")) == []


def test_newest_first(client: flight.FlightClient) -> None:
    """Scenario: a claim in the other order. Guarantee: the newest bundle comes first."""
    receipts = put_slot(client, "t", [logs(n) for n in range(3)])
    assert refs(claim(client, order="newest", max_bundles=1)) == [receipts[2]["ref"]]
    assert refs(claim(client, max_bundles=1)) == [receipts[0]["ref"]]


def test_counts_and_policies_survive_a_restart(make_server: MakeServer) -> None:
    """Scenario: a bundle fails once, another is acked durably, the server restarts.
    Guarantee: policy, failure count and ack are kept; a bundle that was in somebody's hands
    counts as never handed out, as documented."""
    server = make_server()
    with connect(server) as client:
        act(client, "create_stream", stream="t")
        finish(client, "register", max_deliveries=2, poison="drop", lease_ms=12_345)
        put_slot(client, "t", [logs(n) for n in range(3)])
        first, second, third = refs(claim(client))
        finish(client, "defer", refs=[first], delay_ms=60_000, reason="no")
        finish(client, "ack", refs=[second], durable=True)
    assert server.stop()
    with connect(make_server()) as client:
        again = claim(client)
        assert refs(again) == [first, third]
        assert [bundle["delivery"] for bundle in again["bundles"]] == [2, 1]
        answer = finish(client, "register")
        assert (answer["created"], answer["policy"]["lease_ms"]) == (False, 12_345)
        finish(client, "defer", refs=[first], delay_ms=0)
        assert claim(client)["bundles"] == []


def test_waiting_claims_are_woken(server: Server) -> None:
    """Scenario: a claim waits; a bundle comes. Guarantee: it is answered with it, long
    before its time is up."""
    with connect(server) as client:
        act(client, "create_stream", stream="t")
        finish(client, "register")
    answers: list[dict[str, Any]] = []

    def wait() -> None:
        with connect(server) as waiting:
            answers.append(claim(waiting, wait_ms=30_000))

    thread = threading.Thread(target=wait)
    thread.start()
    with connect(server) as client:
        put_slot(client, "t", [logs(1)])
    thread.join(10)
    assert len(answers) == 1
    assert len(refs(answers[0])) == 1


def test_orphans_hold_their_data_until_dropped(make_server: MakeServer) -> None:
    """Scenario: a subscriber doesn't come back after a restart. Guarantee: it is an orphan
    once another is served, keeps its data, and can be dropped by name."""
    server = make_server()
    with connect(server) as client:
        put_slot(client, "t", [logs(1)])
        finish(client, "register")
        act(client, "register", stream="t", subscriber="gone")
    server.stop()
    with connect(make_server()) as client:
        fails("invalid_input", act, client, "drop_orphan", stream="t", subscriber="gone")
        finish(client, "register")
        assert act(client, "activate", stream="t")["orphans"] == ["gone"]
        assert act(client, "drop_orphan", stream="t", subscriber="gone")["dropped"] == 1
        assert finish(client, "unregister")["dropped"] == 1
        fails("unknown_subscriber", finish, client, "ack", refs=[[0, 0]])


def test_outcomes_for_what_is_not_there(client: flight.FlightClient) -> None:
    """Scenario: acks for refs never given out. Guarantee: told apart, none counts."""
    put_slot(client, "t", [logs(1)])
    finish(client, "register")
    answer = finish(client, "ack", refs=[[0, 5], [99, 0]])
    assert answer["taken"] == 0
    assert [one["outcome"] for one in answer["problems"]] == ["unknown", "unknown"]
    assert finish(client, "ack", refs=[[0, 0]])["taken"] == 1
    assert finish(client, "ack", refs=[[0, 0]])["taken"] == 1
