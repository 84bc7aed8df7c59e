"""The head of a log file."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from quiver.errors import LayoutMismatch, UnsupportedVersion, WalCorrupt
from quiver.format.wal.entry import V1_FRAMING, Framing
from quiver.format.wal.header import (
    FOREIGN_LAYOUT,
    HEADER_SIZE,
    check_layout,
    decode_header,
    encode_header,
    fits_head,
    layout_hash,
    salt_in,
    salt_of,
    seed_of,
)

GOLDEN = Path(__file__).parents[3] / "golden" / "wal"
SALT = 0x1F2E3D4C
FOREIGN = struct.pack("<10sHH16sQ", b"QUIVER\0WAL", 1, 38, FOREIGN_LAYOUT, 4711)


def header() -> bytes:
    return encode_header(
        layout_hash({"Logs": 0, "Spans": 7}),
        position_start=123_456,
        first_sequence=77,
        salt=SALT,
        created_ns=1_700_000_000_000_000_000,
    )


def test_golden() -> None:
    """The bytes are those written once and for all; every later version must read them."""
    golden = (GOLDEN / "v2-header.bin").read_bytes()
    assert header() == golden
    assert decode_header(golden).framing == Framing(2, zlib.crc32(struct.pack("<I", SALT)))
    old = (GOLDEN / "header.bin").read_bytes()
    assert decode_header(old).framing == V1_FRAMING
    for found in map(decode_header, (golden, old)):
        where = (found.position_start, found.first_sequence, found.size)
        assert where == (123_456, 77, HEADER_SIZE)
        assert not found.foreign


def test_every_flipped_byte_is_noticed() -> None:
    """A head is synced before its file gets its name, so any change to it is damage."""
    good = header()
    for at in range(len(good)):
        for flip in (0x01, 0x80, 0xFF):
            bad = good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :]
            with pytest.raises(WalCorrupt):
                decode_header(bad)


def test_one_of_ours_cannot_become_one_of_theirs() -> None:
    """A header_size of 38 on our layout is damage: the checksum must not be skipped."""
    bad = bytearray(header())
    bad[12:14] = (38).to_bytes(2, "little")
    with pytest.raises(WalCorrupt):
        decode_header(bytes(bad))


def test_head_of_the_rust_crate() -> None:
    """38 bytes, no sequence; a larger size is skipped, a smaller one refused."""
    found = decode_header(FOREIGN)
    assert found.foreign
    assert (found.position_start, found.first_sequence, found.size) == (4711, None, 38)
    assert decode_header(FOREIGN[:12] + b"\x50\0" + FOREIGN[14:]).size == 80
    with pytest.raises(WalCorrupt):
        decode_header(FOREIGN[:12] + b"\x25\0" + FOREIGN[14:])


def test_short_and_strange_heads() -> None:
    """Too short, wrong magic: damage. A newer version says so."""
    for bad in (b"", FOREIGN[:37], b"X" * 64, header()[:63]):
        with pytest.raises(WalCorrupt):
            decode_header(bad)
    with pytest.raises(UnsupportedVersion):
        decode_header(FOREIGN[:10] + b"\x02\0" + FOREIGN[12:])


def resealed(head: bytes, at: int, data: bytes) -> bytes:
    changed = head[:at] + data + head[at + len(data) : -4]
    return changed + struct.pack("<I", zlib.crc32(changed))


@pytest.mark.parametrize(
    ("at", "data", "named"),
    [(10, b"\x03\0", "version 3"), (10, b"\0\x01", "version 256"), (46, b"\x04\0", "0x0004")],
)
def test_a_newer_head_is_no_damage(at: int, data: bytes, named: str) -> None:
    """A sound head with a version or a flag from the future is refused by that name."""
    for old in ((GOLDEN / "header.bin").read_bytes(), header()):
        with pytest.raises(UnsupportedVersion, match=named):
            decode_header(resealed(old, at, data))


def test_every_salt_has_a_seed_of_its_own() -> None:
    """A seed gives its salt back; only one salt is as good as none."""
    assert all(salt_of(seed_of(salt)) == salt for salt in (0, 1, SALT, 2**31, 2**32 - 1))
    assert seed_of(salt_of(0)) == 0


def test_a_damaged_head_against_a_salt() -> None:
    """A head whose version or salt is damaged still tells whether a salt is the right one."""
    framing = Framing(2, seed_of(SALT))
    for at in (10, 48, 51):
        bad = header()[:at] + bytes([header()[at] ^ 0x55]) + header()[at + 1 :]
        assert fits_head(bad, framing)
        assert not fits_head(bad, Framing(2, seed_of(SALT + 1)))
        assert not fits_head(bad[:63], framing)
    assert salt_in(header()) == SALT
    assert salt_in(header()[:51]) is None


def test_layout_hash_names_the_slot_table() -> None:
    """Order of declaration doesn't matter, content does; no table is one marker."""
    assert layout_hash({"a": 0, "b": 1}) == layout_hash({"b": 1, "a": 0})
    different = {layout_hash(None), layout_hash({"a": 0}), layout_hash({"a": 1}), layout_hash({})}
    assert len(different) == 4
    assert FOREIGN_LAYOUT not in different


def test_layout_check() -> None:
    """Another table is refused with advice; the Rust crate's constant passes."""
    check_layout(decode_header(header()), layout_hash({"Logs": 0, "Spans": 7}))
    check_layout(decode_header(FOREIGN), layout_hash({"Logs": 0}))
    with pytest.raises(LayoutMismatch, match="drain"):
        check_layout(decode_header(header()), layout_hash(None))


def test_their_constant_is_never_written() -> None:
    """A log that carries it belongs to the Rust crate."""
    with pytest.raises(ValueError, match="layout"):
        encode_header(FOREIGN_LAYOUT, position_start=0, first_sequence=0, salt=1, created_ns=0)
