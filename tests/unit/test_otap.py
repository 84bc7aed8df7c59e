"""The OTAP slot table."""

from __future__ import annotations

from quiver.config import Config
from quiver.ids import MAX_SLOTS, slot_name
from quiver.otap import OTAP_SLOTS


def test_the_table_can_be_declared_as_it_is() -> None:
    """Scenario: OTAP's table as a store's slot table. Guarantee: accepted by the configuration."""
    assert Config.load(env={}, slots=OTAP_SLOTS).slots == OTAP_SLOTS


def test_ids_fit_the_bitmap_and_are_unique() -> None:
    """Scenario: every slot is one bit of 64. Guarantee: no two tables share one."""
    ids = list(OTAP_SLOTS.values())
    assert len(set(ids)) == len(ids)
    assert all(0 < slot < MAX_SLOTS for slot in ids)
    assert all(slot_name(name) == name for name in OTAP_SLOTS)


def test_ids_are_the_protocols_payload_types() -> None:
    """Scenario: a directory written with the protocol's numbers. Guarantee: each signal's tables
    have the numbers the protocol gives them (pinned: they are on other people's disks)."""
    by_id = {slot: name for name, slot in OTAP_SLOTS.items()}
    assert by_id[1] == "ResourceAttrs"
    assert by_id[2] == "ScopeAttrs"
    assert [slot for slot in sorted(by_id) if slot < 30][2:] == list(range(10, 27))
    assert (by_id[10], by_id[25], by_id[26]) == (
        "UnivariateMetrics",
        "MultivariateMetrics",
        "MetricAttrs",
    )
    assert {by_id[30], by_id[31]} == {"Logs", "LogAttrs"}
    assert [by_id[slot] for slot in range(40, 46)] == [
        "Spans",
        "SpanAttrs",
        "SpanEvents",
        "SpanLinks",
        "SpanEventAttrs",
        "SpanLinkAttrs",
    ]
    assert [by_id[slot] for slot in (60, 61, 62)] == ["OtlpLogs", "OtlpTraces", "OtlpMetrics"]
