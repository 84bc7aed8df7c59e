"""Which segments there are, and the readers kept open.

A start looks at footers and directories only, so that its time goes with the number of
files and not with their size; the checksum is looked at when a segment is first read.
What to do about a damaged one (rebuild it from the log, or put it aside) is decided by
whoever knows the log.
"""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from quiver.disk.disk import Disk
from quiver.errors import BundleGone, Damage
from quiver.segment.aside import set_aside, settle_aside
from quiver.segment.info import (
    SEGMENTS,
    TMP_SUFFIX,
    SegmentInfo,
    parse_name,
    segment_path,
)
from quiver.segment.reader import ReadMode, SegmentReader, load_info
from quiver.segment.source import Mapping


@dataclass(frozen=True, slots=True)
class Quarantined:
    """A file that was put aside, where it is now, and why."""

    seq: int
    path: str
    error: Damage


class Catalog:
    """All sealed segments of one store. Safe to use from any thread."""

    def __init__(self, disk: Disk, mode: ReadMode = "mmap", max_mapped: int = 256) -> None:
        self._disk = disk
        self._mode: ReadMode = mode
        self._max_mapped = max_mapped
        self._lock = threading.Lock()
        self._infos: dict[int, SegmentInfo] = {}
        self._readers: OrderedDict[int, SegmentReader] = OrderedDict()
        self._verified: set[int] = set()
        # Mappings given out, by segment: an unlinked file's bytes are free only without them.
        self._mappings: dict[int, list[weakref.ref[Mapping]]] = {}
        self._unlinked: dict[int, int] = {}
        self.file_bytes = 0
        """Bytes of all segment files; kept up to date, since every put may ask."""
        self.quarantined: list[Quarantined] = []

    def scan(self, *, clean: bool = True) -> dict[int, Damage]:
        """Find all segments; those that can't be taken as they are, with the reason.

        ``clean`` removes files that a crash left half-written; a look at a store that
        belongs to somebody else must not.
        """
        infos, damaged = {}, {}
        leftovers = []
        for name in self._disk.listdir(SEGMENTS):
            seq = parse_name(name)
            if seq is not None:
                try:
                    infos[seq] = load_info(self._disk, seq)
                except Damage as error:
                    damaged[seq] = error
            elif parse_name(name.removesuffix(TMP_SUFFIX)) is not None:
                leftovers.append(name)
        if clean and leftovers:
            for name in leftovers:
                self._unlink(f"{SEGMENTS}/{name}")
            self._disk.fsync_dir(SEGMENTS)
        with self._lock:
            self._infos = infos
            self.file_bytes = sum(info.file_bytes for info in infos.values())
        return damaged

    @property
    def infos(self) -> list[SegmentInfo]:
        """All segments, oldest first."""
        with self._lock:
            return list(self._infos.values())

    def info(self, seq: int) -> SegmentInfo | None:
        """One segment, if it is here."""
        return self._infos.get(seq)

    def __contains__(self, seq: object) -> bool:
        return seq in self._infos

    def __len__(self) -> int:
        return len(self._infos)

    @property
    def bytes(self) -> int:
        """Bytes on disk, also of files that are unlinked but still mapped by a reader."""
        with self._lock:
            self._forget_unmapped()
            return self.file_bytes + self.unlinked_bytes

    @property
    def unlinked_bytes(self) -> int:
        """Bytes of files that are unlinked and were still mapped when last looked at."""
        return sum(self._unlinked.copy().values())

    def forget_unmapped(self) -> None:
        """Look whether readers have let go of unlinked files."""
        with self._lock:
            self._forget_unmapped()

    @property
    def open_readers(self) -> int:
        """Segments kept open for reading."""
        return len(self._readers)

    def add(self, *infos: SegmentInfo) -> None:
        """Segments that were just written; nobody sees some of them without the others."""
        with self._lock:
            for info in infos:
                self._drop(info.seq)
                self.file_bytes += info.file_bytes
                in_order = not self._infos or info.seq > next(reversed(self._infos))
                self._infos[info.seq] = info
                if not in_order:
                    self._infos = dict(sorted(self._infos.items()))

    def hide(self, seqs: Iterable[int]) -> None:
        """Forget segments whose files stay: those that they belong with are still to come."""
        with self._lock:
            for seq in seqs:
                self._drop(seq)

    def reader(self, seq: int) -> SegmentReader:
        """A reader, kept for the next time; its file is checked once per process."""
        with self._lock:
            found = self._readers.get(seq)
            if found is not None:
                self._readers.move_to_end(seq)
                return found
            verify = seq not in self._verified
            info = self._infos.get(seq)
            if info is None:
                raise _gone(seq)
        # Opening reads the whole file once: others must not wait for that.
        try:
            opened = SegmentReader.open(self._disk, seq, mode=self._mode, verify=verify)
        except FileNotFoundError:
            raise _gone(seq) from None
        with self._lock:
            return self._keep(seq, opened, info)

    def _keep(self, seq: int, opened: SegmentReader, info: SegmentInfo) -> SegmentReader:
        if opened.source.mapping is not None:
            self._forget_unmapped()
            self._mappings.setdefault(seq, []).append(opened.source.mapping)
        if self._infos.get(seq) is not info:
            return opened  # removed or replaced meanwhile: good for this one use
        self._verified.add(seq)
        kept = self._readers.setdefault(seq, opened)
        self._readers.move_to_end(seq)
        while len(self._readers) > self._max_mapped:
            self._readers.popitem(last=False)
        return kept

    def remove(self, seqs: Iterable[int]) -> int:
        """Delete segments, durably; the bytes their files had."""
        freed = 0
        try:
            for seq in seqs:
                info = self._infos.get(seq)
                if info is not None:
                    self._unlink(segment_path(seq))
                    freed += info.file_bytes
                    with self._lock:
                        self._drop(seq)
                        self._unlinked[seq] = info.file_bytes
        finally:
            self.forget_unmapped()
            if freed:
                self._disk.fsync_dir(SEGMENTS)
        return freed

    def quarantine(self, seq: int, error: Damage) -> Quarantined:
        """Put a damaged file aside; it is never deleted by Quiver."""
        path = segment_path(seq)
        target = set_aside(self._disk, path)
        with self._lock:
            self._drop(seq)
        settle_aside(self._disk, path)
        record = Quarantined(seq, target, error)
        self.quarantined.append(record)
        return record

    def close(self) -> None:
        """Let go of the readers kept; batches that somebody holds stay whole."""
        with self._lock:
            self._readers.clear()

    def _drop(self, seq: int) -> None:
        info = self._infos.pop(seq, None)
        self.file_bytes -= 0 if info is None else info.file_bytes
        self._readers.pop(seq, None)
        self._verified.discard(seq)

    def _unlink(self, path: str) -> None:
        with suppress(FileNotFoundError):
            self._disk.unlink(path)

    def _forget_unmapped(self) -> None:
        for seq, mappings in list(self._mappings.items()):
            alive = [mapping for mapping in mappings if mapping() is not None]
            if alive:
                self._mappings[seq] = alive
            else:
                del self._mappings[seq]
        for seq in self._unlinked.keys() - self._mappings.keys():
            del self._unlinked[seq]


def _gone(seq: int) -> BundleGone:
    return BundleGone(f"segment {seq} is not here any more.", outcome="deleted", segment=seq)
