"""How far a subscriber is behind, in bundles, rows, bytes and time.

A segment of which nothing is finished is counted by its own summary, so a large backlog
costs a look at numbers and no file is opened.  Segments begun are counted bundle by
bundle, those in files up to a limit; behind that by the part of them that is left.

What is durable and waits to be shown is lag, too: it is promised, and not finished.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quiver.clock import Clock
from quiver.errors import NotFound
from quiver.segment.info import SegmentInfo
from quiver.segment.segments import Segments, Unshown
from quiver.subscriber.registry import Registry
from quiver.subscriber.subscriber import Subscriber

MAX_LAG_BUNDLES: Final = 10_000
"""Bundles looked at one by one, for one answer."""


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a subscriber is behind."""

    bundles: int
    rows: int
    nbytes: int
    age_seconds: float
    """Since the oldest unfinished bundle was taken in; 0 when there is none."""
    exact: bool = True
    """Whether rows and bytes were counted, and not partly worked out from segments."""


class _Count:
    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self._budget = MAX_LAG_BUNDLES
        self.rows = 0
        self.nbytes = 0
        self.oldest: int | None = None
        self.exact = True

    def whole(self, info: SegmentInfo | Unshown) -> None:
        self.rows += info.rows
        self.nbytes += info.nbytes
        self._seen(info.first_ts)

    def begun(self, subscriber: Subscriber, seq: int, left: int) -> None:
        info = self._segments.info(seq)
        # What is in memory costs no reading, and there is never much of it.
        limit = left if info is None else self._budget
        refs = subscriber.pending_bundles_in_range(seq, seq, limit)
        for ref in refs:
            try:
                meta = self._segments.meta(ref)
            except NotFound:  # finished or deleted meanwhile
                continue
            self.rows += meta.rows
            self.nbytes += meta.nbytes
            self._seen(meta.ingestion_ts_ns)
        if info is not None:
            self._budget -= len(refs)
            self._estimate(info, left - len(refs))

    def waiting(self, subscriber: Subscriber, info: Unshown) -> int:
        left = subscriber.pending_in(info.seq, info.bundle_count)
        if left and left == info.bundle_count:
            self.whole(info)
        else:
            self._estimate(info, left)
        return left

    def _estimate(self, info: SegmentInfo | Unshown, missing: int) -> None:
        """The rest of a segment is as the segment is on the whole."""
        if missing > 0:
            self.exact = False
            self.rows += info.rows * missing // info.bundle_count
            self.nbytes += info.nbytes * missing // info.bundle_count
            self._seen(info.first_ts)

    def _seen(self, ts_ns: int | None) -> None:
        if self.oldest is None:
            self.oldest = ts_ns


def measure_lag(
    subscriber: Subscriber, registry: Registry, segments: Segments, clock: Clock
) -> Lag:
    """How much a subscriber has left, and how old the oldest of it is."""
    count = _Count(segments)
    bundles = 0
    # First what waits: what is shown meanwhile is then among the unfinished.
    waiting = {one.seq: one for one in registry.waiting()}
    unfinished = dict(subscriber.unfinished())
    for seq in sorted(waiting.keys() | unfinished.keys()):
        if seq not in unfinished:
            bundles += count.waiting(subscriber, waiting[seq])
            continue
        left = unfinished[seq]
        bundles += left
        info = segments.info(seq)
        if info is not None and left == info.bundle_count:
            count.whole(info)
        else:
            count.begun(subscriber, seq, left)
    age = 0.0 if count.oldest is None else max(0.0, (clock.now_ns() - count.oldest) / 1e9)
    return Lag(bundles, count.rows, count.nbytes, age, count.exact)
