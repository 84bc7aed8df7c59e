"""``Disk`` and ``File``: Quiver's errors, whole writes, the latch, atomic replacement."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from quiver.disk.disk import IOV_MAX, MAX_INTERRUPTS, Disk
from quiver.disk.posix import PosixDisk
from quiver.errors import IoFault, Poisoned, StorageFull
from tests.support.faulty import FOREVER, Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.oplog import Op, Rename, Sync, SyncDir


def _faulty(*faults: Fault) -> tuple[Disk, FaultyDisk, MemoryDisk]:
    memory = MemoryDisk()
    raw = FaultyDisk(memory, *faults)
    return Disk(raw), raw, memory


def _writes(error: int | None, *, at: int = 0, short: bool = False, times: int = 1) -> Fault:
    return Fault(at=at, error=error, short=short, times=times, ops=frozenset({"pwritev"}))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_no_space_is_storage_full(number: int) -> None:
    """Scenario: disk or quota is used up. Guarantee: a retryable error that says so."""
    disk, _, _ = _faulty(_writes(number))
    with disk.create("file") as file, pytest.raises(StorageFull) as caught:
        file.write_all([b"abc"], 0)
    assert caught.value.retryable
    assert disk.poison.cause is None


def test_other_errors_are_io_faults_with_details() -> None:
    """Scenario: a read fails. Guarantee: operation, file and errno; no poison; cause kept."""
    disk, _, _ = _faulty(Fault(at=0, error=errno.EIO, ops=frozenset({"pread"})))
    disk.create("file").close()
    with pytest.raises(IoFault) as caught:
        disk.read("file")
    assert caught.value.details == {"op": "read", "file": "file", "errno": errno.EIO}
    assert isinstance(caught.value.__cause__, OSError)
    assert disk.poison.cause is None


@pytest.mark.parametrize("op", ["open", "read", "view", "unlink"])
def test_a_missing_file_stays_a_missing_file(op: str) -> None:
    """Scenario: callers ask for what may not be there. Guarantee: FileNotFoundError."""
    with pytest.raises(FileNotFoundError):
        getattr(Disk(MemoryDisk()), op)("missing")


def test_absence_where_it_is_no_error() -> None:
    """Scenario: things not there. Guarantee: no size, no names, and a lenient unlink."""
    disk = Disk(MemoryDisk())
    assert disk.stat_size("missing") is None
    assert disk.listdir("missing") == []
    disk.unlink("missing", missing_ok=True)
    disk.chmod("missing", 0o440)


def test_a_missing_rename_source_is_a_fault() -> None:
    """Scenario: a file we own vanished. Guarantee: an I/O fault, not a normal absence."""
    with pytest.raises(IoFault):
        Disk(MemoryDisk()).rename("missing", "other")


@pytest.mark.parametrize("op", ["open", "view", "unlink", "listdir"])
def test_a_read_error_is_not_mistaken_for_absence(op: str) -> None:
    """Scenario: the disk fails where a file might just be missing. Guarantee: an I/O fault."""
    disk, _, _ = _faulty(Fault(at=0, error=errno.EIO, ops=frozenset({op})))
    with pytest.raises(IoFault):
        getattr(disk, op)("file")


def test_on_the_real_disk(tmp_path: Path) -> None:
    """Scenario: a root that isn't there yet; every call that changes something, once.

    Guarantee: it all works through ``os`` as it does in memory.
    """
    disk = Disk(PosixDisk(tmp_path / "deep" / "root"))
    disk.mkdir("")
    disk.mkdir("d")
    with disk.create("d/a") as file:
        file.write_all([b"0123", pa.py_buffer(b"4567")], 0)
        file.truncate(6)
        file.fdatasync()
    disk.rename("d/a", "d/b")
    disk.fsync_dir("d")
    disk.replace("d/c", b"new")
    assert disk.listdir("d") == ["b", "c"]
    assert (disk.read("d/b"), disk.view("d/c").to_pybytes()) == (b"012345", b"new")


def test_create_refuses_a_taken_name() -> None:
    """Scenario: the file is there already. Guarantee: FileExistsError, contents untouched."""
    disk = Disk(MemoryDisk.from_image({"file": b"old"}))
    with pytest.raises(FileExistsError):
        disk.create("file")
    assert disk.read("file") == b"old"


def test_every_kind_of_buffer_is_written_whole() -> None:
    """Scenario: bytes, views of wider items, Arrow buffers, empty ones, in one call.

    Guarantee: all bytes in order, counted in bytes.
    """
    disk = Disk(MemoryDisk())
    wide = memoryview(b"\x01\x00\x02\x00").cast("H")
    pieces = [b"ab", bytearray(b"cd"), wide, pa.py_buffer(b"ef"), b"", memoryview(b"gh")]
    with disk.create("file") as file:
        assert file.write_all(pieces, 3) == 12
        assert file.write_all([], 0) == 0
        assert file.write_all([b"", b""], 0) == 0
    assert disk.read("file") == b"\0\0\0abcd\x01\x00\x02\x00efgh"


def test_short_writes_are_finished() -> None:
    """Scenario: the kernel takes half of what it is given, again and again.

    Guarantee: every byte lands, at its place, also across buffer boundaries.
    """
    disk, raw, _ = _faulty(_writes(None, short=True, times=FOREVER))
    pieces = [
        b"abc",
        pa.py_buffer(b"defgh"),
        memoryview(b"i"),
        b"jkl",
        memoryview(b"mnop").cast("H"),
    ]
    with disk.create("file") as file:
        assert file.write_all(pieces, 2) == 16
    assert disk.read("file") == b"\0\0abcdefghijklmnop"
    assert len(raw.fired) > 3


def test_more_buffers_than_one_call_takes() -> None:
    """Scenario: a group of many small buffers. Guarantee: split at the kernel's limit."""
    disk, raw, _ = _faulty()
    pieces = [bytes([n % 251]) for n in range(2 * IOV_MAX + 5)]
    with disk.create("file") as file:
        assert file.write_all(pieces, 0) == len(pieces)
    assert disk.read("file") == b"".join(pieces)
    assert [op for op, _ in raw.calls].count("pwritev") == 3


def test_interrupted_writes_are_tried_again_but_not_for_ever() -> None:
    """Scenario: signals interrupt a write, a few times or without end.

    Guarantee: the first goes through; the second ends in a fault instead of a hang.
    """
    disk, _, _ = _faulty(_writes(errno.EINTR, times=3))
    with disk.create("file") as file:
        assert file.write_all([b"abc"], 0) == 3
    disk, raw, _ = _faulty(_writes(errno.EINTR, times=FOREVER))
    with disk.create("file") as file, pytest.raises(IoFault):
        file.write_all([b"abc"], 0)
    assert len(raw.fired) == MAX_INTERRUPTS + 1


def test_a_write_that_makes_no_progress_is_a_fault() -> None:
    """Scenario: a write says 0 bytes. Guarantee: a fault, not an endless loop."""
    disk, _, _ = _faulty(_writes(None, times=FOREVER))
    with disk.create("file") as file, pytest.raises(IoFault):
        file.write_all([b"abc"], 0)


@pytest.mark.parametrize("op", ["fdatasync", "fsync", "fsync_dir"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_sync_poisons_and_is_never_tried_again(op: str, number: int) -> None:
    """Scenario: a sync fails, with whatever error, and the caller tries again.

    Guarantee: Poisoned both times; the disk is asked only once.
    """
    disk, raw, _ = _faulty(Fault(at=0, error=number, ops=frozenset({op})))
    with disk.create("file") as file:
        for _ in range(2):
            with pytest.raises(Poisoned):
                disk.fsync_dir("") if op == "fsync_dir" else getattr(file, op)()
    assert [call for call, _ in raw.calls].count(op) == 1
    assert disk.poison.cause is not None
    assert disk.poison.cause.details["errno"] == number


def test_a_poisoned_disk_takes_no_change_and_still_reads() -> None:
    """Scenario: every call after a failed sync.

    Guarantee: whatever would change the disk is refused and reaches it not; reads go on.
    """
    disk, _, memory = _faulty(Fault(at=0, error=errno.EIO, ops=frozenset({"fsync"})))
    with disk.create("file") as file:
        file.write_all([b"abc"], 0)
        with pytest.raises(Poisoned):
            file.fsync()
        before = list(memory.ops)
        changes: list[Callable[[], object]] = [
            lambda: file.write_all([b"x"], 0),
            lambda: file.truncate(0),
            file.fdatasync,
            lambda: disk.create("new"),
            lambda: disk.open("file", write=True),
            lambda: disk.replace("file", b"x"),
            lambda: disk.rename("file", "x"),
            lambda: disk.unlink("file"),
            lambda: disk.mkdir("d"),
            lambda: disk.fsync_dir(""),
            lambda: disk.allocate("r", 1),
        ]
        for change in changes:
            with pytest.raises(Poisoned):
                change()
    assert memory.ops == before
    assert disk.read("file") == b"abc"
    assert disk.view("file").to_pybytes() == b"abc"
    assert disk.listdir("") == ["file"]


def test_replace_syncs_before_and_after_the_rename() -> None:
    """Scenario: a small file is replaced.

    Guarantee: bytes synced, then the name moved, then the directory synced, in that order.
    """
    memory = MemoryDisk.from_image({"d/file": b"old"})
    Disk(memory).replace("d/file", [b"ne", memoryview(b"w")])
    kinds: list[type[Op]] = [type(op) for op in memory.ops if not hasattr(op, "data")]
    assert kinds[-3:] == [Sync, Rename, SyncDir]
    assert memory.durability().image() == {"d/file": b"new"}


@pytest.mark.parametrize("op", ["create", "pwritev", "fsync", "close", "rename", "fsync_dir"])
@pytest.mark.parametrize("number", [errno.EIO, errno.ENOSPC])
def test_a_failed_replace_leaves_the_old_or_the_new(op: str, number: int) -> None:
    """Scenario: each step of a replacement fails in turn.

    Guarantee: an error; the file is whole, old or (after the rename) new; no tmp is left.
    """
    memory = MemoryDisk.from_image({"file": b"old"})
    disk = Disk(FaultyDisk(memory, Fault(at=0, error=number, ops=frozenset({op}))))
    with pytest.raises((IoFault, StorageFull, Poisoned)):
        disk.replace("file", b"new")
    assert memory.image() == {"file": b"new" if op == "fsync_dir" else b"old"}


def test_a_tmp_left_by_a_crash_is_no_obstacle() -> None:
    """Scenario: a crash left a half-written tmp. Guarantee: the next replacement works."""
    disk = Disk(MemoryDisk.from_image({"file": b"old", "file.tmp": b"half"}))
    disk.replace("file", b"new")
    assert disk.read("file") == b"new"
    assert disk.listdir("") == ["file"]


def test_replacements_of_one_path_take_turns(tmp_path: Path) -> None:
    """Scenario: many threads replace the same file at once, on a disk that lets them run.

    Guarantee: none fails, and the file is one of the values, whole.
    """
    disk = Disk(PosixDisk(tmp_path))
    failures: list[BaseException] = []
    values = [bytes([n]) * 100 for n in range(8)]

    def work(value: bytes) -> None:
        try:
            for _ in range(10):
                disk.replace("file", [value[:50], value[50:]])
        except BaseException as exc:
            failures.append(exc)

    threads = [threading.Thread(target=work, args=(value,)) for value in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert disk.read("file") in values
    assert disk.listdir("") == ["file"]


def test_chmod_is_best_effort() -> None:
    """Scenario: the file system knows no modes. Guarantee: nobody is bothered with it."""
    disk, raw, _ = _faulty(Fault(at=0, error=errno.EPERM, ops=frozenset({"chmod"})))
    disk.create("file").close()
    disk.chmod("file", 0o440)
    assert raw.fired == [("chmod", "file")]


def test_a_lock_that_fails_otherwise_is_a_fault() -> None:
    """Scenario: a file system without locks. Guarantee: not mistaken for a held lock."""
    disk, _, _ = _faulty(Fault(at=0, error=errno.ENOLCK, ops=frozenset({"lock"})))
    with pytest.raises(IoFault):
        disk.lock("LOCK", b"me")
