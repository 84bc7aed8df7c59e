"""The judge is judged: forged histories, one for each invariant, each named for what it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.chaos.history import Note
from tests.chaos.judge import SENTENCES, Invariant, judge

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

    def deliver(self, name: str, ref: tuple[int, int], content: str | None = None) -> Forger:
        content = content or f"hash of {name}"
        return self.note("delivered", subscriber="s", ref=ref, id=name, hash=content)

    def ack(self, *refs: tuple[int, int]) -> Forger:
        return self.note("acked", subscriber="s", refs=refs)

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
    forger.damage(segment=0, touched="a")
    return forger.end({**ROW, "bundles": 2, "subscribers": {"s": 2}}, state="degraded")


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
    on_record = Forger().register().put("a", (0, 0)).damage(segment=0, touched="a")
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
    early = Forger().put("a", (0, 0)).register().end()
    assert judge(early.notes) == [], "put before it registered: not owed"
    assert judge(missing().note("cut_short", stream=None).notes) == [], "it was still to come"


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
