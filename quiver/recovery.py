"""``open()``: from whatever a crash left to a store that keeps its promise.

First look (:mod:`quiver.survey`), then decide, by this table, then act.  Acting is safe
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
torn end of the log (never promised)            copied to quarantine, cut, reported
log entries whose segment has no file           segments in memory, written soon
log of the Rust crate, or one of ours in a      its entries made into segments, then removed
  store that now goes without
segment damaged or missing, the log covers it   rebuilt from the log; damaged file set aside
segment damaged or missing, the log doesn't     set aside; its bundles recorded as lost
segment file whose number is gone               deleted: a crash came before the deletion
staged files                                    see :mod:`quiver.restaging`
progress damaged or missing                     by ``subscribers.corrupt_progress``
half-written files                              removed
==============================================  ==========================================

Recovery reads the log and the segments the log still covers, nothing else, so its time
goes with the size of the log and not with what is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from quiver.adoption import adopt
from quiver.bundle import SlotTable
from quiver.clock import Clock
from quiver.config import Config
from quiver.contradictions import contradictions, known_sequence, log_behind_progress
from quiver.disk.disk import TMP_SUFFIX, Disk
from quiver.errors import QuiverError, SegmentDamage
from quiver.events import (
    BUNDLES_LOST,
    PROGRESS_DAMAGED,
    SEGMENT_QUARANTINED,
    SEGMENT_REBUILT,
    WAL_TRUNCATED,
    get_logger,
)
from quiver.format.commit import Commit
from quiver.format.floor import FLOOR_PATH, Floor, encode_floor, gone_below
from quiver.format.keys import KeyRecord
from quiver.format.stage import STAGES
from quiver.format.state import STATE_NAME, Checkpoint, Loss, encode_state
from quiver.format.wal_header import layout_hash
from quiver.ids import BundleRef
from quiver.ledger import Ledger
from quiver.losses import count_lost
from quiver.restaging import Restaged, restage, unpublished
from quiver.segment.accumulator import OpenSegment
from quiver.segment.catalog import Catalog
from quiver.segment.info import SEGMENTS
from quiver.segment.reader import SegmentReader
from quiver.segment.stage import publish_stage
from quiver.segment.writer import write_segment
from quiver.stages import StageTable
from quiver.subscriber.registry import Registry
from quiver.survey import Survey, first_free_segment, survey
from quiver.transactions import Transactions, record_of
from quiver.wal.contents import LogEntry, LogStart
from quiver.wal.files import CURSOR, DIRECTORY, log_names
from quiver.wal.repair import repair_tail
from quiver.window import KeyWindow

Watch = Callable[[LogEntry], None]


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

    catalog: Catalog
    registry: Registry
    slots: SlotTable
    window: KeyWindow
    transactions: Transactions
    stages: StageTable
    commits: tuple[Commit, ...]
    ledger: Ledger
    floor: Floor
    state: Checkpoint
    segments: tuple[OpenSegment, ...]
    next_segment: int
    next_sequence: int
    last_ts: int
    log: LogStart
    report: Report = field(default_factory=Report)


def recover(disk: Disk, config: Config, clock: Clock, *, watch: Watch | None = None) -> Recovered:
    """Look, decide, act. The caller holds the store's lock.

    Names first: a process that was killed may have left some that are not durable yet.
    Whatever is renamed on top of them could reach the disk without them.
    """
    for directory in ("", DIRECTORY, SEGMENTS):
        disk.mkdir(directory)
    for directory in ("", DIRECTORY, SEGMENTS):
        disk.fsync_dir(directory)
    if STAGES in disk.listdir(""):
        disk.fsync_dir(STAGES)  # behind segments/: files move there, and never get lost between
    return _Recovery(disk, config, clock, watch).run()


class _Recovery:
    def __init__(self, disk: Disk, config: Config, clock: Clock, watch: Watch | None) -> None:
        self._disk = disk
        self._config = config
        self._clock = clock
        self._watch = watch
        self._log = get_logger()
        self._catalog = Catalog(disk, config.read_mode, config.max_mapped_segments)
        self._slots = SlotTable(config.slots)
        self._without_log = config.durability == "segment_only"

    def run(self) -> Recovered:
        layout = layout_hash(self._config.slots)
        found = survey(self._disk, self._catalog, layout_hash=layout, clean=True, watch=self._watch)
        self._refuse(found)
        _remove_leftovers(self._disk)
        tail = repair_tail(self._disk, found.log)
        for torn in found.log.torn_tails:
            self._log.warning(WAL_TRUNCATED, file=torn.file, offset=torn.offset, nbytes=torn.length)
        adopted = adopt(self._disk, self._catalog, found, self._slots.names)
        state = replace(found.basics.known_state, adoption=None)
        ledger = Ledger(state.losses, state.loss_totals)
        keys = self._keys_in_segments(found) if self._had_no_log(found) else []
        quarantined, rebuilt = self._set_aside_damaged(found)
        self._finish_deletions(found)
        next_segment = first_free_segment(found, (info.seq for info in self._catalog.infos))
        transactions = self._transactions(found)
        max_stages = self._config.transactions.max_stages
        restaged = restage(self._disk, self._catalog, found, transactions, max_stages)
        expected = frozenset(restaged.expected)
        lost_seqs = [seq for seq in self._lost(found, expected) if seq not in adopted.unfinished]
        self._learn_slots(found, restaged.unnamed)
        segments, commits = self._seal_without_log(found, restaged)
        registry, problems, missing = self._load_progress(found, segments, commits, next_segment)
        missing -= expected
        losses = self._record_losses(found, ledger, {*lost_seqs, *missing})
        log = self._log_start(found)
        window = self._window(found, keys)
        floor = self._floor(found, next_segment)
        if self._without_log and found.log.files and not found.log.foreign:
            known = (window, transactions, ledger)
            state, floor = self._end_log(found, known, floor, next_segment)
        return Recovered(
            catalog=self._catalog,
            registry=registry,
            slots=self._slots,
            window=window,
            transactions=transactions,
            stages=restaged.table,
            commits=commits,
            ledger=ledger,
            floor=floor,
            state=state,
            segments=tuple(segments),
            next_segment=next_segment,
            next_sequence=log.next_sequence,
            last_ts=self._last_ts(found),
            log=log,
            report=Report(
                bundles_replayed=found.replay.bundles,
                bytes_replayed=found.replay.nbytes,
                torn_bytes=tail.cut_bytes,
                torn_tails=tuple(torn.describe() for torn in found.log.torn_tails),
                rebuilt=(*adopted.rebuilt, *rebuilt),
                quarantined=(*adopted.quarantined, *quarantined),
                lost=losses,
                adopted_bundles=adopted.bundles,
                maybe_doubled=adopted.maybe_doubled,
                progress_problems=problems,
                stage_problems=restaged.problems,
            ),
        )

    # Refuse

    def _refuse(self, found: Survey) -> None:
        """Stop before anything is changed, if what is there doesn't add up."""
        infos = self._catalog.infos
        for problem in contradictions(found, infos):
            raise problem
        there = {info.seq: info.bundle_count for info in infos}
        there |= {segment.seq: segment.bundle_count for segment in found.replay.segments}
        excused = {*found.sealed.damaged, *found.replay.headless}
        excused |= {seq for commit in found.replay.commits for seq, _ in commit.segments}
        for problem in log_behind_progress(found, there, excused):
            raise problem
        if self._config.subscribers.corrupt_progress == "fail":
            for progress in found.basics.progress.values():
                if isinstance(progress, QuiverError):
                    raise progress

    # Segments

    def _set_aside_damaged(self, found: Survey) -> tuple[tuple[str, ...], tuple[int, ...]]:
        quarantined: list[str] = []
        in_log = {segment.seq for segment in found.replay.segments}
        rebuilt: list[int] = []
        for seq, damage in sorted(found.sealed.damaged.items()):
            record = self._catalog.quarantine(seq, damage)
            quarantined.append(record.path)
            self._log.error(SEGMENT_QUARANTINED, segment=seq, file=record.path, error=str(damage))
            if seq in in_log:
                rebuilt.append(seq)
                self._log.warning(SEGMENT_REBUILT, segment=seq)
        return tuple(quarantined), tuple(rebuilt)

    def _finish_deletions(self, found: Survey) -> None:
        """A number in the floor's gaps has no right to a file: its deletion was decided."""
        floor = found.basics.known_floor
        self._catalog.remove(
            info.seq
            for info in self._catalog.infos
            if info.seq < floor.replay_floor and floor.is_gone(info.seq)
        )

    def _lost(self, found: Survey, expected: frozenset[int]) -> list[int]:
        """Segments that should be there, aren't, and can't be rebuilt from the log.

        Those that staged files are about to become are ``expected``.
        """
        present = {info.seq for info in self._catalog.infos} | expected
        present |= {segment.seq for segment in found.replay.segments}
        missing = set(found.basics.known_floor.missing(present))
        missing |= {
            seq
            for commit in unpublished(found, self._catalog)
            for seq, _ in commit.segments
            if seq not in present
        }
        damaged = {seq for seq in found.sealed.damaged if seq not in present}
        return sorted(missing | damaged | found.replay.headless)

    def _record_losses(
        self, found: Survey, ledger: Ledger, lost: Iterable[int]
    ) -> tuple[Loss, ...]:
        losses: list[Loss] = []
        committed = {
            seq: file.bundles for commit in found.replay.commits for seq, file in commit.segments
        }
        for seq in sorted(lost):
            if seq in ledger:
                continue
            known = committed.get(seq)
            bundles, subscribers = count_lost(seq, found.basics, self._catalog.infos, known)
            loss = Loss(seq, bundles, 0, "damaged", self._clock.now_ns(), subscribers)
            ledger.record(loss)
            losses.append(loss)
            self._log.error(BUNDLES_LOST, segment=seq, bundles=bundles, subscribers=subscribers)
        return tuple(losses)

    # Subscribers

    def _load_progress(
        self,
        found: Survey,
        segments: list[OpenSegment],
        commits: tuple[Commit, ...],
        next_segment: int,
    ) -> tuple[Registry, tuple[str, ...], set[int]]:
        registry = Registry(self._disk, policy=self._config.subscribers.corrupt_progress)
        totals = {info.seq: info.bundle_count for info in self._catalog.infos}
        if self._config.deliver == "durable" and not self._without_log:
            totals |= {seg.seq: seg.bundle_count for seg in segments}
            growing = next_segment
        else:
            growing = min((seg.seq for seg in segments), default=next_segment)
        growing = min([growing, *(commit.first_segment for commit in commits)])
        problems: list[str] = []
        missing: set[int] = set()
        for one in registry.load(found.basics.progress, totals, growing):
            if one.problem is not None:
                problems.append(one.problem.message)
                self._log.error(PROGRESS_DAMAGED, subscriber=one.name, error=str(one.problem))
            missing |= {seq for seq in one.missing if not found.basics.known_floor.is_gone(seq)}
        return registry, tuple(problems), missing

    # The rest

    def _learn_slots(self, found: Survey, by_number: Iterable[int]) -> None:
        """Names come with the log; without one, with the segments themselves."""
        known = {**found.basics.known_state.slots, **found.replay.names}
        if self._had_no_log(found):
            for info in self._catalog.infos:
                known.update(info.slots)
        for name, slot in known.items():
            self._slots.learn(name, slot)
        for info in self._catalog.infos:
            for slot in info.unnamed:
                self._slots.use(slot)
        for segment in found.replay.segments:
            for stream in segment.streams:
                self._slots.use(stream.slot)
        for slot in by_number:
            self._slots.use(slot)

    def _had_no_log(self, found: Survey) -> bool:
        """Whether keys and names may be in segments alone: there is no log, or was none."""
        return self._without_log or not found.basics.known_floor.has_log

    def _window(self, found: Survey, in_segments: list[KeyRecord]) -> KeyWindow:
        config = self._config.idempotency
        window = KeyWindow(config.window_count, int(config.window_age * 1e9))
        window.extend(found.basics.known_state.window)
        window.extend(in_segments)
        window.extend(sorted(found.replay.keys, key=lambda record: record.sequence))
        return window

    def _transactions(self, found: Survey) -> Transactions:
        config = self._config.transactions
        transactions = Transactions(config.max_apps, int(config.remember * 1e9))
        transactions.extend(found.basics.known_state.transactions)
        transactions.extend(record_of(commit) for commit in found.replay.commits)
        return transactions

    def _keys_in_segments(self, found: Survey) -> list[KeyRecord]:
        """Without a log the newest keys are in the newest segments only.

        Reading them checks those segments: what is damaged is set aside like any other.
        """
        through = found.basics.known_state.through
        keys: list[KeyRecord] = []
        for info in self._catalog.infos:
            if info.last_sequence is None or info.last_sequence < through:
                continue
            try:
                keys += self._keys_of(self._catalog.reader(info.seq))
            except SegmentDamage as damage:
                found.sealed.damaged[info.seq] = damage
        return [record for record in keys if record.sequence >= through]

    def _keys_of(self, reader: SegmentReader) -> Iterator[KeyRecord]:
        for index in range(len(reader)):
            meta = reader.meta(index)
            if meta.key is not None and meta.content_hash is not None:
                yield KeyRecord(
                    meta.key,
                    meta.content_hash,
                    BundleRef(reader.seq, index),
                    meta.sequence or 0,
                    meta.ingestion_ts_ns or 0,
                )

    def _floor(self, found: Survey, next_segment: int) -> Floor:
        """The floor as found; a new store, or one of the Rust crate, gets its first one."""
        floor = found.basics.floor
        if isinstance(floor, Floor):
            return floor
        sealed = min((s.seq for s in found.replay.segments), default=next_segment)
        live = [info.seq for info in self._catalog.infos]
        first = Floor(next_segment, sealed, gone_below(sealed, live))
        self._disk.replace(FLOOR_PATH, encode_floor(first))
        return first

    def _last_ts(self, found: Survey) -> int:
        last = (info.last_ts for info in self._catalog.infos if info.last_ts is not None)
        return max([found.basics.known_state.last_ts, found.log.last_ts_ns, *last])

    def _log_start(self, found: Survey) -> LogStart:
        start = found.log.start()
        if start.files and not found.log.foreign and not self._without_log:
            return start
        known = known_sequence(found.basics, self._catalog.infos)
        return LogStart(max(start.next_sequence, known), start.position, 1, ())

    # A store that goes on without a log

    def _seal_without_log(
        self, found: Survey, restaged: Restaged
    ) -> tuple[list[OpenSegment], tuple[Commit, ...]]:
        """What stays to be written because the log has it: nothing without one."""
        segments = found.replay.segments
        if not self._without_log:
            return segments, restaged.commits
        for segment in segments:
            self._catalog.add(write_segment(self._disk, segment, self._slots.names))
        for commit in restaged.commits:
            there = [(seq, file) for seq, file in commit.segments if seq in restaged.expected]
            infos = [publish_stage(self._disk, commit, seq, file) for seq, file in there]
            self._disk.fsync_dir(SEGMENTS)
            self._disk.fsync_dir(STAGES)
            self._catalog.add(*infos)
            restaged.table.published(seq for seq, _ in there)
        return [], ()

    def _end_log(
        self,
        found: Survey,
        known: tuple[KeyWindow, Transactions, Ledger],
        floor: Floor,
        next_segment: int,
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
            window=window.snapshot(through),
            transactions=transactions.snapshot(through),
            losses=ledger.losses,
            loss_totals=ledger.totals,
        )
        self._disk.replace(STATE_NAME, encode_state(state))
        live = [info.seq for info in self._catalog.infos]
        floor = replace(
            floor,
            next_segment=max(next_segment, floor.next_segment),
            replay_floor=max(next_segment, floor.replay_floor),
            gone=gone_below(max(next_segment, floor.replay_floor), live),
            has_log=False,
            has_state=True,
        )
        self._disk.replace(FLOOR_PATH, encode_floor(floor))
        self._remove_log()
        return state, floor

    def _remove_log(self) -> None:
        for name in log_names(self._disk):
            self._disk.unlink(name.path)
            self._disk.fsync_dir(DIRECTORY)
        self._disk.unlink(CURSOR, missing_ok=True)
        self._disk.fsync_dir(DIRECTORY)


def _remove_leftovers(disk: Disk) -> None:
    """Files that were to replace others when a crash came: nothing was promised of them."""
    for directory in ("", DIRECTORY, SEGMENTS, STAGES):
        for name in disk.listdir(directory):
            if name.endswith(TMP_SUFFIX):
                disk.unlink(f"{directory}/{name}" if directory else name, missing_ok=True)
