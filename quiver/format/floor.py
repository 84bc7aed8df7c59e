"""``quiver.segment.seq``: which segment numbers are used up, and which must be there.

Little-endian, replaced as a whole::

    0   magic         8   b"QUIVER\\0N"
    8   version       u16 1
    10  size          u16 44: up to the ranges
    12  flags         u16 bit 0: a log was begun, so one must be found;
                          bit 1: a checkpoint was written, so it must be found
    14  zero          u16
    16  next_segment  u64 no segment at or above it was ever begun
    24  replay_floor  u64 segments below it had a file once, or never will
    32  log_first     u64 no log file with entries from this sequence on was ever let go
    40  gone_count    u32
    44  gone          gone_count of (first u64, end u64): numbers below replay_floor without
                      a file, deleted or never used; ascending, apart, half open
    -4  crc32         u32 over all bytes before it

A store whose segments are all finished and deleted has nothing else left that knows these
numbers; giving one out again would make new data look acknowledged.  And since a number
below the floor is either gone or has a file, a file that vanished is noticed, with or
without a subscriber that misses it.  ``log_first`` does the same for the log's oldest file:
the sequence it should begin with, or an earlier one.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from quiver.errors import StateCorrupt, UnsupportedVersion
from quiver.format.crc import crc32

FLOOR_PATH: Final = "segments/quiver.segment.seq"
MAGIC: Final = b"QUIVER\0N"
VERSION: Final = 1
MAX_RANGES: Final = 1 << 20

_BODY = struct.Struct("<8sHHHHQQQI")
_RANGE = struct.Struct("<QQ")
_CRC = struct.Struct("<I")
assert _BODY.size == 44

_HAS_LOG: Final = 1
_HAS_STATE: Final = 2

Ranges = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Floor:
    """Its numbers only ever rise."""

    next_segment: int = 0
    replay_floor: int = 0
    gone: Ranges = ()
    has_log: bool = False
    has_state: bool = False
    log_first: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.replay_floor <= self.next_segment < 1 << 64:
            raise ValueError(f"not a floor: {self.replay_floor} of {self.next_segment}")

    def is_gone(self, seq: int) -> bool:
        """Whether a number below the floor has no file, and rightly so."""
        return any(first <= seq < end for first, end in self.gone)

    def missing(self, live: Iterable[int], gaps: Iterable[tuple[int, int]] = ()) -> list[int]:
        """Numbers whose file should be there and isn't among ``live``.

        ``gaps`` are numbers that were never given out, as the checkpoint lists them.
        """
        present = set(live)
        at = 0
        lost: list[int] = []
        for first, end in (*sorted((*self.gone, *gaps)), (self.replay_floor, self.replay_floor)):
            lost += [seq for seq in range(at, min(first, self.replay_floor)) if seq not in present]
            at = max(at, end)
        return lost


def gone_below(floor: int, live: Iterable[int]) -> Ranges:
    """The numbers below ``floor`` that aren't ``live``, as ranges."""
    ranges: list[tuple[int, int]] = []
    at = 0
    for seq in sorted(live):
        if seq >= floor:
            break
        if seq > at:
            ranges.append((at, seq))
        at = seq + 1
    if at < floor:
        ranges.append((at, floor))
    return tuple(ranges)


def encode_floor(floor: Floor) -> bytes:
    """The file's bytes."""
    flags = _HAS_LOG * floor.has_log | _HAS_STATE * floor.has_state
    body = _BODY.pack(
        MAGIC,
        VERSION,
        _BODY.size,
        flags,
        0,
        floor.next_segment,
        floor.replay_floor,
        floor.log_first,
        len(floor.gone),
    ) + b"".join(_RANGE.pack(*pair) for pair in floor.gone)
    return body + _CRC.pack(crc32(body))


def decode_floor(data: bytes) -> Floor:
    """The numbers, or an error: a wrong floor would use numbers twice, so none is guessed."""
    if len(data) < _BODY.size + _CRC.size or data[:8] != MAGIC:
        raise _damaged("it does not begin as one does")
    if crc32(memoryview(data)[: -_CRC.size]) != _CRC.unpack_from(data, len(data) - _CRC.size)[0]:
        raise _damaged("its checksum disagrees")
    _, version, size, flags, _, following, replay_floor, log_first, count = _BODY.unpack_from(data)
    if version != VERSION:
        raise UnsupportedVersion(
            f"the segment floor has format version {version}, this is version {VERSION}.",
            advice="Open the store with the Quiver that wrote it, or a newer one.",
            file=FLOOR_PATH,
        )
    if flags & ~(_HAS_LOG | _HAS_STATE):
        raise UnsupportedVersion(
            f"the segment floor has flags {flags:#06x}, and only a newer Quiver knows them all.",
            advice="Open the store with the Quiver that wrote it, or a newer one.",
            file=FLOOR_PATH,
        )
    if count > MAX_RANGES or size < _BODY.size or size + count * _RANGE.size + 4 != len(data):
        raise _damaged("its lengths disagree")
    gone = tuple(_RANGE.iter_unpack(data[size : size + count * _RANGE.size]))
    if replay_floor > following or not _ascending(gone, replay_floor):
        raise _damaged("it contradicts itself")
    return Floor(
        following,
        replay_floor,
        gone,
        has_log=bool(flags & _HAS_LOG),
        has_state=bool(flags & _HAS_STATE),
        log_first=log_first,
    )


def _ascending(ranges: Ranges, floor: int) -> bool:
    at = -1
    for first, end in ranges:
        if not at < first < end <= floor:
            return False
        at = end
    return True


def _damaged(what: str) -> StateCorrupt:
    return StateCorrupt(
        f"the segment floor {FLOOR_PATH} is damaged: {what}. Nothing was changed.",
        advice="See what is left: quiver verify …; go on without it: quiver repair …",
        file=FLOOR_PATH,
    )
