"""Making a committed transaction's staged files segments, all of them seen at once.

    commit entry durable → ends appended and synced → renamed → names synced → seen

A failed try changes nothing that matters: the commit keeps its numbers, its log entry stays in
the log, and both are tried again.  Nobody sees a part of it meanwhile, not even of those
files that have become segments.

Of a file that turns out to be damaged, the intact bundles are written as the segment that it
was to become; the others are recorded as lost.
"""

from __future__ import annotations

from collections.abc import Sequence

from quiver.disk import quarantine
from quiver.errors import Damage
from quiver.events import SEGMENT_REBUILT
from quiver.format.wal.commit import Commit, CommittedFile
from quiver.ingest.parts import Parts
from quiver.record.ledger import DAMAGED
from quiver.segment.info import SegmentInfo, segment_path
from quiver.segment.salvage import Salvaged, salvage, salvage_staged
from quiver.segment.staged_file import publish_commit
from quiver.segment.writer import write_segment
from quiver.upkeep.checkpoint_files import Records


class Publishing:
    """Publishes commits; called with upkeep's lock held, one at a time, oldest first."""

    def __init__(self, parts: Parts, records: Records) -> None:
        self._parts = parts
        self._records = records

    def publish(self, commit: Commit) -> list[SegmentInfo]:
        """Make it seen. What of it is damaged or gone is recorded as lost."""
        # A few bytes that must get in even on a full disk: it is promised already.
        infos, missing = publish_commit(self._parts.disk, commit, self._records.guarded)
        lost: list[int] = []
        for seq, file in commit.segments:
            if seq in missing:
                saved = self._save(commit, seq, file, missing[seq])
                if saved is None:
                    lost.append(seq)
                else:
                    infos.append(saved)
        self._show(commit, infos, lost)
        if lost:
            self._records.keep_floor()
        return infos

    def _show(self, commit: Commit, infos: list[SegmentInfo], lost: list[int]) -> None:
        """From here on they are seen, under one lock: whoever asks gets all or nothing."""
        parts = self._parts
        with parts.lock:
            parts.stages.published(range(commit.first_segment, commit.end_segment))
            parts.registry.show(lambda: parts.segments.sealed(*infos, commit=commit, lost=lost))

    # What can't be published as it is

    def _save(
        self, commit: Commit, seq: int, file: CommittedFile, damage: Damage
    ) -> SegmentInfo | None:
        """Write what is intact of a damaged file as its segment; ``None``: nothing is.

        What is lost goes on record first, unless it is there already.
        """
        disk = self._parts.disk
        renamed = disk.stat_size(segment_path(seq)) is not None
        path = segment_path(seq) if renamed else file.path
        salvaged: Salvaged | None = None
        if disk.stat_size(path) is not None:
            salvaged = (
                salvage(disk, path, seq) if renamed else salvage_staged(disk, commit, seq, file)
            )
        if salvaged is not None and len(salvaged.lost) == salvaged.segment.bundle_count:
            salvaged = None
        self._record(seq, file, range(file.bundles) if salvaged is None else salvaged.lost, damage)
        if salvaged is None:
            if disk.stat_size(path) is not None:
                quarantine.move(disk, path)
            return None
        quarantine.copy(disk, path)
        names = self._parts.slots.names
        info = write_segment(disk, salvaged.segment, names, commit.transaction)
        disk.unlink(file.path, missing_ok=True)
        self._parts.log.warning(
            SEGMENT_REBUILT, segment=seq, lost=len(salvaged.lost), error=str(damage)
        )
        return info

    def _record(self, seq: int, file: CommittedFile, lost: Sequence[int], damage: Damage) -> None:
        bits, whole = sum(1 << index for index in lost), len(lost) == file.bundles
        nbytes = file.nbytes if whole else 0
        loss = self._records.loss_in(seq, file.bundles, bits, DAMAGED, nbytes)
        if loss is None:
            self._records.record_loss()
            return
        self._records.record_loss(
            loss,
            problem=f"lost {loss.bundles:,} of the {file.bundles:,} bundles of segment {seq},"
            f" damaged before it was one: {damage.message}",
        )
