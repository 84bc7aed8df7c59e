"""What is salvaged of files that are damaged in more than one byte, and of files of others."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from quiver.disk.disk import Disk
from quiver.errors import IoFault
from quiver.format.record import LOST_ATTRIBUTE, ProducerStamp
from quiver.format.segment.guard import MAGIC, SEAL_SIZE, decode_seal
from quiver.format.segment.stage import STAGES, StageLabel
from quiver.format.wal.commit import Commit
from quiver.segment import SegmentReader, load_info, segment_path, write_segment
from quiver.segment.info import SEGMENTS
from quiver.segment.open_segment import OpenSegment
from quiver.segment.salvage import Salvaged, salvage
from quiver.segment.staged_file import publish_stage, write_stage
from tests.support.memory_disk import MemoryDisk
from tests.support.segments import memory_disk, meta_of, open_segment, slots_of

PATH = segment_path(7)
GOLDEN = Path(__file__).parents[2] / "golden" / "segment"
RUST = Path(__file__).parents[2] / "fixtures" / "rust" / "basic" / "data"
BUNDLES = [{1: pa.record_batch({"n": list(range(number, number + 50))})} for number in range(40)]
SECTOR = 4096


def whole() -> bytes:
    disk = memory_disk()
    write_segment(disk, open_segment(BUNDLES), {1: "Logs"})
    return disk.read(PATH)


GOOD = whole()
FOOTER = len(GOOD) - 50
found_seal = decode_seal(GOOD[FOOTER - SEAL_SIZE : FOOTER])
assert found_seal is not None
SEAL = found_seal


def damaged(start: int, end: int, data: bytes = GOOD) -> bytes:
    return data[:start] + bytes(byte ^ 0xFF for byte in data[start:end]) + data[end:]


def salvaged(data: bytes, seq: int = 7, path: str = PATH) -> Salvaged | None:
    return salvage(memory_disk({path: data}), path, seq)


def check(found: Salvaged | None, lost: set[int] | None = None) -> None:
    assert found is not None
    assert set(found.lost) == (lost or set())
    for index, bundle in enumerate(BUNDLES):
        assert found.segment.read(index) == ({} if index in found.lost else bundle)


@pytest.mark.parametrize("start", range(SEAL.front_offset, len(GOOD), 777))
def test_a_lost_sector_of_the_tables(start: int) -> None:
    """Scenario: 4 KiB in a row are gone, anywhere from the first guard to the end of the file.
    Guarantee: not a bundle is lost, unless they begin in the streams."""
    check(salvaged(damaged(start, start + SECTOR)))


def test_a_lost_sector_of_the_data() -> None:
    """Scenario: 4 KiB of batches are gone. Guarantee: the bundles in them are lost, their
    neighbours aren't."""
    reader = SegmentReader.open(memory_disk({PATH: GOOD}), 7)
    chunks = [reader._manifest.chunk(index, index) for index in range(len(BUNDLES))]
    start = chunks[5].offset + 10
    hit = {n for n, one in enumerate(chunks) if one.offset < start + SECTOR and n >= 5}
    assert 2 < len(hit) < 20
    found = salvaged(damaged(start, start + SECTOR))
    check(found, hit)
    assert found is not None
    for index in hit:
        meta = found.segment.meta(index)
        assert meta.lost
        assert meta.sequence == reader.meta(index).sequence
        assert meta.attributes.keys() == {LOST_ATTRIBUTE}
        assert (meta.key, meta.rows) == (None, 0)


def test_what_is_salvaged_can_be_written_again() -> None:
    """Scenario: a damaged segment is salvaged and written anew. Guarantee: a sound segment with
    the same refs; salvaged once more, it is the same."""
    reader = SegmentReader.open(memory_disk({PATH: GOOD}), 7)
    start = reader._manifest.chunk(3, 3).offset
    first = salvaged(damaged(start, start + 1))
    check(first, {3})
    assert first is not None
    disk = memory_disk()
    write_segment(disk, first.segment, {1: "Logs"})
    again = SegmentReader.open(disk, 7)
    assert [again.meta(index).lost for index in range(5)] == [False, False, False, True, False]
    for index in range(4, len(BUNDLES)):
        assert again.read(index) == BUNDLES[index]
    assert salvage(disk, PATH, 7) is not None


def test_metadata_comes_along() -> None:
    """Scenario: keys, attributes, store time, producer. Guarantee: as they were."""
    slots = slots_of(BUNDLES[0])
    meta = meta_of(slots, 5, key="k", attributes={"a": "b"}, event_time=(1, 2))
    meta = meta._replace(store_ts_ns=77, producer=ProducerStamp("p", 1, 2))
    segment = OpenSegment(7)
    segment.append(slots, meta)
    disk = memory_disk()
    write_segment(disk, segment, {})
    assert load_info(disk, 7).last_store_ts == 77
    found = salvaged(damaged(len(GOOD), len(GOOD), disk.read(PATH))[:-1])
    assert found is not None
    assert found.segment.meta(0) == meta


def test_too_much_damage() -> None:
    """Scenario: both guards are gone and a table too; the tables in two places that lie over each
    other; nothing but zeros. Guarantee: None, not a guess."""
    both = damaged(SEAL.front_offset, SEAL.directory_offset + 1)
    assert salvaged(damaged(SEAL.back_offset, len(GOOD), both)) is None
    twice = damaged(SEAL.directory_offset, SEAL.directory_offset + 1)
    over = SEAL.directory_offset + 5 * 1024
    assert salvaged(damaged(over, over + 1, twice)) is None
    assert salvaged(bytes(len(GOOD))) is None
    assert salvaged(b"") is None
    assert salvaged(GOOD[:20]) is None


@pytest.mark.parametrize("cut", [1, 4, 16, 17, 50, 60, 120])
def test_a_file_that_was_cut(cut: int) -> None:
    """Scenario: trailer, footer and the second guard are cut off. Guarantee: the first guard is
    found, and nothing is lost."""
    check(salvaged(GOOD[:-cut]))


def test_another_segments_bytes_are_not_taken_for_ours() -> None:
    """Scenario: a file under another's name; a bundle whose data is itself a segment, of the same
    number, in a file whose own guards are gone. Guarantee: None."""
    assert salvaged(GOOD, 8, segment_path(8)) is None
    disk = memory_disk()
    inner = {1: pa.record_batch({"file": [GOOD]})}
    write_segment(disk, open_segment([inner]), {})
    data = bytearray(disk.read(PATH))
    assert data.count(MAGIC) == 4
    for _ in range(2):
        at = data.rindex(MAGIC)
        data[at] ^= 0xFF
    assert salvaged(bytes(data)) is None


@pytest.mark.parametrize("name", ["v1.qseg", "rust"])
def test_files_without_block_checksums(name: str) -> None:
    """Scenario: a segment of 0.1.0 and one of the Rust crate, each byte flipped in turn.
    Guarantee: sound, all of it is there. Damaged, nothing is, but for the trailer, which is
    known but for its checksum."""
    seq = 42 if name == "v1.qseg" else 3
    file = GOLDEN / name if name == "v1.qseg" else RUST / segment_path(3)
    data = file.read_bytes()
    path = segment_path(seq)
    sound = salvaged(data, seq, path)
    assert sound is not None
    reader = SegmentReader.open(memory_disk({path: data}), seq)
    for index in range(len(reader)):
        assert sound.segment.read(index) == reader.read(index)
        assert sound.segment.meta(index) == reader.meta(index)
    for position in [*range(0, len(data) - 16, 37), *range(len(data) - 16, len(data))]:
        found = salvaged(damaged(position, position + 1, data), seq, path)
        known = len(data) - 16 <= position < len(data) - 4
        assert (found is not None) is known, position


def test_a_staged_file_that_became_a_segment() -> None:
    """Scenario: a staged file is published, and any sector of what was appended is lost.
    Guarantee: the segment is salvaged, with the commit's numbers, never the staged part in
    its place; if both of its guards are gone, nothing."""
    disk = Disk(MemoryDisk())
    for directory in (STAGES, SEGMENTS):
        disk.mkdir(directory)
    segment = OpenSegment(0)
    for bundle in BUNDLES:
        slots = slots_of(bundle)
        segment.append(slots, meta_of(slots, 0)._replace(sequence=None, ingestion_ts_ns=None))
    file = write_stage(disk, segment, StageLabel("app", 7, "a", 0, True, 99), {1: "Logs"})
    commit = Commit("app", 7, 41, 1_000, 7, (file.committed(),))
    publish_stage(disk, commit, 7, commit.files[0])
    data = disk.read(PATH)
    for start in range(file.length, len(data), 500):
        found = salvaged(damaged(start, start + SECTOR, data))
        check(found)
        assert found is not None
        assert {found.segment.meta(index).sequence for index in range(40)} == {41}
    assert salvaged(damaged(file.length, len(data), data)) is None


def test_a_disk_that_fails_is_not_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: EIO while salvaging. Guarantee: the disk's error, no bundle called lost."""

    def fail(*_: object) -> bytes:
        raise IoFault("read failed")

    disk = memory_disk({PATH: GOOD})
    monkeypatch.setattr("quiver.disk.disk.File.pread", fail)
    with pytest.raises(IoFault):
        salvage(disk, PATH, 7)
    with pytest.raises(FileNotFoundError):
        salvage(disk, segment_path(99), 99)
