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

from typing import TypeAlias

import crc32c as _crc32c
import pyarrow as pa
from isal import isal_zlib

Bytes: TypeAlias = bytes | bytearray | memoryview | pa.Buffer

crc32_combine = isal_zlib.crc32_combine


def crc32(data: Bytes, value: int = 0) -> int:
    """CRC-32/IEEE of ``data``, going on from ``value``."""
    return isal_zlib.crc32(data, value)


def crc32c(data: Bytes, value: int = 0) -> int:
    """CRC-32C (Castagnoli) of ``data``, going on from ``value``."""
    return _crc32c.crc32c(data, value)
