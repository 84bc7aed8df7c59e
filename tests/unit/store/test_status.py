"""Status: one value that tells how a store is doing, for people and for programs."""

from __future__ import annotations

import dataclasses
import json
import logging

import pytest

from quiver import events as e
from quiver.disk.disk import Disk
from quiver.errors import Backpressure
from tests.support.segments import data_of
from tests.support.stores import World, flipped, payload
from tests.unit.store.test_retention import CAP, SMALL


def test_status_tells_it_all(world: World) -> None:
    """Scenario: bundles in a file and in memory, one accepted, a subscriber in the middle.
    Guarantee: all of it in one frozen value that JSON and people can read."""
    refs = [*world.sealed(1, 2), *world.put_durable(3)]
    world.put(4)
    reader = world.store.subscribe("r")
    reader.ack([refs[0]])
    held = reader.next_bundle()
    assert held is not None
    world.clock.advance(60)
    status = world.store.status()
    assert (status.state, status.problems) == ("ok", ())
    assert (status.bundles, status.segments, status.unwritten_segments) == (3, 1, 1)
    assert status.log is not None
    assert status.log.unsynced_bytes > 0
    assert status.usage.segments > 0
    assert status.usage.log > 0
    [subscriber] = status.subscribers
    assert (subscriber.name, subscriber.status, subscriber.claimed) == ("r", "active", 1)
    assert (subscriber.lag.bundles, subscriber.oldest) == (2, refs[1])
    document = json.loads(json.dumps(status.as_dict()))
    assert document["state"] == "ok"
    assert document["subscribers"][0]["lag"]["bundles"] == 2
    assert document["usage"]["on_disk"] == status.usage.on_disk
    for words in ("mem: ok", "3 in 1 segments", "r (active): 2 bundles", "60 s behind"):
        assert words in str(status)
    with pytest.raises(dataclasses.FrozenInstanceError):
        status.state = "bad"  # type: ignore[misc,assignment]


def test_status_after_losses_is_degraded_and_says_why(world: World) -> None:
    """Scenario: a segment was lost. Guarantee: `degraded`, the problem in words, the loss by
    subscriber; after the next restart it is history: in the totals, not a problem."""
    world.store.subscribe("r")
    world.sealed(1)
    world.store.close()
    world.change("segments/0000000000000000.qseg", lambda data: data[:60])
    world.open()
    world.drain("r")
    status = world.store.status()
    assert status.state == "degraded"
    assert "segment 0" in status.problems[0]
    assert json.dumps(status.as_dict())
    world.restart()
    status = world.store.status()
    assert (status.state, status.loss_totals["damaged.segments"]) == ("ok", 1)


def test_accounted_bytes_are_those_on_disk(world: World) -> None:
    """Scenario: through a life of puts, segments, acks and deletions. Guarantee: at each step
    what `usage` says is there is what is there."""
    world.settings["reserve"] = "64KiB"
    world.store.subscribe("r")
    for n in range(6):
        world.put_durable(n)
        if n % 2:
            world.store.flush()
        if n == 3:
            world.drain("r")
        world.store.maintain()
        usage = world.store.status().usage
        files = {p: len(d) for p, d in world.raw.image().items()}
        assert usage.segments == sum(s for p, s in files.items() if p.endswith(".qseg"))
        log = [s for p, s in files.items() if p.startswith("wal/quiver.wal") and "cursor" not in p]
        assert usage.log == sum(log)
        assert usage.reserve == files["quiver.reserve"]


def _events(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [str(getattr(record, "event", "")) for record in caplog.records]


def test_events_for_what_an_operator_must_know(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario: damage, a torn end, an orphan, a rejected bundle. Guarantee: an event for
    each, with the store's name and the facts."""
    with caplog.at_level(logging.INFO, "quiver"):
        world.store.subscribe("orphan")
        world.store.subscribe("r")
        world.sealed(1, 2)
        bundle = world.store.subscribe("r").next_bundle()
        assert bundle is not None
        bundle.reject("bad")
        world.store.close()
        place = data_of(Disk(world.raw), 0, 1)
        world.change("segments/0000000000000000.qseg", lambda data: flipped(data, place))
        world.open()
        world.drain("r")
        world.store.flush()
        world.put_durable(3)
        whole = len(world.raw.image()["wal/quiver.wal"])
        world.put_durable(4)
        world.change("wal/quiver.wal", lambda data: data[: whole + 50])
        world.open().close()
    seen = set(_events(caplog))
    assert {
        e.STORE_OPENED,
        e.STORE_CLOSED,
        e.SUBSCRIBER_REGISTERED,
        e.SUBSCRIBER_ORPHANED,
        e.BUNDLE_REJECTED,
        e.SEGMENT_QUARANTINED,
        e.BUNDLES_LOST,
        e.STORE_DEGRADED,
        e.WAL_TRUNCATED,
    } <= seen
    [lost] = [r for r in caplog.records if getattr(r, "event", "") == e.BUNDLES_LOST]
    fields = lost.fields  # type: ignore[attr-defined]
    assert fields["segment"] == 0
    assert fields["store"] == "mem"


def test_throttling_is_told_seldom(caplog: pytest.LogCaptureFixture) -> None:
    """Scenario: thousands of puts are refused, then room comes back. Guarantee: one event
    when it begins, one every ten seconds with the count, one when puts come in again."""
    world = World(**SMALL, retention={"size_cap": CAP})
    refusals = 0
    with caplog.at_level(logging.INFO, "quiver"):
        reader = world.store.subscribe("r", follow=False)
        for n in range(600):
            try:
                world.store.put({"Logs": payload(3000, n)}).wait()
            except Backpressure:
                refusals += 1
                world.clock.advance(0.05)
        assert refusals > 500
        told = [r for r in caplog.records if getattr(r, "event", "") == e.INGEST_THROTTLED]
        assert len(told) == 1 + int(refusals * 0.05 / 10)
        counts = [r.fields["refused"] for r in told]  # type: ignore[attr-defined]
        assert counts[0] == 1
        assert sum(counts) <= refusals
        for bundle in reader:
            bundle.ack()
        world.store.maintain()
        world.store.put({"Logs": payload(3000)}).wait()
        assert _events(caplog).count(e.INGEST_RESUMED) == 1
