"""The reserve of descriptors, what happens without one, and closing from two threads."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiver
from quiver.disk.descriptors import DESCRIPTORS, SPARES, Headroom
from quiver.disk.disk import Disk
from quiver.disk.posix import PosixDisk, PosixFile, PosixLock
from quiver.errors import OutOfResources
from tests.support.forked import in_child

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

SMALL: dict[str, Any] = {
    "reserve": 0,
    "wal": {"rotation_target": "32KiB", "max_size": "512KiB"},
    "segment": {"target_size": "24KiB"},
    "limits": {"max_bundle": "16KiB", "max_unsynced": "64KiB"},
}
"""Every few puts need another log file and another segment."""


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number] * 500})


@contextlib.contextmanager
def no_descriptors(*, reserve: bool) -> Iterator[None]:
    """Use up every descriptor of this process, and the reserve too unless told otherwise."""
    highest = max(map(int, os.listdir("/proc/self/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 40, highest + 40))
    taken: list[int] = []

    def take() -> None:
        with contextlib.suppress(OSError):
            while True:
                taken.append(os.dup(0))

    take()
    while not reserve and DESCRIPTORS._give_up_spare():
        take()
    if not reserve:
        DESCRIPTORS._wanted = 0
    yield
    for one in taken:
        os.close(one)
    DESCRIPTORS._looked = None


def test_a_directory_that_cannot_be_opened_is_no_failed_sync(tmp_path: Path) -> None:
    """No descriptor is left when a directory is to be synced.

    It can be tried again, and nothing is poisoned: no sync was asked for.
    """

    def child() -> None:
        disk = Disk(PosixDisk(tmp_path))
        disk.mkdir("d")
        with no_descriptors(reserve=False):
            with pytest.raises(OutOfResources) as caught:
                disk.fsync_dir("d")
            assert caught.value.retryable
            assert caught.value.details["errno"] == errno.EMFILE
            assert "ulimit" in caught.value.advice
            assert disk.poison.cause is None
        disk.fsync_dir("d")

    in_child(child)


def test_a_missing_directory_still_poisons(tmp_path: Path) -> None:
    """The names are gone, whatever became of them: nothing more is promised."""
    disk = Disk(PosixDisk(tmp_path))
    with pytest.raises(quiver.errors.Poisoned):
        disk.fsync_dir("gone")


def test_a_store_goes_on_with_its_reserve(tmp_path: Path) -> None:
    """All other descriptors are in use, puts need new log files and segments: all succeed.

    Status names the problem until there are descriptors again; what was put can be read.
    """

    def child() -> None:
        store = quiver.open(tmp_path / "store", **SMALL)
        store.register("a")
        refs = [store.put({"Logs": batch(0)}).wait().ref]
        with no_descriptors(reserve=True):
            with pytest.raises(OSError, match="Too many open files"):
                os.open("/dev/null", os.O_RDONLY)
            refs += [
                store.put({"Logs": batch(number)}, timeout=5.0).wait().ref
                for number in range(1, 60)
            ]
            store.flush()
            assert DESCRIPTORS.shortages > 0
            problems = store.status().problems
            assert any("few file descriptors" in problem for problem in problems), problems
        status = store.status()
        assert (str(status.state), status.problems) == ("ok", ())
        store.close()
        with quiver.open(tmp_path / "store", **SMALL) as again:
            found = [again.read(ref)["Logs"]["n"][0].as_py() for ref in refs]
        assert found == list(range(60))

    in_child(child)


def test_without_a_reserve_puts_fail_for_now_only(tmp_path: Path) -> None:
    """Not even the reserve is left when the log has to begin a new file.

    The put fails with an error that says to retry; nothing is poisoned; once there are
    descriptors, puts succeed, and what was answered `durable` before is there.
    """

    def child() -> None:
        store = quiver.open(tmp_path / "store", **SMALL)
        durable: list[tuple[Any, int]] = []
        failed: list[quiver.errors.QuiverError] = []

        def put(number: int) -> None:
            try:
                receipt = store.put({"Logs": batch(number)})
                durable.append((receipt.wait().ref, number))
            except quiver.errors.QuiverError as error:
                failed.append(error)

        put(0)
        with no_descriptors(reserve=False):
            for number in range(1, 40):
                put(number)
        assert failed
        assert all(error.retryable for error in failed), failed
        assert store.status().state == "ok", store.status().problems
        DESCRIPTORS.keep_reserve()
        for number in range(40, 60):
            put(number)
        assert durable[-1][1] == 59, failed[-1]
        store.close()
        with quiver.open(tmp_path / "store", **SMALL) as again:
            for ref, number in durable:
                assert again.read(ref)["Logs"]["n"][0].as_py() == number

    in_child(child)


def test_open_segments_give_way(tmp_path: Path) -> None:
    """More segments are read than there are descriptors, by one store and then by another.

    Files kept open for the next read are closed, whichever store they belong to; all is read.
    """

    def child() -> None:
        settings = {**SMALL, "read_mode": "pread"}
        stores = [quiver.open(tmp_path / name, **settings) for name in ("a", "b")]
        refs = []
        for store in stores:
            store.register("keeps")
            for number in range(80):
                refs.append((store, store.put({"Logs": batch(number)}).wait().ref, number))
                store.flush()
        limit = len(os.listdir("/proc/self/fd")) + 20
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
        for store, ref, number in refs:
            assert store.read(ref)["Logs"]["n"][0].as_py() == number
        assert DESCRIPTORS.shortages > 0
        for store in stores:
            store.close()

    in_child(child)


def test_what_is_closed_while_short_goes_to_the_reserve(tmp_path: Path) -> None:
    """Another thread takes every descriptor that comes free: the reserve fills all the same."""

    def child() -> None:
        disk = PosixDisk(tmp_path)
        DESCRIPTORS.keep_reserve()
        assert DESCRIPTORS.spares == SPARES
        with no_descriptors(reserve=True):
            files = [disk.create(f"file-{number}") for number in range(5)]
            assert DESCRIPTORS.spares == SPARES - 5
            for file in files:
                file.close()
            with pytest.raises(OSError, match="Too many open files"):
                os.open("/dev/null", os.O_RDONLY)
            assert DESCRIPTORS.spares == SPARES

    in_child(child)


def test_few_left() -> None:
    """Few is an eighth of a small limit, and 64 of a large one."""
    assert Headroom(57, 64).is_low
    assert not Headroom(56, 64).is_low
    assert Headroom(1024 - 63, 1024).is_low
    assert not Headroom(1024 - 64, 1024).is_low
    assert Headroom(70, 64).free == 0


class _Slow:
    """A descriptor whose number is read by two threads before either has forgotten it."""

    _meet: threading.Barrier
    _number: int

    def _read(self) -> int:
        number = self._number
        with contextlib.suppress(threading.BrokenBarrierError):
            self._meet.wait(1.0)
        return number

    def _write(self, number: int) -> None:
        self._number = number

    _fd = property(_read, _write)


class _SlowFile(_Slow, PosixFile):
    pass


class _SlowLock(_Slow, PosixLock):
    pass


@pytest.mark.parametrize("kind", ["file", "lock"])
def test_two_threads_close_once(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both threads ask for the descriptor at the same time. It is closed once.

    A second close would hit whatever file has got the number since.
    """
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    closed: list[int] = []
    really = os.close

    def close(number: int) -> None:
        if number == fd:
            closed.append(number)
        if closed.count(fd) <= 1 or number != fd:
            really(number)

    holder: Any = _SlowFile(fd) if kind == "file" else _SlowLock(fd, lambda: None)
    holder._meet = threading.Barrier(2)
    monkeypatch.setattr(os, "close", close)
    end: Callable[[], None] = holder.close if kind == "file" else holder.release
    threads = [threading.Thread(target=end) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    monkeypatch.undo()
    assert closed == [fd]
