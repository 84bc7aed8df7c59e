"""The catalog: which segments there are, kept readers, deletion, quarantine."""

from __future__ import annotations

import errno
from pathlib import Path

import pyarrow as pa
import pytest

from quiver.disk.disk import Disk
from quiver.disk.memory import MemoryDisk
from quiver.disk.posix import PosixDisk
from quiver.errors import (
    BundleGone,
    IoFault,
    SegmentBadMagic,
    SegmentChecksum,
    SegmentTruncated,
    UnsupportedVersion,
)
from quiver.segment import Catalog, SegmentReader, segment_path, write_segment
from quiver.segment.info import parse_name
from quiver.segment.reader import ReadMode
from tests.support.batches import same
from tests.support.faulty import Fault, FaultyDisk
from tests.support.segments import memory_disk, open_segment

NUMBERS = pa.record_batch({"n": list(range(100))})


def store(disk: Disk, *seqs: int) -> Catalog:
    catalog = Catalog(disk)
    for seq in seqs:
        catalog.add(write_segment(disk, open_segment([{1: NUMBERS}], seq=seq), {}))
    return catalog


@pytest.fixture
def posix(tmp_path: Path) -> Disk:
    disk = Disk(PosixDisk(str(tmp_path / "store")))
    disk.mkdir("")
    disk.mkdir("segments")
    return disk


def test_a_scan_finds_what_was_written() -> None:
    """After a restart the catalog is what it was, oldest first."""
    disk = memory_disk()
    before = store(disk, 1, 2, 10)
    after = Catalog(disk)
    assert after.scan() == {}
    assert after.infos == before.infos
    assert [info.seq for info in after.infos] == [1, 2, 10]
    assert after.bytes == before.bytes == sum(info.file_bytes for info in after.infos)
    assert (len(after), 2 in after, 3 in after) == (3, True, False)
    assert after.info(10) == before.info(10)
    assert after.info(3) is None


def test_a_scan_of_nothing() -> None:
    """A new store has no directory yet."""
    catalog = Catalog(Disk(MemoryDisk()))
    assert catalog.scan() == {}
    assert catalog.infos == []


def test_a_scan_tells_damage_and_goes_on() -> None:
    """Partial, foreign and newer files don't stop a start; each is named with its reason."""
    disk = memory_disk()
    store(disk, 1)
    good = disk.read(segment_path(1))
    newer = bytearray(good)
    newer[-50] = 9
    image = {
        segment_path(1): good,
        segment_path(2): good[:100],
        segment_path(3): b"",
        segment_path(4): bytes(newer),
        "segments/README": b"not ours",
        "segments/0000000000000005.qseg.orig": b"not ours",
        "segments/00000000000000006.qseg": b"a number written otherwise",
    }
    catalog = Catalog(memory_disk(image))
    damaged = catalog.scan()
    assert {seq: type(error) for seq, error in damaged.items()} == {
        2: SegmentBadMagic,
        3: SegmentTruncated,
        4: UnsupportedVersion,
    }
    assert [info.seq for info in catalog.infos] == [1]


def test_a_scan_removes_half_written_files_only_if_they_are_ours() -> None:
    """A crash leaves temporary files; a mere look leaves everything as it is."""
    image = {
        segment_path(1) + ".tmp": b"half",
        "segments/quiver.segment.seq.tmp": b"somebody else's",
    }
    disk = memory_disk(image)
    Catalog(disk).scan(clean=False)
    assert len(disk.listdir("segments")) == 2
    Catalog(disk).scan()
    assert disk.listdir("segments") == ["quiver.segment.seq.tmp"]


@pytest.mark.parametrize(
    ("name", "seq"),
    [
        ("0000000000000000.qseg", 0),
        ("0000000000000017.qseg", 17),
        ("18446744073709551615.qseg", 2**64 - 1),
        ("17.qseg", None),
        ("00000000000000017.qseg", None),
        ("0000000000000017.qseg.tmp", None),
        ("\u0660000000000000017.qseg", None),
        ("0000000000000017.QSEG", None),
    ],
)
def test_names(name: str, seq: int | None) -> None:
    """Only what we would have called it is a segment."""
    assert parse_name(name) == seq


def test_a_reader_is_kept_and_its_file_checked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The checksum is looked at on the first read in a process, not on each."""
    disk = memory_disk()
    catalog = store(disk, 1, 2)
    small = Catalog(disk, max_mapped=1)
    small.scan()
    modes = []
    real = SegmentReader.open

    def spy(disk: Disk, seq: int, *, mode: ReadMode, verify: bool) -> SegmentReader:
        modes.append((seq, verify))
        return real(disk, seq, mode=mode, verify=verify)

    monkeypatch.setattr(SegmentReader, "open", spy)
    first = small.reader(1)
    assert small.reader(1) is first
    small.reader(2)
    assert small.reader(1) is not first
    assert modes == [(1, True), (2, True), (1, False)]
    same(catalog.reader(1).read(0)[1], NUMBERS)


def test_damage_shows_when_a_segment_is_first_read() -> None:
    """A start doesn't read the data, so a flip there is found later, and each time."""
    disk = memory_disk()
    store(disk, 1)
    data = bytearray(disk.read(segment_path(1)))
    data[200] ^= 1
    catalog = Catalog(memory_disk({segment_path(1): bytes(data)}))
    assert catalog.scan() == {}
    for _ in range(2):
        with pytest.raises(SegmentChecksum):
            catalog.reader(1)


def test_a_deleted_segment_is_gone(posix: Disk) -> None:
    """From the disk, from the list and for readers; unknown numbers are passed over."""
    catalog = store(posix, 1, 2, 3)
    size = catalog.bytes
    freed = catalog.remove([1, 3, 99])
    assert posix.listdir("segments") == ["0000000000000002.qseg"]
    assert [info.seq for info in catalog.infos] == [2]
    assert catalog.bytes == size - freed
    with pytest.raises(BundleGone):
        catalog.reader(1)
    assert catalog.remove([]) == 0


def test_a_deleted_segment_that_is_still_mapped_is_counted(posix: Disk) -> None:
    """Its bytes are on the disk until the last batch that lies in it is gone."""
    catalog = store(posix, 1, 2)
    size = catalog.bytes
    batch = catalog.reader(1).read(0)[1]
    catalog.remove([1])
    assert catalog.bytes == size
    same(batch, NUMBERS)
    del batch
    assert catalog.bytes < size


def test_a_file_deleted_behind_our_back() -> None:
    """Gone is gone: said so to readers, and fine for a removal."""
    disk = memory_disk()
    catalog = store(disk, 1)
    disk.unlink(segment_path(1))
    with pytest.raises(BundleGone):
        catalog.reader(1)
    catalog.remove([1])
    assert catalog.infos == []


def test_a_removal_that_fails_half_way() -> None:
    """What is unlinked is gone and made durable; the rest stays known, to be tried again."""
    memory = MemoryDisk()
    raw = FaultyDisk(memory, Fault(4, errno.EIO, ops=frozenset({"unlink"})))
    raw.mkdir("segments")
    disk = Disk(raw)
    catalog = store(disk, 1, 2, 3)
    with pytest.raises(IoFault):
        catalog.remove([1, 2, 3])
    assert [info.seq for info in catalog.infos] == [2, 3]
    assert raw.calls[-1] == ("fsync_dir", "segments")
    catalog.remove([2, 3])
    assert catalog.infos == []


def test_a_rebuilt_segment_replaces_its_reader() -> None:
    """Written again after damage, a segment is checked and read anew."""
    disk = memory_disk()
    catalog = store(disk, 1, 2)
    first = catalog.reader(1)
    other = open_segment([{1: NUMBERS.slice(5)}], seq=1)
    catalog.add(write_segment(disk, other, {}))
    assert catalog.reader(1) is not first
    same(catalog.reader(1).read(0)[1], NUMBERS.slice(5))
    assert [info.seq for info in catalog.infos] == [1, 2]


def test_quarantine_keeps_the_file_under_a_name_of_its_own() -> None:
    """Moved aside, never overwritten, recorded with its reason, and out of the list."""
    disk = memory_disk()
    error = SegmentChecksum("for the test")
    for count, name in enumerate(
        ["0000000000000001.qseg", "0000000000000001.qseg.1", "0000000000000001.qseg.2"], 1
    ):
        catalog = store(disk, 1, 2)
        record = catalog.quarantine(1, error)
        assert (record.seq, record.path, record.error) == (1, f"quarantine/{name}", error)
        assert catalog.quarantined == [record]
        assert [info.seq for info in catalog.infos] == [2]
        assert len(disk.listdir("quarantine")) == count
        with pytest.raises(BundleGone):
            catalog.reader(1)


def test_quarantine_survives_a_crash_in_the_middle() -> None:
    """Both directories are synced, the new name first: the file is never nowhere."""
    raw = FaultyDisk(MemoryDisk())
    raw.mkdir("segments")
    catalog = store(Disk(raw), 1)
    catalog.quarantine(1, SegmentChecksum("for the test"))
    moves = [call for call in raw.calls if call[0] in ("rename", "fsync_dir")]
    assert [op for op, _ in moves[-3:]] == ["rename", "fsync_dir", "fsync_dir"]
    assert [path for _, path in moves[-2:]] == ["quarantine", "segments"]
