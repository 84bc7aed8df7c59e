"""The loss ledger: what went before everyone had finished it, and why. On record.

Bounded: the newest :data:`MAX_ENTRIES` are kept one by one, the totals for ever.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from typing import Final

from quiver.format.state import Loss

MAX_ENTRIES: Final = 1000


class Ledger:
    """Losses in the order they happened."""

    def __init__(
        self, losses: Iterable[Loss] = (), totals: Mapping[str, int] | None = None
    ) -> None:
        self._losses: deque[Loss] = deque(losses, maxlen=MAX_ENTRIES)
        self._totals: Counter[str] = Counter(totals or {})
        self.dirty = False

    def record(self, loss: Loss) -> None:
        """Write a loss down; it is durable once the checkpoint is."""
        self._losses.append(loss)
        self._totals[f"{loss.reason}.segments"] += 1
        self._totals[f"{loss.reason}.bundles"] += loss.bundles
        self._totals[f"{loss.reason}.bytes"] += loss.nbytes
        self.dirty = True

    @property
    def losses(self) -> tuple[Loss, ...]:
        return tuple(self._losses)

    @property
    def totals(self) -> dict[str, int]:
        return dict(self._totals)

    def __contains__(self, segment_seq: int) -> bool:
        return any(loss.segment_seq == segment_seq for loss in self._losses)
