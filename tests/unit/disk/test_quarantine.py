"""``quarantine/``: files are moved or copied there so that a crash loses none of them."""

from __future__ import annotations

import errno

import pytest

from quiver.disk import quarantine
from quiver.disk.disk import Disk
from quiver.errors import StorageFull
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk


def disk_with(data: bytes = b"damaged", **files: bytes) -> tuple[Disk, FaultyDisk, MemoryDisk]:
    memory = MemoryDisk.from_image({"segments/a": data, **files})
    raw = FaultyDisk(memory)
    return Disk(raw), raw, memory


def test_a_moved_file_gets_a_name_of_its_own() -> None:
    """Nothing in quarantine is ever overwritten."""
    disk, _, memory = disk_with()
    for name in ("a", "a.1", "a.2"):
        assert quarantine.move(disk, "segments/a") == f"quarantine/{name}"
        disk.replace("segments/a", b"again")
    assert memory.image()["quarantine/a"] == b"damaged"


def test_a_move_survives_a_crash_in_the_middle() -> None:
    """The directory itself, then the new name, then the old one: the file is never nowhere."""
    disk, raw, memory = disk_with()
    quarantine.move(disk, "segments/a")
    steps = [call for call in raw.calls if call[0] in ("mkdir", "rename", "fsync_dir")]
    assert steps == [
        ("mkdir", "quarantine"),
        ("fsync_dir", ""),
        ("fsync_dir", "quarantine"),
        ("rename", "segments/a"),
        ("fsync_dir", "quarantine"),
        ("fsync_dir", "segments"),
    ]
    assert memory.durability().image() == {"quarantine/a": b"damaged"}


def test_a_copy_is_named_for_its_content() -> None:
    """Done twice, as after a crash, it makes one file; other content makes another."""
    disk, _, memory = disk_with()
    first = quarantine.copy(disk, "segments/a")
    assert quarantine.copy(disk, "segments/a") == first
    disk.replace("segments/a", b"other")
    second = quarantine.copy(disk, "segments/a")
    image = memory.durability().image()
    assert (image[first], image[second]) == (b"damaged", b"other")
    assert len([path for path in image if path.startswith("quarantine/")]) == 2


def test_a_part_can_be_copied() -> None:
    """Of a torn log, only what is cut off, under a name that says where it was."""
    disk, _, memory = disk_with(bytes(range(100)))
    copy = quarantine.copy(disk, "segments/a", 10, 20, name="a-at-10")
    assert copy.startswith("quarantine/a-at-10.")
    assert memory.image()[copy] == bytes(range(10, 30))


def test_a_copy_without_room_leaves_nothing() -> None:
    """A full disk: the error says so, no half of a copy stays."""
    disk, raw, memory = disk_with()
    raw.arm(Fault(0, errno.ENOSPC, ops=frozenset({"pwritev"})))
    with pytest.raises(StorageFull):
        quarantine.copy(disk, "segments/a")
    assert list(memory.image()) == ["segments/a"]
