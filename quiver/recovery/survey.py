"""One look at a store's directory that changes nothing.

Opening a store and every offline tool begin with the same :class:`Findings`: the small
files decoded, the segment files listed, the log read once, entry by entry, into a
:class:`~quiver.recovery.replay.LogVisitor`, the staged files.  What is damaged is kept as the error
it is.  What the findings mean for each segment is decided in :mod:`quiver.recovery.fates`, whether
the store may be opened at all in :mod:`quiver.recovery.consistency`; both are used by all.

A file of a newer version is not damage.  An open stops at the first one, before anything
is changed; a tool is given a list of them and reads what it can.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, Generic, TypeVar

from quiver.disk.disk import Disk
from quiver.errors import Damage, ProgressCorrupt, SegmentDamage, StateCorrupt, UnsupportedVersion
from quiver.format.floor import FLOOR_PATH, Floor, decode_floor
from quiver.format.keys import KeyRecord
from quiver.format.progress import Progress
from quiver.format.segment.stage import STAGES, parse_stage_name
from quiver.format.state import STATE_NAME, Checkpoint, decode_state
from quiver.format.wal.commit import Commit, CommittedFile
from quiver.record.key_runs import FoundRuns, read_runs
from quiver.recovery.replay import LogVisitor
from quiver.recovery.rust.foreign import ForeignPlan, Positioned, plan_entries
from quiver.segment.info import SEGMENTS, SegmentInfo, parse_name, segment_path
from quiver.segment.reader import SegmentReader, load_info
from quiver.segment.salvage import Salvaged, salvage, salvage_staged
from quiver.segment.staged_file import StageFile, check_committed, load_stage
from quiver.subscriber.progress import scan_progress
from quiver.wal.contents import LogContents, LogEntry
from quiver.wal.files import read_cursor
from quiver.wal.reader import read_log

MAX_OPEN: Final = 32
"""Segments held open at a time: descriptors are few."""
MAX_STATE_READS: Final = 20
"""How often the checkpoint is read again because a writer replaced it meanwhile."""
MAX_SALVAGED: Final = 2
"""Damaged segments whose intact bundles are kept in memory."""

Newer = list[UnsupportedVersion]
Decoded = TypeVar("Decoded")
V = TypeVar("V", bound=LogVisitor)
V_co = TypeVar("V_co", bound=LogVisitor, covariant=True)
E = TypeVar("E", bound=Positioned)


def _note(error: UnsupportedVersion, newer: Newer | None) -> None:
    if newer is None:
        raise error
    newer.append(error)


# The small files


@dataclass(frozen=True, slots=True)
class Basics:
    """The small files. One that a newer version wrote counts as absent here."""

    floor: Floor | Damage | None
    state: Checkpoint | Damage | None
    runs: FoundRuns
    cursor: int | StateCorrupt | None
    progress: Mapping[str, Progress | ProgressCorrupt]

    @property
    def known_floor(self) -> Floor:
        return self.floor if isinstance(self.floor, Floor) else Floor()

    @property
    def known_state(self) -> Checkpoint:
        return self.state if isinstance(self.state, Checkpoint) else Checkpoint()

    @property
    def known_keys(self) -> list[KeyRecord]:
        """The keys that the checkpoint accounts for, oldest first, as far as they can be read."""
        in_runs = [keys for keys in self.runs.values() if isinstance(keys, tuple)]
        return [*self.known_state.window, *(record for keys in in_runs for record in keys)]

    @property
    def known_progress(self) -> dict[str, Progress]:
        """The subscribers whose files can be read."""
        return {name: one for name, one in self.progress.items() if isinstance(one, Progress)}


def _read_basics(disk: Disk, newer: Newer | None) -> Basics:
    state, runs = _checkpoint(disk, newer)
    known = state.subscribers if isinstance(state, Checkpoint) else ()
    return Basics(
        floor=_decoded(disk, FLOOR_PATH, decode_floor, newer),
        state=state,
        runs=runs,
        cursor=_cursor(disk),
        progress=scan_progress(disk, known, newer=newer),
    )


def _checkpoint(disk: Disk, newer: Newer | None) -> tuple[Checkpoint | Damage | None, FoundRuns]:
    """The checkpoint and the key runs it lists.

    A live store may replace it and delete runs that the old one listed: then both are read again.
    """
    state = _decoded(disk, STATE_NAME, decode_state, newer)
    for _ in range(MAX_STATE_READS):
        runs = read_runs(disk, state.keys if isinstance(state, Checkpoint) else ())
        if not any(isinstance(found, Damage) for found in runs.values()):
            break
        before, state = state, _decoded(disk, STATE_NAME, decode_state, newer)
        if state == before:
            break
    for found in runs.values():
        if isinstance(found, UnsupportedVersion):
            _note(found, newer)
    return state, runs


def _decoded(
    disk: Disk, path: str, decode: Callable[[bytes], Decoded], newer: Newer | None
) -> Decoded | Damage | None:
    try:
        return decode(disk.read(path))
    except FileNotFoundError:
        pass
    except Damage as damage:
        return damage
    except UnsupportedVersion as error:
        _note(error, newer)
    return None


def _cursor(disk: Disk) -> int | StateCorrupt | None:
    try:
        return read_cursor(disk)
    except StateCorrupt as damage:
        return damage


# Segment files


class SegmentFiles:
    """The segment files, each checked once, every byte, when asked.

    An open asks for those that the log still covers, so a start reads no more segment
    bytes than the log could hold; tools ask for all of them.  Without ``check`` their
    tables are read and the data isn't: for a quick look.
    """

    def __init__(
        self,
        disk: Disk,
        *,
        check: bool = True,
        watch: Callable[[str, int], None] | None = None,
    ) -> None:
        self._disk = disk
        self._watch = watch
        self._check = check
        self.infos: dict[int, SegmentInfo] = {}
        """Files whose tables can be read; the data of some may be damaged all the same."""
        self.damaged: dict[int, Damage] = {}
        self.deleted: set[int] = set()
        """Files that another process deleted since they were listed."""
        self.unpublished: dict[int, tuple[Commit, CommittedFile]] = {}
        """Damaged staged files that were to become these segments."""
        self._checked: set[int] = set()
        self._open: OrderedDict[int, SegmentReader] = OrderedDict()
        self._salvaged: OrderedDict[int, Salvaged | None] = OrderedDict()

    def scan(self, newer: Newer | None) -> None:
        """List the files, and read their ends."""
        found: dict[int, SegmentInfo] = {}
        for name in self._disk.listdir(SEGMENTS):
            seq = parse_name(name)
            if seq is None:
                continue
            try:
                found[seq] = load_info(self._disk, seq)
            except Damage as damage:
                self.damaged[seq] = damage
            except UnsupportedVersion as error:
                _note(error, newer)
        self.infos = dict(sorted(found.items()))

    @property
    def numbers(self) -> list[int]:
        """All numbers with a file, sound or not."""
        return sorted(self.infos.keys() | self.damaged.keys())

    @property
    def sound(self) -> dict[int, SegmentInfo]:
        """Files in which no damage was found, as far as they were checked."""
        return {seq: info for seq, info in self.infos.items() if seq not in self.damaged}

    def is_sound(self, seq: int) -> bool:
        """Whether there is a file and every byte of it is as written."""
        if seq in self.damaged or seq not in self.infos:
            return False
        if seq in self._checked:
            return True
        try:
            self.open(seq)
        except FileNotFoundError:
            del self.infos[seq]
            self.deleted.add(seq)
            return False
        except Damage as damage:
            self.damaged[seq] = damage
            return False
        return True

    def open(self, seq: int) -> SegmentReader:
        """A reader, checked the first time; or the error, ``FileNotFoundError`` too."""
        found = self._open.get(seq)
        if found is not None:
            self._open.move_to_end(seq)
            return found
        verify = self._check and seq not in self._checked
        # Not mapped: a failing disk must end in an error, not in a signal.
        found = SegmentReader.open(self._disk, seq, mode="pread", verify=verify)
        if seq not in self._checked and self._watch is not None:
            self._watch(found.path, found.info.file_bytes)
        self._checked.add(seq)
        self._open[seq] = found
        if len(self._open) > MAX_OPEN:
            self._open.popitem(last=False)
        return found

    def known_info(self, seq: int) -> SegmentInfo | None:
        """What a file says of itself, if its tables can be read or mended."""
        info = self.infos.get(seq)
        if info is not None:
            return info
        salvaged = self.salvaged(seq)
        return None if salvaged is None else salvaged.info

    def salvaged(self, seq: int) -> Salvaged | None:
        """What of a damaged file is intact; ``None`` if nothing, or if it isn't damaged."""
        staged = self.unpublished.get(seq)
        if seq not in self.damaged and staged is None:
            return None
        if seq not in self._salvaged:
            if staged is None:
                self._salvaged[seq] = salvage(self._disk, segment_path(seq), seq)
            else:
                commit, file = staged
                self._salvaged[seq] = salvage_staged(self._disk, commit, seq, file)
            if len(self._salvaged) > MAX_SALVAGED:
                self._salvaged.popitem(last=False)
        self._salvaged.move_to_end(seq)
        return self._salvaged[seq]


# Staged files


@dataclass(frozen=True, slots=True)
class StageFindings:
    """The files in ``stages/``."""

    files: Mapping[str, StageFile | Damage] = field(default_factory=dict)
    """Files that no commit in the log names, by path."""
    committed: Sequence[str] = ()
    """Files that one does."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A committed file that is not a segment yet; with an ``error`` it can't become one."""

    commit: Commit
    seq: int
    file: CommittedFile
    info: SegmentInfo | None = None
    error: Damage | None = None


def _read_stages(
    disk: Disk, commits: Iterable[Commit], newer: Newer | None, *, check: bool
) -> StageFindings:
    """Read every staged file's end, and with ``check`` every byte.

    Those that a commit names may have more behind it: they are looked at with the commit.
    """
    named = {file.path for commit in commits for file in commit.files}
    found: dict[str, StageFile | Damage] = {}
    committed = []
    for name in disk.listdir(STAGES):
        path = f"{STAGES}/{name}"
        if parse_stage_name(name) is None:
            continue
        if path in named:
            committed.append(path)
            continue
        try:
            file = load_stage(disk, name)
            if check:
                check_committed(disk, file.committed())
            found[path] = file
        except FileNotFoundError:
            continue  # committed, or given up, since
        except Damage as damage:
            found[path] = damage
        except UnsupportedVersion as error:
            _note(error, newer)
    return StageFindings(found, committed)


def _read_waiting(
    disk: Disk, commits: Iterable[Commit], files: SegmentFiles, floor: Floor, newer: Newer | None
) -> dict[int, Waiting]:
    """Committed files that have not become segments.

    Segments become files in their order, and none is deleted before the floor has passed
    it: what lies above the floor and has no file was never one.
    """
    known = {*files.numbers, *files.deleted}
    found: dict[int, Waiting] = {}
    for commit in commits:
        for seq, file in commit.segments:
            if seq < floor.replay_floor or seq in known:
                continue
            try:
                found[seq] = Waiting(commit, seq, file, check_committed(disk, file))
            except FileNotFoundError:
                if disk.stat_size(segment_path(seq)) is not None:
                    raise  # it became a segment meanwhile: everything must be looked at again
                gone = SegmentDamage(f"{file.path} is gone, and was committed.", file=file.path)
                found[seq] = Waiting(commit, seq, file, error=gone)
            except Damage as damage:
                found[seq] = Waiting(commit, seq, file, error=damage)
                files.unpublished[seq] = commit, file
            except UnsupportedVersion as error:
                _note(error, newer)
    return found


# All of it


@dataclass(frozen=True)
class Findings(Generic[V_co]):
    """Everything found."""

    disk: Disk
    basics: Basics
    files: SegmentFiles
    log: LogContents
    replay: V_co
    stages: StageFindings
    waiting: Mapping[int, Waiting]
    newer: Sequence[UnsupportedVersion] = ()

    @property
    def foreign(self) -> bool:
        """Whether the log, or else the segments, are the Rust crate's."""
        return self.log.foreign or (not self.log.files and self.basics.floor is None)

    @cached_property
    def committed(self) -> dict[int, CommittedFile]:
        """The staged file of each segment that a commit in the log made."""
        return {seq: file for commit in self.replay.commits for seq, file in commit.segments}

    def foreign_plan(self, entries: Sequence[E]) -> ForeignPlan[E]:
        """Which entries of a Rust crate's log are in no segment yet."""
        cursor = self.basics.cursor if isinstance(self.basics.cursor, int) else None
        segments = bool(self.files.numbers or self.basics.progress)
        return plan_entries(self.log, entries, cursor, segments=segments)

    def first_free_segment(self, used: Iterable[int] = ()) -> int:
        """A number above every one ever given out, as far as anything here remembers it."""
        used = [*used, *self.files.numbers, *self.replay.numbers, *self.committed]
        return max(
            self.basics.known_floor.next_segment,
            *(gap.segments[1] for gap in self.basics.known_state.gaps),
            *(seq + 1 for seq in used),
            *(one.first_unused_segment for one in self.basics.known_progress.values()),
            0,
        )


def survey(
    disk: Disk,
    files: SegmentFiles,
    visitor: Callable[[Basics], V],
    *,
    layout_hash: bytes | None,
    watch: Callable[[LogEntry], None] | None = None,
    newer: Newer | None = None,
    check_stages: bool = False,
) -> Findings[V]:
    """Look at everything.

    With a list for ``newer``, files that only a newer version can read are put into it,
    damage in the log is listed, and the store may be written to meanwhile: what is read
    later is what bundles move to.  Without, both are raised.
    """
    tolerant = newer is not None
    basics = _read_basics(disk, newer)
    if not tolerant:
        files.scan(newer)
    replay = visitor(basics)

    def visit(entry: LogEntry) -> None:
        replay(entry)
        if watch is not None:
            watch(entry)

    gaps = [gap.sequences for gap in basics.known_state.gaps]
    log = read_log(disk, layout_hash=layout_hash, visit=visit, salvage=tolerant, gaps=gaps)
    for error in log.newer:
        _note(error, newer)
    stages = _read_stages(disk, replay.commits, newer, check=check_stages)
    if tolerant:
        files.scan(newer)
    waiting = _read_waiting(disk, replay.commits, files, basics.known_floor, newer)
    return Findings(disk, basics, files, log, replay, stages, waiting, tuple(newer or ()))
