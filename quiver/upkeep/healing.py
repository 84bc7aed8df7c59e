"""A segment file found damaged while the store is open.

==============================  ============================================================
what can be had                 what is done
==============================  ============================================================
all its bundles, from the log   they go back to memory; the file is moved to ``quarantine/``;
                                sealing writes a new one
some of them, from the file     the others go on record; all go back to memory, the lost ones
or the log                      as placeholders; sealing copies the file to ``quarantine/``
                                and renames a new one over it
none                            all of them go on record; the file is moved to
                                ``quarantine/``, the number is gone
==============================  ============================================================

The order is: ledger → outcomes of subscribers durable → floor → file.  After a crash before
the floor, the damage is found again, and what is on record already is not recorded twice;
after one behind it, the next open moves the file.

A bundle that every subscriber had finished is not a loss: nobody needed it any more.
"""

from __future__ import annotations

from quiver import metrics as m
from quiver.disk import quarantine
from quiver.errors import SegmentDamage
from quiver.events import SEGMENT_QUARANTINED, SEGMENT_REBUILT, SEGMENT_RECLAIMED
from quiver.format.state import Loss
from quiver.ingest.parts import Parts
from quiver.record.ledger import DAMAGED
from quiver.recovery.replay import Content, build_segment, entry_content
from quiver.segment.info import SegmentInfo, segment_path
from quiver.segment.open_segment import OpenSegment
from quiver.segment.salvage import salvage
from quiver.upkeep.checkpoint_files import Records
from quiver.upkeep.maintenance_lock import MaintenanceLock
from quiver.wal.contents import LogEntry
from quiver.wal.reader import read_log

Found = dict[int, Content]
"""Bundles of one segment by index."""


class Healing:
    """Deals with damaged segments; ``lock`` is upkeep's."""

    def __init__(self, parts: Parts, lock: MaintenanceLock, records: Records) -> None:
        self._parts = parts
        self._lock = lock
        self._records = records

    def heal(self, info: SegmentInfo, damage: SegmentDamage) -> None:
        """Give a damaged segment another place, or another file; see the table above.

        Several readers may find the damage at once.  ``info`` says which file it was found
        in: who comes later talks of a file that is not there any more.
        """
        parts, seq = self._parts, info.seq
        with self._lock:
            if parts.segments.info(seq) is not info:
                return
            parts.metrics.counter(m.DAMAGE, code=damage.code).add()
            found = self._in_log(seq)
            if len(found) == info.bundle_count:
                self._rebuild(build_segment(seq, map(found.get, range(info.bundle_count))), damage)
                return
            found |= self._in_file(info)
            if any(not meta.lost for _, meta in found.values()):
                self._salvage(info, found, damage)
            else:
                self._lose(info, damage)

    # What can be had

    def _in_log(self, seq: int) -> Found:
        wal = self._parts.wal
        found: Found = {}
        if wal is None:
            return found

        def visit(entry: LogEntry) -> None:
            if entry.is_bundle and entry.ref is not None and entry.ref.segment_seq == seq:
                found[entry.ref.bundle_index] = entry_content(entry.bundle())

        with wal.at_rest():
            read_log(self._parts.disk, layout_hash=None, visit=visit, salvage=True)
        return found

    def _in_file(self, info: SegmentInfo) -> Found:
        try:
            salvaged = salvage(self._parts.disk, segment_path(info.seq), info.seq)
        except FileNotFoundError:
            return {}
        if salvaged is None:
            return {}
        return {
            index: (list(bundle.slots), bundle.meta)
            for index, bundle in enumerate(salvaged.segment.bundles)
            if index not in salvaged.lost
        }

    # What is done

    def _rebuild(self, segment: OpenSegment, damage: SegmentDamage) -> None:
        """As after a crash: readable now, written in its turn. Never in neither place."""
        parts, seq, path = self._parts, segment.seq, segment_path(segment.seq)
        with parts.lock:
            parts.segments.rebuilt(segment, replaces_file=True)
        try:
            self._move(seq, damage)
        except BaseException:
            if parts.disk.stat_size(path) is not None:
                with parts.lock:
                    parts.segments.kept_file(seq)
            raise
        parts.segments.moved_file(seq)
        parts.log.warning(SEGMENT_REBUILT, segment=seq)

    def _salvage(self, info: SegmentInfo, found: Found, damage: SegmentDamage) -> None:
        parts, seq = self._parts, info.seq
        lost = [index for index in range(info.bundle_count) if index not in found]
        left = max(0, info.nbytes - sum(meta.nbytes for _, meta in found.values()))
        if lost:
            bits = sum(1 << index for index in lost)
            self._record(self._records.loss_of(info, DAMAGED, bits, left), info, damage)
            parts.registry.drop_bundles(seq, lost)
            self._records.flush_progress()
        with parts.lock:
            segment = build_segment(seq, map(found.get, range(info.bundle_count)))
            parts.segments.rebuilt(segment, replaces_file=True)
        parts.log.warning(SEGMENT_REBUILT, segment=seq, lost=len(lost), error=str(damage))

    def _lose(self, info: SegmentInfo, damage: SegmentDamage) -> None:
        parts, seq = self._parts, info.seq
        self._record(self._records.loss_of(info, DAMAGED), info, damage)
        parts.registry.drop_segment(seq, info.bundle_count, parts.segments.hidden)
        self._records.flush_progress()
        parts.segments.damaged(seq)
        self._records.keep_floor()
        parts.registry.forget(seq)
        self._move(seq, damage)

    def _record(self, loss: Loss | None, info: SegmentInfo, damage: SegmentDamage) -> None:
        """Put it on record, if it is not, or say that nobody needed what is lost."""
        if loss is not None:
            lost = f"{loss.bundles:,} of the {info.bundle_count:,} bundles of segment {info.seq}"
            self._records.record_loss(loss, problem=f"lost {lost}: {damage.message}")
        elif info.seq in self._parts.ledger:
            # By a try that a crash or a full disk has ended: perhaps only memory has the row.
            self._records.record_loss(
                problem=f"segment {info.seq} is damaged; what somebody needed of it is on record"
            )
        else:
            self._parts.log.warning(SEGMENT_RECLAIMED, segment=info.seq)
            self._records.note(
                f"segment {info.seq} is damaged; every subscriber had finished what is lost of it"
            )

    def _move(self, seq: int, damage: SegmentDamage) -> None:
        """Move the damaged file to quarantine, if it is there at all."""
        parts = self._parts
        if parts.disk.stat_size(segment_path(seq)) is None:
            return
        target = quarantine.move(parts.disk, segment_path(seq))
        parts.metrics.counter(m.SEGMENT_QUARANTINED).add()
        parts.log.error(SEGMENT_QUARANTINED, segment=seq, file=target, error=str(damage))
