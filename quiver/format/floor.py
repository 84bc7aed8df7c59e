"""``quiver.segment.seq``: the segment numbers that are used up.

32 bytes, little-endian::

    0   magic         8   b"QUIVER\\0N"
    8   version       u16 1
    10  size          u16 32
    12  next_segment  u64 no segment at or above it was ever begun
    20  replay_floor  u64 segments below it were sealed once: the log never rebuilds them
    28  crc32         u32 over the 28 bytes before it

A store whose segments are all finished and deleted has nothing else left that knows
these numbers; giving one out again would make new data look acknowledged.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

from quiver.errors import StateCorrupt, UnsupportedVersion
from quiver.format.crc import crc32

MAGIC: Final = b"QUIVER\0N"
VERSION: Final = 1
SIZE: Final = 32

_BODY = struct.Struct("<8sHHQQ")
_CRC = struct.Struct("<I")
assert _BODY.size + _CRC.size == SIZE


@dataclass(frozen=True, slots=True)
class Floor:
    """Both numbers only ever rise."""

    next_segment: int = 0
    replay_floor: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.replay_floor <= self.next_segment < 1 << 64:
            raise ValueError(f"not a floor: {self.replay_floor} of {self.next_segment}")


def encode_floor(floor: Floor) -> bytes:
    """The file's bytes."""
    body = _BODY.pack(MAGIC, VERSION, SIZE, floor.next_segment, floor.replay_floor)
    return body + _CRC.pack(crc32(body))


def decode_floor(data: bytes) -> Floor:
    """The numbers, or an error: a wrong floor would use numbers twice, so none is guessed."""
    if len(data) < _BODY.size:
        raise StateCorrupt(f"the segment floor has {len(data)} bytes instead of {SIZE}.")
    magic, version, size, next_segment, replay_floor = _BODY.unpack_from(data)
    if magic != MAGIC:
        raise StateCorrupt("the segment floor does not begin as one does.")
    if version != VERSION:
        raise UnsupportedVersion(
            f"the segment floor has format version {version}, this is version {VERSION}.",
            advice="Open the store with the Quiver that wrote it, or a newer one.",
        )
    if size != SIZE or len(data) != SIZE:
        raise StateCorrupt(f"the segment floor has {len(data)} bytes instead of {SIZE}.")
    if crc32(data[: _BODY.size]) != _CRC.unpack_from(data, _BODY.size)[0]:
        raise StateCorrupt("the segment floor fails its checksum.")
    if replay_floor > next_segment:
        raise StateCorrupt("the segment floor contradicts itself.")
    return Floor(next_segment, replay_floor)
