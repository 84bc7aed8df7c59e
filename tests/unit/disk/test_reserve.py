"""Bytes kept back for a full disk."""

from __future__ import annotations

import errno

import pytest

from quiver.disk.disk import Disk
from quiver.disk.reserve import RESERVE_FILE, Reserve
from quiver.errors import StorageFull
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk


def test_letting_go_makes_room_on_a_full_disk() -> None:
    """Scenario: data has filled the disk; then a progress file must be written.

    Guarantee: refused with the reserve held, fine once it is released.
    """
    raw = MemoryDisk(capacity=1000)
    disk = Disk(raw)
    reserve = Reserve(disk, 200)
    assert reserve.restore()
    assert (reserve.held, disk.stat_size(RESERVE_FILE)) == (200, 200)
    with disk.create("data") as file:
        file.write_all([bytes(800)], 0)
    with pytest.raises(StorageFull):
        disk.replace("progress", b"x" * 50)
    assert reserve.release() == 200
    disk.replace("progress", b"x" * 50)
    assert (reserve.held, disk.free_bytes()) == (0, 150)


def test_it_comes_back_only_when_there_is_room_to_spare() -> None:
    """Scenario: it was released, and space returns bit by bit.

    Guarantee: not taken while that would leave less than it takes; taken after.
    """
    raw = MemoryDisk(capacity=399)
    reserve = Reserve(Disk(raw), 200)
    reserve.restore()
    reserve.release()
    assert not reserve.restore()
    assert raw.image() == {}
    raw.capacity = 400
    assert reserve.restore()
    assert reserve.restore()
    assert reserve.held == 200


def test_a_small_disk_has_one_too() -> None:
    """Scenario: a store begins on a disk that has room for its reserve and little else.

    Guarantee: it is taken at once, before data takes the room: without it, acks could not be
    written on the full disk, nothing would be deleted, and the disk would stay full.
    """
    reserve = Reserve(Disk(MemoryDisk(capacity=250)), 200)
    assert reserve.restore()
    assert reserve.held == 200


def test_one_that_is_there_already_counts() -> None:
    """Scenario: the store is reopened on a full disk with its reserve in place.

    Guarantee: it is taken over, not asked for a second time.
    """
    raw = MemoryDisk.from_image({RESERVE_FILE: bytes(200)}, capacity=200)
    reserve = Reserve(Disk(raw), 200)
    assert reserve.restore()
    assert reserve.held == 200


def test_a_race_for_the_last_bytes_is_no_error() -> None:
    """Scenario: space vanished between asking and taking. Guarantee: just not yet."""
    full = Fault(at=0, error=errno.ENOSPC, ops=frozenset({"allocate"}))
    reserve = Reserve(Disk(FaultyDisk(MemoryDisk(), full)), 200)
    assert not reserve.restore()
    assert reserve.held == 0
    assert reserve.restore()


def test_another_size_in_the_configuration() -> None:
    """Scenario: the reserve was configured larger, smaller or off since the last start.

    Guarantee: the file is as large as it should be now; gone if off.
    """
    raw = MemoryDisk.from_image({RESERVE_FILE: bytes(200)})
    for size in (300, 100):
        assert Reserve(Disk(raw), size).restore()
        assert raw.stat_size(RESERVE_FILE) == size
    off = Reserve(Disk(raw), 0)
    assert off.restore()
    assert off.held == 0
    assert raw.image() == {}


def test_release_twice_is_harmless() -> None:
    """Scenario: two writers hit the full disk at once. Guarantee: bytes counted once."""
    reserve = Reserve(Disk(MemoryDisk()), 10)
    reserve.restore()
    assert [reserve.release(), reserve.release()] == [10, 0]
