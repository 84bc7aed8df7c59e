"""Stages after a crash: what is committed is finished, what nobody can commit goes.

==========================================  ==============================================
found in ``stages/``                        done
==========================================  ==============================================
file of a commit that is no segment yet     it becomes one, with all others of its commit
such a file damaged or missing              recorded as lost
finished attempt                            kept: it can still be committed
attempt that was never finished             removed: nothing of it was promised
merged file without a commit                removed: what it was made from is still there
stage of a version that is committed        removed: it lost, or is in a segment
damaged file of an attempt                  set aside, on record; the rest of it removed
==========================================  ==============================================
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from quiver.disk.disk import Disk
from quiver.errors import Damage
from quiver.events import STAGE_DAMAGED, get_logger
from quiver.format.commit import Commit, CommittedFile
from quiver.format.stage import STAGES, StageKey, parse_stage_name
from quiver.segment.aside import set_aside, settle_aside
from quiver.segment.catalog import Catalog
from quiver.segment.stage import StageFile, check_committed, load_stage
from quiver.stages import Finished, StageTable
from quiver.survey import Survey
from quiver.transactions import Transactions


@dataclass(slots=True)
class Restaged:
    """What a start found out about stages."""

    table: StageTable
    commits: tuple[Commit, ...] = ()
    """Committed, and not segments yet."""
    lost: dict[int, CommittedFile] = field(default_factory=dict)
    """Segments that a commit promised and whose staged file is not there."""
    unnamed: set[int] = field(default_factory=set)
    """Slots that staged files use by number."""
    problems: tuple[str, ...] = ()
    expected: Mapping[int, int] = field(default_factory=dict)
    """Segments that are to come, and the bytes of their files."""


def unpublished(found: Survey, catalog: Catalog) -> list[Commit]:
    """Commits of which a file has not become a segment.

    Segments become files in their order, and none is deleted before the floor has passed
    it: what lies above the floor and has no file was never one.
    """
    floor = found.basics.known_floor.replay_floor
    return [
        commit
        for commit in found.replay.commits
        if any(
            seq >= floor and seq not in catalog and seq not in found.sealed.damaged
            for seq, _ in commit.segments
        )
    ]


def restage(
    disk: Disk, catalog: Catalog, found: Survey, transactions: Transactions, max_stages: int
) -> Restaged:
    """Look at all staged files, and see to those that are nobody's."""
    restaging = _Restaging(disk, catalog, found)
    commits = restaging.check_commits()
    kept = restaging.sort_out(transactions, commits)
    table = StageTable(kept, max_stages=max_stages)
    for seq, size in restaging.expected.items():
        table.expect(seq, size, found=True)
    unnamed = {slot for one in kept for file in one.files for slot in file.unnamed}
    return Restaged(
        table,
        tuple(commits),
        restaging.lost,
        unnamed | restaging.unnamed,
        tuple(restaging.problems),
        restaging.expected,
    )


class _Restaging:
    def __init__(self, disk: Disk, catalog: Catalog, found: Survey) -> None:
        self._disk = disk
        self._catalog = catalog
        self._found = found
        self._log = get_logger()
        self.lost: dict[int, CommittedFile] = {}
        self.expected: dict[int, int] = {}
        self.unnamed: set[int] = set()
        self.problems: list[str] = []

    # Committed

    def check_commits(self) -> list[Commit]:
        """The commits to be finished; none of their segments is seen before the others."""
        commits = unpublished(self._found, self._catalog)
        for commit in commits:
            for seq, file in commit.segments:
                info = self._catalog.info(seq)
                if info is not None:
                    self.expected[seq] = info.file_bytes
                elif seq not in self._found.sealed.damaged:
                    self._check(seq, file)
            self._catalog.hide(seq for seq, _ in commit.segments)
        return commits

    def _check(self, seq: int, file: CommittedFile) -> None:
        try:
            info = check_committed(self._disk, file)
        except FileNotFoundError:
            self.lost[seq] = file
            reason = f"{file.path} is gone, and was committed"
        except Damage as damage:
            self.lost[seq] = file
            reason = damage.message.rstrip(".")
            self._set_aside(file.path)
        else:
            self.expected[seq] = self._disk.stat_size(file.path) or 0
            self.unnamed.update(info.unnamed)
            return
        if all(loss.segment_seq != seq for loss in self._found.basics.known_state.losses):
            self._note(f"segment {seq} of a transaction can't be made: {reason}")

    # The others

    def sort_out(self, transactions: Transactions, commits: Iterable[Commit]) -> list[Finished]:
        """Finished attempts that can be committed; all other files go."""
        needed = {file.path for commit in commits for _, file in commit.segments}
        attempts: dict[StageKey, list[StageFile]] = defaultdict(list)
        gone: list[str] = []
        for name in self._disk.listdir(STAGES):
            path = f"{STAGES}/{name}"
            if parse_stage_name(name) is None or path in needed:
                continue
            file = self._load(name)
            if file is not None:
                attempts[file.label.key].append(file)
        kept: list[Finished] = []
        for key, files in attempts.items():
            files.sort(key=lambda file: file.label.number)
            if _is_finished(files) and not _is_over(key, transactions):
                kept.append(Finished(key, tuple(files), files[-1].label.ts))
            else:
                gone += [file.path for file in files]
        for path in gone:
            self._disk.unlink(path, missing_ok=True)
        if gone:
            self._disk.fsync_dir(STAGES)
        return kept

    def _load(self, name: str) -> StageFile | None:
        path = f"{STAGES}/{name}"
        try:
            return load_stage(self._disk, name)
        except Damage as damage:
            if self._is_segment_too(name):
                self._disk.unlink(path, missing_ok=True)
                self._disk.fsync_dir(STAGES)
                return None
            self._set_aside(path)
            self._note(f"a staged file is damaged: {damage.message.rstrip('.')}")
            return None

    def _is_segment_too(self, name: str) -> bool:
        """Whether a crash left a file under its old name that has become a segment."""
        files = {
            file.path: seq for commit in self._found.replay.commits for seq, file in commit.segments
        }
        seq = files.get(f"{STAGES}/{name}")
        return seq is not None and seq in self._catalog

    def _set_aside(self, path: str) -> None:
        set_aside(self._disk, path)
        settle_aside(self._disk, path)

    def _note(self, problem: str) -> None:
        self.problems.append(problem)
        self._log.error(STAGE_DAMAGED, error=problem)


def _is_finished(files: list[StageFile]) -> bool:
    """Whether these are all files of an attempt: from the first to the last."""
    return (
        [file.label.number for file in files] == list(range(len(files)))
        and files[-1].label.last
        and not files[-1].label.merged
    )


def _is_over(key: StageKey, transactions: Transactions) -> bool:
    record = transactions.find(key.app, 0)
    return record is not None and key.version <= record.version
