"""A setting that changes between two starts, against every state that a crash can leave.

One workload is recorded under some settings: after every change of the disk there are two
pictures, what a killed process leaves and what a power cut leaves, with what had been promised
by then.  Each picture is opened under other settings, and the promise is checked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final, TypeVar

import pytest

from quiver import BundleRef, Config, ManualClock, Store
from quiver.disk.disk import Disk
from quiver.errors import LayoutMismatch
from tests.support.faulty import FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.stores import batch, number_of

T = TypeVar("T")

BASE: Final[dict[str, Any]] = {
    "reserve": 0,
    "wal": {"rotation_target": "2KiB", "max_size": "256KiB", "max_rotated_files": 100},
    "segment": {"target_size": "16KiB"},
    "limits": {"max_bundle": "16KiB"},
}

CHANGES: Final[dict[str, dict[str, Any]]] = {
    "deliver": {"deliver": "sealed"},
    "durability": {"durability": "segment_only"},
    "durability and deliver": {"durability": "segment_only", "deliver": "sealed"},
    "read_mode": {"read_mode": "pread"},
    "max_mapped_segments": {"max_mapped_segments": 1},
    "validation": {"validation": "off"},
    "reserve": {"reserve": "4KiB"},
    "slots declared": {"slots": {"Logs": 0, "Staged": 1}},
    "slots with other ids": {"slots": {"Logs": 5, "Staged": 0}},
    "segment.target_size": {"segment__target_size": 1},
    "segment.max_bundles": {"segment__max_bundles": 1},
    "segment.max_rows": {"segment__max_rows": 1},
    "segment.max_unfinalized": {"segment__max_unfinalized": 1},
    "segment.max_open_duration": {"segment__max_open_duration": 0.001},
    "idempotency.window_count": {"idempotency__window_count": 1},
    "idempotency off": {"idempotency__window_count": 0},
    "idempotency.window_age": {"idempotency__window_age": 0.001},
    "retention.size_cap": {"retention__size_cap": "1MiB"},
    "retention.drop_oldest": {
        "retention__size_cap": "1MiB",
        "retention__size_cap_policy": "drop_oldest",
    },
    "retention.keep_after_finish": {"retention__keep_after_finish": "1h"},
    "retention.steady_state_headroom": {"retention__steady_state_headroom": "1MiB"},
    "wal.rotation_target": {"wal__rotation_target": "64KiB"},
    "wal.max_size": {"wal__max_size": "64KiB"},
    "wal.max_rotated_files": {"wal__max_rotated_files": 18},
    "wal.recycle": {"wal__recycle": False},
    "wal.flush": {"wal__flush": "every"},
    "wal.flush by time": {"wal__flush": "interval"},
    "wal.max_idle_age": {"wal__max_idle_age": 0.001},
    "corrupt_progress": {"subscribers__corrupt_progress": "earliest"},
    "corrupt_progress latest": {"subscribers__corrupt_progress": "latest"},
    "progress_interval": {"subscribers__progress_interval": 3600},
    "transactions.max_apps": {"transactions__max_apps": 1},
    "transactions.max_stages": {"transactions__max_stages": 1},
    "transactions.remember": {"transactions__remember": 0.001},
    "transactions.stage_ttl": {"transactions__stage_ttl": 0.001},
    "transactions.max_memory": {"transactions__max_memory": "1KiB"},
}


def config_of(change: dict[str, Any]) -> Config:
    layers: dict[str, Any] = {
        key: dict(value) if isinstance(value, dict) else value for key, value in BASE.items()
    }
    for name, value in change.items():
        section, _, key = name.partition("__")
        if key:
            layers.setdefault(section, {})[key] = value
        else:
            layers[name] = value
    return Config.load(env={}, **layers)


@dataclass(frozen=True)
class Picture:
    """What a crash leaves, and what had been promised by then."""

    files: dict[str, bytes]
    directories: tuple[str, ...]
    durable: dict[BundleRef, int]
    """Answered durable, or seen, with their numbers."""
    begun: frozenset[int]
    """Put or staged: these, and no others, may be there."""
    acked: frozenset[BundleRef]
    """Acked, and the ack durable."""
    asked: frozenset[BundleRef]
    """Acked, durable or not yet."""


class Camera(FaultyDisk):
    """Takes a picture after every change."""

    CHANGES = frozenset({"rename", "unlink", "fsync_dir", "fdatasync", "fsync"})

    def __init__(self, raw: MemoryDisk, take: Callable[[], None]) -> None:
        super().__init__(raw)
        self._take = take

    def call(self, op: str, path: str, work: Callable[[], T]) -> T:
        done = super().call(op, path, work)
        if op in self.CHANGES:
            self._take()
        return done


class Recording:
    """The workload: puts, acks, segments written and deleted, a transaction, a restart."""

    def __init__(self, change: dict[str, Any]) -> None:
        self.pictures: dict[tuple[Any, ...], Picture] = {}
        self._raw = MemoryDisk()
        self._config = config_of(change)
        self._durable: dict[BundleRef, int] = {}
        self._begun: set[int] = set()
        self._acked: set[BundleRef] = set()
        self._asked: set[BundleRef] = set()
        self._run()

    def _take(self) -> None:
        cut = self._raw.durability()
        for files, directories in (
            (self._raw.image(), self._raw.directories()),
            (cut.image(), cut.directories()),
        ):
            files = {path: data for path, data in files.items() if path != "LOCK"}
            key = (tuple(sorted(files.items())), len(self._durable), len(self._acked))
            self.pictures.setdefault(
                key,
                Picture(
                    files,
                    tuple(directories),
                    dict(self._durable),
                    frozenset(self._begun),
                    frozenset(self._acked),
                    frozenset(self._asked),
                ),
            )

    def _open(self) -> Store:
        disk = Disk(Camera(self._raw, self._take))
        return Store(disk, self._config, where="mem", clock=ManualClock())

    def _put(self, store: Store, *numbers: int) -> None:
        self._begun |= set(numbers)
        receipts = [(n, store.put({"Logs": batch(n)}, key=f"key {n}")) for n in numbers]
        for number, receipt in receipts:
            self._durable[receipt.wait().ref] = number
        self._take()

    def _ack(self, store: Store, count: int) -> None:
        reader = store.subscribe("r", follow=False)
        for _ in range(count):
            bundle = reader.next_bundle()
            if bundle is None:
                break
            self._asked.add(bundle.ref)
            bundle.ack()
        store.flush_progress()
        self._acked |= self._asked
        self._take()

    def _commit(self, store: Store, number: int) -> None:
        self._begun.add(number)
        stage = store.stage("app", number, "first")
        stage.put({"Staged": batch(number)})
        stage.finish()
        answer = store.commit("app", number, ["first"])
        assert answer.first_ref is not None
        self._durable[answer.first_ref] = number
        self._take()

    def _run(self) -> None:
        with_log = self._config.durability == "wal"
        store = self._open()
        store.subscribe("r")
        self._put(store, 0, 1, 2)
        self._ack(store, 2)  # in the middle of a segment that only the log has
        self._put(store, 3)
        store.flush()
        self._put(store, 4, 5)
        self._ack(store, 3)
        if with_log:
            self._commit(store, 6)
        store.maintain()
        self._put(store, 7)
        store.close()
        self._take()
        store = self._open()
        self._put(store, 8, 9)
        self._ack(store, 4)


@cache
def recorded(change: str) -> tuple[Picture, ...]:
    """The pictures of the workload under a change; ``""`` for none."""
    return tuple(Recording(CHANGES.get(change, {})).pictures.values())


def opened(files: dict[str, bytes], directories: tuple[str, ...], config: Config) -> Store:
    raw = MemoryDisk.from_image(files, directories, record=False)
    return Store(Disk(raw), config, where="mem", clock=ManualClock())


def check(picture: Picture, config: Config, former: Config) -> None:
    """Open it, and compare what is there, and what comes, with what was promised."""
    try:
        store = opened(picture.files, picture.directories, config)
    except LayoutMismatch:  # refused by name, and nothing was changed
        assert config.slots is not None or former.slots is not None
        store = opened(picture.files, picture.directories, former)
    status = store.status()
    assert store.losses == ()
    assert status.state == "ok", status.problems
    assert set(status.recovery.rebuilt) == set()
    store.flush()
    came: list[BundleRef] = []
    for bundle in store.subscribe("r", follow=False):
        number = number_of(bundle[bundle.keys()[0]])
        assert number in picture.begun
        assert picture.durable.get(bundle.ref, number) == number
        came.append(bundle.ref)
        bundle.ack()
    assert len(came) == len(set(came))
    assert not picture.acked & set(came), "durably acked, and came again"
    missing = picture.durable.keys() - set(came) - picture.asked
    assert not missing, "durable, never acked, and did not come"
    again = store.put({"Logs": batch(99)}).wait().ref
    assert again not in picture.durable
    store.close()


@pytest.mark.parametrize("change", CHANGES)
def test_set_at_the_next_start(change: str) -> None:
    """Scenario: a crash anywhere in the workload, and a setting that the next start has and the
    last one had not. Guarantee: nothing lost, nothing on record as lost, no durable ack
    forgotten, nothing twice; or a refusal by name that changes nothing."""
    base, changed = config_of({}), config_of(CHANGES[change])
    for picture in recorded(""):
        check(picture, changed, base)


@pytest.mark.parametrize("change", CHANGES)
def test_unset_at_the_next_start(change: str) -> None:
    """Scenario: the same, the other way round: the setting goes back to what it is by default.
    Guarantee: the same."""
    base, changed = config_of({}), config_of(CHANGES[change])
    for picture in recorded(change):
        check(picture, base, changed)
