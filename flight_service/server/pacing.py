"""How long a sender lets bundles gather before it has them committed.

On a fast disk a sync is over before the next few bundles have come, so each group is small,
and every group costs two threads their turns of the interpreter's lock: more than the sync
itself.  A producer that keeps many bundles in flight is served better by fewer, larger
groups.  One that waits for each receipt must never wait for company that can't come.

Nobody says which kind a producer is; it shows.  A pause goes on, step by step, while each
step brings company, and ends with the first that brings none: the producer's window is full,
or it has nothing more to send.  A pause whose first step brings none was a mistake, and is
not repeated for a while: for twice as many groups each time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

FEW: Final = 4
"""With fewer bundles than this waiting nothing is gained."""
STEP_SECONDS: Final = 0.0005
MAX_STEPS: Final = 4
MAX_ABSTAIN: Final = 1024
"""Groups without a pause, at most, before one is tried again."""


class Pacing:
    """Pauses before a group of one producer, where that has paid off."""

    __slots__ = ("_abstain", "_left", "_sleep")

    def __init__(self, sleep: Callable[[float], None]) -> None:
        self._sleep = sleep
        self._abstain = 1
        self._left = 0

    def pause(self, waiting: Callable[[], int]) -> None:
        """Let more bundles come; ``waiting`` tells how many could be committed by now."""
        before = waiting()
        if before < FEW:
            return
        if self._left:
            self._left -= 1
            return
        for step in range(MAX_STEPS):
            self._sleep(STEP_SECONDS)
            now = waiting()
            if now == before:
                self._learn(was_useless=step == 0)
                return
            before = now
        self._learn(was_useless=False)

    def _learn(self, *, was_useless: bool) -> None:
        if was_useless:
            self._left = self._abstain
            self._abstain = min(2 * self._abstain, MAX_ABSTAIN)
        else:
            self._abstain = 1
