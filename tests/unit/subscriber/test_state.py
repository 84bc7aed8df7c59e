"""The state machine, scenario by scenario; `test_state_model.py` tries all the mixtures."""

from __future__ import annotations

import pytest

from quiver.errors import BundleGone, ProgressCorrupt, UnknownBundle
from quiver.format.progress import Progress, SegmentProgress
from quiver.ids import BundleRef
from quiver.subscriber.state import EARLIEST, Order, Outcome, SubscriberState


def state_of(counts: dict[int, int], start: BundleRef = EARLIEST) -> SubscriberState:
    state = SubscriberState(start)
    for segment_seq, count in counts.items():
        state.observe(segment_seq, count)
    return state


def drain(state: SubscriberState, order: Order = Order.OLDEST) -> list[BundleRef]:
    """Claim all there is, in order."""
    refs: list[BundleRef] = []
    while (ref := state.next_ref(order)) is not None:
        assert state.claim(ref)
        refs.append(ref)
    return refs


def finish(state: SubscriberState, segment_seq: int, count: int) -> None:
    for index in range(count):
        state.ack(BundleRef(segment_seq, index))


def test_oldest_first() -> None:
    """Bundles come in the order they were put, across segments."""
    assert drain(state_of({3: 2, 4: 1})) == [(3, 0), (3, 1), (4, 0)]


def test_newest_first_with_backfill() -> None:
    """The newest comes first, also when it arrives in the middle of the backlog."""
    state = state_of({3: 2, 4: 2})
    first = state.next_ref(Order.NEWEST)
    assert first == (4, 1)
    state.claim(first)
    state.observe(4, 3)
    assert drain(state, Order.NEWEST) == [(4, 2), (4, 0), (3, 1), (3, 0)]


def test_claimed_is_never_given_twice() -> None:
    """One bundle, one holder: neither order nor a claim by name hands it out again."""
    state = state_of({0: 1})
    ref = BundleRef(0, 0)
    assert state.claim(ref)
    assert not state.claim(ref)
    assert state.next_ref() is None
    assert state.next_ref(Order.NEWEST) is None
    assert state.outcome(ref) is Outcome.CLAIMED
    assert state.claimed == 1


def test_release_brings_it_back() -> None:
    """A bundle given back is pending, and first in line again."""
    state = state_of({0: 2})
    assert drain(state) == [(0, 0), (0, 1)]
    assert state.release(BundleRef(0, 0)) is Outcome.PENDING
    assert state.release(BundleRef(0, 0)) is Outcome.PENDING
    assert state.next_ref() == (0, 0)
    assert state.claimed == 1


def test_released_into_the_middle() -> None:
    """An older segment gets work back while newer ones have some: it is served in its place."""
    state = state_of({0: 1, 1: 1, 2: 1})
    for segment_seq in (0, 1):
        state.claim(BundleRef(segment_seq, 0))
    state.release(BundleRef(1, 0))
    state.release(BundleRef(0, 0))
    assert state.next_ref(Order.NEWEST) == (2, 0)
    assert drain(state) == [(0, 0), (1, 0), (2, 0)]


def test_rejected_then_sought_back_then_acked() -> None:
    """A second delivery starts with a clean slate: its ack is an ack, not the old drop."""
    state = state_of({0: 1})
    ref = BundleRef(0, 0)
    state.reject(ref)
    state.seek(ref)
    assert state.ack(ref) is Outcome.ACKED
    assert state.outcome(ref) is Outcome.ACKED


def test_condemned_segments_do_not_grow() -> None:
    """A segment that is about to be deleted gets no new work, whatever is reported late."""
    state = state_of({0: 1})
    state.drop_segment(0, 1)
    assert state.observe(0, 3) == 0
    assert state.next_ref() is None


def test_first_outcome_stays() -> None:
    """Outcomes are final: a second one is answered with the first, and changes nothing."""
    state = state_of({0: 2})
    acked, dropped = BundleRef(0, 0), BundleRef(0, 1)
    assert state.ack(acked) is Outcome.ACKED
    assert state.reject(dropped) is Outcome.DROPPED
    before = state.changes
    assert state.reject(acked) is Outcome.ACKED
    assert state.ack(dropped) is Outcome.DROPPED
    assert state.release(acked) is Outcome.ACKED
    assert state.release(dropped) is Outcome.DROPPED
    assert not state.claim(acked)
    assert state.changes == before
    assert state.outstanding == 0


def test_ack_needs_no_claim_and_no_order() -> None:
    """Acks come in any order; the frontier stays at the oldest bundle that isn't done."""
    state = state_of({0: 3, 1: 1})
    assert state.frontier == (0, 0)
    for ref in [(1, 0), (0, 2), (0, 0)]:
        state.ack(BundleRef(*ref))
        assert state.oldest_incomplete(2) == 0
    assert state.frontier == (0, 1)
    state.ack(BundleRef(0, 1))
    assert state.oldest_incomplete(2) == 2
    assert not state.frontier


def test_claimed_holds_the_frontier() -> None:
    """What is claimed isn't done: a crash must deliver it again."""
    state = state_of({0: 1, 1: 1})
    state.claim(BundleRef(0, 0))
    state.ack(BundleRef(1, 0))
    assert state.frontier == (0, 0)
    assert state.snapshot(2) == Progress(0, {1: SegmentProgress(1, 1)})


def test_oldest_never_passes_the_open_segment() -> None:
    """All bundles so far done: the open segment still isn't, more will come to it."""
    state = state_of({5: 2})
    finish(state, 5, 2)
    assert state.oldest_incomplete(5) == 5
    assert state.snapshot(5) == Progress(5, {5: SegmentProgress(2, 0b11)})
    assert state.snapshot(6) == Progress(6)


def test_visible_count_grows_and_never_shrinks() -> None:
    """Group after group becomes visible; a late lower count is old news."""
    state = SubscriberState()
    assert state.observe(5, 2) == 2
    assert state.observe(5, 5) == 3
    assert state.observe(5, 4) == 0
    assert len(drain(state)) == 5


def test_unknown_and_gone() -> None:
    """A ref never given out is unknown; one whose segment was deleted is gone, and says so."""
    state = state_of({3: 1})
    for ref in [(3, 1), (3, -1), (4, 0), (-1, 0)]:
        with pytest.raises(UnknownBundle):
            state.ack(BundleRef(*ref))
        with pytest.raises(UnknownBundle):
            state.outcome(BundleRef(*ref))
        assert not state.claim(BundleRef(*ref))
    finish(state, 3, 1)
    assert state.forget(3) == 0
    for call in (state.ack, state.reject, state.release, state.outcome):
        with pytest.raises(BundleGone) as caught:
            call(BundleRef(3, 0))
        assert caught.value.details["outcome"] == "deleted"


# Retention


def test_drop_segment_gives_up_the_rest() -> None:
    """Retention takes a segment: what was open is dropped, claims too, outcomes stay."""
    state = state_of({3: 4, 4: 1})
    state.ack(BundleRef(3, 0))
    state.claim(BundleRef(3, 1))
    assert state.drop_segment(3, 5) == 4
    assert [state.outcome(BundleRef(3, n)) for n in range(5)] == ["acked"] + ["dropped"] * 4
    assert state.drop_segment(3, 5) == 0
    assert state.next_ref() == (4, 0)
    assert (state.outstanding, state.claimed) == (1, 0)
    assert state.snapshot(5) == Progress(4, {3: SegmentProgress(5, 0b11111, 0b11110)})


@pytest.mark.parametrize("deleted", [False, True])
def test_late_ack_of_a_dropped_claim_says_so(deleted: bool) -> None:
    """Who held a bundle when retention took it learns that, also after the file is gone."""
    state = state_of({3: 3})
    for index in range(3):
        state.claim(BundleRef(3, index))
    state.drop_segment(3, 3)
    if deleted:
        state.forget(3)
    assert state.outcome(BundleRef(3, 0)) is Outcome.DROPPED
    assert state.ack(BundleRef(3, 0)) is Outcome.DROPPED
    assert state.reject(BundleRef(3, 1)) is Outcome.DROPPED
    assert state.release(BundleRef(3, 2)) is Outcome.DROPPED
    if deleted:  # told once, then nothing of it is kept
        with pytest.raises(BundleGone):
            state.ack(BundleRef(3, 0))


def test_forget_unfinished_is_counted() -> None:
    """A segment that vanishes with work left pins nothing, and the loss is known."""
    state = state_of({3: 3, 4: 1})
    state.ack(BundleRef(3, 0))
    assert state.forget(3) == 2
    assert state.oldest_incomplete(5) == 4
    assert state.segments == [4]
    assert state.forget(3) == 0


def test_drop_all() -> None:
    """A subscriber that leaves gives up everything that isn't done, and only that."""
    state = state_of({3: 2, 4: 3})
    state.ack(BundleRef(3, 0))
    state.claim(BundleRef(4, 1))
    assert state.drop_all() == 4
    assert state.outstanding == state.claimed == 0
    assert state.outcome(BundleRef(3, 0)) is Outcome.ACKED
    assert state.ack(BundleRef(4, 1)) is Outcome.DROPPED


# Positions


def test_start_latest_presets_the_open_segment() -> None:
    """`latest` in the middle of the open segment: what is in it is done, what comes is not."""
    state = state_of({3: 2, 4: 3}, start=BundleRef(4, 3))
    assert state.next_ref() is None
    state.observe(4, 5)
    assert drain(state) == [(4, 3), (4, 4)]
    assert state.snapshot(4) == Progress(4, {4: SegmentProgress(5, 0b00111)})


def test_start_ahead_of_what_is_visible() -> None:
    """`latest` while puts are on their way: those are skipped when they appear.

    Only visible ones are marked, so a crash that loses them leaves no mark behind.
    """
    state = state_of({4: 1}, start=BundleRef(4, 3))
    assert state.snapshot(4) == Progress(4, {4: SegmentProgress(1, 0b1)})
    before = state.changes
    assert state.observe(4, 2) == 0
    assert state.changes > before
    assert state.observe(4, 4) == 1
    assert state.next_ref() == (4, 3)


def test_start_at_a_ref() -> None:
    """A start inside the backlog skips what is before it."""
    state = state_of({3: 2, 4: 3, 5: 1}, start=BundleRef(4, 1))
    assert drain(state) == [(4, 1), (4, 2), (5, 0)]
    assert state.is_complete(3, 2)


def test_seek_back_delivers_again() -> None:
    """Seeking back makes done bundles pending, rejected ones too; the file says so."""
    state = state_of({3: 2, 4: 2})
    finish(state, 3, 2)
    state.ack(BundleRef(4, 0))
    state.reject(BundleRef(4, 1))
    state.seek(BundleRef(3, 1))
    assert state.outstanding == 3
    assert state.snapshot(5) == Progress(3, {3: SegmentProgress(2, 0b01)})
    assert drain(state) == [(3, 1), (4, 0), (4, 1)]


def test_seek_back_leaves_claims_with_their_holder() -> None:
    """Seeking doesn't hand a bundle out a second time while somebody has it."""
    state = state_of({3: 3})
    state.claim(BundleRef(3, 1))
    state.seek(BundleRef(3, 0))
    assert drain(state) == [(3, 0), (3, 2)]
    assert state.claimed == 3
    assert state.ack(BundleRef(3, 1)) is Outcome.ACKED


def test_seek_forward_skips() -> None:
    """Seeking forward finishes what is passed over, claims too; drops on record stay drops."""
    state = state_of({3: 3, 4: 2})
    state.reject(BundleRef(3, 0))
    state.claim(BundleRef(3, 1))
    state.seek(BundleRef(4, 1))
    assert state.ack(BundleRef(3, 1)) is Outcome.ACKED
    assert state.outcome(BundleRef(3, 0)) is Outcome.DROPPED
    assert (state.outstanding, state.claimed) == (1, 0)
    assert drain(state) == [(4, 1)]


def test_seek_back_stops_at_what_is_condemned() -> None:
    """A segment that retention took isn't brought back: its file is about to go."""
    state = state_of({3: 1, 4: 1})
    state.drop_segment(3, 1)
    state.ack(BundleRef(4, 0))
    state.seek(BundleRef(0, 0))
    assert drain(state) == [(4, 0)]
    assert state.outcome(BundleRef(3, 0)) is Outcome.DROPPED


# Questions


def test_pending_counts() -> None:
    """Counts agree with what is left, for what was seen and for what wasn't yet."""
    state = state_of({3: 4}, start=BundleRef(2, 1))
    state.ack(BundleRef(3, 2))
    assert state.pending_in(3, 4) == 3
    assert state.pending_in(3, 6) == 5
    assert state.pending_in(3, 2) == 2
    assert state.pending_in(4, 7) == 7
    assert state.pending_in(2, 3) == 2
    assert state.pending_in(1, 3) == 0
    assert state.is_complete(1, 3)
    assert not state.is_complete(3, 4)
    finish(state, 3, 4)
    assert state.is_complete(3, 4)
    assert not state.is_complete(3, 5)


def test_outstanding_refs_in_a_range() -> None:
    """The bundles of a range of segments that aren't done, claimed ones among them."""
    state = state_of({2: 1, 3: 3, 4: 1, 6: 1})
    state.ack(BundleRef(3, 1))
    state.claim(BundleRef(3, 0))
    assert list(state.outstanding_refs(3, 5)) == [(3, 0), (3, 2), (4, 0)]
    assert list(state.outstanding_refs(5, 5)) == []


# Keeping it


def test_restore_finds_more_than_was_stored() -> None:
    """The log held more bundles than the file knew: the extra ones are pending."""
    state = SubscriberState.restore(Progress(4, {4: SegmentProgress(2, 0b11)}), {3: 5, 4: 4})
    assert drain(state) == [(4, 2), (4, 3)]
    assert state.is_complete(3, 5)


def test_restore_of_a_mark_beyond_what_was_found() -> None:
    """An acked bundle that isn't there any more is damage, never a silent difference."""
    with pytest.raises(ProgressCorrupt, match=r"4\.2.*has 2") as caught:
        SubscriberState.restore(
            Progress(4, {4: SegmentProgress(3, 0b100)}), {4: 2}, file="quiver.sub.x"
        )
    assert caught.value.details["file"] == "quiver.sub.x"


def test_restore_with_fewer_bundles_and_no_mark_beyond() -> None:
    """A count that is too high marks nothing that is missing: only what is there counts."""
    state = SubscriberState.restore(Progress(4, {4: SegmentProgress(3, 0b001)}), {4: 2})
    assert drain(state) == [(4, 1)]


def test_restore_forgets_deleted_segments() -> None:
    """A file may list segments that are gone: they hold nothing back, and nothing is stuck."""
    state = SubscriberState.restore(
        Progress(1, {1: SegmentProgress(3, 0b001), 3: SegmentProgress(2, 0b01)}), {3: 2}
    )
    assert state.oldest_incomplete(4) == 3
    assert drain(state) == [(3, 1)]
    with pytest.raises(BundleGone):
        state.ack(BundleRef(1, 1))


def test_restore_of_a_rust_file_with_nothing_incomplete() -> None:
    """`oldest = 0` and complete entries: those are done, and whatever isn't listed is not."""
    progress = Progress(0, {0: SegmentProgress(2, 0b11), 1: SegmentProgress(1, 0b1)})
    state = SubscriberState.restore(progress, {0: 2, 1: 1, 2: 2})
    assert drain(state) == [(2, 0), (2, 1)]


def test_outcomes_survive_a_restart() -> None:
    """Acked and dropped are told apart after a restart, also in finished segments."""
    state = state_of({3: 2, 4: 2})
    state.ack(BundleRef(3, 0))
    state.reject(BundleRef(3, 1))
    state.reject(BundleRef(4, 1))
    state.recorded(state.unrecorded())
    again = SubscriberState.restore(state.snapshot(5), {3: 2, 4: 2})
    outcomes = [again.outcome(BundleRef(s, n)) for s, n in [(3, 0), (3, 1), (4, 0), (4, 1)]]
    assert outcomes == ["acked", "dropped", "pending", "dropped"]


def test_a_reject_on_no_record_is_not_in_a_snapshot() -> None:
    """Scenario: rejects in two segments that are finished with them; the ledger gets one of them.
    Guarantee: the state calls both done; a snapshot says it of the one on record only, and does
    not call the other's segment finished."""
    state = state_of({3: 2, 4: 2, 5: 1})
    for segment_seq in (3, 4):
        state.ack(BundleRef(segment_seq, 0))
        state.reject(BundleRef(segment_seq, 1))
    assert state.unrecorded() == {3: 0b10, 4: 0b10}
    assert state.is_complete(3, 2)
    assert state.snapshot(6) == Progress(
        3, {3: SegmentProgress(2, 0b01), 4: SegmentProgress(2, 0b01)}
    )
    state.recorded({3: 0b10})
    assert state.snapshot(6) == Progress(
        4, {3: SegmentProgress(2, 0b11, 0b10), 4: SegmentProgress(2, 0b01)}
    )
    state.recorded({4: 0b10})
    assert not state.has_unrecorded
    assert state.snapshot(6).oldest_incomplete == 5


def test_what_is_no_reject_needs_no_record() -> None:
    """Scenario: a bundle is dropped, another rejected after its ack, a third rejected and then
    sought back to. Guarantee: none of them waits for the ledger."""
    state = state_of({0: 3})
    assert state.drop(BundleRef(0, 0)) is Outcome.DROPPED
    state.ack(BundleRef(0, 1))
    assert state.reject(BundleRef(0, 1)) is Outcome.ACKED
    state.reject(BundleRef(0, 2))
    state.seek(BundleRef(0, 2))
    assert (state.unrecorded(), state.has_unrecorded) == ({}, False)
    assert state.snapshot(1).entries == {0: SegmentProgress(3, 0b011, 0b001)}


def test_finished_segments_are_not_listed() -> None:
    """A thousand finished segments make no file longer; out of order ones are listed."""
    state = state_of(dict.fromkeys(range(1000), 2))
    for segment_seq in range(1000):
        if segment_seq != 998:
            finish(state, segment_seq, 2)
    assert state.snapshot(1000) == Progress(998, {999: SegmentProgress(2, 0b11)})
