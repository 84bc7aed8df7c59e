"""A process that is out of descriptors, and other threads that take each one that comes free."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import pyarrow as pa
import pytest

import quiver
from quiver.disk.descriptors import DESCRIPTORS, SPARES
from quiver.disk.disk import Disk
from quiver.disk.posix import PosixDisk
from tests.support.forked import in_child
from tests.support.stores import batch

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


class Thief:
    """Takes every descriptor that is free."""

    def __init__(self) -> None:
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 40, highest + 40))
        self._taken: list[int] = []
        self.take()

    def take(self) -> None:
        with suppress(OSError):
            while True:
                self._taken.append(os.dup(0))

    def give_back(self) -> None:
        while self._taken:
            os.close(self._taken.pop())


@contextmanager
def out_of_descriptors() -> Iterator[Thief]:
    thief = Thief()
    yield thief
    thief.give_back()


def test_opens_that_fail_and_listings_cost_no_reserve(tmp_path: Path) -> None:
    """Scenario: no descriptor is free but the reserve; files that are not there are opened, and
    directories listed, more often than the reserve is large, and whatever comes free is taken.
    Guarantee: the reserve is whole, and the store goes on."""

    def child() -> None:
        store = quiver.open(tmp_path / "store")
        disk = Disk(PosixDisk(tmp_path / "store"))
        with out_of_descriptors() as thief:
            for number in range(2 * SPARES):
                with suppress(FileNotFoundError):
                    disk.open("nothing")
                thief.take()
                assert disk.listdir("segments") is not None
                thief.take()
                store.put({"Logs": batch(number)}).wait()
            store.flush()
            assert DESCRIPTORS.spares > SPARES // 2
        store.close()

    in_child(child)


def test_upkeep_fills_the_reserve(tmp_path: Path) -> None:
    """Scenario: other threads have taken the whole reserve, and close their files later.
    Guarantee: the next round of upkeep has it back."""

    def child() -> None:
        store = quiver.open(tmp_path / "store")
        with out_of_descriptors() as thief:
            while DESCRIPTORS._give_up_spare():
                thief.take()
            store.maintain()
            assert DESCRIPTORS.spares < SPARES
        store.maintain()
        assert DESCRIPTORS.spares == SPARES
        store.close()

    in_child(child)


SPIED: Final = """
import sys
import pyarrow as pa
import quiver

found = pa.ipc.open_stream(sys.stdin.buffer.read()).read_next_batch()
store = quiver.open(sys.argv[1])
asked = []

class Spy:
    @staticmethod
    def find_spec(name, path=None, target=None):
        asked.append(name)

sys.meta_path.insert(0, Spy)
store.put({"Logs": found}, key="k").wait()
store.flush()
store.maintain()
print(asked)
"""


def test_a_put_imports_nothing(tmp_path: Path) -> None:
    """Scenario: the first put of a process, of a batch that came from elsewhere. Guarantee: no
    module is looked for: without a free descriptor that would fail with an error of Python's."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch(1).schema) as writer:
        writer.write_batch(batch(1))
    done = subprocess.run(
        [sys.executable, "-c", SPIED, str(tmp_path / "store")],
        input=sink.getvalue().to_pybytes(),
        capture_output=True,
        check=True,
    )
    assert done.stdout.decode().strip() == "[]"
