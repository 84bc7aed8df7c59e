"""Finding the entries in a piece of a log file.

:func:`scan_own` is the loop that reads a log back: one unpack, one checksum and one
comparison per entry, so that recovery runs at the speed of memory.  It stops at the first
place where anything is not as usual (the end of the piece, of the log, an entry of a newer
version, damage); :func:`read_one` then looks at that place alone and says what is
there.  Keeping the two apart is what keeps the loop short.

The checksum is compared through its residue: the CRC-32 of bytes followed by their own
CRC-32 is always the same number, so the stored value need not be unpacked.  That holds
whatever the checksum goes on from, so a salt (:class:`~quiver.format.wal.entry.Framing`)
changes nothing about it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import Enum
from typing import Final, NamedTuple

from quiver.format.crc import crc32
from quiver.format.wal.entry import (
    BUNDLE,
    COMMIT,
    FOREIGN_BUNDLE,
    FOREIGN_FRAMING,
    FOREIGN_PREFIX_SIZE,
    FRAME,
    MARKER,
    MAX_BODY,
    OWN_KINDS,
    V1_PREFIX_SIZE,
    Framing,
    unknown_tag,
)

RESIDUE: Final = 0x2144DF1C
TERMINATOR: Final = bytes(64)
"""Written behind every group, overwritten by the next: the end of the log."""

MARKER_OFFSET: Final = 4 + FOREIGN_PREFIX_SIZE
HEAD_SIZE: Final = 65
"""Bytes of an entry that say all a scan wants to know, in any version."""

_HEAD = struct.Struct("<IB8xQ8x4sQ8xQ4xI")
_V1_HEAD = struct.Struct("<IB8xQ8x4sQQ4xI8x")
_FOREIGN_HEAD = struct.Struct("<IB8xQ")
_LENGTH = struct.Struct("<I")
_SEQUENCE = struct.Struct("<Q")
assert _HEAD.size == _V1_HEAD.size == HEAD_SIZE
_HEADS: Final = (_V1_HEAD, _V1_HEAD, _HEAD)


class Found(NamedTuple):
    """A sound entry between two offsets of the piece.

    ``synced_before`` is 0 and ``segment_seq`` -1 where the entry doesn't say.
    """

    start: int
    end: int
    kind: int
    sequence: int
    synced_before: int
    segment_seq: int


class Stop(Enum):
    """Why no entry can be read at a place."""

    END = "end"  # a terminator
    BAD = "bad"  # something that is not an entry
    MORE = "more"  # an entry may begin here and reach beyond the piece


def scan_own(
    view: memoryview, start: int, expected: int, framing: Framing
) -> tuple[list[tuple[int, int, int, int, int, int]], int, int]:
    """The usual entries from ``start`` on, the first with sequence ``expected``.

    Gives plain tuples in the order of :class:`Found`, the offset after the last of them,
    and the sequence expected there.
    """
    found: list[tuple[int, int, int, int, int, int]] = []
    append, unpack, residue = found.append, _HEADS[framing.version].unpack_from, RESIDUE
    shortest, seed = framing.prefix_size, framing.seed
    limit = len(view)
    last = limit - HEAD_SIZE
    while start <= last:
        length, kind, sequence, marker, synced, segment, ext = unpack(view, start)
        end = start + FRAME + length
        if (
            sequence != expected
            or marker != MARKER
            or end > limit
            or length < shortest
            or crc32(view[start + 4 : end], seed) != residue
        ):
            break
        if kind != BUNDLE:
            if kind not in OWN_KINDS:
                break
            segment = _last_segment(kind, segment)
        elif ext and unknown_tag(view[start + 4 : end - 4], framing) is not None:
            break
        append((start, end, kind, sequence, synced, segment))
        start = end
        expected += 1
    return found, start, expected


def scan_foreign(view: memoryview, start: int) -> tuple[list[Found], int]:
    """The sound bundles of a log of the Rust crate, with any sequence."""
    found: list[Found] = []
    while isinstance(entry := read_one(view, start, FOREIGN_FRAMING), Found):
        if entry.kind != FOREIGN_BUNDLE:
            break
        found.append(entry)
        start = entry.end
    return found, start


def read_one(view: memoryview, start: int, framing: Framing) -> Found | Stop:
    """What is at an offset.  ``MORE`` if ``view`` ends too early to tell.

    The caller knows whether the file ends there too, and so what ``MORE`` means.
    """
    if len(view) - start < 4:
        return Stop.MORE
    (length,) = _LENGTH.unpack_from(view, start)
    if length == 0:
        return _zeros(bytes(view[start : start + len(TERMINATOR)]))
    if not (1 if framing.foreign else FOREIGN_PREFIX_SIZE) <= length <= MAX_BODY:
        return Stop.BAD
    end = start + FRAME + length
    if end > len(view):
        return Stop.MORE
    if crc32(view[start + 4 : end], framing.seed) != RESIDUE:
        return Stop.BAD
    return _describe(bytes(view[start : start + HEAD_SIZE]), start, end, framing)


def _zeros(piece: bytes) -> Stop:
    if piece.strip(b"\0"):
        return Stop.BAD
    return Stop.END if len(piece) == len(TERMINATOR) else Stop.MORE


def _describe(head: bytes, start: int, end: int, framing: Framing) -> Found:
    body = end - start - FRAME
    padded = head.ljust(HEAD_SIZE, b"\0")
    _, kind, sequence, marker, synced, segment, _ = _HEADS[framing.version].unpack(padded)
    if body < FOREIGN_PREFIX_SIZE:
        return Found(start, end, kind, 0, 0, -1)
    if framing.foreign or body < framing.prefix_size or marker != MARKER:
        return Found(start, end, kind, sequence, 0, -1)
    return Found(start, end, kind, sequence, synced, _last_segment(kind, segment))


def _last_segment(kind: int, number: int) -> int:
    """The segment an entry is about: a commit names the one behind its last."""
    if kind == BUNDLE:
        return number
    return number - 1 if kind == COMMIT else -1


def candidates(data: bytes, above: int) -> Iterator[tuple[int, int, int, int]]:
    """Places in ``data`` that may begin one of our entries with a sequence over ``above``.

    As ``(offset, entry size, sequence, synced_before)``; nothing is checked but what can
    be seen at a glance.  ``offset`` is negative for an entry that began before ``data``.
    """
    at = data.find(MARKER)
    while at >= 0:
        start = at - MARKER_OFFSET
        if start >= 0 and start + MARKER_OFFSET + 12 <= len(data):
            length, _, sequence = _FOREIGN_HEAD.unpack_from(data, start)
            (synced,) = _SEQUENCE.unpack_from(data, at + 4)
            if V1_PREFIX_SIZE <= length <= MAX_BODY and above < sequence and synced <= sequence:
                yield start, FRAME + length, sequence, synced
        at = data.find(MARKER, at + 1)


def foreign_candidates(data: bytes, sequence: int) -> Iterator[tuple[int, int]]:
    """Places that may begin an entry of the Rust crate with this very sequence."""
    wanted = _SEQUENCE.pack(sequence)
    at = data.find(wanted)
    while at >= 0:
        start = at - 13
        if start >= 0:
            (length,) = _LENGTH.unpack_from(data, start)
            if FOREIGN_PREFIX_SIZE <= length <= MAX_BODY:
                yield start, FRAME + length
        at = data.find(wanted, at + 1)
