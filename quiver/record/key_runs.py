"""Writing and reading key runs: how idempotency keys outlive the log that they came with.

Keys are appended, never rewritten as a whole: a checkpoint writes the keys that are new since the
last one as a run (:mod:`quiver.format.keys`), so what it costs does not grow with the window.  In
this order, each step durable before the next::

    new runs  →  checkpoint that lists them  →  log files retired, runs no longer listed deleted

A crash before the checkpoint leaves files that no checkpoint lists; the next checkpoint, or the
next open, deletes them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from quiver.disk.disk import Disk
from quiver.errors import StateCorrupt, UnsupportedVersion
from quiver.format.keys import (
    KEYS,
    KeyRecord,
    KeyRun,
    damaged_run,
    decode_run,
    encode_run,
    sequence_of,
)

RUN_KEYS: Final = 8_192
"""Most keys in a run: about half a megabyte, so that a few fit the reserve of a full disk."""

FoundRuns = Mapping[KeyRun, tuple[KeyRecord, ...] | StateCorrupt | UnsupportedVersion]


class KeyRuns:
    """The runs on disk. They may be ahead of the checkpoint, if writing that one failed."""

    def __init__(self, disk: Disk, runs: Iterable[KeyRun]) -> None:
        self._disk = disk
        self._runs = list(runs)

    def cover(self, records: Sequence[KeyRecord]) -> tuple[KeyRun, ...]:
        """Make all these keys durable in runs: the list for the next checkpoint.

        ``records`` is the whole window in the order of its sequences: a run with none of them is
        left out of the list.  Small runs at the end are merged with the new keys, or a store with
        one key per log file would have thousands of them.
        """
        oldest = records[0].sequence if records else None
        kept = [run for run in self._runs if oldest is not None and run.last >= oldest]
        start = bisect_left(records, kept[-1].last + 1, key=sequence_of) if kept else 0
        count = len(records) - start
        # A run is merged only with as many new keys: each key is rewritten a dozen times at most.
        while count and kept and _may_grow(kept[-1], count):
            start = bisect_left(records, kept.pop().first, key=sequence_of)
            count = len(records) - start
        if not count:
            self._runs = kept
        for at in range(start, len(records), RUN_KEYS):
            kept.append(self._write(records[at : at + RUN_KEYS]))
            self._runs = kept  # should the next one fail, this one is not written again
        return tuple(kept)

    def _write(self, records: Sequence[KeyRecord]) -> KeyRun:
        if KEYS not in self._disk.listdir(""):
            self._disk.mkdir(KEYS)
            self._disk.fsync_dir("")
        run = KeyRun.of(records)
        self._disk.replace(run.path, encode_run(records))
        return run

    def remove_unlisted(self) -> None:
        """Delete the files that are not among the runs, which a durable checkpoint lists now.

        Not synced: a file that comes back after a crash is deleted by the next open.
        """
        remove_unlisted(self._disk, self._runs)


def _may_grow(run: KeyRun, count: int) -> bool:
    return run.count < 2 * count and run.count + count <= RUN_KEYS


def remove_unlisted(disk: Disk, runs: Iterable[KeyRun]) -> None:
    """Delete everything in ``keys/`` but these runs."""
    listed = {run.name for run in runs}
    for name in disk.listdir(KEYS):
        if name not in listed:
            disk.unlink(f"{KEYS}/{name}", missing_ok=True)


def read_runs(disk: Disk, runs: Iterable[KeyRun]) -> FoundRuns:
    """The keys of each run that a checkpoint lists, or what is wrong with its file."""
    return {run: _read(disk, run) for run in runs}


def _read(disk: Disk, run: KeyRun) -> tuple[KeyRecord, ...] | StateCorrupt | UnsupportedVersion:
    try:
        return decode_run(disk.read(run.path), run)
    except FileNotFoundError:
        return damaged_run(run, "is missing although the checkpoint lists it")
    except (StateCorrupt, UnsupportedVersion) as error:
        return error
