"""What a directory of the Rust crate holds: its cursor, and content, say what is where."""

from __future__ import annotations

from quiver.ids import MAX_BUNDLES_PER_SEGMENT
from quiver.offline.index import LogPlace
from quiver.offline.inventory import Inventory, LostBundle, Taking
from quiver.recovery.fates import Fate, SegmentFate, intact_indexes
from quiver.recovery.rust.adoption import align_foreign, foreign_count
from quiver.recovery.rust.alignment import Alignment, Sealed, doubled, fallen_back, starts_at_zero
from quiver.recovery.rust.foreign import ForeignPlan, plan_refs
from quiver.segment.info import segment_path
from quiver.wal.contents import LogDamage, TornTail


class RustTaking(Taking):
    """A directory of the Rust crate."""

    def work(self) -> Inventory:
        found = self.found
        entries = [place for place in found.replay.places if place.ref is None]
        plan = self.result.plan = found.foreign_plan(entries)
        sealed = {
            seq: Sealed(seq, info.bundle_count, found.files.open)
            for seq, info in found.files.sound.items()
        }
        origins = align_foreign(found, plan, sealed)
        for seq, one in sealed.items():
            readable = range(one.count)
            self.result.fates[seq] = SegmentFate(seq, Fate.SEALED, one.count, True, readable)
            self.add_segment(one, origins.entries)
        self._damaged_segments(plan, origins)
        if self._from_log(plan):
            ordered = [sealed[seq] for seq in sorted(sealed)]
            self.result.maybe_doubled = plan.doubtful or fallen_back(doubled(plan.entries, ordered))
        self._damaged_log(plan)
        return self.finish()

    def _damaged_segments(self, plan: ForeignPlan[LogPlace], origins: Alignment[LogPlace]) -> None:
        # With every entry there ever was taken from the log, nothing can be missing.
        complete = len(plan.in_segments) == 0 and starts_at_zero(self.found.log)
        for seq, damage in sorted(self.found.files.damaged.items()):
            if seq in origins.unfinished:
                self.result.unfinished.append(segment_path(seq))
                continue
            rebuilt = origins.of(seq)
            for ref, place in rebuilt.items():
                self.add_from_log(ref, place)
            in_log = {ref.bundle_index for ref in rebuilt}
            intact = intact_indexes(self.found, seq)
            self.add_intact(seq, sorted(intact - in_log))
            readable = in_log | intact
            count = 0 if complete else foreign_count(self.found, seq)
            if count is None and readable:
                count = max(readable) + 1
            exact = count is not None
            most = MAX_BUNDLES_PER_SEGMENT if count is None else count
            fate = Fate.REBUILD if readable and len(readable) >= most else Fate.DAMAGED
            fates = self.result.fates
            fates[seq] = SegmentFate(seq, fate, most, exact, readable, damage)
            self.lose(fates[seq], segment_path(seq), damage.message.rstrip("."))

    def _from_log(self, plan: ForeignPlan[LogPlace]) -> int:
        adoption = self.found.basics.known_state.adoption
        live = self.found.files.numbers
        first = self.found.first_free_segment() if adoption is None else adoption.first_segment
        if adoption is not None and all(first + n in live for n in range(len(adoption.counts))):
            return 0  # all of it is in segments, the log was about to go
        taken = 0
        fates = self.result.fates
        refs = plan_refs([place.body_length for place in plan.entries], first)
        for ref, place in zip(refs, plan.entries, strict=True):
            if ref.segment_seq not in self.found.files.sound:
                count = ref.bundle_index + 1
                fates[ref.segment_seq] = SegmentFate(
                    ref.segment_seq, Fate.IN_LOG, count, True, range(count)
                )
                self.add_from_log(ref, place)
                taken += 1
        return taken

    def _damaged_log(self, plan: ForeignPlan[LogPlace]) -> None:
        log, cursor = self.found.log, self.found.basics.cursor
        starts = {file.path: file.header_shift for file in log.files}
        # Torn with sound entries behind it: what was there may well have been promised.
        inside = [torn for torn in log.torn_tails if torn.until is not None]
        stretches: list[LogDamage | TornTail] = [*log.damage, *inside]
        for bad in stretches:
            position = bad.offset + starts.get(bad.file, 0)
            covered = plan.doubtful is None and isinstance(cursor, int) and position < cursor
            count = None if bad.until is None else max(0, bad.until - bad.sequence)
            self.result.lost.append(
                LostBundle(
                    bad.file,
                    bad.reason,
                    bad.offset,
                    (bad.sequence, bad.until),
                    bundles=0 if covered else count,
                )
            )
        self.lose_unreadable()
