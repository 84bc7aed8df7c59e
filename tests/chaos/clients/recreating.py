"""Deletes and creates a stream again and again, with what the old one left: leases, tickets,
late acks, dead letters.

All lives of the stream have one name in the notes, so that their refs can be compared: a ref of
one life must never name a bundle of another.  The server may be killed at any time: whatever is
asked of it is asked for again until it is answered.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import pyarrow.flight as flight

from tests.chaos.clients.job import Flags, Item, Job
from tests.chaos.content import content_hash, identity_of
from tests.chaos.history import Book
from tests.chaos.wire import FAILURES, act, code_of, command, connect, put, told_bundles

T = TypeVar("T")
SUBSCRIBER: Final = "keeper"
MOURNER: Final = "mourner"
"""Takes the dead letters."""
PUTS: Final = 12
SLOT: Final = "Logs"
POISON: Final = 0.15
DRAINED: Final = 0.6
"""Share of the lives that are read to the end before the stream is deleted."""
ORIGIN: Final = "quiver.origin."
PAUSE: Final = 0.05


class GaveUp(Exception):
    """The round is over, and something was never answered."""


@dataclass
class Left:
    """What a life leaves behind: its consumers don't know yet that it is over."""

    lease: str | None = None
    refs: list[list[int]] = field(default_factory=list)
    ticket: flight.Ticket | None = None


class Recreating:
    """One stream after the other under one name."""

    def __init__(self, job: Job, book: Book, flags: Flags) -> None:
        self._job = job
        self._book = book
        self._flags = flags
        self._random = job.random
        self._name = job.stream
        self._dead = f"{job.stream}-dead"
        self._who = {"stream": self._name, "subscriber": SUBSCRIBER}
        self._client = connect(job.url)

    def run(self) -> None:
        self._ask("create_stream", stream=self._dead, if_not_exists=True)
        self._ask("register", stream=self._dead, subscriber=MOURNER)
        life, left = 0, Left()
        while self._flags.putting:
            left = self._life(life, left)
            life += 1
        self._begin(life)
        self._fill(life)
        self._late(left)
        self._drain()
        self._tell()
        self._client.close()

    def _life(self, life: int, before: Left) -> Left:
        self._begin(life)
        self._fill(life)
        self._late(before)
        left = self._take_some()
        if self._random.random() < DRAINED:
            self._drain()
        return left

    # Asking

    def _insist(self, call: Callable[[flight.FlightClient], T], *fine: str) -> T | None:
        """Call until it is answered; ``None`` for a refusal that is an answer as well."""
        while self._flags.running:
            try:
                return call(self._client)
            except FAILURES as error:
                if code_of(error) in fine:
                    return None
                self._client.close()
                self._flags.pause(PAUSE)
                self._client = connect(self._job.url)
        raise GaveUp

    def _ask(self, action: str, *fine: str, **fields: Any) -> dict[str, Any]:
        return self._insist(lambda client: act(client, action, **fields), *fine) or {}

    # A life

    def _begin(self, life: int) -> None:
        """Delete the stream, with all that it owes, and make it again."""
        self._book.note("deleted", stream=self._name)
        what = {"stream": self._name, "confirm": self._name, "force": True}
        self._ask("delete_stream", "unknown_stream", **what)
        self._ask("create_stream", stream=self._name, if_not_exists=True)
        policy = {"max_deliveries": 2, "backoff_ms": 1, "backoff_max_ms": 5}
        self._ask("register", **self._who, **policy)
        self._book.note("registered", **self._who)
        if life:
            self._book.note("trouble", what="recreated", stream=self._name)

    def _fill(self, life: int) -> None:
        count = self._random.randint(2, PUTS)
        label = f"{self._job.name}.{life}"
        names = [
            f"{label}/{n}{'x' if self._random.random() < POISON else ''}" for n in range(count)
        ]
        waiting = [Item(name, name, (SLOT,), 3) for name in names]
        while waiting:
            self._insist(lambda client: self._send(client, list(waiting), waiting))

    def _send(self, client: flight.FlightClient, items: list[Item], waiting: list[Item]) -> None:
        batches: list[tuple[Any, dict[str, Any]]] = []
        for item in items:
            bundle = item.bundle()
            digest = content_hash(bundle)
            told = {"id": item.identity, "key": item.key, "hash": digest}
            self._book.note("put", stream=self._name, **told)
            batches.append((bundle[SLOT], {"key": item.key}))
        for receipt in put(client, self._name, SLOT, batches):
            item, status = items[receipt["n"]], receipt["status"]
            if status in ("ok", "dup"):
                waiting.remove(item)
            self._book.note(
                "answer",
                stream=self._name,
                id=item.identity,
                status=status,
                ref=receipt.get("ref"),
                level=receipt.get("durability"),
            )

    def _take_some(self) -> Left:
        """A consumer is given bundles and stands still: its outcomes come a life too late."""
        most = self._random.randint(1, PUTS)
        claimed = self._ask("claim", **self._who, max_bundles=most, lease_ms=300, wait_ms=200)
        refs = [one["ref"] for one in claimed["bundles"]]
        info = self._insist(lambda client: client.get_flight_info(command(stream=self._name)))
        ends = info.endpoints if info is not None else []
        return Left(claimed.get("lease"), refs, ends[0].ticket if ends else None)

    def _late(self, left: Left) -> None:
        """The old stream's consumer wakes up: its acks and its ticket are of another stream."""
        if not left.refs:
            return
        behind = [max(segment for segment, _ in left.refs) + 1, 0]
        for fields in (
            {"refs": left.refs, "lease": left.lease},
            {"refs": left.refs},
            {"before": behind},
        ):
            answer = self._ask("ack", "lease_expired", **self._who, **fields, durable=True)
            if answer.get("taken"):
                what = f"{answer['taken']} taken of {fields}"
                self._book.violation("late_ack_taken", what, [str(ref) for ref in left.refs])
        if left.ticket is not None:
            with contextlib.suppress(*FAILURES):
                for about, bundle in told_bundles(self._client, left.ticket):
                    self._see("read", about["ref"], bundle)

    def _drain(self) -> None:
        """Take everything to its end: acked, or poison and a dead letter."""
        poison: set[str] = set()
        while self._ask("lag", stream=self._name)["subscribers"][SUBSCRIBER]["bundles"]:
            self._insist(lambda client: self._take(client, poison))
        self._book.note("drained", **self._who)
        self._mourn()
        self._book.note("buried", stream=self._name, ids=sorted(poison))

    def _take(self, client: flight.FlightClient, poison: set[str]) -> None:
        claimed = act(client, "claim", **self._who, max_bundles=64, wait_ms=50, lease_ms=1500)
        refs = [one["ref"] for one in claimed["bundles"]]
        if not refs:
            return
        lease = {"lease": claimed["lease"]}
        ticket = flight.Ticket(json.dumps({"v": 1, **self._who, **lease, "refs": refs}))
        good: list[list[int]] = []
        bad: list[list[int]] = []
        for about, bundle in told_bundles(client, ticket):
            name = self._see("delivered", about["ref"], bundle, subscriber=SUBSCRIBER)
            is_poison = name.endswith("x")
            (bad if is_poison else good).append(about["ref"])
            poison |= {name} if is_poison else set()
        if bad:
            act(client, "defer", **self._who, **lease, refs=bad, delay_ms=0, reason="poison")
        if good:
            answer = act(client, "ack", **self._who, **lease, refs=good, durable=True)
            failed = [one["ref"] for one in answer.get("problems") or ()]
            if answer["durable"]:
                acked = [ref for ref in good if ref not in failed]
                self._book.note("acked", **self._who, refs=acked)

    def _mourn(self) -> None:
        """Take all dead letters there are."""
        while self._ask("lag", stream=self._dead)["subscribers"][MOURNER]["bundles"]:
            self._insist(self._bury)

    def _bury(self, client: flight.FlightClient) -> None:
        who = {"stream": self._dead, "subscriber": MOURNER}
        found = act(client, "claim", **who, max_bundles=64, wait_ms=50)
        refs = [one["ref"] for one in found["bundles"]]
        if not refs:
            return
        ticket = flight.Ticket(json.dumps({"v": 1, **who, "lease": found["lease"], "refs": refs}))
        for about, bundle in told_bundles(client, ticket):
            origin = about["attributes"][f"{ORIGIN}ref"]
            self._see("dead", about["ref"], bundle, origin=_ref_of(origin))
        act(client, "ack", **who, lease=found["lease"], refs=refs, durable=True)

    def _see(self, kind: str, ref: Any, bundle: dict[str, Any], **more: Any) -> str:
        name, digest = identity_of(bundle), content_hash(bundle)
        self._book.note(kind, stream=self._name, ref=ref, id=name, hash=digest, **more)
        return name

    def _tell(self) -> None:
        told = self._ask("status", stream=self._name)["streams"][self._name]
        self._book.note("status", stream=self._name, state=told["state"], problems=[])
        self._book.note("ledger", stream=self._name, rows=told.get("losses", []))


def _ref_of(text: str) -> list[int]:
    """A ref as the server writes it into attributes: the numbers in it."""
    numbers = "".join(char if char.isdigit() else " " for char in text).split()
    segment, index = (int(one) for one in numbers)
    return [segment, index]


def main() -> int:
    job = Job.from_arguments()
    with contextlib.suppress(GaveUp):  # the round tells that this did not end in time
        Recreating(job, job.book, Flags(job.directory)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
