"""Retention: what goes, on what ground, and what never goes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.config import RetentionConfig
from quiver.format.state import Ground
from quiver.upkeep.retention import Candidate, Eviction, EvictionPlan, evictable, finished, plan

HOUR = 3600 * 10**9
NOW = 1_000 * HOUR


def held(
    seq: int, nbytes: int = 10, *, age: float | None = 0, done: float | None = None
) -> Candidate:
    """A segment whose newest bundle is ``age`` hours old, finished ``done`` hours ago."""
    return Candidate(
        seq=seq,
        nbytes=nbytes,
        last_ts_ns=None if age is None else NOW - int(age * HOUR),
        finished_at_ns=None if done is None else NOW - int(done * HOUR),
    )


@dataclass(frozen=True)
class Case:
    """One row: the segments, the policy, the cap, and what must go."""

    why: str
    segments: list[Candidate]
    policy: dict[str, Any] = field(default_factory=dict)
    cap: int | None = None
    need: int = 0
    gone: list[tuple[int, str, bool]] = field(default_factory=list)
    """(segment, ground, dropped), in order."""
    shortfall: int = 0


CASES = [
    Case("nothing there", []),
    Case("unfinished stays, however old, while no limit is set", [held(1, age=10_000), held(2)]),
    Case(
        "finished goes at once; an unfinished one before it holds back only itself",
        [held(1), held(2, done=0), held(3, done=5), held(4)],
        gone=[(2, "steady", False), (3, "steady", False)],
    ),
    # headroom
    Case(
        "headroom keeps the newest finished that fit",
        [held(1, done=3), held(2, done=2), held(3, done=1)],
        {"steady_state_headroom": 20},
        gone=[(1, "steady", False)],
    ),
    Case(
        "headroom keeps an unbroken stretch: a small old one does not slip past a big one",
        [held(1, 5, done=3), held(2, 50, done=2), held(3, 10, done=1)],
        {"steady_state_headroom": 20},
        gone=[(1, "steady", False), (2, "steady", False)],
    ),
    Case(
        "unfinished bytes do not use up the headroom",
        [held(1, done=1), held(2, 1000)],
        {"steady_state_headroom": 10},
    ),
    # keep after finish
    Case(
        "kept for a time after the last one was done, not after it came",
        [held(1, age=9, done=2.5), held(2, age=9, done=1.5)],
        {"keep_after_finish": 2 * 3600.0},
        gone=[(1, "steady", False)],
    ),
    Case(
        "kept by size alone, without a time",
        [held(1, done=900), held(2, done=900)],
        {"keep_after_finish_bytes": 10},
        gone=[(1, "steady", False)],
    ),
    Case(
        "with time and size, within both",
        [held(1, done=1.5), held(2, done=1.2), held(3, done=1.1), held(4, done=9)],
        {"keep_after_finish": 2 * 3600.0, "keep_after_finish_bytes": 30},
        gone=[(1, "steady", False), (4, "steady", False)],
    ),
    Case(
        "headroom keeps what keep_after_finish lets go",
        [held(1, done=9), held(2, done=9)],
        {"keep_after_finish": 3600.0, "steady_state_headroom": 10},
        gone=[(1, "steady", False)],
    ),
    # time
    Case(
        "too old goes, finished or not, and the unfinished is recorded as dropped",
        [held(1, age=30), held(2, age=30, done=1), held(3, age=20)],
        {"max_retain_after_ingestion_hours": 24.0},
        gone=[(1, "time", True), (2, "time", False)],
    ),
    Case(
        "exactly at the limit is not yet too old",
        [held(1, age=24)],
        {"max_retain_after_ingestion_hours": 24.0},
    ),
    Case(
        "time wins over every keep rule",
        [held(1, age=30, done=0)],
        {
            "max_retain_after_ingestion_hours": 24.0,
            "keep_after_finish": 1e6,
            "steady_state_headroom": 1000,
        },
        gone=[(1, "time", False)],
    ),
    Case(
        "a segment without a time is older than the next one that has one",
        [held(1, age=None), held(2, age=30), held(3, age=None), held(4, age=1), held(5, age=None)],
        {"max_retain_after_ingestion_hours": 24.0},
        gone=[(1, "time", True), (2, "time", True)],
    ),
    Case(
        "a time in the future (the clock went back) is not old",
        [held(1, age=-5)],
        {"max_retain_after_ingestion_hours": 1.0},
    ),
    # size
    Case(
        "at the cap is fine",
        [held(1), held(2)],
        {"size_cap_policy": "drop_oldest"},
        cap=20,
    ),
    Case(
        "over the cap with backpressure: nothing unfinished goes, the rest is a shortfall",
        [held(1), held(2)],
        cap=15,
        shortfall=5,
    ),
    Case(
        "over the cap with drop_oldest: the oldest, recorded, no more than needed",
        [held(1), held(2), held(3)],
        {"size_cap_policy": "drop_oldest"},
        cap=20,
        gone=[(1, "size", True)],
    ),
    Case(
        "what is about to come counts",
        [held(1), held(2)],
        {"size_cap_policy": "drop_oldest"},
        cap=20,
        need=1,
        gone=[(1, "size", True)],
    ),
    Case(
        "the cap takes kept finished segments first, though they are newer",
        [held(1), held(2, done=0), held(3, done=0)],
        {"size_cap_policy": "drop_oldest", "keep_after_finish": 1e6},
        cap=20,
        gone=[(2, "size", False)],
    ),
    Case(
        "the cap takes the headroom under backpressure too",
        [held(1, done=0), held(2)],
        {"steady_state_headroom": 100},
        cap=10,
        gone=[(1, "size", False)],
    ),
    Case(
        "what time and the steady sweep free need not be dropped",
        [held(1, age=30), held(2, done=0), held(3), held(4)],
        {"max_retain_after_ingestion_hours": 24.0, "size_cap_policy": "drop_oldest"},
        cap=20,
        gone=[(1, "time", True), (2, "steady", False)],
    ),
    Case(
        "all three at once",
        [held(1, age=30), held(2), held(3, done=0), held(4), held(5)],
        {"max_retain_after_ingestion_hours": 24.0, "size_cap_policy": "drop_oldest"},
        cap=25,
        gone=[(1, "time", True), (3, "steady", False), (2, "size", True)],
    ),
    Case(
        "the log alone is over the cap: all may go and it is still not enough",
        [held(1)],
        {"size_cap_policy": "drop_oldest"},
        cap=20,
        need=25,
        gone=[(1, "size", True)],
        shortfall=5,
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.why)
def test_the_table(case: Case) -> None:
    """Scenario: one row of the table. Guarantee: exactly these go, in this order, on this ground,
    and what is still missing is reported."""
    result = plan(
        case.segments,
        RetentionConfig(**case.policy),
        NOW,
        used=sum(segment.nbytes for segment in case.segments),
        cap=case.cap,
        need=case.need,
    )
    assert [(e.seq, e.ground.value, e.dropped) for e in result.evictions] == case.gone
    assert result.shortfall == case.shortfall


@pytest.mark.parametrize(
    ("done", "answer"),
    [([], False), ([True], True), ([True, False], False), ([True, True], True)],
)
def test_finished_means_everybody_and_somebody(done: list[bool], answer: bool) -> None:
    """Scenario: the subscribers of a store, perhaps none. Guarantee: with nobody registered
    nothing is finished: data waits for its first subscriber."""
    assert finished(done) is answer


# ------------------------------------------------------------------ properties


@st.composite
def stores(draw: st.DrawFn) -> list[Candidate]:
    """Segments as a store has them: numbers rise, times never fall, some files say none."""
    count = draw(st.integers(0, 12))
    ages = sorted(draw(st.lists(st.integers(0, 100), min_size=count, max_size=count)), reverse=True)
    return [
        held(
            seq * 3,
            draw(st.integers(1, 100)),
            age=draw(st.sampled_from([age, None])),
            done=draw(st.none() | st.integers(0, age)),
        )
        for seq, age in enumerate(ages)
    ]


policies = st.builds(
    RetentionConfig,
    size_cap_policy=st.sampled_from(["backpressure", "drop_oldest"]),
    max_retain_after_ingestion_hours=st.none() | st.integers(1, 100).map(float),
    keep_after_finish=st.none() | st.integers(1, 100).map(lambda hours: hours * 3600.0),
    keep_after_finish_bytes=st.none() | st.integers(1, 300),
    steady_state_headroom=st.integers(0, 300),
)
caps = st.none() | st.integers(0, 800)
other = st.integers(0, 200)
"""Bytes that are no segment's: the log, the reserve."""


def _plan(
    segments: list[Candidate], policy: RetentionConfig, cap: int | None, log: int
) -> tuple[EvictionPlan, int]:
    used = log + sum(segment.nbytes for segment in segments)
    return plan(segments, policy, NOW, used=used, cap=cap), used


@given(stores(), policies, caps, other)
def test_unfinished_data_goes_only_by_time_or_drop_oldest_and_on_record(
    segments: list[Candidate], policy: RetentionConfig, cap: int | None, log: int
) -> None:
    """Scenario: any store, any policy. Guarantee: an unfinished segment goes only if an age limit
    or drop_oldest says so, and is then marked as dropped; a finished one never is."""
    by_seq = {segment.seq: segment for segment in segments}
    for eviction in _plan(segments, policy, cap, log)[0].evictions:
        unfinished = by_seq[eviction.seq].finished_at_ns is None
        assert eviction.dropped is unfinished
        if unfinished:
            by_time = eviction.ground is Ground.TIME and policy.max_age is not None
            by_size = eviction.ground is Ground.SIZE and policy.size_cap_policy == "drop_oldest"
            assert by_time or by_size


@given(stores(), policies, caps, other)
def test_each_goes_once_and_sizes_add_up(
    segments: list[Candidate], policy: RetentionConfig, cap: int | None, log: int
) -> None:
    """Scenario: any store, any policy. Guarantee: no segment twice, none invented, and used -
    freed - shortfall is within the cap."""
    result, used = _plan(segments, policy, cap, log)
    gone = [eviction.seq for eviction in result.evictions]
    assert len(set(gone)) == len(gone)
    assert set(gone) <= {segment.seq for segment in segments}
    if cap is not None:
        assert used - result.freed - result.shortfall <= cap


@given(stores(), policies, caps, other)
def test_the_cap_never_takes_more_than_needed(
    segments: list[Candidate], policy: RetentionConfig, cap: int | None, log: int
) -> None:
    """Scenario: any store over its cap. Guarantee: without the last eviction by size it would
    still be over; no unfinished one goes while a finished one remains; oldest first."""
    result, used = _plan(segments, policy, cap, log)
    by_size = [e for e in result.evictions if e.ground is Ground.SIZE]
    if not by_size:
        return
    assert cap is not None
    assert used - (result.freed - by_size[-1].nbytes) > cap
    gone = {e.seq for e in result.evictions}
    if any(e.dropped for e in by_size):
        assert all(s.finished_at_ns is None for s in segments if s.seq not in gone)
    for dropped in (False, True):
        order = [e.seq for e in by_size if e.dropped is dropped]
        assert order == sorted(order)


@given(stores(), policies, caps, other)
def test_a_shortfall_means_that_nothing_more_may_go(
    segments: list[Candidate], policy: RetentionConfig, cap: int | None, log: int
) -> None:
    """Scenario: puts are told to wait. Guarantee: only after all that may go has gone."""
    result, _ = _plan(segments, policy, cap, log)
    if result.shortfall:
        gone = {eviction.seq for eviction in result.evictions}
        left = [segment for segment in segments if segment.seq not in gone]
        assert evictable(left, policy) == 0


@given(stores(), policies, caps, other)
def test_a_plan_carried_out_leaves_nothing_to_do(
    segments: list[Candidate], policy: RetentionConfig, cap: int | None, log: int
) -> None:
    """Scenario: the sweep runs again at once. Guarantee: the second plan is empty: no rule undoes
    or follows up another."""
    first, _ = _plan(segments, policy, cap, log)
    gone = {eviction.seq for eviction in first.evictions}
    left = [segment for segment in segments if segment.seq not in gone]
    second, _ = _plan(left, policy, cap, log)
    assert second == EvictionPlan((), first.shortfall)


@given(stores(), policies)
def test_nobody_registered_nothing_finished(
    segments: list[Candidate], policy: RetentionConfig
) -> None:
    """Scenario: no subscriber, so nothing is finished. Guarantee: the steady sweep takes
    nothing."""
    unfinished = [held(s.seq, s.nbytes, age=1) for s in segments]
    evictions: tuple[Eviction, ...] = plan(unfinished, policy, NOW, used=0, cap=None).evictions
    assert all(e.ground is not Ground.STEADY for e in evictions)
