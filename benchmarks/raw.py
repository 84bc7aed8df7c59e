"""The references: what the machine does without Quiver."""

from __future__ import annotations

import mmap
import os
import threading
import time
from pathlib import Path

LAP = 64 << 20
SEGMENT = 32 << 20
CHUNK = 4 << 20


def append(directory: Path, message: memoryview, count: int, group: int) -> float:
    """``pwritev`` and ``fdatasync`` of the same bytes, a group at a time, in laps; MB/s."""
    fd = os.open(directory / "raw", os.O_CREAT | os.O_RDWR, 0o600)
    try:
        _one_lap(fd)  # blocks allocated: as a recycled log file has them
        offset, began = 0, time.perf_counter()
        for first in range(0, count, group):
            buffers = [message] * min(group, count - first)
            size = sum(len(buffer) for buffer in buffers)
            if offset + size > LAP:
                offset = 0
            offset += os.pwritev(fd, buffers, offset)
            os.fdatasync(fd)
        return count * len(message) / (time.perf_counter() - began) / 1e6
    finally:
        os.close(fd)


def twice(directory: Path, message: memoryview, count: int, group: int) -> float:
    """The same bytes to a log, and by a second thread to new files past the page cache: all
    that must reach the disk where data is logged first and sorted into files; MB/s."""
    segments = threading.Thread(target=_segments, args=(directory, count * len(message)))
    began = time.perf_counter()
    segments.start()
    append(directory, message, count, group)
    segments.join()
    return count * len(message) / (time.perf_counter() - began) / 1e6


def _segments(directory: Path, nbytes: int) -> None:
    chunk = memoryview(mmap.mmap(-1, CHUNK))
    flags = os.O_CREAT | os.O_RDWR | os.O_DIRECT
    for number in range(-(-nbytes // SEGMENT)):
        fd = os.open(directory / f"segment{number}", flags, 0o600)
        for offset in range(0, min(SEGMENT, nbytes - number * SEGMENT), CHUNK):
            os.pwrite(fd, chunk, offset)
        os.fsync(fd)
        os.close(fd)


def _one_lap(fd: int) -> None:
    zeros = bytes(1 << 20)
    for offset in range(0, LAP, len(zeros)):
        os.pwrite(fd, zeros, offset)
    os.fsync(fd)
