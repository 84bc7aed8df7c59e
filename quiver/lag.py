"""How far a subscriber is behind, in bundles, rows, bytes and time.

A segment of which nothing is finished is counted by its own summary, so a large backlog
costs a look at numbers and no file is opened.  Segments begun are counted bundle by
bundle, up to a limit; behind that by the part of them that is left.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from quiver.clock import Clock
from quiver.errors import NotFound
from quiver.reading import Reader
from quiver.segment.info import SegmentInfo
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
    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._budget = MAX_LAG_BUNDLES
        self.rows = 0
        self.nbytes = 0
        self.oldest: int | None = None
        self.exact = True

    def whole(self, info: SegmentInfo) -> None:
        self.rows += info.rows
        self.nbytes += info.nbytes
        self._seen(info.first_ts)

    def begun(self, subscriber: Subscriber, seq: int, left: int) -> None:
        refs = subscriber.pending_bundles_in_range(seq, seq, self._budget)
        self._budget -= len(refs)
        rows = nbytes = 0
        for ref in refs:
            try:
                meta = self._reader.meta(ref)
            except NotFound:  # finished or deleted meanwhile
                continue
            rows += meta.rows
            nbytes += meta.nbytes
            self._seen(meta.ingestion_ts_ns)
        self.rows += rows
        self.nbytes += nbytes
        if len(refs) < left:
            self._estimate(seq, left - len(refs), len(refs), rows, nbytes)

    def _estimate(self, seq: int, missing: int, counted: int, rows: int, nbytes: int) -> None:
        """The rest is as the segment is on the whole, or as what was counted of it."""
        self.exact = False
        info = self._reader.info(seq)
        if info is not None and info.bundle_count:
            self.rows += info.rows * missing // info.bundle_count
            self.nbytes += info.nbytes * missing // info.bundle_count
        elif counted:
            self.rows += rows * missing // counted
            self.nbytes += nbytes * missing // counted

    def _seen(self, ts_ns: int | None) -> None:
        if self.oldest is None:
            self.oldest = ts_ns


def measure_lag(subscriber: Subscriber, reader: Reader, clock: Clock) -> Lag:
    """How much a subscriber has left, and how old the oldest of it is."""
    count = _Count(reader)
    bundles = 0
    for seq, left in subscriber.unfinished():
        bundles += left
        info = reader.info(seq)
        if info is not None and left == info.bundle_count:
            count.whole(info)
        else:
            count.begun(subscriber, seq, left)
    age = 0.0 if count.oldest is None else max(0.0, (clock.now_ns() - count.oldest) / 1e9)
    return Lag(bundles, count.rows, count.nbytes, age, count.exact)
