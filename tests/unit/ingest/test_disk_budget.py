"""The disk budget: who may come in, and how one cap is shared."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.config import Config, smallest_cap
from quiver.errors import ConfigError
from quiver.ingest.disk_budget import (
    MIN_RETRY_MS,
    DiskBudget,
    Usage,
    Verdict,
    Watermarks,
    cost,
    judge,
)

MARKS = Watermarks.of(cap=1000, segment_target=100)
CONFIG = Config()
NEED = smallest_cap(CONFIG)


def test_watermarks_lie_one_segment_apart() -> None:
    """Scenario: a cap and a segment size. Guarantee: hard at the cap, soft and early below it;
    never negative."""
    assert (MARKS.early, MARKS.soft, MARKS.hard) == (800, 900, 1000)
    assert Watermarks.of(50, 100) == Watermarks(hard=50, soft=0, early=0)


@pytest.mark.parametrize(
    ("used", "need", "unwritten", "evictable", "verdict"),
    [
        (0, 800, 0, 0, Verdict.ADMIT),
        (790, 10, 50, 0, Verdict.ADMIT),
        (790, 11, 50, 0, Verdict.FINALIZE_EARLY),
        (790, 11, 49, 0, Verdict.ADMIT),  # the open segment is too small to be worth it
        (890, 10, 100, 0, Verdict.FINALIZE_EARLY),
        (890, 11, 100, 0, Verdict.REFUSE),  # over soft, nothing can go
        (890, 11, 100, 1, Verdict.EVICT),  # over soft, something can
        (990, 10, 0, 1, Verdict.EVICT),
        (990, 11, 0, 500, Verdict.REFUSE),  # over hard: it has to go first
    ],
)
def test_the_verdict_by_level(
    used: int, need: int, unwritten: int, evictable: int, verdict: Verdict
) -> None:
    """Scenario: usage at each side of each level. Guarantee: the documented verdict."""
    usage = Usage(segments=used - unwritten, unwritten=unwritten)
    decision = judge(usage, need, MARKS, evictable=evictable)
    assert decision.verdict is verdict
    assert (decision.retry_after_ms > 0) is (verdict is Verdict.REFUSE)
    assert (decision.used, decision.cap) == (used, 1000)


def test_without_a_cap_everything_comes_in() -> None:
    """Scenario: no budget set. Guarantee: never refused."""
    decision = judge(Usage(segments=10**18), 10**18, None)
    assert decision.verdict is Verdict.ADMIT
    assert decision.cap is None


@given(
    st.builds(Usage, *[st.integers(0, 400)] * 5),
    st.integers(0, 500),
    st.integers(0, 1000),
)
def test_what_comes_in_fits_under_the_cap(usage: Usage, need: int, evictable: int) -> None:
    """Scenario: any usage. Guarantee: admitted means that all that is on disk or bound for it,
    this bundle included, fits under the hard cap."""
    decision = judge(usage, need, MARKS, evictable=evictable)
    if decision.verdict is not Verdict.REFUSE:
        assert usage.committed + need <= MARKS.hard


def test_all_that_takes_disk_space_counts() -> None:
    """Scenario: segments, log, reserve, staged files. Guarantee: all on disk; what is unwritten
    is bound for it."""
    usage = Usage(segments=1, log=10, reserve=100, stages=1000, unwritten=10_000)
    assert usage.on_disk == 1111
    assert usage.committed == 11_111


def test_a_bundle_is_written_twice_where_there_is_a_log() -> None:
    """Scenario: the same bundle with and without a log. Guarantee: its real price."""
    assert cost(100, "wal") == 200
    assert cost(100, "segment_only") == 100


def test_a_refusal_with_something_to_evict_is_short() -> None:
    """Scenario: over hard while eviction is possible. Guarantee: retry soon."""
    assert judge(Usage(segments=1000), 1, MARKS, evictable=5).retry_after_ms == MIN_RETRY_MS


# ------------------------------------------------------------------ sharing


def test_the_cap_is_split_evenly_and_regrows() -> None:
    """Scenario: engines come and go. Guarantee: equal parts at every moment, never more than the
    cap together."""
    budget = DiskBudget(3 * NEED)
    first = budget.register("a", CONFIG)
    assert first.cap == 3 * NEED
    second = budget.register("b", CONFIG)
    third = budget.register("c", CONFIG)
    assert [share.cap for share in budget.shares()] == [NEED, NEED, NEED]
    second.close()
    second.close()
    assert first.cap == third.cap == 3 * NEED // 2
    assert [share.name for share in budget.shares()] == ["a", "c"]


def test_a_share_too_small_to_work_in_is_refused() -> None:
    """Scenario: one engine too many. Guarantee: refused with what is needed; the others keep
    their parts."""
    budget = DiskBudget(2 * NEED)
    budget.register("a", CONFIG)
    budget.register("b", CONFIG)
    with pytest.raises(ConfigError, match="needs") as caught:
        budget.register("c", CONFIG)
    assert caught.value.details["setting"] == "retention.size_cap"
    assert [share.cap for share in budget.shares()] == [NEED, NEED]


def test_a_newcomer_cannot_squeeze_out_a_bigger_neighbour() -> None:
    """Scenario: a small store joins one that needs more than half. Guarantee: refused: a running
    store keeps room to work."""
    budget = DiskBudget(NEED + NEED // 2)
    budget.register("big", CONFIG)
    small = Config.load(env={}, durability="segment_only", segment__target_size="1MiB")
    with pytest.raises(ConfigError, match="'big' needs"):
        budget.register("small", small)


def test_a_name_has_one_share() -> None:
    """Scenario: the same store registers twice. Guarantee: refused; closing a stale share of the
    same name doesn't take the new one's."""
    budget = DiskBudget(10 * NEED)
    old = budget.register("a", CONFIG)
    with pytest.raises(ConfigError, match="already"):
        budget.register("a", CONFIG)
    old.close()
    new = budget.register("a", CONFIG)
    old.close()
    assert budget.shares() == [new]


def test_without_a_cap_shares_have_no_limit() -> None:
    """Scenario: a budget without a cap. Guarantee: no levels, any number of stores."""
    share = DiskBudget().register("a", CONFIG)
    assert share.cap is None
    assert share.marks is None


def test_a_budget_of_nothing_is_refused() -> None:
    """Scenario: cap 0. Guarantee: refused at once, not at the first put."""
    with pytest.raises(ConfigError):
        DiskBudget(0)


def test_a_stores_own_cap_holds_within_a_shared_budget() -> None:
    """Scenario: a store with a cap of its own shares a budget, with and without a limit.
    Guarantee: the smaller of the two holds; sharing never lifts a cap."""
    capped = Config.load(env={}, retention__size_cap="1GiB")
    assert DiskBudget(None).register("a", capped).cap == 2**30
    budget = DiskBudget(3 * 2**30)
    share = budget.register("a", capped)
    assert share.cap == 2**30
    for name in "bcdef":
        budget.register(name, CONFIG)
    assert share.cap == 2**29
