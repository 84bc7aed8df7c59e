"""The judge is judged: forged histories, one for each invariant, each named for what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.history import Note
from tests.chaos.judge import SENTENCES, Invariant, judge, shows_nothing

ROW = {"segment_seq": 0, "bundles": 1, "reason": "damaged", "subscribers": {"s": 1}}


REFUSED = {
    "segment_seq": 0,
    "bundles": 1,
    "reason": "rejected",
    "subscribers": {"s": 1},
    "indexes": [[0, 1]],
}


class Forger:
    """Writes histories; everything is told in the order of the calls."""

    def __init__(self) -> None:
        self.notes: list[Note] = []

    def note(self, kind: str, stream: str | None = "t", **fields: Any) -> Forger:
        if stream is not None:
            fields["stream"] = stream
        self.notes.append(Note(len(self.notes), "forger", kind, fields))
        return self

    def register(self, subscriber: str = "s") -> Forger:
        return self.note("registered", subscriber=subscriber)

    def put(self, name: str, ref: tuple[int, int], status: str = "ok") -> Forger:
        self.note("put", id=name, hash=f"hash of {name}", key=name)
        return self.note("answer", id=name, status=status, ref=ref, level="durable")

    def deliver(
        self, name: str, ref: tuple[int, int], content: str | None = None, to: str = "s"
    ) -> Forger:
        content = content or f"hash of {name}"
        return self.note("delivered", subscriber=to, ref=ref, id=name, hash=content)

    def ack(self, *refs: tuple[int, int], by: str = "s") -> Forger:
        return self.note("acked", subscriber=by, refs=refs)

    def read(self, name: str, ref: tuple[int, int]) -> Forger:
        return self.note("read", ref=ref, id=name, hash=f"hash of {name}")

    def commit(self, *names: str) -> Forger:
        """A transaction whose refs no answer tells."""
        for name in names:
            self.note("put", id=name, hash=f"hash of {name}", key=None, app="job", version=1)
        return self.note("committed", app="job", version=1)

    def reject(self, *refs: tuple[int, int]) -> Forger:
        return self.note("rejecting", subscriber="s", refs=refs)

    def rejected(self, *refs: tuple[int, int]) -> Forger:
        return self.reject(*refs).note("rejected", subscriber="s", refs=refs)

    def damage(self, **fields: Any) -> Forger:
        return self.note("trouble", what="damage", **fields)

    def end(self, *rows: dict[str, Any], state: str = "ok") -> Forger:
        self.note("status", state=state, problems=[])
        return self.note("ledger", rows=rows)


def good() -> Forger:
    return Forger().register().put("a", (0, 0)).deliver("a", (0, 0)).ack((0, 0)).end()


def missing() -> Forger:
    return Forger().register().put("a", (0, 0)).end()


def lost_in_silence() -> Forger:
    return Forger().register().put("a", (0, 0)).damage(segment=0).end(state="degraded")


def lost_for_another() -> Forger:
    row = {**ROW, "subscribers": {"other": 1}}
    return Forger().register().put("a", (0, 0)).damage(segment=0).end(row, state="degraded")


def counted_short() -> Forger:
    forger = Forger().register().put("a", (0, 0)).put("b", (0, 1)).damage(segment=0)
    return forger.end({**ROW, "bundles": 2}, state="degraded")


def lost_without_cause() -> Forger:
    return Forger().register().put("a", (0, 0)).end(ROW, state="degraded")


def counted_high() -> Forger:
    forger = Forger().register().put("a", (0, 0)).damage(segment=0)
    return forger.end({**ROW, "bundles": 2}, state="degraded")


def counted_as_lost_after_the_ack() -> Forger:
    forger = Forger().register().put("a", (0, 0)).deliver("a", (0, 0)).ack((0, 0))
    return forger.damage(segment=0).end(ROW, state="degraded")


def counted_what_all_had_finished() -> Forger:
    forger = Forger().register().put("a", (0, 0)).put("b", (0, 1))
    forger.deliver("a", (0, 0)).ack((0, 0)).damage(segment=0)
    return forger.end({**ROW, "bundles": 2}, state="degraded")


def row(*indexes: tuple[int, int], **fields: Any) -> dict[str, Any]:
    """A row that names these ranges of segment 0."""
    count = sum(end - first for first, end in indexes)
    named = {"bundles": count, "subscribers": {"s": count}, "indexes": indexes, "exact": True}
    return {**ROW, **named, **fields}


def six(damaged: bool = True) -> Forger:
    forger = Forger().register()
    for number in range(6):
        forger.put(f"b{number}", (0, number))
    return forger.damage(segment=0) if damaged else forger


def the_row_names_another() -> Forger:
    """Bundle 5 is missing; the row names bundle 0, which came."""
    forger = six()
    for number in range(5):
        forger.deliver(f"b{number}", (0, number))
    return forger.end(row((0, 1)), state="degraded")


def more_missing_than_a_row_leaves_open() -> Forger:
    """The row can't say which one it speaks of; two are missing."""
    forger = six()
    for number in range(4):
        forger.deliver(f"b{number}", (0, number))
    return forger.end(row(bundles=1, subscribers={"s": 1}, exact=False), state="degraded")


def a_row_of_another_bundle_for_a_commit() -> Forger:
    """The one named ref belongs to a bundle that is known; the commit's bundles are not it."""
    forger = Forger().register().put("a", (0, 0)).commit("x", "y").damage(segment=0)
    return forger.end(row((0, 1)), state="degraded")


def half_a_commit_beside_a_row() -> Forger:
    forger = half_a_commit().register().put("c", (7, 0)).damage(segment=7)
    return forger.end({**row((0, 1)), "segment_seq": 7}, state="degraded")


def told_lost_and_readable() -> Forger:
    forger = Forger().register().put("a", (0, 0)).put("b", (0, 1)).damage(segment=0)
    forger.deliver("a", (0, 0)).deliver("b", (0, 1)).read("a", (0, 0))
    return forger.end(row((0, 1)), state="degraded")


def told_lost_and_finished() -> Forger:
    """Of two bundles one was finished; the row names that one, and the number is right."""
    forger = Forger().register().put("a", (0, 0)).put("b", (0, 1))
    forger.deliver("a", (0, 0)).ack((0, 0)).damage(segment=0).deliver("b", (0, 1))
    return forger.end(row((0, 1)), state="degraded")


def names_more_than_it_counts() -> Forger:
    return six().end(row((0, 6), bundles=5), state="degraded")


def told_lost_in_a_sound_segment() -> Forger:
    forger = Forger().register().put("a", (0, 0)).put("b", (1, 0)).damage(segment=1)
    return forger.end(row((0, 1)), {**row((0, 1)), "segment_seq": 1}, state="degraded")


def told_lost_and_not_touched() -> Forger:
    """Both had come, so neither is missing; only one of them was hit."""
    forger = Forger().register().put("a", (0, 0)).put("b", (0, 1))
    forger.deliver("a", (0, 0)).deliver("b", (0, 1)).damage(segment=0, index=0, touched="a")
    return forger.end(row((0, 2)), state="degraded")


def doubled_beside_a_loss() -> Forger:
    """Bundle 0 is on record as lost; bundle 1, of the same segment, is there twice."""
    return six().put("b1", (3, 0)).end(row((0, 1)), state="degraded")


def doubled_after_a_drop() -> Forger:
    """What a policy dropped stays dropped: it is not stored again."""
    forger = six(damaged=False).note("trouble", what="caps").put("b0", (3, 0))
    return forger.deliver("b0", (3, 0)).end(row((0, 6), reason="size_cap"), state="degraded")


def doubled_before_memory_was_lost() -> Forger:
    forger = Forger().register().put("a", (0, 0)).put("a", (0, 1))
    return forger.note("trouble", what="memory_lost").end(state="degraded")


def came_again_beside_another_lost_progress() -> Forger:
    forger = good().note("trouble", what="progress_lost", subscriber="other")
    return forger.deliver("a", (0, 0))


def came_again_though_acked_since() -> Forger:
    forger = given().note("trouble", what="progress_lost", subscriber="s").ack((0, 0))
    return forger.deliver("a", (0, 0))


def false_loss_beside_another_lost_progress() -> Forger:
    forger = given().ack((0, 0)).note("trouble", what="progress_lost", subscriber="other")
    return forger.damage(segment=0).end(row((0, 1)), state="degraded")


def rejected_since_memory_was_lost() -> Forger:
    return given().note("trouble", what="memory_lost").rejected((0, 0)).end()


def rejected_beside_a_loss() -> Forger:
    forger = given().put("b", (0, 1)).damage(segment=0).rejected((0, 0))
    return forger.end(row((1, 2)), state="degraded")


def one_ref_over_two_lives() -> Forger:
    """The stream was deleted and made again, and gives out a ref of its first life."""
    return good().note("deleted").register().put("b", (0, 0)).deliver("b", (0, 0))


def missing_in_the_second_life() -> Forger:
    return good().note("deleted").register().put("b", (1, 0)).end()


def drained_and_not_delivered() -> Forger:
    """The first life was told to be drained; a bundle of it never came, and it was deleted."""
    forger = Forger().register().put("a", (0, 0)).note("drained", subscriber="s")
    return forger.note("deleted").register().put("b", (1, 0)).deliver("b", (1, 0)).end()


def no_dead_letter() -> Forger:
    return given().note("buried", ids=["a"]).end()


def dead_twice() -> Forger:
    dead: dict[str, Any] = {"id": "a", "hash": "hash of a", "origin": (0, 0)}
    return given().note("dead", ref=(0, 0), **dead).note("dead", ref=(0, 1), **dead).end()


def a_dead_letter_of_another() -> Forger:
    """It says that it was at a ref which another bundle has now."""
    forger = given().note("deleted").register().put("b", (0, 0)).deliver("b", (0, 0))
    return forger.note("dead", ref=(0, 0), id="a", hash="hash of a", origin=(0, 0)).end()


def given() -> Forger:
    return Forger().register().put("a", (0, 0)).deliver("a", (0, 0))


def rejected_in_silence() -> Forger:
    return given().rejected((0, 0)).end()


def rejected_by_another() -> Forger:
    return given().rejected((0, 0)).end({**REFUSED, "subscribers": {"other": 1}})


def told_as_rejected() -> Forger:
    return given().ack((0, 0)).end(REFUSED)


def rejected_and_counted_twice() -> Forger:
    return given().rejected((0, 0)).end({**REFUSED, "bundles": 2})


def rejected_and_not_delivered() -> Forger:
    return Forger().register().put("a", (0, 0)).reject((0, 0)).end(REFUSED)


def came_again_after_a_reject() -> Forger:
    return given().rejected((0, 0)).end(REFUSED).deliver("a", (0, 0))


def other_values() -> Forger:
    return Forger().register().put("a", (0, 0)).deliver("a", (0, 0), "other").end()


def never_put() -> Forger:
    return good().deliver("ghost", (0, 7))


def two_refs() -> Forger:
    return good().put("a", (0, 1))


def delivered_at_two_refs() -> Forger:
    return good().deliver("a", (3, 0))


def one_ref_for_two() -> Forger:
    return good().put("b", (0, 0)).deliver("b", (0, 0))


def came_again() -> Forger:
    return good().deliver("a", (0, 0))


def half_a_commit() -> Forger:
    forger = Forger().register()
    for name in ("a", "b"):
        forger.note("put", id=name, hash=f"hash of {name}", key=None, app="job", version=1)
    return forger.deliver("a", (0, 0)).end()


def committed_and_missing() -> Forger:
    return half_a_commit().note("committed", app="job", version=1)


def spread() -> Forger:
    forger = Forger().register().put("a", (0, 0)).put("b", (0, 1))
    forger.damage(segment=0, index=0, touched="a")
    return forger.end({**ROW, "bundles": 2, "subscribers": {"s": 2}}, state="degraded")


def hit_in_a_commit() -> Forger:
    """Of three bundles of a transaction the second is hit before any has come."""
    forger = Forger().register().commit("x", "y", "z").damage(segment=0, index=1, touched="y")
    return forger.deliver("x", (0, 0))


def spread_in_a_commit() -> Forger:
    """The last one came to nobody either, so no client knows what the row names."""
    return hit_in_a_commit().end(row((1, 3)), state="degraded")


def all_of_a_commit_for_one() -> Forger:
    forger = Forger().register().commit("x", "y", "z").damage(segment=0, index=1, touched="y")
    whole = {**ROW, "bundles": 3, "subscribers": {"s": 3}}
    return forger.end(whole, state="degraded")


def spread_to_a_misread_name() -> Forger:
    """A flip had made the name of another bundle out of the one that is hit again."""
    forger = Forger().register().put("b2", (0, 0)).put("b3", (0, 1)).deliver("b3", (0, 1))
    forger.damage(segment=0, index=1, touched="b2")
    return forger.end(row((0, 1)), state="degraded")


def hidden() -> Forger:
    return Forger().register().put("a", (0, 0)).damage(segment=0).end()


def resend_refused() -> Forger:
    forger = Forger().register().put("a", (0, 0)).damage(segment=0).end(ROW, state="degraded")
    return forger.note("resent", id="a", status="dup", ref=(0, 0))


def witnessed(invariant: Invariant) -> Callable[[], Forger]:
    """What a process saw on the spot is passed on as it is."""

    def forge() -> Forger:
        return good().note("violation", invariant=str(invariant), sentence="seen", bundles=["a"])

    return forge


FORGED: list[tuple[Callable[[], Forger], Invariant]] = [
    (missing, Invariant.DURABLE_BUNDLE_MISSING),
    (lost_in_silence, Invariant.LOSS_NOT_ON_RECORD),
    (lost_for_another, Invariant.LOSS_NOT_ON_RECORD),
    (counted_short, Invariant.LOSS_NOT_ON_RECORD),
    (lost_without_cause, Invariant.FALSE_LOSS),
    (counted_high, Invariant.FALSE_LOSS),
    (counted_as_lost_after_the_ack, Invariant.FALSE_LOSS),
    (counted_what_all_had_finished, Invariant.FALSE_LOSS),
    (the_row_names_another, Invariant.LOSS_NOT_ON_RECORD),
    (more_missing_than_a_row_leaves_open, Invariant.LOSS_NOT_ON_RECORD),
    (a_row_of_another_bundle_for_a_commit, Invariant.LOSS_NOT_ON_RECORD),
    (half_a_commit_beside_a_row, Invariant.COMMIT_HALF),
    (told_lost_and_readable, Invariant.FALSE_LOSS),
    (told_lost_and_finished, Invariant.FALSE_LOSS),
    (names_more_than_it_counts, Invariant.FALSE_LOSS),
    (told_lost_in_a_sound_segment, Invariant.FALSE_LOSS),
    (told_lost_and_not_touched, Invariant.DAMAGE_SPREAD),
    (doubled_beside_a_loss, Invariant.DOUBLED),
    (doubled_after_a_drop, Invariant.DOUBLED),
    (doubled_before_memory_was_lost, Invariant.DOUBLED),
    (came_again_beside_another_lost_progress, Invariant.DELIVERED_AFTER_DURABLE_ACK),
    (came_again_though_acked_since, Invariant.DELIVERED_AFTER_DURABLE_ACK),
    (false_loss_beside_another_lost_progress, Invariant.FALSE_LOSS),
    (rejected_since_memory_was_lost, Invariant.REJECT_NOT_ON_RECORD),
    (rejected_beside_a_loss, Invariant.REJECT_NOT_ON_RECORD),
    (one_ref_over_two_lives, Invariant.REF_REUSED),
    (missing_in_the_second_life, Invariant.DURABLE_BUNDLE_MISSING),
    (drained_and_not_delivered, Invariant.DURABLE_BUNDLE_MISSING),
    (no_dead_letter, Invariant.DEAD_LETTER_MISSING),
    (dead_twice, Invariant.DOUBLED),
    (a_dead_letter_of_another, Invariant.REF_REUSED),
    (rejected_in_silence, Invariant.REJECT_NOT_ON_RECORD),
    (rejected_by_another, Invariant.REJECT_NOT_ON_RECORD),
    (told_as_rejected, Invariant.FALSE_LOSS),
    (rejected_and_counted_twice, Invariant.FALSE_LOSS),
    (rejected_and_not_delivered, Invariant.DURABLE_BUNDLE_MISSING),
    (came_again_after_a_reject, Invariant.DELIVERED_AFTER_DURABLE_ACK),
    (other_values, Invariant.WRONG_CONTENT),
    (never_put, Invariant.WRONG_CONTENT),
    (two_refs, Invariant.DOUBLED),
    (delivered_at_two_refs, Invariant.DOUBLED),
    (one_ref_for_two, Invariant.REF_REUSED),
    (came_again, Invariant.DELIVERED_AFTER_DURABLE_ACK),
    (half_a_commit, Invariant.COMMIT_HALF),
    (committed_and_missing, Invariant.DURABLE_BUNDLE_MISSING),
    (spread, Invariant.DAMAGE_SPREAD),
    (spread_in_a_commit, Invariant.DAMAGE_SPREAD),
    (all_of_a_commit_for_one, Invariant.DAMAGE_SPREAD),
    (spread_to_a_misread_name, Invariant.DAMAGE_SPREAD),
    (hidden, Invariant.STATUS_HIDES_DAMAGE),
    (resend_refused, Invariant.RESEND_REFUSED),
]
DEDUCED = {invariant for _, invariant in FORGED}
WITNESSED = [one for one in Invariant if one not in DEDUCED]


@pytest.mark.parametrize(
    ("forge", "invariant"), FORGED, ids=[forge.__name__ for forge, _ in FORGED]
)
def test_a_forged_history_is_named_for_what_it_is(
    forge: Callable[[], Forger], invariant: Invariant
) -> None:
    """Scenario: a history with one thing wrong. Guarantee: the judge names it, with its bundles."""
    found = judge(forge().notes)
    assert invariant in {one.invariant for one in found}, found
    assert all(one.bundles for one in found)


@pytest.mark.parametrize("invariant", WITNESSED)
def test_what_was_seen_on_the_spot_is_passed_on(invariant: Invariant) -> None:
    """Scenario: a process wrote a violation down. Guarantee: the judge reports that one."""
    (found,) = judge(witnessed(invariant)().notes)
    assert found.invariant is invariant


def test_a_good_history_has_no_violation() -> None:
    """Scenario: put, delivered, acked; and the legal excuses. Guarantee: not a word."""
    assert judge(good().notes) == []
    on_record = Forger().register().put("a", (0, 0)).damage(segment=0, index=0, touched="a")
    assert judge(on_record.end(ROW, state="degraded").notes) == []
    resent = on_record.note("resent", id="a", status="ok", ref=(5, 0))
    assert judge(resent.deliver("a", (5, 0)).notes) == []
    sought = good().note("moved", subscriber="s").deliver("a", (0, 0))
    assert judge(sought.notes) == []
    forgotten = Forger().register().put("a", (0, 0)).deliver("a", (0, 0)).ack((0, 0))
    forgotten.note("trouble", what="progress_lost").damage(segment=0).end(ROW, state="degraded")
    assert judge(forgotten.notes) == [], "nobody knows any more that it was acked"
    assert judge(given().rejected((0, 0)).end(REFUSED).notes) == []
    unanswered = given().reject((0, 0)).deliver("a", (0, 0)).ack((0, 0))
    assert judge(unanswered.end(REFUSED).notes) == [], "a crash between its row and its progress"
    assert judge(given().reject((0, 0)).ack((0, 0)).end().notes) == [], "it never got there"
    unnamed = (
        six()
        .deliver("b0", (0, 0))
        .end(row(bundles=5, subscribers={"s": 5}, exact=False), state="degraded")
    )
    assert judge(unnamed.notes) == [], "five of the log were lost, and nothing tells which"
    committed = Forger().register().put("a", (0, 0)).deliver("a", (0, 0)).commit("x", "y")
    committed.damage(segment=None)
    whole = {**ROW, "segment_seq": 4, "bundles": 2, "subscribers": {"s": 2}, "indexes": None}
    assert judge(committed.end(whole, state="degraded").notes) == [], "their segment is on record"
    hit = hit_in_a_commit().deliver("z", (0, 2)).end(row((1, 2)), state="degraded")
    assert judge(hit.notes) == [], "the row has the ref that was hit, which no client knows"
    again = Forger().register().put("a", (0, 0)).deliver("a", (0, 0))
    again.note("trouble", what="memory_lost").put("a", (5, 0)).deliver("a", (5, 0))
    assert judge(again.end().notes) == [], "its key was forgotten between two tries"
    buried = given().note("dead", ref=(0, 0), id="a", hash="hash of a", origin=(0, 0))
    assert judge(buried.note("buried", ids=["a"]).end().notes) == []
    gone = missing().note("deleted").register().put("b", (1, 0)).deliver("b", (1, 0)).end()
    assert judge(gone.notes) == [], "the stream was deleted with what it owed"
    early = Forger().put("a", (0, 0)).register().end()
    assert judge(early.notes) == [], "put before it registered: not owed"
    assert judge(missing().note("cut_short", stream=None).notes) == [], "it was still to come"


def test_a_round_that_put_nothing_is_a_violation() -> None:
    """Scenario: no put was answered, or nothing came. Guarantee: that is no pass."""
    assert shows_nothing(good().notes, ["t"]) == []
    for notes in ([], Forger().register().put("a", (0, 0), "retry").notes, missing().notes):
        (found,) = shows_nothing(notes, ["t"])
        assert found.invariant is Invariant.NOTHING_TRIED
    (found,) = shows_nothing(good().notes, ["t", "embedded"])
    assert found.stream == "embedded"


def test_every_invariant_has_its_sentence() -> None:
    """Scenario: an invariant is added. Guarantee: it is not forgotten in words."""
    assert set(SENTENCES) == set(Invariant)


def test_a_violation_names_its_bundles() -> None:
    """Scenario: many bundles are missing. Guarantee: the sentence has some, and their number."""
    forger = Forger().register()
    for number in range(20):
        forger.put(f"b{number:02}", (0, number))
    (found,) = judge(forger.end().notes)
    assert "b00" in str(found)
    assert "12 more" in str(found)
    assert str(found).startswith("durable_bundle_missing: ")
