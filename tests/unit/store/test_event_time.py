"""Event time: kept beside ingestion time and sequence, and deciding nothing."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from quiver import OTAP_SLOTS
from quiver.errors import ConfigError
from tests.support.stores import World


@pytest.mark.parametrize("way", ["memory", "segment", "kill"])
def test_the_range_of_the_declared_column_is_kept(way: str) -> None:
    """Scenario: a timestamp column is declared, values out of order, a null. Guarantee: the
    smallest and largest, in nanoseconds, wherever the bundle is read from."""
    world = World(event_time={"Logs": "at"})
    column = pa.array([5_000, 1_000, None, 3_000], pa.timestamp("us"))
    receipt = world.store.put({"Logs": pa.record_batch({"at": column})}).wait()
    if way == "segment":
        world.store.flush()
    elif way == "kill":
        world.kill()
    meta = world.store.meta(receipt.ref)
    assert meta.event_time == (1_000_000, 5_000_000)
    assert meta.ingestion_ts_ns == receipt.ingestion_ts_ns


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([3, 1, 2], pa.int64()), (1, 3)),
        (pa.array([1, 2], pa.date32()), (86_400 * 10**9, 2 * 86_400 * 10**9)),
        (pa.array([None, None], pa.timestamp("ns")), None),
        (pa.array([], pa.timestamp("ns")), None),
        (pa.array(["a"]), None),
        (pa.array([2**62], pa.timestamp("s")), None),
    ],
)
def test_what_counts_as_event_time(column: pa.Array, expected: tuple[int, int] | None) -> None:
    """Scenario: integers, dates, nulls, text, times out of range. Guarantee: a range where
    there is one, none where there isn't; the bundle is taken in any case."""
    world = World(event_time={"Logs": "at"})
    ref = world.store.put({"Logs": pa.record_batch({"at": column})}).wait().ref
    assert world.store.meta(ref).event_time == expected


def test_event_time_orders_and_deletes_nothing() -> None:
    """Scenario: event times that go back by years, with an age limit of an hour. Guarantee:
    delivery is in the order of arrival, and nothing is deleted for what the data says."""
    world = World(event_time={"Logs": "at"}, retention={"max_retain_after_ingestion_hours": 1})
    for year in (2024, 1970, 2030, 1999):
        at = pa.array([(year - 1970) * 31_536_000], pa.timestamp("s"))
        world.store.put({"Logs": pa.record_batch({"at": at})}).wait()
    world.store.flush()
    world.store.maintain()
    found = [
        b["Logs"]["at"][0].value // 31_536_000 + 1970
        for b in world.store.subscribe("r", follow=False)
    ]
    assert found == [2024, 1970, 2030, 1999]


def test_several_slots_share_a_range() -> None:
    """Scenario: two slots with a declared column each. Guarantee: the range covers both."""
    world = World(event_time={"A": "at", "B": "when"})
    a = pa.record_batch({"at": pa.array([5, 6], pa.timestamp("ns"))})
    b = pa.record_batch({"when": pa.array([1, 9], pa.timestamp("ns"))})
    ref = world.store.put({"A": a, "B": b}).wait().ref
    assert world.store.meta(ref).event_time == (1, 9)


def test_a_slot_that_is_not_declared_can_have_none() -> None:
    """Scenario: a column declared for a slot that the table doesn't have. Guarantee: refused
    by its name."""
    settings: dict[str, Any] = {"slots": OTAP_SLOTS, "event_time": {"Nope": "x"}}
    with pytest.raises(ConfigError, match=r"event_time\.Nope"):
        World(**settings).open()
