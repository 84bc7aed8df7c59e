"""Every number the store counts: names in one place, and instruments cheap enough to keep.

A metric is declared once below (:class:`Metric`), an instrument is asked for once, when
its owner is made, and then bumped with a plain method call::

    syncs = metrics.counter(WAL_SYNCS)
    syncs.add()

Bumping takes no lock and never waits.  ``value += n`` on an attribute runs without a
thread switch under the GIL (CPython switches at calls and backward jumps, and there are
none between the load and the store), so nothing is lost either.  Reading is as free:
:meth:`Metrics.snapshot` looks at the numbers as they are, and puts go on meanwhile.
Metrics inform people; no decision of the store rests on one.
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from typing import Final, TypeVar, cast

Labels = tuple[tuple[str, str], ...]

# Labels such as subscriber names come from outside: beyond this many series of one
# metric the rest share a single one, so that no client can fill the memory.
MAX_SERIES: Final = 1_000
OVERFLOW: Final[Labels] = (("overflow", "true"),)

# Upper bounds: 10 µs to 80 s, and 256 B to 8 GiB, each twice or four times the one before.
SECONDS: Final = tuple(1e-5 * 2**n for n in range(24))
BYTES: Final = tuple(float(256 * 4**n) for n in range(13))


class MetricKind(StrEnum):
    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


@dataclass(frozen=True, slots=True)
class Metric:
    """A declared metric: its name is part of the interface."""

    name: str
    kind: MetricKind
    description: str
    labels: tuple[str, ...] = ()
    bounds: tuple[float, ...] = field(default=(), repr=False)


def _counter(name: str, description: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.COUNTER, description, labels)


def _gauge(name: str, description: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.GAUGE, description, labels)


def _seconds(name: str, description: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.HISTOGRAM, description, labels, SECONDS)


def _bytes(name: str, description: str, *labels: str) -> Metric:
    return Metric(name, MetricKind.HISTOGRAM, description, labels, BYTES)


# ingest
INGEST_BUNDLES = _counter("quiver.ingest.bundles_total", "Bundles accepted.")
INGEST_ROWS = _counter("quiver.ingest.rows_total", "Rows accepted.")
INGEST_BYTES = _counter("quiver.ingest.bytes_total", "Payload bytes accepted.")
INGEST_DURABLE_BYTES = _counter("quiver.ingest.durable_bytes_total", "Payload bytes made durable.")
INGEST_DUPLICATES = _counter("quiver.ingest.duplicates_total", "Repeats answered by their key.")
CLOCK_JUMPS = _counter(
    "quiver.clock.jumps_total", "Jumps of the wall clock, forward or back, that were seen."
)
INGEST_RESENT = _counter(
    "quiver.ingest.resent_total", "Lost bundles that a repeat of their key brought back."
)
INGEST_REFUSED = _counter("quiver.ingest.refused_total", "Bundles that can't be taken.", "code")
INGEST_THROTTLE = _counter("quiver.ingest.throttle_total", "Puts told to wait.", "reason")
INGEST_SECONDS = _seconds("quiver.ingest.seconds", "From put to accepted.")
INGEST_DURABLE_SECONDS = _seconds("quiver.ingest.durable_seconds", "From put to durable.")
# staged writes
STAGE_BUNDLES = _counter("quiver.stage.bundles_total", "Bundles staged.")
STAGE_BYTES = _counter("quiver.stage.bytes_total", "Payload bytes staged.")
STAGES = _gauge("quiver.stage.count", "Stages that are neither committed nor aborted.")
STAGE_DISK_BYTES = _gauge("quiver.stage.disk_bytes", "Size of all staged files.")
STAGE_MEMORY_BYTES = _gauge("quiver.stage.memory_bytes", "Staged payload bytes in memory.")
STAGES_EXPIRED = _counter("quiver.stage.expired_total", "Stages removed since nobody came.")
TRANSACTIONS = _counter("quiver.transaction.commits_total", "Commits answered.", "outcome")
TRANSACTION_ABORTS = _counter("quiver.transaction.aborts_total", "Transactions aborted.")
TRANSACTION_SECONDS = _seconds("quiver.transaction.commit_seconds", "One commit.")
# log
WAL_BYTES_WRITTEN = _counter("quiver.wal.bytes_total", "Bytes written to the log.")
WAL_SYNCS = _counter("quiver.wal.syncs_total", "Groups written and synced.")
WAL_ROTATIONS = _counter("quiver.wal.rotations_total", "Log files closed.")
WAL_BYTES = _gauge("quiver.wal.bytes", "Size of all log files.")
WAL_SYNC_SECONDS = _seconds("quiver.wal.sync_seconds", "One fdatasync.")
WAL_GROUP_BYTES = _bytes("quiver.wal.group_bytes", "Bytes of one group.")
# segments
SEGMENT_OPEN_BYTES = _gauge("quiver.segment.open_bytes", "Payload bytes not yet in a segment file.")
SEGMENT_COUNT = _gauge("quiver.segment.count", "Segment files.")
SEGMENT_DISK_BYTES = _gauge("quiver.segment.disk_bytes", "Size of all segment files.")
SEGMENT_MAPPED = _gauge("quiver.segment.mapped", "Segments open for reading.")
SEGMENT_FINALIZED = _counter("quiver.segment.finalized_total", "Segments written.", "trigger")
SEGMENT_UNWRITTEN = _counter(
    "quiver.segment.unwritten_total", "Segments that all had finished before they were written."
)
SEGMENT_FINALIZE_FAILED = _counter("quiver.segment.finalize_failed_total", "Tries that failed.")
SEGMENT_QUARANTINED = _counter("quiver.segment.quarantined_total", "Damaged ones moved aside.")
SEGMENT_DROPPED = _counter(
    "quiver.segment.dropped_total", "Segments deleted that somebody still needed.", "reason"
)
SEGMENT_BYTES = _bytes("quiver.segment.bytes", "Size of one segment file.")
SEGMENT_FINALIZE_SECONDS = _seconds("quiver.segment.finalize_seconds", "Writing one segment.")
# subscribers
SUBSCRIBER_DELIVERED = _counter(
    "quiver.subscriber.delivered_bundles_total", "Bundles handed out.", "subscriber"
)
SUBSCRIBER_ACKED = _counter(
    "quiver.subscriber.acked_bundles_total", "Bundles acknowledged.", "subscriber"
)
SUBSCRIBER_REJECTED = _counter(
    "quiver.subscriber.rejected_bundles_total", "Bundles rejected.", "subscriber"
)
SUBSCRIBER_HANDED_OVER = _counter(
    "quiver.subscriber.handed_over_bundles_total", "Bundles moved to another stream.", "subscriber"
)
SUBSCRIBER_DROPPED = _counter(
    "quiver.subscriber.dropped_bundles_total", "Bundles dropped, on record.", "subscriber", "reason"
)
SUBSCRIBER_LOST = _counter(
    "quiver.subscriber.lost_bundles_total", "Bundles lost to damage.", "subscriber"
)
SUBSCRIBER_LAG_BUNDLES = _gauge("quiver.subscriber.lag_bundles", "Not yet finished.", "subscriber")
SUBSCRIBER_LAG_BYTES = _gauge("quiver.subscriber.lag_bytes", "The same in bytes.", "subscriber")
SUBSCRIBER_LAG_SECONDS = _gauge(
    "quiver.subscriber.lag_seconds", "Age of the oldest unfinished bundle.", "subscriber"
)
PROGRESS_WRITES = _counter("quiver.subscriber.progress_writes_total", "Progress files written.")
# reading over a service
SENT_BYTES = _counter(
    "quiver.sent.bytes_total", "Bytes of batches handed to readers, after projection."
)
# retention and budget
LEDGER_BUNDLES = _gauge(
    "quiver.ledger.bundles", "Bundles on record as lost, dropped or rejected, ever.", "reason"
)
GC_EVICTIONS = _counter("quiver.gc.evictions_total", "Segments deleted.", "reason")
GC_BYTES = _counter("quiver.gc.bytes_total", "Bytes deleted.", "reason")
SIZE_EMERGENCIES = _counter(
    "quiver.retention.size_emergency_total", "Times the cap forced a drop or a wait."
)
CORE_BYTES = _gauge("quiver.core.bytes", "Bytes on disk, of one engine.", "core_id")
CORE_CAP_FRACTION = _gauge("quiver.core.cap_fraction", "Used part of its budget.", "core_id")
# recovery and faults
RECOVERY_SECONDS = _gauge("quiver.recovery.seconds", "Time the last open took.")
RECOVERY_BUNDLES = _gauge("quiver.recovery.bundles", "Bundles the last open replayed.")
TORN_TAILS = _counter("quiver.recovery.torn_tails_total", "Unsynced log ends cut off.")
DAMAGE = _counter("quiver.damage_total", "Failed checks, by error code.", "code")
POISONED = _gauge("quiver.store.poisoned", "1 after a failed fsync, until a restart.")
DESCRIPTORS_FREE = _gauge(
    "quiver.process.descriptors_free", "File descriptors the process may still open."
)

ALL: Final[tuple[Metric, ...]] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)


class Counter:
    """Only rises."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value: float = 0

    def add(self, amount: float = 1) -> None:
        self.value += amount


class Gauge:
    """Goes up and down; set by its owner, or read from a function when looked at."""

    __slots__ = ("_read", "_value")

    def __init__(self) -> None:
        self._value: float = 0
        self._read: Callable[[], float] | None = None

    def set(self, value: float) -> None:
        self._value = value

    def watch(self, read: Callable[[], float]) -> None:
        """Take the value from ``read`` at each snapshot: nothing to bump on the way."""
        self._read = read

    @property
    def value(self) -> float:
        return self._value if self._read is None else self._read()


class Histogram:
    """Counts values by size, in fixed buckets."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total: float = 0

    def observe(self, value: float) -> None:
        index = bisect_left(self._bounds, value)
        self._counts[index] += 1
        self.total += value

    @property
    def count(self) -> int:
        return sum(self._counts)

    def buckets(self) -> tuple[tuple[float, int], ...]:
        """(upper bound, how many at or below it); the last bound is infinity."""
        return tuple(zip((*self._bounds, float("inf")), accumulate(self._counts), strict=True))


@dataclass(frozen=True, slots=True)
class Sample:
    """One series as it was at a moment; ``buckets`` and ``count`` of histograms only."""

    metric: Metric
    labels: Labels
    value: float
    count: int = 0
    buckets: tuple[tuple[float, int], ...] = ()


Instrument = Counter | Gauge | Histogram
_I = TypeVar("_I", Counter, Gauge, Histogram)


class Metrics:
    """The instruments of one store."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # for new series only; bumping never takes it
        self._series: dict[Metric, dict[Labels, Instrument]] = {}

    def counter(self, metric: Metric, **labels: str) -> Counter:
        return self._get(metric, MetricKind.COUNTER, labels, Counter)

    def gauge(self, metric: Metric, **labels: str) -> Gauge:
        return self._get(metric, MetricKind.GAUGE, labels, Gauge)

    def histogram(self, metric: Metric, **labels: str) -> Histogram:
        return self._get(metric, MetricKind.HISTOGRAM, labels, lambda: Histogram(metric.bounds))

    def forget(self, metric: Metric, **labels: str) -> None:
        """Drop a series whose subject is gone, such as an unregistered subscriber's lag."""
        with self._lock:
            self._series.get(metric, {}).pop(_key(metric, labels), None)

    def snapshot(self) -> list[Sample]:
        """All series as they are now, by name and labels."""
        samples = [
            _sample(metric, labels, instrument)
            for metric, series in self._series.copy().items()
            for labels, instrument in series.copy().items()
        ]
        return sorted(samples, key=lambda sample: (sample.metric.name, sample.labels))

    def _get(
        self, metric: Metric, kind: MetricKind, labels: Mapping[str, str], make: Callable[[], _I]
    ) -> _I:
        if metric.kind is not kind:
            raise TypeError(f"{metric.name} is a {metric.kind}, not a {kind}")
        key = _key(metric, labels) if labels or metric.labels else ()
        known = self._series.get(metric)
        found = None if known is None else known.get(key)
        if found is not None:
            return cast(_I, found)
        with self._lock:
            series = self._series.setdefault(metric, {})
            if key not in series and len(series) >= MAX_SERIES:
                key = OVERFLOW
            # The kind was checked above, so the instrument under the key is of that type.
            return cast(_I, series.setdefault(key, make()))


def _key(metric: Metric, labels: Mapping[str, str]) -> Labels:
    if set(labels) != set(metric.labels):
        raise TypeError(f"{metric.name} has the labels {metric.labels}, not {tuple(labels)}")
    return tuple((name, labels[name]) for name in metric.labels)


def _sample(metric: Metric, labels: Labels, instrument: Instrument) -> Sample:
    if isinstance(instrument, Histogram):
        buckets = instrument.buckets()
        return Sample(metric, labels, instrument.total, buckets[-1][1], buckets)
    return Sample(metric, labels, instrument.value)
