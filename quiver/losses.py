"""How much was lost with a segment that is not there to be asked.

Progress files say how many bundles they have seen of it; failing that, sequences that no
other segment has must have been in it (the log's own entries among them, so it is an upper
bound).
"""

from __future__ import annotations

from collections.abc import Sequence

from quiver.format.progress import Progress
from quiver.segment.info import SegmentInfo
from quiver.survey import Basics


def count_lost(
    seq: int, basics: Basics, segments: Sequence[SegmentInfo], committed: int | None = None
) -> tuple[int, dict[str, int]]:
    """The bundles of a lost segment: in all, and those each subscriber had not finished.

    ``committed`` is what the log says of a transaction's segment, if it still says so.
    """
    known = {name: one for name, one in basics.progress.items() if isinstance(one, Progress)}
    seen = [one.entries[seq].bundle_count for one in known.values() if seq in one.entries]
    total = committed or max(seen, default=0) or _unaccounted(seq, segments)
    left = {name: _unfinished(seq, one, total) for name, one in known.items()}
    return total, {name: count for name, count in left.items() if count}


def _unfinished(seq: int, progress: Progress, total: int) -> int:
    entry = progress.entries.get(seq)
    if entry is not None:
        return max(0, total - entry.done.bit_count())
    return total if progress.named and seq >= progress.oldest_incomplete else 0


def _unaccounted(seq: int, segments: Sequence[SegmentInfo]) -> int:
    before = [info.last_sequence for info in segments if info.seq < seq]
    after = [info.first_sequence for info in segments if info.seq > seq]
    first = max((last + 1 for last in before if last is not None), default=0)
    end = min((first for first in after if first is not None), default=first)
    return max(0, end - first)
