"""The tool that makes calls fail has to be right itself."""

from __future__ import annotations

import errno

import pytest

from tests.support.faulty import FOREVER, Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk


def test_exactly_the_nth_call_fails() -> None:
    """Scenario: the third call is to fail. Guarantee: two work, it fails, the next works."""
    disk = FaultyDisk(MemoryDisk(), Fault(at=2, error=errno.EIO))
    disk.mkdir("d")
    disk.listdir("d")
    with pytest.raises(OSError, match="Input/output error"):
        disk.mkdir("e")
    disk.mkdir("f")
    assert disk.fired == [("mkdir", "e")]
    assert disk.listdir("") == ["d", "f"]
    assert len(disk.calls) == 5


def test_only_named_calls_count() -> None:
    """Scenario: the second rename is to fail. Guarantee: other calls don't count."""
    disk = FaultyDisk(
        MemoryDisk.from_image({"a": b""}), Fault(at=1, error=errno.EIO, ops=frozenset({"rename"}))
    )
    disk.rename("a", "b")
    disk.listdir("")
    with pytest.raises(OSError, match="error"):
        disk.rename("b", "a")


def test_short_writes_with_and_without_an_error() -> None:
    """Scenario: half is written. Guarantee: said so, or an error with half on the disk."""
    memory = MemoryDisk()
    disk = FaultyDisk(
        memory,
        Fault(at=0, short=True, ops=frozenset({"pwritev"})),
        Fault(at=1, short=True, error=errno.ENOSPC, ops=frozenset({"pwritev"})),
    )
    file = disk.create("a")
    assert file.pwritev([b"ab", b"cd"], 0) == 2
    with pytest.raises(OSError, match="space"):
        file.pwritev([b"efgh"], 2)
    assert memory.image() == {"a": b"abef"}


def test_a_call_can_fail_after_its_work() -> None:
    """Scenario: a rename that worked reports an error. Guarantee: error, and the new name."""
    memory = MemoryDisk.from_image({"a": b""})
    disk = FaultyDisk(memory, Fault(at=0, error=errno.EIO, after=True))
    with pytest.raises(OSError, match="error"):
        disk.rename("a", "b")
    assert memory.listdir("") == ["b"]


def test_a_fault_stays_until_healed() -> None:
    """Scenario: a disk full for a while. Guarantee: fails each time, then works."""
    full = Fault(at=0, error=errno.ENOSPC, times=FOREVER, ops=frozenset({"pwritev"}))
    disk = FaultyDisk(MemoryDisk(), full)
    file = disk.create("a")
    for _ in range(3):
        with pytest.raises(OSError, match="space"):
            file.pwritev([b"x"], 0)
    disk.heal()
    assert file.pwritev([b"x"], 0) == 1


def test_a_failed_sync_did_not_sync() -> None:
    """Scenario: fdatasync fails. Guarantee: the recording disk still counts bytes at risk."""
    memory = MemoryDisk.from_image({"a": b""})
    disk = FaultyDisk(memory, Fault(at=0, error=errno.EIO, ops=frozenset({"fdatasync"})))
    file = disk.open("a", write=True)
    file.pwritev([b"x"], 0)
    with pytest.raises(OSError, match="error"):
        file.fdatasync()
    assert memory.durability().image() == {"a": b""}
