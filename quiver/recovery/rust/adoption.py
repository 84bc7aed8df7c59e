"""Taking over a directory of the Rust crate: its log becomes segments, and goes.

The log goes for good, so this is the moment to use all it has: a segment that is damaged
is written again from it where :mod:`quiver.recovery.rust.alignment` finds its bundles there;
and if one is damaged that it can't help with, the log is set aside instead of removed.

The refs are written down before the first segment, and segments that exist are not
written again, so a crash anywhere goes on with the same refs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from quiver.disk import quarantine
from quiver.disk.disk import Disk
from quiver.errors import Damage
from quiver.events import (
    FOREIGN_ADOPTED,
    SEGMENT_QUARANTINED,
    SEGMENT_REBUILT,
    get_logger,
)
from quiver.format.floor import FLOOR_PATH, Floor, encode_floor
from quiver.format.state import STATE_NAME, Adoption, encode_state
from quiver.ids import BundleRef
from quiver.recovery.fates import Found
from quiver.recovery.replay import Replay, build_segment, entry_content
from quiver.recovery.rust.alignment import (
    AlignedEntry,
    Alignment,
    Sealed,
    align,
    doubled,
    fallen_back,
    in_order,
    starts_at_zero,
)
from quiver.recovery.rust.foreign import ForeignPlan, Positioned, plan_refs
from quiver.recovery.survey import Findings
from quiver.segment.info import segment_path
from quiver.segment.open_segment import OpenSegment
from quiver.segment.segments import Segments, floor_of
from quiver.segment.writer import write_segment
from quiver.wal.contents import LogEntry
from quiver.wal.files import CURSOR, DIRECTORY, log_names


class ForeignEntry(AlignedEntry, Positioned, Protocol):
    """A log entry of the Rust crate, or a place where one can be read again."""


F = TypeVar("F", bound=ForeignEntry)


@dataclass(frozen=True, slots=True)
class Adopted:
    """What was taken over.

    ``unfinished`` are files the crate was writing when it stopped: in the way, but no loss.
    """

    bundles: int = 0
    maybe_doubled: str | None = None
    rebuilt: tuple[int, ...] = ()
    quarantined: tuple[str, ...] = ()
    unfinished: frozenset[int] = frozenset()


def adopt(
    disk: Disk, segments: Segments, found: Findings[Replay], slot_names: Mapping[int, str]
) -> Adopted:
    """Take over what the crate left; nothing if it left nothing."""
    if not found.log.foreign and found.basics.known_state.adoption is None:
        return Adopted()
    return _Adopting(disk, segments, found, slot_names).run()


def align_foreign(found: Found, plan: ForeignPlan[F], sealed: Mapping[int, Sealed]) -> Alignment[F]:
    """The log entries of bundles that are in segments of the Rust crate, or were."""
    damaged = found.files.damaged
    listed = {seq for one in found.basics.known_progress.values() for seq in one.entries}
    counts = {seq: foreign_count(found, seq) for seq in {*damaged, *listed}}
    segments = in_order(sealed, damaged, counts)
    return align(plan.in_segments, segments, from_first=starts_at_zero(found.log))


def foreign_count(found: Found, seq: int) -> int | None:
    """How many bundles an unreadable segment had, if anything still says so."""
    info = found.files.infos.get(seq)
    if info is not None:
        return info.bundle_count
    known = found.basics.known_progress.values()
    return max((p.entries[seq].bundle_count for p in known if seq in p.entries), default=None)


class _Adopting:
    def __init__(
        self, disk: Disk, segments: Segments, found: Findings[Replay], slot_names: Mapping[int, str]
    ) -> None:
        self._disk = disk
        self._segments = segments
        self._found = found
        self._slot_names = slot_names
        self._log = get_logger()
        self._plan = found.foreign_plan(found.replay.foreign)
        pending = found.basics.known_state.adoption
        self._pending = pending
        self._first = (
            found.first_free_segment(info.seq for info in segments.infos())
            if pending is None
            else pending.first_segment
        )

    def run(self) -> Adopted:
        found = self._found
        sealed = self._check_covered()
        alignment = align_foreign(found, self._plan, sealed)
        rebuilt, quarantined = self._rebuild(alignment)
        segments = [] if self._is_done() else _planned(self._plan.entries, self._first)
        bundles = sum(segment.bundle_count for segment in segments)
        maybe_doubled = None
        if bundles:
            ordered = [sealed[seq] for seq in sorted(sealed)]
            maybe_doubled = self._plan.doubtful or fallen_back(doubled(self._plan.entries, ordered))
        self._write(segments)
        self._remove_log(keep=bool(found.files.damaged.keys() - alignment.unfinished))
        if self._pending is not None or segments:
            self._keep_adoption(None)
        self._log.info(FOREIGN_ADOPTED, bundles=bundles, maybe_doubled=maybe_doubled)
        return Adopted(bundles, maybe_doubled, rebuilt, quarantined, alignment.unfinished)

    def _is_done(self) -> bool:
        """Once all of them exist the log may be half removed: it is not asked again."""
        if self._pending is None:
            return False
        last = self._first + len(self._pending.counts)
        return all(seq in self._segments for seq in range(self._first, last))

    # Segments that are there

    def _check_covered(self) -> dict[int, Sealed]:
        """The crate's newest segments, every byte checked, as far as the log covers them."""
        sealed: dict[int, Sealed] = {}
        covered = len(self._plan.in_segments)
        behind = bool(self._plan.entries)
        for info in reversed(self._segments.infos()):
            if info.seq >= self._first:
                continue
            if covered <= 0 and not behind:
                break
            behind = False  # the newest one tells whether the cursor has fallen back
            try:
                self._segments.reader(info.seq)
            except Damage as damage:
                self._found.files.damaged[info.seq] = damage
            else:
                sealed[info.seq] = Sealed(info.seq, info.bundle_count, self._segments.reader)
            covered -= info.bundle_count
        return sealed

    def _rebuild(self, alignment: Alignment[LogEntry]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        rebuilt: list[int] = []
        aside: list[str] = []
        for seq, damage in sorted(self._found.files.damaged.items()):
            entries = alignment.of(seq)
            count = foreign_count(self._found, seq) or len(entries)
            if not entries or len(entries) < count:
                continue
            # A copy, since the new file takes the place of the old one in one step: between
            # the two there must be no moment in which nobody knows of this segment.
            copy = quarantine.copy(self._disk, segment_path(seq))
            self._log.error(SEGMENT_QUARANTINED, segment=seq, file=copy, error=str(damage))
            bundles = (entries[BundleRef(seq, index)].bundle() for index in range(count))
            segment = build_segment(seq, map(entry_content, bundles))
            self._segments.rebuilt(segment, replaces_file=True)
            self._segments.sealed(write_segment(self._disk, segment, self._slot_names))
            self._log.warning(SEGMENT_REBUILT, segment=seq)
            del self._found.files.damaged[seq]
            rebuilt.append(seq)
            aside.append(copy)
        return tuple(rebuilt), tuple(aside)

    # Segments to come

    def _write(self, segments: Iterable[OpenSegment]) -> None:
        segments = list(segments)
        if self._pending is None and segments:
            counts = tuple(segment.bundle_count for segment in segments)
            self._keep_adoption(Adoption(self._first, counts))
        for segment in segments:
            if segment.seq not in self._segments:
                self._segments.sealed(write_segment(self._disk, segment, self._slot_names))
        live = [info.seq for info in self._segments.infos()]
        following = max([self._first, *(seq + 1 for seq in live)])
        floor = floor_of(Floor(), next_segment=following, files=live)
        self._disk.replace(FLOOR_PATH, encode_floor(floor))

    def _remove_log(self, *, keep: bool) -> None:
        for name in log_names(self._disk):
            if keep:
                quarantine.move(self._disk, name.path)
            else:
                self._disk.unlink(name.path)
                self._disk.fsync_dir(DIRECTORY)
        self._disk.unlink(CURSOR, missing_ok=True)
        self._disk.fsync_dir(DIRECTORY)

    def _keep_adoption(self, adoption: Adoption | None) -> None:
        state = replace(self._found.basics.known_state, adoption=adoption)
        self._disk.replace(STATE_NAME, encode_state(state))


def _planned(entries: tuple[LogEntry, ...], first_segment: int) -> list[OpenSegment]:
    planned: dict[int, list[LogEntry]] = {}
    refs = plan_refs([len(entry.body) for entry in entries], first_segment)
    for ref, entry in zip(refs, entries, strict=True):
        planned.setdefault(ref.segment_seq, []).append(entry)
    return [
        build_segment(seq, (entry_content(entry.bundle()) for entry in part))
        for seq, part in planned.items()
    ]
