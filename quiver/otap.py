"""The slot table of OpenTelemetry Arrow (OTAP), to be declared as it is::

    quiver.open("./telemetry", slots=OTAP_SLOTS)

A slot's id is the number of its payload type in the protocol's ``ArrowPayloadType``
enum, and its name the enum's in camel case.  The Rust crate's OTAP adapter maps them the
same way, so directories it wrote read with the right names.  That adapter also keeps
whole OTLP requests as bytes (one ``data`` column of type binary, one row) in slots 60 to
62.  ``UNKNOWN`` (0) is no table and has no slot.

A bundle holds one signal: a root table (``Logs``, ``Spans``, ``UnivariateMetrics`` or
``MultivariateMetrics``) and the tables that refer to it by ``parent_id``.
"""

from __future__ import annotations

from typing import Final

OTAP_SLOTS: Final[dict[str, int]] = {
    # shared by all signals
    "ResourceAttrs": 1,
    "ScopeAttrs": 2,
    # metrics
    "UnivariateMetrics": 10,
    "NumberDataPoints": 11,
    "SummaryDataPoints": 12,
    "HistogramDataPoints": 13,
    "ExpHistogramDataPoints": 14,
    "NumberDpAttrs": 15,
    "SummaryDpAttrs": 16,
    "HistogramDpAttrs": 17,
    "ExpHistogramDpAttrs": 18,
    "NumberDpExemplars": 19,
    "HistogramDpExemplars": 20,
    "ExpHistogramDpExemplars": 21,
    "NumberDpExemplarAttrs": 22,
    "HistogramDpExemplarAttrs": 23,
    "ExpHistogramDpExemplarAttrs": 24,
    "MultivariateMetrics": 25,
    "MetricAttrs": 26,
    # logs
    "Logs": 30,
    "LogAttrs": 31,
    # traces
    "Spans": 40,
    "SpanAttrs": 41,
    "SpanEvents": 42,
    "SpanLinks": 43,
    "SpanEventAttrs": 44,
    "SpanLinkAttrs": 45,
    # whole OTLP requests, as bytes
    "OtlpLogs": 60,
    "OtlpTraces": 61,
    "OtlpMetrics": 62,
}
