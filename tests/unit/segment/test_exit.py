"""A process that has read segments ends with its own exit code."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa

import quiver

READ: Final = """
import os, sys
from quiver.disk.disk import Disk
from quiver.disk.posix import PosixDisk
from quiver.segment.reader import SegmentReader, stream_schemas

def threads():
    return sorted(os.listdir("/proc/self/task"))

disk = Disk(PosixDisk(sys.argv[1]))
before = threads()
for seq in range(2):
    with SegmentReader.open(disk, seq, mode=sys.argv[2], verify=True) as reader:
        for index in range(len(reader)):
            reader.read(index)
            reader.encoded(index)
    list(stream_schemas(disk, seq, ()))
assert threads() == before, "Arrow has started threads of its own"
"""


def test_reading_segments_starts_no_thread_of_arrow(tmp_path: Path) -> None:
    """Segments are opened, verified and read in every mode; then the process ends.

    No thread of Arrow's I/O pool is started: one that lets go of a Python object while the
    interpreter ends aborts the process (`quiver verify` ended with SIGABRT under load, after
    the right text).
    """
    with quiver.open(tmp_path / "store", reserve=0) as store:
        store.register("keeps")
        for number in range(2):
            words = pa.array(["a", "b"]).dictionary_encode()
            store.put({"Logs": pa.record_batch({"n": [number] * 2, "w": words})}).wait()
            store.flush()
    for mode in ("pread", "mmap"):
        done = subprocess.run(
            [sys.executable, "-c", READ, str(tmp_path / "store"), mode],
            cwd=Path(__file__).parents[3],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, (mode, done.stderr[-2000:])
