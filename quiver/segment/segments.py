"""The owner of segment numbers: where segment *n* is, and what the floor says of it.

Every number has exactly one place.  Only the methods below move it, each along one row::

                 ┌────────────── rolled_back ──────────────┐
                 ▼                                         │
               Free ──opened──► Open ──closed──► Closed ───┤
                 │                                 │ │ ▲   │
                 │                        finished │ │ │ rebuilt
                 │                                 ▼ │ │
                 │                               Gone│ │
                 │                                 ▲ │ sealed
                 │                dropped, damaged │ ▼ │
                 └──reserved──► Reserved ──sealed──► File

=============  ==================  ==============  =======================================
transition     from                to              when
=============  ==================  ==============  =======================================
opened         Free                Open            the first bundle is put into it
closed         Open                Closed          it is full, old, or asked for
recovered      Free (at a start)   Closed          the log has it, and it never had a file
reserved       Free, File          Reserved        a commit takes the number for a staged
                                                   file (File: a start that finds a commit
                                                   published in part)
rolled_back    Open, Closed,       Free            its group could not be written, and no
               Reserved                            bundle of it is left
sealed         Closed, Reserved,   File            its file is durable under its name
               Free (at a start)                   (of a commit: all of them at once)
finished       Closed              Gone(deleted)   every subscriber has finished it before
                                                   it was ever written
rebuilt        File,               Closed          its file is damaged, or was not there at
               Free (at a start)                   a start, and its bundles are in memory
dropped        File                Gone(deleted)   retention lets it go; its file is deleted
                                                   when nobody reads it any more
damaged        File                Gone(lost)      its file is damaged or missing, and
                                                   nothing of it could be saved
sealed, lost   Reserved            Gone(lost)      the same, of a commit whose other files
                                                   are segments now
=============  ==================  ==============  =======================================

At a start, until :meth:`Segments.begin`, a number without a file counts as Free.
``hidden`` changes no place: a segment that is about to go is shown to nobody from then on.

**The floor** says ``gone`` of a number only if its place is Gone.  It rises over numbers
that have, or have had, a file.  A segment that was *rebuilt* stays below it and is not
gone: after a crash the next open finds no sound file and takes it from the log, whose files
are kept from :attr:`Segments.first_not_in_file` on.

**Locks.**  What happens in memory (opened, closed, reserved, rolled_back, durable, sealed)
is done under the ingest lock, so that sequences and numbers rise together.  ``_lock``
guards the tables; it is taken last, and never held over I/O.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Final, TypeAlias

import pyarrow as pa

from quiver.disk.descriptors import DESCRIPTORS
from quiver.disk.disk import Disk
from quiver.errors import BundleGone, SegmentDamage, SlotNotInBundle, UnknownBundle
from quiver.forking import guard
from quiver.format.floor import Floor, gone_below
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.format.wal.commit import Commit
from quiver.ids import BundleRef
from quiver.segment.closing import Trigger, full_by
from quiver.segment.info import (
    SEGMENTS,
    SegmentInfo,
    segment_path,
)
from quiver.segment.open_segment import OpenSegment
from quiver.segment.reader import SegmentReader
from quiver.segment.source import Mapping as FileMapping
from quiver.segment.view import SegmentView

if TYPE_CHECKING:
    from quiver.config import Config

ALL: Final = 1 << 64
"""Above every segment number."""
MAX_HELD_BYTES: Final = 64 << 20
"""Memory of readers kept for files without block checksums; one may be larger."""
HEALING_ROUNDS: Final = 3
"""How often a read goes on with what became of a damaged segment before it gives up."""


# Places


@dataclass(frozen=True, slots=True)
class Free:
    """Not given out yet."""


@dataclass(frozen=True, slots=True)
class Open:
    """In memory, takes bundles."""

    segment: OpenSegment


@dataclass(frozen=True, slots=True)
class Closed:
    """In memory, to be written; ``rebuilt``: it had a file before, which was damaged."""

    segment: OpenSegment
    rebuilt: bool = False


@dataclass(frozen=True, slots=True)
class Reserved:
    """A commit's: its staged file becomes this segment."""

    commit: Commit


@dataclass(frozen=True, slots=True)
class File:
    """In its file."""

    info: SegmentInfo


@dataclass(frozen=True, slots=True)
class Gone:
    """Given out once, and not there any more: ``deleted`` or ``lost``."""

    why: str


Place: TypeAlias = Free | Open | Closed | Reserved | File | Gone


@dataclass(frozen=True, slots=True)
class Unshown:
    """Durable bundles of a segment that are shown to nobody before it has its file."""

    seq: int
    bundle_count: int
    rows: int
    nbytes: int
    first_ts: int | None


class IllegalTransition(ValueError):
    """A number was to be moved from a place where it isn't: a bug, never a state of the disk."""


@dataclass(slots=True, eq=False)
class _InMemory:
    segment: OpenSegment
    rows: int = 0
    trigger: Trigger = Trigger.RECOVERY
    rebuilt: bool = False
    shown: bool = False
    """Shown before it has a file, whatever ``deliver`` says: it was shown once already."""
    hidden: bool = False
    damaged: SegmentInfo | None = None
    """Its damaged file, which keeps its name until the new one is renamed over it."""


@dataclass(slots=True)
class _ReservedBy:
    commit: Commit
    durable: bool


@dataclass(slots=True, eq=False)
class _InFile:
    info: SegmentInfo
    pins: list[None] = field(default_factory=list)
    """One for each reader: appending and popping need no lock."""
    reader: SegmentReader | None = None
    used: bool = False
    """Read since the last look for one to close."""
    checked: bool = False
    hidden: bool = False
    mappings: list[weakref.ref[FileMapping]] = field(default_factory=list)

    @property
    def is_read(self) -> bool:
        """Whether a pin or a mapping still needs the file."""
        return bool(self.pins) or any(mapping() is not None for mapping in self.mappings)


def floor_of(
    before: Floor,
    *,
    next_segment: int,
    files: Iterable[int],
    unsealed: Iterable[int] = (),
    rebuilt: Iterable[int] = (),
    ahead: int = 0,
) -> Floor:
    """The next floor. Its numbers only rise; flags and ``log_first`` are as before.

    ``unsealed`` are numbers in use that never had a file, ``rebuilt`` those that had one and
    are in the log and memory now.  ``ahead`` numbers are used up before they are given out.
    """
    unsealed = list(unsealed)
    replay_floor = max(before.replay_floor, min(unsealed, default=next_segment))
    return Floor(
        next_segment=max(before.next_segment, next_segment + ahead, replay_floor),
        replay_floor=replay_floor,
        gone=gone_below(replay_floor, {*files, *unsealed, *rebuilt}),
        has_log=before.has_log,
        has_state=before.has_state,
        log_first=before.log_first,
    )


class Segments:
    """Where every segment of one store is. See the table above."""

    def __init__(self, disk: Disk, config: Config | None = None) -> None:
        if config is None:
            from quiver.config import Config  # here: tools that only read have no settings

            config = Config()
        self._disk = disk
        self._config = config.segment
        self._mode = config.read_mode
        self._always = config.verified_always
        self._max_readers = config.max_mapped_segments
        self._shows_durable = config.deliver == "durable"
        self._lock = threading.Lock()
        self._memory: dict[int, _InMemory] = {}  # ascending, as all of these
        self._open: _InMemory | None = None
        self._reserved: list[_ReservedBy] = []
        self._files: dict[int, _InFile] = {}
        self._dropped: dict[int, _InFile] = {}  # Gone, and the file still to be deleted
        self._lost: set[int] = set()
        self._readers: deque[_InFile] = deque()  # files with a reader kept open
        self._begun = False
        self.next_segment = 0
        self.nbytes = 0
        """Payload in memory."""
        self.durable_bytes = 0
        """Payload that became durable in memory, in all: only rises."""
        self.file_bytes = 0
        """Bytes of all segment files, also of those that are still to be deleted."""
        self.on_damage: Callable[[SegmentInfo, SegmentDamage], None] = _leave_it
        """Called when a read finds a file damaged: afterwards the number has another place, or
        another file.  What it raises ends the read."""
        DESCRIPTORS.relieved_by(self._give_up_readers)
        guard(self)

    # A start

    def found(self, infos: Iterable[SegmentInfo]) -> None:
        """The files that a start has found."""
        with self._lock:
            for info in sorted(infos, key=lambda one: one.seq):
                self._enter_file(info)

    def begin(self, next_segment: int, lost: Iterable[int] = ()) -> None:
        """End of a start: every number below ``next_segment`` was given out once."""
        self.next_segment = max(self.next_segment, next_segment)
        self._lost.update(lost)
        self._begun = True

    # Where

    def where(self, seq: int) -> Place:
        """The place of a number."""
        with self._lock:
            return self._where(seq)

    def _where(self, seq: int) -> Place:
        member = self._memory.get(seq)
        if member is not None:
            if member is self._open:
                return Open(member.segment)
            return Closed(member.segment, member.rebuilt)
        reserved = self._reserved_for(seq)
        if reserved is not None:
            return Reserved(reserved.commit)
        file = self._files.get(seq)
        if file is not None:
            return File(file.info)
        if seq >= self.next_segment or not self._begun:
            return Free()
        return Gone("lost" if seq in self._lost else "deleted")

    def _reserved_for(self, seq: int) -> _ReservedBy | None:
        for one in self._reserved:
            if one.commit.first_segment <= seq < one.commit.end_segment:
                return one
        return None

    def _must_be(self, seq: int, *places: type[Place], what: str) -> None:
        place = self._where(seq)
        if not isinstance(place, places):
            raise IllegalTransition(f"segment {seq} is {type(place).__name__}: it can't be {what}")

    # Files

    def infos(self, first: int = 0, last: int = ALL) -> list[SegmentInfo]:
        """Segments ``first`` to ``last`` that have a file, oldest first; opens none."""
        with self._lock:
            return [one.info for seq, one in self._files.items() if first <= seq <= last]

    def info(self, seq: int) -> SegmentInfo | None:
        """One of them, if it has a file."""
        found = self._files.get(seq)
        return None if found is None else found.info

    def __contains__(self, seq: object) -> bool:
        return seq in self._files

    def __len__(self) -> int:
        return len(self._files)

    @property
    def open_readers(self) -> int:
        """Segments kept open for reading."""
        return len(self._readers)

    # Memory

    @property
    def open(self) -> OpenSegment | None:
        """The segment that takes bundles, if there is one."""
        return None if self._open is None else self._open.segment

    @property
    def in_memory(self) -> int:
        """How many segments are in memory, the open one included."""
        return len(self._memory)

    @property
    def never_written(self) -> int:
        """How many of them never had a file: the producers' share. The ingest lock is held."""
        return sum(not member.rebuilt for member in self._memory.values())

    @property
    def unwritten(self) -> list[OpenSegment]:
        """Closed segments that wait to be written, oldest first."""
        with self._lock:
            return [one.segment for one in self._memory.values() if one is not self._open]

    @property
    def commits(self) -> list[Commit]:
        """Commits whose staged files are still to become segments, oldest first."""
        return [one.commit for one in self._reserved]

    @property
    def has_work(self) -> bool:
        """Whether something waits to be written, or to be made a segment."""
        return bool(self._reserved) or len(self._memory) > (self._open is not None)

    def next_closed(self) -> OpenSegment | Commit | None:
        """What becomes a file next: they do so in the order of their numbers."""
        closed = next((one for one in self._memory.values() if one is not self._open), None)
        commit = self._reserved[0].commit if self._reserved else None
        if commit is None or (closed is not None and closed.segment.seq < commit.first_segment):
            return None if closed is None else closed.segment
        return commit

    def is_durable(self, what: OpenSegment | Commit) -> bool:
        """Whether every bundle of a segment is in the log; of a commit, its entry."""
        for one in self._reserved:
            if one.commit is what:
                return one.durable
        member = self._memory.get(what.seq) if not isinstance(what, Commit) else None
        return member is not None and member.segment.visible == member.segment.bundle_count

    def trigger_of(self, seq: int) -> Trigger:
        """Why a segment in memory was closed."""
        member = self._memory.get(seq)
        return Trigger.RECOVERY if member is None else member.trigger

    def damaged_file(self, seq: int) -> SegmentInfo | None:
        """The damaged file that a rebuilt segment is to replace, if it is still in its place."""
        member = self._memory.get(seq)
        return None if member is None else member.damaged

    def next_ref(self) -> BundleRef:
        """The ref the next bundle will get."""
        if self._open is None:
            return BundleRef(self.next_segment, 0)
        segment = self._open.segment
        return BundleRef(segment.seq, segment.bundle_count)

    def append(self, slots: Sequence[EncodedSlot], meta: BundleMeta, now: float) -> None:
        """Put a bundle at :meth:`next_ref`."""
        member = self._open or self.opened(now)
        member.segment.append(slots, meta)
        member.rows += meta.rows
        self.nbytes += meta.nbytes

    def full_by(self) -> Trigger | None:
        """Which of its limits the open segment has reached, if any."""
        member = self._open
        return None if member is None else full_by(member.segment, member.rows, self._config)

    def is_due(self, now: float) -> bool:
        """Whether the open segment has been open for as long as it may."""
        member = self._open
        return (
            member is not None and now - member.segment.opened_at >= self._config.max_open_duration
        )

    # Transitions in memory: the ingest lock is held

    def opened(self, now: float) -> _InMemory:
        """Free → Open."""
        with self._lock:
            if self._open is not None:
                raise IllegalTransition(f"segment {self._open.segment.seq} is open already")
            member = _InMemory(OpenSegment(self.next_segment, now))
            self._memory[self.next_segment] = self._open = member
            self.next_segment += 1
            return member

    def closed(self, trigger: Trigger) -> None:
        """Open → Closed, if there is an open one: the next bundle opens another."""
        if self._open is not None:
            self._open.trigger = trigger
            self._open = None

    def reserved(self, commit: Commit, *, durable: bool = False) -> None:
        """Free → Reserved. The open segment has been closed.

        At a start also File → Reserved: what a crash left published in part is not seen
        before the rest of it.
        """
        with self._lock:
            for seq in range(commit.first_segment, commit.end_segment):
                self._must_be(seq, Free, File, what="reserved")
                self._forget_file(seq)
            if commit.files:
                self._reserved.append(_ReservedBy(commit, durable))
                self._reserved.sort(key=lambda one: one.commit.first_segment)
            self.next_segment = max(self.next_segment, commit.end_segment)

    def durable(self, before: int) -> dict[int, int]:
        """Every entry below ``before`` is on disk: the segments that show more, and how much."""
        grown: dict[int, int] = {}
        for reserved in self._reserved:
            reserved.durable = reserved.durable or reserved.commit.sequence < before
        for seq, member in self._memory.items():
            segment = member.segment
            count, bundles = segment.visible, segment.bundles
            total = len(bundles)
            while count < total:
                meta = bundles[count].meta
                if meta.sequence is None or meta.sequence >= before:
                    break
                self.durable_bytes += meta.nbytes
                count += 1
            if count != segment.visible:
                segment.visible = count
                if self._shows_durable:
                    grown[seq] = count
        return grown

    def rolled_back(self, sequence: int) -> None:
        """Open, Closed, Reserved → Free, from the bundle or commit with ``sequence`` on: their
        group was never written.  A segment that keeps some bundles stays where it is."""
        with self._lock:
            freed: list[int] = []
            for seq in reversed(list(self._memory)):
                member = self._memory[seq]
                segment = member.segment
                count = segment.bundle_count
                while count and (segment.meta(count - 1).sequence or 0) >= sequence:
                    count -= 1
                if count == segment.bundle_count:
                    break
                self.nbytes -= segment.nbytes
                segment.truncate(count)
                self.nbytes += segment.nbytes
                if count == 0:
                    freed.append(seq)
                    del self._memory[seq]
                    if member is self._open:
                        self._open = None
            undone = [one for one in self._reserved if one.commit.sequence >= sequence]
            self._reserved = [one for one in self._reserved if one.commit.sequence < sequence]
            freed += [one.commit.first_segment for one in undone]
            if freed:
                self.next_segment = min(freed)

    def sealed(
        self, *infos: SegmentInfo, commit: Commit | None = None, lost: Collection[int] = ()
    ) -> dict[int, int]:
        """Closed → File, or Reserved → File: the segments that are seen now, all at once.

        ``lost`` are the numbers of the ``commit`` that have no file and never will.  Every
        other number of it has one: what is not named is never given up.
        """
        with self._lock:
            for info in infos:
                self._must_be(info.seq, Free if commit is None else Reserved, Closed, what="sealed")
            if commit is not None:
                left = set(range(commit.first_segment, commit.end_segment)).difference(lost)
                left.difference_update(info.seq for info in infos)
                if left:
                    raise IllegalTransition(f"segments {sorted(left)} of a commit have no file")
                self._reserved = [one for one in self._reserved if one.commit is not commit]
                self._lost.update(lost)
            for info in infos:
                member = self._leave_memory(info.seq)
                if member is not None and member.damaged is not None:  # it was renamed over
                    self.file_bytes -= member.damaged.file_bytes
                self._enter_file(info)
            return {info.seq: info.bundle_count for info in infos}

    def finished(self, seq: int) -> dict[int, int]:
        """Closed → Gone: everybody has finished it, and it is not written any more."""
        with self._lock:
            self._must_be(seq, Closed, what="finished")
            self._leave_memory(seq)
            return {}

    def rebuilt(self, segment: OpenSegment, *, replaces_file: bool = False) -> None:
        """File → Closed: all its bundles are durable elsewhere and in memory, and are shown.

        At a start also for segments that the log has and no file.  ``replaces_file``: the
        damaged file keeps its name until the new one is renamed over it.
        """
        with self._lock:
            self._must_be(segment.seq, File, Free, what="rebuilt")
            segment.visible = segment.bundle_count
            member = _InMemory(segment, rebuilt=True, shown=True)
            file = self._files.get(segment.seq)
            if file is not None and replaces_file:
                member.damaged = file.info
                self.file_bytes += file.info.file_bytes
            self._forget_file(segment.seq)
            self._lost.discard(segment.seq)
            self._enter_memory(member)

    def recovered(self, segment: OpenSegment, *, shown: bool) -> None:
        """Free → Closed, at a start: the log has it, and it never had a file.

        ``shown``: subscribers were given bundles of it, or of a later one, before: they go on
        with it, also where only written segments are delivered now.
        """
        self.rebuilt(segment)
        member = self._memory[segment.seq]
        member.rebuilt, member.shown = False, shown

    # Transitions of files

    def hidden(self, seq: int) -> None:
        """It is about to go: nobody is shown it any more."""
        with self._lock:
            for one in (self._memory.get(seq), self._files.get(seq)):
                if one is not None:
                    one.hidden = True

    def dropped(self, seqs: Iterable[int]) -> None:
        """File → Gone: outcomes are durable. The floor is next, then :meth:`delete_files`."""
        with self._lock:
            for seq in seqs:
                self._must_be(seq, File, what="dropped")
                file = self._files[seq]
                self._forget_file(seq)
                self._dropped[seq] = file
                self.file_bytes += file.info.file_bytes

    def damaged(self, seq: int) -> None:
        """File → Gone, lost. The floor is next, then its file is moved away."""
        with self._lock:
            self._must_be(seq, File, what="damaged")
            self._forget_file(seq)
            self._lost.add(seq)

    def kept_file(self, seq: int) -> None:
        """Closed → File, back: the damaged file could not be moved away."""
        with self._lock:
            member = self._memory[seq]
            assert member.damaged is not None
            self._leave_memory(seq)
            self.file_bytes -= member.damaged.file_bytes
            self._enter_file(member.damaged)

    def moved_file(self, seq: int) -> None:
        """The damaged file of a rebuilt segment was moved away."""
        with self._lock:
            member = self._memory[seq]
            if member.damaged is not None:
                self.file_bytes -= member.damaged.file_bytes
                member.damaged = None

    @property
    def deletable(self) -> bool:
        """Whether :meth:`delete_files` would delete anything."""
        return bool(self._dropped) and any(not one.is_read for one in self._dropped.copy().values())

    def delete_files(self, *, in_use: bool = False) -> int:
        """Delete the files of dropped segments that nobody reads; the bytes that freed.

        The floor must say that they are gone.  ``in_use``: also those that somebody reads.
        """
        freed = 0
        try:
            for seq, file in self._dropped.copy().items():
                if in_use or not file.is_read:
                    self._disk.unlink(segment_path(seq), missing_ok=True)
                    freed += file.info.file_bytes
                    with self._lock:
                        del self._dropped[seq]
                        self.file_bytes -= file.info.file_bytes
        finally:
            if freed:
                self._disk.fsync_dir(SEGMENTS)
        return freed

    # The tables: ``_lock`` is held

    def _enter_memory(self, member: _InMemory) -> None:
        seq = member.segment.seq
        self._memory[seq] = member
        if seq < self.next_segment:
            self._memory = dict(sorted(self._memory.items()))
        self.nbytes += member.segment.nbytes
        self.next_segment = max(self.next_segment, seq + 1)

    def _leave_memory(self, seq: int) -> _InMemory | None:
        member = self._memory.pop(seq, None)
        if member is not None:
            self.nbytes -= member.segment.nbytes
        return member

    def _enter_file(self, info: SegmentInfo) -> None:
        in_order = not self._files or info.seq > next(reversed(self._files))
        self._files[info.seq] = _InFile(info)
        if not in_order:
            self._files = dict(sorted(self._files.items()))
        self.file_bytes += info.file_bytes
        self.next_segment = max(self.next_segment, info.seq + 1)

    def _forget_file(self, seq: int) -> None:
        file = self._files.pop(seq, None)
        if file is not None:
            self.file_bytes -= file.info.file_bytes
            if file.reader is not None:
                file.reader = None
                self._readers.remove(file)

    # What is shown

    def _shown(self, member: _InMemory) -> int:
        if self._shows_durable or member.shown:
            return member.segment.visible
        return 0

    def visible(self) -> list[tuple[int, int]]:
        """Every segment with how many of its bundles are shown to subscribers, oldest first."""
        with self._lock:
            shown = {
                seq: one.info.bundle_count for seq, one in self._files.items() if not one.hidden
            }
            for seq, member in self._memory.items():
                count = self._shown(member)
                if count and not member.hidden:
                    shown[seq] = count
        return sorted(shown.items())

    def waiting(self) -> list[Unshown]:
        """What is durable and not shown yet: subscribers are owed it all the same.

        In memory where only written segments are delivered, and commits that are no segments
        yet.
        """
        found: list[Unshown] = []
        with self._lock:
            for seq, member in self._memory.items():
                count = member.segment.visible
                if count > self._shown(member) and not member.hidden:
                    metas = [one.meta for one in member.segment.bundles[:count]]
                    rows, nbytes = sum(m.rows for m in metas), sum(m.nbytes for m in metas)
                    found.append(Unshown(seq, count, rows, nbytes, metas[0].ingestion_ts_ns))
            for reserved in self._reserved:
                if reserved.durable:
                    ts = reserved.commit.ts
                    found += [
                        Unshown(seq, file.bundles, file.rows, file.nbytes, ts)
                        for seq, file in reserved.commit.segments
                    ]
        return found

    @property
    def growing(self) -> int:
        """The lowest number that may still get visible bundles; never goes back."""
        with self._lock:
            return self._growing(self._shown)

    def _growing(self, count: Callable[[_InMemory], int]) -> int:
        reserved = self._reserved
        first = reserved[0].commit.first_segment if reserved else self.next_segment
        for seq, member in self._memory.items():
            if member is self._open or count(member) < member.segment.bundle_count:
                return min(seq, first)
        return first

    @property
    def end(self) -> BundleRef:
        """The position behind everything that is shown: nothing appears before it any more."""
        with self._lock:
            growing = self._growing(self._shown)
            member = self._memory.get(growing)
            return BundleRef(growing, 0 if member is None else self._shown(member))

    @property
    def latest(self) -> BundleRef:
        """The position behind everything that is durable."""
        with self._lock:
            growing = self._growing(lambda member: member.segment.visible)
            member = self._memory.get(growing)
            return BundleRef(growing, 0 if member is None else member.segment.visible)

    # What the floor and the log go by

    @property
    def first_not_in_file(self) -> int:
        """The lowest number that the log is still needed for."""
        with self._lock:
            return min(self._not_in_file(), default=self.next_segment)

    def _not_in_file(self) -> list[int]:
        reserved = [one.commit.first_segment for one in self._reserved]
        return [*list(self._memory)[:1], *reserved[:1]]

    def floor(self, before: Floor, *, ahead: int = 0) -> Floor:
        """The floor as it is now; see :func:`floor_of`."""
        with self._lock:
            reserved = [
                seq
                for one in self._reserved
                for seq in range(one.commit.first_segment, one.commit.end_segment)
            ]
            memory = self._memory.items()
            return floor_of(
                before,
                next_segment=self.next_segment,
                files=list(self._files),
                unsealed=[*(seq for seq, one in memory if not one.rebuilt), *reserved],
                rebuilt=[seq for seq, one in memory if one.rebuilt],
                ahead=ahead,
            )

    # Reading

    def pin(self, seq: int) -> Pin:
        """A view of a segment, to be used in a ``with``: its file is not deleted meanwhile.

        A file that turns out damaged is dealt with before the view answers, from what was
        saved of it; a bundle that was not saved is ``BundleGone`` with the outcome ``lost``.
        """
        return Pin(self, seq)

    def pinned(self, refs: Iterable[BundleRef]) -> Iterator[tuple[BundleRef, SegmentView]]:
        """Each ref with its segment's view. Neighbours share a pin, which costs most of it."""
        pin: Pin | None = None
        try:
            for ref in refs:
                if pin is None or pin.seq != ref.segment_seq:
                    if pin is not None:
                        pin.close()
                    pin = Pin(self, ref.segment_seq)
                yield ref, pin
        finally:
            if pin is not None:
                pin.close()

    def meta(self, ref: BundleRef) -> BundleMeta:
        """What is known about a bundle."""
        with self.pin(ref.segment_seq) as view:
            return view.meta(ref.bundle_index)

    def reader(self, seq: int) -> SegmentReader:
        """A file's reader, kept for the next time; opening it checks the file."""
        file = self._files.get(seq)
        if file is None:
            raise self._absent(seq)
        return self._reader(file)

    def _reader(self, file: _InFile) -> SegmentReader:
        file.used = True
        if file.reader is not None:
            return file.reader
        seq = file.info.seq
        # Opening reads the whole file once: others must not wait for that.
        try:
            opened = SegmentReader.open(
                self._disk,
                seq,
                mode=self._mode,
                verify=not file.checked,
                always=self._always,
            )
        except FileNotFoundError:
            raise SegmentDamage(
                f"{segment_path(seq)} is gone.", file=segment_path(seq), segment=seq
            ) from None
        with self._lock:
            return self._keep(file, opened)

    def _keep(self, file: _InFile, opened: SegmentReader) -> SegmentReader:
        if opened.source.mapping is not None:
            file.mappings = [one for one in file.mappings if one() is not None]
            file.mappings.append(opened.source.mapping)
        if self._files.get(file.info.seq) is not file:
            return opened  # it went, or was replaced, meanwhile: good for this one use
        file.checked = True
        if file.reader is None:
            self._make_room()
            file.reader = opened
            self._readers.append(file)
            self._limit_held()
        return opened

    def _make_room(self) -> None:
        """Close the reader opened longest ago that was not used since the last look."""
        while len(self._readers) >= self._max_readers:
            oldest = self._readers.popleft()
            if oldest.used and len(self._readers) > 0:
                oldest.used = False
                self._readers.append(oldest)
            else:
                oldest.reader = None

    def _limit_held(self) -> None:
        """Files that are in memory as a whole are many bytes each: few of them are kept."""
        held = [one for one in self._readers if one.reader is not None and one.reader.held_bytes]
        total = sum(one.info.file_bytes for one in held)
        for one in held[:-1]:
            if total <= MAX_HELD_BYTES:
                return
            one.reader = None
            self._readers.remove(one)
            total -= one.info.file_bytes

    def _give_up_readers(self) -> int:
        """No descriptor is left: close files that no read is using; how many readers went."""
        if not self._lock.acquire(blocking=False):
            return 0
        try:
            count = len(self._readers)
            for file in self._readers:
                file.reader = None
            self._readers.clear()
        finally:
            self._lock.release()
        return count

    def _take(self, seq: int) -> tuple[SegmentView, _InFile | None]:
        """A view, and the file that it pins.

        Most of the time without the lock: a segment is pinned, and then looked up again.
        """
        member = self._memory.get(seq)
        if member is not None:
            return member.segment, None
        file = self._files.get(seq)
        if file is not None and (reader := file.reader) is not None:
            file.pins.append(None)
            if self._files.get(seq) is file:
                file.used = True
                return reader, file
            file.pins.pop()
        return self._take_slowly(seq)

    def _take_slowly(self, seq: int) -> tuple[SegmentView, _InFile | None]:
        for _ in range(HEALING_ROUNDS):
            with self._lock:
                member = self._memory.get(seq)
                if member is not None:
                    return member.segment, None
                file = self._files.get(seq)
                if file is None:
                    raise self._absent(seq)
                file.pins.append(None)
            try:
                return self._reader(file), file
            except SegmentDamage as damage:
                file.pins.pop()
                self.on_damage(file.info, damage)
            except BaseException:
                file.pins.pop()
                raise
        raise self._absent(seq)

    def _absent(self, seq: int) -> BundleGone | UnknownBundle:
        place = self._where(seq)
        if isinstance(place, Gone) and place.why == "lost":
            return BundleGone(
                f"segment {seq} was damaged, and nothing of it could be saved.",
                advice="What was lost is in the loss ledger, the file in quarantine/.",
                segment=seq,
                outcome="lost",
            )
        if isinstance(place, Reserved):
            return UnknownBundle(
                f"segment {seq} is committed and can't be read yet.",
                advice="Ask again: it is shown with all of its transaction.",
                segment=seq,
            )
        return BundleGone(f"segment {seq} is not here any more.", outcome="deleted", segment=seq)

    def close(self) -> None:
        """Let go of the readers kept; batches that somebody holds stay whole."""
        with self._lock:
            for file in self._readers:
                file.reader = None
            self._readers.clear()


class Pin:
    """A pinned segment: a :class:`SegmentView` that deals with damage, and with nothing else."""

    __slots__ = ("_file", "_segments", "_view", "seq", "visible")

    def __init__(self, segments: Segments, seq: int) -> None:
        self._segments = segments
        self.seq: int = seq
        self._view, self._file = segments._take(seq)
        self.visible: int = self._view.visible

    def __enter__(self) -> SegmentView:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._file is not None:
            self._file.pins.pop()
            self._file = None

    def close(self) -> None:
        """End it."""
        if self._file is not None:
            self._file.pins.pop()
            self._file = None

    def _healed(self, damage: SegmentDamage) -> None:
        """Have the damage dealt with, and go on with what the segment is now."""
        file = self._file
        if file is None:
            raise damage
        self.close()
        self._segments.on_damage(file.info, damage)
        self._again()

    def _again(self) -> None:
        self.close()
        self._view, self._file = self._segments._take(self.seq)
        self.visible = self._view.visible

    def _look_again(self, index: int) -> None:
        """The segment may have grown since it was pinned."""
        self._again()
        if not 0 <= index < self.visible:
            ref = BundleRef(self.seq, index)
            raise UnknownBundle(f"there is no bundle {ref}, or it is not durable yet.", ref=ref)

    def meta(self, index: int) -> BundleMeta:
        if not 0 <= index < self.visible:
            self._look_again(index)
        try:
            meta = self._view.meta(index)
        except SegmentDamage as damage:
            self._healed(damage)
            meta = self._view.meta(index)
        if meta.attributes and meta.lost:
            ref = BundleRef(self.seq, index)
            raise BundleGone(f"bundle {ref} was lost to damage.", ref=ref, outcome="lost")
        return meta

    def slot_ids(self, index: int) -> list[int]:
        if not 0 <= index < self.visible:
            self._look_again(index)
        try:
            found = self._view.slot_ids(index)
        except SegmentDamage as damage:
            self._healed(damage)
            found = self._view.slot_ids(index)
        if not found:
            self.meta(index)  # was it lost?
        return found

    def check(self, index: int) -> None:
        if not 0 <= index < self.visible:
            self._look_again(index)
        try:
            self._view.check(index)
        except SegmentDamage as damage:
            self._healed(damage)

    def encoded(self, index: int, slots: Collection[int] | None = None) -> list[EncodedSlot]:
        if not 0 <= index < self.visible:
            self._look_again(index)
        try:
            found = self._view.encoded(index, slots)
        except SegmentDamage as damage:
            self._healed(damage)
            found = self._view.encoded(index, slots)
        if not found:
            self.meta(index)
        return found

    def read(
        self,
        index: int,
        slots: Collection[int] | None = None,
        columns: Mapping[int, Sequence[str]] | None = None,
    ) -> dict[int, pa.RecordBatch]:
        if not 0 <= index < self.visible:
            self._look_again(index)
        try:
            found = self._view.read(index, slots, columns)
        except SegmentDamage as damage:
            self._healed(damage)
            found = self._view.read(index, slots, columns)
        if not found:
            self.meta(index)
        return found

    def read_slot(
        self, index: int, slot: int, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        if not 0 <= index < self.visible:
            self._look_again(index)
        try:
            return self._view.read_slot(index, slot, columns)
        except SlotNotInBundle:
            self.meta(index)
            raise
        except SegmentDamage as damage:
            self._healed(damage)
            return self.read_slot(index, slot, columns)

    def schemas(self) -> Iterator[tuple[int, bytes, pa.Schema]]:
        try:
            return iter(list(self._view.schemas()))
        except SegmentDamage as damage:
            self._healed(damage)
            return self._view.schemas()


def _leave_it(info: SegmentInfo, damage: SegmentDamage) -> None:
    """Without anybody to deal with it, damage is the reader's to hear of."""
    raise damage
