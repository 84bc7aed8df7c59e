"""Finding entries in a piece of a log."""

from __future__ import annotations

import struct
import zlib

from quiver.format.wal.entry import (
    FOREIGN_FRAMING,
    MARKER,
    V1_FRAMING,
    WATERMARK,
    Framing,
    encode_control,
    seal_bundle,
)
from quiver.format.wal.scan import (
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

FRAMING = Framing(2, 0xDEADBEEF)


def bundle(sequence: int, size: int = 10) -> bytes:
    pieces = seal_bundle(
        body(bytes(size)), sequence, sequence, BundleRef(4, 0), 0, store_ts=0, seed=FRAMING.seed
    )
    return b"".join(bytes(piece) for piece in pieces)


def control(kind: int, sequence: int) -> bytes:
    return encode_control(
        kind, b"", sequence=sequence, synced_before=5, ts=0, store_ts=0, seed=FRAMING.seed
    )


def framed(data: bytes) -> bytes:
    return struct.pack("<I", len(data)) + data + struct.pack("<I", zlib.crc32(data))


def test_entries_in_turn() -> None:
    """Entries with the next sequences are found with what they say, up to the zeros."""
    mark = control(WATERMARK, 6)
    data = bundle(5) + mark + bundle(7)
    found, stop, expected = scan_own(memoryview(data + TERMINATOR), 0, 5, FRAMING)
    assert [Found(*entry)[2:] for entry in found] == [(64, 5, 5, 4), (66, 6, 5, -1), (64, 7, 7, 4)]
    assert (stop, expected) == (len(data), 8)


def test_the_loop_stops_where_the_sequence_does() -> None:
    """An older sequence is not taken for the next one."""
    data = bundle(5) + bundle(3)
    found, stop, _ = scan_own(memoryview(data + TERMINATOR), 0, 5, FRAMING)
    assert len(found) == 1
    assert isinstance(read_one(memoryview(data), stop, FRAMING), Found)


def test_any_flip_stops_the_loop() -> None:
    """Wherever a byte of an entry is changed, the entry is not taken."""
    good = bundle(5)
    for at in range(len(good)):
        bad = good[:at] + bytes([good[at] ^ 0x10]) + good[at + 1 :] + TERMINATOR
        assert scan_own(memoryview(bad), 0, 5, FRAMING)[0] == []
        assert not isinstance(read_one(memoryview(bad), 0, FRAMING), Found)


def test_what_is_at_a_place() -> None:
    """Zeros end the log, a short piece asks for more, lengths out of bounds are bad."""
    good = bundle(5)
    assert read_one(memoryview(TERMINATOR), 0, FRAMING) is Stop.END
    for cut in range(len(good)):
        assert read_one(memoryview(good[:cut]), 0, FRAMING) is Stop.MORE
    assert read_one(memoryview(TERMINATOR[:63]), 0, FRAMING) is Stop.MORE
    assert read_one(memoryview(bytes(8) + b"x" * 80), 0, FRAMING) is Stop.BAD
    for length in (1, 24, 2**28 + 1, 2**32 - 1):
        view = memoryview(struct.pack("<I", length) + bytes(100))
        assert read_one(view, 0, FRAMING) is Stop.BAD


def test_another_salt_stops_the_loop() -> None:
    """What was written to another file, or with no salt at all, is no entry of this one."""
    view = memoryview(bundle(5) + TERMINATOR)
    for other in (Framing(2, 0xDEADBEEE), Framing(2, 0), V1_FRAMING):
        assert scan_own(view, 0, 5, other)[0] == []
        assert read_one(view, 0, other) is Stop.BAD


def test_the_loop_stops_at_what_it_does_not_know() -> None:
    """An unknown type, or an unknown tag below 128, is left to who can refuse it."""
    assert scan_own(memoryview(control(69, 5) + TERMINATOR), 0, 5, FRAMING)[0] == []
    for tag, known in ((6, 0), (127, 0), (128, 1), (255, 1)):
        pieces = seal_bundle(
            body(b""),
            5,
            5,
            BundleRef(4, 0),
            0,
            struct.pack("<BI", tag, 0),
            store_ts=0,
            seed=FRAMING.seed,
        )
        data = b"".join(bytes(piece) for piece in pieces) + TERMINATOR
        assert len(scan_own(memoryview(data), 0, 5, FRAMING)[0]) == known


def test_foreign_entries() -> None:
    """The Rust crate's logs: bundles of any sequence, up to an entry of another type."""
    data = framed(struct.pack("<BqQQ", 0, 1, 12, 0)) + framed(struct.pack("<BqQQ", 0, 1, 3, 0))
    for other in (b"\x01", b"\xfftail"):
        found, stop = scan_foreign(memoryview(data + framed(other)), 0)
        assert [(entry.kind, entry.sequence) for entry in found] == [(0, 12), (0, 3)]
        assert stop == len(data)
        one = read_one(memoryview(framed(other)), 0, FOREIGN_FRAMING)
        assert isinstance(one, Found)
        assert one.kind == other[0]


def test_candidates_are_found_and_filtered() -> None:
    """Markers lead to entries; older sequences and nonsense are not offered."""
    data = b"junk" + bundle(9) + MARKER + b"junk" + bundle(3)
    assert [(at, sequence) for at, _, sequence, _ in candidates(data, 5)] == [(4, 9)]
    theirs = b"xy" + framed(struct.pack("<BqQQ", 0, 1, 12, 0))
    assert list(foreign_candidates(theirs, 12)) == [(2, len(theirs) - 2)]
    assert list(foreign_candidates(theirs, 11)) == []
