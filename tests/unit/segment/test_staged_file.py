"""Staged files, and how they become segments."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from quiver.disk.disk import Disk
from quiver.errors import Damage, SegmentChecksum, SegmentDamage
from quiver.format.arrow.ipc import encode_batch
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.format.segment.stage import STAGES, StageLabel, Transaction
from quiver.format.wal.commit import Commit
from quiver.segment.info import SEGMENTS, segment_path
from quiver.segment.open_segment import OpenSegment
from quiver.segment.reader import SegmentReader, load_info
from quiver.segment.staged_file import (
    StageFile,
    check_committed,
    load_stage,
    publish_stage,
    write_stage,
)
from tests.support.memory_disk import MemoryDisk
from tests.support.stores import batch, number_of

SEQ = 5


@pytest.fixture
def disk() -> Disk:
    disk = Disk(MemoryDisk())
    for directory in (STAGES, SEGMENTS):
        disk.mkdir(directory)
    return disk


def staged(disk: Disk, count: int = 3) -> tuple[StageFile, Commit]:
    segment = OpenSegment(0)
    for number in range(count):
        encoded = encode_batch(batch(number))
        slot = EncodedSlot(2, encoded.schema.schema_hash, encoded)
        segment.append([slot], BundleMeta(attributes={"n": str(number)}, rows=3, nbytes=8))
    file = write_stage(disk, segment, StageLabel("app", 7, "a", 0, True, 99), {2: "Logs"})
    return file, Commit("app", 7, 41, 1_000, SEQ, (file.committed(),))


def publish(disk: Disk, commit: Commit) -> None:
    publish_stage(disk, commit, SEQ, commit.files[0])


def check_segment(disk: Disk, file: StageFile, before: bytes) -> None:
    """The staged part is as it was, and the whole is a segment with the commit's numbers."""
    data = disk.read(segment_path(SEQ))
    assert data[: file.length] == before
    with SegmentReader.open(disk, SEQ, mode="pread") as reader:
        assert [number_of(reader.read(index)[2]) for index in range(3)] == [0, 1, 2]
        metas = [reader.meta(index) for index in range(3)]
        assert {(meta.sequence, meta.ingestion_ts_ns) for meta in metas} == {(41, 1_000)}
        assert [dict(meta.attributes) for meta in metas] == [{"n": str(n)} for n in range(3)]
        assert reader.info.transaction == Transaction("app", 7)
        assert (reader.info.first_sequence, reader.info.last_ts) == (41, 1_000)
        assert reader.info.slots == (("Logs", 2),)


def test_a_staged_file_says_what_it_is(disk: Disk) -> None:
    """Scenario: written and looked at again. Guarantee: the same label, size and sums; it is no
    segment, and a segment is no staged file."""
    file, commit = staged(disk)
    found = load_stage(disk, file.path.rpartition("/")[2])
    assert (found.label, found.length, found.crc) == (file.label, file.length, file.crc)
    assert (found.bundles, found.rows) == (3, 9)
    check_committed(disk, file.committed())
    disk.rename(file.path, segment_path(SEQ))
    with pytest.raises(SegmentDamage, match="no segment"):
        load_info(disk, SEQ)
    disk.rename(segment_path(SEQ), file.path)
    publish(disk, commit)
    with pytest.raises(Damage):
        SegmentReader.open_staged(disk, segment_path(SEQ))


def test_it_becomes_a_segment_by_what_is_appended(disk: Disk) -> None:
    """Scenario: a commit is published, twice. Guarantee: one segment, the staged bytes as they
    were, and the same file the second time."""
    file, commit = staged(disk)
    before = disk.read(file.path)
    publish(disk, commit)
    check_segment(disk, file, before)
    once = disk.read(segment_path(SEQ))
    publish(disk, commit)
    assert disk.read(segment_path(SEQ)) == once
    assert disk.listdir(STAGES) == []


@pytest.mark.parametrize(
    "tear",
    [
        lambda tail: b"",
        lambda tail: tail[:100],
        lambda tail: bytes(len(tail)),
        lambda tail: tail[:-1] + b"x",
        lambda tail: b"\xff" * len(tail),
    ],
)
def test_a_torn_end_is_written_again(disk: Disk, tear: Callable[[bytes], bytes]) -> None:
    """Scenario: the power goes while the end is appended, and any of it arrives. Guarantee: the
    staged part is found sound, and publishing it again gives the whole segment."""
    file, commit = staged(disk)
    before = disk.read(file.path)
    publish(disk, commit)
    whole = disk.read(segment_path(SEQ))
    disk.unlink(segment_path(SEQ))
    disk.replace(file.path, before + tear(whole[file.length :]))
    check_committed(disk, file.committed())
    publish(disk, commit)
    check_segment(disk, file, before)
    assert disk.read(segment_path(SEQ)) == whole


def test_a_changed_byte_is_found_before_and_after(disk: Disk) -> None:
    """Scenario: any byte of the staged part changes. Guarantee: a check of it says so; published
    without one, the segment's checksum says so."""
    file, commit = staged(disk)
    before = disk.read(file.path)
    for at in range(0, file.length, 101):
        disk.replace(file.path, before[:at] + bytes([before[at] ^ 4]) + before[at + 1 :])
        with pytest.raises(Damage):
            check_committed(disk, file.committed())
    disk.replace(file.path, before[:20] + bytes([before[20] ^ 4]) + before[21:])
    publish(disk, commit)
    with pytest.raises(SegmentChecksum):
        SegmentReader.open(disk, SEQ, mode="pread")
