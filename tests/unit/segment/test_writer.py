"""Sealing a segment: laid out as documented, and there whole or not at all."""

from __future__ import annotations

import errno
import struct
import zlib
from contextlib import suppress
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.disk.disk import Disk
from quiver.errors import Poisoned, QuiverError, StorageFull
from quiver.format.segment.guard import SEAL_SIZE, STRIPE, decode_seal
from quiver.segment import SegmentReader, load_info, segment_path, write_segment
from tests.support.batches import batches, dictionary, same, zoo
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.segments import memory_disk, open_segment

PATH = segment_path(7)
NUMBERS = pa.record_batch({"n": [1, 2, 3]})


def keyed(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"d": dictionary([0, None], pa.array(values), pa.int8())})


SOME = [{1: NUMBERS, 2: keyed("x")}, {}, {2: keyed("y"), 1: NUMBERS.slice(0, 0)}, {2: keyed("x")}]


def test_the_layout_is_the_documented_one() -> None:
    """Streams on 64 bytes with zeros between, the tables with their guard before and behind
    them, footer, trailer."""
    disk = memory_disk()
    info = write_segment(disk, open_segment(SOME), {1: "Logs"})
    data = disk.read(PATH)
    assert info.file_bytes == len(data)
    size, magic, crc = struct.unpack("<I8sI", data[-16:])
    assert (size, magic, crc) == (34, b"QUIVER\0S", zlib.crc32(data[:-4]))
    version, streams, bundles, dir_at, dir_len, man_at, man_len = struct.unpack(
        "<HIIQIQI", data[-50:-16]
    )
    assert (version, streams, bundles) == (1, 3, 4)
    assert man_at == dir_at + dir_len
    seal = decode_seal(data[-50 - SEAL_SIZE : -50])
    assert seal is not None
    assert (seal.directory_offset, seal.directory_length) == (dir_at, dir_len)
    guard = data[seal.back_offset : -50]
    assert seal.back_offset == man_at + man_len + STRIPE
    assert data[seal.front_offset : dir_at] == guard
    assert len(guard) == seal.sums_length + SEAL_SIZE
    directory = pa.ipc.open_file(data[dir_at : dir_at + dir_len]).read_all().to_pylist()
    end = 0
    for row in directory:
        start = row["byte_offset"]
        assert start == -(-end // 64) * 64
        assert data[end:start] == bytes(start - end)
        end = start + row["byte_length"]
    assert seal.front_offset == end
    assert [row["slot_name"] for row in directory] == ["Logs", None, None]
    assert [row["chunk_count"] for row in directory] == [2, 2, 1]


def test_each_stream_opens_with_plain_arrow() -> None:
    """No Quiver is needed to read the data: the directory says where each Arrow file is."""
    bundles = [{1: batch} for batch in zoo().values()]
    disk = memory_disk()
    write_segment(disk, open_segment(bundles), {})
    data = disk.read(PATH)
    reader = SegmentReader.open(disk, 7)
    streams = {
        entry.stream_id: pa.ipc.open_file(data[entry.byte_offset :][: entry.byte_length])
        for entry in reader.streams
    }
    for index, bundle in enumerate(bundles):
        (ref,) = reader.slot_refs(index)
        same(streams[ref.stream_id].get_batch(ref.chunk_index), bundle[1])


def test_changed_dictionaries_go_to_another_stream() -> None:
    """An Arrow file has one dictionary per field: key widths and values stay as sent."""
    disk = memory_disk()
    write_segment(disk, open_segment([{2: keyed(*v)} for v in ("x", "y", "x", "xy")]), {})
    reader = SegmentReader.open(disk, 7)
    assert [reader.slot_refs(index)[0].stream_id for index in range(4)] == [0, 1, 0, 2]
    for index, values in enumerate(("x", "y", "x", "xy")):
        same(reader.read(index)[2], keyed(*values))


@given(st.lists(st.dictionaries(st.integers(0, 63), batches(), max_size=3), max_size=4))
def test_any_bundles_come_back(bundles: list[dict[int, pa.RecordBatch]]) -> None:
    """Whatever was appended is read from the file, value for value."""
    disk = memory_disk()
    info = write_segment(disk, open_segment(bundles), {})
    assert info == load_info(disk, 7)
    reader = SegmentReader.open(disk, 7)
    assert len(reader) == len(bundles)
    for index, bundle in enumerate(bundles):
        found = reader.read(index)
        assert found.keys() == bundle.keys()
        for slot, batch in bundle.items():
            same(found[slot], batch)


def test_the_info_says_what_was_written() -> None:
    """Counts, bytes, first and last sequence and time: a start reads no more than that."""
    segment = open_segment(SOME)
    info = write_segment(memory_disk(), segment, {})
    metas = [segment.meta(index) for index in range(4)]
    assert (info.seq, info.bundle_count) == (7, 4)
    assert info.rows == sum(meta.rows for meta in metas)
    assert info.nbytes == segment.nbytes
    assert (info.first_sequence, info.last_sequence) == (100, 103)
    assert (info.first_ts, info.last_ts) == (metas[0].ingestion_ts_ns, metas[3].ingestion_ts_ns)


def test_a_name_is_given_only_to_what_is_on_the_disk() -> None:
    """Write, fsync, rename, directory fsync, read-only: in this order."""
    raw = FaultyDisk(MemoryDisk())
    disk = Disk(raw)
    disk.mkdir("segments")
    start = len(raw.calls)
    write_segment(disk, open_segment(SOME), {})
    names = [op for op, _ in raw.calls[start:] if op not in ("unlink", "close")]
    assert names == ["create", "pwritev", "fsync", "rename", "fsync_dir", "chmod"]


@pytest.mark.parametrize(
    "kind", [Fault(0, errno.EIO), Fault(0, errno.ENOSPC), Fault(0, None, short=True)]
)
def test_the_nth_call_fails(kind: Fault) -> None:
    """Whichever call fails: a typed error, and a segment is there whole or not at all.

    A temporary file stays only where nothing may be written any more.
    """
    counting = FaultyDisk(MemoryDisk())
    counting.mkdir("segments")
    write_segment(Disk(counting), open_segment(SOME), {})
    for number in range(len(counting.calls) - 1):
        memory = MemoryDisk()
        memory.mkdir("segments")
        raw = FaultyDisk(memory, replace(kind, at=number))
        disk = Disk(raw)
        with suppress(QuiverError):
            write_segment(disk, open_segment(SOME), {})
        raw.heal()
        names = {name.rpartition(".")[2] for name in memory.image()}
        assert "tmp" not in names or disk.poison.cause is not None or raw.fired[0][0] == "unlink"
        if "qseg" in names:
            same(SegmentReader.open(disk, 7).read(0)[1], NUMBERS)


def test_a_full_disk_leaves_nothing_and_can_be_tried_again() -> None:
    """ENOSPC is for now: the segment is still in memory, and fits once there is room."""
    memory = MemoryDisk()
    memory.mkdir("segments")
    raw = FaultyDisk(memory, Fault(0, errno.ENOSPC, ops=frozenset({"pwritev"}), short=True))
    disk = Disk(raw)
    segment = open_segment(SOME)
    with pytest.raises(StorageFull):
        write_segment(disk, segment, {})
    assert disk.listdir("segments") == []
    write_segment(disk, segment, {})
    same(SegmentReader.open(disk, 7).read(0)[1], NUMBERS)


def test_a_failed_fsync_gives_no_name() -> None:
    """Nobody knows what the disk holds then: poisoned, and the log keeps the bundles."""
    memory = MemoryDisk()
    memory.mkdir("segments")
    disk = Disk(FaultyDisk(memory, Fault(0, errno.EIO, ops=frozenset({"fsync"}))))
    with pytest.raises(Poisoned):
        write_segment(disk, open_segment(SOME), {})
    assert PATH not in memory.image()


def test_a_left_over_temporary_file_is_no_hindrance() -> None:
    """A crash while writing leaves one; the next try starts over."""
    disk = memory_disk({PATH + ".tmp": b"half of something"})
    write_segment(disk, open_segment(SOME), {})
    assert disk.listdir("segments") == [PATH.rpartition("/")[2]]
