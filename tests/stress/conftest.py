"""What every stress test gets: stacks when it hangs, and a look at what it leaves behind."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
import threading
from collections.abc import Iterator

import pytest

from quiver.disk.descriptors import DESCRIPTORS

HANG_SECONDS = 60.0
"""Long before the test's own limit: then the stacks are printed, and the test goes on."""


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


@pytest.fixture(autouse=True)
def _stacks_when_it_hangs() -> Iterator[None]:
    faulthandler.dump_traceback_later(HANG_SECONDS, file=2)
    yield
    faulthandler.cancel_dump_traceback_later()


@pytest.fixture(autouse=True)
def _leaves_nothing_behind() -> Iterator[None]:
    """No thread and no descriptor is left when everything has been closed."""
    gc.collect()
    DESCRIPTORS.keep_reserve()  # made with a process's first store, and kept for all of them
    threads, files = set(threading.enumerate()), open_files()
    yield
    gc.collect()
    assert set(threading.enumerate()) <= threads
    assert open_files() <= files


@pytest.fixture
def _frantic() -> Iterator[None]:
    """Threads switch as often as the interpreter can: for races with a narrow door."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
