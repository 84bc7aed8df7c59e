"""How long a sender lets bundles gather before it has them committed.

On a fast disk a sync is over before the next few bundles have come, so each group is small,
and every group costs two threads their turns of the interpreter's lock: more than the sync
itself.  A producer that keeps many bundles in flight is served better by fewer, larger
groups.  One that waits for each receipt must never wait for company that can't come.

Nobody says which kind a producer is; it shows.  A pause that brings company is worth the
next one.  A pause that brings none was a mistake, and is not repeated for a while: for
twice as many groups each time.
"""

from __future__ import annotations

from typing import Final

FEW: Final = 4
"""With fewer bundles than this waiting nothing is gained."""
PAUSE_SECONDS: Final = 0.001
MAX_ABSTAIN: Final = 1024
"""Groups without a pause, at most, before one is tried again."""


class Pacing:
    """Decides on a pause before each group of one producer; told what came of it."""

    __slots__ = ("_abstain", "_left")

    def __init__(self) -> None:
        self._abstain = 1
        self._left = 0

    def pause(self, waiting: int) -> float:
        """Seconds to wait, with so many bundles that could be committed now."""
        if waiting < FEW:
            return 0.0
        if self._left:
            self._left -= 1
            return 0.0
        return PAUSE_SECONDS

    def brought(self, waiting: int, more: int) -> None:
        """A pause with ``waiting`` bundles brought so many ``more``."""
        if more >= waiting // FEW:
            self._abstain = 1
        else:
            self._left = self._abstain
            self._abstain = min(2 * self._abstain, MAX_ABSTAIN)
