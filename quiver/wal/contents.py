"""What reading a log gives: files, entries, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from struct import Struct
from typing import TypeAlias

from quiver.disk.disk import Disk
from quiver.errors import UnsupportedVersion, WalCorrupt
from quiver.format.wal.commit import Commit, decode_commit
from quiver.format.wal.entry import (
    BUNDLE,
    COMMIT,
    FOREIGN_BUNDLE,
    SLOT_NAME,
    BundleEntry,
    Framing,
    decode_bundle,
    decode_slot_name,
    decode_slot_names,
    slot_bitmap,
)
from quiver.ids import BundleRef
from quiver.wal.files import ACTIVE, LogFile
from quiver.wal.scan import FileScan, LogPiece

_REF = Struct("<QI")


class LogEntry:
    """A sound entry, decoded only when asked. ``body`` is a slice of what was read."""

    __slots__ = ("body", "framing", "kind", "offset", "path", "position", "sequence")

    def __init__(
        self,
        path: str,
        offset: int,
        position: int,
        kind: int,
        sequence: int,
        body: memoryview,
        framing: Framing,
    ) -> None:
        self.path = path
        self.offset = offset
        self.position = position
        self.kind = kind
        self.sequence = sequence
        self.body = body
        self.framing = framing

    @property
    def is_bundle(self) -> bool:
        """Whether :meth:`bundle` gives anything: other kinds are control entries."""
        return self.kind in (BUNDLE, FOREIGN_BUNDLE)

    @property
    def end_position(self) -> int:
        """Position behind it: what a cursor that covers it says."""
        return self.position + len(self.body) + 8

    @property
    def ref(self) -> BundleRef | None:
        """The bundle's own ref; ``None`` if it is not a bundle of ours."""
        if self.kind != BUNDLE:
            return None
        start = self.framing.prefix_size
        found = bytes(self.body[start : start + _REF.size])
        return BundleRef(*_REF.unpack(found.ljust(_REF.size, b"\0")))

    @property
    def ingestion_ts_ns(self) -> int:
        return int.from_bytes(self.body[1:9], "little", signed=True)

    @property
    def store_ts_ns(self) -> int | None:
        """Store time; ``None`` in logs that don't record it."""
        return self.framing.store_ts(self.body)

    def bundle(self) -> BundleEntry:
        """Decode it; ``WalCorrupt`` names the place if it can't be."""
        try:
            return decode_bundle(self.body, self.framing)
        except WalCorrupt as error:
            raise self._placed(error) from None

    @property
    def slots(self) -> int:
        """Which slots the bundle has, as a bitmap."""
        return slot_bitmap(self.body)

    def slot_names(self) -> dict[int, str]:
        """What the bundle says its slots are called."""
        if self.kind != BUNDLE:
            return {}
        try:
            return decode_slot_names(self.body, self.framing)
        except WalCorrupt as error:
            raise self._placed(error) from None

    def slot_name(self) -> tuple[int, str] | None:
        """Slot id and name, if this is an entry that gives one."""
        if self.kind != SLOT_NAME:
            return None
        try:
            return decode_slot_name(self.body, self.framing)
        except WalCorrupt as error:
            raise self._placed(error) from None

    def commit(self) -> Commit | None:
        """The transaction, if this is an entry that commits one."""
        if self.kind != COMMIT:
            return None
        try:
            return decode_commit(self.body, self.framing)
        except WalCorrupt as error:
            raise self._placed(error) from None

    def _placed(self, error: WalCorrupt) -> WalCorrupt:
        return WalCorrupt(
            f"{self.path} byte {self.offset:,}: {error.message}",
            advice=error.advice,
            file=self.path,
            offset=self.offset,
            sequence=self.sequence,
        )


Visit: TypeAlias = Callable[[LogEntry], None]


@dataclass(frozen=True, slots=True)
class TornTail:
    """An unfinished write at the end of a file. Nothing in it was ever called durable.

    ``offset`` 0 means that not even the head is there.  ``sequence`` is the one that was
    expected at that place.  In a log of the Rust crate, where nothing is ever proven to be
    durable, sound entries may follow; ``until`` is then the sequence of the first.
    """

    file: str
    offset: int
    length: int
    sequence: int
    reason: str
    until: int | None = None

    def describe(self) -> str:
        """For people: where, what, and what may be gone."""
        end = "on" if self.until is None else f"to {self.until - 1:,}"
        return (
            f"{self.file} byte {self.offset:,}: {self.reason};"
            f" entries from sequence {self.sequence:,} {end} are not there"
        )


@dataclass(frozen=True, slots=True)
class LogDamage:
    """Entries that were synced and are not there any more.

    ``until`` is the first sequence that is sound again, ``None`` if nothing follows.
    """

    file: str
    offset: int
    sequence: int
    until: int | None
    reason: str


@dataclass(frozen=True, slots=True)
class LogStart:
    """What a writer has to know about the log it goes on from."""

    next_sequence: int = 0
    position: int = 0
    next_file_number: int = 1
    files: tuple[LogFile, ...] = ()


@dataclass(frozen=True, slots=True)
class LogContents:
    """The log as it was found. Reading changed nothing.

    ``proven_end`` is the offset in the last file up to which entries are known to have
    been synced; behind it they may be in the page cache only.
    """

    disk: Disk
    files: tuple[LogFile, ...]
    torn_tails: tuple[TornTail, ...]
    damage: tuple[LogDamage, ...]
    next_sequence: int
    position: int
    proven_end: int
    last_ts_ns: int
    newer: tuple[UnsupportedVersion, ...] = ()
    """Files, or the rest of one, that only a newer version can read: passed over when asked to
    salvage."""

    @property
    def torn(self) -> TornTail | None:
        """The torn tail; a log of the Rust crate may have one in several files."""
        return self.torn_tails[-1] if self.torn_tails else None

    @property
    def foreign(self) -> bool:
        """Whether any file was written by the Rust crate."""
        return any(file.header.foreign for file in self.files)

    @property
    def sealed(self) -> bool:
        """Whether the log was closed cleanly."""
        return bool(self.files) and self.files[-1].sealed and not self.torn_tails

    @property
    def bundles(self) -> int:
        return sum(file.bundles for file in self.files)

    def entries(self) -> Iterator[LogEntry]:
        """All sound entries in order, read again from the files."""
        for log_file in self.files:
            with self.disk.open(log_file.path) as file:
                for run in log_file.runs:
                    framing = log_file.header.framing
                    scan = FileScan(file, run.end, run.start, run.sequence, framing)
                    for piece in scan.pieces():
                        yield from entries_of(log_file.path, log_file.header_shift, piece, framing)

    def start(self) -> LogStart:
        """Where a writer goes on, once :func:`~quiver.wal.repair.repair_tail` is done."""
        numbers = [file.number for file in self.files if file.number is not None]
        files = tuple(
            replace(file, path=ACTIVE) if file.number is None else file for file in self.files
        )
        return LogStart(self.next_sequence, self.position, max(numbers, default=0) + 1, files)


def entries_of(path: str, shift: int, piece: LogPiece, framing: Framing) -> Iterator[LogEntry]:
    """The entries of a piece; ``shift`` turns an offset in the file into a position."""
    view, base, found = piece
    for start, end, kind, sequence, _, _ in found:
        offset = base + start
        body = view[start + 4 : end - 4]
        yield LogEntry(path, offset, offset + shift, kind, sequence, body, framing)
