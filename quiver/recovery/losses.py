"""What counts as lost, and for whom.

*Lost* is a bundle that can't be read any more and that some subscriber still needed; it
counts once, however many needed it.  What every subscriber had finished is *reclaimed*,
not lost.  A store without subscribers keeps its data for those to come: there, everything
that can't be read is lost.

Indexes are bitmaps here, bundle 0 in the lowest bit, as in progress files.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from quiver.errors import QuiverError
from quiver.format.progress import Progress
from quiver.format.state import Loss, index_ranges
from quiver.record.ledger import ALL, DAMAGED, Ledger
from quiver.recovery.fates import Fate, Found, SegmentFate


def damage_losses(
    fates: Iterable[SegmentFate], found: Found, ledger: Ledger, at_ns: int
) -> Iterator[Loss]:
    """The ledger's new rows for what damage took: none for what all had finished, or what is
    on record already.  Rows that are there name all who need their bundles now."""
    progress = found.basics.progress
    known = all(isinstance(one, Progress) for one in progress.values())
    for one in fates:
        if one.fate is not Fate.DAMAGED:
            continue
        unfinished = {name: left_of(entry, one.seq) for name, entry in progress.items()}
        on_record = ledger.indexes(one.seq)
        ledger.name_also(one.seq, bits_of(one.lost) & on_record, unfinished)
        lost = bits_of(one.lost) & ~on_record
        info = found.files.infos.get(one.seq)
        whole = info is not None and lost.bit_count() == one.count
        nbytes = info.nbytes if info is not None and whole else 0
        exact = one.exact and known
        loss = loss_of(
            one.seq, lost, unfinished, DAMAGED, at_ns, nbytes, exact=exact, named=one.exact
        )
        if loss is not None:
            yield loss


def loss_of(
    seq: int,
    lost: int,
    unfinished: Mapping[str, int],
    reason: str,
    at_ns: int,
    nbytes: int = 0,
    *,
    exact: bool = True,
    named: bool = True,
) -> Loss | None:
    """The ledger's row for bundles that are about to be given up; ``None``: all had finished.

    ``unfinished`` are the bundles that each subscriber has not finished.  Not ``named``, the
    row stands for the whole segment.
    """
    waiting = {name: (bits & lost).bit_count() for name, bits in unfinished.items()}
    needed = needed_of(lost, unfinished.values())
    if not needed:
        return None
    return Loss(
        seq,
        needed.bit_count(),
        nbytes,
        reason,
        at_ns,
        {name: count for name, count in waiting.items() if count},
        index_ranges(needed) if named else None,
        exact,
    )


def needed_of(lost: int, unfinished: Collection[int]) -> int:
    """Of these bundles those that some subscriber had not finished; without one, all."""
    needed = 0 if unfinished else lost
    for bits in unfinished:
        needed |= bits & lost
    return needed


def bits_of(indexes: Collection[int]) -> int:
    """These bundles as a bitmap."""
    marks = bytearray(max(indexes, default=-1) // 8 + 1)
    for index in indexes:
        marks[index // 8] |= 1 << index % 8
    return int.from_bytes(marks, "little")


def left_of(progress: Progress | QuiverError, seq: int) -> int:
    """The bundles of a segment that a subscriber has not finished.

    One whose file can't be read may have finished none.  The Rust crate lists every segment
    that is not finished; in our files, what is not listed was not begun.
    """
    if not isinstance(progress, Progress):
        return ALL
    entry = progress.entries.get(seq)
    if entry is not None:
        return ~entry.done
    return ALL if progress.named and seq >= progress.oldest_incomplete else 0


def left_or_dropped(progress: Progress | QuiverError, seq: int) -> int:
    """The bundles of a segment that a subscriber did not finish by itself."""
    left = left_of(progress, seq)
    entry = progress.entries.get(seq) if isinstance(progress, Progress) else None
    return left if entry is None else left | entry.dropped
