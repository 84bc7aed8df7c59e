"""The order of a DoPut after a refusal, with a store that says what the test wants."""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa

from flight_service.protocol.put import ACCEPTED, DURABLE, PutCommand
from flight_service.protocol.wrapper import BY_NAME, wrap
from flight_service.server.put import PutCall
from quiver.errors import Backpressure, InvalidBundle, OutOfTurn, QuiverError, Reason

BUSY = Backpressure(Reason.DISK, "the disk is full", retry_after_ms=7)
BROKEN = InvalidBundle("this will never do.")


@dataclass(frozen=True)
class Unwritten:
    """Taken, and then it could not be written."""

    error: QuiverError


Outcome = QuiverError | Unwritten | None


class Store:
    """Answers each put with the next outcome: an error, or a receipt, durable or failed."""

    def __init__(self, outcomes: list[Outcome]) -> None:
        self._outcomes = outcomes
        self.kept: list[str] = []

    def put_ipc(self, slots: Any, *, key: str, **rest: Any) -> Any:
        outcome = self._outcomes.pop(0)
        if isinstance(outcome, QuiverError):
            raise outcome
        if outcome is not None:
            return SimpleNamespace(done=True, error=outcome.error, key=key, wait=lambda: None)
        self.kept.append(key)
        return SimpleNamespace(
            done=True,
            error=None,
            duplicate=False,
            durable=True,
            ref=(0, len(self.kept) - 1),
            sequence=len(self.kept),
            key=key,
            wait=lambda: None,
        )


class Wire:
    """Both ends of the call: messages in, receipts out.

    A ``polite`` client reads each receipt before it sends on.
    """

    schema = BY_NAME

    def __init__(self, messages: list[tuple[str, int | None]], *, polite: bool) -> None:
        self._polite = polite
        self._sent = 0
        self._answered = threading.Condition()
        batch = wrap({"Logs": pa.record_batch({"n": [1]})})
        self._chunks = [
            SimpleNamespace(data=batch, app_metadata=pa.py_buffer(_envelope(key, resend)))
            for key, resend in messages
        ]
        self.receipts: list[dict[str, Any]] = []

    def read_chunk(self) -> Any:
        with self._answered:
            if self._polite:
                assert self._answered.wait_for(lambda: len(self.receipts) == self._sent, 10)
        if not self._chunks:
            raise StopIteration
        self._sent += 1
        return self._chunks.pop(0)

    def write(self, data: bytes) -> None:
        with self._answered:
            self.receipts += json.loads(data)["receipts"]
            self._answered.notify_all()


def _envelope(key: str, resend: int | None) -> bytes:
    note: dict[str, Any] = {"v": 1, "key": key}
    if resend is not None:
        note["resend"] = resend
    return json.dumps(note).encode()


def serve(
    messages: list[tuple[str, int | None]],
    outcomes: list[Outcome],
    *,
    polite: bool = False,
    durability: str = DURABLE,
    store: Store | None = None,
) -> Any:
    """Statuses and codes of all receipts, and what the store kept."""
    wire, store = Wire(messages, polite=polite), store or Store(outcomes)
    PutCall(
        cast(Any, SimpleNamespace(store=store)),
        PutCommand(stream="t", durability=durability),
        wire,
        wire,
        window=16,
        put_wait=0.0,
        stopping=lambda: False,
    ).run()
    return [(one["status"], one.get("code")) for one in wire.receipts], store.kept


def test_after_a_refusal_only_the_repeat_opens_the_way() -> None:
    """a is refused for now, b comes behind it, then a again: b has to wait for its turn."""
    told, kept = serve(
        [("a", None), ("b", None), ("a", 0), ("b", None)],
        [BUSY, None, None],
    )
    assert told == [
        ("retry", "backpressure"),
        ("retry", "out_of_turn"),
        ("ok", None),
        ("ok", None),
    ]
    assert kept == ["a", "b"]


def test_a_repeat_that_is_refused_again_keeps_its_number() -> None:
    """The second try of message 0 is refused as well: the third still names message 0."""
    told, kept = serve([("a", None), ("a", 0), ("a", 0)], [BUSY, BUSY, None])
    assert [status for status, _ in told] == ["retry", "retry", "ok"]
    assert kept == ["a"]


def test_a_repeat_that_is_rejected_for_good_opens_the_way_too() -> None:
    """The repeat turns out to be broken: nobody will send it again, so b may pass."""
    told, kept = serve([("a", None), ("a", 0), ("b", None)], [BUSY, BROKEN, None])
    assert told == [("retry", "backpressure"), ("rejected", "invalid_bundle"), ("ok", None)]
    assert kept == ["b"]


def test_a_repeat_that_could_not_be_written_keeps_its_number_too() -> None:
    """On a full disk message 0 is taken and can't be written, and so is its repeat: the next
    repeat still names message 0, as clients do, and is taken. (It was refused as out of turn
    for ever: the client waited for a server that waited for another number.)"""
    tries: list[tuple[str, int | None]] = [("a", None), ("a", 0), ("a", 0)]
    told, kept = serve(tries, [Unwritten(BUSY), Unwritten(BUSY), None], polite=True)
    assert [status for status, _ in told] == ["retry", "retry", "ok"]
    assert kept == ["a"]


class FailsLate(Store):
    """The first bundle can't be written, and that turns out after the server has looked, while
    it puts the second one."""

    def __init__(self) -> None:
        super().__init__([None, None])
        self._failed = threading.Event()
        self._first: Any = None

    def put_ipc(self, slots: Any, *, key: str, after: Any = None, **rest: Any) -> Any:
        if self._first is None:
            self._first = SimpleNamespace(done=False, error=None, key=key, wait=self._wait)
            return self._first
        if not self._failed.is_set():
            self._first.error, self._first.done = BUSY, True
            self._failed.set()
        if after is not None and after.error is not None:
            raise OutOfTurn("the bundle before it could not be written.")
        return super().put_ipc(slots, key=key, **rest)

    def _wait(self) -> None:
        assert self._failed.wait(10)


def test_a_failure_between_the_look_and_the_put() -> None:
    """Scenario: a is taken; the server sees nothing wrong with it and puts b, and only then a's
    group fails. Guarantee: b is not taken before a has come again."""
    messages: list[tuple[str, int | None]] = [("a", None), ("b", None), ("a", 0), ("b", None)]
    told, kept = serve(messages, [], store=FailsLate())
    assert told == [
        ("retry", "backpressure"),
        ("retry", "out_of_turn"),
        ("ok", None),
        ("ok", None),
    ]
    assert kept == ["a", "b"]


class Accepted:
    """A receipt that is answered as accepted, and fails when that was said."""

    done = durable = duplicate = False
    ref, sequence = (0, 0), 0

    def __init__(self, key: str) -> None:
        self.key = key
        self._errors: list[QuiverError | None] = [None]

    @property
    def error(self) -> QuiverError | None:
        return self._errors.pop() if self._errors else BUSY


class OnlyAccepts(Store):
    def put_ipc(self, slots: Any, *, key: str, **rest: Any) -> Any:
        self.kept.append(key)
        return Accepted(key)


def test_what_was_only_accepted_is_not_waited_for() -> None:
    """Scenario: a client asks for no more than `accepted`; a is accepted and answered, and then
    can't be written. Guarantee: b is taken. (It waited for a, which no client sends again: it was
    told that a is accepted.)"""
    store = OnlyAccepts([])
    told, kept = serve(
        [("a", None), ("b", None)], [], polite=True, durability=ACCEPTED, store=store
    )
    assert told == [("ok", None), ("ok", None)]
    assert kept == ["a", "b"]
