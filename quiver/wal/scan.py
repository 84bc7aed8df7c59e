"""One log file, from its head to wherever it ends.

:class:`FileScan` gives the entries piece by piece and says how it came to a stop; what a
stop means (the end, a torn tail, damage) depends on the other files, so that is decided
in :mod:`quiver.wal.reader`.  Files are read with ``pread``, never mapped: a failing disk
must end in an ``IoFault``, not in a signal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum
from operator import itemgetter
from typing import Final, NamedTuple

from quiver.disk.disk import File
from quiver.disk.room import Room
from quiver.errors import IoFault
from quiver.format.crc import crc32
from quiver.format.wal_entry import BUNDLE, COMMIT, FOREIGN_BUNDLE, FRAME, MAX_BODY, SEAL
from quiver.format.wal_scan import (
    HEAD_SIZE,
    RESIDUE,
    Found,
    Stop,
    candidates,
    foreign_candidates,
    read_one,
    scan_foreign,
    scan_own,
)

CHUNK: Final = 1024 * 1024
"""Bytes read at a time: small enough to stay in the cache between reading and checking."""
WINDOW: Final = 8 * 1024 * 1024
"""Bytes that share one piece of memory, kept until the last bundle in it is in a segment."""
SEARCH_WINDOW: Final = 1024 * 1024
MAX_CANDIDATES: Final = 1_000_000
MAX_SEARCH_BYTES: Final = 4 * 1024**3
"""Both bound the search behind damage, since payloads may hold anything, markers too."""
FOREIGN_SEARCH: Final = 64
"""How many entries in a row of a Rust crate's log may be bad before it is given up."""
_SMALLEST_ENTRY: Final = 45

_kind, _synced, _segment = itemgetter(2), itemgetter(4), itemgetter(5)


class Ending(Enum):
    """How the entries of a file stop."""

    EOF = "end of file"
    ZEROS = "terminator"
    OLD = "an entry of an earlier lap"
    BAD = "something that is not the next entry"


class Piece(NamedTuple):
    """Some entries, as offsets into ``view``, which begins at ``base`` in the file."""

    view: memoryview
    base: int
    found: list[tuple[int, int, int, int, int, int]]


class _Window:
    """Memory that a file is read into from front to end, so that no byte is read twice.

    What it gives out stays as it is: the next window is other memory.
    """

    def __init__(self, file: File, size: int) -> None:
        self._file = file
        self._size = size
        self._room = Room(0)
        self._base = 0
        self._filled = 0

    def read(self, offset: int, size: int) -> memoryview:
        at = offset - self._base
        if not 0 <= at <= self._filled or at + size > len(self._room.view):
            self._room = Room(max(size, min(WINDOW, self._size - offset)))
            self._base, self._filled, at = offset, 0, 0
        end = at + size
        if end > self._filled:
            missing = self._room.part(self._filled, end)
            got = self._file.pread_into(missing, self._base + self._filled)
            if got != len(missing):
                raise _short(self._file, self._base + self._filled, got, len(missing))
            self._filled = end
        return self._room.view[at:end].toreadonly()


def _short(file: File, offset: int, got: int, wanted: int) -> IoFault:
    return IoFault(
        f"read of {file.path} came back short: {got} of {wanted} bytes.",
        advice="Check the disk; nothing was changed.",
        op="read",
        file=file.path,
        offset=offset,
    )


class FileScan:
    """Reads one file; the attributes say what was seen up to :attr:`offset`."""

    def __init__(
        self, file: File, size: int, offset: int, expected: int | None, *, foreign: bool
    ) -> None:
        self.file = file
        self.size = size
        self.offset = offset
        self.foreign = foreign
        self.expected = 0 if expected is None else expected
        self.ending = Ending.EOF
        self.proven = 0
        self.last_segment = -1
        self.last_ts = 0
        self.last_kind = -1
        self.entries = 0
        self.bundles = 0
        self.first_foreign: int | None = None
        self.highest = -1
        self.search_gave_up = False
        self._window = _Window(file, size)
        self._recent: list[Piece] = []

    def pieces(self) -> Iterator[Piece]:
        """The entries from :attr:`offset` on; afterwards :attr:`ending` says why no more."""
        while self.offset < self.size:
            view = self._read(self.offset, CHUNK)
            found, stop = self._scan(view)
            if not found:
                odd = self._look(view)
                if isinstance(odd, Ending):
                    self.ending = odd
                    return
                view, entry = odd
                found, stop = [entry], entry.end
            piece = Piece(view, self.offset, found)
            self._note(piece)
            self.offset += stop
            yield piece
        self.ending = Ending.EOF

    def _scan(self, view: memoryview) -> tuple[list[tuple[int, int, int, int, int, int]], int]:
        if self.foreign:
            entries, stop = scan_foreign(view, 0)
            return list(entries), stop
        found, stop, self.expected = scan_own(view, 0, self.expected)
        return found, stop

    def _look(self, view: memoryview) -> tuple[memoryview, Found] | Ending:
        """What is at :attr:`offset`, where the quick scan found nothing."""
        left = self.size - self.offset
        what = read_one(view, 0, foreign=self.foreign)
        if what is Stop.MORE and len(view) < left:
            need = FRAME + int.from_bytes(view[:4], "little")
            if need > left:
                return Ending.BAD
            view = self._read(self.offset, need)
            what = read_one(view, 0, foreign=self.foreign)
        if isinstance(what, Found):
            return self._in_turn(view, what)
        if what is Stop.END or (what is Stop.MORE and not bytes(view[:64]).strip(b"\0")):
            return Ending.ZEROS
        return Ending.BAD

    def _in_turn(self, view: memoryview, entry: Found) -> tuple[memoryview, Found] | Ending:
        if not self.foreign:
            if entry.sequence != self.expected:
                return Ending.OLD if entry.sequence < self.expected else Ending.BAD
            self.expected += 1
        return view, entry

    def _note(self, piece: Piece) -> None:
        found = piece.found
        _, _, kind, sequence, _, _ = found[-1]
        self.entries += len(found)
        kinds = list(map(_kind, found))
        self.bundles += kinds.count(BUNDLE) + kinds.count(FOREIGN_BUNDLE)
        self.last_segment = max(self.last_segment, *map(_segment, found))
        self.proven = max(self.proven, *map(_synced, found))
        self._note_time(piece)
        self.last_kind = kind
        if self.foreign:
            if self.first_foreign is None:
                self.first_foreign = found[0][3]
            self.highest = max(self.highest, *(entry[3] for entry in found))
            self.expected = sequence + 1
            return
        self._recent.append(Piece(memoryview(b""), piece.base, found))
        while self._recent[0].found[-1][3] < self.proven and len(self._recent) > 1:
            self._recent.pop(0)

    def _note_time(self, piece: Piece) -> None:
        """Of bundles and commits only: their time never goes back, that of others may."""
        for start, _, kind, _, _, _ in reversed(piece.found):
            if kind in (BUNDLE, COMMIT, FOREIGN_BUNDLE):
                ts = int.from_bytes(piece.view[start + 5 : start + 13], "little", signed=True)
                self.last_ts = max(self.last_ts, ts)
                return

    @property
    def sealed(self) -> bool:
        """Whether the last entry says that the log was closed cleanly."""
        return self.last_kind == SEAL

    def proven_end(self) -> int:
        """Offset of the first entry that no later entry proves to be synced."""
        for piece in self._recent:
            for start, _, _, sequence, _, _ in piece.found:
                if sequence >= self.proven:
                    return piece.base + start
        return self.offset

    # Behind a bad place

    def has_proof(self, *, within: int | None = None) -> bool:
        """Whether a later entry of this file says that the expected one was synced.

        When the search has to be given up, the answer is yes: to refuse loses nothing.
        """
        end = self.size if within is None else min(self.size, self.offset + within)
        highest = self.expected + (self.size - self.offset) // _SMALLEST_ENTRY + 1
        return any(
            synced > self.expected
            for _, _, synced in self._sound_after(self.offset, end, self.expected, highest)
        ) or (self.search_gave_up and within is None)

    def resync(self, above: int, *others: int) -> bool:
        """Go to the next sound entry with a sequence over ``above``; whether there is one.

        Entries of the Rust crate have nothing to be found by but their sequence, so there
        it has to be a near one: over ``above``, or over one of ``others``.
        """
        if self.foreign:
            return self._resync_foreign(
                {base + step for base in (above, *others) for step in range(1, FOREIGN_SEARCH)}
            )
        for offset, sequence, _ in self._sound_after(self.offset + 1, self.size, above, None):
            self.offset, self.expected = offset, sequence
            return True
        return False

    def _sound_after(
        self, start: int, end: int, above: int, highest: int | None
    ) -> Iterator[tuple[int, int, int]]:
        """Sound entries of ours between two offsets: offset, sequence, synced_before."""
        self.search_gave_up = False
        tries = work = 0
        resume = start
        for base in range(start, end, SEARCH_WINDOW):
            data = self.file.pread(min(SEARCH_WINDOW + HEAD_SIZE, self.size - base), base)
            for at, length, sequence, synced in candidates(data, above):
                offset = base + at
                if offset < resume or offset + length > self.size:
                    continue
                if at >= SEARCH_WINDOW or (highest is not None and sequence > highest):
                    continue
                tries, work = tries + 1, work + length
                if tries > MAX_CANDIDATES or work > MAX_SEARCH_BYTES:
                    self.search_gave_up = True
                    return
                if self._is_sound(offset, length):
                    resume = offset + length
                    yield offset, sequence, synced

    def _resync_foreign(self, sequences: Collection[int]) -> bool:
        tries = work = 0
        for base in range(self.offset + 1, self.size, SEARCH_WINDOW):
            data = self.file.pread(min(SEARCH_WINDOW + HEAD_SIZE, self.size - base), base)
            found = sorted(
                (at, length, sequence)
                for sequence in sequences
                for at, length in foreign_candidates(data, sequence)
                if at < SEARCH_WINDOW and base + at + length <= self.size
            )
            for at, length, sequence in found:
                tries, work = tries + 1, work + length
                if tries > MAX_CANDIDATES or work > MAX_SEARCH_BYTES:
                    return False
                if self._is_sound(base + at, length):
                    self.offset, self.expected = base + at, sequence
                    return True
        return False

    def _is_sound(self, offset: int, length: int) -> bool:
        crc, at, end = 0, offset + 4, offset + length
        while at < end:
            wanted = min(CHUNK, end - at)
            data = self.file.pread(wanted, at)
            if len(data) != wanted:
                raise _short(self.file, at, len(data), wanted)
            crc = crc32(data, crc)
            at += wanted
        return crc == RESIDUE

    def _read(self, offset: int, size: int) -> memoryview:
        return self._window.read(offset, min(size, self.size - offset, MAX_BODY + FRAME))
