"""One DoPut against a store that does what the test says: order, failures, silence."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from flight_service.protocol.put import PutCommand
from flight_service.server.put import PutCall, TurnGap
from quiver import BundleRef, Receipt
from quiver.errors import InvalidBundle, Poisoned, QuiverError, StorageFull

BATCH = pa.record_batch({"x": [1]})
PATIENCE = 10.0


class Waiter:
    """Lets receipts come true when the test says so."""

    def __init__(self) -> None:
        self.changed = threading.Condition()

    def wait(self, receipt: Receipt, timeout: float | None) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: receipt.done, PATIENCE)

    def complete(self, receipt: Receipt, error: QuiverError | None = None) -> None:
        with self.changed:
            receipt.complete(error)
            self.changed.notify_all()


class Call:
    """A client, a store and a call between them, all in this process."""

    def __init__(self, answers: list[QuiverError | None], window: int = 100) -> None:
        self.waiter = Waiter()
        self.taken: list[Receipt] = []
        self.sent: list[dict[str, Any]] = []
        self._answers = answers
        self._script: list[Callable[[], dict[str, Any] | None]] = []
        self._written = threading.Condition()
        self.fail_writes = False
        self.call = PutCall(
            SimpleNamespace(store=self),  # type: ignore[arg-type]
            PutCommand(stream="t", mode="slot", slot="Logs"),
            self,
            self,
            window=window,
            put_wait=0.0,
            stopping=lambda: False,
        )

    # The store

    def put(self, slots: Any, **options: Any) -> Receipt:
        answer = self._answers.pop(0)
        if answer is not None:
            raise answer
        ref = BundleRef(0, len(self.taken))
        receipt = Receipt(
            ref, len(self.taken), 0, rows=1, nbytes=1, key=options["key"], waiter=self.waiter
        )
        self.taken.append(receipt)
        return receipt

    # The client

    def read_chunk(self) -> Any:
        if not self._script:
            raise StopIteration
        note = self._script.pop(0)()
        metadata = None if note is None else pa.py_buffer(json.dumps({"v": 1, **note}).encode())
        return SimpleNamespace(data=BATCH, app_metadata=metadata)

    def write(self, message: bytes) -> None:
        if self.fail_writes:
            raise pa.ArrowInvalid("gone")
        with self._written:
            self.sent += json.loads(message)["receipts"]
            self._written.notify_all()

    def send(self, note: dict[str, Any] | None = None, *, when: Callable[[], Any] = int) -> None:
        """Script: send a message, after ``when`` returned."""

        def step() -> dict[str, Any] | None:
            when()
            return note

        self._script.append(step)

    def answered(self, count: int) -> None:
        with self._written:
            assert self._written.wait_for(lambda: len(self.sent) >= count, PATIENCE)

    def statuses(self) -> list[str]:
        return [f"{one['status']} {one.get('code', '')}".strip() for one in self.sent]


def test_receipts_come_in_order_and_only_when_durable() -> None:
    """Scenario: three bundles, the second durable first. Guarantee: nothing is answered
    before its turn, and then all that is known in one go."""
    call = Call([None, None, None])
    for _ in range(3):
        call.send()

    def finish() -> None:
        while len(call.taken) < 3:
            threading.Event().wait(0.001)
        call.waiter.complete(call.taken[1])
        assert call.sent == []
        call.waiter.complete(call.taken[0])
        call.waiter.complete(call.taken[2])

    thread = threading.Thread(target=finish)
    thread.start()
    call.call.run()
    thread.join()
    assert [one["n"] for one in call.sent] == [0, 1, 2]
    assert {one["durability"] for one in call.sent} == {"durable"}


def test_a_bundle_that_could_not_be_written_closes_the_door_behind_it() -> None:
    """Scenario: a bundle was accepted, then its group failed for lack of space. Guarantee:
    it is answered `retry`, whatever comes next is out of turn until it is sent again, even
    what comes before the failure was told."""
    call = Call([None, None, None])
    call.send()
    call.send(when=lambda: call.waiter.complete(call.taken[0], StorageFull("wal")))
    call.send(when=lambda: call.answered(2))
    call.send({"resend": 0})
    call.send(when=lambda: call.waiter.complete(call.taken[1]))
    call.send({"resend": 1}, when=lambda: call.waiter.complete(call.taken[2]))
    call._answers.append(None)

    def last() -> None:
        while len(call.taken) < 4:
            threading.Event().wait(0.001)
        call.waiter.complete(call.taken[3])

    thread = threading.Thread(target=last)
    thread.start()
    call.call.run()
    thread.join()
    assert call.statuses() == [
        "retry storage_full",
        "retry out_of_turn",
        "retry out_of_turn",
        "ok",
        "ok",
        "ok",
    ]


def test_the_older_of_two_gaps_counts_whichever_thread_saw_it_first() -> None:
    """Scenario: message 1 is refused while message 0 is on its way to the disk; then 0 fails.
    The client reads `retry` for 0 first, and sends 0 again, with resend. Guarantee: it is
    taken. (The call waited for 1, and refused 0 as out of turn for ever.)"""
    call = Call([None, StorageFull("wal"), None, None])

    def fail_the_first() -> None:
        call.waiter.complete(call.taken[0], StorageFull("wal"))
        call.answered(2)

    call.send()
    call.send()
    call.send({"resend": 0}, when=fail_the_first)
    call.send(when=lambda: call.waiter.complete(call.taken[1]))

    def last() -> None:
        while len(call.taken) < 3:
            threading.Event().wait(0.001)
        call.waiter.complete(call.taken[2])

    thread = threading.Thread(target=last, daemon=True)
    thread.start()
    call.call.run()
    assert call.statuses() == ["retry storage_full", "retry storage_full", "ok", "ok"]


def test_a_failure_that_the_sender_has_not_seen_yet_keeps_everything_out() -> None:
    """Scenario: message 0 could not be written, and the sender is held up before it finds out;
    messages 1 and 2 come meanwhile. Guarantee: neither is taken before 0 has come again. (1 was
    refused, and the failure forgotten with that: 2 was taken before 0.)"""
    call = Call([None, None, None])

    def fail_unseen() -> None:
        call.taken[0].complete(StorageFull("wal"))  # the sender sleeps on

    def wake_the_sender() -> None:
        with call.waiter.changed:
            call.waiter.changed.notify_all()
        call.answered(3)

    call.send()
    call.send(when=fail_unseen)
    call.send()
    call.send({"resend": 0}, when=wake_the_sender)

    def last() -> None:
        while len(call.taken) < 2:
            threading.Event().wait(0.001)
        call.waiter.complete(call.taken[1])

    thread = threading.Thread(target=last, daemon=True)
    thread.start()
    call.call.run()
    assert call.statuses() == ["retry storage_full", *["retry out_of_turn"] * 2, "ok"]


def test_a_failure_told_after_the_gap_was_filled_opens_no_other() -> None:
    """Scenario: 0 and 1 could not be written. The client sends 0 again as soon as it is told,
    before it is told of 1. Guarantee: 1, sent again behind it, is taken: the client knows of
    one gap, and has filled it."""
    gap = TurnGap()
    gap.open(0, None)
    gap.fill(0, 2)
    seen = []
    gap.open(1, None)
    seen.append(gap.first)
    gap.open(2, 0)  # what filled the gap could not be written either
    seen.append(gap.first)
    gap.open(3, None)
    seen.append(gap.first)
    assert seen == [None, 0, 0]


def test_two_threads_open_a_gap_at_the_same_time() -> None:
    """Scenario: both threads of a call find a refusal at the same moment, again and again.
    Guarantee: the lower number counts."""
    for _ in range(200):
        gap, meet = TurnGap(), threading.Barrier(2)

        def opens(n: int, gap: TurnGap = gap, meet: threading.Barrier = meet) -> None:
            meet.wait(PATIENCE)
            gap.open(n, None)

        threads = [threading.Thread(target=opens, args=[n]) for n in (3, 5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert gap.first == 3


def test_a_rejected_repeat_closes_its_gap() -> None:
    """Scenario: a bundle is refused for now, and rejected for good when sent again.
    Guarantee: the call goes on: nobody will send it a third time."""
    call = Call([StorageFull("wal"), InvalidBundle("bad"), None])
    call.send()
    call.send({"resend": 0})
    call.send()

    def last() -> None:
        while not call.taken:
            threading.Event().wait(0.001)
        call.waiter.complete(call.taken[0])

    thread = threading.Thread(target=last)
    thread.start()
    call.call.run()
    thread.join()
    assert call.statuses() == ["retry storage_full", "rejected invalid_bundle", "ok"]


def test_a_broken_store_ends_the_call_after_what_is_known() -> None:
    """Scenario: the store is poisoned in the middle of a call. Guarantee: what was durable
    is answered; then the call ends with the cause: no bundle is blamed for it."""
    call = Call([None, Poisoned("an fsync failed")])
    call.send()
    call.send(when=lambda: call.waiter.complete(call.taken[0]))
    with pytest.raises(Poisoned):
        call.call.run()
    assert call.statuses() == ["ok"]


def test_a_client_that_has_gone_ends_quietly() -> None:
    """Scenario: receipts can't be sent any more. Guarantee: the call ends, and nothing
    waits for anybody."""
    call = Call([None] * 5, window=2)
    call.fail_writes = True

    def finish_the_one_before() -> None:
        if call.taken:
            call.waiter.complete(call.taken[-1])

    for _ in range(5):
        call.send(when=finish_the_one_before)

    def last() -> None:
        while len(call.taken) < 5:
            threading.Event().wait(0.001)
        call.waiter.complete(call.taken[4])

    thread = threading.Thread(target=last)
    thread.start()
    call.call.run()
    thread.join()
    assert call.sent == []
