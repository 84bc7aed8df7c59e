"""Block checksums: a message is cut into blocks of 16 KiB, each with a CRC-32 of its own.

Blocks begin anew with every message, so a block never holds bytes of two: a flipped byte
costs the one message it is in, and a message (or a part of one) is read and verified by
itself.  The sums of record batches are in the manifest, those of everything else in a
stream in the directory.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import pyarrow as pa

from quiver.format.crc import Bytes, crc32

BLOCK_SIZE: Final = 16 << 10


class Chunk(NamedTuple):
    """Where a message is, its checksum as a whole, and the sums of its blocks.

    The first tells most cheaply that all of it is right; the others where it isn't, and
    whether a part of it is.
    """

    offset: int
    length: int
    crc: int
    sums: Sequence[int]


class Piece(NamedTuple):
    """Where bytes are, and the sums of their blocks."""

    offset: int
    length: int
    sums: Sequence[int]


class Mismatch(NamedTuple):
    """A block that is not as it was written; ``offset`` counts from where its message begins."""

    offset: int
    stored: int
    found: int


def block_count(length: int) -> int:
    """How many blocks a message of this length has."""
    return -(-length // BLOCK_SIZE)


def block_sums(data: bytes | pa.Buffer) -> list[int]:
    """The sums of a message's blocks."""
    if len(data) <= BLOCK_SIZE:
        return [crc32(data)]
    view = memoryview(data).cast("B")
    return [crc32(view[at : at + BLOCK_SIZE]) for at in range(0, len(view), BLOCK_SIZE)]


def find_mismatch(data: Bytes, sums: Sequence[int]) -> Mismatch | None:
    """The first block of ``data`` that doesn't have its sum; ``data`` starts with a block."""
    if len(sums) == 1:
        found = crc32(data)
        return None if found == sums[0] else Mismatch(0, sums[0], found)
    view = memoryview(data).cast("B")
    for number, stored in enumerate(sums):
        at = number * BLOCK_SIZE
        found = crc32(view[at : at + BLOCK_SIZE])
        if found != stored:
            return Mismatch(at, stored, found)
    return None


def read_pieces(lengths: Sequence[int], sums: Sequence[int]) -> list[Piece]:
    """Messages laid end to end, from offset 0 on.

    ``ValueError`` if there are not as many sums as blocks.
    """
    found, at, used = [], 0, 0
    for length in lengths:
        count = block_count(length)
        found.append(Piece(at, length, list(sums[used : used + count])))
        at += length
        used += count
    if used != len(sums):
        raise ValueError(f"{len(sums)} checksums for {used} blocks")
    return found
