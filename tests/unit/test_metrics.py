"""Metrics: the names are kept, bumping is cheap and loses nothing, reading waits for nobody."""

from __future__ import annotations

import re
import subprocess
import sys
import threading

import pytest

from quiver import metrics as m
from quiver.metrics import ALL, MetricKind, Metrics

SEED_NAMES = {
    "quiver.gc.evictions_total",
    "quiver.ingest.throttle_total",
    "quiver.retention.size_emergency_total",
    "quiver.subscriber.dropped_bundles_total",
    "quiver.segment.dropped_total",
    "quiver.core.bytes",
    "quiver.core.cap_fraction",
    "quiver.segment.open_bytes",
}


def test_the_promised_names_are_there() -> None:
    """Scenario: a dashboard made for the documented names. Guarantee: they exist."""
    assert {metric.name for metric in ALL} >= SEED_NAMES


def test_names_are_unique_described_and_tell_their_kind() -> None:
    """Scenario: a metric is added. Guarantee: one name each; `_total` exactly for counters."""
    names = [metric.name for metric in ALL]
    assert len(set(names)) == len(names)
    for metric in ALL:
        assert re.fullmatch(r"quiver(\.[a-z_]+)+", metric.name)
        assert metric.description.endswith(".")
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert bool(metric.bounds) == (metric.kind is MetricKind.HISTOGRAM)


def test_a_series_is_made_once_and_found_again() -> None:
    """Scenario: two owners ask for the same series. Guarantee: they share it; other labels are
    another series."""
    metrics = Metrics()
    metrics.counter(m.INGEST_THROTTLE, reason="disk").add(2)
    metrics.counter(m.INGEST_THROTTLE, reason="disk").add()
    metrics.counter(m.INGEST_THROTTLE, reason="memory").add()
    values = {sample.labels: sample.value for sample in metrics.snapshot()}
    assert values == {(("reason", "disk"),): 3, (("reason", "memory"),): 1}


def test_wrong_labels_and_kinds_are_programming_errors() -> None:
    """Scenario: a label is forgotten, a counter used as a gauge. Guarantee: found at once."""
    metrics = Metrics()
    with pytest.raises(TypeError, match="labels"):
        metrics.counter(m.INGEST_THROTTLE)
    with pytest.raises(TypeError, match="labels"):
        metrics.counter(m.WAL_SYNCS, reason="x")
    with pytest.raises(TypeError, match="not a gauge"):
        metrics.gauge(m.WAL_SYNCS)


def test_gauges_are_set_or_watched() -> None:
    """Scenario: a value kept elsewhere. Guarantee: read when looked at, not when it changes."""
    metrics, held = Metrics(), [1.0]
    metrics.gauge(m.WAL_BYTES).set(7)
    metrics.gauge(m.SEGMENT_COUNT).watch(lambda: held[0])
    held[0] = 5.0
    values = {sample.metric.name: sample.value for sample in metrics.snapshot()}
    assert values == {"quiver.wal.bytes": 7, "quiver.segment.count": 5}


def test_histograms_count_by_upper_bound() -> None:
    """Scenario: values on, below and beyond the bounds. Guarantee: cumulative counts, a value on
    a bound counted at it, none lost beyond the last."""
    metrics = Metrics()
    histogram = metrics.histogram(m.WAL_SYNC_SECONDS)
    for value in (m.SECONDS[0], m.SECONDS[1] / 1.5, m.SECONDS[-1] * 10):
        histogram.observe(value)
    (sample,) = metrics.snapshot()
    assert sample.count == histogram.count == 3
    assert sample.value == pytest.approx(histogram.total)
    assert sample.buckets[0] == (m.SECONDS[0], 1)
    assert sample.buckets[1] == (m.SECONDS[1], 2)
    assert sample.buckets[-1] == (float("inf"), 3)


def test_series_without_end_share_one() -> None:
    """Scenario: a client makes up label values for ever. Guarantee: bounded memory; nothing
    uncounted."""
    metrics = Metrics()
    for n in range(m.MAX_SERIES + 50):
        metrics.counter(m.SUBSCRIBER_ACKED, subscriber=f"s{n}").add()
    samples = metrics.snapshot()
    assert len(samples) == m.MAX_SERIES + 1
    assert sum(sample.value for sample in samples) == m.MAX_SERIES + 50
    assert {s.value for s in samples if s.labels == m.OVERFLOW} == {50}


def test_a_forgotten_series_is_gone() -> None:
    """Scenario: a subscriber is unregistered. Guarantee: its lag is no longer reported."""
    metrics = Metrics()
    metrics.gauge(m.SUBSCRIBER_LAG_BUNDLES, subscriber="a").set(3)
    metrics.forget(m.SUBSCRIBER_LAG_BUNDLES, subscriber="a")
    metrics.forget(m.SUBSCRIBER_LAG_BUNDLES, subscriber="a")
    assert metrics.snapshot() == []


def test_no_count_is_lost_between_threads() -> None:
    """Scenario: four threads bump one counter and one histogram, switched as often as the
    interpreter can, while a fifth reads. Guarantee: every count arrives, without a lock."""
    metrics, rounds, threads = Metrics(), 20_000, 4
    counter = metrics.counter(m.WAL_SYNCS)
    histogram = metrics.histogram(m.WAL_SYNC_SECONDS)

    def bump() -> None:
        for _ in range(rounds):
            counter.add()
            histogram.observe(0.001)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        workers = [threading.Thread(target=bump) for _ in range(threads)]
        for worker in workers:
            worker.start()
        while any(worker.is_alive() for worker in workers):
            metrics.snapshot()
        for worker in workers:
            worker.join()
    finally:
        sys.setswitchinterval(interval)
    assert counter.value == rounds * threads
    assert histogram.count == rounds * threads


def test_bumping_costs_next_to_nothing() -> None:
    """Scenario: a counter on the path of every put, in a process that no coverage tool slows
    down. Guarantee: below a microsecond (0.1 to 0.2 µs is usual; the mark allows for a busy
    machine)."""
    program = """
import timeit
from quiver import metrics as m
counter = m.Metrics().counter(m.WAL_SYNCS)
histogram = m.Metrics().histogram(m.WAL_SYNC_SECONDS)
for bump in (counter.add, lambda: histogram.observe(0.01)):
    print(min(timeit.repeat(bump, number=5_000, repeat=20)) / 5_000)
"""
    run = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60
    )
    add, observe = (float(line) for line in run.stdout.split())
    assert add < 1e-6
    assert observe < 1e-6
