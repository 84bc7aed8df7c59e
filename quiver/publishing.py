"""Making a committed transaction's staged files segments, all of them seen at once.

    commit entry durable → ends appended and synced → renamed → names synced → seen

A failed try changes nothing that matters: the commit stays in the tail, its log entry in
the log, and both are tried again.  Nobody sees a part of it meanwhile, not even of those
files that have become segments.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from quiver.errors import Damage, SegmentDamage
from quiver.format.commit import Commit, CommittedFile
from quiver.format.stage import STAGES
from quiver.format.state import Loss
from quiver.parts import Parts
from quiver.records import Records
from quiver.segment.aside import set_aside, settle_aside
from quiver.segment.info import SEGMENTS, SegmentInfo
from quiver.segment.stage import publish_stage

NoteLoss = Callable[[Loss, str], None]


class Publishing:
    """Publishes commits; called with upkeep's lock held, one at a time, oldest first."""

    def __init__(self, parts: Parts, records: Records) -> None:
        self._parts = parts
        self._records = records
        self.note_loss: NoteLoss = lambda loss, problem: parts.ledger.record(loss)
        """Set by who keeps the book of losses."""

    def publish(self, commit: Commit) -> list[SegmentInfo]:
        """Make it seen. A file that is damaged or gone is recorded as lost."""
        parts = self._parts
        infos: list[SegmentInfo] = []
        lost: list[tuple[int, CommittedFile, Damage]] = []
        for seq, file in commit.segments:
            if seq in parts.ledger:
                continue
            # A few bytes that must get in even on a full disk: it is promised already.
            append = partial(publish_stage, parts.disk, commit, seq, file)
            try:
                infos.append(self._records.guarded(append))
            except FileNotFoundError:
                gone = SegmentDamage(f"{file.path} is gone, and was committed.", file=file.path)
                lost.append((seq, file, gone))
            except Damage as damage:
                lost.append((seq, file, damage))
        # The new names first: a crash between may leave two names, never none.
        parts.disk.fsync_dir(SEGMENTS)
        parts.disk.fsync_dir(STAGES)
        self._show(commit, infos)
        if lost:
            self._lose(lost)
        return infos

    def _show(self, commit: Commit, infos: list[SegmentInfo]) -> None:
        """From here on they are seen, under one lock: whoever asks gets all or nothing."""
        parts = self._parts
        with parts.lock:
            parts.catalog.add(*infos)
            parts.stages.published(range(commit.first_segment, commit.end_segment))
            parts.tail.release(commit)
            visible = {info.seq: info.bundle_count for info in infos}
            parts.registry.observe_together(visible, parts.growing())

    def _lose(self, lost: list[tuple[int, CommittedFile, Damage]]) -> None:
        parts = self._parts
        for seq, file, damage in lost:
            where = ""
            if parts.disk.stat_size(file.path) is not None:
                where = f", and set aside: {set_aside(parts.disk, file.path)}"
                settle_aside(parts.disk, file.path)
            waiting = {one.name: file.bundles for one in parts.registry.subscribers()}
            self.note_loss(
                Loss(seq, file.bundles, file.nbytes, "damaged", parts.clock.now_ns(), waiting),
                f"segment {seq} of a transaction was damaged before it was one{where}:"
                f" {damage.message}",
            )
        self._records.checkpoint()
        self._records.keep_floor()
