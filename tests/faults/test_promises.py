"""The defects found in the Rust crate (a to l), each as a test of this store.

They were found by reading and running it; what they have in common is that its own tests
didn't see them.  One test each, by the letter of the list.
"""

from __future__ import annotations

import errno
import threading

import pyarrow as pa
import pytest

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.disk.seam import RawDisk
from quiver.errors import ConfigError, IoFault, QuiverError, StorageFull
from quiver.ids import MAX_BUNDLES_PER_SEGMENT
from quiver.store.store import Store
from quiver.wal.reader import read_log
from tests.faults.world import SLOT, batch, config, look, meaningful, number_of, open_store
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk

pytestmark = pytest.mark.fault

ROOMY = config(segment={"target_size": "8KiB"})


def opened(raw: RawDisk, settings: Config = ROOMY, clock: ManualClock | None = None) -> Store:
    return Store(Disk(raw), settings, where="mem", clock=clock or ManualClock())


def after_power_cut(raw: MemoryDisk) -> MemoryDisk:
    durable = raw.durability()
    return MemoryDisk.from_image(durable.image(), durable.directories())


def test_a_segment_that_could_not_be_written_is_not_forgotten() -> None:
    """a: a failed finalize kept its bundles nowhere, and the next one purged the log."""
    raw = MemoryDisk()
    disk = FaultyDisk(raw)
    store = opened(disk)
    for number in range(3):
        store.put({SLOT: batch(number)}).wait()
    disk.arm(Fault(0, errno.EIO, ops=frozenset({"create"})))
    with pytest.raises(IoFault):
        store.flush()
    for number in range(3, 30):
        store.put({SLOT: batch(number)}).wait()
    store.flush()
    store.maintain()
    assert set(look(store).bundles) == set(range(30))
    assert set(look(open_store(after_power_cut(raw), ROOMY)).bundles) == set(range(30))


@pytest.mark.parametrize("error", [IoFault("no cursor"), StorageFull("wal/quiver.wal.cursor")])
def test_b_c_the_cursor_fails_and_the_segment_is_there_once(
    error: QuiverError, monkeypatch: pytest.MonkeyPatch
) -> None:
    """b, c: an error behind the segment's write left it invisible, or doubled by replay."""
    failed = []

    def fail(*_: object) -> None:
        failed.append(1)
        raise error

    monkeypatch.setattr("quiver.upkeep.sealing.write_cursor", fail)
    raw = MemoryDisk()
    store = opened(raw, config())
    a = store.subscribe("a")
    for number in range(20):
        store.put({SLOT: batch(number)}).wait()
    assert failed
    held = [a.next_bundle() for _ in range(21)]
    shown = [number_of(dict(bundle.items())) for bundle in held if bundle is not None]
    assert shown == list(range(20))
    assert set(look(open_store(after_power_cut(raw), config())).bundles) == set(range(20))


def test_d_positions_go_on_when_some_log_files_are_gone() -> None:
    """d: positions were summed from 0 after a purge, so recovery read the wrong places."""
    raw = MemoryDisk(record=False)
    store = opened(raw, config(segment={"target_size": "3KiB"}))
    for number in range(20):
        store.put({SLOT: batch(number)}).wait()
    raw.locked.clear()
    log = read_log(Disk(raw), layout_hash=None)
    assert log.files[0].header.position_start > 0
    assert len(log.files) > 1
    for before, after in zip(log.files, log.files[1:], strict=False):
        assert after.header.position_start == before.position_end
    again = opened(raw, config(segment={"target_size": "3KiB"}))
    assert set(look(again).bundles) == set(range(20))
    for number in range(20, 40):
        again.put({SLOT: batch(number)}).wait()
    raw.locked.clear()
    assert set(look(opened(raw, config(segment={"target_size": "3KiB"}))).bundles) == set(range(40))


def test_e_what_is_dropped_for_room_is_dropped_for_good() -> None:
    """e: a cleanup on the way of a put left progress that pointed at deleted files, for ever."""
    settings = config(reserve=0, retention={"size_cap": "80KiB", "size_cap_policy": "drop_oldest"})
    raw = MemoryDisk()
    store = opened(raw, settings)
    store.subscribe("a")
    number = 0
    while not store.status().losses:
        store.put({SLOT: batch(number)}).wait()
        store.maintain()
        number += 1
        assert number < 2000
    again = open_store(after_power_cut(raw), settings)
    a = again.subscribe("a")
    seen = []
    while (bundle := a.next_bundle()) is not None:
        seen.append(number_of(dict(bundle.items())))
        bundle.ack()
    assert seen[-1] == number - 1
    assert a.pending_bundle_count == 0
    a.flush()
    again.flush()
    again.maintain()
    assert again.segment_sequences() == [], "cleanup is stuck"


def test_f_a_read_that_fails_gives_the_claim_back() -> None:
    """f: after a failed read nobody got the bundle any more."""
    raw = MemoryDisk(record=False)
    first = opened(raw)
    first.subscribe("a")
    first.put({SLOT: batch(7)}).wait()
    first.close()
    disk = FaultyDisk(raw)
    store = opened(disk)
    a = store.subscribe("a")
    disk.arm(Fault(0, errno.EIO, ops=frozenset({"pread"})))
    with pytest.raises(IoFault):
        a.next_bundle()
    bundle = a.next_bundle()
    assert bundle is not None
    assert number_of(dict(bundle.items())) == 7


def test_g_who_is_away_loses_nothing() -> None:
    """g: known subscribers that had not come back yet did not hold their data."""
    raw = MemoryDisk(record=False)
    first = opened(raw)
    first.register("away")
    first.close()
    second = opened(raw)
    here = second.subscribe("here")
    for number in range(5):
        second.put({SLOT: batch(number)}).wait()
    while (bundle := here.next_bundle()) is not None:
        bundle.ack()
    here.flush()
    second.flush()
    second.maintain()
    second.close()
    third = opened(raw)
    assert third.subscribe("away").pending_bundle_count == 5


def test_h_many_threads_and_what_a_segment_covers() -> None:
    """h: the cursor could cover an entry that was in no segment yet."""
    raw = MemoryDisk()
    store = opened(raw, config(segment={"target_size": "3KiB"}))

    def put(first: int) -> None:
        for number in range(first, first + 25):
            store.put({SLOT: batch(number)}).wait()

    threads = [threading.Thread(target=put, args=(first,)) for first in (0, 100, 200, 300)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = {first + n for first in (0, 100, 200, 300) for n in range(25)}
    again = open_store(after_power_cut(raw), config(segment={"target_size": "3KiB"}))
    assert set(look(again).bundles) == wanted


def test_i_a_segment_never_holds_more_than_a_bitmap_can() -> None:
    """i: with more than 65,536 bundles in a segment the progress file could not be read."""
    with pytest.raises(ConfigError, match="max_bundles"):
        config(segment={"max_bundles": MAX_BUNDLES_PER_SEGMENT + 1})
    store = opened(MemoryDisk(record=False), config(segment={"max_bundles": 3}))
    refs = [store.put({SLOT: batch(0)}).wait().ref for _ in range(7)]
    assert max(ref.bundle_index for ref in refs) == 2
    assert {ref.segment_seq for ref in refs} == {0, 1, 2}


def test_j_dictionaries_stay_as_they_were_sent() -> None:
    """j: one dictionary, sent often enough, came back with wider keys, or as plain text."""
    values = pa.array([f"value {n}" for n in range(100)])
    coded = pa.DictionaryArray.from_arrays(pa.array(range(100), pa.int8()), values)
    nested = pa.ListArray.from_arrays(pa.array([0, 50, 100], pa.int32()), coded)
    sent = [
        pa.record_batch({"d": coded}),
        pa.record_batch({"d": nested}),
        pa.record_batch({"d": pa.array(["x", "y"]).dictionary_encode()}),
    ]
    raw = MemoryDisk(record=False)
    roomy = Config.load(env={}, reserve=0)
    store = opened(raw, roomy)
    refs = [(store.put({SLOT: one}).wait().ref, one) for _ in range(40) for one in sent]
    store.close()
    again = opened(raw, roomy)
    for ref, one in refs:
        assert again.read(ref)[SLOT].equals(one, check_metadata=True)
        assert again.read(ref)[SLOT].schema == one.schema


def test_k_a_partial_segment_is_reported_once() -> None:
    """k: a half-written file stayed where it was and was reported at every start."""
    raw = MemoryDisk(record=False)
    store = opened(raw)
    store.put({SLOT: batch(1)}).wait()
    store.close()
    files = meaningful(raw.image())
    partial = files["segments/0000000000000000.qseg"][:900]
    files["segments/0000000000000005.qseg"] = partial
    files["segments/0000000000000006.qseg.tmp"] = partial
    again = MemoryDisk.from_image(files)
    first = opened(again)
    assert len(first.report.quarantined) == 1
    first.close()
    assert not any(path.endswith(".tmp") for path in again.image())
    second = opened(again)
    assert not second.report.quarantined
    assert not second.report.lost
    assert set(look(second).bundles) == {1}


def test_l_age_is_counted_from_the_put_not_from_the_restart() -> None:
    """l: after a replay the age of data began again, with its new file."""
    settings = config(retention={"max_retain_after_ingestion_hours": 1.0})
    clock = ManualClock()
    raw = MemoryDisk()
    store = opened(raw, settings, clock)
    store.subscribe("a")
    store.put({SLOT: batch(1)}).wait()
    clock.advance(3000)
    again = opened(after_power_cut(raw), settings, clock)
    again.flush()
    assert again.maintain().dropped == 0
    clock.advance(700)
    assert again.maintain().dropped == 1
    assert [loss.reason for loss in again.status().losses]


def test_a_missing_cursor_doubles_nothing() -> None:
    """Seen by running it: without its cursor the crate replays what segments already hold."""
    raw = MemoryDisk(record=False)
    store = opened(raw, config())
    refs = {}
    for number in range(20):
        refs[number] = store.put({SLOT: batch(number)}).wait().ref
    files = meaningful(raw.image())
    assert files.pop("wal/quiver.wal.cursor")
    again = open_store(MemoryDisk.from_image(files), config())
    assert look(again).bundles == refs
