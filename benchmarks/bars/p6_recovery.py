"""P6: opening a store that crashed with a log full of bundles, 100 KiB each, warm.

Against reading the same bytes into memory that is kept, as recovery has to keep them until
their segments are written, and checksumming them.  Both read with ``pread``.  The child that
crashes has some bundles in flight, as a producer has: an entry's proof of what was synced
before it comes from those who wait.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import quiver
from benchmarks.bar import Bar, Scale, fresh
from quiver.format.crc import crc32

BUNDLE = 100 << 10
MAX_BYTES = 128 << 20
WINDOW = 160
"""Bundles in flight, 16 MiB: as in the put bars."""
SETTINGS: dict[str, Any] = {
    "segment__target_size": "256MiB",
    "wal__max_size": "2GiB",
    "wal__max_rotated_files": 40,
    "segment__max_open_duration": 3600,
}


def crash(directory: Path, nbytes: int) -> None:
    """A child fills the log and is killed; its segments were never written."""
    program = (
        "import os, signal, sys, quiver\n"
        "from collections import deque\n"
        "from pathlib import Path\n"
        "from benchmarks.bars import p6_recovery as p6\n"
        "from benchmarks.data import telemetry\n"
        "store = quiver.open(Path(sys.argv[1]), **p6.SETTINGS)\n"
        "batch = telemetry(p6.BUNDLE)\n"
        "waiting = deque()\n"
        "for _ in range(int(sys.argv[2]) // p6.BUNDLE):\n"
        "    waiting.append(store.put({'Logs': batch}))\n"
        "    if len(waiting) >= p6.WINDOW:\n"
        "        waiting.popleft().wait()\n"
        "store.sync()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(directory), str(nbytes)], check=False)
    if done.returncode != -signal.SIGKILL:
        raise RuntimeError(f"the child that should crash ended with {done.returncode}")


def measure(directory: Path, scale: Scale) -> float:
    nbytes = min(MAX_BYTES, scale.nbytes)
    crash(directory / "store", nbytes)
    size = sum(path.stat().st_size for path in (directory / "store" / "wal").iterdir())
    began = time.perf_counter()
    store = quiver.open(directory / "store", **SETTINGS)
    elapsed = time.perf_counter() - began
    if store.report.bundles_replayed != nbytes // BUNDLE:
        raise RuntimeError(f"only {store.report.bundles_replayed} bundles came back")
    store.close()
    return size / elapsed / 1e6


def reference(directory: Path, scale: Scale) -> float:
    nbytes = min(MAX_BYTES, scale.nbytes)
    crash(directory / "store", nbytes)
    paths = sorted((directory / "store" / "wal").glob("quiver.wal*"))
    began = time.perf_counter()
    size = 0
    kept = []
    for path in paths:
        fd = os.open(path, os.O_RDONLY)
        try:
            while data := os.read(fd, 1 << 20):
                crc32(data)
                size += len(data)
                kept.append(data)
        finally:
            os.close(fd)
    return size / (time.perf_counter() - began) / 1e6


P6 = Bar(
    name="P6",
    what="recovery of a crashed store, log of 100 KiB bundles",
    unit="MB/s",
    reference_name="reading, checksumming and keeping the same bytes",
    prepare=fresh(measure, reference),
    mark=0.7,
    goal=0.9,
)
