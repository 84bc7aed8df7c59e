"""The state machine beside a naive model made of sets, in every mixture Hypothesis finds."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)

from quiver.errors import NotFound
from quiver.format.progress import decode_progress, encode_progress
from quiver.ids import BundleRef
from quiver.subscriber.state import Order, Outcome, SubscriberState

SEGMENTS = 6
BUNDLES = 5

refs = st.builds(BundleRef, st.integers(0, SEGMENTS), st.integers(0, BUNDLES))
picks = st.integers(0, 999)
outcomes = st.sampled_from(["ack", "reject", "drop", "release"])


class StateMachine(RuleBasedStateMachine):
    """Segments appear in order, the last one grows; any call may come at any time."""

    @initialize(
        start=st.builds(BundleRef, st.integers(0, 1), st.integers(0, BUNDLES)),
        backlog=st.lists(st.integers(1, BUNDLES), min_size=1, max_size=4),
    )
    def begin(self, start: BundleRef, backlog: list[int]) -> None:
        self.start = start
        self.state = SubscriberState(start)
        self.counts: dict[int, int] = {}
        self.open_segment = 0
        self.acked: set[BundleRef] = set()
        self.dropped: set[BundleRef] = set()
        self.unrecorded: set[BundleRef] = set()
        self.claimed: set[BundleRef] = set()
        self.condemned: set[int] = set()
        for count in backlog:
            self.grow(count, roll=True)

    # The model

    def visible(self) -> set[BundleRef]:
        return {BundleRef(s, n) for s, count in self.counts.items() for n in range(count)}

    def done(self) -> set[BundleRef]:
        return self.acked | self.dropped

    def pending(self) -> set[BundleRef]:
        return self.visible() - self.done() - self.claimed

    def expected(self, ref: BundleRef) -> Outcome:
        if ref in self.dropped:
            return Outcome.DROPPED
        if ref in self.acked:
            return Outcome.ACKED
        return Outcome.CLAIMED if ref in self.claimed else Outcome.PENDING

    # What happens

    @rule(more=st.integers(1, BUNDLES), roll=st.booleans())
    def more_arrives(self, more: int, roll: bool) -> None:
        self.grow(more, roll=roll)

    def grow(self, more: int, *, roll: bool) -> None:
        count = min(self.counts.get(self.open_segment, 0) + more, BUNDLES)
        if self.open_segment in self.condemned:
            assert self.state.observe(self.open_segment, count) == 0
            return
        fresh = {
            BundleRef(self.open_segment, n)
            for n in range(self.counts.get(self.open_segment, 0), count)
        }
        self.counts[self.open_segment] = count
        skipped = {ref for ref in fresh if ref < self.start}
        self.acked |= skipped
        assert self.state.observe(self.open_segment, count) == len(fresh - skipped)
        if roll and self.open_segment < SEGMENTS:
            self.open_segment += 1

    @rule(order=st.sampled_from(Order))
    def take_next(self, order: Order) -> None:
        pending = self.pending()
        ref = self.state.next_ref(order)
        if not pending:
            assert ref is None
            return
        assert ref == (min(pending) if order is Order.OLDEST else max(pending))
        assert self.state.claim(ref)
        self.claimed.add(ref)

    @rule(order=st.sampled_from(Order), left=st.integers(0, 3))
    def take_nearly_all(self, order: Order, left: int) -> None:
        while len(self.pending()) > left:
            self.take_next(order)

    @rule(pick=picks, how=outcomes)
    def settle_a_claim(self, pick: int, how: str) -> None:
        if self.claimed:
            self.resolve(sorted(self.claimed)[pick % len(self.claimed)], how)

    @rule(pick=picks, how=outcomes)
    def settle_what_is_there(self, pick: int, how: str) -> None:
        if visible := sorted(self.visible()):
            self.resolve(visible[pick % len(visible)], how)

    @rule(ref=refs)
    def take(self, ref: BundleRef) -> None:
        pending = ref in self.pending()
        assert self.state.claim(ref) is pending
        if pending:
            self.claimed.add(ref)

    @rule(ref=refs, how=outcomes)
    def settle_anything(self, ref: BundleRef, how: str) -> None:
        self.resolve(ref, how)

    def resolve(self, ref: BundleRef, how: str) -> None:
        call = getattr(self.state, how)
        if ref not in self.visible():
            if ref in self.dropped and ref in self.claimed:  # dropped and deleted meanwhile
                self.claimed.discard(ref)
                assert call(ref) is Outcome.DROPPED
            else:
                with pytest.raises(NotFound):
                    call(ref)
            return
        if ref not in self.done() and how != "release":
            (self.acked if how == "ack" else self.dropped).add(ref)
            if how == "reject":
                self.unrecorded.add(ref)
        self.claimed.discard(ref)
        assert call(ref) is self.expected(ref)

    @rule(ref=refs)
    def ack_all_before(self, ref: BundleRef) -> None:
        left = {one for one in self.visible() - self.done() if one < ref}
        self.acked |= left
        self.claimed -= left
        assert self.state.ack_before(ref) == len(left)

    @rule(ref=refs)
    def seek(self, ref: BundleRef) -> None:
        self.start = ref
        self.state.seek(ref)
        here = {one for one in self.visible() if one.segment_seq not in self.condemned}
        before = {one for one in here if one < ref}
        self.acked |= before - self.dropped
        self.claimed -= before
        self.acked -= here - before
        self.dropped -= here - before
        self.unrecorded -= here - before

    @rule()
    def put_on_record(self) -> None:
        """The ledger has all rejects so far."""
        self.state.recorded(self.state.unrecorded())
        self.unrecorded.clear()

    @precondition(lambda self: self.counts)
    @rule(pick=picks)
    def drop(self, pick: int) -> None:
        segment_seq = sorted(self.counts)[pick % len(self.counts)]
        count = self.counts[segment_seq]
        given_up = {BundleRef(segment_seq, n) for n in range(count)} - self.done()
        assert self.state.drop_segment(segment_seq, count) == len(given_up)
        self.dropped |= given_up
        self.condemned.add(segment_seq)

    @precondition(lambda self: self.claimed)
    @rule(pick=picks)
    def drop_and_delete_under_a_claim(self, pick: int) -> None:
        """Retention takes a segment of which somebody still holds a bundle."""
        ref = sorted(self.claimed)[pick % len(self.claimed)]
        if ref in self.visible() and ref.segment_seq != self.open_segment:
            self.drop(sorted(self.counts).index(ref.segment_seq))
            self.delete()

    @rule()
    def delete(self) -> None:
        """What is dropped or done, and not the open one, goes; as in the store, behind the
        ledger."""
        self.put_on_record()
        for segment_seq in sorted(self.counts):
            whole = {BundleRef(segment_seq, n) for n in range(self.counts[segment_seq])}
            if segment_seq == self.open_segment or whole - self.done():
                continue
            assert self.state.forget(segment_seq) == 0
            del self.counts[segment_seq]
            self.acked -= whole
            self.dropped -= whole - self.claimed
            return

    @rule(extra=st.integers(0, 2))
    def restart(self, extra: int) -> None:
        """A crash: claims are gone, and so are rejects on no record; recovery may find more
        bundles than were seen."""
        snapshot = self.state.snapshot(self.open_segment)
        progress = decode_progress(encode_progress(snapshot))
        count = self.counts.get(self.open_segment, 0)
        if count and self.open_segment not in self.condemned:
            self.counts[self.open_segment] = min(count + extra, BUNDLES)
        self.state = SubscriberState.restore(progress, self.counts)
        # Only what is visible can be kept; a start ahead of that is not.
        self.start = BundleRef(progress.oldest_incomplete, 0)
        self.claimed.clear()
        self.condemned.clear()
        self.dropped &= self.visible() - self.unrecorded
        self.unrecorded.clear()

    # What holds all the time

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "state"):
            return
        visible = self.visible()
        for ref in visible:
            assert self.state.outcome(ref) is self.expected(ref), ref
        rejects = {
            BundleRef(seq, index)
            for seq, bits in self.state.unrecorded().items()
            for index in range(BUNDLES)
            if bits >> index & 1
        }
        assert rejects == self.unrecorded
        assert self.state.has_unrecorded is bool(rejects)
        pending = self.pending()
        assert self.state.next_ref(Order.OLDEST) == min(pending, default=None)
        assert self.state.next_ref(Order.NEWEST) == max(pending, default=None)
        left = visible - self.done()
        assert self.state.outstanding == len(left)
        assert self.state.claimed == len(self.claimed & left)
        assert self.state.frontier == min(left, default=None)
        assert list(self.state.outstanding_refs(0, SEGMENTS)) == sorted(left)
        assert self.state.oldest_incomplete(self.open_segment) == min(
            [ref.segment_seq for ref in left] + [self.open_segment]
        )
        for segment_seq, count in self.counts.items():
            here = len([ref for ref in left if ref.segment_seq == segment_seq])
            assert self.state.pending_in(segment_seq, count) == here
            assert self.state.is_complete(segment_seq, count) is (here == 0)


StateMachine.TestCase.settings = settings(max_examples=200, stateful_step_count=50, deadline=None)
TestStateMachine = StateMachine.TestCase
