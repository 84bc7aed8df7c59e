"""Staged files of a directory: which attempts wait for their commit, and which commits wait
for their files to become segments."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from quiver.alignment import Sealed
from quiver.disk.disk import Disk
from quiver.errors import QuiverError
from quiver.format.commit import Commit, CommittedFile
from quiver.format.stage import STAGES, StageKey, parse_stage_name
from quiver.format.state import AppRecord
from quiver.segment.info import SegmentInfo, segment_path
from quiver.segment.reader import SegmentReader
from quiver.segment.stage import StageFile, check_committed, load_stage
from quiver.transactions import record_of


@dataclass(frozen=True, slots=True)
class Staged:
    """All staged files by path: what each says of itself, or what is wrong with it."""

    files: dict[str, StageFile | QuiverError]

    @property
    def attempts(self) -> dict[StageKey, list[StageFile]]:
        """The files of each attempt, in order; merged ones belong to a commit."""
        found: dict[StageKey, list[StageFile]] = defaultdict(list)
        for file in self.files.values():
            if isinstance(file, StageFile) and not file.label.merged:
                found[file.label.key].append(file)
        for files in found.values():
            files.sort(key=lambda file: file.label.number)
        return found


def look_at_stages(disk: Disk, commits: Iterable[Commit], *, check: bool) -> Staged:
    """Read every staged file's end, and with ``check`` every byte.

    Those that a commit names may have more behind it: they are looked at with the commit.
    """
    named = {file.path for commit in commits for file in commit.files}
    found: dict[str, StageFile | QuiverError] = {}
    for name in disk.listdir(STAGES):
        path = f"{STAGES}/{name}"
        if parse_stage_name(name) is None or path in named:
            continue
        try:
            file = load_stage(disk, name)
            if check:
                check_committed(disk, file.committed())
            found[path] = file
        except FileNotFoundError:
            continue  # committed, or given up, since
        except QuiverError as error:
            found[path] = error
    return Staged(found)


@dataclass(frozen=True, slots=True)
class Waiting:
    """A committed file that is no segment yet; ``error``: and can't become one."""

    commit: Commit
    seq: int
    file: CommittedFile
    error: QuiverError | None

    def sealed(self, disk: Disk) -> Sealed:
        """Its bundles, to be read as those of a segment."""
        return Sealed(
            self.seq,
            self.file.bundles,
            lambda seq: SegmentReader.open_staged(
                disk, self.file.path, self.file.length, seq=seq, verify=False
            ),
        )


def look_at_waiting(disk: Disk, commit: Commit, seq: int, file: CommittedFile) -> Waiting:
    """Look at a committed file that has not become a segment.

    ``FileNotFoundError`` if it has become one meanwhile: everything must be looked at again.
    """
    try:
        check_committed(disk, file)
    except FileNotFoundError:
        if disk.stat_size(segment_path(seq)) is not None:
            raise
        gone = QuiverError(f"{file.path} is gone, and was committed.", file=file.path)
        return Waiting(commit, seq, file, gone)
    except QuiverError as error:
        return Waiting(commit, seq, file, error)
    return Waiting(commit, seq, file, None)


def committed_versions(
    known: Iterable[AppRecord], commits: Iterable[Commit], segments: Iterable[SegmentInfo]
) -> tuple[AppRecord, ...]:
    """The last commit of each app, by all that still tells of it."""
    found: dict[str, AppRecord] = {}
    told = [*known, *(record_of(commit) for commit in commits), *_by_segments(segments)]
    for record in told:
        other = found.get(record.app)
        if other is None or record.version > other.version:
            found[record.app] = record
    return tuple(sorted(found.values(), key=lambda record: record.sequence))


def _by_segments(segments: Iterable[SegmentInfo]) -> list[AppRecord]:
    parts: dict[tuple[str, int], list[SegmentInfo]] = defaultdict(list)
    for info in segments:
        if info.transaction is not None:
            parts[info.transaction].append(info)
    return [
        AppRecord(
            app,
            version,
            min(info.seq for info in infos),
            len(infos),
            sum(info.bundle_count for info in infos),
            sum(info.rows for info in infos),
            infos[0].first_sequence or 0,
            infos[0].first_ts or 0,
        )
        for (app, version), infos in parts.items()
    ]
