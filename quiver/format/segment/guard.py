"""The guard of a segment's tables: their checksums, and enough to mend one damaged place.

Directory and manifest say where everything is, so a flipped byte in them must not cost the
segment.  The guard lies in two gaps that readers of the format pass over::

    … streams · sums · seal · directory · manifest · parity · sums · seal · footer · trailer

*The tables* are directory, manifest and parity, laid end to end.

* *parity* (5 KiB): such that the XOR of all bytes of the tables with the same place within
  5 KiB is zero.  So damage is undone wherever its blocks differ in that place, as those of
  one stretch of up to 4 KiB (a sector of the disk) always do.
* *sums*: a CRC-32 of each 1 KiB of the tables.
* *seal*: the footer's numbers again, the checksums of directory, manifest and sums, and its own.

With the two copies of sums and seal, damage in one place (footer and trailer among them)
leaves another to go by.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from struct import Struct
from typing import Final

from quiver.format.crc import crc32

MAGIC: Final = b"QUIVER\0B"
TABLE_BLOCK: Final = 1 << 10
STRIPE: Final = 5 << 10
"""The length of the parity; a multiple of a block's."""

_SEAL = Struct("<8sIIQIIIIII")
_CRC = Struct("<I")
SEAL_SIZE: Final = _SEAL.size


@dataclass(frozen=True, slots=True)
class Seal:
    """What a footer says, and the checksums that the footer has no room for."""

    stream_count: int
    bundle_count: int
    directory_offset: int
    directory_length: int
    manifest_length: int
    directory_crc: int
    manifest_crc: int
    sums_crc: int

    def encode(self) -> bytes:
        body = _SEAL.pack(MAGIC, *astuple(self), 0)[: -_CRC.size]
        return body + _CRC.pack(crc32(body))

    @property
    def tables_length(self) -> int:
        return self.directory_length + self.manifest_length + STRIPE

    @property
    def sums_length(self) -> int:
        return _CRC.size * len(_blocks(self.tables_length))

    @property
    def front_offset(self) -> int:
        """Where the sums before the directory begin; their seal ends where that begins."""
        return self.directory_offset - SEAL_SIZE - self.sums_length

    @property
    def back_offset(self) -> int:
        """Where the sums behind the parity begin; the footer follows their seal."""
        return self.directory_offset + self.tables_length


def decode_seal(data: bytes) -> Seal | None:
    """The seal that these bytes are; ``None`` if they are anything else, or damaged."""
    if len(data) != SEAL_SIZE or not data.startswith(MAGIC):
        return None
    _, *fields, crc = _SEAL.unpack(data)
    return Seal(*fields) if crc == crc32(data[: -_CRC.size]) else None


def front_length(length: int) -> int:
    """Bytes of sums and seal before a directory; ``length`` is its own and the manifest's."""
    return _CRC.size * len(_blocks(length + STRIPE)) + SEAL_SIZE


def add_parity(data: bytes) -> bytes:
    """The tables, from directory and manifest."""
    folded = _fold(data)
    start = len(data) % STRIPE
    return data + folded[start:] + folded[:start]


def encode_sums(tables: bytes) -> bytes:
    """The sums of the tables' blocks."""
    view = memoryview(tables)
    return b"".join(_CRC.pack(crc32(view[at:end])) for at, end in _blocks(len(tables)))


def damaged_blocks(tables: bytes, sums: bytes) -> list[tuple[int, int]]:
    """Start and end of each block of the tables that doesn't have its sum."""
    stored = [crc for (crc,) in _CRC.iter_unpack(sums)]
    view = memoryview(tables)
    blocks = zip(_blocks(len(tables)), stored, strict=True)
    return [(at, end) for (at, end), crc in blocks if crc32(view[at:end]) != crc]


def mend(tables: bytes, damaged: Sequence[tuple[int, int]]) -> bytes | None:
    """The tables with their damaged blocks as they were; ``None`` if two lie over each other."""
    if len({at % STRIPE for at, _ in damaged}) != len(damaged):
        return None
    mended = bytearray(tables)
    for at, end in damaged:
        mended[at:end] = bytes(end - at)
    missing = _fold(bytes(mended))
    for at, end in damaged:
        place = at % STRIPE
        mended[at:end] = missing[place : place + end - at]
    return bytes(mended)


def _fold(data: bytes) -> bytes:
    """All stripes, laid over each other."""
    folded = 0
    for at in range(0, len(data), STRIPE):
        folded ^= int.from_bytes(data[at : at + STRIPE], "little")
    return folded.to_bytes(STRIPE, "little")


def _blocks(length: int) -> list[tuple[int, int]]:
    return [(at, min(at + TABLE_BLOCK, length)) for at in range(0, length, TABLE_BLOCK)]
