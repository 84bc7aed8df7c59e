"""Directories of the Rust crate: which of its log entries are bundles of their own, and
which refs those get.

Its segments carry no sequence, so the cursor alone says which entries are in segments
already.  With a cursor that fits the log, nothing is lost and nothing doubled; without
one (missing, damaged, or written in coordinates that the files contradict) every entry
is taken: a double is a nuisance, a loss breaks the promise.

Entries that are only in the log get refs by :func:`plan_refs`, a pure function of the
directory, so that every tool that looks computes the same ones; the first open writes
them as segments and retires the log.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Generic, Protocol, TypeVar

from quiver.ids import BundleRef
from quiver.wal.contents import LogContents

MAX_PLANNED_BUNDLES: Final = 65_536
MAX_PLANNED_BYTES: Final = 32 << 20
"""Where a planned segment ends. Part of the pure function: never to be configured."""


class Positioned(Protocol):
    """A log entry, or a place where one can be read again."""

    @property
    def position(self) -> int: ...

    @property
    def end_position(self) -> int: ...


E = TypeVar("E", bound=Positioned)


@dataclass(frozen=True, slots=True)
class ForeignPlan(Generic[E]):
    """What of a foreign log is to be taken, and whether doubles must be expected."""

    entries: tuple[E, ...]
    doubtful: str | None
    """Why the cursor can't be trusted; ``None`` if it can."""
    in_segments: tuple[E, ...] = ()
    """The entries before a cursor that can be trusted."""


def plan_entries(
    log: LogContents, entries: Sequence[E], cursor: int | None, *, segments: bool
) -> ForeignPlan[E]:
    """The entries that no segment holds yet; ``segments``: whether there ever was one."""
    doubt = _doubt(log, entries, cursor, segments)
    if doubt is not None or cursor is None:
        return ForeignPlan(tuple(entries), doubt)
    return ForeignPlan(
        tuple(e for e in entries if e.end_position > cursor),
        None,
        tuple(e for e in entries if e.end_position <= cursor),
    )


def _doubt(
    log: LogContents, entries: Sequence[E], cursor: int | None, segments: bool
) -> str | None:
    foreign = [file for file in log.files if file.header.foreign]
    if not foreign:
        return None
    if cursor is None:
        # A crate that never finished a segment never wrote a cursor.
        return "the cursor is missing" if segments else None
    if any(a.position_end > b.header.position_start for a, b in pairwise(foreign)):
        return "positions in the log go back"
    if cursor < foreign[0].header.position_start:
        return "the cursor lies before the oldest log file"
    if cursor > foreign[-1].position_end:
        return "the cursor lies behind the end of the log"
    boundaries = {file.header.position_start for file in foreign}
    if cursor not in boundaries and not any(
        cursor in (entry.position, entry.end_position) for entry in entries
    ):
        # It counts from somewhere else: how many entries it covers can't be told.
        return "the cursor points into the middle of an entry"
    return None


def plan_refs(sizes: Sequence[int], first_segment: int) -> list[BundleRef]:
    """Refs for bundles of these sizes, in order, from a segment number on."""
    refs: list[BundleRef] = []
    segment, index, nbytes = first_segment, 0, 0
    for size in sizes:
        if index and (index >= MAX_PLANNED_BUNDLES or nbytes + size > MAX_PLANNED_BYTES):
            segment, index, nbytes = segment + 1, 0, 0
        refs.append(BundleRef(segment, index))
        index += 1
        nbytes += size
    return refs
