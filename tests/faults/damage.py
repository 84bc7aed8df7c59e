"""Small stores to be damaged, and the judgement of what became of one.

Whatever is done to a store's bytes, there are four honest endings: it is intact; it is
refused, with an error that says what to do, and nothing was changed; a part was set aside
and what is lost is on record; or a tail of the log that nothing proves is reported as
torn.  Anything else is a silent loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from typing import Final

from quiver.config import Config
from quiver.errors import BundleGone, Damage, QuiverError, SegmentDamage, UnsupportedVersion
from quiver.ids import BundleRef
from quiver.store.store import Store
from tests.faults.world import (
    EVERYTHING,
    SLOT,
    Found,
    batch,
    config,
    look,
    meaningful,
    number_of,
    open_store,
)
from tests.support.memory_disk import MemoryDisk

SETTINGS: Final = config(reserve=0, segment={"target_size": "8KiB"})
WITHOUT_LOG: Final = config(reserve=0, durability="segment_only")


class Ending(StrEnum):
    """What became of a damaged store."""

    INTACT = "intact"
    REFUSED = "refused"
    REPORTED = "set aside or rebuilt, and reported"
    TORN = "torn tail, reported"


@dataclass(frozen=True)
class Sample:
    """A store as it was left, and what is in it."""

    name: str
    settings: Config
    files: Mapping[str, bytes]
    found: Found
    unproven: frozenset[int]
    """The last group of a log that was never closed: nothing later proves it synced."""


def _fill(store: Store, *, segments: int, bundles: int = 2) -> None:
    """Segment files with bundles that the subscribers have finished in part."""
    a, b = store.register("a"), store.register("b")
    store.activate()
    for number in range(segments * bundles):
        store.put({SLOT: batch(number)}, key=f"key {number}").wait()
        if number % bundles == bundles - 1:
            store.flush()
    for subscription, count in ((a, 2), (b, 1)):
        for _ in range(count):
            bundle = subscription.next_bundle()
            assert bundle is not None
            bundle.ack()
        subscription.flush()


def _left(name: str, settings: Config, raw: MemoryDisk, unproven: frozenset[int]) -> Sample:
    raw.locked.clear()
    files = meaningful(raw.image())
    found = look(open_store(MemoryDisk.from_image(files, record=False), settings))
    return Sample(name, settings, files, found, unproven)


@cache
def closed() -> Sample:
    """A store that was closed cleanly."""
    raw = MemoryDisk(record=False)
    store = open_store(raw, SETTINGS)
    _fill(store, segments=2)
    store.close()
    return _left("closed", SETTINGS, raw, frozenset())


@cache
def crashed() -> Sample:
    """A store whose process died: two log files, bundles that only they have."""
    raw = MemoryDisk(record=False)
    store = open_store(raw, SETTINGS)
    _fill(store, segments=1, bundles=3)
    for number in range(3, 7):
        store.put({SLOT: batch(number)}).wait()
    group = [store.put({SLOT: batch(number)}) for number in (7, 8)]
    for receipt in group:
        receipt.wait()
    sample = _left("crashed", SETTINGS, raw, frozenset({7, 8}))
    assert any(path.startswith("wal/") and path[-1].isdigit() for path in sample.files)
    assert set(sample.found.bundles) == set(range(9))
    return sample


@cache
def without_log() -> Sample:
    """A store that has no log: what isn't in a segment isn't anywhere."""
    raw = MemoryDisk(record=False)
    store = open_store(raw, WITHOUT_LOG)
    _fill(store, segments=2, bundles=1)
    return _left("without a log", WITHOUT_LOG, raw, frozenset())


@cache
def staged() -> Sample:
    """A store with a commit that is published, one that isn't, and a stage that waits."""
    raw = MemoryDisk(record=False)
    store = open_store(raw, STAGED)
    store.register("a")
    store.activate()
    _stage(store, 0, 0, 1, 2)
    store.commit("app", 0, ["0"])
    _stage(store, 1, 3, 4, 5)
    store._upkeep.seal_quietly = lambda: None  # type: ignore[method-assign]
    store.commit("app", 1, ["1"])
    _stage(store, 2, 90)
    store.put({SLOT: batch(6)}).wait()
    store.put({SLOT: batch(7)}).wait()
    sample = _left("staged", STAGED, raw, frozenset({7}))
    assert set(sample.found.bundles) == set(range(8))
    return sample


def _stage(store: Store, version: int, *numbers: int) -> None:
    with store.stage("app", version, str(version)) as stage:
        for number in numbers:
            stage.put({SLOT: batch(number)})
        stage.finish()


STAGED: Final = config(reserve=0, segment={"target_size": "1KiB", "max_bundles": 2})
SAMPLES: Final = {
    "closed": closed,
    "crashed": crashed,
    "without_log": without_log,
    "staged": staged,
}


def judge(sample: Sample, files: Mapping[str, bytes]) -> tuple[Ending, set[int]]:
    """Open a damaged copy of a sample and read all of it: how did it end, what is lost?"""
    raw = MemoryDisk.from_image(files, record=False)
    try:
        store = open_store(raw, sample.settings)
    except (Damage, UnsupportedVersion) as error:
        _check_refusal(error, raw, files)
        return Ending.REFUSED, set()
    present = _read_all(store)
    report, status = store.report, store.status()
    lost = set(sample.found.bundles) - present.keys()
    assert present.keys() <= sample.found.bundles.keys(), "something came from nowhere"
    for number, ref in present.items():
        assert sample.found.bundles[number] == ref, f"bundle {number} changed its ref"
    told = bool(status.losses or report.lost or status.problems)
    torn = bool(report.torn_tails)
    needed = lost & frozenset().union(*sample.found.outstanding.values())
    assert not needed or told or torn, f"silently lost: {sorted(needed)}"
    kept = any(path.startswith("quarantine/") for path in raw.image())
    assert not lost or told or torn or kept, f"finished by all, and hidden: {sorted(lost)}"
    _check_progress(sample, store, present)
    if torn:
        return Ending.TORN, lost
    if told or report.quarantined or report.rebuilt or status.problems:
        return Ending.REPORTED, lost
    return Ending.INTACT, lost


def _check_refusal(error: QuiverError, raw: MemoryDisk, files: Mapping[str, bytes]) -> None:
    assert error.message, "an error without a message"
    assert error.advice, f"no advice: {error.message}"
    assert meaningful(raw.image()) == meaningful(files), "refused, and changed all the same"


def _read_all(store: Store) -> dict[int, BundleRef]:
    """Every bundle that can be read; none may be there twice."""
    present: dict[int, BundleRef] = {}
    for seq, count in store.segments():
        for index in range(count):
            ref = BundleRef(seq, index)
            try:
                number = number_of(store.read(ref))
            except (BundleGone, SegmentDamage):
                continue
            assert number not in present, f"bundle {number} is there twice"
            present[number] = ref
    return present


def _check_progress(sample: Sample, store: Store, present: Mapping[int, BundleRef]) -> None:
    """Nobody is handed anything again, nobody misses what is there."""
    assert set(store.subscribers) == set(sample.found.outstanding), "a subscriber is gone"
    refs = {ref: number for number, ref in present.items()}
    for name, wanted in sample.found.outstanding.items():
        pending = store.register(name).pending_bundles_in_range(0, EVERYTHING)
        left = {refs[ref] for ref in pending if ref in refs}
        assert left == wanted & present.keys(), f"{name} has {sorted(left)} left, not {wanted}"
