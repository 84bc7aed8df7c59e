"""The cursor file."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from quiver.errors import StateCorrupt
from quiver.format.crc import crc32
from quiver.format.wal.cursor import decode_cursor, encode_cursor

GOLDEN = Path(__file__).parents[3] / "golden" / "wal" / "cursor.bin"


def test_golden() -> None:
    """24 bytes, as the Rust crate writes them too."""
    assert encode_cursor(2**40 + 7) == GOLDEN.read_bytes()
    assert decode_cursor(GOLDEN.read_bytes()) == 2**40 + 7


def test_every_change_is_noticed() -> None:
    """Flipped bytes and any other length are damage, never another position."""
    good = encode_cursor(99)
    bad = [good[:cut] for cut in range(len(good))] + [good + b"\0"]
    for at in range(len(good)):
        bad += [good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :] for flip in (1, 128, 255)]
    for data in bad:
        with pytest.raises(StateCorrupt):
            decode_cursor(data)


def test_larger_ones_of_later_versions() -> None:
    """A later version may be longer, with its checksum at its end."""
    later = struct.pack("<8sHHQ", b"QUIVER\0T", 2, 32, 5) + b"more data"[:8]
    assert decode_cursor(later + struct.pack("<I", crc32(later))) == 5
    with pytest.raises(StateCorrupt):
        decode_cursor(later + struct.pack("<I", crc32(later) ^ 1))
