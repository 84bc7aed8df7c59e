"""Metrics as Prometheus reads them.

The store's metrics keep their names, with ``_`` for ``.``, and get a label ``stream``;
the service adds ``quiver_server_*``.  Numbers are read when somebody asks.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from flight_service.server.overview import ServerOverview
from flight_service.server.streams import Streams
from quiver.disk.descriptors import DESCRIPTORS
from quiver.errors import Reason
from quiver.metrics import INGEST_THROTTLE, MetricKind, Sample

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"


def exposition(streams: Streams, overview: ServerOverview) -> tuple[int, str, str]:
    """Everything that is counted, now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Stores(streams))
    registry.register(_ServerCollector(streams, overview))
    return 200, CONTENT_TYPE, generate_latest(registry).decode()


class _Stores(Collector):
    def __init__(self, streams: Streams) -> None:
        self._streams = streams

    def collect(self) -> Iterable[Metric]:
        families: dict[str, Metric] = {}
        for stream in self._streams.opened():
            samples = stream.store.metrics.snapshot()
            for sample in [*samples, *_never_counted(samples)]:
                name = sample.metric.name.replace(".", "_")
                if sample.metric.kind is MetricKind.COUNTER:
                    name = name.removesuffix("_total")
                # By its full name: a gauge may be called like a counter but for `_total`.
                family = families.get(sample.metric.name)
                if family is None:
                    family = families[sample.metric.name] = Metric(
                        name, sample.metric.description, str(sample.metric.kind)
                    )
                _add(family, name, {"stream": stream.name, **dict(sample.labels)}, sample)
        return families.values()


def _never_counted(samples: Sequence[Sample]) -> Iterable[Sample]:
    """Zeros for what has not happened yet: an alert sees the first event only as a rise."""
    counted = {sample.labels for sample in samples if sample.metric is INGEST_THROTTLE}
    for reason in Reason:
        labels = (("reason", str(reason)),)
        if labels not in counted:
            yield Sample(INGEST_THROTTLE, labels, 0)


def _add(family: Metric, name: str, labels: dict[str, str], sample: Sample) -> None:
    if sample.metric.kind is MetricKind.COUNTER:
        family.add_sample(f"{name}_total", labels, sample.value)
    elif sample.metric.kind is MetricKind.GAUGE:
        family.add_sample(name, labels, sample.value)
    else:
        for bound, count in sample.buckets:
            edge = "+Inf" if bound == float("inf") else repr(bound)
            family.add_sample(f"{name}_bucket", {**labels, "le": edge}, count)
        family.add_sample(f"{name}_count", labels, sample.count)
        family.add_sample(f"{name}_sum", labels, sample.value)


class _ServerCollector(Collector):
    def __init__(self, streams: Streams, overview: ServerOverview) -> None:
        self._streams = streams
        self._overview = overview

    def collect(self) -> Iterable[Metric]:
        calls = self._overview.calls()
        health = self._overview.health().status
        headroom = DESCRIPTORS.headroom()
        for name, description, value in (
            ("calls", "Calls running.", calls["running"]),
            ("calls_peak", "Most calls that ran at a time.", calls["peak"]),
            ("calls_refused", "Calls refused for lack of room.", calls["refused"]),
            ("streams", "Streams.", len(self._streams.names())),
            ("streams_open", "Streams that are open.", len(self._streams.opened())),
            ("streams_damaged", "Streams that can't be opened.", len(self._streams.damage())),
            ("ready", "1 when puts and reads are served.", health in ("ok", "degraded")),
            ("descriptors_free", "File descriptors that may still be opened.", headroom.free),
            ("descriptors_limit", "File descriptors that may be open at a time.", headroom.limit),
            (
                "descriptor_shortages",
                "Times a store found no free descriptor.",
                DESCRIPTORS.shortages,
            ),
        ):
            family = GaugeMetricFamily(f"quiver_server_{name}", description)
            family.add_metric([], float(value))
            yield family
        yield from self._claims()

    def _claims(self) -> Iterable[Metric]:
        labels = ["stream", "subscriber"]
        held = GaugeMetricFamily(
            "quiver_server_in_flight_bundles", "Bundles claimed and not finished.", labels=labels
        )
        nbytes = GaugeMetricFamily(
            "quiver_server_in_flight_bytes", "The same in bytes.", labels=labels
        )
        again = GaugeMetricFamily(
            "quiver_server_redelivering_bundles", "Bundles that came back.", labels=labels
        )
        for stream in self._streams.opened():
            groups = stream.groups()
            for name, redelivering in stream.redelivering().items():
                status = groups[name].status() if name in groups else {}
                held.add_metric([stream.name, name], status.get("in_flight", 0))
                nbytes.add_metric([stream.name, name], status.get("in_flight_bytes", 0))
                again.add_metric([stream.name, name], redelivering)
        return held, nbytes, again
