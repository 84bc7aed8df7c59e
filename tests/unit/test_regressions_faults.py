"""Defects that the fault suites found, each in the smallest form it was seen in."""

from __future__ import annotations

import errno
import gc
from typing import Any

import pyarrow as pa
import pytest

from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.errors import StateCorrupt
from quiver.format.crc import crc32
from quiver.format.keys import KeyRecord
from quiver.format.state import decode_state
from quiver.ids import BundleRef
from quiver.segment import SegmentReader, segment_path, write_segment
from quiver.store.store import Store
from tests.support.checkpoint import first_version
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.segments import memory_disk, open_segment

BATCH = pa.record_batch({"n": [1]})


def opened(raw: MemoryDisk, **settings: Any) -> Store:
    return Store(Disk(raw), Config.load(env={}, **settings), where="mem", clock=ManualClock())


def test_slot_names_survive_a_crash_without_a_log() -> None:
    """Without a log nothing wrote the names down before a clean close: segments have them."""
    raw = MemoryDisk()
    store = opened(raw, durability="segment_only")
    ref = store.put({"Logs": BATCH, "Spans": BATCH}).wait().ref
    again = opened(MemoryDisk.from_image(raw.durability().image()), durability="segment_only")
    assert set(again.read(ref)) == {"Logs", "Spans"}


def test_a_log_begun_after_going_without_one_uses_no_sequence_twice() -> None:
    """From segments alone to a log: its first entry comes after all that was ever durable."""
    raw = MemoryDisk(record=False)
    store = opened(raw, durability="segment_only")
    last = [store.put({"Logs": BATCH}).wait().sequence for _ in range(3)][-1]
    store.close()
    logged = opened(raw)
    assert logged.put({"Logs": BATCH}).wait().sequence > last
    logged.close()
    assert len(opened(raw).segments()) == 4


def test_a_store_that_goes_on_without_its_log_keeps_all_of_it() -> None:
    """What only the log had becomes segments, keys and names too; then the log is gone."""
    raw = MemoryDisk(record=False)
    store = opened(raw)
    refs = [store.put({"Logs": BATCH}, key=f"k{n}").wait().ref for n in range(3)]
    raw.locked.clear()
    without = opened(raw, durability="segment_only")
    assert [len(without.read(ref)) for ref in refs] == [1, 1, 1]
    assert without.put({"Logs": BATCH}, key="k1").wait().ref == refs[1]
    assert not any(path.startswith("wal/quiver.wal") for path in raw.image())
    new = without.put({"Logs": BATCH}).wait()
    without.close()
    again = opened(raw)
    assert again.put({"Logs": BATCH}).wait().sequence > new.sequence
    assert again.put({"Logs": BATCH}, key="k2").wait().ref == refs[2]


def test_closing_a_segment_that_was_only_read_never_raises() -> None:
    """A failing close, seen by the garbage collector, used to end in a bare traceback."""
    disk = memory_disk()
    write_segment(disk, open_segment([{1: BATCH}]), {})
    faulty = FaultyDisk(disk.raw, Fault(0, errno.EIO, ops=frozenset({"close"})))
    reader = SegmentReader.open(Disk(faulty), 7, mode="pread")
    assert len(reader) == 1
    del reader
    gc.collect()
    assert faulty.fired


def test_a_damaged_segment_does_not_keep_a_store_without_a_log_shut() -> None:
    """Its keys are looked for at the start, in the manifest: damage there is found then, a copy
    of the file set aside, and what is intact written again: all of it."""
    raw = MemoryDisk(record=False)
    store = opened(raw, durability="segment_only")
    first = store.put({"Logs": BATCH}, key="a").wait().ref
    second = store.put({"Logs": BATCH}, key="b").wait().ref
    files = dict(raw.image())
    path = segment_path(first.segment_seq)
    place = files[path].index(b"attributes")  # the name of a column of the manifest
    files[path] = files[path][:place] + b"?" + files[path][place + 1 :]
    again = opened(MemoryDisk.from_image(files), durability="segment_only")
    assert again.report.quarantined
    assert again.report.lost == ()
    assert set(again.read(first)) == set(again.read(second)) == {"Logs"}


def test_a_checkpoint_with_a_fitting_checksum_is_still_not_believed() -> None:
    """Arrow's own errors, offsets that lead nowhere, values of the wrong kind: StateCorrupt."""
    record = KeyRecord("a key", b"h" * 32, BundleRef(1, 2), 3, 4)
    good = first_version((record,) * 3)
    assert decode_state(good).window == (record,) * 3
    refused = 0
    for at in range(40, len(good) - 4):
        for value in (0x00, 0x80, 0xFF):
            body = good[:at] + bytes([value]) + good[at + 1 : -4]
            try:
                decode_state(body + crc32(body).to_bytes(4, "little"))
            except StateCorrupt:
                refused += 1
    assert refused > 100
    for old, new in (
        (b'"subscribers":["a"]', b'"subscribers":[1.2]'),
        (b'"slots":{}', b'"slots":[]'),
    ):
        body = good[:-4].replace(old, new)
        with pytest.raises(StateCorrupt, match="not of type"):
            decode_state(body + crc32(body).to_bytes(4, "little"))
