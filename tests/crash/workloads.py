"""Generated programs of puts, acks, restarts and full disks, on the real engine.

A workload is decided by a seed and its number alone.  Its number picks a profile (which
settings, which steps how often); the seed then picks the steps.  There are no threads:
several producers are several receipts that are waited for in any order.

A restart comes in three kinds.  ``close`` is clean.  ``kill`` ends the process: the next
one sees all that was written, synced or not, so what the last one had not synced is still
at risk.  ``cut`` ends the machine: one of the legal states is drawn and everything goes
on from there; the record before it is one :class:`Epoch`, the record behind it another.
"""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from itertools import count
from typing import Final

import pyarrow as pa

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.ids import BundleRef
from tests.crash.chance import decided
from tests.crash.disk import Killed
from tests.crash.foreign import foreign_notes, foreign_state
from tests.crash.invariants import Violation
from tests.crash.profiles import PROFILES, USUAL, Profile, config_of, number_of
from tests.crash.states import State
from tests.crash.world import Epoch, World, listening
from tests.support.oplog import Rename, Write

SLOTS: Final = ("Logs", "Spans", "Metrics", "Events")
NAMES: Final = ("ada", "bob", "cyd")
APPS: Final = ("query", "job")
SECTORS: Final = (64, 128, 512)
WORDS: Final = ("alpha", "beta", "gamma", "delta")

MAX_DRAINED: Final = 20


@dataclass(slots=True)
class Workload:
    """What a run left for the explorer."""

    name: str
    profile: Profile
    config: Config
    sector: int
    epochs: list[Epoch]
    now_ns: int
    steps: list[str]
    violation: Violation | None = None


def generate(seed: int, number: int, profile: int | None = None) -> Workload:
    """Run workload ``number`` of this seed."""
    chosen = number % len(PROFILES) if profile is None else profile
    generator = _Generator(random.Random(f"{seed}:{number}:{chosen}"), chosen)
    with decided(f"{seed}:{number}"):
        return generator.run(f"{seed}:{number}")


def small_bundle(rng: random.Random, number: int) -> dict[str | int, pa.RecordBatch]:
    """A bundle like no other, in one slot or two, sometimes with a dictionary."""
    slots = rng.sample(SLOTS, rng.choice((1, 1, 1, 1, 2)))
    return {slot: _batch(rng, number * len(SLOTS) + at) for at, slot in enumerate(slots)}


def _batch(rng: random.Random, number: int) -> pa.RecordBatch:
    columns: dict[str, pa.Array] = {"n": pa.array([number], pa.int64())}
    if rng.random() < 0.25:
        columns["word"] = pa.array([rng.choice(WORDS)]).dictionary_encode()
    return pa.record_batch(columns)


def quiet() -> None:
    """A hundred thousand recoveries have too much to say."""
    logging.getLogger("quiver").setLevel(logging.CRITICAL + 1)


class _Generator:
    """Draws the steps."""

    def __init__(self, rng: random.Random, profile: int) -> None:
        self._rng = rng
        self._profile = PROFILES[profile]
        self._config = config_of(profile)
        self._sector = rng.choice(SECTORS)
        self._clock = ManualClock()
        self._world = World(self._config, self._clock, state=self._beginning())
        self._steps: list[str] = []
        self._keys = count()

    def _beginning(self) -> State | None:
        fixtures = self._profile.fixtures
        return foreign_state(self._rng.choice(fixtures)) if fixtures else None

    def run(self, name: str) -> Workload:
        workload = Workload(
            name, self._profile, self._config, self._sector, self._world.epochs, 0, self._steps
        )
        with listening(self._world):
            try:
                self._begin()
                for step in self._program():
                    self._steps.append(step)
                    self._take(step)
                    self._clock.advance(0.01)
            except Violation as violation:
                workload.violation = violation
        workload.now_ns = self._clock.now_ns()
        return workload

    def _begin(self) -> None:
        if self._profile.fixtures:
            for note in foreign_notes(self._world.disk):
                self._world.note(note)
        self._world.open()

    def _take(self, step: str) -> None:
        """One step; if the process dies in it, or in the restart, another one starts."""
        try:
            getattr(self, f"_{step}")()
        except Killed:
            self._steps.append("killed")
            self._restart()

    def _restart(self) -> None:
        if self._rng.random() < 0.7:
            self._world.kill()
        else:
            self._world.cut(self._rng, self._sector)
        self._world.open()

    def _program(self) -> list[str]:
        weights = {**USUAL, **self._profile.weights}
        length = self._rng.randint(*self._profile.steps)
        return self._rng.choices(list(weights), list(weights.values()), k=length)

    # Producers

    def _put(self) -> None:
        rng = self._rng
        key = f"k{next(self._keys)}" if rng.random() < 0.4 else None
        attributes = {"source": rng.choice(WORDS)} if rng.random() < 0.25 else None
        receipt = self._world.put(small_bundle(rng, len(self._world.oracle.puts)), key, attributes)
        if receipt is not None and not receipt.done and rng.random() < 0.4:
            self._world.wait(receipt)

    def _gulp(self) -> None:
        """A group of several, written in one go."""
        for _ in range(self._rng.randint(2, 4)):
            key = f"k{next(self._keys)}" if self._rng.random() < 0.4 else None
            self._world.put(small_bundle(self._rng, len(self._world.oracle.puts)), key)
        self._sync()

    def _burst(self) -> None:
        for _ in range(self._rng.randint(2, 4)):
            self._put()

    def _repeat(self) -> None:
        keyed = [p for p in self._world.oracle.puts.values() if p.key is not None]
        failed = [p for p in keyed if p.state == "void" and p.ref is not None]
        if keyed:
            put = self._rng.choice((failed or keyed)[-6:])
            receipt = self._world.put(put.slots, put.key, put.attributes or None)
            if receipt is not None and not receipt.done and self._rng.random() < 0.5:
                self._world.wait(receipt)

    def _wait(self) -> None:
        if self._world.waiting:
            self._world.wait(self._rng.choice(self._world.waiting)[1])

    # Transactions

    def _tx_stage(self) -> None:
        """An attempt with a few bundles; mostly finished at once."""
        app = self._rng.choices(APPS, (3, 1))[0]
        last = self._world.oracle.committed(app)
        asked = [v for name, v in self._world.oracle.commitments if name == app]
        version = max([0 if last is None else last + 1, *asked])
        first = len(self._world.oracle.puts)
        bundles = [
            small_bundle(self._rng, first + at)
            for at in range(self._rng.choice((0, 1, 1, 1, 2, 2, 5)))
        ]
        key = self._world.desk.stage(app, version, bundles)
        if key is not None and self._rng.random() < 0.8:
            self._world.desk.finish(key)

    def _tx_whole(self) -> None:
        """Several attempts at once, and their commit."""
        for _ in range(self._rng.randint(2, 4)):
            self._tx_stage()
        self._tx_commit()

    def _tx_finish(self) -> None:
        if self._world.desk.open:
            self._world.desk.finish(self._rng.choice(sorted(self._world.desk.open)))

    def _tx_discard(self) -> None:
        if self._world.desk.open:
            self._world.desk.discard(self._rng.choice(sorted(self._world.desk.open)))

    def _tx_commit(self) -> None:
        """Commit what is finished, or what nobody answered; some attempts lose."""
        oracle, rng = self._world.oracle, self._rng
        asked = [(t, c.winners) for t, c in oracle.commitments.items() if c.phase == "asked"]
        ready: dict[tuple[str, int], list[str]] = {}
        for key, attempt in oracle.attempts.items():
            if attempt.is_kept and not oracle.is_over(key):
                ready.setdefault((key.app, key.version), []).append(key.attempt)
        if asked:
            transaction, winners = rng.choice(asked)
        elif ready:
            transaction, names = rng.choice(sorted(ready.items()))
            winners = tuple(names if rng.random() < 0.6 else rng.sample(names, len(names) - 1))
        else:
            self._tx_stage()
            return
        self._world.desk.commit(*transaction, winners)

    def _tx_full(self) -> None:
        """No room for the entry that commits; then there is."""
        if self._rng.random() < 0.5:
            self._tx_stage()
        self._world.disk.capacity = self._world.disk.used + self._rng.randint(0, 100)
        self._tx_commit()
        self._relax()
        self._tx_commit()

    def _tx_again(self) -> None:
        """A commit whose answer did not arrive is sent again."""
        answered = [
            (t, c.winners)
            for t, c in self._world.oracle.commitments.items()
            if c.phase == "answered"
        ]
        if answered:
            transaction, winners = self._rng.choice(answered)
            self._world.desk.commit(*transaction, winners)

    def _tx_abort(self) -> None:
        keys = sorted({(k.app, k.version) for k in self._world.oracle.attempts})
        asked = [t for t, c in self._world.oracle.commitments.items() if c.phase == "asked"]
        keys = [key for key in keys if key not in asked]
        if keys:
            self._world.desk.abort(*self._rng.choice(keys))

    def _tx_expire(self) -> None:
        """Nobody comes for what is staged."""
        self._clock.advance(self._config.transactions.stage_ttl + 1)
        self._maintain()

    # Upkeep

    def _sync(self) -> None:
        self._world.call(self._world.store.sync)

    def _flush(self) -> None:
        self._world.call(self._world.store.flush)

    def _maintain(self) -> None:
        self._world.call(self._world.store.maintain, keeps=True)

    def _flush_progress(self) -> None:
        self._world.call(self._world.store.flush_progress, keeps=True)

    def _tick(self) -> None:
        self._clock.advance(self._rng.choice((0.2, 2.0, 6.0, 40.0)))

    def _jump(self) -> None:
        """Somebody sets the wall clock, mostly back."""
        self._clock.jump(self._rng.choice((-50.0, -7.0, 30.0)))

    def _hours(self) -> None:
        self._clock.advance(self._rng.choice((0.4, 1.1)) * 3600)

    # Subscribers

    def _subscribe(self) -> None:
        name = self._rng.choice(NAMES)
        if name not in self._world.handles:
            refs = self._refs()
            starts: list[BundleRef | str] = ["earliest", "earliest"]
            if len(refs) == len(self._world.oracle.durable()):
                starts.append("latest")
            if refs:
                starts.append(self._rng.choice(refs))
            self._world.subscribe(name, self._rng.choice(starts))

    def _refs(self) -> list[BundleRef]:
        """Positions that a progress file can say: those of bundles that are delivered."""
        refs = [p.ref for p in self._world.oracle.durable() if p.ref is not None]
        return [ref for ref in refs if self._world.is_visible(ref)]

    def _someone(self) -> str | None:
        names = sorted(self._world.handles)
        return self._rng.choice(names) if names else None

    def _consume(self) -> None:
        name = self._someone()
        if name is None:
            self._subscribe()
            return
        for _ in range(self._rng.randint(1, 5)):
            how = self._rng.choices(("ack", "reject", "defer", "leave"), (12, 2, 1, 1))[0]
            self._world.resolve(name, how)

    def _refuse(self) -> None:
        """A subscriber rejects what it is given, mostly."""
        name = self._someone()
        if name is None:
            self._subscribe()
            return
        for _ in range(self._rng.randint(1, 3)):
            self._world.resolve(name, self._rng.choice(("reject", "reject", "ack")))

    def _regret(self) -> None:
        """A subscriber goes back to something that it has rejected, and rejects it again."""
        name = self._someone()
        if name is None:
            return
        there = set(self._refs())
        rejected = [r for _, r in sorted(self._world.oracle.standing_rejects(name)) if r in there]
        if rejected:
            self._world.seek(name, self._rng.choice(rejected))
            self._world.resolve(name, "reject")

    def _drain(self) -> None:
        """Everyone known finishes everything: what can go then may go."""
        for name in sorted(self._world.oracle.subs) or [self._rng.choice(NAMES)]:
            if name not in self._world.handles:
                self._world.subscribe(name, "earliest")
            if name in self._world.handles:
                for _ in range(MAX_DRAINED):
                    self._world.resolve(name, "ack")

    def _seek(self) -> None:
        name, refs = self._someone(), self._refs()
        if name is not None and refs:
            self._world.seek(name, self._rng.choice(refs))

    def _unregister(self) -> None:
        names = sorted(self._world.oracle.subs)
        if names:
            self._world.unregister(self._rng.choice(names))

    # Bad days

    def _close(self) -> None:
        self._relax()
        self._world.close()
        self._world.open()

    def _kill(self) -> None:
        self._world.kill()
        self._world.open()

    def _cut(self) -> None:
        self._world.cut(self._rng, self._sector)
        self._world.open()

    def _die(self) -> None:
        """End in the middle of whatever comes next."""
        disk, how = self._world.disk, self._rng.random()
        if how < 0.25:
            disk.die_after = Write
        elif how < 0.5:
            disk.die_after = Rename
        else:
            disk.die_in = self._rng.randint(0, 14)

    def _switch(self) -> None:
        """Go on without a log, or with one again."""
        without = self._world.config.durability == "segment_only"
        name = "switch" if without else "segment_only"
        if self._rng.random() < 0.5:
            self._world.close()
        else:
            self._world.kill()
        self._world.configure(config_of(number_of(name)))
        self._world.open()

    def _squeeze(self) -> None:
        """Leave little room, or give it back."""
        disk = self._world.disk
        disk.capacity = None if disk.capacity is not None else disk.used + self._rng.randint(0, 900)

    def _relax(self) -> None:
        self._world.disk.capacity = None
        self._world.disk.fail_syncs_in = None

    def _bad_fsync(self) -> None:
        self._world.disk.fail_syncs_in = self._rng.randint(0, 4)
