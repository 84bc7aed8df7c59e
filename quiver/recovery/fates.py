"""What each segment number stands for: decided here, for opening and for every tool.

================================================  =========
found                                             fate
================================================  =========
its number is in the floor's list of those        DELETED
  without a file, whatever else is left of it
a file without damage                             SEALED
no file, a sound staged file that a commit in     WAITING
  the log has made this segment
no file yet, and the log has all of it            IN_LOG
a damaged file, or one that must have been        REBUILD
  there, and the log has all of it
a damaged file, a missing one, a damaged staged   DAMAGED
  file, or bundles that are not in the log
================================================  =========

Of a DAMAGED segment some bundles may still be read: those the log has, and those that
:mod:`quiver.segment.salvage` finds intact in its file.  The rest is lost.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from quiver.errors import Damage
from quiver.format.floor import Floor
from quiver.format.progress import Progress
from quiver.format.segment.stage import Transaction
from quiver.ids import MAX_BUNDLES_PER_SEGMENT
from quiver.record.app_versions import record_of
from quiver.record.ledger import DAMAGED
from quiver.recovery.replay import Content, LogVisitor, build_segment
from quiver.recovery.survey import Findings
from quiver.segment.open_segment import OpenSegment

Found: TypeAlias = Findings[LogVisitor]


class Fate(StrEnum):
    """What becomes of a segment number when the store is opened."""

    SEALED = "sealed"
    IN_LOG = "in log"
    REBUILD = "rebuild"
    WAITING = "committed"
    DAMAGED = "damaged"
    DELETED = "deleted"


@dataclass(frozen=True, slots=True)
class SegmentFate:
    """One segment number.

    ``count`` is how many bundles it has; not ``exact``, an upper bound.  ``readable`` are the
    indexes of those that can be read; of SEALED and WAITING ones, all of them.
    """

    seq: int
    fate: Fate
    count: int
    exact: bool = True
    readable: Collection[int] = ()
    error: Damage | None = None

    @property
    def lost(self) -> list[int]:
        """Indexes that can't be read any more."""
        if self.fate is not Fate.DAMAGED:
            return []
        return [index for index in range(self.count) if index not in self.readable]


def judge_all(found: Found) -> dict[int, SegmentFate]:
    """Every number that stands for something, in order."""
    return {seq: judge(found, seq) for seq in sorted(_numbers(found))}


def judge(found: Found, seq: int) -> SegmentFate:
    """What one number stands for, by the table above."""
    files, waiting = found.files, found.waiting.get(seq)
    if is_deleted(found, seq):
        return SegmentFate(seq, Fate.DELETED, 0)
    info = files.infos.get(seq)
    if info is not None and seq not in files.damaged:
        return SegmentFate(seq, Fate.SEALED, info.bundle_count, True, range(info.bundle_count))
    if waiting is not None and waiting.error is None:
        bundles = waiting.file.bundles
        return SegmentFate(seq, Fate.WAITING, bundles, True, range(bundles))
    in_log = found.replay.indexes(seq)
    error = files.damaged.get(seq) or (None if waiting is None else waiting.error)
    must_have_file = error is not None or was_sealed(found, seq)
    count, exact = _count(found, seq, in_log, guess=must_have_file)
    if in_log and len(in_log) >= count:
        fate = Fate.REBUILD if must_have_file else Fate.IN_LOG
        return SegmentFate(seq, fate, count, True, in_log, error)
    readable = {*in_log, *intact_indexes(found, seq)}
    return SegmentFate(seq, Fate.DAMAGED, count, exact, readable, error)


def is_deleted(found: Found, seq: int) -> bool:
    """Whether a number has no file, and rightly so: everyone had finished it, or it is on
    record as dropped or lost, or it was never used."""
    floor, gaps = found.basics.known_floor, found.basics.known_state.gaps
    return (
        seq in found.files.deleted
        or (seq < floor.replay_floor and floor.is_gone(seq))
        or any(gap.segments[0] <= seq < gap.segments[1] for gap in gaps)
    )


def was_sealed(found: Found, seq: int) -> bool:
    """Whether a number must have had a file once."""
    return seq < found.basics.known_floor.replay_floor or seq in _begun(found)


def _numbers(found: Found) -> set[int]:
    """Numbers that stand for something, as far as the files know."""
    floor, files = found.basics.floor, found.files
    gaps = [gap.segments for gap in found.basics.known_state.gaps]
    missing = set(floor.missing(files.numbers, gaps)) if isinstance(floor, Floor) else set()
    in_log = {seq for seq in found.replay.numbers if not is_deleted(found, seq)}
    known = {*files.numbers, *files.deleted, *in_log, *found.waiting}
    return known | missing | _needed(found) | _begun(found)


def _needed(found: Found) -> set[int]:
    """Segments that a subscriber's progress file says it was shown, and that must be there.

    Files of the Rust crate may go on listing segments that were deleted: those don't count.
    """
    floor = found.basics.floor
    return {
        seq
        for progress in _named(found)
        for seq, entry in progress.entries.items()
        if not is_deleted(found, seq)
        if entry.done.bit_count() < entry.bundle_count
        or (isinstance(floor, Floor) and seq >= floor.replay_floor)
    }


def _begun(found: Found) -> set[int]:
    """Where the subscribers stand: without a floor, all that tells lost from deleted."""
    if isinstance(found.basics.floor, Floor):
        return set()
    newest = max(found.files.numbers, default=0)
    first = {progress.oldest_incomplete for progress in _named(found)}
    return {seq for seq in first if seq < newest}


def _named(found: Found) -> Iterator[Progress]:
    return (one for one in found.basics.known_progress.values() if one.named)


def salvage_segment(found: Found, fate: SegmentFate, reason: str = DAMAGED) -> OpenSegment:
    """A segment of what can still be read of it; the rest are placeholders."""
    salvaged = found.files.salvaged(fate.seq)

    def content(index: int) -> Content | None:
        if index not in fate.readable:
            return None
        if index in found.replay.indexes(fate.seq) or salvaged is None:
            return found.replay.content(fate.seq, index)
        return salvaged.segment.encoded(index), salvaged.segment.meta(index)

    end = max([fate.count, *(index + 1 for index in fate.readable)])
    return build_segment(fate.seq, map(content, range(end)), reason)


def transaction_of(found: Found, seq: int) -> Transaction | None:
    """The transaction that a segment was committed with, as the log or its file knows it."""
    for commit in found.replay.commits:
        if commit.first_segment <= seq < commit.end_segment:
            return commit.transaction
    info = found.files.known_info(seq)
    return None if info is None else info.transaction


def intact_indexes(found: Found, seq: int) -> set[int]:
    """Bundles of a damaged file that are as written."""
    salvaged = found.files.salvaged(seq)
    if salvaged is None:
        return set()
    return set(range(salvaged.segment.bundle_count)).difference(salvaged.lost)


# How many bundles a segment has


def _count(found: Found, seq: int, in_log: Collection[int], *, guess: bool) -> tuple[int, bool]:
    """How many bundles a segment without a sound file has to have, and whether that is
    exact.  Without ``guess`` it was never sealed: what the log and subscribers know is all.
    """
    salvaged, info = found.files.salvaged(seq), found.files.infos.get(seq)
    if salvaged is not None:
        return salvaged.segment.bundle_count, True
    if info is not None:
        return info.bundle_count, True
    if seq in found.committed:
        return found.committed[seq].bundles, True
    counts = found.basics.known_state.bundle_counts
    if seq in counts:
        return counts[seq], True
    shown = [one for one in found.basics.known_progress.values() if seq in one.entries]
    # Subscribers are shown what is durable, so they never know of more than there is.
    least = max([0, *in_log, *(one.entries[seq].bundle_count - 1 for one in shown)]) + 1
    if in_log or (shown and not guess):
        return least, True
    if any(one.first_unused_segment > seq + 1 or not one.named for one in shown):
        return least, True  # it was closed already when this progress was written
    return max(_most(found, seq), least if shown else 1), False


def _most(found: Found, seq: int) -> int:
    """An upper bound.

    All bundles of a transaction share one sequence, so sequences bound nothing where a
    commit may have made the segment; then only the record of that commit does.
    """
    state = found.basics.known_state
    records = [*state.transactions, *map(record_of, found.replay.commits)]
    infos = found.files.infos.values()
    for record in records:
        numbers = range(record.first_segment, record.first_segment + record.segments)
        if seq in numbers:
            return record.bundles - sum(i.bundle_count for i in infos if i.seq in numbers)
    if records or any(info.transaction is not None for info in infos):
        return MAX_BUNDLES_PER_SEGMENT
    return _unaccounted(found, seq)


def _unaccounted(found: Found, seq: int) -> int:
    """Sequences that no other segment has may have been in it.

    The log's own entries (slot names, watermarks, commits) have sequences too, so this is
    an upper bound.  The newest segment of a store without a log has none: nothing says where
    its sequences ended, and the checkpoint may be older than the segment.
    """
    infos = found.files.infos.values()
    before = [info.last_sequence for info in infos if info.seq < seq]
    after = [info.first_sequence for info in infos if info.seq > seq]
    after += [file.header.first_sequence for file in found.log.files[:1]]
    known = [sequence for sequence in after if sequence is not None]
    if not known:
        return MAX_BUNDLES_PER_SEGMENT
    end = min(known)
    first = max((last + 1 for last in before if last is not None), default=0)
    never = sum(
        max(0, min(end, gap.sequences[1]) - max(first, gap.sequences[0]))
        for gap in found.basics.known_state.gaps
    )
    count = end - first - never
    return min(count, MAX_BUNDLES_PER_SEGMENT) if count > 0 else MAX_BUNDLES_PER_SEGMENT
