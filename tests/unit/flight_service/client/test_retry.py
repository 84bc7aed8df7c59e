"""Trying again, and giving up."""

from __future__ import annotations

import pytest

from flight_service.client.errors import (
    AccessDenied,
    Backpressure,
    BadRequest,
    ClientError,
    Disconnected,
    Expired,
    NotFound,
    Rejected,
    Rejection,
    ServerFault,
    Timeout,
    by_code,
    lost,
    typed,
)
from flight_service.client.retry import Backoff, Retry, call


class Time:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_waits_grow_to_the_maximum_with_jitter() -> None:
    """Failure after failure: each wait in the upper half of its step, none above the cap."""
    backoff = Backoff(Retry(0.1, 1.0, None), Time(), seed=1)
    waits = [backoff.after(lost("gone")) for _ in range(2000)]
    for step, wait in enumerate(waits[:6]):
        full = min(0.1 * 2**step, 1.0)
        assert full / 2 <= wait <= full
    assert 0.5 <= min(waits[4:]) <= max(waits[4:]) <= 1.0


def test_the_servers_word_counts() -> None:
    """retry_after_ms is longer than our own wait: the server's is taken."""
    error = by_code("backpressure", "full", details={"retry_after_ms": 2500})
    assert Backoff(Retry(), Time()).after(error) == 2.5


def test_gives_up_when_there_is_no_progress_for_too_long() -> None:
    """Ten seconds without success end it with the last error; success starts anew."""
    time = Time()
    backoff = Backoff(Retry(give_up_after=10.0), time)
    backoff.after(lost("one"))
    time.now = 9.9
    backoff.after(lost("two"))
    backoff.reset()
    time.now = 19.8
    backoff.after(lost("three"))
    time.now = 29.9
    with pytest.raises(Disconnected, match="four"):
        backoff.after(lost("four"))


def test_what_can_not_get_better_is_not_tried_again() -> None:
    """A refusal for good is raised at the first time."""
    tries = []

    def work() -> None:
        tries.append(1)
        raise by_code("forbidden", "no")

    with pytest.raises(AccessDenied):
        call(work, Retry(), lambda seconds: None)
    assert len(tries) == 1


def test_call_goes_on_until_it_works() -> None:
    """Two lost connections, then an answer: two waits, and the answer."""
    waits: list[float] = []
    outcomes: list[Exception | str] = [lost("a"), OSError("b"), "answer"]

    def work() -> str:
        outcome = outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    assert call(work, Retry(), waits.append) == "answer"
    assert len(waits) == 2


def test_a_policy_that_makes_no_sense_is_refused() -> None:
    """initial above maximum, or nothing at all."""
    for bad in [(0.0, 1.0), (2.0, 1.0)]:
        with pytest.raises(ValueError, match="initial"):
            Retry(*bad)


@pytest.mark.parametrize(
    ("code", "kind", "retryable"),
    [
        ("backpressure", Backpressure, True),
        ("draining", Backpressure, True),
        ("unavailable", Disconnected, True),
        ("timeout", Timeout, True),
        ("unauthenticated", AccessDenied, False),
        ("forbidden", AccessDenied, False),
        ("unknown_stream", NotFound, False),
        ("expired", Expired, False),
        ("poisoned", ServerFault, False),
        ("invalid_name", BadRequest, False),
        ("a_code_of_tomorrow", BadRequest, False),
    ],
)
def test_each_code_has_its_class(code: str, kind: type[ClientError], retryable: bool) -> None:
    """Programs catch classes: the code decides which."""
    error = by_code(code, "text")
    assert type(error) is kind
    assert error.retryable is retryable


def test_an_error_of_ours_stays_as_it_is() -> None:
    """Typed twice is typed once."""
    error = lost("x")
    assert typed(error) is error
    assert isinstance(typed(OSError("reset")), Disconnected)
    assert type(typed(ValueError("ours"))) is ServerFault


def test_many_rejections_make_a_short_message() -> None:
    """Seven rejections: five spelt out, the others counted."""
    error = Rejected([Rejection(f"k{n}", "invalid_bundle", "broken") for n in range(7)])
    assert "7 bundles were rejected: k0: broken (invalid_bundle)" in str(error)
    assert "and 2 more" in str(error)
    assert "k5" not in str(error)
    assert str(Rejected([Rejection("k", "c", "r")])) == "a bundle was rejected: k: r (c)"
