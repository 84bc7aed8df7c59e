"""The two checksums the formats use, behind one name each.

The log, the cursor and the segments use CRC-32/IEEE (what ``zlib.crc32`` computes); the
progress files are written with CRC-32C.  The IEEE one comes from ISA-L: it runs at memory
speed and gives up the interpreter lock for large inputs, so that a checksum never is the
bottleneck of a put.

``crc32_combine(a, b, len_b)`` gives the checksum of two pieces laid end to end from the
checksums of the pieces.  That is what lets a payload be summed once, outside every lock,
and then be used in the log entry and in the segment that holds it.

Going on by ``n`` bytes changes a checksum by a linear map (:func:`crc32_shift`), and that
map can be undone (:func:`crc32_before`).
"""

from __future__ import annotations

from typing import Final, Protocol, TypeAlias

import crc32c as _crc32c
import pyarrow as pa
from isal import isal_zlib

Bytes: TypeAlias = bytes | bytearray | memoryview | pa.Buffer


class Checksum(Protocol):
    """A checksum of ``data``, going on from ``value``."""

    def __call__(self, data: Bytes, value: int = 0, /) -> int: ...


# The functions themselves, not wrappers: reading a log calls them once per entry.
crc32: Final[Checksum] = isal_zlib.crc32
"""CRC-32/IEEE."""
crc32_combine: Final = isal_zlib.crc32_combine
crc32c: Final[Checksum] = _crc32c.crc32c
"""CRC-32C (Castagnoli)."""

_ORDER: Final = 2**32 - 1
"""Shifting by this many bytes changes nothing: the polynomial is primitive."""


def crc32_shift(value: int, length: int) -> int:
    """What a checksum contributes to that of the same bytes followed by ``length`` more."""
    shifted: int = crc32_combine(value, 0, length)
    return shifted


def crc32_before(whole: int, last: int, length: int) -> int:
    """The checksum of a beginning, from that of the whole and of its last ``length`` bytes."""
    return crc32_shift(whole ^ last, _ORDER - length)
