"""A store, its disk, its clock and everybody who uses it; every call writes its facts."""

from __future__ import annotations

import contextlib
import gc
import math
import random
from collections.abc import Callable, Iterator
from itertools import count
from typing import Any, Final

import pyarrow as pa

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.errors import (
    Busy,
    Damage,
    KeyConflict,
    NotFound,
    Poisoned,
    QuiverError,
    StageNotFound,
    StorageFault,
    UnsupportedVersion,
)
from quiver.ids import BundleRef
from quiver.ingest.memory_budget import MemoryBudget
from quiver.ingest.receipt import Receipt
from quiver.offline.mend import mend
from quiver.segment.info import segment_path
from quiver.store.store import Store
from quiver.subscriber.subscription import Subscription
from quiver.transaction.commit import Committed
from tests.crash.chance import decided
from tests.crash.disk import CrashDisk, Fold, Killed, Record
from tests.crash.scheduler import Scheduler, Task, simulated
from tests.crash.states import State, states
from tests.product import copies, judge
from tests.product.facts import Facts, Mark, Put, Sub, Transaction, Violation
from tests.support.oplog import Op, Sync, SyncDir

SECTOR: Final = 128
PATIENCE: Final = 6
"""Times a put is tried when the store says "not now", with upkeep in between."""
MAX_DELIVERIES: Final = 400

NOT_NOW: Final = (Busy, StorageFault)
"""What a store may answer when it can't."""


class SwitchingDisk(CrashDisk):
    """A sync is a place where another task may go on, as every call with the disk's lock is."""

    scheduler: Scheduler | None = None
    slow: float | None = None
    """Seconds that a sync of a file takes, for the others to run out of time meanwhile."""

    def log(self, op: Op) -> None:
        # Not under the disk's own lock: a thread of Arrow's that reads could not wait for it.
        held: bool = self.mutex.locked()  # type: ignore[attr-defined]
        if isinstance(op, Sync | SyncDir) and self.scheduler is not None and not held:
            self.scheduler.point("sync")
            if self.slow is not None and isinstance(op, Sync):
                self.scheduler.block("sync", self.slow)
        super().log(op)


class World:
    """One run."""

    def __init__(self, rng: random.Random, settings: dict[str, Any]) -> None:
        self.rng = rng
        self.clock = ManualClock()
        self.scheduler = Scheduler(rng, self.clock)
        self.facts = Facts()
        self.settings = settings
        self.memory: MemoryBudget | None = None
        """What open segments may take, from the next open on."""
        self.effects: set[str] = set()
        """What has come of the trouble so far: the suite is to show that it came at all."""
        self._policies: set[str] = set()
        self._min_age = math.inf
        self._numbers = count()
        self._receipts: list[tuple[Put, Receipt]] = []
        self._waiting: dict[int, Put] = {}
        self._told: dict[int, Receipt] = {}
        self._handles: dict[str, Subscription] = {}
        self._stack = contextlib.ExitStack()
        # A collection at a moment of its own choosing would end files there, too.
        gc.disable()
        self._stack.callback(gc.enable)
        self._stack.enter_context(decided(str(rng.random())))
        self._stack.enter_context(simulated(self.scheduler))
        self._stack.enter_context(self._listening())
        self.store: Store | None = None
        self._begin(State({}, []))

    def end(self) -> None:
        """Give the real locks back."""
        self._stack.close()

    @contextlib.contextmanager
    def _listening(self) -> Iterator[None]:
        """Hear of each receipt in the moment it is completed; a dead process tells nobody."""
        original = Receipt.complete

        def complete(receipt: Receipt, error: QuiverError | None = None) -> None:
            original(receipt, error)
            if not self.disk.dead:
                self._told[id(receipt)] = receipt
                if id(receipt) in self._waiting:
                    self._answered(self._waiting[id(receipt)], receipt)

        Receipt.complete = complete  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            Receipt.complete = original  # type: ignore[method-assign]

    # The disk

    def _begin(self, state: State) -> None:
        disk = SwitchingDisk.from_image(state.files, state.directories)
        assert isinstance(disk, SwitchingDisk)
        self.disk = disk
        self.disk.scheduler = self.scheduler
        self._fold = Fold(state.files, state.directories)
        self.disk.watch = self._watch

    def _watch(self, record: Record) -> None:
        self._fold.take(record)

    # Opening and ending

    @property
    def config(self) -> Config:
        return Config.load(env={}, **self.settings)

    def open(self) -> None:
        """Open, repair where damage makes that necessary, and judge."""
        self._handles, self._receipts, self._told, self._waiting = {}, [], {}, {}
        for sub in self.facts.subs.values():
            sub.soft = dict(sub.hard)
        try:
            self._open()
        except Damage as refusal:
            self._check_refusal(refusal)
            self.repair()
            try:
                self._open()
            except QuiverError as error:
                raise Violation("opens", f"still refused after repair: {error}") from error
        except Killed:
            raise
        except NOT_NOW:
            self.store = None
            raise
        except Exception as error:
            raise Violation("opens", f"{type(error).__name__}: {error}") from error
        self._check_sound()
        known = self._open_store().subscribers
        for name in [n for n, sub in self.facts.subs.items() if sub.leaving and n not in known]:
            del self.facts.subs[name]
        judge.look(self, opened=True)

    def _open(self) -> None:
        self.store = None
        self._note_policies()
        self.store = Store(
            Disk(self.disk), self.config, where="product", clock=self.clock, memory=self.memory
        )

    def _check_sound(self) -> None:
        """Nobody has damaged anything: so the open has found nothing damaged, lost or gone."""
        report = self._open_store().report
        seqs = {*report.reclaimed, *(loss.segment_seq for loss in report.lost)}
        paths = {segment_path(seq) for seq in seqs}
        paths |= {_before_quarantine(path) for path in report.quarantined}
        marked = self.facts.marks.keys()
        # Another file's damage may say of any segment that it is missing something.
        if all(path.endswith(".qseg") for path in marked) and paths - marked:
            raise Violation("no_false_damage", f"the open has found damage: {sorted(paths)}")

    @property
    def policies(self) -> set[str]:
        """Reasons for which the settings of this run may ever have let data be dropped."""
        return self._policies

    def may_be_too_old(self, put: Put) -> bool:
        """Whether an age limit may have dropped it by now."""
        return self.clock.monotonic() - put.at >= self._min_age

    def _note_policies(self) -> None:
        retention = self.config.retention
        if retention.size_cap is not None and retention.size_cap_policy == "drop_oldest":
            self._policies.add("size")
        if retention.max_age is not None:
            self._policies.add("time")
            self._min_age = min(self._min_age, retention.max_age)

    def _check_refusal(self, refusal: Damage) -> None:
        if not self.facts.refusable:
            raise Violation("opens", f"refused though no such file is damaged: {refusal}")

    def repair(self) -> None:
        """What an operator does with what damage left."""
        try:
            mend(Disk(self.disk), self.clock, where="product")
        except Killed:
            raise
        except NOT_NOW:
            raise
        except Exception as error:
            raise Violation("opens", f"repair failed: {type(error).__name__}: {error}") from error
        self.effects.add("repaired")

    def close(self) -> None:
        """A clean end; what was acked is durable then."""
        self.disk.capacity = None
        soft = self._softs()
        assert self.store is not None
        try:
            self.store.close()
        except NOT_NOW:
            pass
        else:
            if not self.disk.sync_failed:  # a poisoned store writes nothing any more
                self._harden(soft)
        self._settle_receipts()
        self.disk.revive()
        self.store = None

    def kill(self) -> None:
        """The process ends; what it wrote is in the page cache."""
        self._settle_receipts()
        self.disk.revive()
        self.store = None

    def cut(self) -> None:
        """The machine ends: one of the legal states is what is left."""
        self._settle_receipts()
        self._begin(self.rng.choice(list(states(self._fold, self.rng, SECTOR))))
        self.store = None
        for one in self.facts.commits.values():
            one.doubtful |= one.phase == "aborted"  # its files' names may be back

    def _settle_receipts(self) -> None:
        """What was answered by now; the rest nobody knows."""
        for put, receipt in self._receipts:
            self._answered(put, receipt)
            if put.state == "asked":
                put.state = "unknown"
        self._receipts = []

    # Calls: each may be a task beside others

    def together(self, *calls: tuple[str, Callable[[], object]], inside: int | None = None) -> None:
        """Several calls at once, under the scheduler."""
        self.check(self.scheduler.run(*calls, inside=inside))

    def check(self, tasks: list[Task]) -> None:
        """Tasks may end with what a store may say; with nothing else."""
        for error in [task.error for task in tasks if task.error is not None]:
            if isinstance(error, Violation):
                raise error
            if not isinstance(error, NOT_NOW):
                name = next(task.name for task in tasks if task.error is error)
                raise Violation(
                    "goes_on", f"{name} ended with {type(error).__name__}: {error}"
                ) from error

    def new_put(self, slots: list[str], key: str | None = None) -> Put:
        """A bundle like no other."""
        number = next(self._numbers)
        batch = {
            slot: pa.record_batch(
                {
                    "n": pa.array([number, at], pa.int64()),
                    "fill": pa.array([self.rng.randbytes(self.rng.choice((4, 90))), None]),
                }
            )
            for at, slot in enumerate(slots)
        }
        put = self.facts.puts[number] = Put(number, batch, key, at=self.clock.monotonic())
        return put

    def put(self, slots: list[str], key: str | None = None, *, wait: bool = True) -> None:
        """Send a new bundle."""
        receipt = self.send(self.new_put(slots, key))
        if receipt is not None and wait:
            with contextlib.suppress(*NOT_NOW):
                receipt.wait()

    def send(self, put: Put) -> Receipt | None:
        """Send a bundle; its receipt, if it was taken."""
        store = self._open_store()
        # Beside other tasks the store may not have heard of the failure yet.
        poisoned = self.disk.sync_failed and self.scheduler.current is None
        try:
            receipt = store.put(put.slots, key=put.key)
        except Poisoned:
            self.effects.add("poisoned")
            put.state = "unknown"
            return None
        except NOT_NOW as error:
            self.effects.add("refused")
            put.state = "failed" if isinstance(error, Busy) else "unknown"
            return None
        if poisoned:
            raise Violation("stays_poisoned", f"put {put.number} was taken after a failed sync")
        if receipt.duplicate:
            raise Violation("keys_kept", f"put {put.number} is new, and was called a duplicate")
        self._receipts.append((put, receipt))
        self._waiting[id(receipt)] = put
        self._answered(put, receipt)
        return receipt

    def told(self, put: Put, ref: BundleRef) -> None:
        """Somebody was answered that this bundle is durable, by whatever call."""
        put.state, put.ref = "durable", ref

    def _answered(self, put: Put, receipt: Receipt) -> None:
        if id(receipt) not in self._told or put.state not in ("asked", "unknown"):
            return
        if receipt.durable:
            self._check_new_ref(put, receipt.ref)
            put.state, put.ref = "durable", receipt.ref
        elif not isinstance(receipt.error, Poisoned):
            put.state = "failed"
        else:
            put.state = "unknown"

    def _check_new_ref(self, put: Put, ref: BundleRef) -> None:
        other = self.facts.by_ref().get(ref)
        if other is not None and other is not put and other.state == "durable":
            raise Violation("ref_unique", f"puts {other.number} and {put.number} both got {ref}")

    def repeat(self, put: Put) -> None:
        """Send a bundle again, with its key."""
        store, facts = self._open_store(), self.facts
        lost = put.ref is not None and self.is_lost(put.ref)
        # Lost as well, but no row can name it: then its key may have gone with it.
        unnamed = not lost and put.ref in facts.unnamed
        released = facts.may_be_released(put)
        again = facts.resent if lost or unnamed else facts.doubled
        noted = put.number in again
        if lost or unnamed or put.number in facts.keys_doubtful:
            again.add(put.number)  # also if the process ends before it is answered
        try:
            receipt = store.put(put.slots, key=put.key).wait()
        except NOT_NOW:
            return
        except KeyConflict as error:
            raise Violation("keys_kept", f"put {put.number} conflicts with itself") from error
        if receipt.duplicate and not noted:
            again.discard(put.number)
        if put.state != "durable":
            self._settle_repeat(put, receipt)
        elif lost or (unnamed and not receipt.duplicate):
            self._check_sent_again(put, receipt)
        else:
            self._check_duplicate(put, receipt, released=released)

    def _check_sent_again(self, put: Put, receipt: Receipt) -> None:
        """A repeat of a lost bundle is stored, and has a ref of its own."""
        if receipt.duplicate or receipt.ref == put.ref:
            raise Violation(
                "lost_can_be_sent_again",
                f"put {put.number} ({put.ref}) is on record as lost; sent again it was"
                f" answered with {receipt.ref}, duplicate: {receipt.duplicate}",
            )
        self._settle_repeat(put, receipt)
        self.facts.touched.discard(put.number)

    def _check_duplicate(self, put: Put, receipt: Receipt, *, released: bool) -> None:
        """A repeat of any other is a duplicate of it, unless damage took its key."""
        if not receipt.duplicate and put.number not in self.facts.keys_doubtful:
            raise Violation(
                "keys_kept",
                f"put {put.number} was {put.ref}; sent again it is {receipt.ref}"
                f" (released: {released})",
            )
        moved = receipt.ref != put.ref and put.number not in self.facts.doubled
        if receipt.duplicate and moved:
            raise Violation("keys_kept", f"{put.number} is {put.ref}, the repeat {receipt.ref}")

    def _settle_repeat(self, put: Put, receipt: Receipt) -> None:
        if put.state == "durable" and put.ref is not None:
            self.facts.replaced.add(put.ref)
        put.state, put.ref = "durable", receipt.ref
        for sub in self.facts.subs.values():
            sub.absent.discard(put.number)

    def is_lost(self, ref: BundleRef) -> bool:
        """Whether the ledger names it as lost by damage; what a policy dropped stays dropped."""
        rows = judge.lost_rows(self._open_store())
        return any(judge.covers(row, ref) for row in rows if row.reason not in judge.POLICIES)

    # Upkeep

    def flush(self) -> None:
        with contextlib.suppress(*NOT_NOW):
            self._open_store().flush()

    def maintain(self) -> None:
        with contextlib.suppress(*NOT_NOW):
            self._open_store().maintain()

    def work(self) -> None:
        """Upkeep as the background does it."""
        with contextlib.suppress(*NOT_NOW):
            self._open_store().work()

    # Subscribers

    def subscribe(self, name: str) -> None:
        """Come, for good: from the earliest bundle on."""
        store = self._open_store()
        known = name in self.facts.subs
        try:
            handle = store.subscribe(name)
        except NOT_NOW:
            if not known and name in store.subscribers:
                self.facts.subs.setdefault(name, Sub(name, doubtful=True))
            return
        if not known or name not in self.facts.subs:
            gone = {put.number for put in self.facts.promised() if self._is_gone(put)}
            self.facts.subs.setdefault(name, Sub(name, absent=gone))
        # Only now: another task that finds the handle acks, and the facts must have a place
        # for that.
        self._handles[name] = handle

    def _is_gone(self, put: Put) -> bool:
        """Whether it was deleted by right: nobody who comes now is owed it."""
        if put.ref is None:
            return False
        try:
            self._open_store().meta(put.ref)
        except NotFound:
            return True
        except (Damage, *NOT_NOW):
            return False
        return False

    def consume(self, name: str, most: int, *, reject: bool = False) -> None:
        """Take some bundles and finish them."""
        if name not in self._handles:
            self.subscribe(name)
        handle = self._handles.get(name)
        for _ in range(most if handle is not None else 0):
            try:
                bundle = handle.next_bundle(0.0)  # type: ignore[union-attr]
                if bundle is None:
                    return
                judge.delivered(self, name, bundle)
                if reject:
                    self.facts.rejected.add((name, bundle.ref))
                outcome = bundle.reject("no") if reject else bundle.ack()
            except NOT_NOW:
                return
            except NotFound:
                continue  # lost to damage, on record: the judge asks the ledger
            if outcome.final and name in self.facts.subs:
                self.facts.subs[name].soft[bundle.ref] = str(outcome)
                self.facts.subs[name].ever.add(bundle.ref)
                self.facts.note_released()

    def flush_progress(self) -> None:
        soft = self._softs()
        with contextlib.suppress(*NOT_NOW):
            self._open_store().flush_progress()
            self._harden(soft)

    def _softs(self) -> dict[str, dict[BundleRef, str]]:
        return {name: dict(sub.soft) for name, sub in self.facts.subs.items()}

    def _harden(self, soft: dict[str, dict[BundleRef, str]]) -> None:
        for name, outcomes in soft.items():
            if name in self.facts.subs:
                self.facts.subs[name].hard.update(outcomes)

    def unregister(self, name: str) -> None:
        """Leave, for good."""
        store = self._open_store()
        self.facts.subs[name].leaving = True
        self.facts.note_released()
        try:
            store.unregister(name)
        except (NotFound, *NOT_NOW):
            if name not in store.subscribers:
                self.facts.subs.pop(name, None)
            return
        self._handles.pop(name, None)
        self.facts.subs.pop(name, None)
        self.facts.note_released()

    def drain(self, name: str) -> set[BundleRef]:
        """Everything that a subscriber is still given."""
        if name not in self._handles:
            self.subscribe(name)
        handle = self._handles[name]
        found: set[BundleRef] = set()
        for _ in range(MAX_DELIVERIES):
            try:
                bundle = handle.next_bundle(0.0)
                if bundle is None:
                    return found
                judge.delivered(self, name, bundle)
                if bundle.ref in found:
                    raise Violation("present_once", f"{name} was given {bundle.ref} twice")
                found.add(bundle.ref)
                bundle.ack()
            except NotFound:
                continue
        raise Violation("goes_on", f"{name} is given bundles without an end")

    # Transactions

    def stage(self, app: str, version: int, parts: int) -> dict[str, Put]:
        """Finish some attempts; nobody sees them before a commit."""
        store = self._open_store()
        made: dict[str, Put] = {}
        for _ in range(parts if store.config.durability == "wal" else 0):
            put = self.new_put(["Logs"])
            put.state, put.transaction = "failed", (app, version)
            attempt = f"a{put.number}"
            try:
                stage = store.stage(app, version, attempt)
                stage.put(put.slots)
                stage.finish()
            except (NotFound, *NOT_NOW):
                continue
            made[attempt] = put
        return made

    def transaction(self, app: str, version: int, parts: int, then: str = "commit") -> bool:
        """Stage some attempts, and commit them, abort them, or leave them for later; whether
        any could be staged."""
        made = self.stage(app, version, parts)
        if not made:
            return False
        one = Transaction(app, version, attempts=made)
        self.facts.commits[app, version] = one
        if then == "commit":
            self.commit(one)
        elif then == "abort":
            self.abort(one)
        return True

    def commit(self, one: Transaction, others: dict[str, Put] | None = None) -> None:
        """Commit a transaction, for the first time or again; ``others``: with other attempts."""
        store, facts = self._open_store(), self.facts
        if store.config.durability != "wal":
            return
        key, name = (one.app, one.version), f"{one.app} {one.version}"
        attempts = one.attempts if others is None else others
        known = facts.is_committed(*key)
        asked_before = facts.may_be_committed(*key)
        aborted = one.phase == "aborted" and not one.doubtful
        if not known and not aborted:
            one.phase = "asked"
            for put in attempts.values():
                put.state = "unknown" if put.state == "failed" else put.state
        try:
            answer = store.commit(*key, list(attempts))
        except StageNotFound as error:
            gone = one.doubtful or aborted or facts.touched & {p.number for p in attempts.values()}
            self._check_refused(one, error, known=known, excused=bool(gone) or asked_before)
        except NOT_NOW:
            return
        else:
            self._check_commit(one, answer, known=known, asked_before=asked_before)
            if aborted and not answer.repeated:
                raise Violation("stages_kept", f"{name} was aborted, and is committed: {answer}")
            if not answer.repeated:
                self._committed(one, attempts, answer)

    def _check_refused(
        self, one: Transaction, error: StageNotFound, *, known: bool, excused: bool
    ) -> None:
        """An attempt was not found."""
        name = f"{one.app} {one.version}"
        if known:
            raise Violation("commit_once", f"{name} is committed: {error}") from error
        # A later version, asked for by another task, sweeps the attempts before it.
        if not excused and not self.facts.may_be_committed(one.app, one.version + 1):
            raise Violation("stages_kept", f"{name}: {error}") from error

    def _check_commit(
        self, one: Transaction, answer: Committed, *, known: bool, asked_before: bool
    ) -> None:
        """It is called repeated if it was committed before, and only then."""
        name = f"{one.app} {one.version}"
        asked = asked_before or self.facts.may_be_committed(one.app, one.version + 1)
        if answer.repeated and not asked:
            raise Violation("commit_once", f"{name} is called repeated, and never was before")
        if known and not answer.repeated:
            raise Violation("commit_once", f"{name} was committed, and is once more: {answer}")

    def _committed(self, one: Transaction, attempts: dict[str, Put], answer: Committed) -> None:
        if answer.bundles != len(attempts):
            raise Violation("commit_whole", f"{len(attempts)} bundles were to come: {answer}")
        one.phase, one.attempts = "answered", dict(attempts)
        self.facts.versions_doubtful.discard((one.app, one.version))
        for put in attempts.values():
            put.state = "durable"
        judge.locate(self._open_store(), list(attempts.values()))

    def commit_again(self, one: Transaction, *, others: bool) -> None:
        """Commit what may be committed already, with the same attempts or with others."""
        if others and self.facts.is_committed(one.app, one.version):
            made = self.stage(one.app, one.version, 1)
            if made and self.facts.is_committed(one.app, one.version):
                self.commit(one, made)
        else:
            self.commit(one)

    def abort(self, one: Transaction) -> None:
        """Give a transaction's attempts up; what is committed stays so."""
        store = self._open_store()
        if store.config.durability != "wal":
            return
        was = one.phase
        if was == "staged":
            one.phase = "aborted"
        try:
            store.abort(one.app, one.version)
        except NOT_NOW:
            one.doubtful = True
        if was == "asked":
            one.doubtful = True

    # Bad days

    def damage(self, path: str, data: bytes, what: str) -> None:
        """Files change behind the store's back; the facts know what that may cost."""
        before = dict(self.disk.image())
        after = {**before, path: data}
        facts = self.facts
        marks = facts.marks
        candidates = [
            put
            for put in facts.puts.values()
            if put.state in ("durable", "unknown") or put.transaction is not None
        ]
        cost = copies.cost(path, before, after, candidates, marks)
        facts.touched |= cost.touched
        facts.halved |= cost.halved
        if path.startswith("wal/") and not facts.unprovable:
            facts.aside = frozenset(before)
        facts.unprovable |= cost.unprovable
        old = marks.get(path)
        hit = cost.touched | cost.halved | (old.puts if old is not None else set())
        loose = cost.loose or (old is not None and old.loose)
        marks[path] = Mark(data, frozenset(hit), loose)
        facts.history.append(f"{path}: {what}")
        facts.refusable |= _kind(path)
        if path.startswith("quiver.sub."):
            name = path.removeprefix("quiver.sub.")
            if name in facts.subs:
                facts.subs[name].doubtful = True
        if path == "quiver.state":
            facts.forgotten |= facts.recorded
            facts.rejects_forgotten |= facts.rejected
        if path.startswith(("quiver.state", "keys/", "wal/")):
            self._forget(after)
        if path.endswith(".qstage"):
            for one in facts.commits.values():
                parts = one.attempts.values()
                one.doubtful |= any(copies.in_file(before[path], put) for put in parts)
        self._overwrite(path, data)

    def _forget(self, after: copies.Image) -> None:
        """Keys and versions that nothing remembers any more but what was damaged."""
        facts = self.facts
        facts.keys_doubtful |= copies.forgotten_keys(after, facts.promised(), facts.marks)
        known = copies.known_versions(after, facts.puts.values(), facts.marks)
        facts.versions_doubtful |= {
            (app, version) for app, version in facts.commits if version > known.get(app, -1)
        }

    def newer(self, path: str, data: bytes) -> None:
        """A file of a newer Quiver lies there: refused by name, nothing touched; with the old
        file back all is as it was.  The store is down."""
        before = dict(self.disk.image())
        self._overwrite(path, data)
        expected = {**before, path: data}
        try:
            store = Store(Disk(self.disk), self.config, where="product", clock=self.clock)
        except UnsupportedVersion:
            pass
        except QuiverError as error:
            raise Violation(
                "newer_untouched", f"{path}: {type(error).__name__}: {error}"
            ) from error
        else:
            store.close()
            raise Violation("newer_untouched", f"{path} of a newer version was opened")
        finally:
            self.disk.locked.clear()
        after = dict(self.disk.image())
        changed = {p for p in {*expected, *after} if expected.get(p) != after.get(p)} - {"LOCK"}
        if changed:
            raise Violation("newer_untouched", f"{path} was refused, and {sorted(changed)} changed")
        self._overwrite(path, before[path])

    def _overwrite(self, path: str, data: bytes) -> None:
        """The bytes on the platter changed: no process wrote them, no record has them."""
        where, _, name = path.rpartition("/")
        inode = self.disk._names[where][name]
        assert inode is not None
        inode.data = data
        self._fold.contents[inode.number] = data
        self._fold.pending.pop(inode.number, None)
        self._fold.limbo.pop(inode.number, None)

    # For all

    def _open_store(self) -> Store:
        assert self.store is not None
        return self.store

    @contextlib.contextmanager
    def mortal(self) -> Iterator[None]:
        """A step in which the process may be killed by the disk."""
        try:
            yield
        except Killed:
            self.effects.add("died" if self.store is not None else "died opening")
            if self.rng.random() < 0.5:
                self.kill()
            else:
                self.cut()


def _kind(path: str) -> set[str]:
    """Damage for which an open may refuse; a segment's never is a reason."""
    if path.startswith("wal/"):
        return {"log"} if not path.endswith((".spare", ".cursor")) else set()
    if path.startswith("quiver.sub."):
        return {"progress"}
    if path == "quiver.state":
        return {"state"}
    if path.startswith("keys/"):
        return {"keys"}
    return {"floor"} if path.endswith("quiver.segment.seq") else set()


def _before_quarantine(path: str) -> str:
    """Where a segment lay that was set aside: a count or a checksum may follow its name."""
    name = path.removeprefix("quarantine/").partition(".qseg")[0]
    return f"segments/{name}.qseg"
