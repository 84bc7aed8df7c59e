"""The loss ledger: what was given up before every subscriber had finished it, and why.

Every way for data to leave unread (damage found at an open or while serving, ``repair``,
retention) goes through :meth:`Ledger.record` before it happens, and the metrics show what
the ledger says: a loss that a repair recorded while no store was open is in the first
scrape after the next start.

What a subscriber rejects goes through :meth:`Ledger.record_reject`.  Such a bundle was given
to its subscriber and is not lost: of the questions that this module answers, only
:meth:`Ledger.covers` counts these rows.

Bounded: :data:`MAX_ENTRIES` rows are kept one by one, the totals for ever.  Rejects are evicted
first, oldest first, then what a policy dropped, damage last.  Of an evicted row of damage the
refs are kept, :data:`MAX_OLDER` ranges of them: whether a bundle that is sent again may be
stored again rests on them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from heapq import nlargest
from itertools import pairwise
from typing import Final

from quiver import metrics as m
from quiver.format.state import REJECTED, Checkpoint, Ground, Loss, LostRefs, index_ranges
from quiver.ids import MAX_BUNDLES_PER_SEGMENT, BundleRef
from quiver.metrics import Metrics

MAX_ENTRIES: Final = 1000
MAX_OLDER: Final = 10_000
"""Ranges of lost refs whose rows were evicted; the oldest go first."""
MAX_SUBSCRIBERS: Final = 1000
"""Subscribers with totals of their own; those beyond share one."""
MAX_RANGES: Final = 100
"""Ranges of indexes in a row of rejects."""

DAMAGED: Final = "damaged"
"""The reason of a loss that no policy decided."""
ALL: Final = -1
"""The bitmap with every bundle in it."""
_SUBSCRIBER: Final = ".subscriber."
_OTHERS: Final = "*"
_POLICIES: Final = frozenset(str(ground) for ground in Ground)
_DROPS: Final = (str(Ground.SIZE), str(Ground.TIME), REJECTED)
"""Reasons for which a subscriber is not given a bundle that was not damaged."""


class Ledger:
    """Losses in the order they happened. Several rows may speak of one segment."""

    def __init__(
        self,
        losses: Iterable[Loss] = (),
        totals: Mapping[str, int] | None = None,
        older: Iterable[LostRefs] = (),
    ) -> None:
        # Both are replaced as a whole: other threads read them.
        self._losses = tuple(losses)[-MAX_ENTRIES:]
        self._older = tuple(older)[-MAX_OLDER:]
        self._totals: Counter[str] = Counter(totals or {})
        self._metrics: Metrics | None = None
        self.dirty = False
        if not any(_SUBSCRIBER in key for key in self._totals):  # written by 0.1.0
            for loss in self._losses:
                self._count_subscribers(loss)

    @classmethod
    def of(cls, state: Checkpoint) -> Ledger:
        """As a checkpoint has it."""
        return cls(state.losses, state.loss_totals, state.older_losses)

    def kept_in(self, state: Checkpoint) -> Checkpoint:
        """A checkpoint with the ledger as it is now."""
        return replace(
            state, losses=self._losses, loss_totals=self.totals, older_losses=self._older
        )

    def record(self, loss: Loss) -> None:
        """Write a loss down and count it; it is durable once the checkpoint is."""
        known = any(
            (one.segment_seq, one.reason) == (loss.segment_seq, loss.reason) for one in self._losses
        )
        self._totals[f"{loss.reason}.segments"] += not known
        self._totals[f"{loss.reason}.bytes"] += loss.nbytes
        self._keep((*self._losses, loss), loss)

    def name_also(self, segment_seq: int, lost: int, unfinished: Mapping[str, int]) -> None:
        """Name in the rows for these bundles who needs them now, and did not when they were
        written: they did not go then, and somebody came meanwhile.

        Bitmaps, as in :mod:`quiver.recovery.losses`.  No bundle is counted again.
        """
        rows, left = list(self._losses), lost
        for at, row in enumerate(rows):
            if row.segment_seq != segment_seq or row.is_reject:
                continue
            bits = _bits(row) & left
            left &= ~bits
            needed = {
                name: min((one & bits).bit_count(), row.bundles) for name, one in unfinished.items()
            }
            added = {
                name: count - row.subscribers.get(name, 0)
                for name, count in needed.items()
                if count > row.subscribers.get(name, 0)
            }
            if added:
                named = {name: needed[name] for name in added}
                rows[at] = replace(row, subscribers={**row.subscribers, **named})
                self._count_subscribers(replace(row, subscribers=added))
                self.dirty = True
        self._losses = tuple(rows)
        self._show()

    def record_reject(self, subscriber: str, segment_seq: int, bits: int, at_ns: int) -> None:
        """Write down that a subscriber has refused these bundles of a segment, given as a bitmap.

        One row for each segment and subscriber.  What it names already is not counted again: a
        crash may have come between the row and the progress, and the bundle was delivered and
        rejected once more.
        """
        old = next(
            (
                one
                for one in self._losses
                if one.is_reject
                and one.segment_seq == segment_seq
                and one.subscribers.keys() == {subscriber}
            ),
            None,
        )
        known = 0 if old is None else _bits(old)
        if not bits & ~known:
            return
        row = _reject_row(subscriber, segment_seq, known | bits, at_ns)
        added = row
        if old is not None:
            row = replace(row, exact=row.exact and old.exact)
            count = row.bundles - old.bundles
            added = replace(row, bundles=count, subscribers={subscriber: count})
        self._keep((*(one for one in self._losses if one is not old), row), added)

    def _keep(self, rows: tuple[Loss, ...], added: Loss) -> None:
        """Go on with these rows, of which the last is new, and count what was ``added``."""
        if len(rows) > MAX_ENTRIES:
            evicted = min(rows[:-1], key=_worth)
            if _is_damage(evicted):  # before the row: whoever asks meanwhile finds one of them
                self._older = _folded(self._older, evicted)
            rows = tuple(one for one in rows if one is not evicted)
        self._losses = rows
        self._totals[f"{added.reason}.bundles"] += added.bundles
        self._count_subscribers(added)
        self.dirty = True
        self._show()

    def _count_subscribers(self, loss: Loss) -> None:
        for name, count in loss.subscribers.items():
            key = f"{loss.reason}{_SUBSCRIBER}{name}"
            full = sum(_SUBSCRIBER in one for one in self._totals) >= MAX_SUBSCRIBERS
            if full and key not in self._totals:
                key = f"{loss.reason}{_SUBSCRIBER}{_OTHERS}"
            self._totals[key] += count

    def show_in(self, metrics: Metrics) -> None:
        """Have these metrics say what the ledger says, from now on.

        Also that there is nothing yet: an alert sees an increase only in a series that was
        there before.
        """
        self._metrics = metrics
        for reason in (DAMAGED, *_DROPS):
            metrics.gauge(m.LEDGER_BUNDLES, reason=reason)
        for reason in (Ground.SIZE, Ground.TIME):
            metrics.counter(m.SEGMENT_DROPPED, reason=reason)
        self._show()

    def show_subscriber(self, name: str) -> None:
        """Have the metrics show this subscriber too, before it has lost anything."""
        if self._metrics is not None:
            self._metrics.counter(m.SUBSCRIBER_LOST, subscriber=name)
            for reason in _DROPS:
                self._metrics.counter(m.SUBSCRIBER_DROPPED, subscriber=name, reason=reason)

    def forget_subscriber(self, name: str) -> None:
        """Stop showing one that was unregistered, as far as it has lost nothing."""
        if self._metrics is None:
            return
        if not self._totals[f"{DAMAGED}{_SUBSCRIBER}{name}"]:
            self._metrics.forget(m.SUBSCRIBER_LOST, subscriber=name)
        for reason in _DROPS:
            if not self._totals[f"{reason}{_SUBSCRIBER}{name}"]:
                self._metrics.forget(m.SUBSCRIBER_DROPPED, subscriber=name, reason=reason)

    def _show(self) -> None:
        """Counters continue across restarts, so that an alert on their increase sees what was
        recorded while no store was open."""
        metrics = self._metrics
        if metrics is None:
            return
        for key, total in self._totals.items():
            reason, _, what = key.partition(".")
            name = what.removeprefix(_SUBSCRIBER[1:])
            if what == "bundles":
                metrics.gauge(m.LEDGER_BUNDLES, reason=reason).set(total)
            elif what == "segments" and reason != DAMAGED:
                metrics.counter(m.SEGMENT_DROPPED, reason=reason).value = total
            elif name != what and reason == DAMAGED:
                metrics.counter(m.SUBSCRIBER_LOST, subscriber=name).value = total
            elif name != what:
                dropped = metrics.counter(m.SUBSCRIBER_DROPPED, subscriber=name, reason=reason)
                dropped.value = total

    @property
    def losses(self) -> tuple[Loss, ...]:
        return self._losses

    @property
    def totals(self) -> dict[str, int]:
        return dict(self._totals)

    def __contains__(self, segment_seq: int) -> bool:
        """Whether a loss in this segment is on record."""
        return any(loss.segment_seq == segment_seq for loss in self._lost) or any(
            True for _ in self._older_in(segment_seq)
        )

    @property
    def lost_segments(self) -> set[int]:
        """The segments of which damage took something."""
        found = {
            loss.segment_seq for loss in self._losses if _is_damage(loss) and loss.indexes != ()
        }
        return found.union(*(range(*one.segments) for one in self._older))

    def _older_in(self, segment_seq: int) -> Iterator[LostRefs]:
        """What was lost of a segment, as far as its rows were evicted."""
        for one in self._older:
            if one.segments[0] <= segment_seq < one.segments[1]:
                yield one

    @property
    def _lost(self) -> Iterator[Loss]:
        """The rows for what can't be read any more."""
        return (loss for loss in self._losses if not loss.is_reject)

    def indexes(self, segment_seq: int) -> int:
        """The bundles of a segment that are on record as lost, as a bitmap."""
        bits = 0
        for first, end in (one.indexes for one in self._older_in(segment_seq)):
            bits |= (1 << end) - (1 << first)
        for loss in self._lost:
            if loss.segment_seq == segment_seq:
                bits |= _bits(loss)
        return bits

    def covers(self, ref: BundleRef) -> bool:
        """Whether a row names this bundle, for whatever reason. Any thread."""
        return any(True for _ in self._rows(ref)) or self._lost_before(ref)

    def has_lost(self, ref: BundleRef) -> bool:
        """Whether this bundle was lost: neither dropped by a policy that was configured, nor
        refused by a subscriber."""
        return any(map(_is_damage, self._rows(ref))) or self._lost_before(ref)

    def _lost_before(self, ref: BundleRef) -> bool:
        seq, index = ref
        return any(one.indexes[0] <= index < one.indexes[1] for one in self._older_in(seq))

    def _rows(self, ref: BundleRef) -> Iterator[Loss]:
        seq, index = ref
        for loss in self.losses:
            if loss.segment_seq == seq and (
                loss.indexes is None or any(first <= index < end for first, end in loss.indexes)
            ):
                yield loss


def _bits(loss: Loss) -> int:
    """The bundles that a row names, as a bitmap."""
    if loss.indexes is None:
        return ALL
    bits = 0
    for first, end in loss.indexes:
        bits |= (1 << end) - (1 << first)
    return bits


def _reject_row(subscriber: str, segment_seq: int, bits: int, at_ns: int) -> Loss:
    """A row for rejects. Too many ranges are joined where least lies between them; the row then
    names some bundles that were not rejected, and its count is an upper bound.

    No bytes: the bundles are still there, for other subscribers.
    """
    ranges = index_ranges(bits)
    joined = _join(ranges)
    count = sum(end - first for first, end in joined)
    return Loss(
        segment_seq, count, 0, REJECTED, at_ns, {subscriber: count}, joined, joined == ranges
    )


def _join(ranges: tuple[tuple[int, int], ...]) -> tuple[tuple[int, int], ...]:
    """At most :data:`MAX_RANGES` ranges: only the widest gaps between them stay."""
    if len(ranges) <= MAX_RANGES:
        return ranges
    gaps = [(before[1], after[0]) for before, after in pairwise(ranges)]
    kept = sorted(nlargest(MAX_RANGES - 1, gaps, key=lambda gap: gap[1] - gap[0]))
    firsts = (ranges[0][0], *(after for _, after in kept))
    ends = (*(before for before, _ in kept), ranges[-1][1])
    return tuple(zip(firsts, ends, strict=True))


def _is_damage(loss: Loss) -> bool:
    """Whether the bundles were lost, and neither dropped by a policy nor refused."""
    return loss.reason not in _POLICIES and not loss.is_reject


def _folded(older: tuple[LostRefs, ...], loss: Loss) -> tuple[LostRefs, ...]:
    """With what a row names; it continues the newest range if its segment is the next one."""
    seq = loss.segment_seq
    ranges = ((0, MAX_BUNDLES_PER_SEGMENT),) if loss.indexes is None else loss.indexes
    newest = older[-1] if older else None
    if newest is not None and newest.segments[1] == seq and ranges == (newest.indexes,):
        return (*older[:-1], LostRefs((newest.segments[0], seq + 1), newest.indexes))
    return (*older, *(LostRefs((seq, seq + 1), one) for one in ranges))[-MAX_OLDER:]


def _worth(loss: Loss) -> int:
    """The higher, the longer a row is kept; of equal ones the oldest goes first."""
    if loss.is_reject:
        return 0
    return 1 if loss.reason in _POLICIES else 2
