"""Reading sealed segments: zero-copy, projected, in either mode, and never fooled."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from quiver.disk.disk import Disk
from quiver.disk.posix import PosixDisk
from quiver.errors import (
    Damage,
    IoFault,
    SegmentBadMagic,
    SegmentChecksum,
    SegmentDamage,
    SegmentInvalidIpc,
    SegmentTruncated,
    SlotNotInBundle,
    StreamNotFound,
    UnknownBundle,
    UnsupportedVersion,
)
from quiver.format.arrow.ipc import parse_stream
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.format.segment.file import Footer, SegmentSummary, StreamEntry, encode_directory
from quiver.format.segment.manifest import SlotRef, encode_manifest
from quiver.segment import OpenSegment, SegmentReader, load_info, segment_path, write_segment
from quiver.segment.reader import MAX_PROJECTIONS, ReadMode
from tests.support.batches import dictionary, same, zoo
from tests.support.segments import memory_disk, meta_of, open_segment, slots_of

RUST = Path(__file__).parents[2] / "fixtures" / "rust"
PATH = segment_path(7)
MODES: list[ReadMode] = ["mmap", "pread"]
NUMBERS = pa.record_batch({"n": [1, 2, 3], "m": [4, 5, 6], "t": ["a", "b", None]})
KEYED = pa.record_batch({"d": dictionary([0, None, 1], pa.array(["x", "y"]), pa.int8())})


@pytest.fixture
def posix(tmp_path: Path) -> Disk:
    disk = Disk(PosixDisk(str(tmp_path / "store")))
    disk.mkdir("")
    disk.mkdir("segments")
    return disk


def small() -> bytes:
    """A small segment with everything that a segment can have."""
    disk = memory_disk()
    segment = open_segment([{1: NUMBERS, 2: KEYED}, {}, {2: KEYED.slice(0, 0)}])
    slots = slots_of({5: NUMBERS.slice(1)})
    meta = meta_of(slots, 200, key="key", attributes={"a": "b"}, event_time=(1, 2))
    segment.append(slots, meta)
    write_segment(disk, segment, {1: "Logs"})
    return disk.read(PATH)


SMALL = small()


def resealed(data: bytes) -> bytes:
    """With a good checksum again: as a faulty or hostile writer would leave it."""
    return data[:-4] + struct.pack("<I", zlib.crc32(data[:-4]))


def opened(data: bytes, *, verify: bool = True, mode: ReadMode = "mmap") -> SegmentReader:
    return SegmentReader.open(memory_disk({PATH: data}), 7, mode=mode, verify=verify)


@pytest.mark.parametrize("mode", MODES)
def test_everything_comes_back(posix: Disk, mode: ReadMode) -> None:
    """Each kind of batch, from a real file, mapped or read, with its metadata."""
    bundles = [{3: batch, 40: NUMBERS} for batch in zoo().values()]
    segment = open_segment(bundles)
    info = write_segment(posix, segment, {})
    reader = SegmentReader.open(posix, 7, mode=mode)
    assert reader.info == info == load_info(posix, 7)
    for index, bundle in enumerate(bundles):
        found = reader.read(index)
        assert list(found) == [3, 40]
        same(found[3], bundle[3])
        assert reader.meta(index) == segment.meta(index)


def test_batches_lie_in_the_mapping(posix: Disk) -> None:
    """Nothing is copied: arrays are where the file is mapped, aligned as Arrow wants them."""
    write_segment(posix, open_segment([{1: NUMBERS}, {1: NUMBERS}]), {})
    reader = SegmentReader.open(posix, 7, mode="mmap")
    mapping = reader.source.mapping
    assert mapping is not None
    holder = mapping()
    assert holder is not None
    view = holder.view
    for column in reader.read(1)[1].columns:
        for part in column.buffers():
            if part is not None:
                assert view.address <= part.address < view.address + view.size
                assert part.address % 8 == 0


def test_a_mapping_lives_as_long_as_a_batch(posix: Disk) -> None:
    """Reader gone, file deleted: a batch in hand stays whole, and then the mapping goes."""
    write_segment(posix, open_segment([{1: NUMBERS}]), {})
    reader = SegmentReader.open(posix, 7, mode="mmap")
    mapping, batch = reader.source.mapping, reader.read(0)[1]
    del reader
    posix.unlink(PATH)
    same(batch, NUMBERS)
    assert mapping is not None
    assert mapping() is not None
    del batch
    assert mapping() is None


@pytest.mark.parametrize("mode", MODES)
def test_slots_and_columns_are_chosen(mode: ReadMode) -> None:
    """Those asked for in the order asked for; other slots and columns aren't read."""
    data = memory_disk()
    write_segment(data, open_segment([{1: NUMBERS, 2: KEYED, 3: NUMBERS}]), {})
    reader = SegmentReader.open(data, 7, mode=mode)
    assert list(reader.read(0, [2, 9])) == [2]
    found = reader.read(0, [1, 3], {1: ["t", "none", "n"], 3: ["m"]})
    same(found[1], NUMBERS.select(["t", "n"]))
    same(found[3], NUMBERS.select(["m"]))
    same(reader.read(0, [1], {1: ["n", "n"]})[1], NUMBERS.select([0, 0]))
    assert reader.read(0, [1], {1: []})[1].num_rows == 3
    same(reader.read_slot(0, 2, ["d"]), KEYED)
    assert list(reader._readers) == [2 - 1, 0, 2]


def test_columns_not_asked_for_are_not_inflated() -> None:
    """A projection reads its columns only: a broken one beside them goes unnoticed."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    batch = pa.record_batch({"good": list(range(500)), "bad": [7] * 500})
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    slot = EncodedSlot(1, b"f" * 32, parse_stream(sink.getvalue(), max_bytes=1 << 20))
    segment = OpenSegment(7)
    segment.append([slot], BundleMeta())
    disk = memory_disk()
    write_segment(disk, segment, {})
    data = disk.read(PATH)
    magic = b"\x28\xb5\x2f\xfd"
    second = data.index(magic, data.index(magic) + 4)
    reader = opened(resealed(data[:second] + b"XXXX" + data[second + 4 :]))
    same(reader.read(0, None, {1: ["good"]})[1], batch.select(["good"]))
    with pytest.raises(SegmentInvalidIpc):
        reader.read(0)


def test_projections_are_kept_but_not_without_end() -> None:
    """The same columns again cost nothing; very many choices don't fill the memory."""
    names = [f"c{number}" for number in range(MAX_PROJECTIONS + 5)]
    batch = pa.record_batch({name: [number] for number, name in enumerate(names)})
    disk = memory_disk()
    write_segment(disk, open_segment([{1: batch}]), {})
    reader = SegmentReader.open(disk, 7)
    for name in [*names, *names]:
        same(reader.read(0, None, {1: [name]})[1], batch.select([name]))
    assert len(reader._projected) == MAX_PROJECTIONS


@pytest.mark.parametrize("mode", MODES)
def test_many_threads_read_at_once(posix: Disk, mode: ReadMode) -> None:
    """One reader serves all: dictionaries too, which Arrow loads at the first read."""
    bundles = [{1: NUMBERS.slice(n % 3), 2: KEYED.slice(n % 2)} for n in range(40)]
    write_segment(posix, open_segment(bundles), {})
    for _ in range(5):
        reader = SegmentReader.open(posix, 7, mode=mode)

        def check(index: int, reader: SegmentReader = reader) -> None:
            found = reader.read(index, None, {1: ["m"]} if index % 2 else None)
            same(found[1], bundles[index][1].select(["m"]) if index % 2 else bundles[index][1])
            same(found[2], bundles[index][2])

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(check, [*range(40)] * 5))


def test_a_bundle_can_be_taken_over() -> None:
    """Encoded again for another store: same slots, fingerprints and values."""
    reader = opened(SMALL)
    first, second = reader.encoded(0)
    assert (first.slot, second.slot) == (1, 2)
    same(first.batch.decode(), NUMBERS)
    same(second.batch.decode(), KEYED)
    assert first.fingerprint == slots_of({1: NUMBERS})[0].fingerprint


def test_a_slot_that_the_bundle_lacks() -> None:
    """Asked for one slot that must be there: an error of its own."""
    reader = opened(SMALL)
    with pytest.raises(SlotNotInBundle):
        reader.read_slot(0, 63)
    with pytest.raises(UnknownBundle):
        reader.read(4)


@pytest.mark.parametrize("mode", MODES)
def test_every_truncation_is_detected(mode: ReadMode) -> None:
    """Cut at any byte, a segment doesn't open; not for a start either."""
    for length in range(len(SMALL)):
        disk = memory_disk({PATH: SMALL[:length]})
        expected = SegmentTruncated if length < 50 else SegmentDamage
        with pytest.raises(expected):
            SegmentReader.open(disk, 7, mode=mode)
        with pytest.raises(expected):
            load_info(disk, 7)


def test_every_flipped_byte_is_detected() -> None:
    """One byte changed anywhere: bad magic in the magic, a checksum everywhere else."""
    data = bytearray(SMALL)
    magic = range(len(SMALL) - 12, len(SMALL) - 4)
    for position in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            data[position] ^= flip
            with pytest.raises(SegmentBadMagic if position in magic else SegmentChecksum):
                opened(bytes(data))
            data[position] ^= flip


@pytest.mark.parametrize("mode", MODES)
def test_a_start_survives_every_flipped_byte(mode: ReadMode) -> None:
    """Without a checksum, a changed byte gives a typed error or other values, no more."""
    data = bytearray(SMALL)
    errors = []
    for position in range(len(data)):
        data[position] ^= 0xFF
        disk = memory_disk({PATH: bytes(data)})
        try:
            load_info(disk, 7)
            SegmentReader.open(disk, 7, mode=mode, verify=False)
        except Damage as error:
            errors.append(error)
        data[position] ^= 0xFF
    assert errors
    assert all(error.details["file"] == PATH and PATH in str(error) for error in errors)


def test_appended_bytes_are_detected() -> None:
    """Something behind the trailer means that it is not one any more."""
    with pytest.raises(SegmentBadMagic):
        opened(SMALL + b"more")


def test_a_newer_version_is_not_damage_to_be_put_aside() -> None:
    """Its own type, so that nobody quarantines what a newer Quiver can read."""
    data = bytearray(SMALL)
    data[-50] = 2
    with pytest.raises(UnsupportedVersion):
        opened(resealed(bytes(data)))
    assert not issubclass(UnsupportedVersion, SegmentDamage)


def test_a_file_under_another_segments_name() -> None:
    """Copied or renamed by hand: its bundles would be taken for others."""
    disk = memory_disk({segment_path(8): SMALL})
    for look in (load_info, SegmentReader.open):
        with pytest.raises(SegmentDamage, match="segment 7"):
            look(disk, 8)


def test_a_file_that_is_not_there() -> None:
    """Not damage either: the caller knows best what it means."""
    with pytest.raises(FileNotFoundError):
        SegmentReader.open(memory_disk(), 7)
    with pytest.raises(FileNotFoundError):
        load_info(memory_disk(), 7)


@pytest.mark.parametrize("mode", MODES)
def test_a_file_that_is_empty(posix: Disk, mode: ReadMode) -> None:
    """It can't even be mapped, and is still just a truncated segment."""
    posix.create(PATH).close()
    with pytest.raises(SegmentTruncated):
        SegmentReader.open(posix, 7, mode=mode)
    with pytest.raises(SegmentTruncated):
        load_info(posix, 7)


Change = Callable[[StreamEntry], StreamEntry]


def hostile(
    change: Change = lambda entry: entry,
    refs: list[SlotRef] | None = None,
    stream: Callable[[bytes], bytes] = lambda data: data,
) -> bytes:
    """A segment of one bundle with a good checksum, and a lie in it."""
    with_one = memory_disk()
    write_segment(with_one, open_segment([{1: NUMBERS}]), {})
    reader = SegmentReader.open(with_one, 7)
    entry = reader.streams[0]
    streams = stream(with_one.read(PATH)[: entry.byte_length])
    directory = encode_directory([change(entry)], SegmentSummary(1, 3, 1))
    manifest = encode_manifest([(refs or reader.slot_refs(0), reader.meta(0))])
    parts = [streams, *map(bytes, (*directory.buffers, *manifest.buffers))]
    at = len(streams)
    footer = Footer(1, 1, at, directory.size, at + directory.size, manifest.size)
    data = b"".join(parts)
    return data + footer.encode(zlib.crc32(data))


def altered(**values: Any) -> Change:
    def change(entry: StreamEntry) -> StreamEntry:
        fields = {name: getattr(entry, name) for name in StreamEntry.__slots__}
        return StreamEntry(**(fields | values))

    return change


def test_the_honest_one_is_read() -> None:
    """The maker of liars makes a good segment when told no lie."""
    same(opened(hostile()).read(0)[1], NUMBERS)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("data", "error"),
    [
        (hostile(refs=[SlotRef(1, 5, 0)]), StreamNotFound),
        (hostile(refs=[SlotRef(1, 2**32 - 1, 0)]), StreamNotFound),
        (hostile(refs=[SlotRef(1, 0, 1)]), SegmentInvalidIpc),
        (hostile(refs=[SlotRef(1, 0, 2**32 - 1)]), SegmentInvalidIpc),
        (hostile(altered(byte_offset=2**63)), SegmentTruncated),
        (hostile(altered(byte_offset=2**64 - 1, byte_length=2**64 - 1)), SegmentTruncated),
        (hostile(altered(byte_length=2**40)), SegmentTruncated),
        (hostile(altered(byte_length=0)), SegmentInvalidIpc),
        (hostile(altered(byte_length=17)), SegmentInvalidIpc),
        (hostile(altered(byte_offset=1, byte_length=100)), SegmentInvalidIpc),
        (hostile(altered(chunk_count=2**32 - 1)), SegmentInvalidIpc),
        (hostile(altered(chunk_count=0)), SegmentInvalidIpc),
        (hostile(stream=lambda data: bytes(len(data))), SegmentInvalidIpc),
        (hostile(stream=lambda data: data[:-10] + b"\xff\xff\xff\x7f" + data[-6:]),
         SegmentInvalidIpc),
    ],
)  # fmt: skip
def test_a_liar_with_a_good_checksum(data: bytes, error: type[Damage], mode: ReadMode) -> None:
    """Numbers out of bounds are refused with a type of their own, before memory is taken."""
    before = pa.total_allocated_bytes()
    with pytest.raises(error):
        opened(data, mode=mode).read(0)
    assert pa.total_allocated_bytes() - before < 1 << 20


@pytest.mark.parametrize("mode", MODES)
def test_no_byte_of_a_stream_makes_arrow_fall(mode: ReadMode) -> None:
    """A stream with any byte changed and a good checksum: an error, or some batch."""
    end = SegmentReader.open(memory_disk({PATH: hostile()}), 7).streams[0].byte_length
    data = bytearray(hostile())
    for position in range(end):
        data[position] ^= 0xFF
        with suppress(SegmentInvalidIpc, pa.ArrowInvalid, pa.ArrowIndexError):
            opened(resealed(bytes(data)), mode=mode).read(0)[1].validate(full=True)
        data[position] ^= 0xFF


def test_a_disk_that_fails_is_not_damage(posix: Disk, monkeypatch: pytest.MonkeyPatch) -> None:
    """EIO while reading is the disk's error and says nothing about the file."""
    write_segment(posix, open_segment([{1: NUMBERS}]), {})
    reader = SegmentReader.open(posix, 7, mode="pread")

    def fail(size: int, offset: int) -> bytes:
        raise IoFault("read failed")

    monkeypatch.setattr(
        "quiver.disk.disk.File.pread", lambda self, size, offset: fail(size, offset)
    )
    with pytest.raises(IoFault):
        reader.read(0)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", sorted(path.name for path in RUST.iterdir() if path.is_dir()))
def test_the_rust_crates_segments(name: str, mode: ReadMode) -> None:
    """Every bundle in every segment of the fixtures equals what was ingested.

    The crate widens or decodes dictionaries when it writes a segment, so there values
    count; everywhere else types and metadata count as well.
    """
    disk = Disk(PosixDisk(str(RUST / name / "data")))
    expected = json.loads((RUST / name / "EXPECTED.json").read_text())
    seen = set()
    for bundle in expected["bundles"]:
        if bundle["segment"] is None or bundle["segment_deleted"]:
            continue
        reader = SegmentReader.open(disk, bundle["segment"], mode=mode)
        seen.add(bundle["segment"])
        found = reader.read(bundle["bundle"])
        fingerprints = {s.slot: s.fingerprint.hex() for s in reader.encoded(bundle["bundle"])}
        assert fingerprints == {slot["slot"]: slot["fp"] for slot in bundle["slots"]}
        for slot in bundle["slots"]:
            sent = parse_stream((RUST / name / slot["file"]).read_bytes(), max_bytes=1 << 30)
            if name == "dict":
                assert found[slot["slot"]].to_pylist() == sent.decode().to_pylist()
            else:
                same(found[slot["slot"]], sent.decode())
        meta = reader.meta(bundle["bundle"])
        assert (meta.sequence, meta.ingestion_ts_ns, meta.key) == (None, None, None)
        assert meta.rows == sum(slot["rows"] for slot in bundle["slots"])
        assert (meta.nbytes > 0) == any(slot["rows"] for slot in bundle["slots"])
    assert seen == {int(path.stem) for path in (RUST / name / "data/segments").glob("*.qseg")}


def test_what_the_rust_crate_logged_can_stand_in_a_segment() -> None:
    """Payloads of its log go into our segments byte for byte, and come back."""
    files = sorted(RUST.glob("*/expected/*.arrows"))
    assert len(files) > 100
    segment = OpenSegment(7)
    wanted = []
    for file in files:
        sent = file.read_bytes()
        batch = parse_stream(sent, max_bytes=1 << 30)
        assert b"".join(bytes(part) for part in batch.buffers()) == sent
        segment.append([EncodedSlot(1, b"f" * 32, batch)], BundleMeta())
        wanted.append(pa.ipc.open_stream(sent).read_next_batch())
    disk = memory_disk()
    write_segment(disk, segment, {})
    reader = SegmentReader.open(disk, 7)
    for index, batch in enumerate(wanted):
        same(reader.read(index)[1], batch)
