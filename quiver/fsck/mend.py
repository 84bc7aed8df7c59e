"""Carrying a repair out.

In this order, each step durable before the next, so that a crash in between leaves
something that a second repair ends the same way::

    damaged files set aside → segments → progress → checkpoint → floor → log set aside

The floor comes before the log goes: from then on nothing asks the log any more.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Final

from quiver.clock import Clock
from quiver.contradictions import known_sequence
from quiver.disk.disk import Disk
from quiver.disk.lock import StoreLock
from quiver.errors import Damage, LimitExceeded, QuiverError
from quiver.format.crc import crc32
from quiver.format.floor import FLOOR_PATH, Floor, encode_floor, gone_below
from quiver.format.keys import KeyRecord
from quiver.format.progress import Progress, SegmentProgress
from quiver.format.record import LOST_ATTRIBUTE, BundleMeta
from quiver.format.stage import STAGES
from quiver.format.state import STATE_NAME, Checkpoint, Loss, encode_state
from quiver.fsck.index import Place
from quiver.fsck.look import Watch
from quiver.fsck.repair import Plan
from quiver.fsck.staged import committed_versions
from quiver.ids import BundleRef
from quiver.ledger import Ledger
from quiver.replay import encoded_slots, entry_meta
from quiver.segment.accumulator import OpenSegment
from quiver.segment.info import QUARANTINE, SEGMENTS, segment_path
from quiver.segment.stage import publish_stage
from quiver.segment.writer import write_segment
from quiver.subscriber.progress import keep_progress, progress_file
from quiver.survey import first_free
from quiver.wal.files import CURSOR, DIRECTORY, NEW, SPARE, log_names

NUMBERS_SKIPPED: Final = 1024
"""Segment numbers passed over when nobody knows which were given out last."""
SEQUENCES_SKIPPED: Final = 1 << 20
MAX_KEYS: Final = 65_536
MAX_NAMESAKES: Final = 10_000
REASON: Final = "damaged"


@dataclass(frozen=True, slots=True)
class Mended:
    """What a repair did."""

    written: tuple[int, ...]
    set_aside: tuple[str, ...]
    losses: tuple[Loss, ...]


def mend(disk: Disk, clock: Clock, *, where: str, watch: Watch | None = None) -> Mended:
    """Plan again, under the store's lock, and do it."""
    with StoreLock.acquire(disk, clock, where=where):
        plan = Plan(disk, watch)
        if not plan.is_needed:
            return Mended((), (), ())
        return _Mending(disk, clock, plan).run()


class _Mending:
    def __init__(self, disk: Disk, clock: Clock, plan: Plan) -> None:
        self._disk = disk
        self._clock = clock
        self._plan = plan
        self._basics = plan.found.basics
        self._aside: list[str] = []
        state = self._basics.known_state
        self._ledger = Ledger(state.losses, state.loss_totals)
        self._names = {**self._names_in_segments(), **state.slots, **plan.found.index.names}

    def run(self) -> Mended:
        plan, disk = self._plan, self._disk
        disk.mkdir(QUARANTINE)
        disk.mkdir(SEGMENTS)
        disk.fsync_dir("")
        for seq in plan.to_set_aside:
            # What is written again takes the old file's place in one step.
            aside = self._copy_aside if seq in plan.to_write else self._move_aside
            aside(segment_path(seq))
        for seq in plan.to_write:
            write_segment(disk, self._segment(seq), {v: k for k, v in self._names.items()})
        self._publish()
        for path in plan.staged_damage:
            self._move_aside(path)
        losses = self._record_losses()
        self._keep_state()
        self._keep_floor()
        if plan.set_log_aside:
            self._set_log_aside()
        elif isinstance(self._basics.cursor, QuiverError):
            self._move_aside(CURSOR)
        return Mended(tuple(plan.to_write), tuple(self._aside), losses)

    def _publish(self) -> None:
        """Committed files, before the log goes that says they are."""
        for one in self._plan.to_publish:
            publish_stage(self._disk, one.commit, one.seq, one.file)
        if self._plan.to_publish:
            self._disk.fsync_dir(SEGMENTS)
            self._disk.fsync_dir(STAGES)

    # Setting aside

    def _move_aside(self, path: str) -> None:
        """Move a file to quarantine; fine if a repair before this one did."""
        if self._disk.stat_size(path) is None:
            return
        target = self._free_name(path)
        self._disk.rename(path, target)
        # The new name first: a crash between may leave two names, never none.
        self._disk.fsync_dir(QUARANTINE)
        self._disk.fsync_dir(path.rpartition("/")[0])
        self._aside.append(target)

    def _copy_aside(self, path: str) -> None:
        """Copy a file that is about to be replaced, named after its content."""
        try:
            data = self._disk.read(path)
        except FileNotFoundError:
            return
        copy = f"{QUARANTINE}/{path.rpartition('/')[2]}.{crc32(data):08x}"
        self._disk.replace(copy, data)
        self._aside.append(copy)

    def _free_name(self, path: str) -> str:
        base = f"{QUARANTINE}/{path.rpartition('/')[2]}"
        target, count = base, 0
        while self._disk.stat_size(target) is not None:
            count += 1
            if count > MAX_NAMESAKES:
                raise LimitExceeded(f"quarantined files called {base}", count, MAX_NAMESAKES)
            target = f"{base}.{count}"
        return target

    def _set_log_aside(self) -> None:
        """Oldest first, so that what is left always ends where it did."""
        for name in log_names(self._disk):
            self._move_aside(name.path)
        for path in (NEW, SPARE):
            self._disk.unlink(path, missing_ok=True)
        self._move_aside(CURSOR)
        self._disk.mkdir(DIRECTORY)
        self._disk.fsync_dir(DIRECTORY)

    # Segments

    def _segment(self, seq: int) -> OpenSegment:
        """A segment from the log; a lost bundle leaves an empty one that nobody is given."""
        segment = OpenSegment(seq)
        places = self._plan.in_log[seq]
        for index in range(max(places, default=-1) + 1):
            place = places.get(index)
            if place is None:
                segment.append((), BundleMeta(attributes={LOST_ATTRIBUTE: REASON}))
            else:
                bundle = place.bundle()
                segment.append(encoded_slots(bundle), entry_meta(bundle))
        for _ in range(segment.bundle_count, self._plan.holdings.counts.get(seq, 0)):
            segment.append((), BundleMeta(attributes={LOST_ATTRIBUTE: REASON}))
        return segment

    def _live(self) -> set[int]:
        published = {one.seq for one in self._plan.to_publish}
        return self._plan.kept | set(self._plan.to_write) | published

    # Losses, and where the subscribers stand

    def _record_losses(self) -> tuple[Loss, ...]:
        gaps = dict(self._plan.gaps)
        for seq in self._plan.vanished:
            gaps.setdefault(seq, [])
        dropped = self._keep_progress(gaps)
        losses = [
            Loss(seq, len(lost), 0, REASON, self._clock.now_ns(), dropped.get(seq, {}))
            for seq, lost in sorted(gaps.items())
        ]
        for lost in self._plan.unnamed:
            seq = max((ref.segment_seq for ref in lost.refs), default=self._last_number())
            count = max(0, (lost.bundles or 0) - len(lost.refs))
            if seq not in gaps:
                losses.append(Loss(seq, count, 0, REASON, self._clock.now_ns(), {}))
        fresh = [loss for loss in losses if loss.segment_seq not in self._ledger]
        for loss in fresh:
            self._ledger.record(loss)
        return tuple(fresh)

    def _last_number(self) -> int:
        return max([0, *self._live()])

    def _keep_progress(self, gaps: Mapping[int, list[int]]) -> dict[int, dict[str, int]]:
        dropped: dict[int, dict[str, int]] = {}
        for name, progress in self._basics.progress.items():
            if not isinstance(progress, Progress):
                self._copy_aside(progress_file(name))
                progress = Progress()
            entries = dict(progress.entries)
            for seq, lost in gaps.items():
                given_up = self._give_up(progress, entries, seq, lost)
                if given_up:
                    dropped.setdefault(seq, {})[name] = given_up
            keep_progress(self._disk, name, replace(progress, entries=entries))
        return dropped

    def _give_up(
        self,
        progress: Progress,
        entries: dict[int, SegmentProgress],
        seq: int,
        lost: list[int],
    ) -> int:
        """Mark what is lost as dropped; how many of it this subscriber had left."""
        entry = entries.get(seq)
        if entry is None and seq < progress.oldest_incomplete:
            return 0
        count = self._plan.holdings.counts.get(seq, 0)
        old = entry or SegmentProgress(count, 0, 0)
        bits = sum(1 << index for index in lost) & ~old.done
        if seq not in self._live():
            entries.pop(seq, None)
        else:
            entries[seq] = SegmentProgress(
                max(count, old.bundle_count), old.done | bits, old.dropped | bits
            )
        return bits.bit_count()

    # Small files

    def _keep_state(self) -> None:
        """The checkpoint, with the losses, and what only the old log knew."""
        state = self._basics.known_state
        if self._plan.rebuild_state is not None:
            self._copy_aside(STATE_NAME)
        keys = [*state.window, *self._keys()]
        last = [held.ingestion_ts_ns or 0 for held in self._plan.holdings.bundles[-1:]]
        state = Checkpoint(
            through=self._next_sequence(),
            last_ts=max([state.last_ts, self._plan.found.log.last_ts_ns, *last]),
            slots=self._names,
            subscribers=tuple(sorted(self._basics.progress)),
            losses=self._ledger.losses,
            loss_totals=self._ledger.totals,
            adoption=None,
            window=tuple(_latest(keys)[-MAX_KEYS:]),
            transactions=committed_versions(
                state.transactions,
                self._plan.found.index.commits,
                self._plan.found.segments.infos.values(),
            ),
        )
        self._disk.replace(STATE_NAME, encode_state(state))

    def _next_sequence(self) -> int:
        found = self._plan.found
        known = known_sequence(self._basics, list(found.segments.infos.values()))
        following = max(known, found.log.next_sequence)
        if not self._plan.set_log_aside:
            return min(following, found.log.next_sequence) if found.log.files else following
        return following + SEQUENCES_SKIPPED

    def _keep_floor(self) -> None:
        plan, basics = self._plan, self._basics
        if plan.rebuild_floor is not None:
            self._copy_aside(FLOOR_PATH)
        live = self._live()
        unsealed = set() if plan.set_log_aside else self._unsealed()
        committed = [commit.end_segment - 1 for commit in plan.found.index.commits]
        following = first_free(basics, [*live, *plan.to_set_aside, *plan.in_log, *committed])
        if plan.set_log_aside or plan.rebuild_floor is not None:
            following += NUMBERS_SKIPPED
        sealed = min(unsealed, default=following)
        files = plan.found.log.files
        has_log = bool(files) and not plan.set_log_aside
        first = files[0].header.first_sequence if has_log else self._next_sequence()
        floor = Floor(
            following,
            sealed,
            gone_below(sealed, live),
            has_log=has_log,
            has_state=True,
            log_first=first or 0,
        )
        self._disk.replace(FLOOR_PATH, encode_floor(floor))

    def _unsealed(self) -> set[int]:
        """Segments that only the log has, and that the next open must find there.

        Without a floor nothing says which of them were deleted: those that all
        subscribers have finished.
        """
        only_in_log = self._plan.in_log.keys() - set(self._plan.to_write)
        waiting = {one.seq for one in self._plan.holdings.waiting if one.error is None}
        return {seq for seq in only_in_log if not self._is_finished(seq)} | waiting

    def _is_finished(self, seq: int) -> bool:
        if isinstance(self._basics.floor, Floor):
            return False
        known = list(self._plan.found.progress.values())
        return (
            bool(known)
            and not self._plan.broken_progress
            and all(seq < one.oldest_incomplete and seq not in one.entries for one in known)
        )

    # What a lost checkpoint knew

    def _keys(self) -> Iterator[KeyRecord]:
        if self._plan.rebuild_state is not None:
            yield from self._keys_in_segments()
        through = 0 if self._plan.rebuild_state is not None else self._basics.known_state.through
        for place in self._plan.found.index.places:
            if place.ref is not None and place.sequence >= through:
                yield from _key_of(place, place.ref)

    def _keys_in_segments(self) -> Iterator[KeyRecord]:
        for seq in sorted(self._plan.kept):
            reader = self._plan.found.segments.sound(seq)
            if reader is None or reader.info.first_sequence is None:
                continue
            for index in range(len(reader)):
                meta = reader.meta(index)
                if meta.key is not None and meta.content_hash is not None:
                    ref = BundleRef(seq, index)
                    sequence, ts = meta.sequence or 0, meta.ingestion_ts_ns or 0
                    yield KeyRecord(meta.key, meta.content_hash, ref, sequence, ts)

    def _names_in_segments(self) -> dict[str, int]:
        """The log entry that gave a slot its name may be among what is lost."""
        names: dict[str, int] = {}
        for seq in sorted(self._plan.kept):
            reader = self._plan.found.segments.sound(seq)
            for stream in reader.streams if reader is not None else ():
                if stream.slot_name is not None:
                    names[stream.slot_name] = stream.slot_id
        return names


def _key_of(place: Place, ref: BundleRef) -> Iterator[KeyRecord]:
    try:
        bundle = place.bundle()
    except Damage:
        return
    extras = bundle.extras
    if extras.key is not None and extras.content_hash is not None:
        yield KeyRecord(
            extras.key, extras.content_hash, ref, bundle.sequence, bundle.ingestion_ts_ns
        )


def _latest(keys: list[KeyRecord]) -> list[KeyRecord]:
    """Each key once, with its newest bundle, oldest first."""
    found = {record.key: record for record in sorted(keys, key=lambda r: r.sequence)}
    return sorted(found.values(), key=lambda record: record.sequence)
