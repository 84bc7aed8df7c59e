"""What may go: which written segments to delete, in which order, and on what ground.

Pure policy.  :func:`plan` is given what is there and answers what should go; the engine
carries it out (outcomes recorded, progress durable, then the files).  Only segments with
a file of their own are ever listed: what is in the log alone has been promised and is
not retention's to take.

Three passes, each over what the one before has left:

1. **time** — a segment whose newest bundle is older than
   ``max_retain_after_ingestion_hours`` goes, finished or not.
2. **steady** — a finished segment goes, unless it is kept (below).
3. **size** — while the store is over its cap: kept finished segments go, oldest first;
   then, and only with ``drop_oldest``, unfinished ones, oldest first.  It stops at the
   first byte under the cap.  With ``backpressure`` the rest is reported as a shortfall,
   and puts wait.

Who wins where they disagree: **time > size > steady**.  An age limit is a promise to
delete, so nothing keeps a segment beyond it.  The cap is a promise to the machine, so it
takes what was kept only for convenience, but never takes unfinished data that
``backpressure`` protects.  The keep rules hold back the steady sweep and nothing else:

- *headroom*: the newest finished segments, up to ``steady_state_headroom`` bytes.
- *keep_after_finish*: those finished less than so long ago; with
  ``keep_after_finish_bytes`` the newest up to so many bytes; with both set, those within
  both.  A segment is kept if either of headroom and keep_after_finish keeps it.

A segment is **finished** when every known subscriber, present or away, is done with all
of it; with no subscriber at all, nothing is finished (:func:`finished`), and only time
and ``drop_oldest`` can delete.  What goes unfinished is marked ``dropped``: its outcomes
are to be recorded before its file goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quiver.format.state import Ground

if TYPE_CHECKING:
    from quiver.config import RetentionConfig

_NS_PER_SECOND = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Candidate:
    """A written segment as retention sees it."""

    seq: int
    nbytes: int
    last_ts_ns: int | None
    """Ingestion time of its newest bundle; ``None`` where the file doesn't say."""
    finished_at_ns: int | None
    """When the last subscriber was done with it; ``None`` while somebody isn't."""


@dataclass(frozen=True, slots=True)
class Eviction:
    """One segment to delete."""

    seq: int
    nbytes: int
    ground: Ground
    dropped: bool
    """Somebody still needed it: record the outcome ``dropped`` first."""


@dataclass(frozen=True, slots=True)
class EvictionPlan:
    """What should go, in the order it should go, and what is still missing then."""

    evictions: tuple[Eviction, ...]
    shortfall: int
    """Bytes over the cap even after all of this: puts have to wait."""

    @property
    def freed(self) -> int:
        return sum(eviction.nbytes for eviction in self.evictions)


def finished(done: Iterable[bool]) -> bool:
    """Whether a segment is finished, given for each known subscriber whether it is done.

    No subscriber means that nobody has taken it yet, not that nobody wants it.
    """
    answers = list(done)
    return bool(answers) and all(answers)


def keeps_finished(policy: RetentionConfig) -> bool:
    """Whether a finished segment may be kept for a while: then it needs a file."""
    return bool(
        policy.steady_state_headroom or policy.keep_after_finish or policy.keep_after_finish_bytes
    )


def plan(
    segments: Sequence[Candidate],
    policy: RetentionConfig,
    now_ns: int,
    *,
    used: int,
    cap: int | None,
    need: int = 0,
) -> EvictionPlan:
    """What should go now.

    ``segments`` in ascending order; ``used`` is all the store takes on disk, ``need``
    what is about to be added, ``cap`` the most it may take (this store's share of a
    budget; ``None`` for no limit).
    """
    expired = _expired(segments, policy, now_ns)
    left = [segment for segment in segments if segment.seq not in expired]
    kept = _kept(left, policy, now_ns)
    evictions = [_evict(s, Ground.TIME) for s in segments if s.seq in expired]
    evictions += [
        _evict(s, Ground.STEADY) for s in left if s.finished_at_ns is not None and s.seq not in kept
    ]
    over = 0
    if cap is not None:
        over = used + need - cap - sum(eviction.nbytes for eviction in evictions)
        gone = {eviction.seq for eviction in evictions}
        by_size = _over_cap([s for s in left if s.seq not in gone], policy, over)
        evictions += by_size
        over -= sum(eviction.nbytes for eviction in by_size)
    return EvictionPlan(tuple(evictions), max(over, 0))


def evictable(segments: Iterable[Candidate], policy: RetentionConfig) -> int:
    """Bytes the size pass could free, if it had to: what stands between full and refusal."""
    unfinished_too = policy.size_cap_policy == "drop_oldest"
    return sum(s.nbytes for s in segments if unfinished_too or s.finished_at_ns is not None)


def _evict(segment: Candidate, ground: Ground) -> Eviction:
    return Eviction(segment.seq, segment.nbytes, ground, dropped=segment.finished_at_ns is None)


def _expired(segments: Sequence[Candidate], policy: RetentionConfig, now_ns: int) -> set[int]:
    """Segments past the age limit.

    One without a time of its own is older than the next that has one: ingestion time
    never goes back.
    """
    if policy.max_age is None:
        return set()
    cutoff = now_ns - int(policy.max_age * _NS_PER_SECOND)
    expired: set[int] = set()
    later_is_expired = False
    for segment in reversed(segments):
        if segment.last_ts_ns is not None:
            later_is_expired = segment.last_ts_ns < cutoff
        if later_is_expired:
            expired.add(segment.seq)
    return expired


def _kept(segments: Sequence[Candidate], policy: RetentionConfig, now_ns: int) -> set[int]:
    """Finished segments that the steady sweep leaves alone."""
    done = [segment for segment in segments if segment.finished_at_ns is not None]
    kept = _newest_within(done, policy.steady_state_headroom)
    duration, nbytes = policy.keep_after_finish, policy.keep_after_finish_bytes
    if duration is None and nbytes is None:
        return kept
    wanted = {segment.seq for segment in done}
    if duration is not None:
        oldest = now_ns - int(duration * _NS_PER_SECOND)
        wanted = {s.seq for s in done if s.finished_at_ns is not None and s.finished_at_ns > oldest}
    if nbytes is not None:
        wanted &= _newest_within(done, nbytes)
    return kept | wanted


def _newest_within(segments: Sequence[Candidate], nbytes: int) -> set[int]:
    """The newest segments that fit into ``nbytes`` together, without a gap.

    Whoever goes back wants an unbroken stretch, so the first that doesn't fit ends it.
    """
    within: set[int] = set()
    for segment in reversed(segments):
        nbytes -= segment.nbytes
        if nbytes < 0:
            break
        within.add(segment.seq)
    return within


def _over_cap(segments: Sequence[Candidate], policy: RetentionConfig, over: int) -> list[Eviction]:
    """Oldest first until ``over`` bytes are freed: finished ones, then those we may drop."""
    candidates = [s for s in segments if s.finished_at_ns is not None]
    if policy.size_cap_policy == "drop_oldest":
        candidates += [s for s in segments if s.finished_at_ns is None]
    chosen: list[Eviction] = []
    for segment in candidates:
        if over <= 0:
            break
        chosen.append(_evict(segment, Ground.SIZE))
        over -= segment.nbytes
    return chosen
