"""Files missing, swapped, doubled: the rest vouches for what is not as it was."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import combinations

import pytest

from quiver.disk.disk import Disk
from quiver.errors import Damage, ProgressCorrupt, StateCorrupt, WalCorrupt
from quiver.wal.reader import read_log
from tests.faults.damage import SAMPLES, SETTINGS, Ending, Sample, closed, crashed, judge
from tests.faults.damage import without_log as bare
from tests.faults.world import SLOT, batch, config, look, meaningful, open_store
from tests.support.memory_disk import MemoryDisk

pytestmark = pytest.mark.fault

Property = Callable[[str, object], None]
Files = Mapping[str, bytes]

HINT = "wal/quiver.wal.cursor"
FLOOR = "segments/quiver.segment.seq"
STATE = "quiver.state"


def missing(files: Files) -> Iterator[tuple[str, Files]]:
    """One file gone, and every two."""
    for count in (1, 2):
        for gone in combinations(sorted(files), count):
            kept = {path: data for path, data in files.items() if path not in gone}
            yield f"without {', '.join(gone)}", kept


def swapped(files: Files) -> Iterator[tuple[str, Files]]:
    """Every two files under each other's names."""
    for one, two in combinations(sorted(files), 2):
        yield f"{one} and {two} swapped", {**files, one: files[two], two: files[one]}


def doubled(files: Files) -> Iterator[tuple[str, Files]]:
    """Every file in another's place, and under names that are still free."""
    free = ("segments/0000000000000077.qseg", "wal/quiver.wal.77", "quiver.sub.c")
    for source in sorted(files):
        for target in (*sorted(files), *free):
            if source != target:
                yield f"{target} is a copy of {source}", {**files, target: files[source]}


WAYS = {"missing": missing, "swapped": swapped, "doubled": doubled}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SAMPLES)
def test_no_file_goes_unnoticed(name: str, way: str, record_property: Property) -> None:
    """Whatever files were taken away or put elsewhere: nothing is lost without a word."""
    sample = SAMPLES[name]()
    endings: Counter[Ending] = Counter()
    for what, files in WAYS[way](sample.files):
        try:
            ending, _ = judge(sample, files)
        except AssertionError as error:
            raise AssertionError(f"{name}: {what}: {error}") from error
        assert ending is not Ending.TORN, f"{name}: {what}: passed off as an unfinished write"
        endings[ending] += 1
    record_property("tried", endings.total())
    for ending, count in endings.items():
        record_property(str(ending), count)


def refusal(sample: Sample, *gone: str) -> Damage:
    files = {path: data for path, data in sample.files.items() if path not in gone}
    with pytest.raises(Damage) as refused:
        open_store(MemoryDisk.from_image(files), sample.settings)
    return refused.value


@pytest.mark.parametrize("sample", [closed(), crashed(), bare()], ids=lambda one: one.name)
def test_what_is_missing_is_named(sample: Sample) -> None:
    """The error is the kind of its file, and names it."""
    expected: dict[str, type[Damage]] = {
        FLOOR: StateCorrupt,
        STATE: StateCorrupt,
        "quiver.sub.a": ProgressCorrupt,
    }
    for path, kind in expected.items():
        error = refusal(sample, path)
        assert type(error) is kind
        assert error.details["file"] == path


def test_every_log_file_is_missed() -> None:
    """The oldest, one in the middle, the active one, and all of them."""
    sample = crashed()
    logs = sorted(path for path in sample.files if path.startswith("wal/") and path != HINT)
    assert len(logs) == 3
    for gone in (*((path,) for path in logs), tuple(logs), tuple(logs[:2]), tuple(logs[1:])):
        assert type(refusal(sample, *gone)) is WalCorrupt


def test_a_segment_that_the_log_covers_is_rebuilt() -> None:
    """It is whole again, under its number, and nothing is on record as lost."""
    sample = crashed()
    path = "segments/0000000000000000.qseg"
    raw = MemoryDisk.from_image({p: d for p, d in sample.files.items() if p != path})
    store = open_store(raw, sample.settings)
    assert look(store) == sample.found
    assert not store.status().losses
    store.close()
    assert raw.image()[path] == sample.files[path]


@pytest.mark.parametrize("make", [closed, bare])
def test_a_segment_that_nothing_covers_is_on_record(make: Callable[[], Sample]) -> None:
    """Reported at the start, counted for who missed it, and still known at the next start."""
    sample = make()
    path = "segments/0000000000000001.qseg"
    raw = MemoryDisk.from_image({p: d for p, d in sample.files.items() if p != path})
    for _ in range(2):
        store = open_store(raw, sample.settings)
        (loss,) = store.status().losses
        assert (loss.segment_seq, loss.reason) == (1, "damaged")
        assert store.status().state == "degraded" or store.report.lost == ()
        store.close()


def test_a_lost_segment_counts_what_was_in_it() -> None:
    """How many bundles are gone, and for whom, though the file can't be asked any more."""
    raw = MemoryDisk(record=False)
    store = open_store(raw, SETTINGS)
    a = store.register("a")
    store.register("b")
    store.activate()
    for number in range(9):
        store.put({SLOT: batch(number)}).wait()
        if number % 3 == 2:
            store.flush()
    for _ in range(4):
        bundle = a.next_bundle()
        assert bundle is not None
        bundle.ack()
    store.close()
    files = meaningful(raw.image())
    del files["segments/0000000000000001.qseg"]
    (loss,) = open_store(MemoryDisk.from_image(files), SETTINGS).report.lost
    assert (loss.bundles, dict(loss.subscribers)) == (3, {"a": 2, "b": 3})


def test_an_emptied_store_still_knows_its_numbers() -> None:
    """All data finished and deleted: without the floor, numbers would be used again."""
    settings = config(reserve=0, durability="segment_only")
    raw = MemoryDisk(record=False)
    store = open_store(raw, settings)
    a = store.subscribe("a")
    store.put({SLOT: batch(1)}).wait()
    bundle = a.next_bundle()
    assert bundle is not None
    bundle.ack()
    a.flush()
    store.maintain()
    store.close()
    files = meaningful(raw.image())
    assert not any(path.endswith(".qseg") for path in files)
    for path in (FLOOR, STATE, "quiver.sub.a"):
        with pytest.raises(Damage):
            open_store(
                MemoryDisk.from_image({p: d for p, d in files.items() if p != path}), settings
            )


def test_a_log_cut_behind_what_was_shown_is_refused() -> None:
    """Its end is gone, between two entries: a progress file has seen more than there is."""
    sample = crashed()
    raw = MemoryDisk.from_image(sample.files)
    store = open_store(raw, sample.settings)
    (ref,) = [ref for number, ref in sample.found.bundles.items() if number == 8]
    b = store.subscribe("b")
    b.ack([ref])
    b.flush()
    raw.locked.clear()
    files = meaningful(raw.image())
    log = files["wal/quiver.wal"]
    entries = list(read_log(Disk(raw), layout_hash=None).entries())
    cut = next(entry.offset for entry in entries if entry.sequence == entries[-1].sequence)
    with pytest.raises(WalCorrupt, match="end is missing") as refused:
        open_store(MemoryDisk.from_image({**files, "wal/quiver.wal": log[:cut]}), sample.settings)
    assert "b was shown" in refused.value.message
