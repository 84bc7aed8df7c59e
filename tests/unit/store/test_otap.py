"""OpenTelemetry Arrow: its slot table, declared, with bundles as its adapters send them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver import OTAP_SLOTS
from quiver.errors import InvalidBundle
from tests.support.batches import same
from tests.support.stores import World


def _logs() -> dict[str, pa.RecordBatch]:
    keys = pa.DictionaryArray.from_arrays(
        pa.array([0, 1], pa.uint8()), pa.array(["host", "service"])
    )
    return {
        "Logs": pa.record_batch(
            {
                "id": pa.array([0, 1], pa.uint16()),
                "time_unix_nano": pa.array([1, 2], pa.timestamp("ns")),
                "body": ["started", "stopped"],
            }
        ),
        "LogAttrs": pa.RecordBatch.from_arrays(
            [pa.array([0, 1], pa.uint16()), keys, pa.array(["a", "b"])],
            ["parent_id", "key", "str"],
        ),
        "ResourceAttrs": pa.record_batch({"parent_id": pa.array([0], pa.uint16()), "str": ["x"]}),
    }


@pytest.mark.parametrize("end", ["kill", "restart"])
def test_logs_and_spans_share_a_store(end: str) -> None:
    """Scenario: bundles of logs and of spans, each with its own tables, under OTAP's table.
    Guarantee: each comes back with its own slots under the protocol's numbers, before and
    after a restart; event time follows the declared column."""
    world = World(slots=OTAP_SLOTS, event_time={"Logs": "time_unix_nano"})
    logs = _logs()
    spans = {"Spans": pa.record_batch({"id": pa.array([7], pa.uint16())})}
    refs = [world.store.put(slots).wait().ref for slots in (logs, spans)]
    world.store.flush()
    getattr(world, end)()
    found = world.store.read(refs[0])
    assert set(found) == set(logs)
    for slot, wanted in logs.items():
        same(found[slot], wanted)
    assert list(world.store.read(refs[1])) == ["Spans"]
    assert list(world.store.read(refs[1], slots=[40])) == ["Spans"]
    assert world.store.meta(refs[0]).event_time == (1, 2)
    assert world.store.meta(refs[1]).event_time is None


def test_a_table_that_is_none_of_otaps_is_refused() -> None:
    """Scenario: a slot that OTAP doesn't have. Guarantee: refused, typed."""
    world = World(slots=OTAP_SLOTS)
    with pytest.raises(InvalidBundle):
        world.store.put({"LogsAttrs": _logs()["LogAttrs"]})
