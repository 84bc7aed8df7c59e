"""Loaded by Python itself into the processes of a round that hold a store.

Three things a round can do to them from outside, by the environment:

``CHAOS_CLOCK``   a file with one signed 64-bit number: nanoseconds the wall clock is off by
``CHAOS_SLOW``    milliseconds that a sync or a rename takes at most: time for others to meet it
``CHAOS_STACKS``  a file that SIGUSR1 writes the stacks of all threads to
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import random
import signal
import struct
import time
from collections.abc import Callable
from typing import Any


def _patch_clock(path: str) -> None:
    with open(path, "r+b") as file:
        offset = mmap.mmap(file.fileno(), 8)
    read = struct.Struct("<q").unpack_from
    true_ns, true = time.time_ns, time.time
    time.time_ns = lambda: true_ns() + int(read(offset)[0])
    time.time = lambda: true() + read(offset)[0] / 1e9


def _slow_down(most_ms: float) -> None:
    chance = random.Random(os.getpid())
    pause = time.sleep

    def slowed(call: Callable[..., Any]) -> Callable[..., Any]:
        def slow(*arguments: Any, **named: Any) -> Any:
            pause(chance.random() ** 3 * most_ms / 1000)  # mostly quick, now and then not
            return call(*arguments, **named)

        return slow

    for name in ("fsync", "fdatasync", "rename"):
        setattr(os, name, slowed(getattr(os, name)))


if "CHAOS_CLOCK" in os.environ:
    _patch_clock(os.environ["CHAOS_CLOCK"])
if float(os.environ.get("CHAOS_SLOW", "0")) > 0:
    _slow_down(float(os.environ["CHAOS_SLOW"]))
if "CHAOS_STACKS" in os.environ:
    with contextlib.suppress(OSError, ValueError):
        _stacks = open(os.environ["CHAOS_STACKS"], "a")  # noqa: SIM115 - open as long as we run
        faulthandler.register(signal.SIGUSR1, _stacks, all_threads=True)
