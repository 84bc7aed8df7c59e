"""Entries of the log as bytes."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import InvalidBundle, LimitExceeded, WalCorrupt
from quiver.format.ipc import encode_batch
from quiver.format.record import EncodedSlot
from quiver.format.wal_entry import (
    BUNDLE,
    MARKER,
    SEAL,
    SLOT_NAME,
    WATERMARK,
    BundleExtras,
    control_size,
    decode_bundle,
    decode_extras,
    decode_slot_name,
    encode_control,
    encode_slot_name,
    prepare_bundle,
    seal_bundle,
)
from quiver.ids import BundleRef
from tests.support.wal import body

GOLDEN = Path(__file__).parents[2] / "golden" / "wal"
EXTRAS = BundleExtras("job/1", b"h" * 32, {"b": "ü", "a": "1"}, (-5, 7))


def slot(number: int, rows: int = 3, fingerprint: bytes = b"f" * 32) -> EncodedSlot:
    batch = pa.record_batch({"x": pa.array(range(rows), pa.int64())})
    return EncodedSlot(number, fingerprint, encode_batch(batch))


def whole(pieces: list[Any]) -> bytes:
    return b"".join(bytes(piece) for piece in pieces)


def unframed(entry: bytes) -> memoryview:
    assert entry[:4] == struct.pack("<I", len(entry) - 8)
    assert entry[-4:] == struct.pack("<I", zlib.crc32(entry[4:-4]))
    return memoryview(entry)[4:-4]


def named(slot: int, name: str) -> bytes:
    payload = encode_slot_name(slot, name)
    return encode_control(SLOT_NAME, payload, sequence=0, synced_before=0, ts=0)


def test_golden_bundle() -> None:
    """A bundle with all extras is laid out byte for byte as the format page says."""
    entry = whole(seal_bundle(body(b"payload"), 9, 4, BundleRef(2, 6), -1, EXTRAS.encode()))
    assert entry == (GOLDEN / "bundle.bin").read_bytes()
    found = decode_bundle(unframed(entry))
    assert (found.kind, found.ingestion_ts_ns, found.sequence) == (BUNDLE, -1, 9)
    assert (found.synced_before, found.ref, found.extras) == (4, BundleRef(2, 6), EXTRAS)


@pytest.mark.parametrize(
    ("name", "kind", "payload"),
    [
        ("slot_name.bin", SLOT_NAME, encode_slot_name(5, "Lögs")),
        ("watermark.bin", WATERMARK, b""),
        ("seal.bin", SEAL, b""),
    ],
)
def test_golden_controls(name: str, kind: int, payload: bytes) -> None:
    """Control entries keep their bytes too, and their declared size."""
    entry = encode_control(kind, payload, sequence=8, synced_before=3, ts=5)
    assert entry == (GOLDEN / name).read_bytes()
    assert len(entry) == control_size(payload)
    prefix = struct.unpack_from("<BqQQ4sQ", unframed(entry))
    assert prefix == (kind, 5, 8, 0, MARKER, 3)


def test_what_goes_in_comes_out() -> None:
    """Slots of any size, large pieces not joined, come back whole and in ascending order."""
    slots = [slot(63, 5000), slot(0), slot(7, 0, b"g" * 32)]
    prepared = prepare_bundle(slots)
    pieces = seal_bundle(prepared, 1, 0, BundleRef(0, 0), 2)
    entry = whole(pieces)
    assert len(entry) == prepared.entry_size()
    assert any(piece is slots[0].batch.batch for piece in pieces)
    found = decode_bundle(unframed(entry))
    assert [s.slot for s in found.slots] == [0, 7, 63]
    for block, sent in zip(found.slots, sorted(slots, key=lambda s: s.slot), strict=True):
        assert block.fingerprint == sent.fingerprint
        assert block.rows == sent.batch.rows
        assert bytes(block.payload) == whole(sent.batch.buffers())


def test_no_slots() -> None:
    """A bundle may be empty: the Rust crate has them, and so may we."""
    entry = whole(seal_bundle(prepare_bundle([]), 1, 0, BundleRef(0, 0), 2))
    assert decode_bundle(unframed(entry)).slots == ()


@given(
    st.builds(
        BundleExtras,
        key=st.none() | st.text(max_size=20),
        content_hash=st.none() | st.binary(min_size=32, max_size=32),
        attributes=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4),
        event_time=st.none() | st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2),
    )
)
def test_extras_round_trip(extras: BundleExtras) -> None:
    """Whatever a producer says about a bundle is kept as it was said."""
    assert decode_extras(memoryview(extras.encode())) == extras


def test_unknown_tags_are_skipped() -> None:
    """A later version may say more; what is known is still read."""
    later = struct.pack("<BI", 200, 3) + b"xyz" + EXTRAS.encode() + struct.pack("<BI", 9, 0)
    assert decode_extras(memoryview(later)) == EXTRAS


def test_slots_are_checked() -> None:
    """Too many, twice, out of range, a short fingerprint, too large: each has its error."""
    with pytest.raises(LimitExceeded, match="slots"):
        prepare_bundle([slot(0)] * 65)
    with pytest.raises(InvalidBundle, match="twice"):
        prepare_bundle([slot(3), slot(3)])
    with pytest.raises(LimitExceeded, match="slot id"):
        prepare_bundle([slot(64)])
    with pytest.raises(InvalidBundle, match="fingerprint"):
        prepare_bundle([slot(3, fingerprint=b"short")])
    huge = SimpleNamespace(payload_len=2**28, rows=1)
    with pytest.raises(LimitExceeded, match="bytes"):
        prepare_bundle([EncodedSlot(0, b"f" * 32, cast(Any, huge))])


def test_slot_names() -> None:
    """Names come back; too long a name or an impossible slot is refused."""
    assert decode_slot_name(unframed(named(5, "Lögs"))) == (5, "Lögs")
    with pytest.raises(LimitExceeded):
        encode_slot_name(64, "x")
    with pytest.raises(LimitExceeded):
        encode_slot_name(0, "x" * 1025)


def test_a_sum_is_not_sense() -> None:
    """Bodies that pass their checksum and are malformed are refused, at any cut."""
    good = unframed(whole(seal_bundle(body(b"pay"), 1, 0, BundleRef(0, 0), 2, EXTRAS.encode())))
    for cut in range(1, len(good)):
        with pytest.raises(WalCorrupt, match="no sense"):
            decode_bundle(good[:cut])
    with pytest.raises(WalCorrupt):
        decode_bundle(memoryview(bytes(good) + b"x"))
    name = unframed(named(1, "ab"))
    for cut in range(37, len(name)):
        with pytest.raises(WalCorrupt):
            decode_slot_name(name[:cut])
