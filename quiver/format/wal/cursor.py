"""``quiver.wal.cursor``: how far the log has been made into segments.

24 bytes, little-endian::

    0   magic         8   b"QUIVER\\0T"
    8   version       u16 1
    10  size          u16 24; larger ones keep their checksum in the last 4 bytes
    12  wal_position  u64 data bytes from the beginning of the log, heads excluded
    20  crc32         u32 over all bytes before it

It is a hint.  Our segments say which sequences they hold, so our own logs are read right
without it; in a directory of the Rust crate it is all there is to go by.
"""

from __future__ import annotations

import struct
from typing import Final

from quiver.errors import StateCorrupt
from quiver.format.crc import crc32

MAGIC: Final = b"QUIVER\0T"
VERSION: Final = 1
SIZE: Final = 24
MAX_SIZE: Final = 4096

_BODY = struct.Struct("<8sHHQ")
_CRC = struct.Struct("<I")
assert _BODY.size + _CRC.size == SIZE


def encode_cursor(position: int) -> bytes:
    """The file's bytes for a position."""
    body = _BODY.pack(MAGIC, VERSION, SIZE, position)
    return body + _CRC.pack(crc32(body))


def decode_cursor(data: bytes) -> int:
    """The position; versions to come keep these fields first, so they are read too."""
    if len(data) < SIZE:
        raise StateCorrupt(f"the cursor has {len(data)} bytes instead of {SIZE}.")
    magic, version, size, position = _BODY.unpack_from(data)
    if magic != MAGIC or version < VERSION or not SIZE <= size <= min(len(data), MAX_SIZE):
        raise StateCorrupt("the cursor does not begin as a cursor does.")
    if version == VERSION and (size != SIZE or len(data) != SIZE):
        raise StateCorrupt(f"the cursor has {len(data)} bytes instead of {SIZE}.")
    (expected,) = _CRC.unpack_from(data, size - _CRC.size)
    if crc32(data[: size - _CRC.size]) != expected:
        raise StateCorrupt("the cursor fails its checksum.")
    return int(position)
