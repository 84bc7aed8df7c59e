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


class StateMachine(RuleBasedStateMachine):
    """Segments appear in order, the last one grows; any call may come at any time."""

    @initialize(start=refs)
    def begin(self, start: BundleRef) -> None:
        self.start = start
        self.state = SubscriberState(start)
        self.counts: dict[int, int] = {}
        self.open_segment = 0
        self.acked: set[BundleRef] = set()
        self.dropped: set[BundleRef] = set()
        self.claimed: set[BundleRef] = set()
        self.condemned: set[int] = set()
        self.deleted: set[int] = set()

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

    @rule(more=st.integers(0, 2))
    def grow(self, more: int) -> None:
        count = min(self.counts.get(self.open_segment, 0) + more, BUNDLES)
        if self.open_segment in self.condemned | self.deleted:
            return
        fresh = {
            BundleRef(self.open_segment, n)
            for n in range(self.counts.get(self.open_segment, 0), count)
        }
        self.counts[self.open_segment] = count
        skipped = {ref for ref in fresh if ref < self.start}
        self.acked |= skipped
        assert self.state.observe(self.open_segment, count) == len(fresh - skipped)

    @precondition(lambda self: self.open_segment < SEGMENTS)
    @rule()
    def roll(self) -> None:
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

    @rule(ref=refs)
    def take(self, ref: BundleRef) -> None:
        pending = ref in self.pending()
        assert self.state.claim(ref) is pending
        if pending:
            self.claimed.add(ref)

    @rule(ref=refs, how=st.sampled_from(["ack", "reject", "release"]))
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
        self.claimed.discard(ref)
        assert call(ref) is self.expected(ref)

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

    @rule(segment_seq=st.integers(0, SEGMENTS))
    def drop(self, segment_seq: int) -> None:
        if segment_seq not in self.counts:
            return
        count = self.counts[segment_seq]
        given_up = {BundleRef(segment_seq, n) for n in range(count)} - self.done()
        assert self.state.drop_segment(segment_seq, count) == len(given_up)
        self.dropped |= given_up
        self.condemned.add(segment_seq)

    @rule()
    def delete(self) -> None:
        """What is dropped or done, and not the open one, goes; as in the store."""
        for segment_seq in sorted(self.counts):
            whole = {BundleRef(segment_seq, n) for n in range(self.counts[segment_seq])}
            if segment_seq == self.open_segment or whole - self.done():
                continue
            assert self.state.forget(segment_seq) == 0
            del self.counts[segment_seq]
            self.deleted.add(segment_seq)
            self.acked -= whole
            self.dropped -= whole - self.claimed
            return

    @rule(extra=st.integers(0, 2))
    def restart(self, extra: int) -> None:
        """A crash: claims are gone, and recovery may find more bundles than were seen."""
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
        self.dropped &= self.visible()

    # What holds all the time

    @invariant()
    def agrees(self) -> None:
        if not hasattr(self, "state"):
            return
        visible = self.visible()
        for ref in visible:
            assert self.state.outcome(ref) is self.expected(ref), ref
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


StateMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestStateMachine = StateMachine.TestCase
