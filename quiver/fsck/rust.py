"""What a directory of the Rust crate holds: its cursor, and content, say what is where."""

from __future__ import annotations

from quiver.alignment import Alignment, align, doubled, fallen_back, in_order, starts_at_zero
from quiver.foreign import ForeignPlan, plan_entries, plan_refs
from quiver.fsck.held import Holding, Holdings, Lost
from quiver.fsck.index import Place
from quiver.ids import BundleRef
from quiver.segment.info import segment_path
from quiver.survey import first_free
from quiver.wal.contents import LogDamage, TornTail


class RustHolding(Holding):
    """A directory of the Rust crate: the cursor, and content, say what is where."""

    def work(self) -> Holdings:
        self.check_segments()
        found = self.found
        cursor = found.basics.cursor if isinstance(found.basics.cursor, int) else None
        entries = [place for place in found.index.places if place.ref is None]
        segments = bool(found.segments.numbers or found.basics.progress)
        plan = plan_entries(found.log, entries, cursor, segments=segments)
        self.result.plan = plan
        origins = self.origins(plan)
        for sealed in self.files.values():
            self.hold_segment(sealed, origins.entries)
        self._damaged_segments(plan, origins)
        taken = self._from_log(plan)
        if taken:
            self.result.maybe_doubled = plan.doubtful or self._fallen_back(plan)
        self._damaged_log(cursor if plan.doubtful is None else None)
        return self.finish()

    def origins(self, plan: ForeignPlan[Place]) -> Alignment[Place]:
        """The log entries of bundles that are in segments, or were."""
        damaged = self.found.segments.damaged
        listed = {*damaged, *(seq for one in self.progress for seq in one.entries)}
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
        self.lose_unreadable()
