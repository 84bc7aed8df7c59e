"""The latch that a failed fsync throws."""

from __future__ import annotations

import pytest

from quiver.disk.poison import Poison
from quiver.errors import Poisoned


def test_a_clear_latch_lets_writes_through() -> None:
    """Scenario: nothing failed. Guarantee: no cause, and a check passes."""
    poison = Poison()
    poison.check()
    assert poison.cause is None


def test_the_first_cause_stays() -> None:
    """Scenario: two syncs fail one after the other.

    Guarantee: each caller hears of its own failure; the latch keeps the first, the root.
    """
    poison = Poison()
    first = poison.trip("fdatasync", "wal/quiver.wal", OSError(5, "Input/output error"))
    second = poison.trip("fsync_dir", "segments", OSError(28, "No space left"))
    assert poison.cause is first
    assert second.details["op"] == "fsync_dir"


def test_each_check_raises_a_fresh_error_with_the_cause() -> None:
    """Scenario: many writers are refused after a failure.

    Guarantee: each gets an error of its own (no traceback shared between threads) that
    names operation, file and errno, and leads back to the first failure.
    """
    poison = Poison()
    cause = poison.trip("fdatasync", "wal/quiver.wal", OSError(5, "Input/output error"))
    raised = []
    for _ in range(2):
        with pytest.raises(Poisoned) as caught:
            poison.check()
        raised.append(caught.value)
    assert raised[0] is not raised[1]
    assert raised[0].__cause__ is cause
    assert raised[0].details == {"op": "fdatasync", "file": "wal/quiver.wal", "errno": 5}
