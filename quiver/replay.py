"""The log, read back into segments: what of it is not in a segment file yet.

Every bundle entry names its own ref, so replay needs no guesses: an entry whose segment
has a sound file, or had one once, is passed over; the others are put together again
under the numbers they had.  Damaged segment files that the log still covers are rebuilt
in the same way.
"""

from __future__ import annotations

from collections.abc import Callable

from quiver.errors import WalCorrupt
from quiver.format.commit import Commit
from quiver.format.ipc import MAX_KNOWN, parse_stream
from quiver.format.keys import KeyRecord
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.format.schema import SchemaMessage
from quiver.format.wal_entry import BundleEntry
from quiver.ids import BundleRef
from quiver.segment.accumulator import OpenSegment
from quiver.wal.contents import LogEntry


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
    key, content_hash, attributes, event_time = entry.extras
    return BundleMeta(
        entry.sequence,
        entry.ingestion_ts_ns,
        key,
        content_hash,
        attributes,
        event_time,
        rows,
        nbytes,
    )


class Replay:
    """Visits each sound entry of a log, in order."""

    def __init__(self, is_sealed: Callable[[int], bool], keys_from: int) -> None:
        self._is_sealed = is_sealed
        self._keys_from = keys_from
        self._segments: dict[int, OpenSegment] = {}
        self._schemas: dict[int, SchemaMessage] = {}
        self.names: dict[str, int] = {}
        self.keys: list[KeyRecord] = []
        self.commits: list[Commit] = []
        self.foreign: list[LogEntry] = []
        self.headless: set[int] = set()
        self.contradiction: WalCorrupt | None = None
        """An entry that can't follow the one before it: if nothing else explains it, damage."""
        self.bundles = 0
        self.nbytes = 0

    @property
    def segments(self) -> list[OpenSegment]:
        """Segments to be written, oldest first."""
        return [self._segments[seq] for seq in sorted(self._segments)]

    def __call__(self, entry: LogEntry) -> None:
        if not entry.is_bundle:
            self._take_note(entry)
            return
        ref = entry.ref
        if ref is None:
            self.foreign.append(entry)
            return
        wanted = not self._is_sealed(ref.segment_seq)
        if wanted or entry.sequence >= self._keys_from:
            self._take(entry, ref, wanted)

    def _take_note(self, entry: LogEntry) -> None:
        """An entry without bundles of its own."""
        named = entry.slot_name()
        if named is not None:
            self.names[named[1]] = named[0]
        commit = entry.commit()
        if commit is not None:
            self.commits.append(commit)

    def _take(self, entry: LogEntry, ref: BundleRef, wanted: bool) -> None:
        bundle = entry.bundle()
        extras = bundle.extras
        if extras.key is not None and extras.content_hash is not None:
            self.keys.append(
                KeyRecord(
                    extras.key, extras.content_hash, ref, bundle.sequence, entry.ingestion_ts_ns
                )
            )
        if not wanted or ref.segment_seq in self.headless:
            return
        segment = self._segments.get(ref.segment_seq)
        if segment is None:
            segment = self._segments[ref.segment_seq] = OpenSegment(ref.segment_seq)
        if ref.bundle_index != segment.bundle_count:
            self._misplaced(entry, ref, segment)
            return
        segment.append(encoded_slots(bundle, self._schemas), entry_meta(bundle))
        self.bundles += 1
        self.nbytes += len(entry.body)

    def _misplaced(self, entry: LogEntry, ref: BundleRef, segment: OpenSegment) -> None:
        """The log has only the end of a segment: its file is damaged, and what is left
        can't be a whole segment again.  Anything else is a log that contradicts itself."""
        if segment.bundle_count == 0:
            del self._segments[ref.segment_seq]
            self.headless.add(ref.segment_seq)
            return
        self.contradiction = self.contradiction or WalCorrupt(
            f"{entry.path} byte {entry.offset:,}: bundle {ref} follows"
            f" {segment.seq}.{segment.bundle_count - 1}. Nothing was changed.",
            advice="See what is left: quiver verify DIR.",
            file=entry.path,
            offset=entry.offset,
            sequence=entry.sequence,
        )
