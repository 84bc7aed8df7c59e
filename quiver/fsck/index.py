"""The bundles of a log as places, so that a log of any size can be looked at.

A place is a few numbers; the entry itself is read again when somebody wants it, and
checked again, since it may have gone meanwhile: these tools also look at stores that
are being written to.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from quiver.disk.disk import Disk
from quiver.errors import InvalidBundle, LimitExceeded, WalCorrupt
from quiver.format.commit import Commit
from quiver.format.crc import crc32
from quiver.format.wal_entry import FRAME, BundleEntry
from quiver.format.wal_scan import RESIDUE
from quiver.ids import BundleRef
from quiver.replay import encoded_slots
from quiver.wal.contents import LogEntry


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sound bundle entry lies. ``ref`` is ``None`` in a log of the Rust crate."""

    disk: Disk
    path: str
    offset: int
    position: int
    kind: int
    sequence: int
    ingestion_ts_ns: int
    body_length: int
    ref: BundleRef | None

    @property
    def end_position(self) -> int:
        return self.position + self.body_length + FRAME

    def entry(self) -> LogEntry:
        """Read it again."""
        with self.disk.open(self.path) as file:
            data = file.pread(self.body_length + FRAME, self.offset)
        body = memoryview(data)[4:-4]
        entry = LogEntry(self.path, self.offset, self.position, self.kind, self.sequence, body)
        whole = len(data) == self.body_length + FRAME and crc32(memoryview(data)[4:]) == RESIDUE
        if not whole or not self._is_here(entry):
            raise WalCorrupt(
                f"{self.path} byte {self.offset:,}: the entry was sound and isn't any more.",
                advice="If the store is being written to, look again.",
                file=self.path,
                offset=self.offset,
                sequence=self.sequence,
            )
        return entry

    def _is_here(self, entry: LogEntry) -> bool:
        """A recycled file may hold another sound entry at the very place."""
        sequence = int.from_bytes(entry.body[9:17], "little")
        return (sequence, entry.ref, entry.ingestion_ts_ns) == (
            self.sequence,
            self.ref,
            self.ingestion_ts_ns,
        )

    def bundle(self) -> BundleEntry:
        return self.entry().bundle()


@dataclass(slots=True)
class LogIndex:
    """Visits each sound entry of a log, in order."""

    disk: Disk
    places: list[Place] = field(default_factory=list)
    names: dict[str, int] = field(default_factory=dict)
    commits: list[Commit] = field(default_factory=list)
    unreadable: list[WalCorrupt] = field(default_factory=list)
    """Entries that pass their checksum and make no sense."""

    def __call__(self, entry: LogEntry) -> None:
        try:
            if entry.is_bundle:
                check_entry(entry)
                self.places.append(_place(self.disk, entry))
            elif (named := entry.slot_name()) is not None:
                self.names[named[1]] = named[0]
            elif (commit := entry.commit()) is not None:
                self.commits.append(commit)
        except WalCorrupt as damage:
            self.unreadable.append(damage)


def check_entry(entry: LogEntry) -> None:
    """Raise ``WalCorrupt`` unless every slot of a bundle can be taken apart."""
    try:
        encoded_slots(entry.bundle())
    except (InvalidBundle, LimitExceeded) as error:
        raise WalCorrupt(
            f"{entry.path} byte {entry.offset:,}: {error.message}",
            file=entry.path,
            offset=entry.offset,
            sequence=entry.sequence,
        ) from None


def _place(disk: Disk, entry: LogEntry) -> Place:
    return Place(
        disk,
        entry.path,
        entry.offset,
        entry.position,
        entry.kind,
        entry.sequence,
        entry.ingestion_ts_ns,
        len(entry.body),
        entry.ref,
    )
