"""The writer's bookkeeping: nothing is lost, nothing is out of turn, whatever is answered."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flight_service.client import outbox
from flight_service.client.errors import ServerFault
from flight_service.client.outbox import Entry, Outbox
from flight_service.protocol.names import Ref
from flight_service.protocol.put import About, Envelope, PutReceipt, said_of
from flight_service.protocol.wrapper import wrap

BATCH = pa.record_batch({"a": [1]})


def fill(box: Outbox[str], *names: str) -> None:
    for name in names:
        box.add(Entry({"a": BATCH}, said_of(About(key=name)), 10, name))


def take_all(box: Outbox[str]) -> list[tuple[str, int | None]]:
    """Names and ``resend`` of all that can be sent."""
    taken = []
    while box.can_take:
        (entry,), envelope = box.take()
        taken.append((entry.waiter, json.loads(envelope).get("resend")))
    return taken


def answer(box: Outbox[str], n: int, status: str) -> str | None:
    entry = box.answer(PutReceipt(n=n, status=status, ref=Ref(0, n)))
    return None if entry is None else entry.waiter


def test_what_is_answered_is_gone() -> None:
    """Three sent, three taken by the server: the box is empty, its bytes given back."""
    box: Outbox[str] = Outbox()
    fill(box, "a", "b", "c")
    assert take_all(box) == [("a", None), ("b", None), ("c", None)]
    assert [answer(box, n, status) for n, status in enumerate(["ok", "dup", "rejected"])] == [
        "a",
        "b",
        "c",
    ]
    assert (len(box), box.nbytes) == (0, 0)


def test_after_a_retry_nothing_new_is_sent_until_all_are_answered() -> None:
    """b is refused for now and c behind it too: d waits, then b, c, d go in their order."""
    box: Outbox[str] = Outbox()
    fill(box, "a", "b", "c")
    take_all(box)
    fill(box, "d")
    assert answer(box, 0, "ok") == "a"
    assert answer(box, 1, "retry") is None
    assert (box.can_take, box.must_resume) == (False, False)
    answer(box, 2, "retry")
    assert (box.can_take, box.must_resume) == (False, True)
    assert box.resume() == 2
    assert take_all(box) == [("b", 1), ("c", None), ("d", None)]


def test_a_gap_is_named_by_the_message_that_made_it_however_often_it_is_refused() -> None:
    """b is refused as message 1 and again as message 3: both repeats name message 1."""
    box: Outbox[str] = Outbox()
    fill(box, "a", "b", "c")
    take_all(box)
    for n, status in enumerate(["ok", "retry", "retry"]):
        answer(box, n, status)
    box.resume()
    assert take_all(box) == [("b", 1), ("c", None)]
    answer(box, 3, "retry")
    answer(box, 4, "retry")
    box.resume()
    assert take_all(box) == [("b", 1), ("c", None)]
    assert [answer(box, 5, "ok"), answer(box, 6, "retry")] == ["b", None]
    box.resume()
    assert take_all(box) == [("c", 6)]


def test_a_lost_call_sends_all_that_is_unanswered_again_in_order() -> None:
    """a answered, b to be repeated, c on the way, d queued: b, c, d, numbered from 0."""
    box: Outbox[str] = Outbox()
    fill(box, "a", "b", "c")
    take_all(box)
    fill(box, "d")
    answer(box, 0, "ok")
    answer(box, 1, "retry")
    assert box.lane_lost() == 2
    assert take_all(box) == [("b", None), ("c", None), ("d", None)]
    assert answer(box, 0, "dup") == "b"
    assert box.nbytes == 20


def test_a_bundle_sent_again_is_the_same_to_the_byte() -> None:
    """What was sent is not kept but made again: equal, so that the server's hash is too."""
    slots = {"a": pa.record_batch({"w": pa.array(["x", "y", "x"]).dictionary_encode()})}
    assert wrap(slots).serialize() == wrap(slots).serialize()


def test_what_cannot_be_sent_leaves_the_box() -> None:
    """The first is dropped before it was taken: the next one is the first message."""
    box: Outbox[str] = Outbox()
    fill(box, "a", "b")
    assert [entry.waiter for entry in box.next()] == ["a"]
    box.drop_first()
    assert take_all(box) == [("b", None)]
    assert box.nbytes == 10


def sizes(box: Outbox[str]) -> list[int]:
    """How many bundles each message has that can be sent now."""
    found = []
    while box.can_take:
        found.append(len(box.take(len(box.next()))[0]))
    return found


def test_bundles_gather_only_while_others_are_on_the_way() -> None:
    """Scenario: the first, then more than a message holds, then the answer to all that was
    sent. Guarantee: the first goes at once, a full message too, the rest with the answer."""
    box: Outbox[str] = Outbox(together=3)
    fill(box, "a")
    assert sizes(box) == [1]
    fill(box, "b", "c")
    assert sizes(box) == []
    fill(box, "d", "e")
    assert sizes(box) == [3]
    for n in range(4):
        assert not box.can_take
        answer(box, n, "ok")
    assert sizes(box) == [1]


def test_whoever_waits_has_all_sent() -> None:
    """Scenario: two gather, somebody waits for them, a third comes later. Guarantee: the two
    go, the third gathers again."""
    box: Outbox[str] = Outbox(together=9)
    fill(box, "a")
    sizes(box)
    fill(box, "b", "c")
    box.hurry()
    assert sizes(box) == [2]
    fill(box, "d")
    assert sizes(box) == []


def test_a_large_bundle_goes_alone_and_with_it_what_gathered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scenario: bundles of 10 bytes where a message holds 25. Guarantee: two and two, and no
    message is larger, but for one that is so by itself."""
    monkeypatch.setattr(outbox, "MESSAGE_BYTES", 25)
    box: Outbox[str] = Outbox(together=9)
    fill(box, "a", "b", "c", "d")
    assert sizes(box) == [2]
    fill(box, "e")
    assert sizes(box) == [2]
    box.hurry()
    assert sizes(box) == [1]
    box.add(Entry({"a": BATCH}, b"", 99, "large"))
    assert sizes(box) == [1]


def test_what_is_said_about_many_fits_an_envelope() -> None:
    """Scenario: bundles with 20 KB of attributes each. Guarantee: no more of them go together
    than an envelope holds."""
    box: Outbox[str] = Outbox(together=9)
    said = said_of(About(attributes={"note": "x" * 20_000}))
    for name in "abcde":
        box.add(Entry({"a": BATCH}, said, 10, name))
    box.hurry()
    while box.can_take:
        assert len(Envelope.decode(box.take(len(box.next()))[1]).bundles) in (0, 2, 3)


@pytest.mark.parametrize("n", [1, 7])
def test_a_receipt_out_of_order_is_the_servers_fault(n: int) -> None:
    """A receipt for a message that is not next: the call can't be trusted any more."""
    box: Outbox[str] = Outbox()
    fill(box, "a", "b")
    take_all(box)
    with pytest.raises(ServerFault, match="0 was next"):
        answer(box, n, "ok")


class Server:
    """What the protocol says about retries, in a few lines."""

    def __init__(self) -> None:
        self.kept: list[str] = []
        self.gap: int | None = None
        self.n = 0

    def take(self, name: str, resend: int | None, *, busy: bool) -> tuple[int, str]:
        n, self.n = self.n, self.n + 1
        if self.gap is not None and resend != self.gap:
            return n, "retry"
        if busy:
            self.gap = n if self.gap is None else self.gap
            return n, "retry"
        self.gap = None
        if name in self.kept:
            return n, "dup"
        self.kept.append(name)
        return n, "ok"


class Pair:
    """A box and a server, with the answers that are on their way between them."""

    def __init__(self, together: int) -> None:
        self.box: Outbox[str] = Outbox(together)
        self.server = Server()
        self.answers: list[tuple[int, str]] = []
        self.given: list[str] = []

    def add(self) -> None:
        self.given.append(f"b{len(self.given)}")
        fill(self.box, self.given[-1])

    def take(self, *, busy: bool = False) -> None:
        if self.box.can_take:
            entries, data = self.box.take(len(self.box.next()))
            envelope = Envelope.decode(data)
            said = envelope.bundles or (envelope,)
            assert [one.key for one in said] == [entry.waiter for entry in entries]
            for entry in entries:
                self.answers.append(self.server.take(entry.waiter, envelope.resend, busy=busy))

    def hurry(self) -> None:
        self.box.hurry()

    def answer(self) -> None:
        if self.answers:
            answer(self.box, *self.answers.pop(0))
        if self.box.must_resume:
            self.box.resume()

    def lose(self) -> None:
        self.answers.clear()
        self.box.lane_lost()
        self.server.n, self.server.gap = 0, None


@given(
    st.lists(st.sampled_from(["add", "take", "busy", "answer", "hurry", "lose"]), max_size=120),
    st.sampled_from([1, 2, 5]),
)
def test_every_bundle_arrives_once_and_in_order(steps: list[str], together: int) -> None:
    """Any mix of refusals, broken calls and late answers, alone or in company: all arrive,
    once, in order."""
    pair = Pair(together)
    moves = {
        "add": pair.add,
        "take": pair.take,
        "busy": lambda: pair.take(busy=True),
        "answer": pair.answer,
        "hurry": pair.hurry,
        "lose": pair.lose,
    }
    for step in steps:
        moves[step]()
    for _ in range(10 * len(steps) + 10):
        pair.take()
        pair.answer()
    assert pair.server.kept == pair.given
    assert (len(pair.box), pair.box.nbytes) == (0, 0)
