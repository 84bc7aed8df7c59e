"""Making a committed transaction's staged files segments, all of them seen at once.

    commit entry durable → ends appended and synced → renamed → names synced → seen

A failed try changes nothing that matters: the commit keeps its numbers, its log entry stays in
the log, and both are tried again.  Nobody sees a part of it meanwhile, not even of those
files that have become segments.
"""

from __future__ import annotations

from functools import partial

from quiver.disk import quarantine
from quiver.errors import Damage, SegmentDamage
from quiver.format.commit import Commit, CommittedFile
from quiver.format.stage import STAGES
from quiver.format.state import Loss
from quiver.parts import Parts
from quiver.records import Records
from quiver.segment.info import SEGMENTS, SegmentInfo
from quiver.segment.stage import publish_stage


class Publishing:
    """Publishes commits; called with upkeep's lock held, one at a time, oldest first."""

    def __init__(self, parts: Parts, records: Records) -> None:
        self._parts = parts
        self._records = records

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
        if lost:
            self._lose(lost)
        self._show(commit, infos)
        if lost:
            self._records.keep_floor()
        return infos

    def _show(self, commit: Commit, infos: list[SegmentInfo]) -> None:
        """From here on they are seen, under one lock: whoever asks gets all or nothing."""
        parts = self._parts
        with parts.lock:
            parts.stages.published(range(commit.first_segment, commit.end_segment))
            parts.registry.show(lambda: parts.segments.sealed(*infos, commit=commit))

    def _lose(self, lost: list[tuple[int, CommittedFile, Damage]]) -> None:
        parts = self._parts
        for seq, file, damage in lost:
            waiting = {one.name: file.bundles for one in parts.registry.subscribers()}
            self._records.record_loss(
                Loss(seq, file.bundles, file.nbytes, "damaged", parts.clock.now_ns(), waiting),
                problem=f"segment {seq} of a transaction was damaged before it was one:"
                f" {damage.message}",
            )
            if parts.disk.stat_size(file.path) is not None:
                quarantine.move(parts.disk, file.path)
