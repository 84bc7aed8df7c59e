"""Event time that the producer tells, for data without a declared column."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.errors import InvalidBundle
from quiver.store.store import Store
from tests.support.memory_disk import MemoryDisk

BATCH = pa.record_batch({"x": [1, 2]})


def _store() -> Store:
    return Store(Disk(MemoryDisk()), Config.load(env={}), where="mem", clock=ManualClock())


def test_a_given_range_is_kept() -> None:
    """Scenario: a put says its event time. Guarantee: the bundle has it, before and after
    its segment is written."""
    with _store() as store:
        ref = store.put({"Logs": BATCH}, event_time=(-5, 7)).wait().ref
        assert store.meta(ref).event_time == (-5, 7)
        store.flush()
        assert store.meta(ref).event_time == (-5, 7)


@pytest.mark.parametrize("given", [(2, 1), (1,), (1.0, 2), (True, 2), (0, 2**63), [1, 2], "12"])
def test_a_range_that_is_none_is_refused(given: Any) -> None:
    """Scenario: event times of the wrong form. Guarantee: refused, nothing kept."""
    with _store() as store:
        with pytest.raises(InvalidBundle):
            store.put({"Logs": BATCH}, event_time=given)
        assert store.segments() == []
