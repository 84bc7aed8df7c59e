"""A store inside a process, by ``quiver.open``: puts, subscribes, is killed, opened again.

It ends by itself once puts are to stop: everything is delivered and acked, then it writes
down what the store says of itself.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from random import Random
from typing import Any

import quiver
from quiver.errors import Backpressure, Damage, QuiverError, StoreLocked
from quiver.store.store import Store
from quiver.subscriber.subscription import Subscription
from tests.chaos.clients.job import REJECTS, Flags, Item, Job, Maker, delivered
from tests.chaos.content import content_hash, identity_of
from tests.chaos.history import Book

SUBSCRIBERS = ("near", "far")
DAMAGED = 3
"""Exit status when the store refused to open."""
ANSWER_SECONDS = 5.0
CHILD_SECONDS = 5


class Life:
    """One opening of the store."""

    def __init__(self, job: Job, book: Book, store: Store) -> None:
        self._job = job
        self._book = book
        self._flags = Flags(job.directory)
        self._store = store
        self._maker = Maker(job, book, ("Logs", "LogAttrs"))
        self._random = job.random
        self._forks = int(job.option("forks", 0))
        self._children = 0
        self._all_put = threading.Event()
        self._version = 0

    def run(self) -> None:
        takers = [threading.Thread(target=self._take, args=(name,)) for name in SUBSCRIBERS]
        for name in SUBSCRIBERS:
            self._store.register(name)
            self._book.note("registered", stream=self._job.stream, subscriber=name)
        self._store.activate()
        for taker in takers:
            taker.start()
        while self._flags.putting or (self._maker.unanswered and self._flags.running):
            self._turn()
            self._flags.pause(self._job.pace)
        self._all_put.set()
        for taker in takers:
            taker.join()
        self._tell()

    # Putting

    def _turn(self) -> None:
        if self._forks and self._random.random() < 0.1:
            self._forks -= 1
            self._fork()
        elif self._flags.putting and self._random.random() < self._job.transactions:
            self._transact()
        else:
            for item in self._maker.items(lone=False):
                self._put(item)

    def _put(self, item: Item) -> None:
        bundle = self._maker.sending(item)
        try:
            receipt = self._store.put(bundle, key=item.key, timeout=0.5).wait(ANSWER_SECONDS)
        except Backpressure:
            self._maker.done(item, "retry")
            self._flags.pause(0.02)
        except QuiverError as error:
            self._book.note("failed", stream=self._job.stream, id=item.identity, error=str(error))
            self._maker.done(item, "lost")
            self._flags.pause(0.05)
        else:
            status = "dup" if receipt.duplicate else "ok"
            self._maker.done(item, status, receipt.ref, "durable")

    def _transact(self) -> None:
        app, version = f"{self._job.name}.{self._job.life}", self._version
        self._version += 1
        try:
            stage = self._store.stage(app, version, "only")
            for number in range(3):
                item = Item(f"{app}/tx{version}.{number}", None, ("Logs",), 3)
                stage.put(self._maker.sending(item, app=app, version=version))
            stage.finish()
            self._store.commit(app, version, ["only"])
        except QuiverError as error:
            self._book.note("failed", stream=self._job.stream, error=str(error))
        else:
            self._book.note("committed", stream=self._job.stream, app=app, version=version)

    # Forking

    def _fork(self) -> None:
        """A child puts, and so does the parent: one of them must be refused."""
        item = self._maker.items(lone=True)[0]
        self._children += 1
        child = os.fork()
        if child == 0:
            signal.alarm(CHILD_SECONDS)
            name = f"child.{self._job.life}/{self._children}"
            own = Item(name, None, item.slots, item.rows)
            self._put(own)
            os._exit(0)
        self._put(item)
        _, status = os.waitpid(child, 0)
        self._book.note("trouble", what="fork", stream=self._job.stream, status=status)

    # Taking

    def _take(self, name: str) -> None:
        job = self._job
        mine = Job(**{**json.loads(job.to_argument()), "subscriber": name})
        choose = Random(f"{job.seed}/{name}/{job.life}")  # this thread's own
        subscription = self._store.register(name)
        turns = 0
        who = {"stream": job.stream, "subscriber": name}
        refs: list[Any] = []
        bad: list[Any] = []
        while self._flags.running and (
            not self._all_put.is_set() or refs or bad or self._behind(subscription)
        ):
            if name == "far":
                self._flags.hold(job.name)
            bundle = None
            with contextlib.suppress(Damage):  # rebuilt or on record: the next call says
                bundle = subscription.next_bundle(0.1)
            if bundle is not None:
                delivered(self._book, mine, bundle.ref, dict(bundle.items()))
                ref = list(bundle.ref)
                if choose.random() < REJECTS:
                    self._book.note("rejecting", **who, refs=[ref])
                    bundle.reject("no")
                    bad.append(ref)
                else:
                    bundle.ack()
                    refs.append(ref)
            turns += 1
            if (refs or bad) and (bundle is None or turns % 8 == 0):
                with contextlib.suppress(QuiverError):
                    subscription.flush()
                    self._book.note("acked", **who, refs=refs)
                    self._book.note("rejected", **who, refs=bad)
                    refs, bad = [], []

    def _behind(self, subscription: Subscription) -> bool:
        """Whether more is to come; the last puts may not even be visible yet."""
        if not subscription.pending_bundle_count:
            self._store.flush()
        return subscription.pending_bundle_count > 0

    # The end

    def _tell(self) -> None:
        """What can be read, and what the store says of itself."""
        store, stream = self._store, self._job.stream
        for seq, count in store.segments():
            for index in range(count):
                with contextlib.suppress(QuiverError):
                    found = store.read((seq, index))
                    self._book.note(
                        "read",
                        stream=stream,
                        ref=[seq, index],
                        id=identity_of(found),
                        hash=content_hash(found),
                    )
        status = store.status()
        self._book.note(
            "status", stream=stream, state=str(status.state), problems=list(status.problems)
        )
        rows = status.as_dict()["losses"]
        self._book.note("ledger", stream=stream, rows=rows)


def close_beside_a_child(job: Job, book: Book, store: Store, settings: dict[str, Any]) -> None:
    """Close while a child lives, and open again: a child must not hold the store's lock."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(CHILD_SECONDS * 2)
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    os.close(reading)
    store.close()
    try:
        quiver.open(job.option("path"), **settings).close()
    except StoreLocked as error:
        book.violation("left_locked", f"closed, and opened beside a child: {error}")
    finally:
        os.close(writing)
        os.waitpid(child, 0)


def main() -> int:
    job = Job.from_arguments()
    book = job.book
    settings = json.loads(job.settings)
    try:
        store = quiver.open(job.option("path"), background=job.option("background"), **settings)
    except Damage as error:
        book.note("refused", stream=job.stream, error=str(error), code=error.code)
        return DAMAGED
    book.note("opened", stream=job.stream, life=job.life)
    Life(job, book, store).run()
    if job.option("forks"):
        close_beside_a_child(job, book, store, settings)
    store.close()
    return 0


if __name__ == "__main__":
    sys.exit(main())
