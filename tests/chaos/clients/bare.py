"""A client made of pyarrow and the standard library: nothing of the product is imported."""

from __future__ import annotations

import json
import sys
from typing import Any

import pyarrow.flight as flight

from tests.chaos.clients.job import REJECTS, Flags, Item, Job, Maker, delivered
from tests.chaos.history import Book
from tests.chaos.wire import FAILURES, act, bundles, code_of, connect, put

PATIENCE = 0.05
LEASE_MS = 1500
CLAIM = 24


class Producer:
    """Puts in slot mode; sends again, under its key, whatever had no answer."""

    def __init__(self, job: Job, book: Book, flags: Flags) -> None:
        self._job = job
        self._book = book
        self._flags = flags
        self._maker = Maker(job, book, ("Logs", "Spans"))

    def run(self) -> None:
        while self._flags.putting or (self._maker.unanswered and self._flags.running):
            with connect(self._job.url) as client:
                try:
                    while self._flags.putting or self._maker.unanswered:
                        self._turn(client)
                        self._flags.pause(self._job.pace)
                        if not self._flags.running:
                            return
                except FAILURES:
                    self._flags.pause(PATIENCE)

    def _turn(self, client: flight.FlightClient) -> None:
        items = self._maker.items(lone=True)
        open_items = dict(enumerate(items))
        try:
            self._send(client, items, open_items)
        finally:
            for item in open_items.values():
                self._maker.done(item, "lost")

    def _send(
        self, client: flight.FlightClient, items: list[Item], waiting: dict[int, Item]
    ) -> None:
        slot = items[0].slots[0]
        batches = [
            (self._maker.sending(item)[slot], {} if item.key is None else {"key": item.key})
            for item in items
        ]
        refused = False
        for receipt in put(client, self._job.stream, slot, batches):
            item = waiting.pop(receipt["n"])
            status = receipt["status"]
            refused = refused or status == "retry"
            self._maker.done(item, status, receipt.get("ref"), receipt.get("durability"))
        if refused:
            self._flags.pause(PATIENCE)


class Subscriber:
    """Claims, reads, acks durably; now and then rejects, defers, or lets the lease run out."""

    def __init__(self, job: Job, book: Book, flags: Flags) -> None:
        self._job = job
        self._book = book
        self._flags = flags
        self._random = job.random

    def run(self) -> None:
        while self._flags.running:
            with connect(self._job.url) as client:
                try:
                    while self._flags.running:
                        slow = self._flags.hold(self._job.name)
                        self._turn(client, 2 if slow else CLAIM)
                except FAILURES as error:
                    self._flags.pause(PATIENCE * (6 if code_of(error) else 1))

    def _turn(self, client: flight.FlightClient, most: int) -> None:
        job = self._job
        who = {"stream": job.stream, "subscriber": job.subscriber}
        claimed = act(client, "claim", **who, max_bundles=most, wait_ms=100, lease_ms=LEASE_MS)
        refs = [one["ref"] for one in claimed["bundles"]]
        if not refs:
            return
        lease = {"lease": claimed["lease"]}
        ticket = flight.Ticket(json.dumps({"v": 1, **who, **lease, "refs": refs}))
        came = []
        for ref, bundle in bundles(client, ticket):
            delivered(self._book, job, ref, bundle)
            came.append(ref)
        calm = not self._flags.putting
        later = [ref for ref in came if not calm and self._random.random() < 0.05]
        bad = [ref for ref in came if ref not in later and self._random.random() < REJECTS]
        now = [ref for ref in came if ref not in later and ref not in bad]
        if bad:
            self._book.note("rejecting", **who, refs=bad)
            answer = act(client, "reject", **who, **lease, refs=bad, durable=True)
            self._note("rejected", bad, answer)
        if now and (calm or self._random.random() > 0.05):
            self._note("acked", now, act(client, "ack", **who, **lease, refs=now, durable=True))
        if later:
            act(client, "defer", **who, **lease, refs=later, delay_ms=0)

    def _note(self, kind: str, refs: list[Any], answer: dict[str, Any]) -> None:
        """Write down what was answered as durable."""
        failed = [one["ref"] for one in answer.get("problems") or ()]
        if answer["durable"]:
            who = {"stream": self._job.stream, "subscriber": self._job.subscriber}
            self._book.note(kind, **who, refs=[ref for ref in refs if ref not in failed])


def main() -> int:
    job = Job.from_arguments()
    book, flags = job.book, Flags(job.directory)
    role = Producer if job.role == "producer" else Subscriber
    role(job, book, flags).run()
    strangers = {name.partition(".")[0] for name in sys.modules} & {"quiver", "flight_service"}
    assert not strangers, f"a bare client has loaded {strangers}"
    return 0


if __name__ == "__main__":
    sys.exit(main())
