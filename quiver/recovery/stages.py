"""Stages after a crash: what is committed is finished, what nobody can commit goes.

==========================================  ==============================================
found in ``stages/``                        done
==========================================  ==============================================
file of a commit that is no segment yet     it becomes one, with all others of its commit
such a file damaged                         what is intact of it becomes the segment, the
                                            rest is recorded as lost
such a file missing                         recorded as lost
finished attempt                            kept: it can still be committed
attempt that was never finished             removed: nothing of it was promised
merged file without a commit                removed: what it was made from is still there
stage of a version that is committed        removed: it lost, or is in a segment
damaged file of an attempt                  set aside, on record; the rest of it removed
==========================================  ==============================================
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from quiver.disk import quarantine
from quiver.disk.disk import Disk
from quiver.errors import Damage
from quiver.events import STAGE_DAMAGED, get_logger
from quiver.format.segment.stage import STAGES, StageKey
from quiver.format.wal.commit import Commit
from quiver.record.app_versions import Transactions
from quiver.recovery.fates import Found
from quiver.recovery.survey import StageFindings
from quiver.segment.segments import Segments
from quiver.segment.stage_table import Finished, StageTable
from quiver.segment.staged_file import StageFile

# What staged files mean: for opening, and for the tools


class AttemptState(StrEnum):
    """Where an attempt stands."""

    FINISHED = "finished"  # it can be committed
    WRITING = "writing"  # it was never finished, or is a merged file without a commit
    OVER = "over"  # its version, or a later one, is committed


@dataclass(frozen=True, slots=True)
class Attempt:
    """The sound files of one attempt, in order."""

    key: StageKey
    files: tuple[StageFile, ...]
    state: AttemptState


def attempts(stages: StageFindings, committed: Callable[[str], int | None]) -> list[Attempt]:
    """What the staged files are; ``committed`` is the last version of an app."""
    by_key: dict[StageKey, list[StageFile]] = defaultdict(list)
    for file in stages.files.values():
        if isinstance(file, StageFile):
            by_key[file.label.key].append(file)
    found = []
    for key, files in sorted(by_key.items()):
        files.sort(key=lambda file: file.label.number)
        state = AttemptState.FINISHED if _is_finished(files) else AttemptState.WRITING
        if _is_over(key, committed(key.app)):
            state = AttemptState.OVER
        found.append(Attempt(key, tuple(files), state))
    return found


def _is_finished(files: list[StageFile]) -> bool:
    """Whether these are all files of an attempt: from the first to the last."""
    return (
        [file.label.number for file in files] == list(range(len(files)))
        and files[-1].label.last
        and not files[-1].label.merged
    )


def _is_over(key: StageKey, committed: int | None) -> bool:
    return committed is not None and key.version <= committed


def unpublished(found: Found) -> list[Commit]:
    """Commits of which a file has not become a segment."""
    return [
        commit
        for commit in found.replay.commits
        if any(seq in found.waiting for seq, _ in commit.segments)
    ]


# What an open does about them


@dataclass(slots=True)
class Restaged:
    """What a start found out about stages."""

    table: StageTable
    commits: tuple[Commit, ...] = ()
    """Committed, and not segments yet."""
    named: tuple[tuple[str, int], ...] = ()
    """Names and ids of the slots that staged files hold."""
    unnamed: set[int] = field(default_factory=set)
    """Slots that staged files use by number."""
    problems: tuple[str, ...] = ()
    expected: Mapping[int, int] = field(default_factory=dict)
    """Segments that are to come, and the bytes of their files."""


def restage(
    disk: Disk,
    segments: Segments,
    found: Found,
    transactions: Transactions,
    max_stages: int,
) -> Restaged:
    """Keep what is committed or can still be; set damaged files aside, remove the others.

    Segments that were damaged have been written again, as far as they could be, by now.
    """
    restaging = _Restaging(disk, found)
    expected, unnamed = restaging.check_commits(segments)
    # None of a commit's segments is seen before the others.
    commits = unpublished(found)
    for commit in commits:
        segments.reserved(commit, durable=True)
    kept = restaging.sort_out(transactions)
    table = StageTable(kept, max_stages=max_stages)
    for seq, size in expected.items():
        table.expect(seq, size, found=True)
    unnamed |= {slot for one in kept for file in one.files for slot in file.unnamed}
    named = sorted({named for one in kept for file in one.files for named in file.slots})
    return Restaged(
        table, tuple(commits), tuple(named), unnamed, tuple(restaging.problems), expected
    )


class _Restaging:
    def __init__(self, disk: Disk, found: Found) -> None:
        self._disk = disk
        self._found = found
        self.problems: list[str] = []

    def check_commits(self, segments: Segments) -> tuple[dict[int, int], set[int]]:
        """The segments that unpublished commits are to become, and their unnamed slots."""
        found = self._found
        lost = {one.segment_seq for one in found.basics.known_state.losses if not one.is_reject}
        expected: dict[int, int] = {}
        unnamed: set[int] = set()
        for commit in unpublished(found):
            for seq, file in commit.segments:
                # As it is now: a damaged file that was written again is as good as any.
                waiting, info = found.waiting.get(seq), segments.info(seq)
                if info is not None:
                    expected[seq] = info.file_bytes
                elif waiting is not None and waiting.info is not None:
                    expected[seq] = self._disk.stat_size(file.path) or 0
                    unnamed.update(waiting.info.unnamed)
                elif waiting is not None and waiting.error is not None:
                    if self._disk.stat_size(file.path) is not None:
                        self._set_aside(file.path)
                    if seq not in lost:
                        reason = waiting.error.message.rstrip(".")
                        self._note(f"segment {seq} of a transaction can't be made: {reason}")
        return expected, unnamed

    def sort_out(self, transactions: Transactions) -> list[Finished]:
        """Finished attempts that can be committed; all other files go."""
        found = self._found

        def committed(app: str) -> int | None:
            record = transactions.find(app, 0)
            return None if record is None else record.version

        waiting = {one.file.path for one in found.waiting.values()}
        gone = [path for path in found.stages.committed if path not in waiting]
        for path, damage in found.stages.files.items():
            if isinstance(damage, Damage):
                self._set_aside(path)
                self._note(f"a staged file is damaged: {damage.message.rstrip('.')}")
        kept: list[Finished] = []
        for one in attempts(found.stages, committed):
            if one.state is AttemptState.FINISHED:
                kept.append(Finished(one.key, one.files, one.files[-1].label.ts))
            else:
                gone += [file.path for file in one.files]
        for path in gone:
            self._disk.unlink(path, missing_ok=True)
        if gone:
            self._disk.fsync_dir(STAGES)
        return kept

    def _set_aside(self, path: str) -> None:
        quarantine.move(self._disk, path)

    def _note(self, problem: str) -> None:
        self.problems.append(problem)
        get_logger().error(STAGE_DAMAGED, error=problem)
