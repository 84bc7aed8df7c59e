"""Taking over a directory of the Rust crate: its log becomes segments, and goes.

The log goes for good, so this is the moment to use all it has: a segment that is damaged
is written again from it where :mod:`quiver.alignment` finds its bundles there; and if one
is damaged that it can't help with, the log is set aside instead of removed.

The refs are written down before the first segment, and segments that exist are not
written again, so a crash anywhere goes on with the same refs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from quiver.alignment import (
    Alignment,
    Sealed,
    align,
    doubled,
    fallen_back,
    in_order,
    starts_at_zero,
)
from quiver.disk.disk import Disk
from quiver.errors import Damage, QuiverError
from quiver.events import (
    FOREIGN_ADOPTED,
    SEGMENT_QUARANTINED,
    SEGMENT_REBUILT,
    get_logger,
)
from quiver.foreign import plan_refs
from quiver.format.crc import crc32
from quiver.format.floor import FLOOR_PATH, Floor, encode_floor, gone_below
from quiver.format.progress import Progress
from quiver.format.state import STATE_NAME, Adoption, encode_state
from quiver.ids import BundleRef
from quiver.replay import encoded_slots, entry_meta
from quiver.segment.accumulator import OpenSegment
from quiver.segment.catalog import Catalog
from quiver.segment.info import segment_path
from quiver.segment.reader import SegmentReader
from quiver.segment.writer import write_segment
from quiver.survey import Survey, first_free_segment
from quiver.wal.contents import LogEntry
from quiver.wal.files import CURSOR, DIRECTORY, log_names
from quiver.wal.repair import QUARANTINE


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


def adopt(disk: Disk, catalog: Catalog, found: Survey, slot_names: Mapping[int, str]) -> Adopted:
    """Take over what the crate left; nothing if it left nothing."""
    if not found.log.foreign and found.basics.known_state.adoption is None:
        return Adopted()
    return _Adopting(disk, catalog, found, slot_names).run()


class _Adopting:
    def __init__(
        self, disk: Disk, catalog: Catalog, found: Survey, slot_names: Mapping[int, str]
    ) -> None:
        self._disk = disk
        self._catalog = catalog
        self._found = found
        self._slot_names = slot_names
        self._log = get_logger()
        pending = found.basics.known_state.adoption
        self._pending = pending
        self._first = (
            first_free_segment(found, (info.seq for info in catalog.infos))
            if pending is None
            else pending.first_segment
        )

    def run(self) -> Adopted:
        found = self._found
        sealed = self._check_covered()
        alignment = self._align(sealed)
        rebuilt, quarantined = self._rebuild(alignment)
        segments = [] if self._is_done() else _planned(found.foreign.entries, self._first)
        bundles = sum(segment.bundle_count for segment in segments)
        maybe_doubled = None
        if bundles:
            ordered = [sealed[seq] for seq in sorted(sealed)]
            maybe_doubled = found.foreign.doubtful or fallen_back(
                doubled(found.foreign.entries, ordered)
            )
        self._write(segments)
        self._remove_log(keep=bool(found.sealed.damaged.keys() - alignment.unfinished))
        if self._pending is not None or segments:
            self._keep_adoption(None)
        self._log.info(FOREIGN_ADOPTED, bundles=bundles, maybe_doubled=maybe_doubled)
        return Adopted(bundles, maybe_doubled, rebuilt, quarantined, alignment.unfinished)

    def _is_done(self) -> bool:
        """Once all of them exist the log may be half removed: it is not asked again."""
        if self._pending is None:
            return False
        last = self._first + len(self._pending.counts)
        return all(seq in self._catalog for seq in range(self._first, last))

    # Segments that are there

    def _check_covered(self) -> dict[int, Sealed]:
        """The crate's newest segments, every byte checked, as far as the log covers them."""
        sealed: dict[int, Sealed] = {}
        covered = len(self._found.foreign.in_segments)
        behind = bool(self._found.foreign.entries)
        for info in reversed(self._catalog.infos):
            if info.seq >= self._first:
                continue
            if covered <= 0 and not behind:
                break
            behind = False  # the newest one tells whether the cursor has fallen back
            try:
                self._catalog.reader(info.seq)
            except Damage as damage:
                self._found.sealed.damaged[info.seq] = damage
            else:
                sealed[info.seq] = Sealed(info.seq, info.bundle_count, self._catalog.reader)
            covered -= info.bundle_count
        return sealed

    def _align(self, sealed: Mapping[int, Sealed]) -> Alignment[LogEntry]:
        found = self._found
        progress = [p for p in found.basics.progress.values() if isinstance(p, Progress)]
        counts: dict[int, int | None] = {
            seq: entry.bundle_count for one in progress for seq, entry in one.entries.items()
        }
        for seq in found.sealed.damaged:
            counts[seq] = _count_of(self._disk, seq) or counts.get(seq)
        segments = in_order(sealed, found.sealed.damaged, counts)
        return align(found.foreign.in_segments, segments, from_first=starts_at_zero(found.log))

    def _rebuild(self, alignment: Alignment[LogEntry]) -> tuple[tuple[int, ...], tuple[str, ...]]:
        rebuilt: list[int] = []
        aside: list[str] = []
        for seq, damage in sorted(self._found.sealed.damaged.items()):
            entries = alignment.of(seq)
            count = _count_of(self._disk, seq) or len(entries)
            if not entries or len(entries) < count:
                continue
            # A copy, since the new file takes the place of the old one in one step: between
            # the two there must be no moment in which nobody knows of this segment.
            copy = self._copy_aside(segment_path(seq))
            self._log.error(SEGMENT_QUARANTINED, segment=seq, file=copy, error=str(damage))
            segment = _segment(seq, (entries[BundleRef(seq, index)] for index in range(count)))
            self._catalog.add(write_segment(self._disk, segment, self._slot_names))
            self._log.warning(SEGMENT_REBUILT, segment=seq)
            del self._found.sealed.damaged[seq]
            rebuilt.append(seq)
            aside.append(copy)
        return tuple(rebuilt), tuple(aside)

    def _copy_aside(self, path: str) -> str:
        data = self._disk.read(path)
        copy = f"{QUARANTINE}/{path.rpartition('/')[2]}.{crc32(data):08x}"
        self._disk.mkdir(QUARANTINE)
        self._disk.fsync_dir("")
        self._disk.replace(copy, data)
        return copy

    # Segments to come

    def _write(self, segments: Iterable[OpenSegment]) -> None:
        segments = list(segments)
        if self._pending is None and segments:
            counts = tuple(segment.bundle_count for segment in segments)
            self._keep_adoption(Adoption(self._first, counts))
        for segment in segments:
            if segment.seq not in self._catalog:
                self._catalog.add(write_segment(self._disk, segment, self._slot_names))
        live = [info.seq for info in self._catalog.infos]
        following = max([self._first, *(seq + 1 for seq in live)])
        floor = Floor(following, following, gone_below(following, live))
        self._disk.replace(FLOOR_PATH, encode_floor(floor))

    def _remove_log(self, *, keep: bool) -> None:
        if keep:
            self._disk.mkdir(QUARANTINE)
            self._disk.fsync_dir("")
        for name in log_names(self._disk):
            if keep:
                self._disk.rename(name.path, f"{QUARANTINE}/{name.path.rpartition('/')[2]}")
                self._disk.fsync_dir(QUARANTINE)
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
    return [_segment(seq, part) for seq, part in planned.items()]


def _segment(seq: int, entries: Iterable[LogEntry]) -> OpenSegment:
    segment = OpenSegment(seq)
    for entry in entries:
        bundle = entry.bundle()
        segment.append(encoded_slots(bundle), entry_meta(bundle))
    return segment


def _count_of(disk: Disk, seq: int) -> int | None:
    """How many bundles a damaged file says it has, if it can still be asked."""
    try:
        return len(SegmentReader.open(disk, seq, mode="pread", verify=False))
    except (FileNotFoundError, QuiverError):
        return None
