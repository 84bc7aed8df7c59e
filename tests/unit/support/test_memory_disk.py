"""The in-memory disk: inodes, sharing, fullness, and what it logs."""

from __future__ import annotations

import errno
from collections.abc import Callable

import pytest

from tests.support.memory_disk import MemoryDisk
from tests.support.oplog import (
    Allocate,
    Chmod,
    Create,
    Mkdir,
    Rename,
    Sync,
    SyncDir,
    Truncate,
    Unlink,
    Write,
)


def test_handles_follow_the_inode_not_the_name() -> None:
    """Scenario: a file is open while it is renamed, replaced and unlinked.

    Guarantee: the handle goes on with the same bytes; the name leads to what it should.
    """
    disk = MemoryDisk()
    old = disk.create("a")
    old.pwritev([b"old"], 0)
    disk.rename("a", "b")
    new = disk.create("a")
    new.pwritev([b"new"], 0)
    disk.rename("a", "b")
    old.pwritev([b"!"], 3)
    assert old.pread(10, 0) == b"old!"
    assert disk.image() == {"b": b"new"}
    disk.unlink("b")
    assert new.pread(10, 0) == b"new"
    assert disk.image() == {}


def test_every_change_is_in_the_log_in_order() -> None:
    """Scenario: one of each. Guarantee: one record each, with inode numbers; reads add none."""
    disk = MemoryDisk.from_image({"base": b"123"})
    disk.mkdir("d")
    disk.mkdir("d")
    file = disk.create("d/a")
    file.pwritev([b"ab", memoryview(b"cd")], 0)
    file.truncate(3)
    file.fdatasync()
    file.fsync()
    disk.rename("d/a", "base")
    disk.rename("base", "base")
    disk.fsync_dir("d")
    disk.chmod("base", 0o440)
    disk.unlink("base")
    disk.allocate("r", 5)
    file.pread(2, 0)
    disk.listdir("d")
    disk.view("r")
    assert disk.ops == [
        Mkdir("d"),
        Create("d/a", 2),
        Write(2, 0, b"abcd"),
        Truncate(2, 3),
        Sync(2, data_only=True),
        Sync(2, data_only=False),
        Rename("d/a", "base", 2, 1),
        SyncDir("d"),
        Chmod("base", 2, 0o440),
        Unlink("base", 2),
        Create("r", 3),
        Allocate(3, 5),
    ]


def test_the_log_can_be_turned_off() -> None:
    """Scenario: only the outcome matters. Guarantee: no log, and no pretence of one."""
    disk = MemoryDisk(record=False)
    disk.create("a").pwritev([b"x"], 0)
    assert disk.ops == []
    assert disk.image() == {"a": b"x"}
    with pytest.raises(ValueError, match="no log"):
        disk.durability()


def test_images_are_shared_and_never_written_through() -> None:
    """Scenario: two disks start from one image and one of them writes.

    Guarantee: no copy is made to open; the image and the other disk don't change.
    """
    image = {"d/a": b"x" * 100}
    first, second = MemoryDisk.from_image(image), MemoryDisk.from_image(image)
    assert first.image()["d/a"] is image["d/a"]
    taken = first.view("d/a")
    first.open("d/a", write=True).pwritev([b"!"], 0)
    assert image == {"d/a": b"x" * 100}
    assert second.image() == image
    assert taken.to_pybytes() == b"x" * 100
    assert first.open("d/a").pread(2, 0) == b"!x"


def test_a_view_does_not_hinder_later_writes() -> None:
    """Scenario: a file is viewed, then written to and cut. Guarantee: both go their own way."""
    disk = MemoryDisk()
    file = disk.create("a")
    file.pwritev([b"abc"], 0)
    view = disk.view("a")
    file.pwritev([b"XYZ!"], 0)
    file.truncate(2)
    assert view.to_pybytes() == b"abc"
    assert disk.view("a").to_pybytes() == b"XY"


def test_an_image_keeps_its_directories() -> None:
    """Scenario: files deep down, and an empty directory. Guarantee: both are there again."""
    disk = MemoryDisk.from_image({"a/b/c": b""}, ["empty/inner"])
    assert disk.listdir("") == ["a", "empty"]
    assert disk.directories() == ["empty", "empty/inner", "a", "a/b"]
    again = MemoryDisk.from_image(disk.image(), disk.directories())
    assert again.directories() == disk.directories()


def test_a_full_disk_takes_what_fits_and_then_refuses() -> None:
    """Scenario: a write larger than the room left.

    Guarantee: as on a real disk, first a short write, then ENOSPC; overwriting still works.
    """
    disk = MemoryDisk(capacity=10)
    file = disk.create("a")
    assert file.pwritev([b"x" * 8], 0) == 8
    assert file.pwritev([b"y" * 8], 8) == 2
    attempts: list[Callable[[], object]] = [
        lambda: file.pwritev([b"z"], 10),
        lambda: file.truncate(11),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match="space") as caught:
            attempt()
        assert caught.value.errno == errno.ENOSPC
    with pytest.raises(OSError, match="space"):
        disk.allocate("r", 1)
    assert disk.listdir("") == ["a"]
    assert file.pwritev([b"Y"], 0) == 1
    assert disk.free_bytes() == 0


def test_a_gap_that_does_not_fit_is_no_short_write() -> None:
    """Scenario: a write far beyond the end. Guarantee: refused, nothing taken."""
    disk = MemoryDisk(capacity=10)
    with pytest.raises(OSError, match="space"):
        disk.create("a").pwritev([b"xy"], 10)
    assert disk.used == 0


def test_space_comes_back_when_the_last_user_is_gone() -> None:
    """Scenario: an open file is unlinked; another is replaced by a rename.

    Guarantee: its bytes count until it is closed, and only once.
    """
    disk = MemoryDisk.from_image({"b": b"x" * 30}, capacity=100)
    file = disk.create("a")
    file.pwritev([bytes(50)], 0)
    disk.rename("a", "b")
    assert disk.used == 50
    disk.unlink("b")
    assert disk.used == 50
    file.close()
    file.close()
    assert disk.used == 0
    assert disk.free_bytes() == 100


def test_a_shrunk_capacity_is_full_not_negative() -> None:
    """Scenario: the disk is made smaller than its contents.

    Guarantee: nothing is free and growth is refused, but cutting a file still works.
    """
    disk = MemoryDisk.from_image({"a": bytes(10)})
    disk.capacity = 5
    assert disk.free_bytes() == 0
    file = disk.open("a", write=True)
    with pytest.raises(OSError, match="space"):
        file.pwritev([b"x"], 10)
    file.truncate(8)
    assert disk.free_bytes() == 0
    file.truncate(2)
    assert disk.free_bytes() == 3


def test_one_holder_per_lock_and_none_in_the_log() -> None:
    """Scenario: two take the lock. Guarantee: one gets it; the label reads; no log record."""
    disk = MemoryDisk()
    held = disk.lock("LOCK", b"me")
    with pytest.raises(BlockingIOError):
        disk.lock("LOCK", b"you")
    assert disk.open("LOCK").pread(10, 0) == b"me"
    held.release()
    held.release()
    disk.lock("LOCK", b"you")
    assert disk.ops == []


def test_using_a_handle_wrongly() -> None:
    """Scenario: writing to a read-only handle, using a closed one. Guarantee: refused."""
    disk = MemoryDisk.from_image({"a": b"x"})
    reader = disk.open("a")
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.pwritev([b"y"], 0)
    with pytest.raises(OSError, match="Invalid argument"):
        reader.truncate(0)
    reader.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        reader.fdatasync()
    assert disk.image() == {"a": b"x"}


def test_a_directory_is_not_a_file() -> None:
    """Scenario: a directory is opened, unlinked or renamed over. Guarantee: refused."""
    disk = MemoryDisk.from_image({"a": b"x"}, ["d"])
    attempts: list[Callable[[], object]] = [
        lambda: disk.open("d"),
        lambda: disk.unlink("d"),
        lambda: disk.rename("a", "d"),
    ]
    for attempt in attempts:
        with pytest.raises(IsADirectoryError):
            attempt()
    assert disk.image() == {"a": b"x"}
