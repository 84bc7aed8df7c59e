"""How a store is doing, as one value: for people (``print``) and for programs (JSON)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum

from quiver.disk.descriptors import DESCRIPTORS
from quiver.format.state import Loss
from quiver.ids import BundleRef
from quiver.ingest.disk_budget import Usage
from quiver.ingest.parts import Parts
from quiver.recovery.recover import Report
from quiver.store.membership import Membership
from quiver.subscriber.lag import Lag
from quiver.units import format_size
from quiver.upkeep.upkeep import Upkeep
from quiver.wal.writer import WalWriter


class State(StrEnum):
    """How much a store can be relied on."""

    OK = "ok"
    DEGRADED = "degraded"  # it works; something was lost, or a segment can't be written
    POISONED = "poisoned"  # reads only, until a restart


@dataclass(frozen=True, slots=True)
class LogStatus:
    """The log."""

    files: int
    nbytes: int
    unsynced_bytes: int

    @classmethod
    def of(cls, wal: WalWriter | None) -> LogStatus | None:
        return None if wal is None else cls(wal.file_count, wal.bytes_on_disk, wal.staged_bytes)


@dataclass(frozen=True, slots=True)
class SubscriberStatus:
    """One subscriber."""

    name: str
    status: str
    lag: Lag
    claimed: int
    oldest: BundleRef | None
    """The oldest bundle it has not finished."""


@dataclass(frozen=True, slots=True)
class StoreStatus:
    """A store at one moment. Parts of it may be a moment apart: nothing waits for this."""

    where: str
    state: State
    problems: tuple[str, ...]
    bundles: int
    """Bundles that can be read."""
    segments: int
    """Segment files."""
    unwritten_segments: int
    stages: int
    """Staged writes that are neither committed nor aborted."""
    next_segment: int
    next_sequence: int
    durable_before: int
    usage: Usage
    cap: int | None
    log: LogStatus | None
    subscribers: tuple[SubscriberStatus, ...]
    losses: tuple[Loss, ...]
    loss_totals: Mapping[str, int]
    recovery: Report

    def as_dict(self) -> dict[str, object]:
        """Plain values, ready for ``json.dumps``."""
        return {
            **asdict(self),
            "state": str(self.state),
            "usage": {
                **asdict(self.usage),
                # 0.1.0 told here what was deleted and still read; it counts as segments now.
                "mapped": 0,
                "on_disk": self.usage.on_disk,
                "committed": self.usage.committed,
            },
        }

    def __str__(self) -> str:
        usage = self.usage
        limit = "" if self.cap is None else f" of {format_size(self.cap)}"
        places = f"segments {format_size(usage.segments)}, log {format_size(usage.log)}"
        where = f"{self.segments:,} segments and {self.unwritten_segments} unwritten"
        lines = [
            f"{self.where}: {self.state}",
            f"  bundles      {self.bundles:,} in {where}",
            f"  on disk      {format_size(usage.on_disk)}{limit}: {places}",
        ]
        if self.stages:
            lines.append(f"  staged       {self.stages:,} writes, {format_size(usage.stages)}")
        lines += [
            f"  subscriber   {one.name} ({one.status}): {one.lag.bundles:,} bundles,"
            f" {format_size(one.lag.nbytes)}, {one.lag.age_seconds:,.0f} s behind"
            for one in self.subscribers
        ]
        lines += [f"  problem      {problem}" for problem in self.problems]
        return "\n".join(lines)


def take_status(
    where: str, parts: Parts, upkeep: Upkeep, members: Membership, report: Report
) -> StoreStatus:
    """Look at every part; takes no lock that a put needs for longer than a moment."""
    poison = parts.disk.poison.cause
    problems = list(upkeep.records.problems)
    if upkeep.records.disk_full:
        problems.append("the disk is full")
    headroom = DESCRIPTORS.headroom()
    if headroom.is_low:
        problems.append(headroom.describe())
    if poison is not None:
        problems.insert(0, str(poison))
    ok = State.DEGRADED if problems else State.OK
    return StoreStatus(
        where=where,
        state=State.POISONED if poison is not None else ok,
        problems=tuple(problems),
        bundles=sum(count for _, count in parts.segments.visible()),
        segments=len(parts.segments),
        unwritten_segments=parts.segments.in_memory,
        stages=len(parts.stages),
        next_segment=parts.segments.next_segment,
        next_sequence=parts.ingest.next_sequence,
        durable_before=parts.ingest.durable_before,
        usage=parts.usage(),
        cap=parts.share.cap,
        log=LogStatus.of(parts.wal),
        subscribers=tuple(
            SubscriberStatus(one.name, str(one.status), members.lag(one), one.claimed, one.frontier)
            for one in parts.registry.subscribers()
        ),
        losses=parts.ledger.losses,
        loss_totals=parts.ledger.totals,
        recovery=report,
    )
