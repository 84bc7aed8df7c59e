"""``open()``: from whatever a crash left to a store that keeps its promise.

First look (:mod:`quiver.recovery.survey`), then decide, by this table, then act.  Acting is safe
to be interrupted anywhere and done again.

==============================================  ==========================================
found                                           done
==============================================  ==========================================
nothing at all                                  a new store
another process with the lock                   refused: ``StoreLocked``
floor or checkpoint damaged, or missing though  refused: ``StateCorrupt``
  something says there was one
log with an entry that was synced and is bad,   refused: ``WalCorrupt``
  a gap, or no log though there was one; a log
  that ends before what segments or checkpoint
  know of
log of another slot table                       refused: ``LayoutMismatch``
a file, or an entry, of a newer version         refused: ``UnsupportedVersion``
torn end of the log (never promised)            copied to quarantine, cut, reported
log entries whose segment has no file           segments in memory, written soon
log of the Rust crate, or one of ours in a      its entries made into segments, then removed
  store that now goes without
segment damaged or missing, the log covers it   rebuilt from the log; damaged file set aside
segment damaged or missing, the log doesn't     set aside; what is intact of it is written
                                                again, the rest recorded as lost
segment file whose number is gone               deleted: a crash came before the deletion
staged files                                    see :mod:`quiver.recovery.stages`
progress damaged or missing                     by ``subscribers.corrupt_progress``
half-written files                              removed
==============================================  ==========================================

Recovery reads the log and the segments the log still covers, nothing else, so its time
goes with the size of the log and not with what is stored.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import TypeVar

from quiver.bundle.slots import SlotTable
from quiver.clock import TOLERANCE, Clock, StoreTimes, TimeMark
from quiver.config import Config
from quiver.disk import quarantine
from quiver.disk.disk import TMP_SUFFIX, Disk
from quiver.disk.reserve import Reserve
from quiver.errors import Damage, QuiverError, SegmentDamage, StorageFull
from quiver.events import (
    BUNDLES_LOST,
    PROGRESS_DAMAGED,
    SEGMENT_QUARANTINED,
    SEGMENT_REBUILT,
    SEGMENT_RECLAIMED,
    WAL_TRUNCATED,
    get_logger,
)
from quiver.format.floor import FLOOR_PATH, Floor, encode_floor
from quiver.format.keys import KeyRecord
from quiver.format.segment.stage import STAGES
from quiver.format.state import STATE_NAME, Checkpoint, Loss, encode_state
from quiver.format.wal.header import layout_hash
from quiver.ids import BundleRef
from quiver.record.app_versions import Transactions, record_of
from quiver.record.key_runs import KeyRuns, read_runs, remove_unlisted
from quiver.record.key_window import KeyWindow
from quiver.record.ledger import Ledger
from quiver.recovery.consistency import contradictions, known_sequence
from quiver.recovery.fates import Fate, SegmentFate, judge_all, salvage_segment, transaction_of
from quiver.recovery.losses import damage_losses
from quiver.recovery.replay import Replay, key_of, keys_in
from quiver.recovery.rust.adoption import adopt
from quiver.recovery.stages import Restaged, restage, unpublished
from quiver.recovery.survey import Basics, Findings, SegmentFiles, survey
from quiver.segment.info import SEGMENTS, SegmentInfo, bundle_counts, segment_path
from quiver.segment.segments import Free, Segments
from quiver.segment.stage_table import StageTable
from quiver.segment.staged_file import publish_commit
from quiver.segment.writer import write_segment
from quiver.subscriber.registry import Registry
from quiver.wal.contents import LogEntry, LogStart
from quiver.wal.files import CURSOR, DIRECTORY, log_names
from quiver.wal.repair import repair_tail

Watch = Callable[[LogEntry], None]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Report:
    """What an open found and did: shown in ``status``, logged, counted."""

    bundles_replayed: int = 0
    bytes_replayed: int = 0
    torn_bytes: int = 0
    torn_tails: tuple[str, ...] = ()
    rebuilt: tuple[int, ...] = ()
    quarantined: tuple[str, ...] = ()
    lost: tuple[Loss, ...] = ()
    reclaimed: tuple[int, ...] = ()
    """Segments that are damaged or missing, and that every subscriber had finished."""
    adopted_bundles: int = 0
    maybe_doubled: str | None = None
    progress_problems: tuple[str, ...] = ()
    stage_problems: tuple[str, ...] = ()

    @property
    def degraded(self) -> bool:
        """Whether something was lost or had to be decided for lack of better knowledge."""
        return bool(
            self.lost or self.progress_problems or self.stage_problems or self.maybe_doubled
        )


@dataclass(frozen=True, slots=True)
class Recovered:
    """All an engine needs to go on."""

    segments: Segments
    registry: Registry
    slots: SlotTable
    window: KeyWindow
    transactions: Transactions
    stages: StageTable
    ledger: Ledger
    floor: Floor
    state: Checkpoint
    next_sequence: int
    times: StoreTimes
    log: LogStart
    report: Report = field(default_factory=Report)


def recover(
    disk: Disk,
    config: Config,
    clock: Clock,
    *,
    watch: Watch | None = None,
    first_segment: int = 0,
) -> Recovered:
    """Look, decide, act. The caller holds the store's lock.

    A new store begins with ``first_segment``; one that is there goes on with its own numbers.

    Names first: a process that was killed may have left some that are not durable yet.
    Whatever is renamed on top of them could reach the disk without them.
    """
    for directory in ("", DIRECTORY, SEGMENTS):
        disk.mkdir(directory)
    for directory in ("", DIRECTORY, SEGMENTS):
        disk.fsync_dir(directory)
    if STAGES in disk.listdir(""):
        disk.fsync_dir(STAGES)  # behind segments/: files move there, and never get lost between
    return _Recovery(disk, config, clock, watch, first_segment).run()


class _Recovery:
    def __init__(
        self,
        disk: Disk,
        config: Config,
        clock: Clock,
        watch: Watch | None,
        first_segment: int,
    ) -> None:
        self._disk = disk
        self._config = config
        self._clock = clock
        self._watch = watch
        self._first_segment = first_segment
        self._log = get_logger()
        self._segments = Segments(disk, config)
        self._slots = SlotTable(config.slots)
        self._without_log = config.durability == "segment_only"

    def run(self) -> Recovered:
        layout = layout_hash(self._config.slots)
        # Nothing is changed before all of it was looked at, leftovers of a crash included: a
        # file of a newer version refuses the store as it is.
        files = SegmentFiles(self._disk)
        found = survey(
            self._disk,
            files,
            lambda basics: _replay(files, basics),
            layout_hash=layout,
            watch=self._watch,
        )
        self._refuse(found)
        self._segments.found(found.files.infos.values())
        found = self._join_gap(self._identify(found))
        _remove_leftovers(self._disk)
        remove_unlisted(self._disk, found.basics.known_state.keys)
        tail = repair_tail(self._disk, found.log)
        for torn in found.log.torn_tails:
            self._log.warning(WAL_TRUNCATED, file=torn.file, offset=torn.offset, nbytes=torn.length)
        adopted = adopt(self._disk, self._segments, found, self._slots.names)
        state = replace(found.basics.known_state, adoption=None)
        ledger = Ledger.of(state)
        keys = self._keys_in_segments(found) if self._had_no_log(found) else []
        fates = {
            seq: fate for seq, fate in judge_all(found).items() if seq not in adopted.unfinished
        }
        self._learn_slots(found, fates)
        losses, reclaimed = self._record_losses(found, fates, ledger)
        quarantined, rebuilt = self._set_aside_damaged(found, fates)
        quarantined += self._finish_deletions(found, fates, ledger)
        next_segment = found.first_free_segment(info.seq for info in self._segments.infos())
        if found.basics.floor is None:  # a new store
            next_segment = max(next_segment, self._first_segment)
        transactions = self._transactions(found)
        max_stages = self._config.transactions.max_stages
        restaged = restage(self._disk, self._segments, found, transactions, max_stages)
        # Only of stages that are kept: an open must find again what the one before it found.
        for name, slot in restaged.named:
            self._slots.recall(name, slot)
        for slot in restaged.unnamed:
            self._slots.use(slot)
        if self._without_log:
            self._seal_without_log(found, restaged)
        else:
            self._take_from_log(found, fates)
        # Of some of these only bundles were lost, and the segment is there.
        places = {seq: self._segments.where(seq) for seq in ledger.lost_segments}
        lost = {seq for seq, place in places.items() if isinstance(place, Free)}
        self._segments.begin(next_segment, lost)
        floor = self._floor(found, fates)
        quarantined += self._set_aside_lost(found, fates)
        registry, problems = self._load_progress(found)
        log = self._log_start(found)
        window = self._window(found, keys)
        if self._without_log and found.log.files and not found.log.foreign:
            state, floor = self._end_log(found, (window, transactions, ledger), floor)
        times = self._times(found)
        state = self._keep_behind(state, times, ledger)
        return Recovered(
            segments=self._segments,
            registry=registry,
            slots=self._slots,
            window=window,
            transactions=transactions,
            stages=restaged.table,
            ledger=ledger,
            floor=floor,
            state=state,
            next_sequence=log.next_sequence,
            times=times,
            log=log,
            report=Report(
                bundles_replayed=found.replay.bundles,
                bytes_replayed=found.replay.nbytes,
                torn_bytes=tail.cut_bytes,
                torn_tails=tuple(torn.describe() for torn in found.log.torn_tails),
                rebuilt=(*adopted.rebuilt, *rebuilt),
                quarantined=(*adopted.quarantined, *quarantined),
                lost=losses,
                reclaimed=reclaimed,
                adopted_bundles=adopted.bundles,
                maybe_doubled=adopted.maybe_doubled,
                progress_problems=problems,
                stage_problems=restaged.problems,
            ),
        )

    # Refuse

    def _refuse(self, found: Findings[Replay]) -> None:
        """Stop before anything is changed, if what is there doesn't add up."""
        if found.replay.contradiction is not None:
            raise found.replay.contradiction
        for problem in contradictions(found, judge_all(found)):
            raise problem
        if self._config.subscribers.corrupt_progress == "fail":
            for progress in found.basics.progress.values():
                if isinstance(progress, QuiverError):
                    raise progress

    # Who the store is

    def _identify(self, found: Findings[Replay]) -> Findings[Replay]:
        """A store has a uuid for life, and a checkpoint of this version that says so.

        A directory of an older version gets both before anything else in it is changed: from
        then on the older program refuses it, instead of misreading what this one writes.  In
        a new directory, and in one of the Rust crate, the floor comes before the checkpoint.
        """
        basics = found.basics
        state = basics.known_state
        if state.uuid:
            return found
        basics = replace(basics, state=replace(state, uuid=uuid.uuid4().hex))
        if found.basics.floor is not None or found.basics.state is not None:
            basics = self._guarded(lambda: self._upgrade(basics, found))
        return replace(found, basics=basics)

    def _guarded(self, write: Callable[[], T]) -> T:
        """A small write that must work on a full disk: the reserve is there for it."""
        try:
            return write()
        except StorageFull:
            if not Reserve(self._disk, 0).release():
                raise
            return write()

    def _upgrade(self, basics: Basics, found: Findings[Replay]) -> Basics:
        """Write the checkpoint, and then have the floor say that there is one.

        Version 1 did not say which bundles of a segment were lost.  Where the rest of it is
        still there, it was not all of them.
        """
        state = basics.known_state
        runs = KeyRuns(self._disk, ()).cover(state.window)
        there = {info.seq for info in self._segments.infos()}
        there |= {segment.seq for segment in found.replay.segments}
        losses = tuple(
            replace(loss, indexes=()) if loss.segment_seq in there else loss
            for loss in state.losses
        )
        counts = bundle_counts(self._segments.infos())
        state = replace(state, keys=runs, window=(), losses=losses, bundle_counts=counts)
        self._disk.replace(STATE_NAME, encode_state(state))
        floor = basics.floor
        if isinstance(floor, Floor) and not floor.has_state:
            floor = replace(floor, has_state=True)
            self._disk.replace(FLOOR_PATH, encode_floor(floor))
        return replace(basics, state=state, floor=floor, runs=read_runs(self._disk, runs))

    def _join_gap(self, found: Findings[Replay]) -> Findings[Replay]:
        """Have a gap begin where the log ends, if the log ends below it.

        A restore does not know how far the log of its directory goes.  What is written now
        comes behind the gap, and the numbers between must not look like lost entries later.
        """
        state, end = found.basics.known_state, found.log.next_sequence
        if not found.log.files or found.log.foreign:
            return found
        above = [gap for gap in state.gaps if gap.sequences[0] > end]
        if not above:
            return found
        first = min(above, key=lambda gap: gap.sequences)
        joined = replace(first, sequences=(end, first.sequences[1]))
        gaps = tuple(joined if gap is first else gap for gap in state.gaps)
        state = replace(state, gaps=gaps)
        self._disk.replace(STATE_NAME, encode_state(state))
        return replace(found, basics=replace(found.basics, state=state))

    # Segments

    def _record_losses(
        self, found: Findings[Replay], fates: Mapping[int, SegmentFate], ledger: Ledger
    ) -> tuple[tuple[Loss, ...], tuple[int, ...]]:
        """Put what damage took on record, durably, before anything is done about it; the new
        losses, and segments that all had finished.

        What an earlier open recorded already, before it could finish, is not counted again.
        """
        fresh = tuple(damage_losses(fates.values(), found, ledger, self._clock.now_ns()))
        for loss in fresh:
            ledger.record(loss)
            self._log.error(
                BUNDLES_LOST,
                segment=loss.segment_seq,
                bundles=loss.bundles,
                exact=loss.exact,
                subscribers=dict(loss.subscribers),
            )
        if ledger.dirty:
            state = replace(found.basics.known_state, adoption=None)
            data = encode_state(ledger.kept_in(state))
            self._guarded(lambda: self._disk.replace(STATE_NAME, data))
        damaged = [fate for fate in fates.values() if fate.fate is Fate.DAMAGED]
        reclaimed = tuple(one.seq for one in damaged if one.lost and one.seq not in ledger)
        for seq in reclaimed:
            self._log.warning(SEGMENT_RECLAIMED, segment=seq)
        return fresh, reclaimed

    def _set_aside_damaged(
        self, found: Findings[Replay], fates: Mapping[int, SegmentFate]
    ) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """Damaged files into quarantine; what is intact of those that the log can't rebuild
        is written again first, under the same refs.

        A file of which nothing is left stays until the floor says that its number is gone
        (:meth:`_set_aside_lost`).  Had it been moved before, a crash would leave a number whose
        file is missing: the next open would count again, and know less.
        """
        quarantined: list[str] = []
        rebuilt: list[int] = []
        lost = _lost_files(found, fates)
        for seq, damage in sorted(found.files.damaged.items()):
            fate = fates.get(seq)
            if fate is None or fate.fate is Fate.DELETED:
                continue
            if fate.fate is Fate.DAMAGED and fate.readable:
                # A copy: the new file takes the place of the old one in one step.
                path = quarantine.copy(self._disk, segment_path(seq))
                self._log.error(SEGMENT_QUARANTINED, segment=seq, file=path, error=str(damage))
            else:
                if seq in lost:
                    if seq in self._segments:
                        self._segments.damaged(seq)
                    continue
                path = self._move_damaged(seq, damage)
            quarantined.append(path)
            if fate.fate is Fate.REBUILD:
                rebuilt.append(seq)
                self._log.warning(SEGMENT_REBUILT, segment=seq)
        for fate in fates.values():
            if fate.fate is Fate.DAMAGED and fate.readable:
                quarantined += self._write_again(found, fate)
                if not fate.lost:
                    rebuilt.append(fate.seq)
        in_log = (Fate.IN_LOG, Fate.REBUILD)
        found.replay.keep(seq for seq, fate in fates.items() if fate.fate in in_log)
        return tuple(quarantined), tuple(rebuilt)

    def _write_again(self, found: Findings[Replay], fate: SegmentFate) -> list[str]:
        """Write what is intact of a damaged file as its segment; where a staged file went that
        was to become it."""
        seq, waiting = fate.seq, found.waiting.get(fate.seq)
        aside = []
        if waiting is not None:  # a copy: the segment has to be there before it goes
            aside.append(quarantine.copy(self._disk, waiting.file.path))
            self._log.error(
                SEGMENT_QUARANTINED, segment=seq, file=aside[0], error=str(waiting.error)
            )
        segment, transaction = salvage_segment(found, fate), transaction_of(found, seq)
        self._segments.rebuilt(segment, replaces_file=True)
        info = write_segment(self._disk, segment, self._slots.names, transaction)
        self._segments.sealed(info)
        for slot in info.unnamed:
            self._slots.use(slot)
        if waiting is not None:
            self._disk.unlink(waiting.file.path, missing_ok=True)
        self._log.warning(SEGMENT_REBUILT, segment=seq, lost=len(fate.lost))
        return aside

    def _set_aside_lost(
        self, found: Findings[Replay], fates: Mapping[int, SegmentFate]
    ) -> tuple[str, ...]:
        """Move damaged files of which nothing is left, now that the floor says so."""
        return tuple(
            self._move_damaged(seq, found.files.damaged[seq]) for seq in _lost_files(found, fates)
        )

    def _move_damaged(self, seq: int, damage: Damage) -> str:
        if seq in self._segments:
            self._segments.damaged(seq)
        path = quarantine.move(self._disk, segment_path(seq))
        self._log.error(SEGMENT_QUARANTINED, segment=seq, file=path, error=str(damage))
        return path

    def _finish_deletions(
        self, found: Findings[Replay], fates: Mapping[int, SegmentFate], ledger: Ledger
    ) -> tuple[str, ...]:
        """A number in the floor's gaps has no right to a file: its deletion was decided.

        Where damage took it, a crash came before the file was moved to quarantine.
        """
        files, took = found.files, ledger.lost_segments
        deleted = [seq for seq, fate in fates.items() if fate.fate is Fate.DELETED]
        lost = [seq for seq in deleted if seq in took and seq in files.numbers]
        moved = tuple(
            self._move_damaged(seq, files.damaged[seq]) for seq in lost if not files.is_sound(seq)
        )
        self._segments.dropped(seq for seq in deleted if seq in self._segments)
        self._segments.delete_files()
        damaged = [seq for seq in deleted if seq in files.damaged]
        for seq in damaged:
            self._disk.unlink(segment_path(seq), missing_ok=True)
        if damaged:
            self._disk.fsync_dir(SEGMENTS)
        return moved

    def _take_from_log(self, found: Findings[Replay], fates: Mapping[int, SegmentFate]) -> None:
        """What the log has and no file is in memory, to be written soon.

        Segments become files in their order: where a later one has a file, this one had one
        too, and the floor may pass it.
        """
        progress = found.basics.known_progress.values()
        seen = max((one.first_unused_segment for one in progress), default=0)
        newest = max(found.files.numbers, default=0)
        for segment in found.replay.segments:
            if fates[segment.seq].fate is Fate.REBUILD or segment.seq < newest:
                self._segments.rebuilt(segment)
            else:
                self._segments.recovered(segment, shown=segment.seq < seen)

    # Subscribers

    def _load_progress(self, found: Findings[Replay]) -> tuple[Registry, tuple[str, ...]]:
        policy = self._config.subscribers.corrupt_progress
        registry = Registry(self._disk, self._segments, policy=policy)
        problems: list[str] = []
        for one in registry.load(found.basics.progress):
            if one.problem is not None:
                problems.append(one.problem.message)
                self._log.error(PROGRESS_DAMAGED, subscriber=one.name, error=str(one.problem))
        return registry, tuple(problems)

    # The rest

    def _learn_slots(self, found: Findings[Replay], fates: Mapping[int, SegmentFate]) -> None:
        """Names come with the log; without one, with the segments themselves.

        The entry that named a slot may have been cut off the log, and an id that data is kept
        under must not be given to another name: so segments are asked as well, and, once it is
        known which are kept, staged files.
        """
        known = {**found.basics.known_state.slots, **found.replay.names}
        if self._had_no_log(found):
            for info in self._segments.infos():
                known.update(info.slots)
        for name, slot in known.items():
            self._slots.learn(name, slot)
        for file in self._named_files(found, fates):
            for name, slot in file.slots:
                self._slots.recall(name, slot)
            for slot in file.unnamed:
                self._slots.use(slot)
        for segment in found.replay.segments:
            for stream in segment.streams:
                self._slots.use(stream.slot)

    def _named_files(
        self, found: Findings[Replay], fates: Mapping[int, SegmentFate]
    ) -> Iterator[SegmentInfo]:
        """All committed files that say which slots they hold."""
        yield from self._segments.infos()
        for seq in sorted(found.files.damaged.keys() & fates.keys()):
            info = found.files.known_info(seq)
            if info is not None:
                yield info
        for seq, waiting in found.waiting.items():
            info = waiting.info or found.files.known_info(seq)
            if info is not None:
                yield info

    def _had_no_log(self, found: Findings[Replay]) -> bool:
        """Whether keys and names may be in segments alone: there is no log, or was none."""
        return self._without_log or not found.basics.known_floor.has_log

    def _window(self, found: Findings[Replay], in_segments: list[KeyRecord]) -> KeyWindow:
        config = self._config.idempotency
        window = KeyWindow(config.window_count, int(config.window_age * 1e9))
        window.extend(found.basics.known_keys)
        window.extend(in_segments)
        # Below `through` the checkpoint has them all; the log may not have retired them yet.
        through = found.basics.known_state.through
        in_log = (record for record in found.replay.keys if record.sequence >= through)
        window.extend(sorted(in_log, key=lambda record: record.sequence))
        return window

    def _transactions(self, found: Findings[Replay]) -> Transactions:
        config = self._config.transactions
        transactions = Transactions(config.max_apps, int(config.remember * 1e9))
        transactions.extend(found.basics.known_state.transactions)
        transactions.extend(record_of(commit) for commit in found.replay.commits)
        return transactions

    def _keys_in_segments(self, found: Findings[Replay]) -> list[KeyRecord]:
        """Without a log the newest keys are in the newest segments only.

        Reading them checks those segments: what is damaged is set aside like any other, and
        the keys of its intact bundles are kept as they are.
        """
        through = found.basics.known_state.through
        keys: list[KeyRecord] = []
        for info in self._segments.infos():
            if info.last_sequence is None or info.last_sequence < through:
                continue
            try:
                keys += keys_in(self._segments.reader(info.seq))
            except SegmentDamage as damage:
                found.files.damaged[info.seq] = damage
        for seq in found.files.damaged:
            salvaged = found.files.salvaged(seq)
            for index in range(0 if salvaged is None else salvaged.segment.bundle_count):
                if salvaged is not None and index not in salvaged.lost:
                    key = key_of(salvaged.segment.meta(index), BundleRef(seq, index))
                    keys += () if key is None else (key,)
        # In order: the window, and the runs that are made of it, rest on that.
        new = (record for record in keys if record.sequence >= through)
        return sorted(new, key=lambda record: record.sequence)

    def _floor(self, found: Findings[Replay], fates: Mapping[int, SegmentFate]) -> Floor:
        """The floor as found, or one that also says which numbers damage took, durably; a new
        store, or one of the Rust crate, gets its first one."""
        known = found.basics.floor
        is_lost = any(one.fate is Fate.DAMAGED and not one.readable for one in fates.values())
        if isinstance(known, Floor) and not is_lost:
            return known
        floor = self._segments.floor(found.basics.known_floor)
        if floor != known:
            data = encode_floor(floor)
            self._guarded(lambda: self._disk.replace(FLOOR_PATH, data))
        return floor

    def _time_mark(self, found: Findings[Replay]) -> TimeMark | None:
        known = found.basics.known_state.store_time
        marks = [TimeMark(known["store_ns"], known["wall_ns"])] if known else []
        if found.replay.mark is not None:
            marks.append(found.replay.mark)
        marks += [
            TimeMark(info.last_store_ts, info.last_ts)
            for info in self._segments.infos()
            if info.last_store_ts is not None and info.last_ts is not None
        ]
        newest = max(marks, default=None)
        if newest is not None and self._known_behind(found) is not None:
            # Stamps stand still since the checkpoint, and say nothing about the wall clock.
            wall = known["wall_ns"] + max(0, newest.store_ns - known["store_ns"])
            newest = TimeMark(newest.store_ns, wall)
        return newest

    def _last_ts(self, found: Findings[Replay]) -> int:
        """The newest ingestion time: that of the newest record, by sequence.

        Not the latest of all: after a jump of the clock that was believed and then set right,
        older records are ahead.  Of a segment only the latest is known, so where the log or
        the checkpoint has the same sequence, they are asked first.
        """
        state, stamped = found.basics.known_state, found.replay.stamped
        last = [
            (-1 if info.last_sequence is None else info.last_sequence, 0, info.last_ts)
            for info in self._segments.infos()
            if info.last_ts is not None
        ]
        last.append((state.through - 1, 1, state.last_ts))
        if found.log.foreign:
            last.append((found.log.next_sequence - 1, 2, found.log.last_ts_ns))
        elif stamped is not None:
            last.append((stamped.sequence, 2, stamped.ingestion_ts_ns))
        return max(last)[2]

    def _known_behind(self, found: Findings[Replay]) -> int | None:
        """Store time at which the wall clock was first seen behind the newest stamp."""
        state = found.basics.known_state
        return state.store_time.get("behind_ns") if state.last_ts == self._last_ts(found) else None

    def _times(self, found: Findings[Replay]) -> StoreTimes:
        behind = self._known_behind(found)
        return StoreTimes(self._clock, self._time_mark(found), self._last_ts(found), behind)

    def _keep_behind(self, state: Checkpoint, times: StoreTimes, ledger: Ledger) -> Checkpoint:
        """Write down that the wall clock is behind, at once: short-lived processes would never
        wait long enough for it to be believed, each on its own."""
        known = (state.store_time.get("behind_ns"), state.last_ts)
        is_behind = times.last_ns - self._clock.now_ns() > TOLERANCE * 1e9
        if not is_behind or known == (times.behind_ns, times.last_ns):
            return state
        kept = replace(state, last_ts=times.last_ns, store_time=times.record())
        kept = ledger.kept_in(kept)
        try:
            self._disk.replace(STATE_NAME, encode_state(kept))
        except StorageFull:  # it is wrong for a minute more
            return state
        return kept

    def _log_start(self, found: Findings[Replay]) -> LogStart:
        start = found.log.start()
        known = known_sequence(found.basics, self._segments.infos())
        start = replace(start, next_sequence=max(start.next_sequence, known))
        if start.files and not found.log.foreign and not self._without_log:
            return start
        return replace(start, next_file_number=1, files=())

    # A store that goes on without a log

    def _seal_without_log(self, found: Findings[Replay], restaged: Restaged) -> None:
        """What only the log has is written now: nothing else will have it."""
        for segment in found.replay.segments:
            self._segments.sealed(write_segment(self._disk, segment, self._slots.names))
        for commit in restaged.commits:
            infos, missing = publish_commit(self._disk, commit)
            for seq in missing.keys() & restaged.expected.keys():
                raise missing[seq]  # it was sound a moment ago: the next open looks again
            self._segments.sealed(*infos, commit=commit, lost=missing)
            restaged.table.published(info.seq for info in infos)

    def _end_log(
        self,
        found: Findings[Replay],
        known: tuple[KeyWindow, Transactions, Ledger],
        floor: Floor,
    ) -> tuple[Checkpoint, Floor]:
        """All of the log is in segments: keep what else it knew, then let it go.

        Were it left where it is, it would lag behind what comes now, and a log that lags
        behind has lost its end.
        """
        window, transactions, ledger = known
        through = found.log.next_sequence
        state = replace(
            found.basics.known_state,
            through=max(through, found.basics.known_state.through),
            last_ts=self._last_ts(found),
            slots={name: slot for slot, name in self._slots.names.items()},
            keys=KeyRuns(self._disk, found.basics.known_state.keys).cover(window.snapshot(through)),
            transactions=transactions.snapshot(through),
            bundle_counts=bundle_counts(self._segments.infos()),
        )
        state = ledger.kept_in(state)
        self._disk.replace(STATE_NAME, encode_state(state))
        floor = replace(self._segments.floor(floor), has_log=False, has_state=True)
        self._disk.replace(FLOOR_PATH, encode_floor(floor))
        self._remove_log()
        return state, floor

    def _remove_log(self) -> None:
        for name in log_names(self._disk):
            self._disk.unlink(name.path)
            self._disk.fsync_dir(DIRECTORY)
        self._disk.unlink(CURSOR, missing_ok=True)
        self._disk.fsync_dir(DIRECTORY)


def _replay(files: SegmentFiles, basics: Basics) -> Replay:
    """Keeps of the log what is in no sound segment file, and was not deleted."""
    floor = basics.known_floor

    @cache
    def needs_no_log(seq: int) -> bool:
        return (seq < floor.replay_floor and floor.is_gone(seq)) or files.is_sound(seq)

    return Replay(needs_no_log, basics.known_state.through)


def _lost_files(found: Findings[Replay], fates: Mapping[int, SegmentFate]) -> list[int]:
    """Damaged files of which nothing can be read, and whose numbers the floor can pass.

    It can't pass a commit of which other files are not segments yet; how many bundles each
    of its segments has is in the log.
    """
    waiting = {seq for commit in unpublished(found) for seq, _ in commit.segments}
    return [
        seq
        for seq in sorted(found.files.damaged)
        if (fate := fates.get(seq)) is not None
        if fate.fate is Fate.DAMAGED and not fate.readable and seq not in waiting
    ]


def _remove_leftovers(disk: Disk) -> None:
    """Files that were to replace others when a crash came: nothing was promised of them."""
    for directory in ("", DIRECTORY, SEGMENTS, STAGES):
        for name in disk.listdir(directory):
            if name.endswith(TMP_SUFFIX):
                disk.unlink(f"{directory}/{name}" if directory else name, missing_ok=True)
