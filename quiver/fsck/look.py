"""One look at a directory: everything read, nothing changed, nothing refused.

The store may be written to meanwhile.  So the order is progress, log, stages, segments, in which
a bundle can only move towards what is read later, and the whole look is taken again if
files came or went during it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from quiver.disk.disk import Disk
from quiver.errors import Busy, Damage, NotFound, QuiverError
from quiver.format.floor import FLOOR_PATH
from quiver.format.progress import Progress
from quiver.fsck.index import LogIndex
from quiver.fsck.staged import Staged, look_at_stages
from quiver.segment.catalog import Catalog
from quiver.segment.info import SEGMENTS, SegmentInfo, parse_name
from quiver.segment.reader import SegmentReader
from quiver.subscriber.progress import FILE_PREFIX
from quiver.survey import Basics, look_at_basics
from quiver.wal.contents import LogContents, LogEntry
from quiver.wal.files import log_names
from quiver.wal.reader import read_log

MAX_LOOKS: Final = 20
"""A store that changes faster than it can be read this many times is too busy."""

MAX_OPEN: Final = 32
"""Segments held open at a time: descriptors are few."""

Watch = Callable[[str, int], None]
"""Called with a file's path and how many of its bytes were just read."""


class Segments:
    """The segment files, each checked once, every byte, when somebody asks.

    Without ``check`` their tables are read and the data isn't: for a quick look.
    """

    def __init__(self, disk: Disk, watch: Watch | None, *, check: bool) -> None:
        self._disk = disk
        self._watch = watch
        self._check = check
        self.infos: dict[int, SegmentInfo] = {}
        self.damaged: dict[int, QuiverError] = {}
        self.deleted: set[int] = set()
        self._checked: set[int] = set()
        self._open: OrderedDict[int, SegmentReader] = OrderedDict()

    def listed(self, catalog: Catalog, damaged: dict[int, Damage]) -> None:
        """Take over what a scan of the files' ends found."""
        self.infos = {info.seq: info for info in catalog.infos}
        self.damaged = dict(damaged)

    @property
    def numbers(self) -> list[int]:
        """All numbers with a file, sound or not."""
        return sorted(self.infos.keys() | self.damaged.keys())

    def sound(self, seq: int) -> SegmentReader | None:
        """A reader, if there is a file and every byte of it is as written."""
        if seq in self.damaged or seq not in self.infos:
            return None
        try:
            return self.open(seq)
        except FileNotFoundError:
            del self.infos[seq]  # finished and deleted since the look
            self.deleted.add(seq)
        except QuiverError as error:
            self.damaged[seq] = error
        return None

    def open(self, seq: int) -> SegmentReader:
        """A reader, checked the first time; or the error, ``FileNotFoundError`` too."""
        found = self._open.get(seq)
        if found is not None:
            self._open.move_to_end(seq)
            return found
        verify = self._check and seq not in self._checked
        # Not mapped: a failing disk must end in an error, not in a signal.
        found = SegmentReader.open(self._disk, seq, mode="pread", verify=verify)
        if seq not in self._checked and self._watch is not None:
            self._watch(found.path, found.info.file_bytes)
        self._checked.add(seq)
        self._open[seq] = found
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
        return found

    def count_of(self, seq: int) -> int | None:
        """How many bundles a damaged file says it has, if it can still be asked."""
        try:
            return len(SegmentReader.open(self._disk, seq, mode="pread", verify=False))
        except (FileNotFoundError, QuiverError):
            return None


@dataclass(frozen=True, slots=True)
class Look:
    """Everything found."""

    disk: Disk
    basics: Basics
    log: LogContents
    index: LogIndex
    stages: Staged
    segments: Segments

    @property
    def progress(self) -> dict[str, Progress]:
        """The subscribers whose files can be read."""
        return {n: p for n, p in self.basics.progress.items() if isinstance(p, Progress)}

    @property
    def subscribers(self) -> list[str]:
        """All known subscribers."""
        return sorted(self.basics.progress)

    @property
    def foreign(self) -> bool:
        """Whether the log, or else the segments, are the Rust crate's."""
        return self.log.foreign or (not self.log.files and self.basics.floor is None)


def look(disk: Disk, *, watch: Watch | None = None, check: bool = True) -> Look:
    """Look at everything, again if it changed meanwhile."""
    if not holds_a_store(disk):
        raise no_store()
    for _ in range(MAX_LOOKS):
        before = _stamp(disk)
        try:
            found = _look_once(disk, watch, check)
        except FileNotFoundError:
            continue
        if _stamp(disk) == before:
            return found
    raise too_busy()


def no_store() -> NotFound:
    """The error for a directory that isn't one."""
    return NotFound(
        "there is no store here: neither a log nor a segment nor a checkpoint.",
        advice="Name the directory that has wal/ and segments/ in it.",
    )


def too_busy() -> Busy:
    """The error for a store that doesn't hold still."""
    return Busy(
        "the store changes faster than it can be read.",
        advice="Stop its writer, or try again when it is less busy.",
    )


def holds_a_store(disk: Disk) -> bool:
    """Whether anything in a directory is a store's."""
    top = disk.listdir("")
    return (
        bool(log_names(disk))
        or any(parse_name(name) is not None for name in disk.listdir(SEGMENTS))
        or disk.stat_size(FLOOR_PATH) is not None
        or "quiver.state" in top
        or any(name.startswith(FILE_PREFIX) for name in top)
    )


def _look_once(disk: Disk, watch: Watch | None, check: bool) -> Look:
    index = LogIndex(disk)
    seen: dict[str, int] = {}

    def visit(entry: LogEntry) -> None:
        index(entry)
        if watch is not None:
            end = entry.offset + len(entry.body)
            watch(entry.path, end - seen.get(entry.path, 0))
            seen[entry.path] = end

    catalog = Catalog(disk, "pread")
    early = look_at_basics(disk, catalog, clean=False)
    log = read_log(disk, layout_hash=None, visit=visit, salvage=True)
    stages = look_at_stages(disk, index.commits, check=check)
    segments = Segments(disk, watch, check=check)
    segments.listed(catalog, catalog.scan(clean=False))
    return Look(disk, early, log, index, stages, segments)


def _stamp(disk: Disk) -> object:
    """Changes when a file comes or goes: what a look must not straddle."""
    try:
        floor = disk.read(FLOOR_PATH)
    except FileNotFoundError:
        floor = b""
    segments = [name for name in disk.listdir(SEGMENTS) if parse_name(name) is not None]
    return floor, segments, log_names(disk)
