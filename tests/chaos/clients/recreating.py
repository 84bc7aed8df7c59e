"""Deletes and creates a stream again and again, with what the old one left: leases, tickets.

The stream's name in the notes carries which one of them is meant: ``again#2``.
"""

from __future__ import annotations

import contextlib
import json
import sys
from typing import Any

import pyarrow.flight as flight

from tests.chaos.clients.job import Flags, Item, Job
from tests.chaos.content import content_hash, identity_of
from tests.chaos.history import Book
from tests.chaos.wire import FAILURES, act, bundles, command, connect, put

SUBSCRIBER = "keeper"
PUTS = 8
SLOT = "Logs"


class Recreating:
    """One stream after the other under one name."""

    def __init__(self, job: Job, book: Book, flags: Flags) -> None:
        self._job = job
        self._book = book
        self._flags = flags
        self._random = job.random
        self._name = job.stream

    def run(self) -> None:
        generation = 0
        while self._flags.putting:
            with connect(self._job.url) as client:
                try:
                    self._generation(client, generation)
                except FAILURES:  # half a life owes nobody anything
                    label = f"{self._name}#{generation}.1"
                    self._book.note("left", stream=label, subscriber=SUBSCRIBER)
            generation += 1
            self._flags.pause(0.05)

    def _generation(self, client: flight.FlightClient, number: int) -> None:
        """A stream's life, and what its leftovers do to the next one."""
        first, second = f"{self._name}#{number}.0", f"{self._name}#{number}.1"
        self._create(client)
        self._fill(client, first)
        who = {"stream": self._name, "subscriber": SUBSCRIBER}
        claimed = act(client, "claim", **who, max_bundles=PUTS, lease_ms=60_000)
        refs = [one["ref"] for one in claimed["bundles"]]
        ticket = client.get_flight_info(command(stream=self._name)).endpoints[0].ticket
        act(client, "delete_stream", stream=self._name, confirm=self._name, force=True)
        self._create(client)
        self._book.note("registered", stream=second, subscriber=SUBSCRIBER)
        self._fill(client, second)
        # The old stream's consumer wakes up: its acks and its ticket are of another stream.
        lease = {"lease": claimed["lease"]} if self._random.random() < 0.5 else {}
        with contextlib.suppress(*FAILURES):
            act(client, "ack", **who, refs=refs, durable=True, **lease)
        with contextlib.suppress(*FAILURES):
            for ref, bundle in bundles(client, ticket):
                self._see("read", first, ref, bundle)
        self._drain(client, second, who)
        self._tell(client, second)

    def _create(self, client: flight.FlightClient) -> None:
        with contextlib.suppress(*FAILURES):
            act(client, "delete_stream", stream=self._name, confirm=self._name, force=True)
        act(client, "create_stream", stream=self._name)
        act(client, "register", stream=self._name, subscriber=SUBSCRIBER)

    def _fill(self, client: flight.FlightClient, label: str) -> None:
        count = self._random.randint(2, PUTS)
        items = [Item(f"{label.replace('#', '.')}/{n}", None, (SLOT,), 3) for n in range(count)]
        batches: list[tuple[Any, dict[str, Any]]] = []
        for item in items:
            bundle = item.bundle()
            digest = content_hash(bundle)
            self._book.note("put", stream=label, id=item.identity, key=None, hash=digest)
            batches.append((bundle[SLOT], {}))
        for item, receipt in zip(items, put(client, self._name, SLOT, batches), strict=False):
            self._book.note(
                "answer",
                stream=label,
                id=item.identity,
                status=receipt["status"],
                ref=receipt.get("ref"),
                level=receipt.get("durability"),
            )

    def _drain(self, client: flight.FlightClient, label: str, who: dict[str, Any]) -> None:
        while found := act(client, "claim", **who, max_bundles=64)["bundles"]:
            refs = [one["ref"] for one in found]
            own = flight.Ticket(json.dumps({"v": 1, "stream": self._name, "refs": refs}))
            for ref, bundle in bundles(client, own):
                self._see("delivered", label, ref, bundle, subscriber=SUBSCRIBER)
            act(client, "ack", **who, refs=refs, durable=True)

    def _see(self, kind: str, label: str, ref: Any, bundle: dict[str, Any], **more: Any) -> None:
        name, digest = identity_of(bundle), content_hash(bundle)
        self._book.note(kind, stream=label, ref=ref, id=name, hash=digest, **more)

    def _tell(self, client: flight.FlightClient, label: str) -> None:
        told = act(client, "status", stream=self._name)["streams"][self._name]
        self._book.note("status", stream=label, state=told["state"], problems=[])
        self._book.note("ledger", stream=label, rows=told.get("losses", []))


def main() -> int:
    job = Job.from_arguments()
    Recreating(job, job.book, Flags(job.directory)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
