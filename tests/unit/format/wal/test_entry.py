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

from quiver.errors import InvalidBundle, LimitExceeded, UnsupportedVersion, WalCorrupt
from quiver.format.arrow.ipc import encode_batch
from quiver.format.record import EncodedSlot, ProducerStamp
from quiver.format.wal.entry import (
    BUNDLE,
    MARKER,
    SEAL,
    SLOT_NAME,
    V1_FRAMING,
    WATERMARK,
    BundleExtras,
    Framing,
    PreparedBody,
    control_size,
    decode_bundle,
    decode_extras,
    decode_slot_name,
    decode_slot_names,
    encode_control,
    encode_slot_name,
    encode_slot_names,
    prepare_bundle,
    seal_bundle,
    unknown_tag,
)
from quiver.format.wal.scan import Found, read_one
from quiver.ids import BundleRef
from tests.support.wal import body

GOLDEN = Path(__file__).parents[3] / "golden" / "wal"
OLD_EXTRAS = BundleExtras("job/1", b"h" * 32, {"b": "ü", "a": "1"}, (-5, 7))
EXTRAS = OLD_EXTRAS._replace(producer=ProducerStamp("löader-3", 41, 2))
FRAMING = Framing(2, 0xC0FFEE)


def slot(number: int, rows: int = 3, fingerprint: bytes = b"f" * 32) -> EncodedSlot:
    batch = pa.record_batch({"x": pa.array(range(rows), pa.int64())})
    return EncodedSlot(number, fingerprint, encode_batch(batch))


def whole(pieces: list[Any]) -> bytes:
    return b"".join(bytes(piece) for piece in pieces)


def unframed(entry: bytes) -> memoryview:
    assert entry[:4] == struct.pack("<I", len(entry) - 8)
    assert entry[-4:] == struct.pack("<I", zlib.crc32(entry[4:-4], FRAMING.seed))
    return memoryview(entry)[4:-4]


def sealed(
    prepared: PreparedBody, sequence: int, synced: int, ref: BundleRef, ts: int, ext: bytes = b""
) -> list[Any]:
    seed = FRAMING.seed
    return list(seal_bundle(prepared, sequence, synced, ref, ts, ext, store_ts=ts + 7, seed=seed))


def named(slot: int, name: str) -> bytes:
    payload = encode_slot_name(slot, name)
    return encode_control(
        SLOT_NAME, payload, sequence=0, synced_before=0, ts=0, store_ts=0, seed=FRAMING.seed
    )


def test_golden_bundle() -> None:
    """A bundle with all extras is laid out byte for byte as the format page says."""
    entry = whole(sealed(body(b"payload"), 9, 4, BundleRef(2, 6), -1, EXTRAS.encode()))
    assert entry == (GOLDEN / "v2-bundle.bin").read_bytes()
    found = decode_bundle(unframed(entry), FRAMING)
    assert (found.kind, found.ingestion_ts_ns, found.sequence) == (BUNDLE, -1, 9)
    assert (found.synced_before, found.ref, found.extras) == (4, BundleRef(2, 6), EXTRAS)
    assert found.store_ts_ns == 6


def test_golden_bundle_of_version_1() -> None:
    """What 0.1.0 wrote means what it meant: no salt, no store time, no producer."""
    entry = (GOLDEN / "bundle.bin").read_bytes()
    assert zlib.crc32(entry[4:-4]) == int.from_bytes(entry[-4:], "little")
    found = decode_bundle(memoryview(entry)[4:-4], V1_FRAMING)
    assert (found.kind, found.ingestion_ts_ns, found.sequence) == (BUNDLE, -1, 9)
    assert (found.synced_before, found.ref, found.extras) == (4, BundleRef(2, 6), OLD_EXTRAS)
    assert bytes(found.slots[0].payload) == b"payload"
    assert found.store_ts_ns is None
    name = (GOLDEN / "slot_name.bin").read_bytes()
    assert decode_slot_name(memoryview(name)[4:-4], V1_FRAMING) == (5, "Lögs")


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
    entry = encode_control(
        kind, payload, sequence=8, synced_before=3, ts=5, store_ts=6, seed=FRAMING.seed
    )
    assert entry == (GOLDEN / f"v2-{name}").read_bytes()
    assert len(entry) == control_size(payload)
    prefix = struct.unpack_from("<BqQQ4sQq", unframed(entry))
    assert prefix == (kind, 5, 8, 0, MARKER, 3, 6)
    old = (GOLDEN / name).read_bytes()
    assert struct.unpack_from("<BqQQ4sQ", old, 4) == (kind, 5, 8, 0, MARKER, 3)
    assert isinstance(read_one(memoryview(old), 0, V1_FRAMING), Found)


def test_a_bundle_names_its_slots() -> None:
    """A bundle carries the names of its slots beside its other extras, and neither disturbs the
    other; one without names carries nothing."""
    ext = EXTRAS.encode() + encode_slot_names({7: "Lögs", 0: "Traces"})
    entry = unframed(whole(sealed(body(b"payload"), 9, 4, BundleRef(2, 6), -1, ext)))
    assert decode_slot_names(entry, FRAMING) == {0: "Traces", 7: "Lögs"}
    assert decode_bundle(entry, FRAMING).extras == EXTRAS
    assert unknown_tag(entry, FRAMING) is None
    assert encode_slot_names({}) == b""
    without = unframed(whole(sealed(body(b"payload"), 9, 4, BundleRef(2, 6), -1)))
    assert decode_slot_names(without, FRAMING) == {}


@pytest.mark.parametrize(
    "names",
    [b"\0", b"\0\0\5\0abc", b"\x40\0\1\0a", b"\0\0\1\0\xff"],
    ids=["short", "past the end", "no such slot", "not UTF-8"],
)
def test_slot_names_that_make_no_sense(names: bytes) -> None:
    """Names with a good checksum that no writer of ours wrote are damage, by its name."""
    ext = struct.pack("<BI", 128, len(names)) + names
    entry = unframed(whole(sealed(body(b"payload"), 9, 4, BundleRef(2, 6), -1, ext)))
    with pytest.raises(WalCorrupt):
        decode_slot_names(entry, FRAMING)


def test_what_goes_in_comes_out() -> None:
    """Slots of any size, large pieces not joined, come back whole and in ascending order."""
    slots = [slot(63, 5000), slot(0), slot(7, 0, b"g" * 32)]
    prepared = prepare_bundle(slots)
    pieces = sealed(prepared, 1, 0, BundleRef(0, 0), 2)
    entry = whole(pieces)
    assert len(entry) == prepared.entry_size()
    assert any(piece is slots[0].batch.batch for piece in pieces)
    found = decode_bundle(unframed(entry), FRAMING)
    assert [s.slot for s in found.slots] == [0, 7, 63]
    for block, sent in zip(found.slots, sorted(slots, key=lambda s: s.slot), strict=True):
        assert block.fingerprint == sent.fingerprint
        assert block.rows == sent.batch.rows
        assert bytes(block.payload) == whole(sent.batch.buffers())


def test_no_slots() -> None:
    """A bundle may be empty: the Rust crate has them, and so may we."""
    entry = whole(sealed(prepare_bundle([]), 1, 0, BundleRef(0, 0), 2))
    assert decode_bundle(unframed(entry), FRAMING).slots == ()


@given(
    st.builds(
        BundleExtras,
        key=st.none() | st.text(max_size=20),
        content_hash=st.none() | st.binary(min_size=32, max_size=32),
        attributes=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=4),
        event_time=st.none() | st.tuples(*[st.integers(-(2**63), 2**63 - 1)] * 2),
        producer=st.none()
        | st.builds(
            ProducerStamp,
            st.text(min_size=1, max_size=128),
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**64 - 1),
        ),
    )
)
def test_extras_round_trip(extras: BundleExtras) -> None:
    """Whatever a producer says about a bundle is kept as it was said."""
    assert decode_extras(memoryview(extras.encode())) == extras


def test_unknown_tags() -> None:
    """A tag from 128 on may be ignored; one below changes what the bundle means: refused."""
    later = struct.pack("<BI", 200, 3) + b"xyz" + EXTRAS.encode() + struct.pack("<BI", 128, 0)
    assert decode_extras(memoryview(later)) == EXTRAS
    for tag in (0, 6, 127):
        newer = later + struct.pack("<BI", tag, 0)
        with pytest.raises(UnsupportedVersion, match=f"tag {tag}"):
            decode_extras(memoryview(newer))
        for ext, found in ((later, None), (newer, tag)):
            entry = whole(sealed(body(b""), 9, 4, BundleRef(2, 6), -1, ext))
            assert unknown_tag(unframed(entry), FRAMING) == found


def test_producer_names() -> None:
    """1 to 128 characters: others are neither written nor read."""
    for name in ("", "x" * 129):
        with pytest.raises(LimitExceeded, match="producer"):
            BundleExtras(producer=ProducerStamp(name, 1, 1)).encode()
        bad = struct.pack("<BIQQ", 5, 16 + len(name), 1, 1) + name.encode()
        with pytest.raises(ValueError, match="producer"):
            decode_extras(memoryview(bad))
    with pytest.raises(struct.error):
        decode_extras(memoryview(struct.pack("<BIQ", 5, 8, 1)))


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
    assert decode_slot_name(unframed(named(5, "Lögs")), FRAMING) == (5, "Lögs")
    with pytest.raises(LimitExceeded):
        encode_slot_name(64, "x")
    with pytest.raises(LimitExceeded):
        encode_slot_name(0, "x" * 1025)


def test_a_sum_is_not_sense() -> None:
    """Bodies that pass their checksum and are malformed are refused, at any cut."""
    good = unframed(whole(sealed(body(b"pay"), 1, 0, BundleRef(0, 0), 2, EXTRAS.encode())))
    for cut in range(1, len(good)):
        with pytest.raises(WalCorrupt, match="no sense"):
            decode_bundle(good[:cut], FRAMING)
        assert unknown_tag(good[:cut], FRAMING) is None
    with pytest.raises(WalCorrupt):
        decode_bundle(memoryview(bytes(good) + b"x"), FRAMING)
    name = unframed(named(1, "ab"))
    for cut in range(45, len(name)):
        with pytest.raises(WalCorrupt):
            decode_slot_name(name[:cut], FRAMING)
