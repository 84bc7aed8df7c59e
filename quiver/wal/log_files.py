"""The log files on disk: the one being written, those before it, and the spare.

A file's life::

    quiver.wal.new ──► quiver.wal ──► quiver.wal.N ──► quiver.wal.spare ──► quiver.wal
       (made)           (active)       (rotated)          (retired)        (next lap)

Each arrow is a rename followed by a sync of the directory before anything else happens:
the names may reach the disk in any order, and none of these orders may leave a gap.  A
file that was there when the store was opened is never written to again.

The next file is whole and synced, under its own or the spare's name, before the active
one is set aside.  So there is no moment without an active file or one ready to take its
place, and a log that has neither has lost one.

Writing over a retired file is the cheapest way to append, since its blocks are there
already.  Its old entries stay behind the new end and are told apart by their checksum, which
a new salt makes another one.  Within one file the salt stays, so that needs one rule: after
a failed write the file is cut and synced before anything is written again, or an entry of
the failed group could come back behind a new one.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

from quiver.clock import Clock
from quiver.disk.disk import Disk, File
from quiver.errors import IoFault, Poisoned, QuiverError, StorageFull
from quiver.format.wal.header import HEADER_SIZE, encode_header, seed_of
from quiver.format.wal.scan import TERMINATOR
from quiver.wal.capacity import Group, LogPlan
from quiver.wal.contents import LogStart
from quiver.wal.files import ACTIVE, DIRECTORY, NEW, SPARE, rotated_path

if TYPE_CHECKING:
    from quiver.config import WalConfig


@dataclass(slots=True)
class _RetiredFile:
    """A file that takes no more entries."""

    path: str
    size: int
    position: int
    first: int
    last_segment: int
    recyclable: bool


@dataclass(slots=True)
class _Active:
    """The file being written. ``good`` is its end without a group not yet confirmed."""

    file: File
    end: int
    good: int
    size: int
    position: int
    first: int
    last_segment: int
    seed: int
    created: float


class LogFiles:
    """All writing to log files. One thread at a time appends; others may retire.

    ``names`` guards what the files are called; appending to the active file doesn't need
    it, so that retiring old files never holds up a put.
    """

    def __init__(
        self, disk: Disk, config: WalConfig, layout: bytes, clock: Clock, start: LogStart
    ) -> None:
        self._disk = disk
        self._cap = config.max_size
        self._recycle = config.recycle
        self._layout = layout
        self._clock = clock
        self.names = threading.Lock()
        self._next_number = start.next_file_number
        self.rotations = 0
        self._held = [
            _RetiredFile(
                file.path,
                disk.stat_size(file.path) or 0,
                file.header.position_start,
                file.header.first_sequence or 0,
                file.last_segment,
                recyclable=not file.header.foreign,
            )
            for file in start.files
        ]
        self._held_bytes = sum(held.size for held in self._held)
        self._active: _Active | None = None
        self._spare: int | None = None
        disk.mkdir(DIRECTORY)
        disk.fsync_dir("")

    # What is there

    @property
    def is_writing(self) -> bool:
        """Whether a file was begun since the store was opened."""
        return self._active is not None

    @property
    def is_fresh(self) -> bool:
        """Whether the next entry would be the first of its file anyway."""
        if self._active is None:
            return not self._held
        return self._active.end == HEADER_SIZE

    @property
    def age(self) -> float:
        """Seconds since the active file was begun; 0 while nothing is in it."""
        active = self._active
        if active is None or active.end == HEADER_SIZE:
            return 0.0
        return self._clock.monotonic() - active.created

    @property
    def bytes_on_disk(self) -> int:
        """All log files, the spare included."""
        active = self._active
        size = 0 if active is None else active.size
        return size + (self._spare or 0) + self._held_bytes

    @property
    def file_count(self) -> int:
        """All log files, the spare included."""
        return len(self._held) + (self._active is not None) + (self._spare is not None)

    def oldest_position(self) -> int | None:
        """Where the oldest file's entries begin; ``names`` is held."""
        oldest = self._held[0] if self._held else self._active
        return None if oldest is None else oldest.position

    def survey(self, plan: LogPlan) -> None:
        """Make a plan agree with what is there; ``names`` is held.

        The spare doesn't count: it becomes the next file, or goes when room is short.
        """
        active, files, total = self._active, len(self._held), self._held_bytes
        if active is None:
            plan.reset(files=files, total=total, end=None, seed=0)
        else:
            total += active.end + len(TERMINATOR)
            plan.reset(files=files + 1, total=total, end=active.end, seed=active.seed)

    # Appending

    def append(self, group: Group, position: int) -> None:
        """Write and sync one group. It counts from :meth:`confirm` on."""
        group.buffers.append(TERMINATOR)
        if group.salt is not None:
            self._begin(group, position, group.salt)
            return
        active = self._active
        assert active is not None
        end = active.end + group.nbytes
        self._make_room(active, end + len(TERMINATOR))
        self._check_room(group, ACTIVE, end + len(TERMINATOR) - active.size)
        active.file.write_all(group.buffers, active.end)
        active.file.fdatasync()
        active.end = end
        active.size = max(active.size, end + len(TERMINATOR))
        active.last_segment = max(active.last_segment, group.last_segment)

    def confirm(self) -> None:
        """The last group is going to be called durable: no way back behind it."""
        if self._active is not None:
            self._active.good = self._active.end

    def _make_room(self, active: _Active, size: int) -> None:
        """Keep all files together within the cap, by giving up what isn't needed."""
        growth = max(0, size - active.size)
        if self.bytes_on_disk + growth <= self._cap:
            return
        with self.names:
            self._drop_spare()
        if self.bytes_on_disk + growth > self._cap and active.size > active.end:
            active.file.truncate(active.end)
            active.size = active.end

    def _check_room(self, group: Group, path: str, growth: int) -> None:
        """Bundles leave alone what a full disk keeps for small files; marks are small."""
        if group.last_segment >= 0:
            self._disk.check_room(path, growth)

    def roll_back(self, error: QuiverError) -> None:
        """After a failed group: back to the end before it, durably; else ``Poisoned``."""
        active = self._active
        try:
            if isinstance(error, StorageFull):
                with self.names, contextlib.suppress(IoFault):
                    self._drop_spare()
            if active is not None:
                active.end = active.good
                active.file.truncate(active.end)
                active.size = active.end
                active.file.fsync()
            self._disk.poison.check()
        except Poisoned:
            raise
        except QuiverError as exc:
            path = ACTIVE if active is None else active.file.path
            raise self._disk.poison.trip("roll back", path, exc) from exc

    # From file to file

    def _begin(self, group: Group, position: int, salt: int) -> None:
        """Make the next file, with its first group in it, and put it in the active one's place.

        Head and group are synced together, before anything is renamed.
        """
        header = encode_header(
            self._layout,
            position_start=position,
            first_sequence=group.first,
            salt=salt,
            created_ns=self._clock.now_ns(),
        )
        end = HEADER_SIZE + group.nbytes
        size = end + len(TERMINATOR)
        with self.names:
            self._trim_active()
            if self.bytes_on_disk - (self._spare or 0) + max(size, self._spare or 0) > self._cap:
                self._drop_spare()
            path, old_size = (NEW, 0) if self._spare is None else (SPARE, self._spare)
            self._check_room(group, path, size - old_size)
            file = self._disk.open(SPARE, write=True) if old_size else self._create_new()
            try:
                file.write_all([header, *group.buffers], 0)
                file.fsync()
                self._disk.fsync_dir(DIRECTORY)
                self._take_over(path)
            except BaseException:
                self._abandon(file, path)
                raise
            self._hold_active()
            self._spare = None
            file.path = ACTIVE
            self._active = _Active(
                file=file,
                end=end,
                good=HEADER_SIZE,
                size=max(size, old_size),
                position=position,
                first=group.first,
                last_segment=group.last_segment,
                seed=seed_of(salt),
                created=self._clock.monotonic(),
            )

    def _trim_active(self) -> None:
        """Cut the active file at its end, for the room: what is there does no harm."""
        active = self._active
        if active is not None and active.size > active.end:
            active.file.truncate(active.end)
            active.size = active.end

    def _create_new(self) -> File:
        self._disk.unlink(NEW, missing_ok=True)
        return self._disk.create(NEW)

    def _take_over(self, path: str) -> None:
        """Give the finished file the active one's name, and that one its number."""
        aside = rotated_path(self._next_number)
        rotates = self._active is not None or bool(self._held and self._held[-1].path == ACTIVE)
        try:
            if rotates:
                self._disk.rename(ACTIVE, aside)
                self._disk.fsync_dir(DIRECTORY)
            self._disk.rename(path, ACTIVE)
            self._disk.fsync_dir(DIRECTORY)
        except Poisoned:
            raise
        except QuiverError as error:
            self._take_back(path, aside if rotates else None, error)
            raise
        except BaseException as exc:
            # An interrupt, or a bug: nobody knows which name leads where.
            self._disk.poison.trip("rename", path, exc)
            raise

    def _take_back(self, path: str, aside: str | None, error: QuiverError) -> None:
        """A rename failed: the active file goes on under its name; else ``Poisoned``.

        What a failed call did is not taken for granted, it is looked up.
        """
        disk = self._disk
        try:
            taken = disk.stat_size(path) is None
            if not taken and aside is not None and disk.stat_size(ACTIVE) is None:
                disk.rename(aside, ACTIVE)
                disk.fsync_dir(DIRECTORY)
        except Poisoned:
            raise
        except QuiverError:
            taken = True
        if taken:
            raise disk.poison.trip("rename", path, error) from error

    def _abandon(self, file: File, path: str) -> None:
        """A file in the making failed: it must go, or its entries might come back.

        Once poisoned it stays: the names may be such that it is the log's end.
        """
        with contextlib.suppress(IoFault):
            file.close()
        if self._disk.poison.cause is not None:
            return
        try:
            self._disk.unlink(path, missing_ok=True)
            self._spare = None
        except QuiverError as exc:
            self._disk.poison.trip("roll back", path, exc)

    def _hold_active(self) -> None:
        """Note that the active file now has a number, and takes no more entries."""
        path = rotated_path(self._next_number)
        active = self._active
        if active is not None:
            self._held.append(
                _RetiredFile(
                    path,
                    active.size,
                    active.position,
                    active.first,
                    active.last_segment,
                    recyclable=True,
                )
            )
            self._held_bytes += active.size
            with contextlib.suppress(IoFault):  # all of it is synced: nothing hangs on this
                active.file.close()
        elif self._held and self._held[-1].path == ACTIVE:
            self._held[-1].path = path
        else:
            return
        self._next_number += 1
        self.rotations += 1

    # Letting go

    def is_retirable(self, sealed_through: int) -> bool:
        """Whether the oldest file can go; ``names`` is held."""
        others = len(self._held) - (self._active is None)
        return others > 0 and self._held[0].last_segment <= sealed_through

    def first_kept(self, sealed_through: int, covered: int | None = None) -> int | None:
        """The sequence the log begins with once all files up to a segment are let go.

        ``names`` is held; ``None`` if there is no file.  A file with an entry from sequence
        ``covered`` on is kept: a slot name may be all it has that a segment doesn't.
        """
        active = None if self._active is None else self._active.first
        ends = [*(held.first for held in self._held[1:]), active]
        for held, end in zip(self._held, ends, strict=False):
            if held.last_segment > sealed_through or held.path == ACTIVE:
                return held.first
            if covered is not None and end is not None and end > covered:
                return held.first
        return active

    def retire_oldest(self, sealed_through: int, keep_from: int) -> int | None:
        """Let the oldest file go if it holds nothing above a segment; its size.

        ``names`` is held.  Files from sequence ``keep_from`` on stay.  So does the newest
        one: it alone says which sequence comes next.
        """
        if not self.is_retirable(sealed_through) or self._held[0].first >= keep_from:
            return None
        oldest = self._held[0]
        if self._disk.stat_size(oldest.path) is None:
            pass  # an earlier try was called a failure and was done all the same
        elif oldest.recyclable and self._recycle and self._spare is None:
            self._disk.rename(oldest.path, SPARE)
            self._spare = oldest.size
        else:
            self._disk.unlink(oldest.path)
        del self._held[0]
        self._held_bytes -= oldest.size
        self._disk.fsync_dir(DIRECTORY)
        return oldest.size

    def drop_spare(self) -> None:
        """Give up the file kept for the next lap."""
        with self.names:
            self._drop_spare()

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._disk.unlink(SPARE, missing_ok=True)
            self._spare = None
            self._disk.fsync_dir(DIRECTORY)

    # Closing

    def finish(self) -> None:
        """Cut the active file at its end: what is closed cleanly holds nothing else."""
        active = self._active
        if active is not None and active.size > active.end:
            active.file.truncate(active.end)
            active.file.fsync()
            active.size = active.end

    def close(self) -> None:
        """Close the active file."""
        if self._active is not None:
            self._active.file.close()
