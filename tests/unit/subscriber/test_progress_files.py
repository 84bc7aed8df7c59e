"""Progress on disk: what is found, kept, removed, and decided about damage."""

from __future__ import annotations

import errno

import pytest

from quiver.disk.disk import Disk
from quiver.errors import IoFault, ProgressCorrupt, UnsupportedVersion
from quiver.format.crc import crc32c
from quiver.format.progress import Progress, SegmentProgress, encode_progress
from quiver.ids import BundleRef
from quiver.subscriber.progress import (
    keep_progress,
    recover,
    remove_leftovers,
    remove_progress,
    scan_progress,
    set_aside,
)
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk

GOOD = Progress(4, {4: SegmentProgress(3, 0b011)})
TOTALS = {3: 2, 4: 3, 5: 1}
LATEST = BundleRef(6, 0)


def disk_with(**files: bytes) -> tuple[Disk, MemoryDisk]:
    raw = MemoryDisk.from_image({f"quiver.sub.{name}": data for name, data in files.items()})
    return Disk(raw), raw


def test_scan_finds_files_and_known_names() -> None:
    """Files, and names known from elsewhere; half-written files and strangers are no names."""
    disk, raw = disk_with(a=encode_progress(GOOD), b=b"junk")
    disk.replace("quiver.sub.c.tmp", b"x")
    disk.replace("quiver.sub.", b"x")
    disk.replace("quiver.subscribe", b"x")
    before = raw.image()
    found = scan_progress(disk, ["a", "z"])
    assert list(found) == ["a", "b", "z"]
    assert found["a"] == GOOD
    assert isinstance(found["b"], ProgressCorrupt)
    assert isinstance(found["z"], ProgressCorrupt)
    assert "missing" in str(found["z"])
    assert raw.image() == before


def test_names_windows_reserves_still_hold_data() -> None:
    """A file called after a device may come from elsewhere: it is found like any other."""
    disk, _ = disk_with(con=encode_progress(GOOD))
    assert scan_progress(disk) == {"con": GOOD}


def test_read_error_is_not_damage() -> None:
    """EIO says nothing about the file: no policy may start over because of it."""
    raw = MemoryDisk.from_image({"quiver.sub.a": encode_progress(GOOD)})
    disk = Disk(FaultyDisk(raw, Fault(0, error=errno.EIO, ops=frozenset({"pread"}))))
    with pytest.raises(IoFault):
        scan_progress(disk)


def test_recover_good() -> None:
    """A sound file: the state goes on where it was, nothing to report."""
    disk, _ = disk_with(a=encode_progress(GOOD))
    one = recover(disk, "a", GOOD, TOTALS, policy="fail", latest=LATEST)
    assert one.state.next_ref() == (4, 2)
    assert (one.problem, one.copy) == (None, None)


def test_segments_that_are_not_here_hold_nothing_up() -> None:
    """Unfinished segments that aren't here are passed over: what they held is not to be had."""
    progress = Progress(
        1,
        {1: SegmentProgress(3, 0b001), 2: SegmentProgress(1, 0b1), 4: SegmentProgress(3, 0b111)},
    )
    disk, _ = disk_with()
    one = recover(disk, "a", progress, TOTALS, policy="fail", latest=LATEST)
    assert one.state.frontier == (3, 0)


@pytest.mark.parametrize("scanned", ["damaged", "missing", "beyond"])
def test_policy_fail(scanned: str) -> None:
    """The default: a file that can't be believed stops the store, and nothing is changed."""
    disk, raw = disk_with(damaged=b"junk", beyond=encode_progress(GOOD))
    before = raw.image()
    found = scan_progress(disk, ["damaged", "missing", "beyond"])
    with pytest.raises(ProgressCorrupt, match=f"quiver.sub.{scanned}"):
        recover(disk, scanned, found[scanned], {4: 1}, policy="fail", latest=LATEST)
    assert raw.image() == before


@pytest.mark.parametrize("scanned", ["damaged", "missing", "beyond"])
def test_policy_earliest_and_latest(scanned: str) -> None:
    """Configured: start over at one end, say so, and keep the damaged bytes."""
    files = {"damaged": b"junk", "beyond": encode_progress(GOOD)}
    disk, raw = disk_with(**files)
    found = scan_progress(disk, ["missing"])[scanned]
    totals = {3: 2, 4: 1, 5: 1}
    one = recover(disk, scanned, found, totals, policy="earliest", latest=LATEST)
    assert one.state.outstanding == 4
    two = recover(disk, scanned, found, totals, policy="latest", latest=LATEST)
    assert two.state.outstanding == 0
    two.state.observe(6, 1)
    assert two.state.next_ref() == (6, 0)
    assert isinstance(one.problem, ProgressCorrupt)
    copies = {path: data for path, data in raw.image().items() if path.startswith("quarantine/")}
    if scanned == "missing":
        assert one.copy is None
        assert copies == {}
    else:  # one copy of the same bytes, however often; the file itself stays until replaced
        assert copies == {one.copy: files[scanned]}
        assert raw.image()[f"quiver.sub.{scanned}"] == files[scanned]


def test_a_newer_version_is_refused_before_any_policy() -> None:
    """A sound file of a newer Quiver isn't damaged: starting over would throw it away."""
    data = bytearray(encode_progress(GOOD, "a"))
    data[8] = 9
    data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "little")
    disk, raw = disk_with(a=bytes(data))
    before = raw.image()
    with pytest.raises(UnsupportedVersion, match=r"quiver\.sub\.a"):
        scan_progress(disk)
    assert raw.image() == before


def test_kept_progress_is_durable() -> None:
    """When keeping returns, a power cut leaves the new file, whole."""
    disk, raw = disk_with(a=encode_progress(Progress(1)))
    keep_progress(disk, "a", GOOD)
    durability = raw.durability()
    assert not durability.pending_entries
    inode = durability.entries["quiver.sub.a"]
    assert durability.contents[inode] == encode_progress(GOOD, "a")


def test_removed_progress_is_durable() -> None:
    """When removing returns, a power cut doesn't bring the file back."""
    disk, raw = disk_with(a=encode_progress(GOOD))
    remove_progress(disk, "a")
    remove_progress(disk, "a")
    durability = raw.durability()
    assert "quiver.sub.a" not in durability.entries
    assert not durability.pending_entries


def test_set_aside_is_durable() -> None:
    """The copy of a damaged file survives a power cut, its directory too."""
    disk, raw = disk_with(a=b"junk")
    copy = set_aside(disk, "a")
    assert copy is not None
    durability = raw.durability()
    assert not durability.pending_entries
    assert durability.contents[durability.entries[copy]] == b"junk"


def test_leftovers_go() -> None:
    """Half-written files of a crash are removed, whole ones stay."""
    disk, raw = disk_with(a=encode_progress(GOOD))
    with disk.create("quiver.sub.b.tmp") as file:
        file.write_all([b"half"], 0)
    remove_leftovers(disk)
    assert list(raw.image()) == ["quiver.sub.a"]
