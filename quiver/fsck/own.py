"""What a directory of ours holds: every log entry names its own ref."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from quiver.contradictions import known_sequence
from quiver.format.floor import Floor
from quiver.fsck.held import MAX_LISTED, Held, Holding, Holdings, Lost
from quiver.fsck.index import Place
from quiver.fsck.staged import look_at_waiting
from quiver.ids import BundleRef
from quiver.wal.contents import LogDamage
from quiver.wal.files import ACTIVE


class OwnHolding(Holding):
    """A directory of ours: every log entry names its ref."""

    def work(self) -> Holdings:
        self.check_segments()
        for sealed in self.files.values():
            self.hold_segment(sealed)
        places: dict[int, dict[int, Place]] = defaultdict(dict)
        for place in self.found.index.places:
            if place.ref is not None and not self._needs_no_log(place.ref.segment_seq):
                places[place.ref.segment_seq][place.ref.bundle_index] = place
        waiting = self._hold_commits()
        blamed = self._lost_in_log(places)
        for seq in sorted({*places, *self._should_be_there()} - self.files.keys() - waiting):
            self._from_log(seq, places.get(seq, {}), blamed)
        return self.finish()

    def _hold_commits(self) -> set[int]:
        """Committed files that are no segments yet: an open would make them so."""
        segments, floor = self.found.segments, self.found.basics.known_floor.replay_floor
        found: set[int] = set()
        for commit in self.found.index.commits:
            for seq, file in commit.segments:
                if seq in segments.numbers or seq < floor or self._is_gone(seq):
                    continue
                waiting = look_at_waiting(self.found.disk, commit, seq, file)
                found.add(seq)
                self.result.waiting.append(waiting)
                self.result.counts[seq] = file.bundles
                refs = [BundleRef(seq, index) for index in range(file.bundles)]
                if waiting.error is None:
                    sealed = waiting.sealed(self.found.disk)
                    self.result.bundles += [
                        Held(ref, commit.sequence, commit.ts, sealed) for ref in refs
                    ]
                else:
                    reason = waiting.error.message.rstrip(".")
                    lost = Lost(
                        file.path, reason, bundles=file.bundles, refs=tuple(refs[:MAX_LISTED])
                    )
                    self.result.lost.append(lost)
                    self.result.vanished.add(seq)
        return found

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
        marks += [
            file.bundles
            for commit in self.found.index.commits
            for number, file in commit.segments
            if number == seq
        ]
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
        self.lose_unreadable()
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
        infos = [self.found.segments.infos[seq] for seq in self.files]
        # Segments of one transaction share a sequence: it counts once.
        for low, high in {(info.first_sequence, info.last_sequence) for info in infos}:
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
