"""A store of ours, damaged in every way: what is said, what is saved, what a repair makes of it."""

from __future__ import annotations

import errno
from collections.abc import Collection
from itertools import combinations

import pytest

from quiver import Config, ManualClock, Store
from quiver.disk.disk import Disk
from quiver.errors import NotFound, QuiverError
from quiver.ids import BundleRef
from quiver.offline.mend import mend
from quiver.offline.repair import RepairPlan
from quiver.offline.verify import verify
from tests.support.crashed import (
    SETTINGS,
    Crashed,
    disk_of,
    image_of,
    logs,
    mostly_in_log,
    mostly_sealed,
)
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.rust import Image, batches_of, dumped, number_of

WRITING = frozenset({"create", "pwritev", "fsync", "fsync_dir", "rename", "unlink", "mkdir"})
FLIPS = 12
"""Bytes flipped in each file, evenly spread."""


def saved_numbers(image: Image) -> dict[BundleRef, int]:
    result, out = dumped(image)
    return {BundleRef(*s.ref): number_of(batches_of(s, out)[0]) for s in result.saved}


def served(
    image: Image, name: str = "newcomer", names: Collection[str] = ("Logs",)
) -> dict[BundleRef, int]:
    """What an open store gives to a subscriber; its slot is called one of ``names``."""
    config = Config.load(env={}, **SETTINGS)
    store = Store(disk_of(image), config, where="mem", clock=ManualClock())
    found = {}
    for bundle in store.subscribe(name, follow=False):
        (slot,) = bundle
        assert slot in names
        found[bundle.ref] = number_of(bundle[slot])
        bundle.ack()
    store.put({"Logs": logs(99)}).wait()
    store.close()
    return found


def check(truth: Crashed, image: Image, where: object, names: Collection[str] = ("Logs",)) -> None:
    """Damage is told, what is sound is saved, and a repaired store serves just that."""
    disk = disk_of(image)
    verdict = verify(disk)
    saved = saved_numbers(image)
    assert saved.items() <= truth.bundles.items(), where
    missing = truth.bundles.keys() - saved.keys()
    if missing:
        assert not verdict.sound or verdict.notes, where
    plan = RepairPlan(disk)
    assert plan.is_needed == (not verdict.sound), where
    assert bool(plan.actions) == plan.is_needed, where
    assert image_of(disk) == image, where
    mended = mend(disk, ManualClock(), where="mem")
    repaired = image_of(disk)
    repaired.pop("LOCK", None)
    after = verify(disk_of(repaired))
    assert after.sound, (where, after.problems)
    assert saved_numbers(repaired) == saved, where
    assert served(repaired, names=names) == saved, where
    if plan.is_needed and missing:
        assert mended.losses, where
    for name in ("exporter", "idle"):
        left = served(repaired, name, names)
        assert left.items() <= saved.items(), where
        if name == "idle":
            assert left == saved, where
        else:
            assert left.keys() >= saved.keys() - truth.acked, where
    kept = {data for path, data in repaired.items() if path.startswith("quarantine/")}
    for path, data in image.items():
        replaced = repaired.get(path) != data and not path.endswith((".spare", ".new"))
        if path.startswith(("wal/", "segments/0")) and replaced:
            assert data in kept, (where, path)


STORES = {"sealed": mostly_sealed, "log": mostly_in_log}


def files() -> list[tuple[str, str]]:
    """Every file of every store."""
    return [
        (kind, path)
        for kind, store in STORES.items()
        for path in sorted(store().image)
        if path != "LOCK"
    ]


@pytest.mark.parametrize("kind", STORES)
def test_untouched(kind: str) -> None:
    """A store that crashed is sound: everything is there and there is nothing to repair."""
    truth = STORES[kind]()
    verdict = verify(disk_of(truth.image))
    assert verdict.sound
    assert verdict.bundles == len(truth.bundles)
    assert saved_numbers(truth.image) == truth.bundles
    result, _ = dumped(truth.image)
    sequences = [saved.sequence or 0 for saved in result.saved]
    assert sequences == sorted(sequences)
    for saved in result.saved:
        done = BundleRef(*saved.ref) in truth.acked
        assert saved.subscribers == {"exporter": "acked" if done else "pending", "idle": "pending"}
    assert not RepairPlan(disk_of(truth.image)).is_needed
    assert served(truth.image) == truth.bundles


@pytest.mark.parametrize(("kind", "path"), files())
def test_flipped_bytes(kind: str, path: str) -> None:
    """Any byte of any file."""
    truth = STORES[kind]()
    data = truth.image[path]
    for at in range(0, len(data), max(1, len(data) // FLIPS)):
        changed = bytearray(data)
        changed[at] ^= 0x21
        check(truth, {**truth.image, path: bytes(changed)}, (path, at))


@pytest.mark.parametrize(("kind", "path"), files())
def test_missing_file(kind: str, path: str) -> None:
    """Any file gone."""
    truth = STORES[kind]()
    image = dict(truth.image)
    del image[path]
    check(truth, image, path)


@pytest.mark.parametrize(("kind", "path"), files())
def test_cut_file(kind: str, path: str) -> None:
    """Any file cut short, at a few places."""
    truth = STORES[kind]()
    data = truth.image[path]
    for at in {0, 1, len(data) // 3, len(data) // 2, max(0, len(data) - 70), len(data) - 1}:
        check(truth, {**truth.image, path: data[:at]}, (path, at))


@pytest.mark.parametrize("kind", STORES)
def test_log_cut_where_it_looks_whole(kind: str) -> None:
    """No checksum fails, but a subscriber was shown more than there is."""
    truth = STORES[kind]()
    head = truth.image["wal/quiver.wal"][:64]
    image = {**truth.image, "wal/quiver.wal": head + bytes(64)}
    assert not verify(disk_of(image)).sound
    check(truth, image, kind)


@pytest.mark.parametrize("kind", STORES)
def test_two_files_gone(kind: str) -> None:
    """Two losses at once, each with each."""
    truth = STORES[kind]()
    for pair in combinations([path for one, path in files() if one == kind], 2):
        image = {path: data for path, data in truth.image.items() if path not in pair}
        # With the log's first file and all segments, the slot's name may go too.
        check(truth, image, pair, names=("Logs", "slot0"))


def test_keys_survive_a_repair() -> None:
    """A repeat is still known as one, by the ref it had, though the log it was in is gone."""
    truth = mostly_in_log()
    changed = bytearray(truth.image["wal/quiver.wal.3"])
    changed[1000] ^= 1
    image = {**truth.image, "wal/quiver.wal.3": bytes(changed)}
    lost = truth.bundles.keys() - saved_numbers(image).keys()
    disk = disk_of(image)
    mend(disk, ManualClock(), where="mem")
    store = Store(disk, Config.load(env={}, **SETTINGS), where="mem", clock=ManualClock())
    for ref, number in truth.bundles.items():
        again = store.put({"Logs": logs(number)}, key=f"key-{number}").wait().ref
        assert again == ref or ref in lost
    assert len(lost) == 1
    store.close()


def test_what_is_lost_is_given_to_nobody() -> None:
    """Its place stays empty: asking for it says so, and the others keep their refs."""
    truth = mostly_in_log()
    changed = bytearray(truth.image["wal/quiver.wal.3"])
    changed[1000] ^= 1
    disk = disk_of({**truth.image, "wal/quiver.wal.3": bytes(changed)})
    mended = mend(disk, ManualClock(), where="mem")
    (loss,) = mended.losses
    assert (loss.segment_seq, loss.bundles, loss.reason) == (1, 1, "damaged")
    assert loss.subscribers == {"exporter": 1, "idle": 1}
    store = Store(disk, Config.load(env={}, **SETTINGS), where="mem", clock=ManualClock())
    (lost,) = truth.bundles.keys() - {b.ref for b in store.subscribe("new", follow=False)}
    for ask in (store.read, store.meta, store.subscribe("new", follow=False).claim_bundle):
        with pytest.raises(NotFound):
            ask(lost)
    assert store.lag("new").bundles == len(truth.bundles) - 1
    store.close()


def test_interrupted_repairs() -> None:
    """A repair that fails at any call, done again, ends where an uninterrupted one does."""
    truth = mostly_in_log()
    changed = bytearray(truth.image["wal/quiver.wal.3"])
    changed[1000] ^= 1
    image = {**truth.image, "wal/quiver.wal.3": bytes(changed)}
    del image["quiver.sub.idle"]
    wanted = saved_numbers(image)
    at, finished = 0, False
    while not finished:
        raw = MemoryDisk.from_image(image)
        faulty = FaultyDisk(raw, Fault(at, errno.EIO, ops=WRITING))
        try:
            mend(Disk(faulty), ManualClock(), where="mem")
        except QuiverError:
            at += 1
        else:
            finished = True
        again = Disk(MemoryDisk.from_image(raw.image()))
        mend(again, ManualClock(), where="mem")
        repaired = image_of(again)
        assert verify(disk_of(repaired)).sound, at
        assert served(repaired) == wanted, at
    assert at > 20
