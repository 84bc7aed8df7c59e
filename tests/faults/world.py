"""A small store, a workload that notes what it was promised, and a look at what is left.

A bundle is a number and a text made from it, so that whatever is found says which one it
is and whether it is whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final, TypeVar

import pyarrow as pa

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.disk.seam import RawDisk
from quiver.errors import QuiverError
from quiver.ids import BundleRef
from quiver.ingest.receipt import Receipt
from quiver.store.store import Store
from quiver.subscriber.subscription import Subscription
from tests.support.memory_disk import MemoryDisk

T = TypeVar("T")

SLOT: Final = "Logs"
EVERYTHING: Final = 2**63
NOT_PROMISED: Final = frozenset({"LOCK", "quiver.reserve"})
"""Files whose contents mean nothing."""


def config(**changes: Any) -> Config:
    """Everything as small as it gets: a few bundles fill a log file, a few more a segment."""
    settings: dict[str, Any] = {
        "reserve": "4KiB",
        "wal": {"rotation_target": "2KiB", "max_size": "64KiB", "max_rotated_files": 20},
        "segment": {"target_size": "2KiB", "max_unfinalized": 4},
        "limits": {"max_bundle": "8KiB", "max_unsynced": "16KiB"},
    }
    for name, value in changes.items():
        known = settings.get(name)
        settings[name] = known | value if isinstance(known, dict) else value
    return Config.load(env={}, **settings)


@cache
def batch(number: int) -> pa.RecordBatch:
    """The bundle of this number."""
    return pa.record_batch({"n": [number], "text": [f"bundle {number} " * (1 + number % 3)]})


def number_of(found: Mapping[str, pa.RecordBatch]) -> int:
    """Which bundle this is; it must be whole."""
    number = int(found[SLOT].column("n")[0].as_py())
    assert found[SLOT].equals(batch(number)), f"bundle {number} is not what was put"
    return number


def open_store(raw: RawDisk, settings: Config | None = None) -> Store:
    """A store without threads or time of its own."""
    return Store(Disk(raw), settings or config(), where="mem", clock=ManualClock())


@dataclass
class Asked:
    """A commit: what it would make seen, and whether it was answered."""

    attempts: tuple[str, ...]
    numbers: frozenset[int]
    answered: bool = False


@dataclass
class Witness:
    """What was offered, what was promised, what was asked for."""

    offered: set[int] = field(default_factory=set)
    durable: dict[int, BundleRef] = field(default_factory=dict)
    receipts: list[tuple[int, Receipt]] = field(default_factory=list)
    joined: set[str] = field(default_factory=set)
    """Subscribers of which the store said that they are registered."""
    missed: dict[str, set[int]] = field(default_factory=dict)
    """Bundles that all others were done with when a subscriber came."""
    asked: dict[str, set[int]] = field(default_factory=dict)
    """Acks that were given, durable or not, by subscriber."""
    given: dict[str, set[int]] = field(default_factory=dict)
    """Of these, the ones given since the store was opened last."""
    kept: dict[str, set[int]] = field(default_factory=dict)
    """Acks of which the store said that they are durable."""
    errors: list[QuiverError] = field(default_factory=list)
    asked_commits: dict[tuple[str, int], Asked] = field(default_factory=dict)
    """Commits that were asked for, answered or not."""

    def attempt(self, work: Callable[[], T]) -> T | None:
        """Do something that may fail, with one of Quiver's own errors and no other."""
        try:
            return work()
        except QuiverError as error:
            self.errors.append(error)
            return None

    def join(self, store: Store, name: str) -> Subscription | None:
        """Register a subscriber: what all before it are done with may be gone for it."""
        over = {number for number in self.offered if self.may_be_gone(number)}
        subscription = self.attempt(lambda: store.register(name))
        if subscription is not None:
            if name not in self.joined:
                self.missed[name] = over
            self.joined.add(name)
        return subscription

    def put(self, store: Store, number: int, *, key: str | None = None) -> None:
        """Offer a bundle; :meth:`settle` waits for it."""
        self.offered.add(number)
        receipt = self.attempt(lambda: store.put({SLOT: batch(number)}, key=key))
        if receipt is not None:
            self.receipts.append((number, receipt))

    def settle(self) -> None:
        """Wait for all puts so far: each is durable or says why not.

        Without a log, a segment that can't be written is tried again later: then the answer
        is an error, and the put may become durable all the same.
        """
        for number, receipt in self.receipts:
            failed = len(self.errors)
            self.attempt(receipt.wait)
            assert receipt.durable or len(self.errors) > failed, f"put {number} got no answer"
            if receipt.durable:
                self.durable[number] = receipt.ref
        self.receipts = [(n, receipt) for n, receipt in self.receipts if not receipt.done]

    def transact(self, store: Store, app: str, version: int, *parts: Iterable[int]) -> None:
        """Stage some bundles, each part by an attempt of its own, and commit them.

        A version that nobody answered yet comes first: behind a later one it would be over.
        """
        for (other, before), asked in self.asked_commits.items():
            if not asked.answered:
                self.commit(store, other, before)
            if not asked.answered:
                return
        attempts: list[str] = []
        numbers: list[int] = []
        for at, part in enumerate(parts):
            name = f"{version}.{at}"
            if not self._stage(store, app, version, name, part):
                self.attempt(lambda: store.abort(app, version))
                return
            attempts.append(name)
            numbers += part
        self.asked_commits[app, version] = Asked(tuple(attempts), frozenset(numbers))
        self.offered.update(numbers)
        self.commit(store, app, version)

    def _stage(
        self, store: Store, app: str, version: int, name: str, numbers: Iterable[int]
    ) -> bool:
        stage = self.attempt(lambda: store.stage(app, version, name))
        if stage is None:
            return False
        with stage:
            failed = len(self.errors)
            for number in numbers:
                self.attempt(lambda number=number: stage.put({SLOT: batch(number)}))  # type: ignore[misc]
            return len(self.errors) == failed and self.attempt(stage.finish) is not None

    def commit(self, store: Store, app: str, version: int) -> None:
        """Commit, or commit again: whatever comes between, it counts once."""
        asked = self.asked_commits.get((app, version))
        if asked is None:
            return
        answer = self.attempt(lambda: store.commit(app, version, asked.attempts))
        if answer is not None:
            assert answer.repeated or not asked.answered, f"{app} {version} was committed twice"
            asked.answered = True

    def ack_next(self, subscription: Subscription, count: int) -> None:
        """Take some bundles, look at them, and ack."""
        for _ in range(count):
            bundle = self.attempt(subscription.next_bundle)
            if bundle is None:
                return
            found = self.attempt(lambda bundle=bundle: dict(bundle.items()))  # type: ignore[misc]
            if found is not None:
                for acks in (self.asked, self.given):
                    acks.setdefault(subscription.name, set()).add(number_of(found))
                self.attempt(bundle.ack)

    def keep(self, subscription: Subscription) -> None:
        """Make its acks durable."""
        given = set(self.given.get(subscription.name, ()))
        failed = len(self.errors)
        self.attempt(subscription.flush)
        if len(self.errors) == failed:
            self.kept.setdefault(subscription.name, set()).update(given)

    def may_be_gone(self, number: int) -> bool:
        """Whether everybody has asked to be done with it, or came when all others had."""
        return bool(self.joined) and all(self.needs_not(name, number) for name in self.joined)

    def needs_not(self, name: str, number: int) -> bool:
        """Whether a subscriber may do without a bundle."""
        return number in self.asked.get(name, ()) or number in self.missed.get(name, ())


@dataclass(frozen=True)
class Found:
    """What a store has."""

    bundles: Mapping[int, BundleRef]
    outstanding: Mapping[str, frozenset[int]]


def look(store: Store) -> Found:
    """Read every bundle of a store, and what each subscriber has left."""
    bundles: list[tuple[int, BundleRef]] = []
    for seq, count in store.segments():
        for index in range(count):
            ref = BundleRef(seq, index)
            bundles.append((number_of(store.read(ref)), ref))
    twice = [number for number, count in Counter(n for n, _ in bundles).items() if count > 1]
    assert not twice, f"there more than once: {twice}"
    by_ref = {ref: number for number, ref in bundles}
    outstanding = {
        name: frozenset(
            by_ref[ref] for ref in store.register(name).pending_bundles_in_range(0, EVERYTHING)
        )
        for name in store.subscribers
    }
    return Found(dict(bundles), outstanding)


def check(
    files: Mapping[str, bytes],
    witness: Witness,
    settings: Config | None = None,
    directories: Iterable[str] = (),
) -> None:
    """Reopen, and hold what is there against what was promised; then go on, close, reopen."""
    raw = MemoryDisk.from_image(files, directories, record=False)
    store = open_store(raw, settings)
    found = look(store)
    assert set(found.bundles) <= witness.offered, "something is there that nobody put"
    for number, ref in witness.durable.items():
        if number in found.bundles:
            assert found.bundles[number] == ref, f"bundle {number} changed its ref"
        else:
            assert witness.may_be_gone(number), f"durable bundle {number} is lost"
    _check_commits(store, witness, found)
    for name, left in found.outstanding.items():
        again = left & witness.kept.get(name, set())
        assert not again, f"{name} gets {sorted(again)} again"
        skipped = {n for n in set(found.bundles) - left if not witness.needs_not(name, n)}
        assert not skipped, f"{name} never gets {sorted(skipped)}"
    store.put({SLOT: batch(1_000_000)}).wait()
    store.close()
    again_open = open_store(raw, settings)
    assert set(look(again_open).bundles) >= {1_000_000}
    again_open.close()


def _check_commits(store: Store, witness: Witness, found: Found) -> None:
    """All of a commit or nothing; if it was answered, all. Asked again, all of it, once."""
    for (app, version), asked in witness.asked_commits.items():
        there = {n for n in asked.numbers if n in found.bundles or witness.may_be_gone(n)}
        last = store.committed(app)
        if last is not None and last >= version:
            assert there == asked.numbers, f"of {app} {version} only {sorted(there)} are there"
            continue
        assert not there & found.bundles.keys(), f"{sorted(there)} of {app} {version} are there"
        assert not asked.answered, f"{app} {version} was answered, and is forgotten"
        for one in asked.attempts:
            assert _is_staged(store, app, version, one), f"{one} of {app} {version} is gone"
        answer = store.commit(app, version, asked.attempts)
        assert not answer.repeated
        assert answer.bundles == len(asked.numbers)
        assert asked.numbers <= look(store).bundles.keys()


def _is_staged(store: Store, app: str, version: int, attempt: str) -> bool:
    return any((s.app, s.version, s.attempt) == (app, version, attempt) for s in store.stages())


def meaningful(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """The files that mean something."""
    return {path: data for path, data in files.items() if path not in NOT_PROMISED}
