"""One log file, from its head to wherever it ends.

:class:`FileScan` gives the entries piece by piece and says how it came to a stop; what a
stop means (the end, a torn tail, damage) depends on the other files, so that is decided
in :mod:`quiver.wal.reader`.  Files are read with ``pread``, never mapped: a failing disk
must end in an ``IoFault``, not in a signal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from enum import Enum
from itertools import islice
from operator import itemgetter
from typing import Final, NamedTuple

from quiver.disk.disk import File
from quiver.disk.room import Room
from quiver.errors import IoFault, UnsupportedVersion
from quiver.format.crc import crc32, crc32_before, crc32_shift
from quiver.format.wal.entry import (
    BUNDLE,
    COMMIT,
    FOREIGN_BUNDLE,
    FRAME,
    MAX_BODY,
    OWN_KINDS,
    SEAL,
    V1_FRAMING,
    Framing,
    unknown_tag,
)
from quiver.format.wal.header import VERSION, fits_head, salt_in, seed_of
from quiver.format.wal.scan import (
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
FIRST_BATCH: Final = 16
MAX_BATCH: Final = 1 << 18
"""How many places that look like entries are checked in one pass over the file.

The first pass checks few, since the next sound entry is usually near.  Payloads may hold
anything, markers with absurd lengths too: a pass reads each byte once whatever they say.
"""
MAX_CANDIDATES: Final = 1_000_000
MAX_SEARCH_BYTES: Final = 4 * 1024**3
"""Both bound the searches that check one place at a time: in a log of the Rust crate, and
for the salt of a file whose head is damaged."""
FOREIGN_SEARCH: Final = 64
"""How many entries in a row of a Rust crate's log may be bad before it is given up."""

_kind, _synced, _segment = itemgetter(2), itemgetter(4), itemgetter(5)


class Ending(Enum):
    """How the entries of a file stop."""

    EOF = "end of file"
    ZEROS = "terminator"
    OLD = "an entry of an earlier lap"
    BAD = "something that is not the next entry"


class LogPiece(NamedTuple):
    """Some entries, as offsets into ``view``, which begins at ``base`` in the file."""

    view: memoryview
    base: int
    found: list[tuple[int, int, int, int, int, int]]


class _ScanPlace(NamedTuple):
    """Where an entry of ours may lie."""

    start: int
    end: int
    sequence: int
    synced: int

    @property
    def summed(self) -> int:
        """Bytes of its body and its checksum."""
        return self.end - self.start - 4


class _ScanWindow:
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
        self, file: File, size: int, offset: int, expected: int | None, framing: Framing
    ) -> None:
        self.file = file
        self.size = size
        self.offset = offset
        self.framing = framing
        self.foreign = framing.foreign
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
        self._window = _ScanWindow(file, size)
        self._recent: list[LogPiece] = []

    def pieces(self) -> Iterator[LogPiece]:
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
            piece = LogPiece(view, self.offset, found)
            self._note(piece)
            self.offset += stop
            yield piece
        self.ending = Ending.EOF

    def _scan(self, view: memoryview) -> tuple[list[tuple[int, int, int, int, int, int]], int]:
        if self.foreign:
            entries, stop = scan_foreign(view, 0)
            return list(entries), stop
        found, stop, self.expected = scan_own(view, 0, self.expected, self.framing)
        return found, stop

    def _look(self, view: memoryview) -> tuple[memoryview, Found] | Ending:
        """What is at :attr:`offset`, where the quick scan found nothing."""
        left = self.size - self.offset
        what = read_one(view, 0, self.framing)
        if what is Stop.MORE and len(view) < left:
            need = FRAME + int.from_bytes(view[:4], "little")
            if need > left:
                return Ending.BAD
            view = self._read(self.offset, need)
            what = read_one(view, 0, self.framing)
        if isinstance(what, Found):
            return self._in_turn(view, what)
        if what is Stop.END or (what is Stop.MORE and not bytes(view[:64]).strip(b"\0")):
            return Ending.ZEROS
        return Ending.BAD

    def _in_turn(self, view: memoryview, entry: Found) -> tuple[memoryview, Found] | Ending:
        if self.foreign:
            if entry.kind != FOREIGN_BUNDLE:
                raise self._newer(entry, f"an entry of type {entry.kind}", type=entry.kind)
            return view, entry
        if entry.sequence != self.expected:
            # Only without a salt can an entry of an earlier lap pass its checksum.
            old = entry.sequence < self.expected and self.framing.version == 1
            return Ending.OLD if old else Ending.BAD
        if entry.kind not in OWN_KINDS:
            raise self._newer(entry, f"an entry of type {entry.kind}", type=entry.kind)
        if entry.kind == BUNDLE:
            tag = unknown_tag(view[entry.start + 4 : entry.end - 4], self.framing)
            if tag is not None:
                raise self._newer(entry, f"a bundle with tag {tag}", tag=tag)
        self.expected += 1
        return view, entry

    def _newer(self, entry: Found, what: str, **details: object) -> UnsupportedVersion:
        offset = self.offset + entry.start
        return UnsupportedVersion(
            f"{self.file.path} byte {offset:,}: {what} (sequence {entry.sequence:,}) is of a"
            " newer version.",
            advice="Open the store with the Quiver that wrote it, or a newer one."
            " Nothing was changed.",
            file=self.file.path,
            offset=offset,
            sequence=entry.sequence,
            **details,
        )

    def _note(self, piece: LogPiece) -> None:
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
        self._recent.append(LogPiece(memoryview(b""), piece.base, found))
        while self._recent[0].found[-1][3] < self.proven and len(self._recent) > 1:
            self._recent.pop(0)

    def _note_time(self, piece: LogPiece) -> None:
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
        """Whether a later entry of this file says that the expected one was synced."""
        end = self.size if within is None else min(self.size, self.offset + within)
        smallest = FRAME + self.framing.prefix_size
        highest = self.expected + (self.size - self.offset) // smallest + 1
        return any(
            place.synced > self.expected
            for place in self._sound_after(self.offset, end, self.expected, highest)
        )

    def resync(self, above: int, *others: int) -> bool:
        """Go to the next sound entry with a sequence over ``above``; whether there is one.

        Entries of the Rust crate have nothing to be found by but their sequence, so there
        it has to be a near one: over ``above``, or over one of ``others``.
        """
        if self.foreign:
            return self._resync_foreign(
                {base + step for base in (above, *others) for step in range(1, FOREIGN_SEARCH)}
            )
        for place in self._sound_after(self.offset + 1, self.size, above, None):
            self.offset, self.expected = place.start, place.sequence
            return True
        return False

    def _sound_after(
        self, start: int, end: int, above: int, highest: int | None
    ) -> Iterator[_ScanPlace]:
        """Sound entries of ours that begin between two offsets, none within another."""
        resume, count = start, FIRST_BATCH
        places = self._places(start, end, above, highest)
        while batch := list(islice(places, count)):
            for place, crc in zip(batch, self._sums(batch), strict=True):
                if place.start >= resume and self._is_residue(place, crc):
                    resume = place.end
                    yield place
            count = min(MAX_BATCH, count * 16)

    def _is_residue(self, place: _ScanPlace, crc: int) -> bool:
        return crc ^ crc32_shift(self.framing.seed, place.summed) == RESIDUE

    def _places(
        self, start: int, end: int, above: int, highest: int | None
    ) -> Iterator[_ScanPlace]:
        """Places that may begin an entry of ours, in order; nothing of them is summed yet."""
        for base in range(start, end, SEARCH_WINDOW):
            wanted = min(SEARCH_WINDOW, end - base) + HEAD_SIZE
            data = self.file.pread(min(wanted, self.size - base), base)
            for at, length, sequence, synced in candidates(data, above):
                place = _ScanPlace(base + at, base + at + length, sequence, synced)
                if at >= SEARCH_WINDOW or place.start >= end or place.end > self.size:
                    continue
                if highest is None or sequence <= highest:
                    yield place

    def _sums(self, places: list[_ScanPlace]) -> list[int]:
        """The checksum of each place without a salt, its own checksum included, in one pass.

        They may lie within each other in any way.  The sum of a range is what is left of the
        sum up to its end without the sum up to its beginning.
        """
        marks = sorted({mark for place in places for mark in (place.start + 4, place.end)})
        sums: dict[int, int] = {}
        crc, at = 0, marks[0]
        base, data = at, memoryview(b"")
        for mark in marks:
            while at < mark:
                if at == base + len(data):
                    base, data = at, memoryview(self._exactly(at, min(CHUNK, marks[-1] - at)))
                until = min(mark, base + len(data))
                crc = crc32(data[at - base : until - base], crc)
                at = until
            sums[mark] = crc
        return [
            sums[place.end] ^ crc32_shift(sums[place.start + 4], place.summed) for place in places
        ]

    def derived_framing(self, head: bytes) -> Framing | None:
        """How this file was written, if its head is damaged, going by its entries.

        An entry and its checksum give away the salt.  That proves nothing yet: it must suit
        the head's checksum, or the entry that follows; or be none, as in version 1.
        """
        salt = salt_in(head)
        if salt is not None:
            framing = Framing(VERSION, seed_of(salt))
            if FileScan(self.file, self.size, 0, 0, framing).resync(-1):
                return framing
        work = 0
        for place in islice(self._places(0, self.size, -1, None), MAX_CANDIDATES):
            seed = self._seed_at(place)
            framing = Framing(VERSION, seed) if seed else V1_FRAMING
            if not seed or fits_head(head, framing):
                return framing
            work += place.summed
            behind = next(self._places(place.end, place.end + 1, place.sequence, None), None)
            if behind is not None and behind.sequence == place.sequence + 1:
                if self._seed_at(behind) == seed:
                    return framing
                work += behind.summed
            if work > MAX_SEARCH_BYTES:
                break
        return None

    def _seed_at(self, place: _ScanPlace) -> int:
        """What a place's checksum must have gone on from, if an entry is there."""
        (crc,) = self._sums([place])
        return crc32_before(RESIDUE, crc, place.summed)

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
            data = self._exactly(at, min(CHUNK, end - at))
            crc = crc32(data, crc)
            at += len(data)
        return crc == RESIDUE

    def _exactly(self, offset: int, size: int) -> bytes:
        data = self.file.pread(size, offset)
        if len(data) != size:
            raise _short(self.file, offset, len(data), size)
        return data

    def _read(self, offset: int, size: int) -> memoryview:
        return self._window.read(offset, min(size, self.size - offset, MAX_BODY + FRAME))
