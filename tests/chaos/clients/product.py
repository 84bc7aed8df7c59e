"""A client that uses the product's own: writer, transactions, live subscription."""

from __future__ import annotations

import sys
from typing import Any

from flight_service.client import Client, ClientError, Retry, connect
from flight_service.client.writer import Writer
from tests.chaos.clients.job import REJECTS, Flags, Item, Job, Maker, delivered
from tests.chaos.history import Book

PATIENT = Retry(initial=0.02, maximum=0.3, give_up_after=60.0)
ANSWER_SECONDS = 10.0
PAUSE = 0.05
PARTS = 2
PER_PART = 2


def connected(job: Job, flags: Flags) -> Client | None:
    """A connection, as soon as a server answers; ``None`` when the round is over first."""
    while flags.running:
        try:
            return connect(job.url, wait=1.0, timeout=8.0, retry=PATIENT)
        except ClientError:
            flags.pause(PAUSE)
    return None


class Producer:
    """Puts bundles of several slots through a writer, and transactions in between."""

    def __init__(self, job: Job, book: Book, flags: Flags) -> None:
        self._job = job
        self._book = book
        self._flags = flags
        self._maker = Maker(job, book, ("Logs", "LogAttrs", "Traces"))
        self._random = job.random
        self._version = 0
        self._committed: list[int] = []

    def run(self) -> None:
        while self._busy:
            client = connected(self._job, self._flags)
            if client is None:
                return
            with client:
                try:
                    self._work(client)
                except ClientError:
                    self._flags.pause(PAUSE)

    @property
    def _busy(self) -> bool:
        more = self._flags.putting or bool(self._maker.unanswered)
        return more and self._flags.running

    def _work(self, client: Client) -> None:
        stream = client.stream(self._job.stream)
        with stream.writer(window=64, retry=PATIENT, on_reject=lambda _: None) as writer:
            while self._busy:
                if self._flags.putting and self._random.random() < self._job.transactions:
                    self._transact(client)
                else:
                    self._put(writer)
                self._flags.pause(self._job.pace)

    def _put(self, writer: Writer) -> None:
        items = self._maker.items(lone=False)
        waiting = dict(enumerate(items))
        try:
            sent = []
            for item in items:
                bundle = self._maker.sending(item)
                sent.append(writer.put(bundle, key=item.key, timeout=ANSWER_SECONDS))
            for number, pending in enumerate(sent):
                receipt = pending.result(ANSWER_SECONDS)
                status = "dup" if receipt.duplicate else "ok"
                self._maker.done(waiting.pop(number), status, receipt.ref, receipt.durability)
        finally:
            for item in waiting.values():
                self._maker.done(item, "lost")

    def _transact(self, client: Client) -> None:
        """Stage some bundles in parts and commit them; an old version is tried again."""
        if self._committed and self._random.random() < 0.3:
            version = self._random.choice(self._committed)
        else:
            version, self._version = self._version, self._version + 1
        stream = client.stream(self._job.stream)
        app = f"{self._job.name}.{self._job.life}"
        if version not in self._committed and stream.begin(app, version).committed:
            return
        attempts: list[str] = []
        for part in range(PARTS):
            with stream.stage(app, version, retry=PATIENT) as share:
                for number in range(PER_PART):
                    item = Item(f"{app}/tx{version}.{part}.{number}", None, ("Logs", "Traces"), 3)
                    share.put(self._maker.sending(item, app=app, version=version))
            attempts += share.finish().attempts
        stream.commit(app, version, attempts)
        self._book.note("committed", stream=self._job.stream, app=app, version=version)
        self._committed.append(version)


class Subscriber:
    """Iterates over a live subscription; acks in groups, durably."""

    def __init__(self, job: Job, book: Book, flags: Flags) -> None:
        self._job = job
        self._book = book
        self._flags = flags
        self._random = job.random

    def run(self) -> None:
        while self._flags.running:
            client = connected(self._job, self._flags)
            if client is None:
                return
            with client:
                try:
                    self._receive(client)
                except ClientError:
                    self._flags.pause(PAUSE)

    def _receive(self, client: Client) -> None:
        job = self._job
        stream = client.stream(job.stream)
        with stream.subscribe(job.subscriber, prefetch=32, lease=2.0, retry=PATIENT) as bundles:
            refs: dict[str, list[Any]] = {"acked": [], "rejected": []}
            who = {"stream": job.stream, "subscriber": job.subscriber}
            while self._flags.running:
                self._flags.hold(job.name)
                bundle = bundles.next_bundle(0.1)
                if bundle is not None:
                    values = {slot: bundle[slot] for slot in bundle}
                    delivered(self._book, job, bundle.ref, values)
                    ref = list(bundle.ref)
                    for told in refs.values():  # delivered again: the outcome before is void
                        told[:] = [one for one in told if one != ref]
                    if self._flags.putting and self._random.random() < 0.03:
                        bundle.defer(0.0, "later")
                        continue
                    if self._random.random() < REJECTS:
                        self._book.note("rejecting", **who, refs=[ref])
                        bundle.reject("no")
                        refs["rejected"].append(ref)
                    else:
                        bundle.ack()
                        refs["acked"].append(ref)
                count = sum(map(len, refs.values()))
                if count and (bundle is None or count >= 16):
                    bundles.flush(ANSWER_SECONDS, durable=True)
                    for kind, told in refs.items():
                        self._book.note(kind, **who, refs=told)
                        refs[kind] = []


def main() -> int:
    job = Job.from_arguments()
    role = Producer if job.role == "producer" else Subscriber
    role(job, job.book, Flags(job.directory)).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
