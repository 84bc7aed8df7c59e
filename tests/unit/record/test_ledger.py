"""The ledger by itself: rows, totals, what it covers, and what the metrics show of it."""

from __future__ import annotations

from quiver.format.state import (
    REJECTED,
    Checkpoint,
    Loss,
    LostRefs,
    decode_state,
    encode_state,
    index_ranges,
)
from quiver.ids import MAX_BUNDLES_PER_SEGMENT, BundleRef
from quiver.metrics import LEDGER_BUNDLES, SEGMENT_DROPPED, SUBSCRIBER_DROPPED, SUBSCRIBER_LOST
from quiver.metrics import Metrics as Instruments
from quiver.record.ledger import MAX_ENTRIES, MAX_RANGES, MAX_SUBSCRIBERS, Ledger
from quiver.recovery.losses import loss_of


def test_several_rows_of_one_segment() -> None:
    """Scenario: one bundle of a segment is lost, later another two. Guarantee: both rows stay,
    the ledger covers just those bundles, and the segment counts once."""
    ledger = Ledger()
    ledger.record(Loss(4, 1, 10, "damaged", 1, {"a": 1}, ((2, 3),)))
    ledger.record(Loss(4, 2, 20, "damaged", 2, {"a": 2}, ((0, 1), (5, 6))))
    assert [ledger.covers(BundleRef(4, index)) for index in range(7)] == [
        *(True, False, True, False, False, True, False)
    ]
    assert not ledger.covers(BundleRef(3, 2))
    assert ledger.totals == {
        "damaged.segments": 1,
        "damaged.bundles": 3,
        "damaged.bytes": 30,
        "damaged.subscriber.a": 3,
    }


def test_a_row_without_indexes_covers_all_of_a_segment() -> None:
    """A segment of which nothing is left is on record whole; a loss that can't be put down to
    bundles covers none."""
    ledger = Ledger([Loss(1, 4, 0, "damaged", 0, {}, exact=False)])
    assert ledger.covers(BundleRef(1, 60_000))
    ledger = Ledger([Loss(1, 4, 0, "damaged", 0, {}, (), exact=False)])
    assert not ledger.covers(BundleRef(1, 0))


def test_bounded_with_totals_kept() -> None:
    """Scenario: more losses, and more subscribers, than are kept one by one. Guarantee: the
    oldest rows go, the totals stay right."""
    ledger = Ledger()
    for number in range(MAX_ENTRIES + 5):
        ledger.record(Loss(number, 1, 0, "size", number, {f"s{number}": 1}))
    assert len(ledger.losses) == MAX_ENTRIES
    assert not ledger.covers(BundleRef(0, 0))
    assert ledger.totals["size.bundles"] == ledger.totals["size.segments"] == MAX_ENTRIES + 5
    named = {key: count for key, count in ledger.totals.items() if ".subscriber." in key}
    assert len(named) == MAX_SUBSCRIBERS + 1
    assert sum(named.values()) == MAX_ENTRIES + 5


def test_a_bitmap_as_ranges() -> None:
    """Guarantee: half-open ranges in order, each as long as it can be."""
    assert index_ranges(0) == ()
    assert index_ranges(0b1) == ((0, 1),)
    assert index_ranges(0b1100_0110) == ((1, 3), (6, 8))
    assert index_ranges((1 << 65_536) - 1) == ((0, 65_536),)


def test_a_reject_is_recorded_once() -> None:
    """Scenario: the same bundles are rejected again, alone and with another one. Guarantee: one row
    for the segment and subscriber, nothing counted twice, nothing to write where nothing is new."""
    ledger = Ledger()
    ledger.record_reject("a", 4, 0b0110, 1)
    ledger.dirty = False
    ledger.record_reject("a", 4, 0b0100, 2)
    assert not ledger.dirty
    ledger.record_reject("a", 4, 0b1100, 3)
    ledger.record_reject("b", 4, 0b0001, 4)
    assert ledger.losses == (
        Loss(4, 3, 0, REJECTED, 3, {"a": 3}, ((1, 4),)),
        Loss(4, 1, 0, REJECTED, 4, {"b": 1}, ((0, 1),)),
    )
    assert ledger.totals == {
        "rejected.bundles": 4,
        "rejected.subscriber.a": 3,
        "rejected.subscriber.b": 1,
    }
    again = Ledger(ledger.losses, ledger.totals)
    again.record_reject("a", 4, 0b1110, 5)
    assert (again.dirty, again.losses) == (False, ledger.losses)


def test_rejects_are_not_losses() -> None:
    """Scenario: a segment of which bundles were rejected, and nothing else. Guarantee: no question
    about losses counts them; `covers` does."""
    ledger = Ledger()
    ledger.record_reject("a", 4, 0b1, 1)
    assert ledger.covers(BundleRef(4, 0))
    assert not ledger.has_lost(BundleRef(4, 0))
    assert 4 not in ledger
    assert ledger.indexes(4) == 0


def test_a_row_of_rejects_is_bounded() -> None:
    """Scenario: every third bundle of a segment is rejected, one by one, but for a wide gap.
    Guarantee: at most so many ranges, which name every bundle that was rejected; the count is
    what they name, says that it is an upper bound, and agrees with the total; the widest gap
    stays open."""
    ledger = Ledger()
    rejected = [index for index in range(0, 900, 3) if not 300 <= index < 400]
    for index in rejected:
        ledger.record_reject("a", 1, 1 << index, index)
    (row,) = ledger.losses
    assert row.indexes is not None
    assert len(row.indexes) == MAX_RANGES
    assert not row.exact
    assert all(ledger.covers(BundleRef(1, index)) for index in rejected)
    assert not ledger.covers(BundleRef(1, 350))
    assert row.bundles == sum(end - first for first, end in row.indexes) > len(rejected)
    assert ledger.totals == {"rejected.bundles": row.bundles, "rejected.subscriber.a": row.bundles}


def test_damage_is_evicted_last() -> None:
    """Scenario: a full ledger with rows of damage, policies and rejects gets more. Guarantee:
    rejects go first, then what policies dropped, each oldest first; the new row stays, whatever
    it is; the totals are right. What the oldest row of damage named is still lost."""
    damage = [Loss(seq, 1, 0, "damaged", 0, {"a": 1}) for seq in range(MAX_ENTRIES - 4)]
    ledger = Ledger(damage[:2])
    for seq in (1, 2):
        ledger.record_reject("a", seq, 1, 0)
    for seq in (1, 2):
        ledger.record(Loss(seq, 1, 0, "size", 0, {"a": 1}))
    for loss in damage[2:]:
        ledger.record(loss)

    def others() -> list[tuple[str, int]]:
        return [(o.reason, o.segment_seq) for o in ledger.losses if o.reason != "damaged"]

    assert others() == [(REJECTED, 1), (REJECTED, 2), ("size", 1), ("size", 2)]
    ledger.record_reject("a", 3, 1, 0)
    assert others() == [(REJECTED, 2), ("size", 1), ("size", 2), (REJECTED, 3)]
    for seq in range(2000, 2004):
        ledger.record(Loss(seq, 1, 0, "damaged", 0, {"a": 1}))
    assert others() == []
    ledger.record_reject("a", 4, 1, 0)
    assert others() == [(REJECTED, 4)]
    assert len(ledger.losses) == MAX_ENTRIES
    assert ledger.losses[0].segment_seq == 1, "the oldest damage went last"
    assert ledger.has_lost(BundleRef(0, 0))
    assert ledger.totals["rejected.bundles"] == 4


def test_the_metrics_show_what_the_ledger_says() -> None:
    """Scenario: losses from before this process, one row of 0.1.0 among them, then one more.
    Guarantee: gauges and counters are right at the first look, and after it."""
    ledger = Ledger([Loss(1, 3, 0, "damaged", 0, {"a": 2})], {"damaged.bundles": 3})
    ledger.record(Loss(2, 5, 0, "size", 0, {"a": 4, "b": 5}))
    instruments = Instruments()
    ledger.show_in(instruments)
    assert instruments.gauge(LEDGER_BUNDLES, reason="damaged").value == 3
    assert instruments.counter(SUBSCRIBER_LOST, subscriber="a").value == 2
    assert instruments.counter(SEGMENT_DROPPED, reason="size").value == 1
    ledger.record(Loss(3, 1, 0, "size", 0, {"b": 1}))
    assert instruments.gauge(LEDGER_BUNDLES, reason="size").value == 6
    assert instruments.counter(SUBSCRIBER_DROPPED, subscriber="b", reason="size").value == 6
    assert instruments.counter(SEGMENT_DROPPED, reason="size").value == 2


def test_what_counts_as_lost() -> None:
    """Each bundle once, for whoever had not finished it; nothing if all had; everything if
    there is no subscriber at all."""
    loss = loss_of(7, 0b1111, {"a": 0b1100, "b": 0b0101, "c": 0}, "size", 9, 100)
    assert loss == Loss(7, 3, 100, "size", 9, {"a": 2, "b": 2}, ((0, 1), (2, 4)))
    assert loss_of(7, 0b11, {"a": 0b100, "b": 0}, "size", 9) is None
    assert loss_of(7, 0b11, {}, "size", 9) == Loss(7, 2, 0, "size", 9, {}, ((0, 2),))


def test_what_is_lost_is_known_without_its_row() -> None:
    """Scenario: more rows of damage than are kept, whole segments and parts of them. Guarantee:
    what they name stays on record, segments in a row together, at most so many; a policy's
    drops are not among it."""
    ledger = Ledger()
    ledger.record(Loss(0, 1, 0, "size", 0, {}))
    for seq in range(1, 4):
        ledger.record(Loss(seq, 2, 0, "damaged", 0, {}, ((0, 2),)))
    ledger.record(Loss(4, 3, 0, "damaged", 0, {}, ((0, 1), (5, 7))))
    ledger.record(Loss(5, 9, 0, "damaged", 0, {}))
    ledger.record(Loss(6, 9, 0, "damaged", 0, {}, (), exact=False))
    for seq in range(100, 100 + MAX_ENTRIES):
        ledger.record(Loss(seq, 1, 0, "damaged", 0, {}, ((0, 1),)))
    assert ledger.losses[0].segment_seq == 100
    state = decode_state(encode_state(ledger.kept_in(Checkpoint())))
    assert state.older_losses == (
        LostRefs((1, 4), (0, 2)),
        LostRefs((4, 5), (0, 1)),
        LostRefs((4, 5), (5, 7)),
        LostRefs((5, 6), (0, MAX_BUNDLES_PER_SEGMENT)),
    )
    for known in (ledger, Ledger.of(state)):
        for ref in ((1, 1), (3, 0), (4, 0), (4, 6), (5, 8), (100, 0)):
            assert known.has_lost(BundleRef(*ref)), ref
            assert known.covers(BundleRef(*ref)), ref
        for ref in ((0, 0), (1, 2), (4, 1), (4, 7), (6, 0), (100, 1)):
            assert not known.has_lost(BundleRef(*ref)), ref
        assert known.indexes(4) == 0b1100001
        assert 3 in known
        assert 6 not in known
        assert known.lost_segments == {1, 2, 3, 4, 5, *range(100, 100 + MAX_ENTRIES)}
