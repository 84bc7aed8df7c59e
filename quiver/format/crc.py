"""The two checksums the formats use, behind one name each.

The log, the cursor and the segments use CRC-32/IEEE (what ``zlib.crc32`` computes); the
progress files are written with CRC-32C.  The IEEE one comes from ISA-L: it runs at memory
speed and gives up the interpreter lock for large inputs, so that a checksum never is the
bottleneck of a put.

``crc32_combine(a, b, len_b)`` gives the checksum of two pieces laid end to end from the
checksums of the pieces.  That is what lets a payload be summed once, outside every lock,
and then be used in the log entry and in the segment that holds it.
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
