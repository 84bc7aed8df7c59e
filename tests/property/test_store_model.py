"""The whole store against a simple model, through restarts, kills and power cuts.

The model knows what was promised: bundles answered durable, outcomes made durable, keys,
who subscribed and from where.  Whatever Hypothesis does to the store, each promise must
hold after every step; where a crash leaves a choice (an ack that was not flushed), the
store's answer must be one of those allowed.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from quiver import BundleRef, ClaimedBundle, Committed, Outcome, Receipt
from quiver.errors import BundleGone, KeyConflict, NotFound, StorageFull, UnknownBundle
from quiver.format.segment.stage import StageKey
from quiver.segment.segments import Closed, Open
from tests.support.faulty import Fault
from tests.support.stores import World, batch, number_of

pytestmark = pytest.mark.property

NAMES = ("a", "b", "c")
KEYS = ("k1", "k2")
APP = "app"
MAX_AGE_HOURS = 2
WRITE = frozenset({"pwritev"})

SETTINGS = settings(
    max_examples=200,
    stateful_step_count=40,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)

numbers = st.integers(0, 1)
names = st.sampled_from(NAMES)


@dataclass
class Put:
    """What was put, as the model remembers it."""

    number: int
    key: str | None
    ts_ns: int


@dataclass
class Staged:
    """An attempt: what it holds, and whether it was finished."""

    numbers: list[int]
    finished: bool
    since: int


@dataclass
class Sub:
    """One subscriber: what it has finished, and how much of that is surely on disk."""

    done: dict[BundleRef, Outcome] = field(default_factory=dict)
    flushed: dict[BundleRef, Outcome] = field(default_factory=dict)
    skipped: set[BundleRef] = field(default_factory=set)
    """Before its start: never to be delivered to it."""
    held: dict[BundleRef, ClaimedBundle] = field(default_factory=dict)

    def finished(self, ref: BundleRef) -> bool:
        return ref in self.done or ref in self.skipped


class StoreModel(RuleBasedStateMachine):
    """Rules are what users do; invariants are what they were promised."""

    claims = Bundle("claims")

    @initialize(
        mode=st.sampled_from(["durable", "sealed", "segment_only"]),
        expire=st.booleans(),
        flush=st.sampled_from(["group", "every"]),
    )
    def begin(self, mode: str, expire: bool, flush: str) -> None:
        config: dict[str, Any] = {
            "segment": {"max_bundles": 3, "max_open_duration": "5s"},
            "wal": {"flush": flush, "rotation_target": "2KiB", "max_size": "1GiB"},
            "limits": {"max_bundle": "1MiB"},
        }
        config["wal"]["max_rotated_files"] = 10_000
        config["segment"]["target_size"] = "1MiB"
        if mode == "segment_only":
            config["durability"] = "segment_only"
        elif mode == "sealed":
            config["deliver"] = "sealed"
        if expire:
            config["retention"] = {"max_retain_after_ingestion_hours": MAX_AGE_HOURS}
        self.mode, self.expire = mode, expire
        self.world = World(**config)
        self.promised: dict[BundleRef, Put] = {}
        self.accepted: list[tuple[Receipt, Put]] = []
        self.gone: set[BundleRef] = set()
        self.subs: dict[str, Sub] = {}
        self.used: set[BundleRef] = set()
        self.rejected: set[tuple[str, BundleRef]] = set()
        self.attempts: dict[StageKey, Staged] = {}
        self.version = self.tried = 0

    # Putting

    @rule(number=numbers, key=st.none() | st.sampled_from(KEYS))
    def put(self, number: int, key: str | None) -> None:
        known = self._known(key)
        try:
            receipt = self.world.put(number, key=key)
        except KeyConflict:
            assert known is not None
            assert known[1].number != number
            return
        if known is not None:
            assert known[1].number == number, "other content under a known key"
            assert receipt.duplicate
            assert receipt.ref == known[0]
            assert receipt.durable == (known[0] in self.promised), "durable before the first is"
            return
        assert not receipt.duplicate
        assert receipt.ref not in self.promised, "a ref was given out twice"
        assert self.mode != "segment_only" or receipt.ref not in self.used, "a number came back"
        times = [put.ts_ns for put in self.promised.values()]
        # It goes back to the wall clock alone, after a jump that lasted (ADR 21).
        ts = receipt.ingestion_ts_ns
        assert ts >= max(times, default=0) or ts == self.world.clock.now_ns(), "time went back"
        self.accepted.append((receipt, Put(number, key, receipt.ingestion_ts_ns)))
        self._collect()

    def _known(self, key: str | None) -> tuple[BundleRef, Put] | None:
        if key is None:
            return None
        pairs = [*self.promised.items(), *((r.ref, put) for r, put in self.accepted)]
        return next(((ref, put) for ref, put in pairs if put.key == key), None)

    def _collect(self) -> None:
        """Take note of what has become durable."""
        still = []
        for receipt, put in self.accepted:
            if receipt.durable:
                assert receipt.ref not in self.promised
                self.promised[receipt.ref] = put
            else:
                assert receipt.error is None
                still.append((receipt, put))
        self.accepted = still

    @rule()
    def sync(self) -> None:
        self.world.store.sync()
        self._collect()
        assert not self.accepted

    @precondition(lambda self: self.accepted)
    @rule(data=st.data())
    def wait(self, data: st.DataObject) -> None:
        receipt, _ = data.draw(st.sampled_from(self.accepted))
        receipt.wait()
        self._collect()
        assert receipt.ref in self.promised

    @precondition(lambda self: self.mode != "segment_only" and self.accepted)
    @rule()
    def full_disk(self) -> None:
        """What is accepted can't be written: all of it is taken back, none of it is seen."""
        self.world.faulty.strike(Fault(at=0, error=errno.ENOSPC, ops=WRITE, under="wal/"))
        with pytest.raises(StorageFull):
            self.world.store.sync()
        self.world.faulty.heal()
        assert all(isinstance(receipt.error, StorageFull) for receipt, _ in self.accepted)
        self.accepted.clear()
        self.world.store.maintain()
        for sub in self.subs.values():
            sub.flushed = dict(sub.done)
        self._notice_deletions()

    # Transactions

    @precondition(lambda self: self.mode != "segment_only")
    @rule(bundles=st.lists(numbers, max_size=4), finish=st.booleans())
    def stage(self, bundles: list[int], finish: bool) -> None:
        """One more attempt of the version that is next."""
        self.tried += 1
        key = StageKey(APP, self.version, f"a{self.tried}")
        stage = self.world.store.stage(*key)
        for number in bundles:
            stage.put({"Logs": batch(number)})
        self.attempts[key] = Staged(bundles, finished=finish, since=self.world.clock.now_ns())
        if finish:
            assert stage.finish().bundles == len(bundles)
            self._collect()  # a new slot's name, and all before it, went into the log

    @precondition(lambda self: self.mode != "segment_only")
    @rule(data=st.data(), full=st.booleans())
    def commit(self, data: st.DataObject, full: bool) -> None:
        """Some of what is finished wins; or there is no room for that, and all is as before."""
        there = {(s.app, s.version, s.attempt) for s in self.world.store.stages()}
        ready = [key for key, one in self.attempts.items() if one.finished and key in there]
        winners = data.draw(st.lists(st.sampled_from(ready), unique=True)) if ready else []
        names = [key.attempt for key in winners]
        if full:
            self.world.faulty.strike(Fault(at=0, error=errno.ENOSPC, ops=WRITE, under="wal/"))
            with pytest.raises(StorageFull):
                self.world.store.commit(APP, self.version, names)
            self.world.faulty.heal()
            self.accepted.clear()  # staged before it, in the same group: taken back as well
            self.maintain()
            return
        answer = self.world.store.commit(APP, self.version, names)
        wanted = [number for key in winners for number in self.attempts[key].numbers]
        assert (answer.repeated, answer.bundles) == (False, len(wanted))
        self._collect()
        self._promise(answer, wanted)
        self.attempts.clear()
        self.version += 1

    def _promise(self, answer: Committed, wanted: list[int]) -> None:
        """All of it is seen at once; where each bundle went, the store is asked."""
        if answer.first_ref is None:
            assert not wanted
            return
        live = dict(self.world.store.segments())
        first = answer.first_ref.segment_seq
        found: list[int] = []
        for seq in range(first, first + answer.segments):
            for index in range(live[seq]):
                ref = BundleRef(seq, index)
                number = number_of(self.world.store.read(ref)["Logs"])
                assert ref not in self.promised
                ts = self.world.store.meta(ref).ingestion_ts_ns or 0
                self.promised[ref] = Put(number, None, ts)
                found.append(number)
        assert sorted(found) == sorted(wanted)

    @precondition(lambda self: self.mode != "segment_only" and self.version)
    @rule(data=st.data())
    def commit_again(self, data: st.DataObject) -> None:
        version = data.draw(st.integers(0, self.version - 1))
        before = self.world.store.segments()
        assert self.world.store.commit(APP, version, ["whatever"]).repeated
        assert self.world.store.segments() == before

    @precondition(lambda self: self.mode != "segment_only")
    @rule()
    def abort(self) -> None:
        there = self.world.store.stages()
        assert self.world.store.abort(APP, self.version) == len(there)
        self.attempts.clear()

    def _notice_stages(self) -> None:
        """After an end: what was finished is there, what wasn't is not."""
        self.attempts = {key: one for key, one in self.attempts.items() if one.finished}

    @invariant()
    def stages_are_kept(self) -> None:
        """Every finished attempt waits, whole, and the last committed version is known."""
        if self.mode == "segment_only":
            return
        ttl = self.world.store.config.transactions.stage_ttl * 1e9
        there = {(s.app, s.version, s.attempt): s for s in self.world.store.stages()}
        for key, one in self.attempts.items():
            if key not in there:
                assert self.world.clock.now_ns() - one.since > ttl, f"{key} went before its time"
                continue
            assert there[key].bundles == len(one.numbers)
            assert there[key].finished is one.finished
        assert there.keys() <= self.attempts.keys()
        assert self.world.store.committed(APP) == (self.version - 1 if self.version else None)

    # Upkeep and time

    @rule()
    def flush(self) -> None:
        self.world.store.flush()
        self._collect()

    @rule()
    def maintain(self) -> None:
        self.world.store.maintain()
        self._collect()
        for sub in self.subs.values():
            sub.flushed = dict(sub.done)
        self._notice_deletions()

    @rule(seconds=st.sampled_from([0.1, 6.0, 3000.0, 8000.0]))
    def pass_time(self, seconds: float) -> None:
        self.world.clock.advance(seconds)

    @rule(seconds=st.sampled_from([-5000.0, 5000.0]))
    def jump(self, seconds: float) -> None:
        if not self.expire:
            self.world.clock.jump(seconds)

    # Subscribers

    @rule(name=names, latest=st.booleans())
    def subscribe(self, name: str, latest: bool) -> None:
        latest = latest and self.mode == "durable"
        known = name in self.subs
        self.world.store.subscribe(name, "latest" if latest else "earliest")
        if not known:
            self.subs[name] = Sub(skipped=set(self.promised) if latest else set(self.gone))

    @precondition(lambda self: self.subs)
    @rule(target=claims, data=st.data(), order=st.sampled_from(["oldest", "newest"]))
    def take(self, data: st.DataObject, order: str) -> tuple[str, BundleRef] | None:
        name = data.draw(st.sampled_from(sorted(self.subs)))
        sub = self.subs[name]
        bundle = self.world.store.subscribe(name, order=order).next_bundle()
        self._collect()
        open_refs = [
            ref
            for ref in self.promised
            if not sub.finished(ref) and ref not in sub.held and ref not in self.gone
        ]
        if bundle is None:
            if self.mode == "durable":
                assert [ref for ref in open_refs if not self._expired(ref)] == []
            return None
        assert bundle.ref in open_refs, "not durable, finished, or in other hands"
        if self.mode == "durable" and not self.expire:
            assert bundle.ref == (min(open_refs) if order == "oldest" else max(open_refs))
        put = self.promised[bundle.ref]
        assert (number_of(bundle["Logs"]), bundle.key) == (put.number, put.key)
        assert bundle.ingestion_ts_ns == put.ts_ns
        sub.held[bundle.ref] = bundle
        return name, bundle.ref

    @rule(claim=claims, how=st.sampled_from(["ack", "reject", "defer", "forget"]))
    def settle(self, claim: tuple[str, BundleRef] | None, how: str) -> None:
        if claim is None or claim[0] not in self.subs:
            return
        sub = self.subs[claim[0]]
        bundle = sub.held.pop(claim[1], None)
        if bundle is None:
            return
        if how == "ack":
            sub.done[bundle.ref] = self._outcome(bundle.ack())
        elif how == "reject":
            self.rejected.add((claim[0], bundle.ref))
            sub.done[bundle.ref] = self._outcome(bundle.reject("model"))
        elif how == "defer":
            bundle.defer()

    @precondition(lambda self: self.subs)
    @rule(data=st.data())
    def drain(self, data: st.DataObject) -> None:
        """Finish all there is."""
        name = data.draw(st.sampled_from(sorted(self.subs)))
        sub = self.subs[name]
        for bundle in self.world.store.subscribe(name, follow=False):
            self._collect()
            assert bundle.ref in self.promised
            assert not sub.finished(bundle.ref)
            assert bundle.ref not in sub.held
            sub.done[bundle.ref] = self._outcome(bundle.ack())
        self._collect()

    def _outcome(self, outcome: Outcome) -> Outcome:
        assert outcome.final
        return outcome

    @precondition(lambda self: self.subs)
    @rule(data=st.data())
    def flush_progress(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.subs)))
        self.world.store.flush_progress((name,))
        self.subs[name].flushed = dict(self.subs[name].done)

    @precondition(lambda self: self.subs)
    @rule(data=st.data())
    def unregister(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.subs)))
        self.world.store.unregister(name)
        del self.subs[name]

    # Ends

    @rule(how=st.sampled_from(["restart", "kill", "power_cut"]))
    def end(self, how: str) -> None:
        if how == "restart":
            self.world.store.close()
            self._collect()
            for sub in self.subs.values():
                sub.flushed = dict(sub.done)
            self.world.open()
        else:
            getattr(self.world, how)()
        self._notice_stages()
        self.used |= {receipt.ref for receipt, _ in self.accepted}
        self.accepted.clear()
        assert set(self.world.store.subscribers) == set(self.subs)
        for name, sub in self.subs.items():
            sub.held.clear()
            self._agree(name, sub)
        self._notice_deletions()

    def _agree(self, name: str, sub: Sub) -> None:
        """After an end: what was flushed is known, what was never done is not done."""
        reader = self.world.store.subscribe(name)
        for ref in self.promised:
            try:
                outcome = reader.outcome(ref)
            except BundleGone:
                continue
            except Exception:
                assert self.mode != "durable", f"{ref} is not visible to {name}"
                continue
            if ref in sub.flushed:
                assert outcome is sub.flushed[ref], f"{name} had {ref} {sub.flushed[ref]}"
            elif outcome.final:
                assert sub.finished(ref) or self._expired(ref), f"{name} never finished {ref}"
            elif ref in sub.done:
                del sub.done[ref]  # acked, not flushed: it comes again
            if ref in sub.skipped:
                assert outcome.final, f"{name} started behind {ref}"
        sub.flushed = dict(sub.done)

    def _notice_deletions(self) -> None:
        """A bundle may only be gone if everyone had finished it, or it was too old."""
        live = dict(self.world.store.segments())
        for ref in set(self.promised) - self.gone:
            if ref.segment_seq not in live and not self._unsealed(ref):
                self._notice_deletion(ref)

    def _notice_deletion(self, ref: BundleRef) -> None:
        self.gone.add(ref)
        if not self._expired(ref):
            assert self.subs, f"{ref} went without any subscriber"
            for name, sub in self.subs.items():
                assert sub.finished(ref), f"{ref} went before {name} had finished it"
        for sub in self.subs.values():
            if ref not in sub.done:
                sub.skipped.add(ref)

    def _unsealed(self, ref: BundleRef) -> bool:
        place = self.world.store._segments.where(ref.segment_seq)
        return self.mode != "durable" and isinstance(place, Open | Closed)

    def _expired(self, ref: BundleRef) -> bool:
        age = self.world.clock.now_ns() - self.promised[ref].ts_ns
        return self.expire and age > MAX_AGE_HOURS * 3600 * 10**9

    # What always holds

    @invariant()
    def promises_are_kept(self) -> None:
        """Every bundle answered durable can be read, equal, unless it was allowed to go."""
        store = self.world.store
        for ref, put in self.promised.items():
            if ref in self.gone:
                with pytest.raises(NotFound):
                    store.read(ref)
                continue
            try:
                found = number_of(store.read(ref)["Logs"])
            except BundleGone:
                # At once: those who had finished it may have left by the next look.
                self._notice_deletion(ref)
                continue
            assert found == put.number

    @invariant()
    def nothing_is_promised_early(self) -> None:
        """What is accepted and not durable can't be read: a crash may still take it back."""
        for receipt, _ in self.accepted:
            with pytest.raises(UnknownBundle):
                self.world.store.read(receipt.ref)

    @invariant()
    def counts_agree(self) -> None:
        """The lag of each subscriber is what the model says it has left."""
        if self.mode != "durable" or self.expire:
            return
        for name, sub in self.subs.items():
            left = [r for r in self.promised if not sub.finished(r) and r not in self.gone]
            lag = self.world.store.lag(name)
            assert lag.bundles == len(left), (name, left)
            assert lag.rows == 3 * len(left)

    @invariant()
    def nothing_is_wrong(self) -> None:
        """No crash and no sequence of calls makes the store report a loss: the ledger has what was
        too old and what was rejected, and of rejects no bundle that was not."""
        status = self.world.store.status()
        assert status.state == "ok"
        losses = self.world.store.losses
        assert {loss.reason for loss in losses} <= {"time", "rejected"}
        on_record = {
            (name, BundleRef(loss.segment_seq, index))
            for loss in losses
            if loss.is_reject
            for name in loss.subscribers
            for first, end in loss.indexes or ()
            for index in range(first, end)
        }
        assert on_record <= self.rejected
        durable = {
            (name, ref)
            for name, sub in self.subs.items()
            for ref, outcome in sub.flushed.items()
            if outcome is Outcome.DROPPED and (name, ref) in self.rejected
        }
        assert durable <= on_record

    def teardown(self) -> None:
        if hasattr(self, "world"):
            for sub in self.subs.values():
                sub.held.clear()
            self.world.store.close()


def test_the_store_keeps_its_promises() -> None:
    """Scenario: any program of puts, acks, upkeep and crashes. Guarantee: see the model."""
    run_state_machine_as_test(StoreModel, settings=SETTINGS)
