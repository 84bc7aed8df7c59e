"""The bundles of a log as places, so that a log of any size can be looked at.

A place is a few numbers; the entry itself is read again when somebody wants it, and
checked again, since it may have gone meanwhile: these tools also look at stores that
are being written to.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from quiver.disk.disk import Disk
from quiver.errors import InvalidBundle, LimitExceeded, WalCorrupt
from quiver.format.crc import crc32
from quiver.format.wal.entry import FRAME, V1_FRAMING, BundleEntry, Framing
from quiver.format.wal.scan import RESIDUE
from quiver.ids import BundleRef
from quiver.recovery.replay import Content, LogVisitor, encoded_slots, entry_content
from quiver.wal.contents import LogEntry


@dataclass(frozen=True, slots=True)
class LogPlace:
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
    framing: Framing

    @property
    def end_position(self) -> int:
        return self.position + self.body_length + FRAME

    def entry(self) -> LogEntry:
        """Read it again."""
        with self.disk.open(self.path) as file:
            data = file.pread(self.body_length + FRAME, self.offset)
        body = memoryview(data)[4:-4]
        entry = LogEntry(
            self.path, self.offset, self.position, self.kind, self.sequence, body, self.framing
        )
        whole = len(data) == self.body_length + FRAME
        sound = whole and crc32(memoryview(data)[4:], self.framing.seed) == RESIDUE
        if not sound or not self._is_here(entry):
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


class LogIndex(LogVisitor):
    """Keeps the place of each bundle."""

    def __init__(self, disk: Disk) -> None:
        super().__init__()
        self._disk = disk
        self._by_segment: dict[int, dict[int, LogPlace]] = defaultdict(dict)
        self.places: list[LogPlace] = []
        self.unreadable: list[WalCorrupt] = []
        """Entries that pass their checksum and make no sense."""
        self.not_self_named = 0
        """The slots, as a bitmap, of bundles that 0.1.0 wrote: they don't carry their names."""

    def __call__(self, entry: LogEntry) -> None:
        try:
            super().__call__(entry)
        except WalCorrupt as damage:
            self.unreadable.append(damage)

    def take(self, entry: LogEntry, ref: BundleRef | None) -> None:
        check_entry(entry)
        place = LogPlace(
            self._disk,
            entry.path,
            entry.offset,
            entry.position,
            entry.kind,
            entry.sequence,
            entry.ingestion_ts_ns,
            len(entry.body),
            ref,
            entry.framing,
        )
        self.places.append(place)
        if entry.framing.version == V1_FRAMING.version:
            self.not_self_named |= entry.slots
        if ref is not None:
            self._by_segment[ref.segment_seq][ref.bundle_index] = place

    @property
    def numbers(self) -> Collection[int]:
        return self._by_segment.keys()

    def indexes(self, seq: int) -> Collection[int]:
        return self.of_segment(seq).keys()

    def of_segment(self, seq: int) -> Mapping[int, LogPlace]:
        """The places of a segment's bundles, by index."""
        return self._by_segment.get(seq, {})

    def content(self, seq: int, index: int) -> Content:
        return entry_content(self._by_segment[seq][index].bundle())


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
