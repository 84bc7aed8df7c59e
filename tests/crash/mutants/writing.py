"""Faults of writing: a sync left out, a failed one believed, a claim that isn't true."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from quiver.disk.disk import Disk, File
from quiver.format.keys import KEYS
from quiver.format.progress import encode_progress
from quiver.format.wal import scan as wal_scan
from quiver.format.wal.entry import seal_bundle
from quiver.ingest import ingest
from quiver.record.key_window import KeyWindow
from quiver.segment.info import SEGMENTS
from quiver.segment.segments import Segments
from quiver.subscriber import progress, subscriber
from quiver.wal import log_files as active
from quiver.wal import reader
from quiver.wal.files import ACTIVE, DIRECTORY
from quiver.wal.log_files import LogFiles
from tests.crash.mutants.tools import instead, mutant, skip_dir_sync, skip_file_sync


@mutant()
def ack_before_sync() -> AbstractContextManager[Any]:
    """A group is called durable although it is only written."""
    return skip_file_sync("fdatasync", lambda path: path == ACTIVE)


@mutant()
def new_log_file_unsynced() -> AbstractContextManager[Any]:
    """A log file gets its name before its first group is synced."""
    return skip_file_sync("fsync", lambda path: path.endswith((".new", ".spare")))


@mutant()
def log_directory_unsynced() -> AbstractContextManager[Any]:
    """A log file's name may be lost."""
    return skip_dir_sync(DIRECTORY)


@mutant("segment_only")
def segment_name_unsynced() -> AbstractContextManager[Any]:
    """Without a log: a segment's bundles are durable, its name is not."""
    return skip_dir_sync(SEGMENTS)


@mutant("consumers")
def root_directory_unsynced() -> AbstractContextManager[Any]:
    """Progress and checkpoint may fall back after they were called durable."""
    return skip_dir_sync("")


@mutant("segment_only", "laps")
def segment_unsynced() -> AbstractContextManager[Any]:
    """A segment gets its name before its bytes are synced."""
    return skip_file_sync("fsync", lambda path: path.endswith(".qseg.tmp"))


@mutant("consumers")
def progress_unsynced() -> AbstractContextManager[Any]:
    """A progress file gets its name before its bytes are synced."""
    return skip_file_sync("fsync", lambda path: path.startswith("quiver.sub."))


@mutant()
def floor_unsynced() -> AbstractContextManager[Any]:
    """The segment floor gets its name before its bytes are synced."""
    return skip_file_sync("fsync", lambda path: path.endswith("segment.seq.tmp"))


@mutant()
def checkpoint_unsynced() -> AbstractContextManager[Any]:
    """The checkpoint gets its name before its bytes are synced."""
    return skip_file_sync("fsync", lambda path: path == "quiver.state.tmp")


@mutant("laps")
def run_unsynced() -> AbstractContextManager[Any]:
    """A key run gets its name, and a place in the checkpoint, before its bytes are synced."""
    return skip_file_sync("fsync", lambda path: path.startswith(f"{KEYS}/"))


@mutant("laps")
def run_name_unsynced() -> AbstractContextManager[Any]:
    """The checkpoint lists a key run whose name may be lost."""
    return skip_dir_sync(KEYS)


@mutant("consumers")
def progress_in_place() -> AbstractContextManager[Any]:
    """Progress is written over the old file instead of beside it."""

    def replace(disk: Disk, name: str, value: Any) -> None:
        path = progress.progress_file(name)
        data = encode_progress(value)
        file = disk.open(path, write=True) if disk.stat_size(path) else disk.create(path)
        with file:
            file.truncate(0)
            file.write_all([data], 0)
            file.fsync()
        disk.fsync_dir("")

    return instead(subscriber, "keep_progress", replace)


# A failed sync, a failed write


@mutant("bad_fsync")
def fsync_tried_again() -> AbstractContextManager[Any]:
    """A failed fsync is tried once more, and believed."""

    def sync(self: File, op: str, call: Callable[[], None]) -> None:
        try:
            call()
        except OSError:
            call()

    return instead(File, "_sync", sync)


@mutant("bad_fsync")
def fsync_error_ignored() -> AbstractContextManager[Any]:
    """A failed fsync is taken for a good one."""

    def sync(self: File, op: str, call: Callable[[], None]) -> None:
        with contextlib.suppress(OSError):
            call()

    return instead(File, "_sync", sync)


@mutant("disk_full")
def rollback_without_truncate() -> AbstractContextManager[Any]:
    """What a failed write left behind stays in the file."""

    def roll_back(self: LogFiles, error: Exception) -> None:
        if self._active is not None:
            self._active.end = self._active.good

    return instead(LogFiles, "roll_back", roll_back)


@mutant("disk_full")
def rollback_forgets_the_tail() -> AbstractContextManager[Any]:
    """The log takes a failed group back, the segment in memory keeps it."""
    return instead(Segments, "rolled_back", lambda self, sequence: None)


@mutant("disk_full")
def rollback_forgets_the_keys() -> AbstractContextManager[Any]:
    """The key of a failed put is remembered: its retry is taken for a repeat."""
    return instead(KeyWindow, "forget_from", lambda self, sequence: None)


# The log's own claims


@mutant()
def claims_to_be_synced() -> AbstractContextManager[Any]:
    """Entries say that everything before them was synced: a torn tail looks like damage."""
    original = seal_bundle

    def seal(body: Any, sequence: int, synced_before: int, *rest: Any, **named: Any) -> Any:
        return original(body, sequence, sequence, *rest, **named)

    return instead(ingest, "seal_bundle", seal)


@mutant()
def checksum_not_compared() -> AbstractContextManager[Any]:
    """Half an entry at the end of the log is taken for an entry."""
    return instead(wal_scan, "crc32", lambda data, value=0: wal_scan.RESIDUE)


@mutant()
def damage_cut_off() -> AbstractContextManager[Any]:
    """An entry that was synced and is bad is cut off like a torn tail."""
    return instead(reader._Log, "_damage_at_stop", lambda self, index, scan: None)


@mutant("laps")
def no_terminator() -> AbstractContextManager[Any]:
    """In a file written over, the old lap's bytes follow the new end."""
    return instead(active, "TERMINATOR", b"")
