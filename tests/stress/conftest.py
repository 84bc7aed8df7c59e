"""What every stress test gets: stacks when it hangs, and a look at what it leaves behind."""

from __future__ import annotations

import faulthandler
import gc
import os
import sys
import threading
from collections.abc import Iterator

import pytest

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
    threads, files = set(threading.enumerate()), open_files()
    yield
    gc.collect()
    assert set(threading.enumerate()) <= threads
    assert open_files() <= files


@pytest.fixture(params=[0.005, 1e-6], ids=["usual", "frantic"])
def _switching(request: pytest.FixtureRequest) -> Iterator[None]:
    """As the interpreter does it, and as often as it can: for races with a narrow door."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(request.param)
    yield
    sys.setswitchinterval(before)
