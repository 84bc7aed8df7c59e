"""Reads that are verified each time: bytes that rot are noticed, and cost what they touch."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiver.disk.disk import Disk, File
from quiver.disk.posix import PosixDisk
from quiver.errors import BundleGone, SegmentChecksum, SegmentDamage
from quiver.format.arrow.ipc import parse_stream
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.segment import OpenSegment, SegmentReader, Segments, segment_path, write_segment
from quiver.segment import segments as segments_module
from quiver.segment import source as source_module
from quiver.segment import verified as verified_module
from quiver.segment.reader import load_info, stream_schemas
from quiver.segment.salvage import salvage
from quiver.segment.verified import MAX_READING_AHEAD, READ_AHEAD
from tests.support.batches import dictionary, same, zoo
from tests.support.segments import memory_disk, meta_of, open_segment, rot, slots_of

PATH = segment_path(7)
OLD = Path(__file__).parents[2] / "golden" / "segment" / "v1.qseg"
NUMBERS = pa.record_batch({"n": [1, 2, 3], "t": ["a", "b", None]})
NUMBER = 0x1122_3344_5566_7700
COLORS = pa.record_batch({"d": dictionary([0, None, 1], pa.array(["x", "y"]), pa.int8())})
SHADES = pa.record_batch({"d": dictionary([1, 0, 1], pa.array(["y", "z"]), pa.int8())})
BUNDLES: list[dict[int, pa.RecordBatch]] = [
    {1: NUMBERS, 2: COLORS},
    {},
    {1: NUMBERS.slice(1), 2: SHADES},
    {2: COLORS.slice(1)},
]


def small() -> OpenSegment:
    segment = open_segment(BUNDLES[:3])
    slots = slots_of(BUNDLES[3])
    meta = meta_of(slots, 200, key="key", attributes={"a": "b"}, event_time=(1, 2))
    segment.append(slots, meta)
    return segment


def written(segment: OpenSegment) -> Disk:
    disk = memory_disk()
    write_segment(disk, segment, {1: "Logs"})
    return disk


def count_preads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The lengths of all reads from here on."""
    lengths: list[int] = []
    pread, pread_into = File.pread, File.pread_into

    def read(self: File, size: int, offset: int) -> bytes:
        lengths.append(size)
        return pread(self, size, offset)

    def read_into(self: File, memory: memoryview, offset: int) -> int:
        lengths.append(len(memory))
        return pread_into(self, memory, offset)

    monkeypatch.setattr(File, "pread", read)
    monkeypatch.setattr(File, "pread_into", read_into)
    return lengths


def paths(reader: SegmentReader, index: int) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every way to the content of a bundle; each returns once it has compared it."""
    bundle = BUNDLES[index]

    def read() -> None:
        assert reader.read(index) == bundle

    def encoded() -> None:
        found = {slot.slot: slot.batch for slot in reader.encoded(index)}
        assert found.keys() == bundle.keys()
        for slot, batch in bundle.items():
            assert found[slot].rows == batch.num_rows
            assert found[slot].decode() == batch

    def one_by_one() -> None:
        for slot, batch in bundle.items():
            name = batch.schema.names[-1]
            assert reader.read_slot(index, slot, [name]) == batch.select([name])

    yield "read", read
    yield "encoded", encoded
    yield "read_slot", one_by_one
    yield "check", lambda: reader.check(index)


class Layout:
    """Which bytes of a small segment belong to what."""

    def __init__(self, segment: OpenSegment) -> None:
        self.reader = SegmentReader.open(written(segment), 7)
        manifest = self.reader._manifest
        self.batches: dict[int, int] = {}
        self.heads: dict[int, set[int]] = {}
        self.dictionaries: dict[int, set[int]] = {}
        users: dict[int, set[int]] = {}
        for index in range(len(self.reader)):
            for at in manifest.places(index):
                chunk = manifest.chunk(index, at)
                users.setdefault(manifest.streams[at], set()).add(index)
                self.batches |= dict.fromkeys(
                    range(chunk.offset, chunk.offset + chunk.length), index
                )
        for entry in self.reader.streams:
            assert entry.head_lengths is not None
            start = entry.byte_offset
            first, whole = entry.head_lengths[0], sum(entry.head_lengths)
            using = users[entry.stream_id]
            self.heads |= dict.fromkeys(range(start, start + whole), using)
            self.dictionaries |= dict.fromkeys(range(start + first, start + whole), using)
        self.streams_end = max(e.byte_offset + e.byte_length for e in self.reader.streams)

    def unreadable(self, position: int) -> set[int]:
        """The bundles that can't be read once this byte is another."""
        if position in self.batches:
            return {self.batches[position]}
        return self.heads.get(position, set())

    def lost(self, position: int) -> set[int]:
        """Those that can't be had in any way."""
        if position in self.batches:
            return {self.batches[position]}
        return self.dictionaries.get(position, set())


LAYOUT = Layout(small())
SIZE = LAYOUT.reader.info.file_bytes
METAS = [LAYOUT.reader.meta(index) for index in range(len(BUNDLES))]


def check_reads(reader: SegmentReader, position: int, *, every: bool = True) -> None:
    expected = LAYOUT.unreadable(position)
    for index in range(len(BUNDLES)):
        for name, path in list(paths(reader, index))[: None if every else 1]:
            if index not in expected:
                path()
                continue
            with pytest.raises(SegmentChecksum) as caught:
                path()
            details: dict[str, Any] = caught.value.details
            assert index in details["bundles"], name
            assert set(details["bundles"]) == expected
            assert (details["segment"], details["file"]) == (7, PATH)
            assert details["offset"] <= position < details["offset"] + 16_384
            assert str(index) in str(caught.value)


def test_every_flipped_byte_costs_the_bundles_it_touches() -> None:
    """Scenario: each byte of a segment flipped in turn, then the file opened, read in every way,
    and salvaged. Guarantee: content that is equal, or SegmentChecksum for the bundles that the
    byte belongs to; in the tables, an error at the open. Salvage loses no more than the
    bundle, and nothing where tables, schema, footer or trailer are hit."""
    good = written(small()).read(PATH)
    refused = set()
    for position in range(SIZE):
        data = bytearray(good)
        data[position] ^= 0xFF
        disk = memory_disk({PATH: bytes(data)})
        try:
            reader = SegmentReader.open(disk, 7, always=True)
        except SegmentDamage:
            assert position >= LAYOUT.streams_end
            refused.add(position)
        else:
            check_reads(reader, position, every=position < LAYOUT.streams_end)
        if LAYOUT.streams_end <= position < SIZE - 200 and position % 7:
            continue  # in the tables one byte of a block is as good as another
        found = salvage(disk, PATH, 7)
        assert found is not None
        assert set(found.lost) == LAYOUT.lost(position), position
        check_salvaged(found.segment, set(found.lost))
    assert refused, "directory and manifest are verified when the file is opened"


def check_salvaged(segment: OpenSegment, lost: set[int]) -> None:
    assert (segment.seq, segment.bundle_count) == (7, len(BUNDLES))
    for index, bundle in enumerate(BUNDLES):
        meta = METAS[index]
        found = segment.read(index)
        assert segment.meta(index).lost is (index in lost)
        if index in lost:
            assert found == {}
            assert segment.meta(index).sequence == meta.sequence
            continue
        assert segment.meta(index) == meta
        assert found == bundle


def test_every_byte_that_rots_while_the_segment_is_open() -> None:
    """Scenario: a sound segment is opened, then a byte of it rots, each in turn. Guarantee: no
    way of reading gives other content; whoever reads the byte gets SegmentChecksum naming
    segment, bundles and offset, and neighbours are read as before."""
    for position in range(LAYOUT.streams_end):
        disk = written(small())
        reader = SegmentReader.open(disk, 7, always=True)
        rot(disk, PATH, position)
        check_reads(reader, position)
        for index in range(len(BUNDLES)):
            assert reader.meta(index) == METAS[index]


def test_tables_that_rot_while_the_segment_is_open() -> None:
    """Scenario: directory, manifest and footer rot behind an open reader. Guarantee: it goes on
    with what it verified; the next one to open the file is told."""
    disk = written(small())
    reader = SegmentReader.open(disk, 7, always=True)
    for position in range(LAYOUT.streams_end, SIZE):
        rot(disk, PATH, position)
    check_reads(reader, SIZE)
    with pytest.raises(SegmentDamage):
        SegmentReader.open(disk, 7, always=True)


def test_verified_once_is_not_verified_again(tmp_path: Path) -> None:
    """Scenario: the same with `mmap`, and with `pread` and `verify: once`: the byte rots after
    the check. Guarantee: none; the other value is served. That is what these settings mean."""
    disk = Disk(PosixDisk(str(tmp_path / "store")))
    disk.mkdir("")
    disk.mkdir("segments")
    write_segment(disk, open_segment([{1: pa.record_batch({"n": [NUMBER]})}]), {})
    file = tmp_path / "store" / PATH
    place = file.read_bytes().index(NUMBER.to_bytes(8, "little"))
    file.chmod(0o600)
    for mode in ("mmap", "pread"):
        reader = SegmentReader.open(disk, 7, mode=mode, verify=True)
        assert not reader.verifies
        with file.open("r+b") as opened:
            opened.seek(place)
            opened.write(b"\x07")
        assert reader.read(0)[1]["n"].to_pylist() == [NUMBER + 7]
        with file.open("r+b") as opened:
            opened.seek(place)
            opened.write(b"\x00")


def test_a_file_without_block_checksums_is_read_from_memory() -> None:
    """Scenario: a segment of 0.1.0 is opened and every byte of it rots afterwards. Guarantee:
    what is read is what was verified; a second open is refused."""
    disk = memory_disk({segment_path(42): OLD.read_bytes()})
    reader = SegmentReader.open(disk, 42, always=True)
    assert reader.held_bytes == len(OLD.read_bytes())
    before = [reader.read(index) for index in range(len(reader))]
    reader = SegmentReader.open(disk, 42, always=True)
    for position in range(reader.held_bytes):
        rot(disk, segment_path(42), position)
    for index, bundle in enumerate(before):
        found = reader.read(index)
        assert found.keys() == bundle.keys()
        for slot, batch in bundle.items():
            same(found[slot], batch)
    with pytest.raises(SegmentDamage):
        SegmentReader.open(disk, 42, always=True)


def test_files_held_in_memory_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: many segments of 0.1.0 are read. Guarantee: readers that hold whole files are
    let go of beyond a number of bytes; one is always kept, however large."""
    data = OLD.read_bytes()
    disk = memory_disk({segment_path(42): data})
    monkeypatch.setattr(segments_module, "MAX_HELD_BYTES", 0)
    segments = Segments(disk)
    segments.found([load_info(disk, 42)])
    segments.reader(42).read(0)
    assert segments.open_readers == 1
    segments.sealed(write_segment(disk, open_segment([{1: NUMBERS}], seq=43), {}))
    segments.reader(43)
    assert segments.open_readers == 2, "the other one holds nothing"


def test_a_start_verifies_the_directory() -> None:
    """Scenario: each byte of the directory flipped, then the look that a start takes. Guarantee:
    SegmentChecksum; 0.1.0 took other numbers for true."""
    disk = written(small())
    seal_start = LAYOUT.streams_end
    info = load_info(disk, 7)
    for position in range(seal_start, SIZE):
        rot(disk, PATH, position)
        with suppress(SegmentDamage):
            assert load_info(disk, 7) == info
        rot(disk, PATH, position)


def test_a_schema_that_rotted_is_not_given_out() -> None:
    """Scenario: the schema's bytes rot, and a store's schemas are asked for. Guarantee: an error
    that names the file, not another schema."""
    for position, using in LAYOUT.heads.items():
        if position in LAYOUT.dictionaries:
            continue
        disk = written(small())
        rot(disk, PATH, position)
        with pytest.raises(SegmentChecksum, match="segments/"):
            list(stream_schemas(disk, 7, ()))
        assert using


def test_neighbours_come_with_one_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: 400 bundles of 2 KiB read one after the other, and then a few of them at random.
    Guarantee: in order it takes few reads of the disk; at random only what is asked for."""
    batches = [pa.record_batch({"n": list(range(number, number + 250))}) for number in range(400)]
    disk = written(open_segment([{1: batch} for batch in batches]))
    reader = SegmentReader.open(disk, 7, always=True)
    lengths = count_preads(monkeypatch)
    for index, batch in enumerate(batches):
        same(reader.read(index)[1], batch)
    total = sum(batch.nbytes for batch in batches)
    assert len(lengths) <= 3 + 2 * total // READ_AHEAD
    lengths.clear()
    reader = SegmentReader.open(disk, 7, always=True)
    lengths.clear()
    for index in (300, 20, 250, 7):
        same(reader.read(index)[1], batches[index])
    assert sum(lengths) < 5 * 4096


def test_what_was_read_ahead_is_verified_too() -> None:
    """Scenario: a byte of a neighbour is rotten when it is read ahead. Guarantee: the error comes
    for that neighbour, when it is asked for."""
    disk = written(open_segment([{1: NUMBERS}] * 10))
    reader = SegmentReader.open(disk, 7, always=True)
    manifest = reader._manifest
    damaged = manifest.chunk(5, manifest.places(5)[0])
    rot(disk, PATH, damaged.offset + damaged.length // 2)
    for index in range(10):
        if index == 5:
            with pytest.raises(SegmentChecksum):
                reader.read(index)
        else:
            same(reader.read(index)[1], NUMBERS)


def test_bytes_read_ahead_are_bounded() -> None:
    """Scenario: more segments are read in order than may keep bytes read ahead. Guarantee: the
    longest unused one lets go of its own, and reads on."""
    disk = memory_disk()
    readers = []
    for seq in range(MAX_READING_AHEAD + 2):
        write_segment(disk, open_segment([{1: NUMBERS}] * 4, seq=seq), {})
        reader = SegmentReader.open(disk, seq, always=True)
        reader.read(0)
        reader.read(1)
        readers.append(reader)
    held = [len(reader._verified._windows) for reader in readers if reader._verified]
    assert held == [0, 0] + [1] * MAX_READING_AHEAD
    same(readers[0].read(2)[1], NUMBERS)


def test_one_column_of_a_large_batch_is_read_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: one column out of eight, of 4 MiB. Guarantee: its blocks are read and verified,
    the others aren't; a rotten byte in another column goes unnoticed, one in this doesn't."""
    batch = pa.record_batch({f"c{n}": [n] * 65_536 for n in range(8)})
    disk = written(open_segment([{1: batch}]))
    reader = SegmentReader.open(disk, 7, always=True)
    lengths = count_preads(monkeypatch)
    same(reader.read_slot(0, 1, ["c5", "c2"]), batch.select(["c5", "c2"]))
    assert sum(lengths) < batch.nbytes // 3
    data = disk.read(PATH)
    places = [data.index(n.to_bytes(8, "little") * 1000) for n in (6, 5)]
    rot(disk, PATH, places[0] + 100_000)
    same(reader.read_slot(0, 1, ["c5"]), batch.select(["c5"]))
    rot(disk, PATH, places[1] + 100_000)
    with pytest.raises(SegmentChecksum):
        reader.read_slot(0, 1, ["c5"])


FILLER = pa.array(range(32_760), pa.int64())  # run ends may be of 16 bits


@pytest.mark.parametrize("name", [name for name in zoo() if "[" not in name])
def test_columns_of_any_type_by_themselves(name: str) -> None:
    """Scenario: a column of each type between two long ones, read by itself. Guarantee: equal,
    whether or not its buffers can be told from the others'."""
    kind = zoo()[name]
    if not kind.num_columns or kind.schema.names != [name]:
        pytest.skip("not one column")
    (column,) = kind.columns
    repeated = pa.concat_arrays([column] * (len(FILLER) // 5 + 1)).slice(0, len(FILLER))
    batch = pa.RecordBatch.from_arrays([FILLER, repeated, FILLER], ["a", "it", "b"])
    reader = SegmentReader.open(written(open_segment([{1: batch}])), 7, always=True)
    same(reader.read_slot(0, 1, ["it"]), batch.select(["it"]))
    same(reader.read_slot(0, 1, ["b", "it"]), batch.select(["b", "it"]))


def test_columns_not_asked_for_are_not_inflated() -> None:
    """Scenario: a compressed batch with a column that can't be inflated, which the producer sent
    so. Guarantee: the other one can be read."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    batch = pa.record_batch({"good": list(range(500)), "bad": [7] * 500})
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    sent = bytearray(sink.getvalue().to_pybytes())
    magic = b"\x28\xb5\x2f\xfd"
    second = sent.index(magic, sent.index(magic) + 4)
    sent[second : second + 4] = b"XXXX"
    slot = EncodedSlot(1, b"f" * 32, parse_stream(bytes(sent), max_bytes=1 << 20))
    segment = OpenSegment(7)
    segment.append([slot], BundleMeta())
    reader = SegmentReader.open(written(segment), 7, always=True)
    same(reader.read_slot(0, 1, ["good"]), batch.select(["good"]))
    with pytest.raises(SegmentDamage):
        reader.read(0)


@pytest.mark.parametrize("sparse_from", [0, 1 << 30])
def test_projections_agree_with_whole_reads(
    sparse_from: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: every kind of batch, each column by itself. Guarantee: the same as out of the
    whole batch, in parts or not."""
    monkeypatch.setattr(verified_module, "SPARSE_FROM", sparse_from)
    batches = list(zoo().values())
    reader = SegmentReader.open(
        written(open_segment([{1: batch} for batch in batches])), 7, always=True
    )
    for index, batch in enumerate(batches):
        for name in dict.fromkeys(batch.schema.names):
            wanted = batch.select(batch.schema.get_all_field_indices(name))
            same(reader.read_slot(index, 1, [name]), wanted)
        assert reader.read_slot(index, 1, []).num_rows == batch.num_rows


@pytest.mark.parametrize("always", [True, False])
def test_descriptors_are_few(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, always: bool) -> None:
    """Scenario: more segments are read by turns than may have a descriptor at a time; then one of
    them is deleted. Guarantee: all are read, few are open, and the deleted one is gone, not
    damaged, unless it is in memory."""
    disk = Disk(PosixDisk(str(tmp_path / "store")))
    disk.mkdir("")
    disk.mkdir("segments")
    monkeypatch.setattr(source_module, "_open_files", source_module._OpenFiles(2))
    before = len(os.listdir("/proc/self/fd"))
    readers = []
    for seq in range(8):
        write_segment(disk, open_segment([{1: NUMBERS}] * 3, seq=seq), {})
        readers.append(SegmentReader.open(disk, seq, always=always))
    for index in range(3):
        for reader in readers:
            same(reader.read(index)[1], NUMBERS)
    assert len(os.listdir("/proc/self/fd")) <= before + 2
    disk.unlink(segment_path(0))
    with pytest.raises(BundleGone) if always else nullcontext():
        same(readers[0].read(0)[1], NUMBERS)
    del readers, reader
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_store_that_is_dropped_is_freed() -> None:
    """Scenario: a disk and a reader of it are dropped without being closed. Guarantee: nothing
    holds them, though the disk's poison knows the reader and the reader the disk."""
    disk = written(small())
    reader = SegmentReader.open(disk, 7, always=True)
    reader.read(0)
    disk.poison.listener = reader  # type: ignore[attr-defined]
    seen = weakref.ref(reader.source)
    del disk, reader
    gc.collect()
    assert seen() is None
