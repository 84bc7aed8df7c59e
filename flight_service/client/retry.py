"""Trying again: how long to wait, and when to give up.

Waits grow from ``initial`` to ``maximum``, each drawn at random from its upper half, so
that a thousand clients of a server that comes back don't come back at once.  A server
that says ``retry_after_ms`` is waited for at least that long.  Progress resets both the
wait and the time until giving up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from flight_service.client.errors import ClientError, typed

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Retry:
    """A policy: seconds, all of them.  ``give_up_after=None`` never gives up."""

    initial: float = 0.05
    maximum: float = 2.0
    give_up_after: float | None = 300.0

    def __post_init__(self) -> None:
        if not 0 < self.initial <= self.maximum:
            raise ValueError("Retry: 0 < initial <= maximum")


class Backoff:
    """Where one caller stands with its policy."""

    def __init__(
        self, policy: Retry, clock: Callable[[], float] = time.monotonic, seed: int | None = None
    ) -> None:
        self._policy = policy
        self._clock = clock
        import random  # here: with the hash functions it brings it is slow to import

        self._random = random.Random(seed)
        self.failures = 0
        self._since: float | None = None

    def reset(self) -> None:
        """Something went well."""
        self.failures = 0
        self._since = None

    def after(self, error: ClientError) -> float:
        """Seconds to wait after this failure; raises it if a retry can't help any more."""
        now = self._clock()
        if self._since is None:
            self._since = now
        limit = self._policy.give_up_after
        if not error.retryable or (limit is not None and now - self._since >= limit):
            raise error
        # 2.0 ** 1024 would overflow; the cap is reached long before.
        grown = self._policy.initial * 2.0 ** min(self.failures, 30)
        self.failures += 1
        wait = min(grown, self._policy.maximum) * self._random.uniform(0.5, 1.0)
        return max(wait, (error.retry_after_ms or 0) / 1000)


def call(work: Callable[[], T], policy: Retry, wait: Callable[[float], object]) -> T:
    """Do ``work`` until it succeeds, fails for good, or the policy gives up."""
    backoff = Backoff(policy)
    while True:
        try:
            return work()
        except Exception as error:
            wait(backoff.after(typed(error)))
