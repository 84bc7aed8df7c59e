"""Which bundles a directory holds, where each is read best, and which are lost.

What each segment number stands for is decided by :mod:`quiver.recovery.fates`, as it is for an
open, so a dump shows what an open would serve; where an open refuses, this goes on and lists
what is missing.  A bundle is read from its segment if that is sound, else from the log, else
from what is intact of its damaged file.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from quiver.errors import QuiverError
from quiver.format.progress import Progress
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.ids import BundleRef
from quiver.offline.index import LogPlace
from quiver.offline.look import Look
from quiver.recovery.consistency import LET_GO, is_let_go, missing_from_log
from quiver.recovery.fates import Fate, SegmentFate, is_deleted, judge_all, was_sealed
from quiver.recovery.losses import bits_of, left_of, needed_of
from quiver.recovery.replay import Content, encoded_slots, entry_meta
from quiver.recovery.rust.alignment import Sealed
from quiver.recovery.rust.foreign import ForeignPlan
from quiver.recovery.survey import SegmentFiles, Waiting
from quiver.segment.info import segment_path
from quiver.segment.open_segment import OpenSegment
from quiver.segment.reader import SegmentReader
from quiver.wal.contents import LogDamage

MIN_BUNDLE_BYTES: Final = 61
"""No bundle's entry in a log of any version is shorter."""
MAX_LISTED: Final = 10_000
"""Lost bundles listed one by one; the number is right in any case."""


# Values


@dataclass(frozen=True, slots=True)
class Intact:
    """A damaged segment file of which some bundles are intact."""

    seq: int
    files: SegmentFiles

    def open(self) -> OpenSegment:
        salvaged = self.files.salvaged(self.seq)
        if salvaged is None:
            raise FileNotFoundError(segment_path(self.seq))
        return salvaged.segment


@dataclass(frozen=True, slots=True)
class BundleAt:
    """A bundle that can be read, and where from."""

    ref: BundleRef
    sequence: int | None
    ingestion_ts_ns: int | None
    source: Sealed | LogPlace | Intact

    def meta(self) -> BundleMeta:
        """What is known about it."""
        if isinstance(self.source, LogPlace):
            return entry_meta(self.source.bundle())
        return self.source.open().meta(self.ref.bundle_index)

    def slots(self) -> list[EncodedSlot]:
        """Its batches."""
        if isinstance(self.source, LogPlace):
            return encoded_slots(self.source.bundle())
        return self.source.open().encoded(self.ref.bundle_index)

    def content(self) -> Content:
        """All of it, for a segment that is written again."""
        return self.slots(), self.meta()


@dataclass(frozen=True, slots=True)
class LostBundle:
    """Something that should be there and can't be read.

    ``bundles`` is how many are lost: what every subscriber had finished is not.  With
    ``at_most`` that is an upper bound, since the log can't tell them from its own small
    entries.  ``None``: nothing is left that knows.
    ``refs`` are those that can be named.
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
class Inventory:
    """What there is, in order, and what there isn't."""

    bundles: list[BundleAt] = field(default_factory=list)
    lost: list[LostBundle] = field(default_factory=list)
    fates: dict[int, SegmentFate] = field(default_factory=dict)
    maybe_doubled: str | None = None
    plan: ForeignPlan[LogPlace] | None = None
    unfinished: list[str] = field(default_factory=list)
    """Segments the Rust crate was writing when it stopped: their bundles are in the log."""

    @property
    def lost_bundles(self) -> int:
        """How many are known to be lost."""
        return sum(one.bundles or 0 for one in self.lost)


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


def spans(refs: Iterable[BundleRef]) -> str:
    """Refs for people, runs put together: ``3.4, 3.7 to 3.9``."""
    runs: list[list[BundleRef]] = []
    for ref in refs:
        if runs and runs[-1][-1] == (ref.segment_seq, ref.bundle_index - 1):
            runs[-1].append(ref)
        else:
            runs.append([ref])
    return ", ".join(str(r[0]) if len(r) == 1 else f"{r[0]} to {r[-1]}" for r in runs)


# Taking it


class Taking:
    """What directories of ours and of the Rust crate have in common."""

    def __init__(self, found: Look) -> None:
        self.found = found
        self.result = Inventory()

    def add_segment(
        self, sealed: Sealed, origins: Mapping[BundleRef, LogPlace] | None = None
    ) -> None:
        """The bundles of a sound file, but for places that an earlier repair left empty."""
        reader = sealed.open()
        for index in range(sealed.count):
            ref = BundleRef(sealed.seq, index)
            origin = (origins or {}).get(ref)
            if origin is not None:
                at = BundleAt(ref, origin.sequence, origin.ingestion_ts_ns, sealed)
            elif reader.info.first_sequence is None:  # the Rust crate records none
                at = BundleAt(ref, None, None, sealed)
            else:
                meta = reader.meta(index)
                if meta.lost:
                    continue
                at = BundleAt(ref, meta.sequence, meta.ingestion_ts_ns, sealed)
            self.result.bundles.append(at)

    def add_from_log(self, ref: BundleRef, place: LogPlace) -> None:
        self.result.bundles.append(BundleAt(ref, place.sequence, place.ingestion_ts_ns, place))

    def add_intact(self, seq: int, indexes: Iterable[int]) -> None:
        """Bundles of a damaged file that are as written."""
        source = Intact(seq, self.found.files)
        for index in indexes:
            meta = source.open().meta(index)
            if not meta.lost:
                at = BundleAt(BundleRef(seq, index), meta.sequence, meta.ingestion_ts_ns, source)
                self.result.bundles.append(at)

    def lose(self, fate: SegmentFate, file: str, reason: str, *, but: Collection[int] = ()) -> None:
        """Report what can't be read of a segment; ``but`` is reported already."""
        needed = self.needed(fate.seq, fate.lost)
        refs = [BundleRef(fate.seq, index) for index in needed if index not in but]
        self.result.lost.append(
            LostBundle(
                file,
                reason,
                bundles=len(refs),
                at_most=not fate.exact,
                refs=tuple(refs[:MAX_LISTED]) if fate.exact else (),
            )
        )

    def needed(self, seq: int, lost: Collection[int]) -> list[int]:
        """Of these bundles of a segment those that count as lost
        (:mod:`quiver.recovery.losses`)."""
        progress = self.found.basics.progress.values()
        unfinished = [left_of(one, seq) for one in progress]
        bits = needed_of(bits_of(lost), unfinished)
        return [index for index in lost if bits >> index & 1]

    def lose_unreadable(self) -> None:
        """Entries that pass their checksum and make no sense."""
        for damage in self.found.replay.unreadable:
            offset = damage.details.get("offset")
            self.result.lost.append(
                LostBundle(
                    str(damage.details.get("file", "wal")),
                    damage.message.rstrip("."),
                    offset if isinstance(offset, int) else None,
                    bundles=1,
                )
            )

    def finish(self) -> Inventory:
        self.result.bundles.sort(key=lambda held: held.ref)
        return self.result


class OwnTaking(Taking):
    """A directory of ours: every log entry names its ref."""

    def work(self) -> Inventory:
        found = self.found
        fates = self.result.fates = judge_all(found)
        blamed = self._lost_in_log()
        for seq, fate in fates.items():
            if fate.fate is Fate.SEALED:
                self.add_segment(Sealed(seq, fate.count, found.files.open))
            elif fate.fate is Fate.WAITING:
                self._add_waiting(found.waiting[seq])
            elif fate.fate is not Fate.DELETED:
                self._add_rest(fate, blamed)
        return self.finish()

    def _add_waiting(self, waiting: Waiting) -> None:
        """A committed file that is no segment yet: an open would make it one."""
        disk, commit, file = self.found.disk, waiting.commit, waiting.file
        sealed = Sealed(
            waiting.seq,
            file.bundles,
            lambda seq: SegmentReader.open_staged(
                disk, file.path, file.length, seq=seq, verify=False
            ),
        )
        for index in range(file.bundles):
            ref = BundleRef(waiting.seq, index)
            self.result.bundles.append(BundleAt(ref, commit.sequence, commit.ts, sealed))

    def _add_rest(self, fate: SegmentFate, blamed: set[BundleRef]) -> None:
        """What can be read of a segment without a sound file, and what can't."""
        seq, places = fate.seq, self.found.replay.of_segment(fate.seq)
        for index, place in places.items():
            self.add_from_log(BundleRef(seq, index), place)
        self.add_intact(seq, sorted(index for index in fate.readable if index not in places))
        waiting = self.found.waiting.get(seq)
        known = {ref.bundle_index for ref in blamed if ref.segment_seq == seq}
        if fate.error is not None:
            file = segment_path(seq) if waiting is None else waiting.file.path
            self.lose(fate, file, fate.error.message.rstrip("."), but=known)
        elif fate.fate is Fate.DAMAGED and not self.found.newer:
            if was_sealed(self.found, seq):
                self.lose(fate, segment_path(seq), "the file is missing", but=known)
            elif len(fate.lost) > len(known):
                self.lose(fate, "wal", "entries that were written are not in the log", but=known)

    # Damage in the log

    def _lost_in_log(self) -> set[BundleRef]:
        blamed: set[BundleRef] = set()
        if is_let_go(self.found):
            file = self.found.log.files[0].path
            self.result.lost.append(LostBundle(file, LET_GO, bundles=0))
            return blamed
        known = self.found.log.damage
        # With damage in the log, that explains why its end is missing.
        missing = [one for one in missing_from_log(self.found) if not (known and one.offset)]
        for damage in (*known, *missing):
            lost = self._weigh(damage)
            blamed.update(lost.refs)
            self.result.lost.append(lost)
        self.lose_unreadable()
        return blamed

    def _weigh(self, damage: LogDamage) -> LostBundle:
        """What a damaged stretch of the log costs: nothing, if segments hold it."""
        if damage.until is None:
            return self._weigh_end(damage)
        sequences = (damage.sequence, damage.until)
        uncovered = self._uncovered(*sequences)
        between, all_of_them = self._between(*sequences) if uncovered else ([], True)
        refs = [
            ref
            for ref in between
            if not is_deleted(self.found, ref.segment_seq)
            and ref.bundle_index not in self._readable(ref.segment_seq)
        ]
        exact = all_of_them or (bool(refs) and len(refs) == uncovered)
        if exact:
            refs = [ref for ref in refs if self.needed(ref.segment_seq, [ref.bundle_index])]
        return LostBundle(
            damage.file,
            damage.reason,
            damage.offset,
            sequences,
            bundles=len(refs) if exact else uncovered,
            at_most=not exact,
            refs=tuple(refs[:MAX_LISTED]),
        )

    def _weigh_end(self, damage: LogDamage) -> LostBundle:
        """Behind which nothing is sound: no more bundles than fit into the rest of the file; if
        the file is gone, nothing tells how many."""
        size = self.found.disk.stat_size(damage.file)
        most = None if size is None else max(0, size - damage.offset) // MIN_BUNDLE_BYTES
        sequences = (damage.sequence, None)
        return LostBundle(damage.file, damage.reason, damage.offset, sequences, most, at_most=True)

    def _readable(self, seq: int) -> Collection[int]:
        fate = self.result.fates.get(seq)
        return () if fate is None else fate.readable

    def _uncovered(self, first: int, end: int) -> int:
        """How many sequences of a range no sound segment covers."""
        count = max(0, end - first)
        for gap in self.found.basics.known_state.gaps:
            count -= max(0, min(end, gap.sequences[1]) - max(first, gap.sequences[0]))
        # Segments of one transaction share a sequence: it counts once.
        infos = self.found.files.sound.values()
        for low, high in {(info.first_sequence, info.last_sequence) for info in infos}:
            if low is not None and high is not None:
                count -= max(0, min(end, high + 1) - max(first, low))
        return max(0, count)

    def _between(self, first: int, end: int) -> tuple[list[BundleRef], bool]:
        """The refs between the last bundle before a stretch and the first one behind it, and
        whether no other bundle can have been there.

        None can, if both are of one segment, or if the one behind is of the first segment that
        there ever was: what else is missing are the log's own small entries.
        """
        before = max((p for p in self._refs() if p[0] < first), default=None)
        after = min((p for p in self._refs() if p[0] >= end), default=None)
        if after is None:
            return [], False
        seq, index = after[1]
        same = before is not None and before[1].segment_seq == seq
        start = before[1].bundle_index + 1 if same and before is not None else 0
        return [BundleRef(seq, lost) for lost in range(start, index)], same or seq == 0

    def _refs(self) -> Iterable[tuple[int, BundleRef]]:
        return ((p.sequence, p.ref) for p in self.found.replay.places if p.ref is not None)
