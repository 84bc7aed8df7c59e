"""What one subscriber has done with each bundle: a pure machine, no I/O and no locks.

::

                 claim               ack
    pending ─────────────► claimed ───────► acked
       ▲                      │ reject, drop
       └──────── release ─────┴───────────► dropped

``acked`` and ``dropped`` are final as long as the segment lives; only :meth:`seek
<SubscriberState.seek>` takes them back.  An outcome needs no claim before it, comes in
any order, and the first one stays: a later one is answered with what is there already.

Each segment has two bitmaps, *free* (pending) and *done*; what is visible and neither is
claimed.  Two sorted lists name the segments that have something free and those that have
something unfinished, so finished segments cost nothing however many there are.

A reject is *unrecorded* until the loss ledger has it, durably.  Until then no snapshot says
that its bundle is done: a crash makes it pending again, and never leaves a bundle that was
rejected and is on no record.

``start`` is the position everything begins at: bundles below it are done as soon as they
are seen.  New subscribers, resumed ones (``oldest_incomplete`` of their file) and those
that seek all use it.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator, Mapping
from enum import StrEnum
from typing import Final

from quiver.errors import BundleGone, UnknownBundle
from quiver.format.progress import Progress, SegmentProgress, progress_corrupt
from quiver.ids import BundleRef

EARLIEST: Final = BundleRef(0, 0)
"""The position before every bundle."""


class Outcome(StrEnum):
    """Where a bundle stands with a subscriber."""

    PENDING = "pending"
    CLAIMED = "claimed"
    ACKED = "acked"
    DROPPED = "dropped"

    @property
    def final(self) -> bool:
        return self is Outcome.ACKED or self is Outcome.DROPPED


class Order(StrEnum):
    """Which pending bundle comes next."""

    OLDEST = "oldest"
    NEWEST = "newest"
    """The latest bundle first; the backlog, backwards, whenever nothing newer is there."""


class _Segment:
    """``left`` counts what isn't done; a ``condemned`` segment is about to be deleted;
    ``unrecorded`` are rejects that the ledger doesn't have yet."""

    __slots__ = ("condemned", "count", "done", "dropped", "free", "left", "unrecorded")

    def __init__(self) -> None:
        self.count = 0
        self.free = 0
        self.done = 0
        self.dropped = 0
        self.left = 0
        self.unrecorded = 0
        self.condemned = False

    @property
    def claimed(self) -> int:
        return _ones(self.count) & ~self.free & ~self.done


class SubscriberState:
    """Every bundle's standing with one subscriber. The caller holds a lock, if need be."""

    def __init__(self, start: BundleRef = EARLIEST) -> None:
        self._start = start
        self._segments: dict[int, _Segment] = {}
        self._ready: list[int] = []  # segments with something free, sorted
        self._unfinished: list[int] = []  # segments with something not done, sorted
        self._marked: set[int] = set()  # segments with something done
        self._unrecorded: set[int] = set()  # segments with rejects that are on no record
        self._void: set[BundleRef] = set()  # claims whose bundle was dropped meanwhile
        self._seen_below = start.segment_seq  # every number below was here once, or never will be
        self.outstanding = 0  # bundles that are visible and not done
        self.claimed = 0  # how many of those are claimed
        self.changes = 0  # rises with everything that a progress file has to know

    # What is there

    def observe(self, segment_seq: int, visible: int) -> int:
        """``visible`` bundles of a segment can be delivered; how many of them are new work.

        The count of the open segment grows; a lower one than before changes nothing.
        """
        segment = self._segments.get(segment_seq)
        if segment is None:
            segment = self._segments[segment_seq] = _Segment()
            self._seen_below = max(self._seen_below, segment_seq + 1)
        if visible <= segment.count or segment.condemned:
            return 0
        fresh = _ones(visible) ^ _ones(segment.count)
        skipped = fresh & self._before(segment_seq, visible)
        segment.count = visible
        if skipped:
            segment.done |= skipped
            self._marked.add(segment_seq)
            self.changes += 1
            fresh ^= skipped
        if not fresh:
            return 0
        added = fresh.bit_count()
        if not segment.free:
            _include(self._ready, segment_seq)
        if not segment.left:
            _include(self._unfinished, segment_seq)
        segment.free |= fresh
        segment.left += added
        self.outstanding += added
        return added

    def _before(self, segment_seq: int, count: int) -> int:
        """The bundles of a segment that lie before the start position."""
        if segment_seq != self._start.segment_seq:
            return _ones(count) if segment_seq < self._start.segment_seq else 0
        return _ones(min(count, self._start.bundle_index))

    # What to do next

    def next_ref(self, order: Order = Order.OLDEST) -> BundleRef | None:
        """The pending bundle that comes next in this order; it stays pending."""
        if not self._ready:
            return None
        if order is Order.OLDEST:
            segment_seq = self._ready[0]
            return BundleRef(segment_seq, _lowest(self._segments[segment_seq].free))
        segment_seq = self._ready[-1]
        return BundleRef(segment_seq, self._segments[segment_seq].free.bit_length() - 1)

    def claim(self, ref: BundleRef) -> bool:
        """Take a pending bundle; ``False`` if it isn't pending: :meth:`outcome` says why."""
        segment = self._visible(ref)
        if segment is None:
            return False
        bit = 1 << ref.bundle_index
        if not segment.free & bit:
            return False
        self._take(ref.segment_seq, segment, bit)
        self.claimed += 1
        return True

    # What became of it

    def ack(self, ref: BundleRef) -> Outcome:
        """Done with it. ``DROPPED`` if it was rejected, or given up by retention, before."""
        return self._finish(ref, Outcome.ACKED)

    def reject(self, ref: BundleRef) -> Outcome:
        """Done with it: refused. ``ACKED`` if it was acked before."""
        changes = self.changes
        outcome = self._finish(ref, Outcome.DROPPED)
        if self.changes != changes:  # the first outcome stays: only a new one is a reject
            self._segments[ref.segment_seq].unrecorded |= 1 << ref.bundle_index
            self._unrecorded.add(ref.segment_seq)
        return outcome

    def drop(self, ref: BundleRef) -> Outcome:
        """Done with it, and not refused: it is on record as lost, or in another stream."""
        return self._finish(ref, Outcome.DROPPED)

    def release(self, ref: BundleRef) -> Outcome:
        """Give a claim back: the bundle is pending again, unless it got an outcome."""
        segment = self._visible(ref)
        if segment is None:
            return self._settled(ref)
        bit = 1 << ref.bundle_index
        if segment.done & bit:
            return self._final(ref, segment, bit)
        if not segment.free & bit:
            if not segment.free:
                _include(self._ready, ref.segment_seq)
            segment.free |= bit
            self.claimed -= 1
        return Outcome.PENDING

    def outcome(self, ref: BundleRef) -> Outcome:
        """Where a bundle stands.

        Raises ``BundleGone`` for a deleted one and ``UnknownBundle`` for one not seen yet.
        """
        segment = self._visible(ref)
        if segment is None:
            if ref in self._void:
                return Outcome.DROPPED
            raise self._absent(ref)
        bit = 1 << ref.bundle_index
        if segment.free & bit:
            return Outcome.PENDING
        if not segment.done & bit:
            return Outcome.CLAIMED
        return Outcome.DROPPED if segment.dropped & bit else Outcome.ACKED

    def _finish(self, ref: BundleRef, how: Outcome) -> Outcome:
        segment = self._visible(ref)
        if segment is None:
            return self._settled(ref)
        bit = 1 << ref.bundle_index
        if segment.done & bit:
            return self._final(ref, segment, bit)
        if segment.free & bit:
            self._take(ref.segment_seq, segment, bit)
        else:
            self.claimed -= 1
        segment.done |= bit
        if how is Outcome.DROPPED:
            segment.dropped |= bit
        self._marked.add(ref.segment_seq)
        self.changes += 1
        self.outstanding -= 1
        segment.left -= 1
        if not segment.left:
            _exclude(self._unfinished, ref.segment_seq)
        return how

    def ack_before(self, ref: BundleRef) -> int:
        """Done with everything visible that lies before ``ref``, claimed or not; how many.

        By whole segments, so it costs what is unfinished and not what is behind: for those
        who read on their own and know how far they got.
        """
        acked = 0
        last = bisect_left(self._unfinished, ref.segment_seq + 1)
        for segment_seq in self._unfinished[:last]:
            segment = self._segments[segment_seq]
            before = segment.count if segment_seq < ref.segment_seq else ref.bundle_index
            bits = _ones(min(before, segment.count)) & ~segment.done
            if not bits:
                continue
            count, free = bits.bit_count(), bits & segment.free
            self.claimed -= count - free.bit_count()
            if free:
                self._take(segment_seq, segment, free)
            segment.done |= bits
            segment.left -= count
            if not segment.left:
                _exclude(self._unfinished, segment_seq)
            self._marked.add(segment_seq)
            self.outstanding -= count
            acked += count
        self.changes += 1 if acked else 0
        return acked

    def _take(self, segment_seq: int, segment: _Segment, bit: int) -> None:
        segment.free ^= bit
        if not segment.free:
            _exclude(self._ready, segment_seq)

    def _visible(self, ref: BundleRef) -> _Segment | None:
        segment = self._segments.get(ref.segment_seq)
        return segment if segment and 0 <= ref.bundle_index < segment.count else None

    def _final(self, ref: BundleRef, segment: _Segment, bit: int) -> Outcome:
        self._void.discard(ref)
        return Outcome.DROPPED if segment.dropped & bit else Outcome.ACKED

    def _settled(self, ref: BundleRef) -> Outcome:
        """The claim of a segment that is gone ends here, once, with what really happened."""
        if ref not in self._void:
            raise self._absent(ref)
        self._void.discard(ref)
        return Outcome.DROPPED

    def _absent(self, ref: BundleRef) -> BundleGone | UnknownBundle:
        if ref.segment_seq not in self._segments and 0 <= ref.segment_seq < self._seen_below:
            return BundleGone(
                f"bundle {ref} was here and has been deleted.", ref=ref, outcome="deleted"
            )
        return UnknownBundle(f"there is no bundle {ref} to deliver.", ref=ref)

    # Segments that go

    def drop_segment(self, segment_seq: int, total: int) -> int:
        """Give up what is left of a segment, claims too; how many bundles that were.

        The segment is as good as deleted: seeking back doesn't bring its bundles back.
        """
        self.observe(segment_seq, total)
        segment = self._segments[segment_seq]
        segment.condemned = True
        if not (given_up := segment.left):
            return 0
        self._void.update(BundleRef(segment_seq, index) for index in _indices(segment.claimed))
        self.claimed -= given_up - segment.free.bit_count()
        self.outstanding -= given_up
        segment.dropped |= _ones(segment.count) & ~segment.done
        segment.done = _ones(segment.count)
        segment.left = 0
        if segment.free:
            segment.free = 0
            _exclude(self._ready, segment_seq)
        _exclude(self._unfinished, segment_seq)
        self._marked.add(segment_seq)
        self.changes += 1
        return given_up

    def drop_bundles(self, segment_seq: int, indexes: Collection[int]) -> None:
        """Give these bundles up, claims too; the others of their segment stay as they are."""
        for index in indexes:
            ref = BundleRef(segment_seq, index)
            if self._visible(ref) is not None:
                self._finish(ref, Outcome.DROPPED)

    def forget(self, segment_seq: int) -> int:
        """The segment has been deleted. How many bundles that cost: 0 if all was in order."""
        segment = self._segments.get(segment_seq)
        if segment is None:
            return 0
        given_up = self.drop_segment(segment_seq, segment.count)
        del self._segments[segment_seq]
        self._marked.discard(segment_seq)
        self._unrecorded.discard(segment_seq)
        return given_up

    def drop_all(self) -> int:
        """Give up everything: the subscriber leaves. How many bundles that were."""
        return sum(
            self.drop_segment(segment_seq, self._segments[segment_seq].count)
            for segment_seq in list(self._unfinished)
        )

    # Positions

    def seek(self, ref: BundleRef) -> None:
        """Go on from ``ref``: what lies before is done, what lies behind comes (again).

        Bundles behind ``ref`` that are claimed stay with who has them.  A position ahead
        of what is visible holds until the process ends: no file can say it.
        """
        self._start = ref
        self.changes += 1
        self._ready.clear()
        self._unfinished.clear()
        self._marked.clear()
        self._unrecorded.clear()
        self.outstanding = self.claimed = 0
        for segment_seq in sorted(self._segments):
            segment = self._segments[segment_seq]
            if not segment.condemned:
                claimed = segment.claimed
                segment.done = self._before(segment_seq, segment.count)
                segment.dropped &= segment.done
                segment.unrecorded &= segment.done  # what comes again is not refused
                behind = _ones(segment.count) ^ segment.done
                segment.free = behind & ~claimed
            self._index(segment_seq, segment)

    def _index(self, segment_seq: int, segment: _Segment) -> None:
        """Count a segment in, after its bitmaps were set; segments come in rising order."""
        segment.left = segment.count - segment.done.bit_count()
        self.outstanding += segment.left
        self.claimed += segment.left - segment.free.bit_count()
        if segment.free:
            self._ready.append(segment_seq)
        if segment.left:
            self._unfinished.append(segment_seq)
        if segment.done:
            self._marked.add(segment_seq)
        if segment.unrecorded:
            self._unrecorded.add(segment_seq)

    @property
    def frontier(self) -> BundleRef | None:
        """The oldest bundle that isn't done: everything before it is. ``None``: all is done."""
        if not self._unfinished:
            return None
        segment_seq = self._unfinished[0]
        return BundleRef(segment_seq, _lowest(~self._segments[segment_seq].done))

    def oldest_incomplete(self, open_segment: int) -> int:
        """The first segment that isn't finished; ``open_segment`` can't be, it still grows."""
        return min(self._unfinished[0], open_segment) if self._unfinished else open_segment

    # Questions

    @property
    def segments(self) -> list[int]:
        """The segments that are here, in order."""
        return sorted(self._segments)

    def is_complete(self, segment_seq: int, total: int) -> bool:
        """Are all ``total`` bundles of this segment done?"""
        return self.pending_in(segment_seq, total) == 0

    def pending_in(self, segment_seq: int, visible: int) -> int:
        """How many of the first ``visible`` bundles of a segment aren't done (claimed too)."""
        segment = self._segments.get(segment_seq)
        if segment is not None and segment.count == visible:
            return segment.left
        return self.unfinished_in(segment_seq, visible).bit_count()

    def unfinished_in(self, segment_seq: int, visible: int) -> int:
        """Which of the first ``visible`` bundles of a segment aren't done, as a bitmap."""
        segment = self._segments.get(segment_seq)
        done = segment.done if segment else 0
        if segment is None or segment.count != visible:
            done |= self._before(segment_seq, visible)
        return _ones(visible) & ~done

    def unfinished(self) -> list[tuple[int, int]]:
        """Segments with something not done, in order, with how much."""
        return [(seq, self._segments[seq].left) for seq in self._unfinished]

    def outstanding_refs(self, first: int, last: int) -> Iterator[BundleRef]:
        """Bundles not done in segments ``first`` to ``last``, both included, in order."""
        low, high = bisect_left(self._unfinished, first), bisect_left(self._unfinished, last + 1)
        for segment_seq in self._unfinished[low:high]:
            segment = self._segments[segment_seq]
            for index in _indices(_ones(segment.count) & ~segment.done):
                yield BundleRef(segment_seq, index)

    # Keeping it

    @property
    def has_unrecorded(self) -> bool:
        """Whether there are rejects that the ledger doesn't have."""
        return bool(self._unrecorded)

    def unrecorded(self) -> dict[int, int]:
        """Rejects that the ledger doesn't have, by segment, as bitmaps."""
        return {seq: self._segments[seq].unrecorded for seq in sorted(self._unrecorded)}

    def recorded(self, rejects: Mapping[int, int]) -> None:
        """The ledger has these rejects, durably: from now on snapshots say that they are done."""
        for segment_seq, bits in rejects.items():
            segment = self._segments.get(segment_seq)
            if segment is not None:
                segment.unrecorded &= ~bits
                if not segment.unrecorded:
                    self._unrecorded.discard(segment_seq)

    def snapshot(self, open_segment: int) -> Progress:
        """What the progress file has to say; claims are not kept: they die with the process.

        ``open_segment`` is the lowest number that can still get visible bundles.
        """
        oldest = min([self.oldest_incomplete(open_segment), *self._unrecorded])
        entries = {}
        for segment_seq in self._marked:
            segment = self._segments[segment_seq]
            if segment_seq >= oldest or segment.dropped:
                kept = ~segment.unrecorded
                entries[segment_seq] = SegmentProgress(
                    segment.count, segment.done & kept, segment.dropped & kept
                )
        return Progress(oldest, entries)

    @classmethod
    def restore(
        cls, progress: Progress, totals: Mapping[int, int], *, file: str = ""
    ) -> SubscriberState:
        """Go on from a snapshot, with the segments that are here now and their bundles.

        Bundles beyond the stored count are pending; a mark beyond what was found belongs
        to no bundle, so either the file or the data is damaged: ``ProgressCorrupt``.
        Stored segments that are here no more are left out.
        """
        state = cls(BundleRef(progress.oldest_incomplete, 0))
        for segment_seq in sorted(totals):
            entry = progress.entries.get(segment_seq)
            total = totals[segment_seq]
            if entry is None:
                state.observe(segment_seq, total)
                continue
            if entry.done >> total:
                raise progress_corrupt(
                    file,
                    f"it marks bundle {segment_seq}.{entry.done.bit_length() - 1},"
                    f" but the segment has {total:,}",
                    segment=segment_seq,
                )
            segment = state._segments[segment_seq] = _Segment()
            segment.count = total
            segment.done, segment.dropped = entry.done, entry.dropped
            segment.free = _ones(total) ^ entry.done
            state._index(segment_seq, segment)
        state._seen_below = max(progress.first_unused_segment, max(totals, default=-1) + 1)
        return state


def _ones(count: int) -> int:
    return (1 << count) - 1


def _lowest(bitmap: int) -> int:
    return (bitmap & -bitmap).bit_length() - 1


def _indices(bitmap: int) -> Iterator[int]:
    while bitmap:
        index = _lowest(bitmap)
        yield index
        bitmap &= bitmap - 1


def _include(numbers: list[int], number: int) -> None:
    if not numbers or number > numbers[-1]:
        numbers.append(number)
    else:
        insort(numbers, number)


def _exclude(numbers: list[int], number: int) -> None:
    del numbers[bisect_left(numbers, number)]
