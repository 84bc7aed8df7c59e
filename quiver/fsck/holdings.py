"""Which bundles a directory holds, where each is read best, and which are lost.

The rules are those of :mod:`quiver.recovery`, so that a dump shows what an open would
serve; but where recovery refuses, this goes on and lists what is missing.

A bundle is read from its segment if that is sound, else from the log.  Segments that
were deleted are not brought back from a log that happens to have them still.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from quiver.alignment import Alignment, align, doubled, fallen_back, in_order, starts_at_zero
from quiver.contradictions import known_sequence
from quiver.errors import QuiverError
from quiver.foreign import ForeignPlan, plan_entries, plan_refs
from quiver.format.floor import Floor
from quiver.format.progress import Progress
from quiver.fsck.index import Place
from quiver.fsck.look import Look
from quiver.ids import BundleRef
from quiver.segment.info import segment_path
from quiver.segment.reader import SegmentReader
from quiver.survey import first_free
from quiver.wal.contents import LogDamage, TornTail
from quiver.wal.files import ACTIVE

MAX_LISTED: Final = 10_000
"""Lost bundles listed one by one; the number is right in any case."""


@dataclass(frozen=True, slots=True)
class Held:
    """A bundle that can be read: from a segment, or from a place in the log."""

    ref: BundleRef
    sequence: int | None
    ingestion_ts_ns: int | None
    source: SegmentReader | Place


@dataclass(frozen=True, slots=True)
class Lost:
    """Something that should be there and can't be read.

    ``bundles`` is how many are lost; with ``at_most`` the log can't tell them from its own
    small entries.  ``None``: nothing is left that knows.  ``refs`` are those that can be
    named.
    """

    file: str
    reason: str
    offset: int | None = None
    sequences: tuple[int, int | None] | None = None
    bundles: int | None = None
    at_most: bool = False
    refs: tuple[BundleRef, ...] = ()

    def describe(self) -> str:
        """For people."""
        where = self.file if self.offset is None else f"{self.file} byte {self.offset:,}"
        return f"{where}: {self.reason}; {self.what()}"

    def what(self) -> str:
        """What it means for the data."""
        if self.bundles is None:
            return "how many bundles that were can't be told any more"
        if not self.bundles:
            return "no bundle is lost by it"
        count = f"{'at most ' if self.at_most else ''}{self.bundles:,} bundle"
        named = f" ({spans(self.refs)})" if self.refs else ""
        return f"{count}{'s' if self.bundles != 1 else ''} lost{named}"


@dataclass(slots=True)
class Holdings:
    """What there is, in order, and what there isn't."""

    bundles: list[Held] = field(default_factory=list)
    lost: list[Lost] = field(default_factory=list)
    maybe_doubled: str | None = None
    plan: ForeignPlan[Place] | None = None
    unfinished: list[str] = field(default_factory=list)
    """Segments the Rust crate was writing when it stopped: their bundles are in the log."""
    counts: dict[int, int] = field(default_factory=dict)
    """Bundles of each segment, lost ones included as far as they are known."""
    voids: set[BundleRef] = field(default_factory=set)
    """Places of bundles that were lost before, and left out by a repair."""
    vanished: set[int] = field(default_factory=set)
    """Segments that should be there and of which nothing is left."""

    @property
    def lost_bundles(self) -> int:
        """How many are known to be lost."""
        return sum(one.bundles or 0 for one in self.lost)


def hold(found: Look) -> Holdings:
    """Work out what a directory holds."""
    return (_Foreign if found.log.foreign else _Own)(found).work()


def outcome(progress: Progress | QuiverError, ref: BundleRef) -> str:
    """What a progress file says about a bundle: acked, dropped or pending."""
    if not isinstance(progress, Progress):
        return "pending"
    entry = progress.entries.get(ref.segment_seq)
    if entry is None:
        return "acked" if ref.segment_seq < progress.oldest_incomplete else "pending"
    bit = 1 << ref.bundle_index
    if not entry.done & bit:
        return "pending"
    return "dropped" if entry.dropped & bit else "acked"


class _Holding:
    """What both kinds of directory have in common: segment files."""

    def __init__(self, found: Look) -> None:
        self.found = found
        self.result = Holdings()
        self.files: dict[int, SegmentReader] = {}

    def open_segments(self) -> None:
        for seq in list(self.found.segments.numbers):
            reader = self.found.segments.sound(seq)
            if reader is not None:
                self.files[seq] = reader

    def count_of(self, seq: int) -> int | None:
        """How many bundles an unreadable segment had, if anything still says so."""
        counted = self.found.segments.count_of(seq)
        if counted is not None:
            return counted
        listed = [p.entries[seq].bundle_count for p in self.progress if seq in p.entries]
        return max(listed, default=None)

    @property
    def progress(self) -> list[Progress]:
        return list(self.found.progress.values())

    def hold_segment(
        self, reader: SegmentReader, origins: Mapping[BundleRef, Place] | None = None
    ) -> None:
        self.result.counts[reader.seq] = len(reader)
        for index in range(len(reader)):
            ref = BundleRef(reader.seq, index)
            origin = (origins or {}).get(ref)
            if origin is not None:
                self.result.bundles.append(
                    Held(ref, origin.sequence, origin.ingestion_ts_ns, reader)
                )
                continue
            if reader.info.first_sequence is None:  # the Rust crate records none
                self.result.bundles.append(Held(ref, None, None, reader))
                continue
            meta = reader.meta(index)
            if meta.lost:  # since an earlier repair, and on record
                self.result.voids.add(ref)
                continue
            self.result.bundles.append(Held(ref, meta.sequence, meta.ingestion_ts_ns, reader))

    def hold_place(self, ref: BundleRef, place: Place) -> None:
        self.result.bundles.append(Held(ref, place.sequence, place.ingestion_ts_ns, place))

    def lose_segment(self, seq: int, indices: Iterable[int] | None, error: object) -> None:
        refs = None if indices is None else [BundleRef(seq, index) for index in indices]
        damage = self.found.segments.damaged.get(seq)
        reason = "the file is missing" if damage is None else getattr(error, "message", str(error))
        self.result.lost.append(
            Lost(
                segment_path(seq),
                reason.rstrip("."),
                bundles=None if refs is None else len(refs),
                refs=tuple(refs[:MAX_LISTED]) if refs else (),
            )
        )

    def finish(self) -> Holdings:
        self.result.bundles.sort(key=lambda held: held.ref)
        return self.result


class _Own(_Holding):
    """A directory of ours: every log entry names its ref."""

    def work(self) -> Holdings:
        self.open_segments()
        for reader in self.files.values():
            self.hold_segment(reader)
        places: dict[int, dict[int, Place]] = defaultdict(dict)
        for place in self.found.index.places:
            if place.ref is not None and not self._needs_no_log(place.ref.segment_seq):
                places[place.ref.segment_seq][place.ref.bundle_index] = place
        blamed = self._lost_in_log(places)
        for seq in sorted({*places, *self._should_be_there()} - self.files.keys()):
            self._from_log(seq, places.get(seq, {}), blamed)
        return self.finish()

    def _needs_no_log(self, seq: int) -> bool:
        return seq in self.files or self._is_gone(seq)

    def _is_gone(self, seq: int) -> bool:
        floor = self.found.basics.known_floor
        deleted = seq in self.found.segments.deleted
        return deleted or (seq < floor.replay_floor and floor.is_gone(seq))

    def _should_be_there(self) -> set[int]:
        """Numbers that must have bundles, as far as the small files know."""
        floor, segments = self.found.basics.floor, self.found.segments
        missing = set(floor.missing(segments.numbers)) if isinstance(floor, Floor) else set()
        unfinished = {
            seq
            for one in self.progress
            for seq, entry in one.entries.items()
            # The Rust crate's files may go on listing segments that were deleted.
            if one.named and not self._is_gone(seq)
            if entry.done.bit_count() < entry.bundle_count or self._must_be_in_log(seq)
        }
        return (missing | segments.damaged.keys() | unfinished | self._begun()) - segments.deleted

    def _must_be_in_log(self, seq: int) -> bool:
        floor = self.found.basics.floor
        return isinstance(floor, Floor) and seq >= floor.replay_floor

    def _begun(self) -> set[int]:
        """Where the subscribers stand: without a floor, all that tells lost from deleted."""
        if isinstance(self.found.basics.floor, Floor):
            return set()
        newest = max(self.found.segments.numbers, default=0)
        first = {one.oldest_incomplete for one in self.progress if one.named}
        return {seq for seq in first if seq < newest}

    def _from_log(self, seq: int, places: dict[int, Place], blamed: set[BundleRef]) -> None:
        for index, place in places.items():
            self.hold_place(BundleRef(seq, index), place)
        count = self._full_count(seq, places)
        self.result.counts[seq] = max(count or 0, max(places, default=-1) + 1)
        file = seq in self.found.segments.damaged or self._was_sealed(seq)
        if file and not places:
            self.result.vanished.add(seq)
        if count is None:
            if file:
                self.lose_segment(seq, None, self.found.segments.damaged.get(seq))
            return
        missing = [i for i in range(count) if i not in places and BundleRef(seq, i) not in blamed]
        if seq in self.found.segments.damaged or (missing and file):
            self.lose_segment(seq, missing, self.found.segments.damaged.get(seq))
        elif missing:
            refs = tuple(BundleRef(seq, index) for index in missing)
            reason = "entries that were written are not in the log"
            self.result.lost.append(Lost("wal", reason, bundles=len(refs), refs=refs[:MAX_LISTED]))

    def _was_sealed(self, seq: int) -> bool:
        return seq < self.found.basics.known_floor.replay_floor or seq in self._begun()

    def _full_count(self, seq: int, places: dict[int, Place]) -> int | None:
        """How many bundles a segment without a sound file has to have."""
        listed = [p.entries[seq] for p in self.progress if seq in p.entries and p.named]
        marks = [entry.bundle_count for entry in listed]  # nobody is shown what isn't durable
        known = self.count_of(seq) if self._was_sealed(seq) else None
        if seq in self.found.segments.damaged:
            known = self.count_of(seq)
        counts = [n for n in (known, *marks, max(places, default=-1) + 1 or None) if n is not None]
        return max(counts, default=None)

    # Damage in the log

    def _lost_in_log(self, places: Mapping[int, Mapping[int, Place]]) -> set[BundleRef]:
        blamed: set[BundleRef] = set()
        for damage in (*self.found.log.damage, *self._missing_ends()):
            lost = self._weigh(damage, places)
            blamed.update(lost.refs)
            self.result.lost.append(lost)
        for damaged in self.found.index.unreadable:
            self.result.lost.append(_unreadable(damaged))
        return blamed

    def _missing_ends(self) -> Iterator[LogDamage]:
        """Whole files that are gone leave no bad checksum: others have to vouch for them."""
        floor, log = self.found.basics.floor, self.found.log
        if not log.files:
            if isinstance(floor, Floor) and floor.has_log:
                yield LogDamage(ACTIVE, 0, floor.log_first, None, "the log is missing")
            return
        first = log.files[0].header.first_sequence
        begins = floor.log_first if isinstance(floor, Floor) and floor.has_log else None
        if first is not None and begins is not None and first > begins:
            reason = "the file before it is missing"
            yield LogDamage(log.files[0].path, 0, begins, first, reason)
        known = known_sequence(self.found.basics, list(self.found.segments.infos.values()))
        if log.next_sequence < known and not log.damage:
            reason = "entries at the end of the log are missing"
            yield LogDamage(log.files[-1].path, log.files[-1].end, log.next_sequence, known, reason)

    def _weigh(self, damage: LogDamage, places: Mapping[int, Mapping[int, Place]]) -> Lost:
        """What a damaged stretch of the log costs: nothing, if segments hold it."""
        if damage.until is None:
            return Lost(damage.file, damage.reason, damage.offset, (damage.sequence, None))
        sequences = (damage.sequence, damage.until)
        uncovered = self._uncovered(*sequences)
        refs = self._between(*sequences) if uncovered else []
        refs = [ref for ref in refs if not self._needs_no_log(ref.segment_seq)]
        exact = bool(refs) and len(refs) == uncovered
        return Lost(
            damage.file,
            damage.reason,
            damage.offset,
            sequences,
            bundles=uncovered,
            at_most=bool(uncovered) and not exact,
            refs=tuple(refs[:MAX_LISTED]),
        )

    def _uncovered(self, first: int, end: int) -> int:
        """How many sequences of a range no sound segment covers."""
        count = max(0, end - first)
        for reader in self.files.values():
            low, high = reader.info.first_sequence, reader.info.last_sequence
            if low is not None and high is not None:
                count -= max(0, min(end, high + 1) - max(first, low))
        return max(0, count)

    def _between(self, first: int, end: int) -> list[BundleRef]:
        """The refs between the last bundle before a stretch and the first one behind it."""
        before = max((p for p in self._refs() if p[0] < first), default=None)
        after = min((p for p in self._refs() if p[0] >= end), default=None)
        if after is None:
            return []
        seq, index = after[1]
        same = before is not None and before[1].segment_seq == seq
        start = before[1].bundle_index + 1 if same and before is not None else 0
        return [BundleRef(seq, lost) for lost in range(start, index)]

    def _refs(self) -> Iterable[tuple[int, BundleRef]]:
        return ((p.sequence, p.ref) for p in self.found.index.places if p.ref is not None)


class _Foreign(_Holding):
    """A directory of the Rust crate: the cursor, and content, say what is where."""

    def work(self) -> Holdings:
        self.open_segments()
        found = self.found
        cursor = found.basics.cursor if isinstance(found.basics.cursor, int) else None
        entries = [place for place in found.index.places if place.ref is None]
        segments = bool(found.segments.numbers or found.basics.progress)
        plan = plan_entries(found.log, entries, cursor, segments=segments)
        self.result.plan = plan
        origins = self.origins(plan)
        for reader in self.files.values():
            self.hold_segment(reader, origins.entries)
        self._damaged_segments(plan, origins)
        taken = self._from_log(plan)
        if taken:
            self.result.maybe_doubled = plan.doubtful or self._fallen_back(plan)
        self._damaged_log(cursor if plan.doubtful is None else None)
        return self.finish()

    def origins(self, plan: ForeignPlan[Place]) -> Alignment[Place]:
        """The log entries of bundles that are in segments, or were."""
        damaged = self.found.segments.damaged
        listed = {seq for one in self.progress for seq in one.entries}
        segments = in_order(self.files, damaged, {seq: self.count_of(seq) for seq in listed})
        return align(plan.in_segments, segments, from_first=starts_at_zero(self.found.log))

    def _damaged_segments(self, plan: ForeignPlan[Place], origins: Alignment[Place]) -> None:
        # With every entry there ever was taken from the log, nothing can be missing.
        complete = len(plan.in_segments) == 0 and starts_at_zero(self.found.log)
        for seq, damage in sorted(self.found.segments.damaged.items()):
            if seq in origins.unfinished:
                self.result.unfinished.append(segment_path(seq))
                continue
            rebuilt = origins.of(seq)
            for ref, place in rebuilt.items():
                self.hold_place(ref, place)
            count = self.count_of(seq)
            if count is None:
                count = len(rebuilt) or None
            self.result.counts[seq] = count or 0
            missing: list[int] | None = None
            if complete:
                missing = []
            elif count is not None:
                missing = [i for i in range(count) if BundleRef(seq, i) not in rebuilt]
            self.lose_segment(seq, missing, damage)

    def _from_log(self, plan: ForeignPlan[Place]) -> int:
        adoption = self.found.basics.known_state.adoption
        live = self.found.segments.numbers
        first = first_free(self.found.basics, live) if adoption is None else adoption.first_segment
        if adoption is not None and all(first + n in live for n in range(len(adoption.counts))):
            return 0  # all of it is in segments, the log was about to go
        taken = 0
        refs = plan_refs([place.body_length for place in plan.entries], first)
        for ref, place in zip(refs, plan.entries, strict=True):
            self.result.counts.setdefault(ref.segment_seq, 0)
            if ref.segment_seq not in self.files:
                self.result.counts[ref.segment_seq] += 1
                self.hold_place(ref, place)
                taken += 1
        return taken

    def _fallen_back(self, plan: ForeignPlan[Place]) -> str | None:
        count = doubled(plan.entries, [self.files[seq] for seq in sorted(self.files)])
        return fallen_back(count)

    def _damaged_log(self, cursor: int | None) -> None:
        log = self.found.log
        starts = {file.path: file.header_shift for file in log.files}
        # Torn with sound entries behind it: what was there may well have been promised.
        inside = [torn for torn in log.torn_tails if torn.until is not None]
        stretches: list[LogDamage | TornTail] = [*log.damage, *inside]
        for bad in stretches:
            position = bad.offset + starts.get(bad.file, 0)
            in_segments = cursor is not None and position < cursor
            count = None if bad.until is None else max(0, bad.until - bad.sequence)
            self.result.lost.append(
                Lost(
                    bad.file,
                    bad.reason,
                    bad.offset,
                    (bad.sequence, bad.until),
                    bundles=0 if in_segments else count,
                )
            )
        for unreadable in self.found.index.unreadable:
            self.result.lost.append(_unreadable(unreadable))


def _unreadable(damage: QuiverError) -> Lost:
    offset = damage.details.get("offset")
    return Lost(
        str(damage.details.get("file", "wal")),
        damage.message.rstrip("."),
        offset if isinstance(offset, int) else None,
        bundles=1,
    )


def spans(refs: Iterable[BundleRef]) -> str:
    """Refs for people, runs put together: ``3.4, 3.7 to 3.9``."""
    runs: list[list[BundleRef]] = []
    for ref in refs:
        if runs and runs[-1][-1] == (ref.segment_seq, ref.bundle_index - 1):
            runs[-1].append(ref)
        else:
            runs.append([ref])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)
