"""Appending to the log: stage under the ingest lock, commit in groups without it.

A put *stages* its entry: it gets a sequence, a place in a file, and a receipt that waits.
:meth:`WalWriter.commit` then takes the oldest group, writes and syncs it, and tells all
its receipts; one sync serves everyone in the group.  Who calls commit is none of the
writer's business (:mod:`quiver.wal.group_commit`).

Locks, in the order they are taken: ``_turn`` (one commit at a time) → ``names`` of the
files → ``lock`` (the ingest lock, given from outside).  The ingest lock is never held over
I/O: it is taken to pick a group up and to publish what became of it.
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from quiver.clock import Clock, StoreTimes, SystemClock
from quiver.disk.disk import Disk
from quiver.errors import Backpressure, IoFault, Poisoned, QuiverError, Reason, StoreClosed
from quiver.format.crc import Bytes
from quiver.format.wal.entry import SEAL, WATERMARK, control_size, encode_control
from quiver.wal.capacity import Completable, Group, LogPlan
from quiver.wal.contents import LogStart
from quiver.wal.log_files import LogFiles

if TYPE_CHECKING:
    from quiver.config import WalConfig

WAL_FULL_RETRY_MS: Final = 100


def _ignore(*_: object) -> None:
    """What happens when nobody asked to be told."""


class WalWriter:
    """The only one who writes to a store's log.

    ``on_durable(before)`` and ``on_rollback(first, error)`` are called with the ingest
    lock held, before the receipts are told: whoever then sees a receipt done also sees
    what it stands for.  ``on_group(nbytes, seconds)`` is for whoever counts: what a group
    held and how long its write and sync took.  ``finished`` is notified after each commit.

    ``next_sequence``, ``durable_before`` and ``staged_bytes`` change under the lock only.
    """

    def __init__(
        self,
        disk: Disk,
        config: WalConfig,
        *,
        layout_hash: bytes,
        lock: threading.Lock,
        start: LogStart,
        clock: Clock | None = None,
        times: StoreTimes | None = None,
        on_durable: Callable[[int], None] = _ignore,
        on_rollback: Callable[[int, QuiverError], None] = _ignore,
        on_group: Callable[[int, float], None] = _ignore,
    ) -> None:
        self._disk = disk
        self._poison = disk.poison
        self._clock = clock if clock is not None else SystemClock()
        self._times = times if times is not None else StoreTimes(self._clock)
        self._lock = lock
        self._turn = threading.Lock()
        self.on_durable = on_durable
        self.on_rollback = on_rollback
        self.on_group = on_group
        self.finished = threading.Condition(threading.Lock())
        self._max_group = 0 if config.flush == "every" else config.max_group
        self._files = LogFiles(disk, config, layout_hash, self._clock, start)
        self._plan = LogPlan(
            target=config.rotation_target,
            max_size=config.max_size,
            max_files=config.max_rotated_files,
        )
        self._files.survey(self._plan)
        self.seed_for: Final = self._plan.seed_for
        """What the next entry, by its size, is to be summed with: the salt of its file."""
        self._groups: deque[Group] = deque()
        self._watermark = start.next_sequence - 1
        self._closed = False
        self.next_sequence = start.next_sequence
        self.durable_before = start.next_sequence
        self.position = start.position
        self.staged_bytes = 0
        self.last_failure: QuiverError | None = None
        """Why entries were dropped the last time; a new object each time."""

    @property
    def bytes_on_disk(self) -> int:
        """Bytes of all log files, the spare included: never more than ``max_size``."""
        return self._files.bytes_on_disk

    @property
    def file_count(self) -> int:
        """All log files, the spare included: never more than ``max_rotated_files``."""
        return self._files.file_count

    @property
    def rotations(self) -> int:
        """How often a file was set aside for the next one."""
        return self._files.rotations

    @property
    def file_age(self) -> float:
        """Seconds since the active file was begun; 0 without one."""
        return self._files.age

    # Staging: the caller holds the lock

    def room_for(self, nbytes: int) -> bool:
        """Whether an entry of this size fits, with all that is staged before it."""
        return self._plan.fits(nbytes)

    def stage(
        self,
        buffers: Sequence[Bytes],
        nbytes: int,
        sequence: int,
        segment_seq: int,
        receipt: Completable | None,
    ) -> None:
        """Take an entry that was sealed with :attr:`next_sequence` and :meth:`seed_for` its size.

        ``nbytes`` is the length of all ``buffers``; ``segment_seq`` of -1 belongs to none.
        """
        if sequence != self.next_sequence:
            raise ValueError(f"sequence {sequence} is not the next, {self.next_sequence}")
        if self._poison.cause is not None:
            self._poison.check()
        if self._closed:
            raise StoreClosed("the log has been closed.")
        plan = self._plan
        if not plan.fits(nbytes):
            raise Backpressure(
                Reason.WAL_FULL,
                "the log is at its cap until a segment is written",
                retry_after_ms=WAL_FULL_RETRY_MS,
            )
        salt = plan.add(nbytes)
        groups = self._groups
        if salt is not None or not groups or groups[-1].nbytes + nbytes > self._max_group:
            groups.append(Group(sequence, salt))
        group = groups[-1]
        group.buffers += buffers
        group.nbytes += nbytes
        group.count += 1
        if segment_seq > group.last_segment:
            group.last_segment = segment_seq
        if receipt is not None:
            group.receipts.append(receipt)
        self.next_sequence = sequence + 1
        self.staged_bytes += nbytes

    def stage_control(
        self,
        kind: int,
        payload: bytes = b"",
        segment_seq: int | None = None,
        receipt: Completable | None = None,
    ) -> int:
        """Stage an entry that is not a bundle; its sequence."""
        sequence = self.next_sequence
        entry = encode_control(
            kind,
            payload,
            sequence=sequence,
            synced_before=self.durable_before,
            ts=self._times.stamp(),
            store_ts=self._times.now_ns(),
            seed=self.seed_for(control_size(payload)),
        )
        segment = -1 if segment_seq is None else segment_seq
        self.stage([entry], len(entry), sequence, segment, receipt)
        return sequence

    # Committing: any thread, without the lock

    def commit(self) -> int:
        """Make the oldest staged group durable; how many entries that was.

        0 means that nothing was staged, or that it failed: then everything staged has
        been dropped and its receipts know why.
        """
        with self._turn:
            with self._lock:
                if not self._groups:
                    return 0
                group = self._groups[0]
            began = self._clock.monotonic()
            try:
                with self._lock:
                    self._groups.popleft()  # only now that an interrupt can't lose it
                self._files.append(group, self.position)
            except QuiverError as error:
                self._drop(group, error)
                return 0
            except BaseException as exc:
                # An interrupt, or a bug: nobody knows how far it came, so it goes back.
                self._drop(group, IoFault(f"a write to the log was interrupted: {exc!r}."))
                raise
            try:
                self._publish(group)
            finally:
                if not group.published:  # interrupted: it is on disk, so that must be said
                    self._publish(group)
        self.on_group(group.nbytes, self._clock.monotonic() - began)
        return group.count

    def _publish(self, group: Group) -> None:
        try:
            self._files.confirm()
            with self._lock:
                if not group.published:
                    group.published = True
                    self.durable_before = group.first + group.count
                    self.position += group.nbytes
                    self.staged_bytes -= group.nbytes
                    if group.watermark is not None:
                        self._watermark = group.watermark
                    self.on_durable(self.durable_before)
        finally:
            if group.published:
                for receipt in group.receipts:
                    receipt.complete(None)
                self._tell()

    def _tell(self) -> None:
        with self.finished:
            self.finished.notify_all()

    def _drop(self, failed: Group, error: QuiverError) -> None:
        """Undo a failed group and all that was staged behind it."""
        if not isinstance(error, Poisoned):
            try:
                self._files.roll_back(error)
            except Poisoned as poisoned:
                error = poisoned
        with self._files.names, self._lock:
            dropped = [failed, *self._groups]
            self._groups.clear()
            self._files.survey(self._plan)
            self.next_sequence = failed.first
            self.staged_bytes = 0
            self.last_failure = error
            self.on_rollback(failed.first, error)
            # Before the lock is given back: what is staged next gets these sequences, and who
            # stages it must be able to see that they failed (``Store.put(after=…)``).
            for group in dropped:
                for receipt in group.receipts:
                    receipt.complete(error)
        self._tell()

    # Upkeep

    def begin(self) -> None:
        """Make the log's first file, if it has none: from then on its absence means loss."""
        with self._turn:
            with self._lock:
                if self._plan.files:
                    return
                group = self._empty_file()
            self._make_file(group)

    def _empty_file(self) -> Group:
        """Plan a file with nothing in it yet; the lock is held and nothing is staged."""
        self._plan.end_file()
        return Group(self.next_sequence, self._plan.add(0))

    def _make_file(self, group: Group) -> None:
        try:
            self._files.append(group, self.position)
        except QuiverError as error:
            self._drop(group, error)
            raise

    @property
    def wants_watermark(self) -> bool:
        """Whether the last group was synced and nothing says so yet, and there is room to."""
        return (
            not self._groups
            and self.durable_before > self._watermark + 1
            and self.room_for(control_size())
        )

    def watermark(self) -> bool:
        """Stage a proof that the last group was synced, if nothing else will carry one.

        To be called when idle: it narrows what a later flipped bit can pass off as an
        unfinished write.
        """
        with self._lock:
            if not self.wants_watermark:
                return False
            if self._closed or self._poison.cause:
                return False
            sequence = self.stage_control(WATERMARK)
            self._groups[-1].watermark = sequence
            return True

    def rotate(self) -> None:
        """Go on in a new file, so that the one so far can be retired; if there is room for one."""
        with self._turn:
            with self._lock:
                if self._groups or self._files.is_fresh:
                    return
                if not self._plan.has_room_for_file():
                    return
                group = self._empty_file()
            self._make_file(group)

    @property
    def oldest_position(self) -> int:
        """Position of the first entry the log still has: what the cursor may say."""
        with self._files.names:
            oldest = self._files.oldest_position()
        return self.position if oldest is None else oldest

    def retirable(self, sealed_through: int) -> bool:
        """Whether :meth:`retire` would let anything go."""
        with self._files.names:
            return self._files.is_retirable(sealed_through)

    def first_kept(self, sealed_through: int = -1, covered: int | None = None) -> int:
        """The sequence the log will begin with after :meth:`retire`.

        ``covered``: entries from this sequence on are in no checkpoint, and stay.
        """
        with self._files.names:
            first = self._files.first_kept(sealed_through, covered)
        return self.next_sequence if first is None else first

    def retire(self, sealed_through: int, keep_from: int | None = None) -> int:
        """Let files go whose bundles are all in segments up to this one; how many.

        Those segments must be durable under their final names.  ``keep_from`` is what
        :meth:`first_kept` said: nothing goes that came to be retirable since.
        """
        if keep_from is None:
            keep_from = self.first_kept(sealed_through)
        gone = 0
        with self._files.names:
            while (size := self._files.retire_oldest(sealed_through, keep_from)) is not None:
                with self._lock:
                    self._plan.release(size)
                gone += 1
        return gone

    def seal(self) -> None:
        """Close the log cleanly: commit all, then an entry that says so, and nothing behind.

        Writes nothing if no file was begun since the log was opened.
        """
        while self.commit():
            pass
        outcome = _CommitOutcome()
        with self._lock:
            if not self._files.is_writing or not self.room_for(control_size()):
                return
            self.stage_control(SEAL, receipt=outcome)
        self.commit()
        if outcome.error is not None:
            raise outcome.error
        with self._turn:
            self._files.finish()

    def drop_spare(self) -> None:
        """Give up the file kept for the next lap: the store is to be left tidy."""
        with self._turn:
            self._files.drop_spare()

    def close(self) -> None:
        """Let go of the file; what is staged and not committed is told so."""
        with self._turn:
            with self._lock:
                self._closed = True
                dropped = list(self._groups)
                self._groups.clear()
                self.staged_bytes = 0
            for group in dropped:
                for receipt in group.receipts:
                    receipt.complete(StoreClosed("the store was closed before this was durable."))
            self._tell()
            self._files.close()

    @contextlib.contextmanager
    def at_rest(self) -> Iterator[None]:
        """Nothing is written and no file changes its name meanwhile: to read the log."""
        with self._turn, self._files.names:
            yield


class _CommitOutcome:
    """A receipt for the writer itself."""

    error: QuiverError | None = None

    def complete(self, error: QuiverError | None = None) -> None:
        self.error = error
