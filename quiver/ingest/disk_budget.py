"""What may come in: one disk budget, shared by the engines of a process.

Each engine registers a :class:`Share` and asks :func:`judge` before it takes a bundle::

    0 ─────────────── early ────────────── soft ─────────────── hard
        ADMIT           │   FINALIZE_EARLY   │  EVICT or REFUSE   │  REFUSE

    ADMIT           come in
    FINALIZE_EARLY  come in, and close the open segment soon, so that it can be cleaned up
                    (only if it is at least half full: small segments would help nobody)
    EVICT           come in, and make room now: something can go
    REFUSE          backpressure: nothing can go, or it has to go first

What counts is not only what is on disk but also what is bound for it: a bundle in an
open segment will be written once more, into a segment file.  The distance from soft to
hard (one segment) covers what can't be foreseen: file overhead, files not yet deleted.

The cap is split evenly and statically among the shares, and an engine's own
``retention.size_cap`` holds as well where it is less: no coordination when a bundle
comes in, at the price that one engine may wait while another has room.  All shares and
their use can be seen in one place (:meth:`DiskBudget.shares`), where a fairer split
would start.  The sum of the shares never exceeds the cap.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from quiver.config import Config, smallest_cap
from quiver.errors import ConfigError
from quiver.forking import guard
from quiver.units import format_size

MIN_RETRY_MS: Final = 50
DEFAULT_RETRY_MS: Final = 500
MAX_SHARES: Final = 10_000


class Verdict(StrEnum):
    """What to do with a bundle that wants in."""

    ADMIT = "admit"
    FINALIZE_EARLY = "finalize_early"
    EVICT = "evict"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class Usage:
    """Bytes of one store, by where they are."""

    segments: int = 0
    log: int = 0
    reserve: int = 0
    stages: int = 0
    """Staged files: not committed, or not segments yet."""
    unwritten: int = 0
    """Payload in memory whose segment file is still to be written."""

    @property
    def on_disk(self) -> int:
        return self.segments + self.log + self.reserve + self.stages

    @property
    def committed(self) -> int:
        """On disk now or bound to be."""
        return self.on_disk + self.unwritten


@dataclass(frozen=True, slots=True)
class Watermarks:
    """The three levels of a share; see the picture above."""

    hard: int
    soft: int
    early: int

    @classmethod
    def of(cls, cap: int, segment_target: int) -> Watermarks:
        """Soft is a segment below the cap, early another: what one finalize takes."""
        soft = max(cap - segment_target, 0)
        return cls(hard=cap, soft=soft, early=max(soft - segment_target, 0))


@dataclass(frozen=True, slots=True)
class Decision:
    """The verdict, with what an error message needs."""

    verdict: Verdict
    used: int
    cap: int | None
    retry_after_ms: int = 0


def cost(nbytes: int, durability: str) -> int:
    """Bytes a bundle will take: in its segment file and, with a log, there as well."""
    return 2 * nbytes if durability == "wal" else nbytes


def judge(
    usage: Usage,
    need: int,
    marks: Watermarks | None,
    *,
    evictable: int = 0,
) -> Decision:
    """Whether ``need`` more bytes (see :func:`cost`) may come in.

    ``evictable``: bytes that retention could free if it had to.  Without ``marks`` there is no
    limit.
    """
    used = usage.committed
    if marks is None:
        return Decision(Verdict.ADMIT, used, None)
    after = used + need
    if after <= marks.early:
        return Decision(Verdict.ADMIT, used, marks.hard)
    if after <= marks.soft:
        large = 2 * usage.unwritten >= marks.hard - marks.soft
        verdict = Verdict.FINALIZE_EARLY if large else Verdict.ADMIT
        return Decision(verdict, used, marks.hard)
    if after <= marks.hard and evictable > 0:
        return Decision(Verdict.EVICT, used, marks.hard)
    wait = MIN_RETRY_MS if evictable > 0 else DEFAULT_RETRY_MS
    return Decision(Verdict.REFUSE, used, marks.hard, wait)


class Share:
    """One engine's part of the budget. Reading it takes no lock."""

    __slots__ = ("_budget", "_own", "_target", "marks", "minimum", "name")

    def __init__(
        self,
        budget: DiskBudget,
        name: str,
        minimum: int,
        segment_target: int,
        own: int | None = None,
    ) -> None:
        self._budget = budget
        self._target = segment_target
        self._own = own  # the engine's own cap: a part of a budget can only be less
        self.name = name
        self.minimum = minimum
        self.marks: Watermarks | None = None

    @property
    def cap(self) -> int | None:
        return None if self.marks is None else self.marks.hard

    def close(self) -> None:
        """Give the share back; the others grow. Fine to call twice."""
        self._budget.deregister(self)

    def _resize(self, part: int | None) -> None:
        cap = min((one for one in (part, self._own) if one is not None), default=None)
        # One reference, replaced as a whole: a reader sees the old levels or the new ones.
        self.marks = None if cap is None else Watermarks.of(cap, self._target)


class DiskBudget:
    """A hard cap on disk space, split among the engines that registered."""

    def __init__(self, cap: int | None = None) -> None:
        if cap is not None and cap < 1:
            raise ConfigError(f"a disk budget of {cap} bytes holds nothing.", value=cap)
        self.cap = cap
        self._lock = threading.Lock()
        self._shares: dict[str, Share] = {}
        guard(self)

    def register(self, name: str, config: Config) -> Share:
        """A share for one engine; refused if it, or another, could not work in its part."""
        with self._lock:
            if name in self._shares:
                raise ConfigError(f"{name!r} has a share of this disk budget already.", name=name)
            if len(self._shares) >= MAX_SHARES:
                raise ConfigError(f"a disk budget has at most {MAX_SHARES:,} shares.")
            share = Share(
                self,
                name,
                smallest_cap(config),
                config.segment.target_size,
                config.retention.size_cap,
            )
            self._check_fits([*self._shares.values(), share])
            self._shares[name] = share
            self._split()
        return share

    def deregister(self, share: Share) -> None:
        with self._lock:
            if self._shares.get(share.name) is share:
                del self._shares[share.name]
                self._split()

    def shares(self) -> list[Share]:
        """All shares, by name."""
        return [share for _, share in sorted(self._shares.copy().items())]

    def _check_fits(self, shares: list[Share]) -> None:
        if self.cap is None:
            return
        part = self.cap // len(shares)
        largest = max(shares, key=lambda share: share.minimum)
        if part < largest.minimum:
            raise ConfigError(
                f"a disk budget of {format_size(self.cap)} gives each of {len(shares)} stores"
                f" {format_size(part)}; {largest.name!r} needs {format_size(largest.minimum)}.",
                advice="Raise the budget, or lower wal.max_size and segment.target_size.",
                setting="retention.size_cap",
                value=self.cap,
            )

    def _split(self) -> None:
        part = None if self.cap is None or not self._shares else self.cap // len(self._shares)
        for share in self._shares.values():
            share._resize(part)
