"""Faults of order: the right steps, one too early or too late."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

from quiver.disk.disk import Disk
from quiver.format.keys import KeyRun
from quiver.ingest import ingest
from quiver.record import ledger
from quiver.record.key_runs import KeyRuns
from quiver.record.ledger import Ledger
from quiver.segment.open_segment import OpenSegment
from quiver.segment.segments import Segments
from quiver.subscriber import progress, subscriber
from quiver.subscriber.registry import Registry
from quiver.upkeep.checkpoint_files import Records
from quiver.upkeep.sealing import Sealing
from quiver.upkeep.sweeping import Sweeping
from quiver.wal.files import ACTIVE, DIRECTORY, rotated_path
from quiver.wal.log_files import LogFiles
from tests.crash.mutants.tools import instead, mutant


@mutant("long_segments")
def log_retired_early() -> AbstractContextManager[Any]:
    """A log file goes while its newest segment is still in memory."""

    @property  # type: ignore[misc]
    def first_not_in_file(self: Segments) -> int:
        return self.next_segment

    return instead(Segments, "first_not_in_file", first_not_in_file)


@mutant("laps")
def log_retired_without_checkpoint() -> AbstractContextManager[Any]:
    """Keys and slot names go with the log file that held them."""

    def cover_log(self: Records) -> int:
        with self._parts.lock:
            return self._parts.ingest.durable_before

    return instead(Records, "cover_log", cover_log)


@mutant("laps", "kept")
def runs_deleted_before_checkpoint() -> AbstractContextManager[Any]:
    """Key runs that were merged go before the checkpoint that lists them no more."""
    original = KeyRuns.cover

    def cover(self: KeyRuns, records: Any) -> Any:
        listed = original(self, records)
        self.remove_unlisted()
        return listed

    return instead(KeyRuns, "cover", cover)


@mutant("laps")
def runs_written_after_checkpoint() -> AbstractContextManager[Any]:
    """The checkpoint lists a key run that is written a moment later."""
    write, checkpoint = KeyRuns._write, Records.checkpoint
    later: list[Any] = []

    def postpone(self: KeyRuns, records: Any) -> KeyRun:
        later.append((self, records))
        return KeyRun.of(records)

    def write_late(self: Records, **how: Any) -> None:
        checkpoint(self, **how)
        while later:
            write(*later.pop(0))

    stack = contextlib.ExitStack()
    stack.enter_context(instead(KeyRuns, "_write", postpone))
    stack.enter_context(instead(Records, "checkpoint", write_late))
    return stack


@mutant("laps", "consumers")
def floor_not_kept() -> AbstractContextManager[Any]:
    """Nothing says which numbers are used up and which segments are gone."""
    return instead(Records, "keep_floor", lambda self, **_: None)


@mutant("keeping_up")
def unwritten_before_progress() -> AbstractContextManager[Any]:
    """A finished segment is let go while only memory knows that it is finished."""
    original = Sealing._let_go

    def let_go(self: Sealing, segment: OpenSegment) -> bool:
        with patch.object(self._records, "flush_progress", lambda names=None: 0):
            return original(self, segment)

    return instead(Sealing, "_let_go", let_go)


@mutant("keeping_up", "consumers")
def unwritten_and_unfinished() -> AbstractContextManager[Any]:
    """A segment is let go although somebody has yet to see some of it."""

    def retire(self: Registry, segment_seq: int, total: int, hide: Any) -> bool:
        self.drop_segment(segment_seq, total, hide)
        return True

    return instead(Registry, "retire", retire)


@mutant("laps")
def files_swapped_in_one_go() -> AbstractContextManager[Any]:
    """Both renames of a rotation before one sync of the directory."""

    def take_over(self: LogFiles, path: str) -> None:
        aside = rotated_path(self._next_number)
        if self._active is not None or (self._held and self._held[-1].path == ACTIVE):
            self._disk.rename(ACTIVE, aside)
        self._disk.rename(path, ACTIVE)
        self._disk.fsync_dir(DIRECTORY)

    return instead(LogFiles, "_take_over", take_over)


@mutant("laps", "kept")
def log_purged_in_any_order() -> AbstractContextManager[Any]:
    """Several log files go before one sync of the directory."""
    original = LogFiles.retire_oldest

    def retire_oldest(self: LogFiles, *args: int) -> int | None:
        with patch.object(self._disk, "fsync_dir", lambda path: None):
            return original(self, *args)

    return instead(LogFiles, "retire_oldest", retire_oldest)


@mutant("consumers", "kept")
def deleted_before_progress() -> AbstractContextManager[Any]:
    """A finished segment goes before the acks that finished it are durable."""
    original = Sweeping._carry_out

    def carry_out(self: Sweeping, evictions: Any) -> Any:
        with patch.object(self._records, "flush_progress", lambda names=None: 0):
            return original(self, evictions)

    stack = contextlib.ExitStack()
    stack.enter_context(instead(Sweeping, "_carry_out", carry_out))
    stack.enter_context(instead(Records, "flush_progress", _only_when_asked))
    return stack


def _only_when_asked(self: Records, names: tuple[str, ...] | None = None) -> int:
    return self._parts.registry.flush(names) if names is not None else 0


@mutant("consumers", "kept")
def deleted_before_floor() -> AbstractContextManager[Any]:
    """A segment's file goes before the floor says that it may."""
    original = Sweeping.sweep

    def sweep(self: Sweeping, need: int = 0) -> Any:
        with patch.object(self._records, "keep_floor", lambda **_: None):
            done = original(self, need)
        self._records.keep_floor()
        return done

    return instead(Sweeping, "sweep", sweep)


@mutant("drop_oldest")
def dropped_without_ledger() -> AbstractContextManager[Any]:
    """What the size cap takes is not written down."""
    return instead(Sweeping, "_put_on_record", lambda self, evictions: None)


@mutant("drop_oldest")
def ledger_written_late() -> AbstractContextManager[Any]:
    """A loss is noted in memory only, until something else writes the checkpoint."""
    original = Sweeping._put_on_record

    def put_on_record(self: Sweeping, evictions: Any) -> None:
        with patch.object(self._records, "checkpoint", lambda **_: None):
            original(self, evictions)

    return instead(Sweeping, "_put_on_record", put_on_record)


@mutant("drop_oldest")
def progress_before_ledger() -> AbstractContextManager[Any]:
    """Who loses something knows it before it is on record."""
    original = Sweeping._carry_out

    def carry_out(self: Sweeping, evictions: Any) -> Any:
        for eviction in evictions:
            info = self._parts.segments.info(eviction.seq)
            if eviction.dropped and info is not None:
                self._parts.registry.drop_segment(
                    eviction.seq, info.bundle_count, self._parts.segments.hidden
                )
        self._records.flush_progress()
        return original(self, evictions)

    return instead(Sweeping, "_carry_out", carry_out)


@mutant("refusals", "consumers")
def rejected_without_ledger() -> AbstractContextManager[Any]:
    """What a subscriber rejects is not written down."""
    return instead(Ledger, "record_reject", lambda self, *reject: None)


@mutant("refusals", "consumers")
def reject_recorded_late() -> AbstractContextManager[Any]:
    """A reject is noted in memory only, until something else writes the checkpoint."""
    original = Records.record_rejects

    def record_rejects(self: Records, names: tuple[str, ...] | None = None) -> None:
        with patch.object(self, "_write_state", lambda state: None):
            original(self, names)

    return instead(Records, "record_rejects", record_rejects)


@mutant("refusals", "consumers")
def progress_before_reject() -> AbstractContextManager[Any]:
    """A subscriber is done with what it has rejected before that is on record."""

    def flush_progress(self: Records, names: tuple[str, ...] | None = None) -> int:
        chosen = self._parts.registry.chosen(names)
        rejects = [(one, one.unrecorded()) for one in chosen]
        for one, segments in rejects:
            one.recorded(segments)
        written = self._parts.registry.flush(names)
        for one, segments in rejects:
            for seq, bits in segments.items():
                self._parts.ledger.record_reject(one.name, seq, bits, 0)
        if self._parts.ledger.dirty:
            self.checkpoint()
        return written

    return instead(Records, "flush_progress", flush_progress)


@mutant("refusals")
def reject_counted_twice() -> AbstractContextManager[Any]:
    """What is rejected again after a crash, or a seek, gets another row."""

    def record_reject(self: Ledger, subscriber: str, seq: int, bits: int, at_ns: int) -> None:
        row = ledger._reject_row(subscriber, seq, bits, at_ns)
        self._keep((*self.losses, row), row)

    return instead(Ledger, "record_reject", record_reject)


@mutant("consumers")
def unregistered_without_sync() -> AbstractContextManager[Any]:
    """A subscriber that left may come back."""

    def remove(disk: Disk, name: str) -> None:
        disk.unlink(progress.progress_file(name), missing_ok=True)

    return instead(subscriber, "remove_progress", remove)


@mutant("consumers")
def registered_without_file() -> AbstractContextManager[Any]:
    """A new subscriber's file is written with its first ack."""
    original = subscriber.Subscriber.flush

    def flush(self: subscriber.Subscriber, open_segment: int) -> bool:
        if self.status is subscriber.Status.KNOWN:
            return False
        return original(self, open_segment)

    return instead(subscriber.Subscriber, "flush", flush)


@mutant("bad_fsync", "plain")
def delivered_before_durable() -> AbstractContextManager[Any]:
    """Subscribers see what is staged."""
    original = ingest.Ingest._place

    def place(self: ingest.Ingest, prepared: Any) -> Any:
        receipt = original(self, prepared)
        self._wal.on_durable(receipt.sequence + 1)  # type: ignore[union-attr]
        return receipt

    return instead(ingest.Ingest, "_place", place)


@mutant("disk_full")
def sealed_before_logged() -> AbstractContextManager[Any]:
    """A segment is written while its newest group is only staged."""

    def next_closed(self: Sealing) -> Any:
        closed = self._parts.segments.unwritten
        return closed[0] if closed else None

    return instead(Sealing, "_next_closed", next_closed)
