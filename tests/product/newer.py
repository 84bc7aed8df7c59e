"""Files as a later version of Quiver may write them: sound, and beyond what this one knows."""

from __future__ import annotations

import struct
from zlib import crc32


def newer(path: str, data: bytes) -> bytes | None:
    """The same file with a higher version and good checksums; ``None`` where it has none."""
    if path.startswith("wal/quiver.wal") and data[:10] == b"QUIVER\0WAL":
        # A spare holds nothing: it is to be written over.
        return None if path.endswith(".spare") else _log(data)
    if path.startswith("segments/") and path.endswith(".qseg"):
        return _segment(data)
    if path == "quiver.state" or path.endswith("quiver.segment.seq"):
        return _small(data)
    return None


def _log(data: bytes) -> bytes:
    head = bytearray(data[:60])
    head[10:12] = struct.pack("<H", 77)
    return bytes(head) + struct.pack("<I", crc32(head)) + data[64:]


def _segment(data: bytes) -> bytes:
    (size,) = struct.unpack("<I", data[-16:-12])
    body = bytearray(data[:-4])
    start = len(data) - 16 - size
    body[start : start + 2] = struct.pack("<H", 77)
    return bytes(body) + struct.pack("<I", crc32(body))


def _small(data: bytes) -> bytes:
    body = bytearray(data[:-4])
    body[8:10] = struct.pack("<H", 77)
    return bytes(body) + struct.pack("<I", crc32(body))
