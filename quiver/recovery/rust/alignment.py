"""Which entries of a Rust crate's log are which bundles of its segments.

Its segments carry neither sequence nor ingestion time, and its cursor says only where
the last of them ends.  So the two are laid side by side, backwards from the cursor, and
compared by content: slots, fingerprints and values.  What agrees is certain, and gives

* sequence and ingestion time of bundles in segments,
* the bundles of a segment that is damaged, as long as the log still has them,
* a warning when entries behind the cursor are in a segment all the same.

At the first disagreement the walk stops: nothing is guessed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, Protocol, TypeAlias, TypeVar

import pyarrow as pa

from quiver.errors import QuiverError
from quiver.format.wal.entry import BundleEntry, SlotBlock
from quiver.ids import BundleRef
from quiver.segment.reader import SegmentReader
from quiver.wal.contents import LogContents

MAX_SEARCH: Final = 4096
"""How many entries a segment of unknown size is looked for in."""


class AlignedEntry(Protocol):
    """A log entry, or a place where one can be read again."""

    def bundle(self) -> BundleEntry: ...


E = TypeVar("E", bound=AlignedEntry)

_Share: TypeAlias = tuple[int, Sequence[E]]
"""Entries of one segment, and the index of the first."""


@dataclass(frozen=True, slots=True)
class Sealed:
    """A sound segment, opened when it is read: there may be more than can be open at once."""

    seq: int
    count: int
    opener: Callable[[int], SegmentReader]

    def open(self) -> SegmentReader:
        return self.opener(self.seq)


@dataclass(frozen=True, slots=True)
class Numbered:
    """A segment number in use: ``sound``, or damaged or deleted.

    ``count`` is how many bundles it has, ``None`` if nothing says so any more.
    """

    seq: int
    count: int | None
    sound: Sealed | None = None


def in_order(
    sound: Mapping[int, Sealed],
    damaged: Collection[int],
    counts: Mapping[int, int | None],
) -> list[Numbered]:
    """All segment numbers from the oldest file on, with what is known about each.

    ``counts`` tell the bundles of segments that can't be asked, deleted ones among them.
    A run of numbers nobody knows anything about is one segment of unknown size.
    """
    oldest = min([*sound, *damaged], default=0)
    found: list[Numbered] = []
    following = oldest
    for seq in sorted({*sound, *damaged, *(seq for seq in counts if seq > oldest)}):
        if seq > following:
            found.append(Numbered(following, None))
        sealed = sound.get(seq)
        count = counts.get(seq) if sealed is None else sealed.count
        found.append(Numbered(seq, count, sealed))
        following = seq + 1
    return found


def starts_at_zero(log: LogContents) -> bool:
    """Whether a log goes back to the first entry ever written."""
    return bool(log.files) and log.files[0].header.position_start == 0


@dataclass(frozen=True, slots=True)
class Alignment(Generic[E]):
    """The entry of each bundle, as far as that is certain.

    ``unfinished`` are segments without any entry before the cursor: the crate was still
    writing them when it stopped, and their bundles lie behind the cursor.
    """

    entries: dict[BundleRef, E]
    unfinished: frozenset[int]

    def of(self, seq: int) -> dict[BundleRef, E]:
        """The entries of one segment."""
        return {ref: entry for ref, entry in self.entries.items() if ref.segment_seq == seq}


def align(entries: Sequence[E], segments: Sequence[Numbered], *, from_first: bool) -> Alignment[E]:
    """Lay log and segments side by side.

    ``entries`` are those before the cursor, ``segments`` all numbers from the oldest live
    one on, both in order.  ``from_first`` says that the log goes back to the first entry
    ever written.
    """
    shared = _align(entries, segments, from_first=from_first)
    flat = {
        BundleRef(seq, first + index): entry
        for seq, (first, part) in shared.items()
        for index, entry in enumerate(part)
    }
    return Alignment(flat, frozenset(seq for seq, (_, part) in shared.items() if not part))


def _align(
    entries: Sequence[E], segments: Sequence[Numbered], *, from_first: bool
) -> dict[int, _Share[E]]:
    found: dict[int, _Share[E]] = {}
    at, gap, met = len(entries), list[Numbered](), False
    for segment in reversed(segments):
        sealed = segment.sound
        if sealed is None:
            gap.append(segment)
            continue
        end = _end_of(entries, at, gap, sealed, met=met)
        if end is None:
            return found
        found |= _in_gap(entries[end:at], gap)
        count = min(sealed.count, end)
        found[segment.seq] = (sealed.count - count, entries[end - count : end])
        at, gap, met = end - count, [], True
        if not at:
            return found
    return found | _oldest_in_gap(entries[:at], gap, met=met, from_first=from_first)


def doubled(entries: Sequence[E], segments: Sequence[Sealed]) -> int:
    """How many of the first entries behind the cursor are at the end of the segments too.

    Content may repeat by itself, so this is a warning and never a reason to leave
    something out.
    """
    bundles = [(sealed, index) for sealed in segments for index in range(sealed.count)]
    for count in range(min(len(entries), len(bundles), MAX_SEARCH), 0, -1):
        pairs = zip(reversed(entries[:count]), reversed(bundles), strict=False)
        if all(same_bundle(sealed, index, entry) for entry, (sealed, index) in pairs):
            return count
    return 0


def fallen_back(count: int) -> str | None:
    """The warning for entries that :func:`doubled` found."""
    if not count:
        return None
    return f"the cursor has fallen back: {count:,} of its bundles seem to be in segments already"


# Where a segment ends in the log


def _end_of(
    entries: Sequence[E],
    at: int,
    gap: Sequence[Numbered],
    sealed: Sealed,
    *,
    met: bool,
) -> int | None:
    known = _total(gap)
    if known is not None:
        if _matches(entries, at - known, sealed, whole=False):
            return at - known
        if gap or met:
            return None
        # Before the first match: segments that were deleted may have come behind it.
    places = [
        end
        for end in range(at, max(0, at - MAX_SEARCH), -1)
        if _matches(entries, end, sealed, whole=True)
    ]
    return places[0] if len(places) == 1 else None


def _matches(entries: Sequence[E], end: int, sealed: Sealed, *, whole: bool) -> bool:
    count = sealed.count if whole else min(sealed.count, end)
    if end <= 0 or count > end or not count:
        return False
    return all(
        same_bundle(sealed, sealed.count - 1 - back, entries[end - 1 - back])
        for back in range(count)
    )


def _total(gap: Iterable[Numbered]) -> int | None:
    total = 0
    for segment in gap:
        if segment.count is None:
            return None
        total += segment.count
    return total


def _in_gap(entries: Sequence[E], gap: Sequence[Numbered]) -> dict[int, _Share[E]]:
    """Share entries out among unreadable segments (newest first) between two sound ones."""
    found: dict[int, _Share[E]] = {}
    at = len(entries)
    left = list(gap)
    while left and (count := left[0].count) is not None and count <= at:
        found[left.pop(0).seq] = (0, entries[at - count : at])
        at -= count
    if len(left) == 1 and left[0].count is None:
        found[left[0].seq] = (0, entries[:at])
    return found


def _oldest_in_gap(
    entries: Sequence[E], gap: Sequence[Numbered], *, met: bool, from_first: bool
) -> dict[int, _Share[E]]:
    """The same below the oldest sound segment: nothing confirms the far end."""
    if from_first and gap and gap[-1].seq == 0:
        # The log has all there ever was: it has to come out even.
        return _in_gap(entries, gap) if _total(gap) in (None, len(entries)) else {}
    if not met:
        return {}
    unknown = [index for index, segment in enumerate(gap) if segment.count is None]
    return _in_gap(entries, gap[: unknown[0]] if unknown else gap)


# Content


def same_bundle(sealed: Sealed, index: int, entry: AlignedEntry) -> bool:
    """Whether a bundle of a segment has the content of a log entry.

    The crate may have widened or undone dictionaries in the segment: values count.
    """
    try:
        reader = sealed.open()
        blocks = {block.slot: block for block in entry.bundle().slots}
        refs = {ref.slot_id: ref.stream_id for ref in reader.slot_refs(index)}
        if blocks.keys() != refs.keys():
            return False
        prints = {stream.stream_id: stream.schema_fingerprint for stream in reader.streams}
        if any(prints[refs[slot]] != block.fingerprint for slot, block in blocks.items()):
            return False
        return all(
            batch.num_rows == blocks[slot].rows and _same_values(batch, _decoded(blocks[slot]))
            for slot, batch in reader.read(index).items()
        )
    except (QuiverError, pa.ArrowException, OSError, ValueError):
        return False  # what can't be read can't be compared


def _decoded(block: SlotBlock) -> pa.RecordBatch:
    # Bytes of its own: the payload has any alignment.
    with pa.ipc.open_stream(pa.py_buffer(bytes(block.payload))) as reader:
        return reader.read_next_batch()


def _same_values(one: pa.RecordBatch, other: pa.RecordBatch) -> bool:
    return one.schema.names == other.schema.names and all(map(_same_column, one, other))


def _same_column(one: pa.Array, other: pa.Array) -> bool:
    one, other = _plain(one), _plain(other)
    if one.type == other.type and one.equals(other):
        return True
    # Dictionaries further down may differ and mean the same: compare as written out.
    return repr(one.to_pylist()) == repr(other.to_pylist())


def _plain(column: pa.Array) -> pa.Array:
    if pa.types.is_dictionary(column.type):
        return column.dictionary_decode()
    if pa.types.is_floating(column.type):  # NaN differs from itself, its bits don't
        return column.view(
            {16: pa.uint16(), 32: pa.uint32()}.get(column.type.bit_width, pa.uint64())
        )
    return column
