"""Two homes, one behaviour: the real disk and the one in memory, side by side."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import TypeAlias

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.disk.posix import PosixDisk
from quiver.disk.seam import RawDisk, RawFile
from tests.support.memory_disk import MemoryDisk
from tests.support.oplog import DIRECTORY, Sync, SyncDir, settle

Step: TypeAlias = tuple[object, ...]

# Few names, so that they meet: plain files, files in directories that may not exist yet,
# and a file in place of a directory. (Never a directory in place of a file: Linux opens it
# for reading and fails later, the one in memory at once; no caller can tell them apart.)
_PATHS = st.sampled_from(["a", "b", "d/a", "d/b", "d/e/a", "a/x"])
_DIRECTORIES = st.sampled_from(["", "d", "d/e"])
_PERHAPS_FILES = st.sampled_from(["", "d", "d/e", "a"])
_HANDLES = st.integers(0, 5)
_OFFSETS = st.integers(0, 40)
_DATA = st.lists(st.binary(max_size=12), max_size=3)

_STEPS = st.one_of(
    st.tuples(st.just("create"), _PATHS),
    st.tuples(st.just("open"), _PATHS, st.booleans()),
    st.tuples(st.just("write"), _HANDLES, _DATA, _OFFSETS),
    st.tuples(st.just("write"), _HANDLES, _DATA, _OFFSETS),
    st.tuples(st.just("pread"), _HANDLES, _OFFSETS, _OFFSETS),
    st.tuples(st.just("pread_into"), _HANDLES, _OFFSETS, _OFFSETS),
    st.tuples(st.just("size"), _HANDLES),
    st.tuples(st.just("truncate"), _HANDLES, _OFFSETS),
    st.tuples(st.just("sync"), _HANDLES),
    st.tuples(st.just("close"), _HANDLES),
    st.tuples(st.just("view"), _PATHS),
    st.tuples(st.just("rename"), _PATHS, _PATHS),
    st.tuples(st.just("unlink"), _PATHS),
    st.tuples(st.just("mkdir"), _DIRECTORIES),
    st.tuples(st.just("fsync_dir"), _PERHAPS_FILES),
    st.tuples(st.just("listdir"), _PERHAPS_FILES),
    st.tuples(st.just("stat_size"), _PATHS),
    st.tuples(st.just("chmod"), _PATHS),
    st.tuples(st.just("allocate"), _PATHS, _OFFSETS),
    st.tuples(st.just("lock"), st.sampled_from(["LOCK", "d/LOCK"])),
)


# What each sequence starts with: on an empty disk nearly all calls would fail alike.
_SETUP: list[Step] = [
    ("mkdir", "d"),
    ("create", "a"),
    ("create", "d/a"),
    ("create", "b"),
    ("write", 0, [b"0123456789"], 0),
    ("write", 1, [b"abc", b"def"], 4),
]


class _Runner:
    """Takes the same steps on any disk and says what could be seen of each."""

    def __init__(self, disk: RawDisk) -> None:
        self.disk = disk
        self.handles: list[RawFile] = []

    def run(self, steps: list[Step]) -> list[object]:
        return [self._seen(step) for step in steps]

    def _seen(self, step: Step) -> object:
        name, *args = step
        action: Callable[..., object] = getattr(self, f"_{name}", None) or getattr(
            self.disk, str(name)
        )
        try:
            return action(*args)
        except OSError as exc:
            return exc.errno

    def _handle(self, index: int) -> RawFile:
        return self.handles[index % len(self.handles)]

    def _create(self, path: str) -> None:
        self.handles.append(self.disk.create(path))

    def _open(self, path: str, write: bool) -> None:
        self.handles.append(self.disk.open(path, write=write))

    def _write(self, index: int, data: list[bytes], offset: int) -> int:
        return self._handle(index).pwritev(data, offset)

    def _pread(self, index: int, size: int, offset: int) -> bytes:
        return self._handle(index).pread(size, offset)

    def _pread_into(self, index: int, size: int, offset: int) -> tuple[int, bytes]:
        memory = bytearray(size)
        return self._handle(index).pread_into(memoryview(memory), offset), bytes(memory)

    def _size(self, index: int) -> int:
        return self._handle(index).size()

    def _truncate(self, index: int, size: int) -> None:
        self._handle(index).truncate(size)

    def _sync(self, index: int) -> None:
        self._handle(index).fdatasync()

    def _close(self, index: int) -> None:
        self._handle(index).close()

    def _view(self, path: str) -> bytes:
        content: bytes = self.disk.view(path).to_pybytes()
        return content

    def _chmod(self, path: str) -> None:
        self.disk.chmod(path, 0o600)

    def _lock(self, path: str) -> None:
        self.disk.lock(path, b"me").release()

    def close(self) -> None:
        for handle in self.handles:
            handle.close()


def _tree(root: str) -> tuple[dict[str, bytes], set[str]]:
    files: dict[str, bytes] = {}
    directories: set[str] = set()
    for where, below, names in os.walk(root):
        inside = os.path.relpath(where, root)
        prefix = "" if inside == "." else f"{inside}/"
        directories.update(prefix + name for name in below)
        for name in names:
            with open(os.path.join(where, name), "rb") as file:
                files[prefix + name] = file.read()
    return files, directories


def test_a_file_in_place_of_a_directory() -> None:
    """Scenario: a directory is to be made where a file is. Guarantee: both disks refuse."""
    with tempfile.TemporaryDirectory() as root:
        for disk in (MemoryDisk(), PosixDisk(root)):
            disk.create("a").close()
            with pytest.raises(NotADirectoryError):
                disk.mkdir("a")


@settings(max_examples=300, deadline=None)
@given(steps=st.lists(_STEPS, min_size=5, max_size=30))
def test_both_disks_show_the_same(steps: list[Step]) -> None:
    """Scenario: any sequence of calls, senseless ones included, on both disks.

    Guarantee: each call gives the same value or the same errno, and the trees end up equal.
    """
    memory = MemoryDisk()
    in_memory = _Runner(memory)
    with tempfile.TemporaryDirectory() as root:
        real = _Runner(PosixDisk(root))
        try:
            assert in_memory.run(_SETUP + steps) == real.run(_SETUP + steps)
        finally:
            real.close()
        assert (memory.image(), set(memory.directories())) == _tree(root)


@settings(max_examples=300, deadline=None)
@given(
    base=st.dictionaries(st.sampled_from(["a", "d/a", "d/b"]), st.binary(max_size=20)),
    steps=st.lists(_STEPS.filter(lambda step: step[0] != "lock"), min_size=5, max_size=40),
)
def test_the_log_tells_the_whole_story(base: dict[str, bytes], steps: list[Step]) -> None:
    """Scenario: any sequence of calls, then a crash that loses nothing, or after syncing all.

    Guarantee: with every pending change the log gives exactly the disk's contents; once
    all is synced, nothing is pending; and the bytes accounted for are the bytes there.
    """
    disk = MemoryDisk.from_image(base)
    runner = _Runner(disk)
    runner.run([*_SETUP[:3], *([("open", path, True) for path in base]), *_SETUP[3:], *steps])
    runner.close()

    state = disk.durability()
    whole = {inode: settle(state.contents[inode], ops) for inode, ops in state.pending.items()}
    assert state.image(contents=whole, entries=state.pending_entries) == disk.image()
    assert set(state.directories(state.pending_entries)) == set(disk.directories())

    for inode in list(state.contents):
        state.apply(Sync(inode, data_only=True))
    for directory in ["", *disk.directories()]:
        state.apply(SyncDir(directory))
    assert (state.pending, state.pending_entries) == ({}, [])
    assert state.image() == disk.image()
    assert all(
        disk.stat_size(path) is None for path, it in state.entries.items() if it == DIRECTORY
    )
    assert disk.used == sum(map(len, disk.image().values()))
