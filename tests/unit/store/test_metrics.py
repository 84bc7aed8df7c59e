"""Metrics: the documented names, fed by what really happens."""

from __future__ import annotations

import threading
from typing import Any

from quiver import Background
from quiver import metrics as m
from quiver.metrics import Metric, MetricKind
from tests.support.stores import World, ack_all, payload, run_in_threads
from tests.unit.store.test_retention import CAP, SMALL


def value(world: World, metric: Metric, **labels: str) -> float:
    series = {(s.metric, s.labels): s for s in world.store.metrics.snapshot()}
    found = series.get((metric, tuple((name, labels[name]) for name in metric.labels)))
    return (
        0 if found is None else found.count if metric.kind is MetricKind.HISTOGRAM else found.value
    )


def test_the_way_of_a_bundle_is_counted(world: World) -> None:
    """Scenario: three bundles go in, become durable, get a segment, are delivered, acked,
    rejected, and the segment goes. Guarantee: each step shows under its name."""
    receipts = [world.put(n) for n in range(3)]
    assert value(world, m.INGEST_BUNDLES) == 3
    assert value(world, m.INGEST_DURABLE_BYTES) == 0
    receipts[-1].wait()
    nbytes = sum(r.nbytes for r in receipts)
    assert value(world, m.INGEST_DURABLE_BYTES) == nbytes == value(world, m.INGEST_BYTES)
    assert value(world, m.INGEST_SECONDS) == 3
    assert value(world, m.INGEST_DURABLE_SECONDS) == 1, "one of each group"
    assert value(world, m.WAL_SYNCS) == 1 == value(world, m.WAL_SYNC_SECONDS)
    assert value(world, m.WAL_BYTES_WRITTEN) > nbytes
    assert value(world, m.WAL_GROUP_BYTES) == 1
    assert value(world, m.SEGMENT_OPEN_BYTES) == nbytes
    world.store.flush()
    assert value(world, m.SEGMENT_OPEN_BYTES) == 0
    assert value(world, m.SEGMENT_COUNT) == 1 == value(world, m.SEGMENT_BYTES)
    assert value(world, m.SEGMENT_FINALIZED, trigger="flush") == 1
    assert value(world, m.SEGMENT_FINALIZE_SECONDS) == 1
    assert value(world, m.SEGMENT_DISK_BYTES) > nbytes
    reader = world.store.subscribe("r")
    bundles = [reader.next_bundle() for _ in range(3)]
    assert value(world, m.SEGMENT_MAPPED) == 1
    for bundle in bundles[:2]:
        assert bundle is not None
        bundle.ack()
    assert bundles[2] is not None
    bundles[2].reject("no")
    assert value(world, m.SUBSCRIBER_DELIVERED, subscriber="r") == 3
    assert value(world, m.SUBSCRIBER_ACKED, subscriber="r") == 2
    assert value(world, m.SUBSCRIBER_REJECTED, subscriber="r") == 1
    world.store.maintain()
    assert value(world, m.PROGRESS_WRITES) == 1
    assert value(world, m.GC_EVICTIONS, reason="steady") == 1
    assert value(world, m.GC_BYTES, reason="steady") > nbytes
    assert value(world, m.SEGMENT_COUNT) == 0


def test_lag_is_shown_for_each_subscriber_and_goes_with_it(world: World) -> None:
    """Scenario: two subscribers, one leaves. Guarantee: bundles, bytes and age of each; the
    gauges of the one that left are gone. They are there after a restart, too."""
    world.put_durable(1, 2)
    world.store.subscribe("a")
    world.store.subscribe("b")
    world.clock.advance(7)
    for _ in range(2):
        assert value(world, m.SUBSCRIBER_LAG_BUNDLES, subscriber="a") == 2
        assert value(world, m.SUBSCRIBER_LAG_BYTES, subscriber="a") > 100
        assert value(world, m.SUBSCRIBER_LAG_SECONDS, subscriber="a") == 7
        world.restart()
    world.store.unregister("a")
    names = {dict(s.labels).get("subscriber") for s in world.store.metrics.snapshot()}
    assert "b" in names
    assert not {
        s.metric.name for s in world.store.metrics.snapshot() if ("subscriber", "a") in s.labels
    } & {m.SUBSCRIBER_LAG_BUNDLES.name, m.SUBSCRIBER_LAG_SECONDS.name}


def test_pressure_is_counted() -> None:
    """Scenario: a store at its cap that drops, and one that refuses. Guarantee: throttling
    by reason, dropped segments and bundles, emergencies, and how full it is."""
    world = World(**SMALL, retention={"size_cap": CAP, "size_cap_policy": "drop_oldest"})
    world.store.subscribe("slow")
    for n in range(60):
        world.store.put({"Logs": payload(3000, n)}).wait()
        world.store.maintain()
    dropped = value(world, m.SEGMENT_DROPPED, reason="size")
    assert dropped >= 1
    assert value(world, m.SUBSCRIBER_DROPPED, subscriber="slow", reason="size") >= dropped
    assert value(world, m.GC_EVICTIONS, reason="size") >= dropped
    assert 0 < value(world, m.CORE_CAP_FRACTION, core_id="mem") <= 1
    assert value(world, m.CORE_BYTES, core_id="mem") > 0
    assert ack_all(world.store, "slow") > 0


def test_rotations_are_counted() -> None:
    """Scenario: a log of many small files. Guarantee: every file that was closed counts."""
    world = World(**SMALL)
    for n in range(20):
        world.store.put({"Logs": payload(3000, n)}).wait()
    renames = sum(op == "rename" and p == "wal/quiver.wal" for op, p in world.faulty.calls)
    assert value(world, m.WAL_ROTATIONS) == renames > 3


def test_a_snapshot_never_waits_for_a_put() -> None:
    """Scenario: the ingest lock is held by somebody, say a put. Guarantee: numbers can be
    read meanwhile."""
    world = World()
    world.put_durable(1)
    world.store.subscribe("r")
    done = threading.Event()

    def look() -> None:
        world.store.metrics.snapshot()
        done.set()

    with world.store._lock:
        threading.Thread(target=look).start()
        assert done.wait(20), "a look at the numbers waits for the ingest lock"


def test_nothing_is_lost_when_many_count() -> None:
    """Scenario: eight threads put at once. Guarantee: the counter says all of them."""
    world = World()
    with Background(1, 1) as background:
        store = world.open(background=background)

        def put() -> None:
            for n in range(100):
                world.put(n, timeout=20)

        run_in_threads(*[put] * 8)
        assert value(world, m.INGEST_BUNDLES) == 800
        store.close()


def test_the_seeds_names_are_there() -> None:
    """Scenario: a dashboard made for the documented names. Guarantee: they exist, each with
    its kind and labels."""
    expected: dict[str, tuple[Any, tuple[str, ...]]] = {
        "quiver.gc.evictions_total": (MetricKind.COUNTER, ("reason",)),
        "quiver.ingest.throttle_total": (MetricKind.COUNTER, ("reason",)),
        "quiver.subscriber.dropped_bundles_total": (MetricKind.COUNTER, ("subscriber", "reason")),
        "quiver.segment.dropped_total": (MetricKind.COUNTER, ("reason",)),
        "quiver.retention.size_emergency_total": (MetricKind.COUNTER, ()),
        "quiver.core.bytes": (MetricKind.GAUGE, ("core_id",)),
        "quiver.core.cap_fraction": (MetricKind.GAUGE, ("core_id",)),
        "quiver.segment.open_bytes": (MetricKind.GAUGE, ()),
    }
    found = {metric.name: (metric.kind, metric.labels) for metric in m.ALL}
    assert {name: found.get(name) for name in expected} == expected
