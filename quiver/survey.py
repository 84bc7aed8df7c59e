"""A look at a store's directory that changes nothing.

Opening a store, and every offline tool, begins with the same look: the small files
decoded, the segments' tails read, the log read once, entry by entry, into a
:class:`~quiver.replay.Replay`.  What is damaged is kept as the error it is; who looks
decides what that means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from quiver.disk.disk import Disk
from quiver.errors import Damage, QuiverError, StateCorrupt
from quiver.foreign import ForeignPlan, plan_entries
from quiver.format.floor import FLOOR_PATH, Floor, decode_floor
from quiver.format.progress import Progress
from quiver.format.state import STATE_NAME, Checkpoint, decode_state
from quiver.replay import Replay
from quiver.segment.catalog import Catalog
from quiver.segment.reader import SegmentReader
from quiver.subscriber.progress import scan_progress
from quiver.wal.contents import LogContents, LogEntry
from quiver.wal.files import read_cursor
from quiver.wal.reader import read_log

Decoded = TypeVar("Decoded")


@dataclass(frozen=True, slots=True)
class Basics:
    """The small files, and which segments there seem to be."""

    floor: Floor | Damage | None
    state: Checkpoint | Damage | None
    cursor: int | StateCorrupt | None
    progress: Mapping[str, Progress | QuiverError]
    damaged: Mapping[int, Damage]

    @property
    def known_floor(self) -> Floor:
        return self.floor if isinstance(self.floor, Floor) else Floor()

    @property
    def known_state(self) -> Checkpoint:
        return self.state if isinstance(self.state, Checkpoint) else Checkpoint()


def look_at_basics(disk: Disk, catalog: Catalog, *, clean: bool) -> Basics:
    """Read the small files and scan the segments' tails."""
    state = _decoded(disk, STATE_NAME, decode_state)
    known = state.subscribers if isinstance(state, Checkpoint) else ()
    return Basics(
        floor=_decoded(disk, FLOOR_PATH, decode_floor),
        state=state,
        cursor=_cursor(disk),
        progress=scan_progress(disk, known),
        damaged=catalog.scan(clean=clean),
    )


def _decoded(disk: Disk, path: str, decode: Callable[[bytes], Decoded]) -> Decoded | Damage | None:
    try:
        return decode(disk.read(path))
    except FileNotFoundError:
        return None
    except Damage as damage:
        return damage


def _cursor(disk: Disk) -> int | StateCorrupt | None:
    try:
        return read_cursor(disk)
    except StateCorrupt as damage:
        return damage


class SealedSegments:
    """Which segments need nothing from the log, each checked once, when the log asks.

    Only segments that the log still covers are asked for, so a start reads no more
    segment bytes than the log could hold.
    """

    def __init__(self, disk: Disk, catalog: Catalog, basics: Basics) -> None:
        self._disk = disk
        self._catalog = catalog
        self._floor = basics.known_floor
        self._answers: dict[int, bool] = {}
        self.damaged: dict[int, Damage] = dict(basics.damaged)

    def __call__(self, seq: int) -> bool:
        answer = self._answers.get(seq)
        if answer is None:
            answer = self._answers[seq] = self._look(seq)
        return answer

    def _look(self, seq: int) -> bool:
        if seq in self.damaged:
            return False
        if seq in self._catalog:
            try:
                SegmentReader.open(self._disk, seq, mode="pread", verify=True)
            except Damage as damage:
                self.damaged[seq] = damage
                return False
            return True
        return seq < self._floor.replay_floor and self._floor.is_gone(seq)


@dataclass(frozen=True, slots=True)
class Survey:
    """Everything found."""

    basics: Basics
    sealed: SealedSegments
    log: LogContents
    replay: Replay
    foreign: ForeignPlan[LogEntry]


def first_free_segment(found: Survey, live: Iterable[int]) -> int:
    """A number above every one ever given out, as far as anything here remembers it."""
    used = [*live, *found.sealed.damaged, *found.replay.headless]
    used += [segment.seq for segment in found.replay.segments]
    used += [commit.end_segment - 1 for commit in found.replay.commits]
    return first_free(found.basics, used)


def first_free(basics: Basics, used: Iterable[int]) -> int:
    """A number above the ``used`` ones, and above all that the small files know of."""
    progress = [p for p in basics.progress.values() if isinstance(p, Progress)]
    return max(
        [
            basics.known_floor.next_segment,
            *(seq + 1 for seq in used),
            *(one.first_unused_segment for one in progress),
        ]
    )


def survey(
    disk: Disk,
    catalog: Catalog,
    *,
    layout_hash: bytes | None,
    clean: bool = False,
    salvage: bool = False,
    watch: Callable[[LogEntry], None] | None = None,
) -> Survey:
    """Look at everything. With ``salvage``, damage in the log is listed, not raised."""
    basics = look_at_basics(disk, catalog, clean=clean)
    sealed = SealedSegments(disk, catalog, basics)
    replay = Replay(sealed, basics.known_state.through)

    def visit(entry: LogEntry) -> None:
        replay(entry)
        if watch is not None:
            watch(entry)

    log = read_log(disk, layout_hash=layout_hash, visit=visit, salvage=salvage)
    if replay.contradiction is not None and not salvage:
        raise replay.contradiction
    cursor = basics.cursor if isinstance(basics.cursor, int) else None
    segments = bool(len(catalog) or basics.damaged or basics.progress)
    foreign = plan_entries(log, replay.foreign, cursor, segments=segments)
    return Survey(basics, sealed, log, replay, foreign)
