"""Planning reads: a range of bundles cut into parts.

A whole segment that fits is taken by its own summary, so a long range costs a look at
numbers; only segments that are cut are looked at bundle by bundle.
"""

from __future__ import annotations

from collections.abc import Iterator

from flight_service.protocol.names import Ref
from flight_service.protocol.plan import Lost, Part, Plan, Planned, Run
from quiver import BundleRef, Store
from quiver.errors import NotFound


class _Cutter:
    """Puts runs of bundles into parts until there are enough."""

    def __init__(self, request: Plan) -> None:
        self._request = request
        self.parts: list[Part] = []
        self.more = False
        self._runs: list[Run] = []
        self._bundles = self._rows = self._nbytes = 0

    def fits(self, bundles: int, nbytes: int) -> bool:
        """Whether so much more fits the part that is open."""
        return (
            self._bundles + bundles <= self._request.max_bundles
            and self._nbytes + nbytes <= self._request.max_bytes
        )

    def add(self, seq: int, first: int, count: int, rows: int, nbytes: int) -> bool:
        """Take a run; ``False`` if that would be a part too many."""
        if self._runs and not self.fits(count, nbytes):
            self._close()
        if len(self.parts) >= self._request.max_parts:
            self.more = True
            return False
        last = self._runs[-1] if self._runs else None
        if last is not None and last[0] == seq and last[1] + last[2] == first:
            self._runs[-1] = (seq, last[1], last[2] + count)
        else:
            self._runs.append((seq, first, count))
        self._bundles, self._rows = self._bundles + count, self._rows + rows
        self._nbytes += nbytes
        return True

    def finish(self) -> tuple[Part, ...]:
        if self._runs:
            self._close()
        return tuple(self.parts)

    def _close(self) -> None:
        self.parts.append(Part(runs=tuple(self._runs), rows=self._rows, nbytes=self._nbytes))
        self._runs = []
        self._bundles = self._rows = self._nbytes = 0


def plan(store: Store, request: Plan) -> Planned:
    """Resolve a range and cut it."""
    latest = store.end
    start, end = _range(store, request, latest)
    cutter = _Cutter(request)
    _cut(store, start, end, cutter)
    return Planned(
        start=Ref(*start),
        end=Ref(*end),
        latest=Ref(*latest),
        parts=cutter.finish(),
        more=cutter.more,
        lost=tuple(_lost(store, start, end, request.subscriber)),
    )


def _range(store: Store, request: Plan, latest: BundleRef) -> tuple[BundleRef, BundleRef]:
    if request.start is not None:
        start = BundleRef(*request.start)
    else:
        oldest = next((BundleRef(seq, 0) for seq, count in store.segments() if count), latest)
        start = min(oldest, latest)
    if request.since_ns is not None:
        start = max(start, store.position_at(request.since_ns))
    end = latest if request.end is None else min(BundleRef(*request.end), latest)
    if request.until_ns is not None:
        end = min(end, store.position_at(request.until_ns))
    return start, end


def _cut(store: Store, start: BundleRef, end: BundleRef, cutter: _Cutter) -> None:
    for seq, count in store.segments():
        if seq < start.segment_seq:
            continue
        if seq > end.segment_seq:
            return
        first = start.bundle_index if seq == start.segment_seq else 0
        stop = min(count, end.bundle_index) if seq == end.segment_seq else count
        info = store.segment_info(seq)
        whole = info is not None and (first, stop) == (0, info.bundle_count)
        if info is not None and whole and cutter.fits(stop, info.nbytes):
            if not cutter.add(seq, 0, stop, info.rows, info.nbytes):
                return
            continue
        for index in range(first, stop):
            rows, nbytes = _size(store, BundleRef(seq, index))
            if not cutter.add(seq, index, 1, rows, nbytes):
                return


def _size(store: Store, ref: BundleRef) -> tuple[int, int]:
    """Of a bundle; one that is gone stays in the plan, for its reader to be told."""
    try:
        meta = store.meta(ref)
    except NotFound:
        return 0, 0
    return meta.rows, meta.nbytes


def _lost(store: Store, start: BundleRef, end: BundleRef, subscriber: str | None) -> Iterator[Lost]:
    here = {seq for seq, _ in store.segments()}
    for loss in store.losses:
        seq = loss.segment_seq
        if loss.is_reject:
            continue  # it was read, and refused
        if seq in here or not start.segment_seq <= seq <= end.segment_seq:
            continue
        bundles = loss.bundles
        if subscriber is not None:
            bundles = loss.subscribers.get(subscriber, 0)
        elif seq == start.segment_seq:
            bundles -= min(bundles, start.bundle_index)
        if bundles:
            yield Lost(segment=seq, bundles=bundles, reason=loss.reason)
