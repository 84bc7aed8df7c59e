"""Faults of transactions: a commit that promises too early, is forgotten, or seen in part."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

from quiver.disk.disk import Disk
from quiver.format.crc import crc32
from quiver.format.floor import Floor
from quiver.format.segment.file import SegmentSummary
from quiver.format.segment.stage import STAGES
from quiver.format.wal.commit import Commit, CommittedFile
from quiver.record.app_versions import Transactions
from quiver.recovery import recover as recovery
from quiver.recovery import stages as restaging
from quiver.segment import staged_file as stage_files
from quiver.segment.info import SegmentInfo, segment_path
from quiver.segment.reader import SegmentReader
from quiver.segment.segments import Segments
from quiver.segment.writer import Pieces, add_tail
from quiver.transaction import commit as committing
from quiver.transaction import merging
from quiver.transaction.commit import Committing
from quiver.transaction.stage import Staging
from quiver.upkeep.publishing import Publishing
from tests.crash.mutants.tools import instead, mutant, skip_dir_sync, skip_file_sync

ALL = ("transactions", "tx_laps", "tx_full")


@mutant(*ALL)
def stage_unsynced() -> AbstractContextManager[Any]:
    """A stage is called finished, and its file is not synced."""
    return skip_file_sync("fsync", lambda path: path.endswith(".qstage.tmp"))


@mutant(*ALL)
def stage_names_unsynced() -> AbstractContextManager[Any]:
    """A stage is called finished, and its file's name may be lost."""
    return skip_dir_sync(STAGES)


@mutant(*ALL)
def tail_unsynced() -> AbstractContextManager[Any]:
    """A committed file is renamed before its appended end is synced."""
    return skip_file_sync("fsync", lambda path: path.endswith(".qstage"))


@mutant(*ALL)
def published_before_logged() -> AbstractContextManager[Any]:
    """Files become segments while the commit's entry is only staged."""

    def is_durable(self: Segments, segment: Any) -> bool:
        return isinstance(segment, Commit) or original(self, segment)

    original = Segments.is_durable
    stack = ExitStack()
    stack.enter_context(instead(Segments, "is_durable", is_durable))
    stack.enter_context(instead(Committing, "_log", _log_late))
    return stack


def _log_late(self: Committing, transaction: tuple[str, int], files: Any) -> Commit:
    """As it should be, but for the order of its last two steps."""
    parts, wal = self._parts, self._parts.wal
    assert wal is not None
    answer = committing._EntryAnswer()
    with parts.lock:
        commit = parts.ingest.stage_commit(*transaction, [f.committed() for f in files], answer)
        if not isinstance(commit, Commit):
            raise commit
        for seq, file in commit.segments:
            parts.stages.expect(seq, file.length)
    self._upkeep.seal_quietly()
    while not answer.done and wal.commit():
        pass
    if answer.error is not None:
        raise answer.error
    return commit


@mutant(*ALL)
def answered_before_logged() -> AbstractContextManager[Any]:
    """A commit is answered when its entry is staged."""

    def log(self: Committing, transaction: tuple[str, int], files: Any) -> Commit:
        parts = self._parts
        with parts.lock:
            named = [f.committed() for f in files]
            commit = parts.ingest.stage_commit(*transaction, named, committing._EntryAnswer())
            if not isinstance(commit, Commit):
                raise commit
            for seq, file in commit.segments:
                parts.stages.expect(seq, file.length)
        return commit

    stack = ExitStack()
    stack.enter_context(instead(Committing, "_log", log))
    stack.enter_context(instead(Committing, "_settle", lambda self: None))
    quiet = patch("quiver.upkeep.upkeep.Upkeep.seal_quietly", lambda self: None)
    stack.enter_context(quiet)
    return stack


@mutant(*ALL)
def repeat_not_recognised() -> AbstractContextManager[Any]:
    """A commit that comes again is a new one."""
    return instead(Committing, "_repeat", lambda self, transaction: None)


@mutant("tx_laps")
def checkpoint_forgets_versions() -> AbstractContextManager[Any]:
    """The table of committed versions goes with the log."""
    return instead(Transactions, "snapshot", lambda self, before: ())


@mutant(*ALL)
def versions_from_checkpoint_only() -> AbstractContextManager[Any]:
    """Commits that are still in the log are not read back."""

    def transactions(self: Any, found: Any) -> Transactions:
        kept = Transactions(10_000, 10**18)
        kept.extend(found.basics.known_state.transactions)
        return kept

    return instead(recovery._Recovery, "_transactions", transactions)


@mutant(*ALL)
def tail_written_over() -> AbstractContextManager[Any]:
    """The end of a segment is written over the staged one, not behind it."""

    def append(disk: Disk, commit: Commit, seq: int, file: CommittedFile) -> SegmentInfo:
        reader = SegmentReader.open_staged(disk, file.path, file.length, verify=False)
        streams, end = reader.streams, max(s.byte_offset + s.byte_length for s in reader.streams)
        pieces = Pieces(end, crc32(disk.read(file.path)[:end]))
        summary = SegmentSummary(
            file.bundles,
            file.rows,
            file.nbytes,
            commit.sequence,
            commit.sequence,
            commit.ts,
            commit.ts,
            segment=seq,
            transaction=commit.transaction,
        )
        add_tail(pieces, streams, summary, reader.stamped_manifest(commit.sequence, commit.ts))
        with disk.open(file.path, write=True) as opened:
            opened.write_all(pieces.buffers, end)
            opened.truncate(pieces.size)
            opened.fsync()
        return SegmentInfo.of(seq, pieces.size, summary, streams)

    return instead(stage_files, "_append_tail", append)


@mutant(*ALL)
def seen_one_by_one() -> AbstractContextManager[Any]:
    """Each file of a commit is shown as soon as it is a segment."""

    def publish_stage(disk: Disk, commit: Commit, seq: int, file: CommittedFile) -> SegmentInfo:
        info = original(disk, commit, seq, file)
        store = _STORES[-1]
        segments = store._parts.segments
        with segments._lock:
            segments._enter_file(info)
        store._parts.registry.show(lambda: {seq: info.bundle_count})
        return info

    original = stage_files.publish_stage
    init = Publishing.__init__

    def remember(self: Publishing, parts: Any, records: Any) -> None:
        init(self, parts, records)
        _STORES.append(self)

    stack = ExitStack()
    stack.enter_context(instead(Publishing, "__init__", remember))
    stack.enter_context(instead(stage_files, "publish_stage", publish_stage))
    return stack


_STORES: list[Publishing] = []


@mutant(*ALL)
def half_published_is_shown() -> AbstractContextManager[Any]:
    """A start shows what has become a segment, and leaves the rest for later."""
    return instead(restaging, "unpublished", lambda found: [])


@mutant(*ALL)
def unfinished_stages_kept() -> AbstractContextManager[Any]:
    """A start takes every staged file for one of a finished attempt."""
    return instead(restaging, "_is_finished", lambda files: True)


@mutant(*ALL)
def losers_kept() -> AbstractContextManager[Any]:
    """What a commit did not name can be committed once more."""
    stack = ExitStack()
    stack.enter_context(instead(Committing, "_clear", lambda self, transaction: None))
    stack.enter_context(instead(restaging, "_is_over", lambda key, version: False))
    return stack


@mutant(*ALL)
def sources_removed_first() -> AbstractContextManager[Any]:
    """Small files go when they are merged, before the commit's entry is durable."""
    original = merging.merge

    def merge(parts: Any, transaction: Any, winners: Any) -> Any:
        merged = original(parts, transaction, winners)
        for file in merged.left:
            parts.disk.unlink(file.path, missing_ok=True)
        parts.disk.fsync_dir(STAGES)
        return merged

    return instead(committing, "merge", merge)


@mutant(*ALL)
def merged_without_sync() -> AbstractContextManager[Any]:
    """A merged file is committed before its name is durable."""

    def written(parts: Any, *args: Any) -> Any:
        with patch.object(parts.disk, "fsync_dir", lambda path: None):
            return original(parts, *args)

    original = merging._written
    return instead(merging, "_written", written)


@mutant("tx_laps", "tx_full")
def log_goes_before_publishing() -> AbstractContextManager[Any]:
    """Floor and log go by what is in memory, and pass numbers that a commit has reserved."""
    original = Segments.floor

    @property  # type: ignore[misc]
    def first_not_in_file(self: Segments) -> int:
        return min(self._memory, default=self.next_segment)

    def floor(self: Segments, before: Floor, *, ahead: int = 0) -> Floor:
        with patch.object(self, "_reserved", []):
            return original(self, before, ahead=ahead)

    stack = ExitStack()
    stack.enter_context(instead(Segments, "first_not_in_file", first_not_in_file))
    stack.enter_context(instead(Segments, "floor", floor))
    return stack


@mutant(*ALL)
def abort_leaves_files() -> AbstractContextManager[Any]:
    """Stages that were given up come back with the next start."""

    def remove(self: Staging, files: Sequence[Any]) -> None:
        self.parts.stages.grow(files=-sum(file.length for file in files))

    return instead(Staging, "remove", remove)


@mutant("tx_full")
def rolled_back_commit_stays() -> AbstractContextManager[Any]:
    """A commit whose entry could not be written keeps its numbers and its version."""
    return instead(Transactions, "rollback", lambda self, sequence: None)


@mutant(*ALL)
def published_name_unsynced() -> AbstractContextManager[Any]:
    """The old name of a published file may go before the new one is durable."""
    original = stage_files.publish_stage

    def publish_stage(disk: Disk, commit: Commit, seq: int, file: CommittedFile) -> SegmentInfo:
        info = original(disk, commit, seq, file)
        if disk.stat_size(segment_path(seq)) is not None:
            disk.fsync_dir(STAGES)
        return info

    return instead(stage_files, "publish_stage", publish_stage)
