"""What only the real disk can show: modes, links, descriptors, mappings, locks."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from quiver.disk.descriptors import DESCRIPTORS
from quiver.disk.posix import PosixDisk


def _mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture
def disk(tmp_path: Path) -> PosixDisk:
    return PosixDisk(tmp_path)


def test_only_the_owner_may_read(tmp_path: Path) -> None:
    """Scenario: a store is made, three directories deep, under a lax umask.

    Guarantee: directories are 0700 and files 0600; the lock's label is for all to read.
    """
    old = os.umask(0)
    try:
        disk = PosixDisk(tmp_path / "a" / "b")
        disk.mkdir("")
        disk.mkdir("wal")
        disk.create("wal/file").close()
        disk.allocate("reserve", 10)
        disk.lock("LOCK", b"me").release()
    finally:
        os.umask(old)
    root = tmp_path / "a" / "b"
    assert [_mode(path) for path in (tmp_path / "a", root, root / "wal")] == [0o700] * 3
    assert [_mode(root / name) for name in ("wal/file", "reserve")] == [0o600] * 2
    assert _mode(root / "LOCK") == 0o644


def test_a_symbolic_link_is_never_followed(disk: PosixDisk, tmp_path: Path) -> None:
    """Scenario: someone put a link where a file or directory of ours should be.

    Guarantee: every way to open or make it is refused; what it points at is untouched.
    """
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / "link").symlink_to(victim)
    (tmp_path / "dirlink").symlink_to(tmp_path)
    attempts: list[Callable[[], object]] = [
        lambda: disk.open("link"),
        lambda: disk.open("link", write=True),
        lambda: disk.create("link"),
        lambda: disk.view("link"),
        lambda: disk.allocate("link", 3),
        lambda: disk.lock("link", b"x"),
        lambda: disk.mkdir("dirlink"),
    ]
    for attempt in attempts:
        with pytest.raises(OSError, match=r"symbolic links|File exists|Not a directory"):
            attempt()
    assert victim.read_bytes() == b"precious"
    assert disk.stat_size("link") is None


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "wal/../../x"])
def test_no_path_leaves_the_root(disk: PosixDisk, path: str) -> None:
    """Scenario: a path climbs out. Guarantee: refused before the disk is asked."""
    with pytest.raises(ValueError, match="leave"):
        disk.open(path)


def test_a_later_chdir_moves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a relative root, then the process changes its directory.

    Guarantee: the store stays where it was.
    """
    monkeypatch.chdir(tmp_path)
    disk = PosixDisk("store")
    disk.mkdir("")
    monkeypatch.chdir("/")
    disk.create("file").close()
    assert (tmp_path / "store" / "file").exists()


def test_a_view_outlives_unlink_and_keeps_no_descriptor(disk: PosixDisk) -> None:
    """Scenario: a mapped file is deleted.

    Guarantee: its bytes stay readable, and mappings don't use up descriptors.
    """
    with_file = disk.create("file")
    with_file.pwritev([b"x" * 10_000], 0)
    with_file.close()
    before = _descriptors()
    view = disk.view("file")
    assert _descriptors() == before
    disk.unlink("file")
    assert view.to_pybytes() == b"x" * 10_000
    assert not view.is_mutable


def test_an_empty_file_can_be_viewed(disk: PosixDisk) -> None:
    """Scenario: a map of no bytes, which mmap refuses. Guarantee: an empty buffer."""
    disk.create("file").close()
    assert disk.view("file").size == 0


def test_reads_and_writes_leave_no_descriptor_behind(disk: PosixDisk) -> None:
    """Scenario: all calls that open something, failing ones too.

    Guarantee: afterwards there are as many descriptors as before, but for the reserve.
    """
    DESCRIPTORS.keep_reserve()
    before = _descriptors()
    file = disk.create("file")
    file.close()
    file.close()
    disk.mkdir("d")
    disk.fsync_dir("d")
    disk.allocate("reserve", 4096)
    held = disk.lock("LOCK", b"a")
    with pytest.raises(BlockingIOError):
        disk.lock("LOCK", b"b")
    held.release()
    held.release()
    with pytest.raises(FileNotFoundError):
        disk.fsync_dir("missing")
    with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
        file.size()
    assert _descriptors() == before


def test_allocated_bytes_are_really_there(disk: PosixDisk, tmp_path: Path) -> None:
    """Scenario: a reserve is made, then made smaller.

    Guarantee: blocks are allocated, not just a size; the file is exactly as asked.
    """
    disk.allocate("reserve", 1 << 20)
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= 1 << 20
    disk.allocate("reserve", 4096)
    assert disk.stat_size("reserve") == 4096


def test_a_failed_allocation_leaves_no_file(
    disk: PosixDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: no room for the reserve. Guarantee: no half of it takes up space."""

    def full(fd: int, offset: int, length: int) -> None:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="full"):
        disk.allocate("reserve", 4096)
    assert disk.stat_size("reserve") is None


def test_a_full_disk_does_not_stop_the_lock(
    disk: PosixDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the owner's label can't be written. Guarantee: the lock is held all the same."""

    def full(fd: int, data: bytes, offset: int) -> int:
        raise OSError(errno.ENOSPC, "full")

    monkeypatch.setattr(os, "pwrite", full)
    held = disk.lock("LOCK", b"me")
    with pytest.raises(BlockingIOError):
        disk.lock("LOCK", b"you")
    held.release()


def test_a_read_goes_on_until_the_end(disk: PosixDisk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: the kernel hands out less than asked for, as it does beyond 2 GiB.

    Guarantee: the caller gets fewer bytes only at the end of the file.
    """
    file = disk.create("file")
    file.pwritev([b"abcdefgh"], 0)
    real, real_into = os.pread, os.preadv
    monkeypatch.setattr(os, "pread", lambda fd, size, offset: real(fd, min(size, 3), offset))
    monkeypatch.setattr(
        os, "preadv", lambda fd, buffers, offset: real_into(fd, [buffers[0][:3]], offset)
    )
    assert file.pread(8, 0) == b"abcdefgh"
    assert file.pread(100, 2) == b"cdefgh"
    assert file.pread(4, 8) == b""
    memory = memoryview(bytearray(7))
    assert (file.pread_into(memory, 0), bytes(memory)) == (7, b"abcdefg")
    assert (file.pread_into(memory, 2), bytes(memory)) == (6, b"cdefghg")
    assert file.pread_into(memory, 8) == 0
    file.close()


def test_free_bytes_is_what_an_ordinary_user_may_take(disk: PosixDisk, tmp_path: Path) -> None:
    """Scenario: space is asked for. Guarantee: root's own share is not counted as free."""
    figures = os.statvfs(tmp_path)
    total = figures.f_blocks * figures.f_frsize
    assert 0 < disk.free_bytes() <= total
