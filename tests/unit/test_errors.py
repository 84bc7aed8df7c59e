"""The error tree: complete, coded, and good to read."""

from __future__ import annotations

import inspect
import re

import pytest

from quiver import errors
from quiver.errors import Backpressure, Fault, LimitExceeded, QuiverError, Reason, StorageFull


def _tree(root: type[QuiverError]) -> list[type[QuiverError]]:
    # Other packages have errors of their own below it, which are none of the picture's.
    subs = [sub for sub in root.__subclasses__() if sub.__module__ == root.__module__]
    return [root, *(kind for sub in subs for kind in _tree(sub))]


TREE = _tree(QuiverError)


def test_the_picture_in_the_module_shows_the_whole_tree_and_nothing_else() -> None:
    """Scenario: an error class is added or renamed. Guarantee: the drawing still tells the truth,
    parents included."""
    drawn: dict[str, str] = {}
    stack: list[tuple[int, str]] = []
    for line in (errors.__doc__ or "").splitlines():
        match = re.match(r"    ([│├└─ ]*)([A-Z]\w+)", line)
        if match is None:
            continue
        depth, name = len(match[1]), match[2]
        stack = [item for item in stack if item[0] < depth]
        drawn[name] = stack[-1][1] if stack else ""
        stack.append((depth, name))
    real = {kind.__name__: kind.__mro__[1].__name__ for kind in TREE[1:]}
    assert drawn == {"QuiverError": "", **real}


def test_every_error_has_a_code_of_its_own() -> None:
    """Scenario: programs tell errors apart by code. Guarantee: no two kinds share one."""
    codes = [kind.code for kind in TREE]
    assert len(set(codes)) == len(codes)
    assert all(re.fullmatch(r"[a-z_]+", code) for code in codes)


def test_every_error_says_whose_fault_it_is() -> None:
    """Scenario: somebody has to act. Guarantee: each kind names who, from the fixed list."""
    assert {kind.fault for kind in TREE} <= set(Fault)
    assert all(isinstance(kind.retryable, bool) for kind in TREE)


def test_only_load_and_locks_are_worth_a_retry() -> None:
    """Scenario: a client retries what is retryable. Guarantee: never damage or bad input."""
    retryable = {kind.__name__ for kind in TREE if kind.retryable}
    assert retryable == {
        "Busy",
        "Backpressure",
        "StorageFull",
        "StoreLocked",
        "OutOfResources",
        "OutOfTurn",
        "WaitTimeout",
    }


def test_text_is_message_then_advice() -> None:
    """Scenario: an error is shown to a person. Guarantee: what happened, then what to do."""
    error = QuiverError("It broke.", advice="Mend it.", file="x")
    assert str(error) == "It broke. Mend it."
    assert error.details == {"file": "x"}
    assert str(QuiverError("It broke.")) == "It broke."


def test_a_limit_error_names_limit_value_and_maximum() -> None:
    """Scenario: input is too big. Guarantee: all three are in the text and in the details."""
    error = LimitExceeded("limits.max_bundle", 70_000_000, 67_108_864)
    assert str(error) == "limits.max_bundle is 70,000,000, the limit is 67,108,864."
    assert error.details == {
        "limit": "limits.max_bundle",
        "value": 70_000_000,
        "maximum": 67_108_864,
    }


def test_backpressure_carries_its_reason_and_when_to_retry() -> None:
    """Scenario: a put is refused for now. Guarantee: why and for how long, for both readers."""
    error = Backpressure(Reason.WAL_FULL, "the log is full", retry_after_ms=250, used=9)
    assert str(error) == "put refused: the log is full. Retry after 250 ms."
    assert error.reason is Reason.WAL_FULL
    assert error.details == {"reason": "wal_full", "retry_after_ms": 250, "used": 9}
    assert error.retryable


def test_a_full_disk_is_backpressure_with_reason_disk() -> None:
    """Scenario: ENOSPC. Guarantee: callers that handle backpressure handle it too."""
    error = StorageFull("wal/quiver.wal")
    assert isinstance(error, Backpressure)
    assert error.reason is Reason.DISK
    assert "wal/quiver.wal" in str(error)


@pytest.mark.parametrize("kind", TREE)
def test_every_error_can_be_caught_as_quiver_error(kind: type[QuiverError]) -> None:
    """Scenario: `except QuiverError`. Guarantee: it catches all that Quiver raises."""
    assert issubclass(kind, QuiverError)
    assert inspect.getmodule(kind) is errors
