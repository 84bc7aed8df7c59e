"""Whether a bundle may come in: the disk budget and the memory budget.

Asked under the ingest lock for every put, so it only looks at numbers that are kept
anyway.  What it finds out besides (write early, make room) is left here for the next
round of upkeep.
"""

from __future__ import annotations

from quiver import metrics as m
from quiver.errors import Backpressure, Reason
from quiver.ingest.disk_budget import Decision, Verdict, cost, judge
from quiver.ingest.memory_budget import RETRY_MS, MemoryShare
from quiver.ingest.parts import Parts
from quiver.units import format_size
from quiver.upkeep.sweeping import Sweeping


class Admission:
    """Says no for lack of room, and remembers what would help."""

    def __init__(self, parts: Parts, sweeping: Sweeping, memory: MemoryShare | None) -> None:
        self._parts = parts
        self._sweeping = sweeping
        self._memory = memory
        self._emergencies = parts.metrics.counter(m.SIZE_EMERGENCIES)
        self._early = False
        self._evict = False
        self._need = 0

    @property
    def is_pressed(self) -> bool:
        """Whether upkeep could help somebody right now."""
        memory = self._memory
        return self._early or self._evict or (memory is not None and memory.press)

    def take_pressure(self) -> tuple[bool, int]:
        """Whether the open segment should be written early, and the bytes that want in.

        Asked once per round: what is asked for again comes back with the next put.
        """
        memory = self._memory
        early = self._early or (memory is not None and memory.press)
        need = self._need
        self._early = self._evict = False
        self._need = 0
        return early, need

    def measure(self, *, again: bool = False) -> None:
        """Look at the memory of all stores; off the hot path."""
        if self._memory is not None:
            self._memory.measure(self._parts.clock.monotonic(), again=again)

    def refusal(self, size: int, *, logged: bool = True) -> Backpressure | None:
        """Whether so many more bytes may come in. Called with the ingest lock held.

        What is staged (``logged`` is false) is written once, not into the log as well.
        """
        if self._memory is not None and self._memory.full:
            self._early = True
            return Backpressure(
                Reason.MEMORY,
                f"open segments hold the {format_size(self._memory.cap)} of memory they may",
                retry_after_ms=RETRY_MS,
            )
        marks = self._parts.share.marks
        if marks is None:
            return None
        need = cost(size, self._parts.config.durability) if logged else size
        decision = judge(self._parts.usage(), need, marks, evictable=self._sweeping.evictable)
        if decision.verdict is Verdict.ADMIT:
            return None
        if decision.verdict is Verdict.FINALIZE_EARLY:
            self._early = True
            return None
        self._evict = True
        self._need = max(self._need, need)
        if decision.verdict is Verdict.EVICT:
            return None
        self._early = True
        self._emergencies.add()
        return self._refused(decision)

    def _refused(self, decision: Decision) -> Backpressure:
        policy = self._parts.config.retention.size_cap_policy
        return Backpressure(
            Reason.DISK,
            f"disk budget reached ({format_size(decision.used)} of"
            f" {format_size(decision.cap or 0)}), policy {policy}{self._who_holds_it()}",
            retry_after_ms=decision.retry_after_ms,
        )

    def _who_holds_it(self) -> str:
        subscribers = self._parts.registry.subscribers()
        if not subscribers:
            return "; there is no subscriber to finish anything"
        slowest = max(subscribers, key=lambda one: one.outstanding)
        if not slowest.outstanding:
            return ""
        return (
            f'; the slowest subscriber is "{slowest.name}", {slowest.outstanding:,} bundles behind'
        )
