"""The log, read back: what it has of each segment.

Every bundle entry names its own ref, so reading needs no guesses.  A :class:`LogVisitor`
is shown each sound entry in order and keeps what all readers want (slot names, commits);
a subclass decides what is kept of a bundle: :class:`Replay` keeps the bundle itself,
:class:`~quiver.offline.index.LogIndex` only its place.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeAlias

from quiver.clock import TimeMark
from quiver.errors import WalCorrupt
from quiver.format.arrow.ipc import MAX_KNOWN, parse_stream
from quiver.format.arrow.schema import SchemaMessage
from quiver.format.keys import KeyRecord
from quiver.format.record import LOST_ATTRIBUTE, BundleMeta, EncodedSlot
from quiver.format.wal.commit import Commit
from quiver.format.wal.entry import BundleEntry
from quiver.ids import BundleRef
from quiver.segment.open_segment import OpenSegment
from quiver.segment.reader import SegmentReader
from quiver.wal.contents import LogEntry

Content: TypeAlias = tuple[list[EncodedSlot], BundleMeta]
"""A bundle, ready to be appended to a segment."""


def encoded_slots(
    entry: BundleEntry, known: dict[int, SchemaMessage] | None = None
) -> list[EncodedSlot]:
    """The slots of a log entry, over the memory it was read into.

    ``known`` holds the schemas that the slots had before, in a log that we wrote: they
    seldom change.
    """
    blocks = entry.slots
    if len(blocks) > 1:
        blocks = tuple(sorted(blocks, key=lambda block: block.slot))
    found: list[EncodedSlot] = []
    for slot, fingerprint, _, payload in blocks:
        expected = None if known is None else known.get(slot)
        batch = parse_stream(payload, max_bytes=MAX_KNOWN, known=expected)
        if known is not None:
            known[slot] = batch.schema
        found.append(EncodedSlot(slot, fingerprint, batch))
    return found


def entry_meta(entry: BundleEntry) -> BundleMeta:
    """A log entry's metadata, as its segment will carry it."""
    rows = nbytes = 0
    for block in entry.slots:
        rows += block.rows
        nbytes += len(block.payload)
    key, content_hash, attributes, event_time, producer = entry.extras
    return BundleMeta(
        entry.sequence,
        entry.ingestion_ts_ns,
        key,
        content_hash,
        attributes,
        event_time,
        rows,
        nbytes,
        entry.store_ts_ns,
        producer,
    )


def key_of(meta: BundleMeta, ref: BundleRef) -> KeyRecord | None:
    """The idempotency key that a bundle came with."""
    if meta.key is None or meta.content_hash is None:
        return None
    ts = meta.aged_from_ns or 0
    return KeyRecord(meta.key, meta.content_hash, ref, meta.sequence or 0, ts)


def keys_in(reader: SegmentReader) -> Iterator[KeyRecord]:
    """The keys of a segment's bundles."""
    for index in range(len(reader)):
        found = key_of(reader.meta(index), BundleRef(reader.seq, index))
        if found is not None:
            yield found


def entry_content(entry: BundleEntry) -> Content:
    """A log entry as a bundle of a segment."""
    return encoded_slots(entry), entry_meta(entry)


def build_segment(
    seq: int, bundles: Iterable[Content | None], reason: str = "damaged"
) -> OpenSegment:
    """A segment from its bundles, in order.

    A lost bundle (``None``) leaves a placeholder that no subscriber is given, so that the
    others keep their refs.
    """
    segment = OpenSegment(seq)
    for content in bundles:
        slots, meta = content or ([], BundleMeta(attributes={LOST_ATTRIBUTE: reason}))
        segment.append(slots, meta)
    return segment


class LogVisitor(ABC):
    """Visits each sound entry of a log, in order."""

    def __init__(self) -> None:
        self.names: dict[str, int] = {}
        self._named = 0
        """The slots that have a name by now, as a bitmap: most bundles need not be asked."""
        self.commits: list[Commit] = []
        self._newest: LogEntry | None = None
        self.stamped: LogEntry | None = None
        """The newest bundle or commit: what has an ingestion time of its own."""

    @property
    def mark(self) -> TimeMark | None:
        """Store time and wall clock when the newest entry was made, where they are recorded."""
        entry = self._newest
        store_ts = None if entry is None else entry.store_ts_ns
        if entry is None or store_ts is None:
            return None
        return TimeMark(store_ts, entry.ingestion_ts_ns)

    def __call__(self, entry: LogEntry) -> None:
        self._newest = entry
        if entry.is_bundle:
            self.stamped = entry
            if entry.slots & ~self._named:
                for slot, name in entry.slot_names().items():
                    self._name(slot, name)
            self.take(entry, entry.ref)
        elif (named := entry.slot_name()) is not None:
            self._name(*named)
        elif (commit := entry.commit()) is not None:
            self.stamped = entry
            self.commits.append(commit)

    def _name(self, slot: int, name: str) -> None:
        self.names[name] = slot
        self._named |= 1 << slot

    @abstractmethod
    def take(self, entry: LogEntry, ref: BundleRef | None) -> None:
        """A bundle's entry. ``ref`` is ``None`` in a log of the Rust crate."""

    @property
    @abstractmethod
    def numbers(self) -> Collection[int]:
        """Segments of which a bundle was kept."""

    @abstractmethod
    def indexes(self, seq: int) -> Collection[int]:
        """Which bundles of a segment were kept."""

    @abstractmethod
    def content(self, seq: int, index: int) -> Content:
        """One of them."""


class Replay(LogVisitor):
    """Keeps the bundles of segments that need the log: those without a sound file.

    Damaged segment files that the log still covers are rebuilt in the same way.
    """

    def __init__(self, is_sealed: Callable[[int], bool], keys_from: int) -> None:
        super().__init__()
        self._is_sealed = is_sealed
        self._keys_from = keys_from
        self._segments: dict[int, OpenSegment] = {}
        self._schemas: dict[int, SchemaMessage] = {}
        self.keys: list[KeyRecord] = []
        self.foreign: list[LogEntry] = []
        self.headless: dict[int, dict[int, Content]] = {}
        """Bundles of segments whose first entries the log has retired already."""
        self.contradiction: WalCorrupt | None = None
        """An entry that can't follow the one before it: if nothing else explains it, damage."""
        self.bundles = 0
        self.nbytes = 0

    @property
    def segments(self) -> list[OpenSegment]:
        """Segments to be written, oldest first."""
        return [self._segments[seq] for seq in sorted(self._segments)]

    @property
    def numbers(self) -> Collection[int]:
        return self._segments.keys() | self.headless.keys()

    def indexes(self, seq: int) -> Collection[int]:
        segment = self._segments.get(seq)
        return self.headless.get(seq, ()) if segment is None else range(segment.bundle_count)

    def content(self, seq: int, index: int) -> Content:
        segment = self._segments.get(seq)
        if segment is None:
            return self.headless[seq][index]
        return segment.encoded(index), segment.meta(index)

    def keep(self, numbers: Iterable[int]) -> None:
        """Forget all segments but these."""
        kept = set(numbers)
        self._segments = {seq: one for seq, one in self._segments.items() if seq in kept}
        self.headless.clear()

    def take(self, entry: LogEntry, ref: BundleRef | None) -> None:
        if ref is None:
            self.foreign.append(entry)
            return
        wanted = not self._is_sealed(ref.segment_seq)
        if not wanted and entry.sequence < self._keys_from:
            return
        bundle = entry.bundle()
        meta = entry_meta(bundle)
        key = key_of(meta, ref)
        if key is not None:
            self.keys.append(key)
        if wanted:
            self._keep(entry, ref, (encoded_slots(bundle, self._schemas), meta))

    def _keep(self, entry: LogEntry, ref: BundleRef, content: Content) -> None:
        seq, index = ref
        if seq not in self._segments and (index or seq in self.headless):
            # The log has only the end of a segment whose file is damaged or missing.
            self.headless.setdefault(seq, {})[index] = content
            return
        segment = self._segments.setdefault(seq, OpenSegment(seq))
        if index != segment.bundle_count:
            self.contradiction = self.contradiction or WalCorrupt(
                f"{entry.path} byte {entry.offset:,}: bundle {ref} follows"
                f" {seq}.{segment.bundle_count - 1}. Nothing was changed.",
                advice="See what is left: quiver verify DIR.",
                file=entry.path,
                offset=entry.offset,
                sequence=entry.sequence,
            )
            return
        segment.append(*content)
        self.bundles += 1
        self.nbytes += len(entry.body)
