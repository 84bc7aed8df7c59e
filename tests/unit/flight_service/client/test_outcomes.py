"""Outcomes on their way: each arrives, by the call or, when that is lost, by an action."""

from __future__ import annotations

import pytest

from flight_service.client import outcomes as outcomes_module
from flight_service.client.bundle import ACKED, DEFERRED, REJECTED
from flight_service.client.errors import by_code
from flight_service.client.outcomes import MAX_GROUP, MAX_REMEMBERED, OutcomeGroup, OutcomeQueue
from flight_service.protocol.actions import Ack, Defer, Problem, Reject
from flight_service.protocol.names import Ref


def refs(count: int) -> list[Ref]:
    return [Ref(1, index) for index in range(count)]


def test_outcomes_of_one_kind_travel_together() -> None:
    """Two acks, a deferral and a rejection: three messages, each with its own number."""
    outcomes = OutcomeQueue()
    for ref in refs(2):
        outcomes.say(ref, ACKED, "", None, False)
    outcomes.say(Ref(2, 0), DEFERRED, "busy", 500, False)
    outcomes.say(Ref(2, 1), REJECTED, "broken", None, False)
    acks, defers, rejects = outcomes.take()
    assert acks.ack == (Ref(1, 0), Ref(1, 1))
    assert (defers.defer, defers.delay_ms, defers.reason) == ((Ref(2, 0),), 500, "busy")
    assert (rejects.reject, rejects.reason) == ((Ref(2, 1),), "broken")
    assert len({acks.id, defers.id, rejects.id}) == 3
    assert not outcomes.unsent


def test_a_confirmed_group_is_done() -> None:
    """The server says done: whoever waits for that group may go on."""
    outcomes = OutcomeQueue()
    group = outcomes.say(Ref(1, 0), ACKED, "", None, True)
    assert outcomes.urgent
    (message,) = outcomes.take()
    assert message.durable
    assert message.id is not None
    outcomes.confirm(message.id, ())
    assert group.done
    assert len(outcomes) == 0


def test_what_the_server_no_longer_holds_for_us_is_late() -> None:
    """One ref of three is not ours any more: only that one is said again."""
    outcomes = OutcomeQueue()
    group = None
    for ref in refs(3):
        group = outcomes.say(ref, ACKED, "", None, False)
    (message,) = outcomes.take()
    assert message.id is not None
    outcomes.confirm(message.id, [Ref(1, 1)])
    assert group is not None
    assert not group.done
    (late,) = outcomes.take_late()
    assert late is group
    name, request = late.request("s", "x")
    assert name == "ack"
    assert isinstance(request, Ack)
    assert request.refs == (Ref(1, 1),)


def test_a_lost_call_makes_everything_late_in_order() -> None:
    """Sent, full and open groups: all of them are said again, and again if that fails."""
    outcomes = OutcomeQueue()
    outcomes.say(Ref(1, 0), ACKED, "", None, False)
    outcomes.take()
    outcomes.say(Ref(1, 1), REJECTED, "no", None, False)
    outcomes.say(Ref(1, 2), DEFERRED, "", None, False)
    outcomes.call_lost()
    late = outcomes.take_late()
    assert [type(group.request("s", "x")[1]) for group in late] == [Ack, Reject, Defer]
    outcomes.still_late(late)
    assert outcomes.take_late() == late


def test_a_group_is_bounded() -> None:
    """More acks than a message holds: a second message, and no waiting for company."""
    outcomes = OutcomeQueue()
    for ref in refs(MAX_GROUP + 1):
        outcomes.say(ref, ACKED, "", None, False)
    assert outcomes.urgent
    assert [len(message.ack) for message in outcomes.take()] == [MAX_GROUP, 1]


def confirmed(outcomes: OutcomeQueue, count: int) -> None:
    """Acks that the server has taken, and not written yet."""
    for ref in refs(count):
        outcomes.say(ref, ACKED, "", None, False)
    for message in outcomes.take():
        assert message.id is not None
        outcomes.confirm(message.id, ())
    assert len(outcomes) == 0


def test_a_mark_is_done_by_its_own_call_or_lost_with_it() -> None:
    """Asked for the disk: done when this call says so; if it breaks, whoever waits must ask
    again, and the mark is not said by an action to a server that may be another one."""
    outcomes = OutcomeQueue()
    confirmed(outcomes, 1)
    mark = outcomes.mark()
    (message,) = outcomes.take()
    assert message.durable
    assert message.id is not None
    outcomes.call_lost()
    assert mark.lost
    assert not mark.done
    assert len(outcomes) == 0
    again = outcomes.mark()
    (message,) = outcomes.take()
    assert message.id is not None
    outcomes.confirm(message.id, ())
    assert again.done


def test_what_may_not_be_on_disk_is_said_again_before_a_mark() -> None:
    """Acks were confirmed, then the call broke: the server may have died with them."""
    outcomes = OutcomeQueue()
    confirmed(outcomes, 3)
    outcomes.call_lost()
    outcomes.handed_out(Ref(1, 1))  # the server lost it indeed: this one is the user's again
    assert len(outcomes) == 0
    assert outcomes.doubts() == {Ref(1, 0), Ref(1, 2)}
    (late,) = outcomes.take_late()
    assert late.refs == [Ref(1, 0), Ref(1, 2)]
    assert len(outcomes) == 1  # not home before the action is answered
    outcomes.settled(late)
    assert len(outcomes) == 0
    outcomes.call_lost()
    assert outcomes.doubts() == set()  # an action brings it to the disk


def test_what_is_on_disk_is_forgotten() -> None:
    """Nothing is in doubt after a mark, nor without one for ever: the client asks by itself."""
    outcomes = OutcomeQueue()
    confirmed(outcomes, MAX_REMEMBERED)
    outcomes.say(Ref(7, 0), ACKED, "", None, False)
    (message,) = outcomes.take()
    assert message.durable
    assert message.id is not None
    outcomes.confirm(message.id, ())
    outcomes.call_lost()
    outcomes.doubts()
    assert outcomes.take_late() == []


def test_the_disk_is_asked_for_once_at_a_time() -> None:
    """Scenario: far more is confirmed than is remembered, and messages go on while the one that
    asks for the disk is not answered. Guarantee: only that one asks, since each costs the
    server a sync; the next one does when it is answered and the memory is full again."""
    outcomes = OutcomeQueue()
    confirmed(outcomes, MAX_REMEMBERED)
    asked = []
    for index in range(5):
        outcomes.say(Ref(2, index), ACKED, "", None, False)
        asked += outcomes.take()
    assert [message.durable for message in asked] == [True, False, False, False, False]
    assert outcomes.unconfirmed
    for message in asked:
        assert message.id is not None
        outcomes.confirm(message.id, ())
    confirmed(outcomes, MAX_REMEMBERED)
    outcomes.say(Ref(3, 0), ACKED, "", None, False)
    assert [message.durable for message in outcomes.take()] == [True]


def test_a_bundle_is_finishing_until_the_live_call_says_so() -> None:
    """An ack is finishing from the moment it is said until it is confirmed; a deferral never."""
    outcomes = OutcomeQueue()
    outcomes.say(Ref(1, 0), ACKED, "", None, False)
    outcomes.say(Ref(1, 1), DEFERRED, "", None, False)
    assert outcomes.is_finishing(Ref(1, 0))
    assert not outcomes.is_finishing(Ref(1, 1))
    for message in outcomes.take():
        assert message.id is not None
        outcomes.confirm(message.id, ())
    assert not outcomes.is_finishing(Ref(1, 0))


def test_what_an_action_finished_is_finishing_until_a_mark_is_confirmed() -> None:
    """The server had given the claim to somebody else, so an action finishes the bundle: the
    live call may still bring a copy, and none after the mark."""
    outcomes = OutcomeQueue()
    outcomes.say(Ref(1, 0), ACKED, "", None, False)
    (message,) = outcomes.take()
    assert message.id is not None
    outcomes.confirm(message.id, [Ref(1, 0)])
    (late,) = outcomes.take_late()
    outcomes.settled(late)
    assert outcomes.needs_mark
    assert outcomes.mark().overtaken == {Ref(1, 0)}
    assert outcomes.is_finishing(Ref(1, 0))
    (mark,) = outcomes.take()
    assert mark.id is not None
    outcomes.confirm(mark.id, ())
    assert not outcomes.is_finishing(Ref(1, 0))


def test_a_new_call_brings_no_copies_of_what_was_settled_before_it() -> None:
    """After a reconnect a bundle that was finished comes only if somebody wants it: a seek."""
    outcomes = OutcomeQueue()
    outcomes.say(Ref(1, 0), ACKED, "", None, False)
    outcomes.call_lost()
    (late,) = outcomes.take_late()
    assert outcomes.is_finishing(Ref(1, 0))
    outcomes.settled(late)
    assert outcomes.is_finishing(Ref(1, 0))
    outcomes.call_begins()
    assert not outcomes.is_finishing(Ref(1, 0))
    assert not outcomes.needs_mark


def test_a_call_that_is_being_made_may_bring_copies_of_what_is_settled_meanwhile() -> None:
    """Scenario: an action finishes a bundle while the next call is being made, and the mark for
    it is lost with yet another call. Guarantee: its copies are not handed out until a mark is
    confirmed by a call, or another call is about to be made."""
    outcomes = OutcomeQueue()
    outcomes.say(Ref(1, 0), ACKED, "", None, False)
    outcomes.call_lost()
    (late,) = outcomes.take_late()
    outcomes.call_begins()
    outcomes.settled(late)
    assert outcomes.needs_mark
    outcomes.mark()
    outcomes.call_lost()
    assert outcomes.is_finishing(Ref(1, 0))
    assert outcomes.needs_mark
    outcomes.mark()
    (mark,) = outcomes.take()
    assert mark.id is not None
    outcomes.confirm(mark.id, ())
    assert not outcomes.is_finishing(Ref(1, 0))


def test_what_an_action_refuses_is_doubtful_and_may_come_again() -> None:
    """Scenario: an action takes one of two acks. Guarantee: the other one is said again with the
    next doubts, and its bundle may be handed out until then."""
    outcomes = OutcomeQueue()
    for ref in refs(2):
        outcomes.say(ref, ACKED, "", None, False)
    outcomes.call_lost()
    (late,) = outcomes.take_late()
    outcomes.settled(late, [Ref(1, 1)], by_code("unknown_bundle", "no such bundle."))
    assert late.over()
    assert not late.done
    assert late.refs == [Ref(1, 1)]
    assert len(outcomes) == 0
    assert outcomes.is_finishing(Ref(1, 0))
    assert not outcomes.is_finishing(Ref(1, 1))
    assert outcomes.doubts() == {Ref(1, 1)}


def test_a_deferral_that_is_refused_is_over() -> None:
    """The bundle comes again anyway: there is nothing to say again."""
    outcomes = OutcomeQueue()
    outcomes.say(Ref(1, 0), DEFERRED, "", None, False)
    outcomes.call_lost()
    (late,) = outcomes.take_late()
    assert late.unfinished([Problem(ref=Ref(1, 0), outcome="pending")]) == []
    outcomes.settled(late, late.refs, by_code("forbidden", "no."))
    assert outcomes.doubts() == set()


def test_a_bundle_that_never_comes_again_is_finished() -> None:
    """Scenario: an ack is said a second time, and the first one had the bundle deleted, or the
    server does not know it. Guarantee: only the second is reported."""
    group = OutcomeGroup(ACKED, "", None, True, refs(5))
    said = ("acked", "dropped", "deleted", "lost", "unknown")
    problems = [Problem(ref=ref, outcome=one) for ref, one in zip(refs(5), said, strict=True)]
    assert group.unfinished(problems) == [Ref(1, 4)]


def test_too_many_doubts_are_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: the caller never asks for the disk, and call after call breaks. Guarantee: none
    of its acks is forgotten before it is on disk."""
    monkeypatch.setattr(outcomes_module, "MAX_DOUBTFUL", 2)
    outcomes = OutcomeQueue()
    confirmed(outcomes, 2)
    outcomes.call_lost()
    assert not outcomes.has_late
    outcomes.say(Ref(2, 0), ACKED, "", None, False)
    for message in outcomes.take():
        assert message.id is not None
        outcomes.confirm(message.id, ())
    outcomes.call_lost()
    (late,) = outcomes.take_late()
    assert late.refs == [*refs(2), Ref(2, 0)]
    assert outcomes.is_finishing(Ref(2, 0))


def test_what_is_late_goes_to_the_disk() -> None:
    """The server that takes it may die before the next call: it is not merely remembered."""
    outcomes = OutcomeQueue()
    outcomes.say(Ref(1, 0), ACKED, "", None, False)
    outcomes.say(Ref(1, 1), REJECTED, "no", None, False)
    outcomes.call_lost()
    requests = [group.request("s", "x")[1] for group in outcomes.take_late()]
    assert [one.durable for one in requests if isinstance(one, Ack | Reject)] == [True, True]
