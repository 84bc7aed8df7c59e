"""The end of the store that is still in memory: the open segment and those behind it.

A bundle enters the tail when it is staged for the log, is shown to subscribers when its
log entry is durable, and leaves when its segment's file is.  All changes are made under
the ingest lock; :meth:`Tail.find` needs none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from quiver.config import SegmentConfig
from quiver.format.commit import Commit
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.ids import BundleRef
from quiver.segment.accumulator import OpenSegment


class Trigger(StrEnum):
    """Why a segment was closed; also the ``trigger`` label of its counter."""

    SIZE = "size"
    BUNDLES = "bundles"
    STREAMS = "streams"
    VARIANTS = "variants"
    ROWS = "rows"
    AGE = "age"
    FLUSH = "flush"
    PRESSURE = "pressure"
    COMMIT = "commit"
    SHUTDOWN = "shutdown"
    RECOVERY = "recovery"


@dataclass(slots=True)
class _Member:
    segment: OpenSegment
    durable: int = 0
    rows: int = 0
    trigger: Trigger = Trigger.RECOVERY


@dataclass(slots=True)
class _Reserved:
    """Numbers that a commit took for staged files, which are not segments yet."""

    commit: Commit
    durable: bool


def full_by(segment: OpenSegment, rows: int, config: SegmentConfig) -> Trigger | None:
    """Which of its limits a segment has reached, if any."""
    if segment.nbytes >= config.target_size:
        return Trigger.SIZE
    if segment.bundle_count >= config.max_bundles:
        return Trigger.BUNDLES
    if segment.stream_count >= config.max_streams:
        return Trigger.STREAMS
    if segment.variant_count >= config.max_variants:
        return Trigger.VARIANTS
    if config.max_rows is not None and rows >= config.max_rows:
        return Trigger.ROWS
    return None


class Tail:
    """Open and closed segments in memory, oldest first, and committed ones between them."""

    def __init__(self, config: SegmentConfig, next_segment: int) -> None:
        self._config = config
        self._members: list[_Member] = []
        self._reserved: list[_Reserved] = []
        self._open: OpenSegment | None = None
        self.next_segment = next_segment
        self.nbytes = 0
        self.durable_bytes = 0
        """Payload that became durable here, in all: only rises."""

    @property
    def open(self) -> OpenSegment | None:
        """The segment that takes bundles, if there is one."""
        return self._open

    @property
    def closed(self) -> list[OpenSegment]:
        """Closed segments that wait to be written, oldest first."""
        return [m.segment for m in self._members if m.segment is not self._open]

    @property
    def commits(self) -> list[Commit]:
        """Commits whose staged files are still to become segments, oldest first."""
        return [one.commit for one in self._reserved]

    @property
    def has_work(self) -> bool:
        """Whether something waits to be written, or to be made a segment."""
        return bool(self._reserved) or any(m.segment is not self._open for m in self._members)

    def next_closed(self) -> OpenSegment | Commit | None:
        """What becomes a file next: they do so in the order of their numbers."""
        closed = self.closed
        commit = self._reserved[0].commit if self._reserved else None
        if commit is None or (closed and closed[0].seq < commit.first_segment):
            return closed[0] if closed else None
        return commit

    @property
    def segment_count(self) -> int:
        return len(self._members)

    def adopt(self, recovered: Iterable[OpenSegment]) -> None:
        """Take segments that were rebuilt from the log: closed and durable."""
        for segment in recovered:
            member = _Member(segment, segment.bundle_count)
            self._members = sorted([*self._members, member], key=lambda m: m.segment.seq)
            self.nbytes += segment.nbytes
            self.next_segment = max(self.next_segment, segment.seq + 1)

    def reserve(self, commit: Commit, *, durable: bool = False) -> None:
        """Give a commit its numbers. The open segment has been closed."""
        if commit.files:
            self._reserved.append(_Reserved(commit, durable))
            self._reserved.sort(key=lambda one: one.commit.first_segment)
        self.next_segment = max(self.next_segment, commit.end_segment)

    def release(self, commit: Commit) -> None:
        """A commit's files are segments now."""
        self._reserved = [one for one in self._reserved if one.commit is not commit]

    def next_ref(self) -> BundleRef:
        """The ref the next bundle will get."""
        if self._open is None:
            return BundleRef(self.next_segment, 0)
        return BundleRef(self._open.seq, self._open.bundle_count)

    def append(self, slots: Sequence[EncodedSlot], meta: BundleMeta, opened_at: float) -> None:
        """Add a bundle at :meth:`next_ref`."""
        if self._open is None:
            self._open = OpenSegment(self.next_segment, opened_at)
            self._members.append(_Member(self._open))
            self.next_segment += 1
        self._open.append(slots, meta)
        self._members[-1].rows += meta.rows
        self.nbytes += meta.nbytes

    def full_by(self) -> Trigger | None:
        """Which of its limits the open segment has reached, if any."""
        segment = self._open
        return None if segment is None else full_by(segment, self._members[-1].rows, self._config)

    def is_due(self, now: float) -> bool:
        """Whether the open segment has been open for as long as it may."""
        segment = self._open
        return segment is not None and now - segment.opened_at >= self._config.max_open_duration

    def close(self, trigger: Trigger) -> None:
        """Close the open segment, if there is one: the next bundle starts a new one."""
        if self._open is not None:
            self._members[-1].trigger = trigger
            self._open = None

    def trigger_of(self, seq: int) -> Trigger:
        """Why a closed segment was closed."""
        return next((m.trigger for m in self._members if m.segment.seq == seq), Trigger.RECOVERY)

    def mark_durable(self, before: int) -> list[tuple[int, int]]:
        """Every entry below ``before`` is on disk: the segments with more durable bundles."""
        grown: list[tuple[int, int]] = []
        for reserved in self._reserved:
            reserved.durable = reserved.durable or reserved.commit.sequence < before
        for member in self._members:
            segment, count = member.segment, member.durable
            bundles = segment.bundles
            total = len(bundles)
            while count < total:
                meta = bundles[count].meta
                if meta.sequence is None or meta.sequence >= before:
                    break
                self.durable_bytes += meta.nbytes
                count += 1
            if count != member.durable:
                member.durable = count
                grown.append((segment.seq, count))
        return grown

    @property
    def oldest(self) -> int:
        """The lowest segment number without a file."""
        first = self._members[0].segment.seq if self._members else self.next_segment
        return min(first, self._first_reserved)

    @property
    def _first_reserved(self) -> int:
        return self._reserved[0].commit.first_segment if self._reserved else self.next_segment

    @property
    def growing(self) -> int:
        """The lowest segment number that may still get durable bundles."""
        for member in self._members:
            if member.segment is self._open or member.durable < member.segment.bundle_count:
                return min(member.segment.seq, self._first_reserved)
        return self._first_reserved

    def rollback(self, sequence: int) -> None:
        """Take back every bundle from ``sequence`` on: their group was never written."""
        for member in reversed(self._members):
            segment = member.segment
            count = segment.bundle_count
            while count and (segment.meta(count - 1).sequence or 0) >= sequence:
                count -= 1
            if count == segment.bundle_count:
                break
            self.nbytes -= segment.nbytes
            segment.truncate(count)
            self.nbytes += segment.nbytes
        emptied = [m for m in self._members if m.segment.bundle_count == 0]
        self._members = [m for m in self._members if m.segment.bundle_count]
        if any(m.segment is self._open for m in emptied):
            self._open = None
        undone = [one for one in self._reserved if one.commit.sequence >= sequence]
        self._reserved = [one for one in self._reserved if one.commit.sequence < sequence]
        freed = [m.segment.seq for m in emptied] + [one.commit.first_segment for one in undone]
        if freed:
            self.next_segment = min(freed)

    def is_durable(self, segment: OpenSegment | Commit) -> bool:
        """Whether every bundle of a segment is in the log; of a commit, its entry."""
        if isinstance(segment, Commit):
            return any(one.commit is segment and one.durable for one in self._reserved)
        return any(
            m.segment is segment and m.durable == segment.bundle_count for m in self._members
        )

    def durable_count(self, seq: int) -> int:
        """How many bundles of a segment in memory are durable."""
        return next((m.durable for m in self._members if m.segment.seq == seq), 0)

    def remove(self, seq: int) -> None:
        """Let go of a segment whose file is durable."""
        for member in self._members:
            if member.segment.seq == seq:
                self.nbytes -= member.segment.nbytes
        self._members = [m for m in self._members if m.segment.seq != seq]

    def find(self, seq: int) -> tuple[OpenSegment, int] | None:
        """A segment in memory with how many of its bundles are durable; needs no lock."""
        for member in self._members:
            if member.segment.seq == seq:
                return member.segment, member.durable
        return None
