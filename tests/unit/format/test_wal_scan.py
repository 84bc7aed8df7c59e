"""Finding entries in a piece of a log."""

from __future__ import annotations

import struct
import zlib

from quiver.format.wal_entry import MARKER, WATERMARK, encode_control, seal_bundle
from quiver.format.wal_scan import (
    TERMINATOR,
    Found,
    Stop,
    candidates,
    foreign_candidates,
    read_one,
    scan_foreign,
    scan_own,
)
from quiver.ids import BundleRef
from tests.support.wal import body


def bundle(sequence: int, size: int = 10) -> bytes:
    pieces = seal_bundle(body(bytes(size)), sequence, sequence, BundleRef(4, 0), 0)
    return b"".join(bytes(piece) for piece in pieces)


def framed(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data + struct.pack("<I", zlib.crc32(data))


def test_entries_in_turn() -> None:
    """Entries with the next sequences are found with what they say, up to the zeros."""
    mark = encode_control(WATERMARK, b"", sequence=6, synced_before=5, ts=0)
    data = bundle(5) + mark + bundle(7)
    found, stop, expected = scan_own(memoryview(data + TERMINATOR), 0, 5)
    assert [Found(*entry)[2:] for entry in found] == [(64, 5, 5, 4), (66, 6, 5, -1), (64, 7, 7, 4)]
    assert (stop, expected) == (len(data), 8)


def test_the_loop_stops_where_the_sequence_does() -> None:
    """An old lap behind the end is not taken for new."""
    data = bundle(5) + bundle(3)
    found, stop, _ = scan_own(memoryview(data + TERMINATOR), 0, 5)
    assert len(found) == 1
    assert isinstance(read_one(memoryview(data), stop, foreign=False), Found)


def test_any_flip_stops_the_loop() -> None:
    """Wherever a byte of an entry is changed, the entry is not taken."""
    good = bundle(5)
    for at in range(len(good)):
        bad = good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :] + TERMINATOR
        assert scan_own(memoryview(bad), 0, 5)[0] == []
        assert not isinstance(read_one(memoryview(bad), 0, foreign=False), Found)


def test_what_is_at_a_place() -> None:
    """Zeros end the log, a short piece asks for more, lengths out of bounds are bad."""
    good = bundle(5)
    assert read_one(memoryview(TERMINATOR), 0, foreign=False) is Stop.END
    for cut in range(len(good)):
        assert read_one(memoryview(good[:cut]), 0, foreign=False) is Stop.MORE
    assert read_one(memoryview(TERMINATOR[:63]), 0, foreign=False) is Stop.MORE
    assert read_one(memoryview(bytes(8) + b"x" * 80), 0, foreign=False) is Stop.BAD
    for length in (1, 24, 2**28 + 1, 2**32 - 1):
        view = memoryview(struct.pack("<I", length) + bytes(100))
        assert read_one(view, 0, foreign=False) is Stop.BAD


def test_foreign_entries_of_any_kind() -> None:
    """The Rust crate's logs: type 0, and unknown types however short, skipped by length."""
    data = framed(struct.pack("<BqQQ", 0, 1, 12, 0)) + framed(b"\x01") + framed(b"\xfftail")
    found, stop = scan_foreign(memoryview(data), 0)
    assert [(entry.kind, entry.sequence) for entry in found] == [(0, 12), (1, 0), (255, 0)]
    assert stop == len(data)


def test_candidates_are_found_and_filtered() -> None:
    """Markers lead to entries; older sequences and nonsense are not offered."""
    data = b"junk" + bundle(9) + MARKER + b"junk" + bundle(3)
    assert [(at, sequence) for at, _, sequence, _ in candidates(data, 5)] == [(4, 9)]
    theirs = b"xy" + framed(struct.pack("<BqQQ", 0, 1, 12, 0))
    assert list(foreign_candidates(theirs, 12)) == [(2, len(theirs) - 2)]
    assert list(foreign_candidates(theirs, 11)) == []
