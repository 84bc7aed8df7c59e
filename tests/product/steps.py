"""What may happen next: steps with weights, drawn from the seed."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from quiver.errors import Busy, StorageFault
from tests.product.newer import newer
from tests.product.world import World

SLOTS: Final = tuple(f"Slot{n}" for n in range(40))
"""Many: new names keep coming, also while upkeep is at work."""
NAMES: Final = ("ada", "bob")
APPS: Final = ("app", "batch")
"""Writers of transactions: a version of one says nothing of the other's."""
TINY: Final[Mapping[str, Any]] = {
    "reserve": 0,
    "validation": "off",
    "wal": {"rotation_target": 2048, "max_size": 16384, "max_rotated_files": 8},
    "segment": {"target_size": 2048, "max_bundles": 3, "max_unfinalized": 3},
    "limits": {"max_bundle": 2048, "max_unsynced": 4096},
    "subscribers": {"corrupt_progress": "fail"},
}
CHANGES: Final[tuple[Mapping[str, Any], ...]] = (
    {"deliver": "sealed"},
    {"deliver": "durable"},
    {"durability": "segment_only"},
    {"durability": "wal"},
    {"segment": {"target_size": 1024, "max_bundles": 2, "max_unfinalized": 2}},
    {"segment": {"target_size": 4096, "max_bundles": 6, "max_unfinalized": 4}},
    {"wal": {"rotation_target": 1024, "max_size": 16384, "max_rotated_files": 16}},
    {"wal": {"rotation_target": 4096, "max_size": 32768, "max_rotated_files": 8}},
    {"retention": {"keep_after_finish": 5.0}},
    {"retention": {}},
    {"idempotency": {"window_count": 1000}},
    {"wal": {**TINY["wal"], "flush": "every"}},
    {"wal": {**TINY["wal"], "flush": "interval"}},
    {"retention": {"size_cap": 65536, "size_cap_policy": "backpressure"}},
)
MAPPED: Final[tuple[Mapping[str, Any], ...]] = (
    {"read_mode": "mmap", "verify": "once"},
    {"read_mode": "pread", "verify": "always"},
)
"""Not where segments rot while they are read: what is mapped is verified once."""
OLD: Final = 1.0
"""Hours after which a policy drops data, in the profile that has one."""


BESIDE: Final[Mapping[str, int]] = {
    "put": 10,
    "many": 4,
    "consume": 6,
    "subscribe": 2,
    "flush": 3,
    "transaction": 1,
    "repeat": 2,
}


@dataclass(frozen=True)
class Profile:
    """Which steps how often, and with which settings it begins."""

    name: str
    weights: Mapping[str, int]
    settings: Mapping[str, Any] = field(default_factory=dict)
    changes: tuple[Mapping[str, Any], ...] = CHANGES
    """Settings that may change between two starts."""
    beside: Mapping[str, int] = field(default_factory=lambda: BESIDE)
    """What may happen inside upkeep, how often."""
    effects: frozenset[str] = frozenset()
    """What must have come of it in some of its runs."""


BASE: Final[Mapping[str, int]] = {
    "put": 24,
    "many": 10,
    "repeat": 6,
    "flush": 8,
    "maintain": 10,
    "subscribe": 4,
    "consume": 14,
    "flush_progress": 6,
    "unregister": 1,
    "transaction": 4,
    "again": 3,
    "abort": 2,
    "close": 2,
    "kill": 4,
    "cut": 4,
    "die": 3,
    "read": 4,
}
WITHOUT_LOG: Final = {
    name: weight for name, weight in BASE.items() if name not in ("transaction", "again", "abort")
}
MEANWHILE: Final = {"meanwhile": 34}
PROFILES: Final = (
    Profile("plain", BASE),
    Profile("meanwhile", {**BASE, **MEANWHILE}),
    Profile(
        "rot",
        {**BASE, "rot_segment": 14, "read": 12, "maintain": 16},
        effects=frozenset({"lost"}),
    ),
    Profile(
        "rot_log",
        {**BASE, "rot_log": 8, "rot_small": 3, "rot_keys": 2},
        effects=frozenset({"repaired", "lost"}),
    ),
    Profile("rot_stages", {**BASE, "transaction": 16, "again": 10, "rot_stage": 10}),
    Profile("rot_meanwhile", {**BASE, **MEANWHILE, "rot_segment": 12, "read": 8}),
    Profile("settings", {**BASE, "settings": 14}, changes=(*CHANGES, *MAPPED)),
    Profile("clock", {**BASE, "jump": 14, "repeat": 20, "again": 8}),
    Profile(
        "clock_age",
        {**BASE, "jump": 14},
        {"retention": {"max_retain_after_ingestion_hours": 40.0}},
    ),
    Profile(
        "age",  # what is too old is dropped, needed or not
        {**BASE, "wait": 10, "maintain": 16, "rot_segment": 2, "die": 8},
        {"retention": {"max_retain_after_ingestion_hours": OLD}},
        effects=frozenset({"dropped", "died"}),
    ),
    Profile(
        "cap",  # what is too much is dropped, oldest first
        {**BASE, "maintain": 16, "many": 20, "rot_segment": 2, "die": 8},
        {"retention": {"size_cap": 40960, "size_cap_policy": "drop_oldest"}},
        effects=frozenset({"dropped", "died"}),
    ),
    Profile("newer", {**BASE, "newer": 14}),
    Profile(
        "segment_only",  # transactions need the log
        {**WITHOUT_LOG, "rot_segment": 4, "read": 6},
        {"durability": "segment_only"},
    ),
    Profile(
        "full",
        {**BASE, "squeeze": 12, "relax": 8, "repeat": 10},
        {"reserve": 2048},
        effects=frozenset({"refused"}),
    ),
    Profile(
        "deliver",  # acked before it is written, and shown only then after the next start
        {**BASE, "settings": 14, "flush_progress": 24, "consume": 28, "flush": 1, "maintain": 1},
        {
            "wal": {"rotation_target": 65536, "max_size": 262144, "max_rotated_files": 8},
            "segment": {"target_size": 65536, "max_bundles": 60, "max_unfinalized": 3},
        },
        changes=({"deliver": "sealed"}, {"deliver": "durable"}),
    ),
    Profile(
        "dying",  # inside upkeep that deletes
        {**BASE, "die": 26, "consume": 30, "maintain": 24, "many": 20},
        effects=frozenset({"died", "died opening"}),
    ),
    Profile(
        "commits",
        {**BASE, **MEANWHILE, "transaction": 24, "again": 10, "abort": 4, "die": 10},
        beside={**BESIDE, "transaction": 12, "again": 6, "abort": 2, "put": 16},
    ),
    Profile(
        "rot_full",  # what damage left is rebuilt, and can't be written
        {**BASE, "rot_segment": 14, "read": 14, "squeeze": 12, "relax": 6, "maintain": 16},
        {"reserve": 4096},
    ),
    Profile(
        "bad_sync",
        {**BASE, "bad_sync": 14, "repeat": 14},
        effects=frozenset({"poisoned"}),
    ),
    Profile("bad_sync_meanwhile", {**BASE, **MEANWHILE, "bad_sync": 12, "repeat": 10}),
    Profile(
        "mix",
        {
            **BASE,
            **MEANWHILE,
            "rot_segment": 6,
            "rot_log": 2,
            "rot_small": 1,
            "rot_keys": 1,
            "rot_stage": 2,
            "newer": 2,
            "settings": 5,
            "jump": 4,
            "squeeze": 4,
            "relax": 4,
            "bad_sync": 3,
            "read": 8,
        },
        effects=frozenset({"died", "lost", "repaired", "poisoned", "refused"}),
    ),
)
LENGTH: Final = (20, 60)
MONTHS: Final = 6_000_000.0
"""Seconds, more than a committed version is remembered for."""
RESTART: Final = 0.4
"""Chance, after each step, that a poisoned store is ended."""


class Run:
    """One seeded run of one profile."""

    def __init__(self, seed: int, number: int, profile: Profile) -> None:
        self._rng = random.Random(f"{seed}:{number}:{profile.name}")
        self.profile = profile
        self.settings = {**TINY, **profile.settings}
        self.world = World(self._rng, dict(self.settings))
        self.steps: list[str] = []
        self.taken: set[str] = set()
        """Steps that were really taken: to their end, and with something to be done to."""
        self._version = 0
        self._keys = 0

    def go(self) -> None:
        """All steps, then the final judgement; raises ``Violation``."""
        from tests.product import judge

        try:
            self._open()
            weights = self.profile.weights
            names = self._rng.choices(
                list(weights), list(weights.values()), k=self._rng.randint(*LENGTH)
            )
            for name in names:
                self.steps.append(name)
                with self.world.mortal():
                    if getattr(self, f"_{name}")() is not False:
                        self.taken.add(name)
                self._start_again()
                self._open()
                self.world.clock.advance(0.05)
            self.steps.append("end")
            self._relax()
            self.world.disk.die_in = None
            if self.world.store is not None:
                self.world.kill()
            self._open()
            judge.at_the_end(self.world)
        finally:
            self.taken |= self.world.effects
            self.world.end()

    def _start_again(self) -> None:
        """A poisoned store is ended by somebody, sooner or later."""
        if self.world.disk.sync_failed and self._rng.random() < RESTART:
            self._rng.choice((self._close, self._kill, self._cut))()

    def _open(self) -> None:
        """Until a store is open: the process may die in the opening as well."""
        for _ in range(8):
            if self.world.store is not None:
                return
            with self.world.mortal():
                try:
                    self.world.open()
                except (Busy, StorageFault):
                    self._relax()
                    if self.world.disk.sync_failed:
                        self.world.kill()
        if self.world.store is None:
            self.world.disk.revive()
            self.world.open()

    # Producers

    def _slots(self) -> list[str]:
        return self._rng.sample(SLOTS, self._rng.choice((1, 1, 1, 2)))

    def _key(self) -> str | None:
        if self._rng.random() < 0.5:
            return None
        self._keys += 1
        return f"k{self._keys}"

    def _put(self) -> None:
        self.world.put(self._slots(), self._key(), wait=self._rng.random() < 0.7)

    def _many(self) -> None:
        for _ in range(self._rng.randint(2, 6)):
            self._put()

    def _repeat(self) -> bool:
        keyed = [p for p in self.world.facts.promised() if p.key is not None]
        if keyed:
            self.world.repeat(self._rng.choice(keyed))
        return bool(keyed)

    # Upkeep

    def _flush(self) -> None:
        self.world.flush()

    def _maintain(self) -> None:
        self.world.maintain()

    def _read(self) -> None:
        """Read all there is: damage that is there is found."""
        from tests.product import judge

        disk = self.world.disk
        try:
            judge.look(self.world)
        except (Busy, StorageFault):
            # A poisoned store writes nothing that is to be shown, and a full disk takes no
            # record of what is found lost: both are judged after the next open.
            if not disk.sync_failed and disk.capacity is None:
                raise

    # Subscribers

    def _subscribe(self) -> None:
        self.world.subscribe(self._rng.choice(NAMES))

    def _consume(self) -> None:
        self.world.consume(
            self._rng.choice(NAMES), self._rng.randint(1, 8), reject=self._rng.random() < 0.1
        )

    def _flush_progress(self) -> None:
        self.world.flush_progress()

    def _unregister(self) -> bool:
        names = sorted(self.world.facts.subs)
        if names:
            self.world.unregister(self._rng.choice(names))
        return bool(names)

    def _transaction(self) -> bool:
        self._version += 1
        then = self._rng.choices(("commit", "leave", "abort"), (7, 2, 1))[0]
        return self.world.transaction(
            self._rng.choice(APPS), self._version, self._rng.randint(1, 3), then
        )

    def _again(self) -> bool:
        """A commit that was asked for, answered, aborted or never begun comes (again)."""
        known = list(self.world.facts.commits.values())
        if known:
            self.world.commit_again(self._rng.choice(known), others=self._rng.random() < 0.5)
        return bool(known)

    def _abort(self) -> bool:
        known = list(self.world.facts.commits.values())
        if known:
            self.world.abort(self._rng.choice(known))
        return bool(known)

    # Several at once

    def _meanwhile(self) -> None:
        """Upkeep, and clients inside every step of it."""
        upkeep = self._rng.choice((self._maintain, self._flush, self._flush_progress))
        beside = self.profile.beside
        names = self._rng.choices(list(beside), list(beside.values()), k=self._rng.randint(1, 3))
        others = [getattr(self, f"_{name}") for name in names]
        calls = [("upkeep", upkeep), *((one.__name__, one) for one in others)]
        inside = self._rng.randrange(120) if self._rng.random() < 0.6 else None
        self.steps.append("+".join(name for name, _ in calls) + f"@{inside}")
        self.world.together(*calls, inside=inside)

    # Ends

    def _close(self) -> None:
        self.world.close()

    def _kill(self) -> None:
        self.world.kill()

    def _cut(self) -> None:
        self.world.cut()

    def _die(self) -> None:
        """In one of the next writes: of this process, or of the next one's opening."""
        if self._rng.random() < 0.4:
            self.world.kill()
        self.world.disk.die_in = self._rng.randint(0, 25)

    def _settings(self) -> None:
        """Another start, with other settings."""
        change = self._rng.choice(self.profile.changes)
        if self._rng.random() < 0.3:
            self.world.close()
        else:
            self.world.kill()
        self.world.settings = {**self.world.settings, **change}
        self.steps.append(str(dict(change)))

    # The clock

    def _jump(self) -> None:
        self.world.clock.jump(self._rng.choice((-360_000.0, -60.0, 60.0, 360_000.0, MONTHS)))
        if self._rng.random() < 0.5:
            self.world.maintain()
        if self._rng.random() < 0.5:
            self.world.clock.jump(self._rng.choice((-360_000.0, 360_000.0)))

    def _wait(self) -> None:
        """Time passes, on both clocks."""
        self.world.clock.advance(self._rng.choice((300.0, 900.0, 2400.0)))

    # The disk

    def _squeeze(self) -> None:
        disk = self.world.disk
        disk.capacity = disk.used + self._rng.randint(0, 3000)

    def _relax(self) -> None:
        disk = self.world.disk
        disk.capacity = disk.fail_syncs_in = disk.fail_dir_syncs_in = None

    def _bad_sync(self) -> None:
        """A sync to come fails: the store is poisoned then, and refuses until it is opened
        again.  What was pending may be on the disk or not."""
        disk = self.world.disk
        if self._rng.random() < 0.75:
            disk.fail_syncs_in = self._rng.randint(0, 9)
        else:
            disk.fail_dir_syncs_in = self._rng.randint(0, 9)

    def _pick(self, *, suffix: str = "", prefix: str = "") -> str | None:
        paths = sorted(
            path
            for path, data in self.world.disk.image().items()
            if path.endswith(suffix) and path.startswith(prefix) and data
        )
        return self._rng.choice(paths) if paths else None

    def _rot(self, path: str | None) -> bool:
        """One byte changes, or the file is cut; whether there is such a file."""
        if path is None:
            return False
        data = bytearray(self.world.disk.image()[path])
        at = self._rng.randrange(len(data))
        if self._rng.random() < 0.85:
            data[at] ^= 1 << self._rng.randrange(8)
            what = f"bit flipped at {at} of {len(data)}"
        else:
            del data[at:]
            what = f"cut at {at}"
        self.steps.append(f"{path}:{what}")
        self.world.damage(path, bytes(data), what)
        return True

    def _newer(self) -> bool:
        """A newer version was here, and went again."""
        self.world.kill()
        image = self.world.disk.image()
        marks = self.world.facts.marks
        paths = [p for p in sorted(image) if p not in marks and newer(p, image[p]) is not None]
        if paths:
            path = self._rng.choice(paths)
            data = newer(path, image[path])
            assert data is not None
            self.steps.append(path)
            self.world.newer(path, data)
        return bool(paths)

    def _rot_segment(self) -> bool:
        return self._rot(self._pick(suffix=".qseg", prefix="segments/"))

    def _rot_log(self) -> bool:
        """Only while the store is down: a running one holds its log's file open."""
        self.world.kill()
        return self._rot(self._pick(prefix="wal/quiver.wal"))

    def _rot_keys(self) -> bool:
        self.world.kill()
        return self._rot(self._pick(prefix="keys/"))

    def _rot_stage(self) -> bool:
        """Only while the store is down: what it staged itself it does not check again."""
        self.world.kill()
        return self._rot(self._pick(prefix="stages/", suffix=".qstage"))

    def _rot_small(self) -> bool:
        self.world.kill()
        path = self._rng.choice(("quiver.state", "quiver.sub.", "segments/quiver.segment.seq"))
        return self._rot(self._pick(prefix=path))
