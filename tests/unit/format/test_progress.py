"""Progress files: golden bytes, round trips, and everything that isn't one."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import crc32c
import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import LimitExceeded, ProgressCorrupt, UnsupportedVersion
from quiver.format.progress import (
    FLAG_DROPPED,
    FLAG_NAMED,
    MAX_ENTRIES,
    Progress,
    SegmentProgress,
    decode_progress,
    encode_progress,
)
from quiver.ids import MAX_BUNDLES_PER_SEGMENT

GOLDEN = Path(__file__).parents[2] / "golden" / "progress"

VALUES = {
    "finished": Progress(121),
    "acked": Progress(
        7, {7: SegmentProgress(3, 0b101), 9: SegmentProgress(70, 1 << 69 | 1 << 63 | 1)}
    ),
    "dropped": Progress(
        12, {4: SegmentProgress(2, 0b11, 0b10), 12: SegmentProgress(65, 1 << 64, 0)}
    ),
}


def build(
    entries: bytes = b"",
    *,
    count: int = 0,
    magic: bytes = b"QUIVSUB\0",
    version: int = 1,
    header_size: int = 32,
    flags: int = 0,
    extra: bytes = b"",
) -> bytes:
    """A file made by hand, with a good checksum."""
    header = magic + struct.pack("<HHHQI6x", version, header_size, flags, 5, count)
    body = header + extra + entries
    return body + struct.pack("<I", crc32c.crc32c(body))


def entry(segment_seq: int, bundles: int, *words: int, drops: tuple[int, ...] = ()) -> bytes:
    bitmaps = struct.pack(f"<{len(words) + len(drops)}Q", *words, *drops)
    return struct.pack("<QIH", segment_seq, bundles, len(words)) + bitmaps


@pytest.mark.parametrize("name", VALUES)
def test_golden(name: str) -> None:
    """Values written once: the bytes must never change, and must read back as they were.
    Files of 0.1.0 (v1) had other bits for flags and mean the same."""
    data = (GOLDEN / f"v2-{name}.sub").read_bytes()
    assert encode_progress(VALUES[name]) == data
    assert decode_progress(data) == VALUES[name]
    assert decode_progress((GOLDEN / f"v1-{name}.sub").read_bytes()) == VALUES[name]


def test_golden_with_a_name() -> None:
    """The hash of a name is part of the format: it must never come out otherwise."""
    data = (GOLDEN / "v2-named.sub").read_bytes()
    assert encode_progress(VALUES["dropped"], "loader") == data
    for each in (data, (GOLDEN / "v1-named.sub").read_bytes()):
        found = decode_progress(each, subscriber="loader")
        assert found == VALUES["dropped"]
        assert found.named
        with pytest.raises(ProgressCorrupt, match="another subscriber"):
            decode_progress(each, subscriber="archive")


def test_the_file_of_another_is_damage() -> None:
    """Swapped or copied, a file would speak for the wrong subscriber: its name says no."""
    data = encode_progress(VALUES["acked"], "loader")
    with pytest.raises(ProgressCorrupt, match="another subscriber") as caught:
        decode_progress(data, file="quiver.sub.archive", subscriber="archive")
    assert caught.value.details["file"] == "quiver.sub.archive"
    assert decode_progress(data) == VALUES["acked"]


def test_files_without_a_name_are_anyones() -> None:
    """The Rust crate writes no name: its files are read for whoever they are called after."""
    data = encode_progress(VALUES["acked"])
    found = decode_progress(data, subscriber="archive")
    assert found == VALUES["acked"]
    assert not found.named


def test_layout_by_hand() -> None:
    """The layout spelled out with struct: the golden files are not just what we happen to do."""
    assert encode_progress(VALUES["acked"]) == _header(7, count=2, flags=0) + b"".join(
        [entry(7, 3, 0b101), entry(9, 70, 1 << 63 | 1, 1 << 5), _crc("acked")]
    )
    assert encode_progress(VALUES["dropped"]) == _header(12, count=2, flags=0x4000) + b"".join(
        [entry(4, 2, 0b11, drops=(0b10,)), entry(12, 65, 0, 1, drops=(0, 0)), _crc("dropped")]
    )


def _header(oldest: int, *, count: int, flags: int) -> bytes:
    return b"QUIVSUB\0" + struct.pack("<HHHQI6x", 1, 32, flags, oldest, count)


def _crc(name: str) -> bytes:
    return struct.pack("<I", crc32c.crc32c(encode_progress(VALUES[name])[:-4]))


RUST = {
    "rust-crashed": (0, {0: (4, 0x5), 1: (2, 0x1)}),
    "rust-dict": (1, {0: (1, 0x1), 1: (7, 0x24), 2: (52, 0x2492492492492)}),
    "rust-multislot-fast": (4, {**dict.fromkeys(range(4), (5, 0x1F)), 4: (5, 0x3)}),
    "rust-multislot-slow": (1, {1: (5, 0xB), 2: (5, 0x4), 3: (5, 0x2), 4: (5, 0x11)}),
    "rust-basic": (
        0,
        {n: (4, done) for n, done in enumerate([0x7, 0x5, 0xD, 0x5, 0x5, 0x7, 0x5, 0xD])},
    ),
}


@pytest.mark.parametrize("name", RUST)
def test_rust_files(name: str) -> None:
    """Files of the Rust crate carry the other checksum and list finished segments: both read."""
    oldest, entries = RUST[name]
    assert decode_progress((GOLDEN / f"{name}.sub").read_bytes()) == Progress(
        oldest, {segment_seq: SegmentProgress(*one) for segment_seq, one in entries.items()}
    )


@st.composite
def progress_values(draw: st.DrawFn) -> Progress:
    entries = {}
    for segment_seq in draw(st.sets(st.integers(0, 2**64 - 2), max_size=5)):
        count = draw(st.integers(0, 200))
        done = draw(st.integers(0, (1 << count) - 1))
        entries[segment_seq] = SegmentProgress(
            count, done, done & draw(st.integers(0, (1 << count) - 1))
        )
    return Progress(draw(st.integers(0, 2**64 - 1)), entries)


@given(progress_values())
def test_round_trip(value: Progress) -> None:
    """Whatever a state can say comes back as it was said."""
    assert decode_progress(encode_progress(value)) == value


def test_largest_segment() -> None:
    """A segment with the most bundles allowed fits; the Rust writer knew no such limit."""
    full = SegmentProgress(MAX_BUNDLES_PER_SEGMENT, (1 << MAX_BUNDLES_PER_SEGMENT) - 1)
    assert decode_progress(encode_progress(Progress(0, {0: full}))).entries[0] == full


def test_writer_keeps_the_limits() -> None:
    """What a reader would refuse is not written: no file that locks its owner out."""
    with pytest.raises(LimitExceeded):
        encode_progress(Progress(0, {0: SegmentProgress(MAX_BUNDLES_PER_SEGMENT + 1, 0)}))
    with pytest.raises(LimitExceeded):
        encode_progress(Progress(0, dict.fromkeys(range(MAX_ENTRIES + 1), SegmentProgress(0, 0))))
    with pytest.raises(ValueError, match="marked"):
        encode_progress(Progress(0, {0: SegmentProgress(1, 0b10)}))
    with pytest.raises(ValueError, match="not done"):
        encode_progress(Progress(0, {0: SegmentProgress(2, 0b01, 0b10)}))


@pytest.mark.parametrize(
    "name", ["v1-dropped", "v2-acked", "v2-named", "v2-finished", "rust-basic"]
)
def test_every_flip_is_seen(name: str) -> None:
    """Each byte of a file changed in each of eight bits, and zeroed, and inverted: damage."""
    data = (GOLDEN / f"{name}.sub").read_bytes()
    for at, old in enumerate(data):
        for new in {old ^ 1 << bit for bit in range(8)} | {0, old ^ 0xFF} - {old}:
            with pytest.raises(ProgressCorrupt):
                decode_progress(data[:at] + bytes([new]) + data[at + 1 :])


def test_every_cut_is_seen() -> None:
    """A file that ends early, at any byte, is damaged; so is one that goes on."""
    data = encode_progress(VALUES["dropped"])
    for size in range(len(data)):
        with pytest.raises(ProgressCorrupt):
            decode_progress(data[:size])
    with pytest.raises(ProgressCorrupt):
        decode_progress(data + b"\0")


def test_either_checksum() -> None:
    """CRC-32/IEEE is accepted as well: the Rust crate writes it."""
    body = encode_progress(VALUES["acked"])[:-4]
    assert decode_progress(body + struct.pack("<I", zlib.crc32(body))) == VALUES["acked"]


def test_larger_header_is_skipped() -> None:
    """A later writer may have a longer header: what it adds is passed over."""
    data = build(entry(9, 2, 0b10), count=1, header_size=40, extra=b"newfield")
    assert decode_progress(data) == Progress(5, {9: SegmentProgress(2, 0b10)})


@pytest.mark.parametrize("flags", [0x0004, 0x8004, 0x2000, 0x8001, FLAG_DROPPED | 0x0002])
def test_unknown_flags_refuse(flags: int) -> None:
    """A flag that this version doesn't know may change what a bitmap means: not damage, and
    not read either.  The old bits and the new ones never come together."""
    with pytest.raises(UnsupportedVersion, match=r"quiver\.sub\.x") as caught:
        decode_progress(build(flags=flags), file="quiver.sub.x")
    assert caught.value.details == {"file": "quiver.sub.x", "flags": flags}


@pytest.mark.parametrize("flags", [0x0001, 0x0002, 0x0003, FLAG_DROPPED, FLAG_NAMED])
def test_our_flags_count_under_our_checksum_only(flags: int) -> None:
    """Under the Rust crate's checksum any flag is the crate's own, and none is known: taken
    for ours, its bits would make bundles done that are not, or the other way round."""
    body = build(flags=flags, header_size=40, extra=bytes(8))[:-4]
    with pytest.raises(UnsupportedVersion, match="flags"):
        decode_progress(body + struct.pack("<I", zlib.crc32(body)))


def test_other_version_is_not_damage() -> None:
    """A sound file of another version is refused as that: no policy may overwrite it."""
    for version in (0, 2):
        with pytest.raises(UnsupportedVersion) as caught:
            decode_progress(build(version=version), file="quiver.sub.x")
        assert caught.value.details == {"file": "quiver.sub.x", "version": version}


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "too few"),
        (build(magic=b"QUIVSUB1"), "start like"),
        (build(header_size=31), "header of 31"),
        (build(header_size=33), "header of 33"),
        (build(flags=2), "can't hold a name"),
        (build(flags=FLAG_NAMED), "can't hold a name"),
        (build(count=1), "cut short"),
        (build(count=MAX_ENTRIES + 1), "segments are listed"),
        (build(entry(1, 1, 1), count=0), "follow the last"),
        (build(entry(1, 1, 1) + entry(1, 1, 1), count=2), "twice"),
        (build(entry(1, 1, 0b10), count=1), "bundles that can't be"),
        (build(entry(1, MAX_BUNDLES_PER_SEGMENT + 1, 0), count=1), "bundles that can't be"),
        (build(struct.pack("<QIH", 1, 1, 1025) + bytes(8 * 1025), count=1), "1,025 words"),
        (build(struct.pack("<QIH", 1, 1, 2) + bytes(8), count=1), "2 words"),
        (build(entry(1, 2, 0b01, drops=(0b10,)), count=1, flags=1), "bundles that can't be"),
    ],
)
def test_impossible_files(data: bytes, why: str) -> None:
    """Good checksum or not: what no writer could have written is damage, and says which."""
    with pytest.raises(ProgressCorrupt, match=why) as caught:
        decode_progress(data, file="quiver.sub.x")
    assert caught.value.details["file"] == "quiver.sub.x"
    assert isinstance(caught.value.details["offset"], int)


def test_first_unused_segment() -> None:
    """Numbers a file speaks of must not be given to new segments: they'd look finished."""
    assert Progress(0).first_unused_segment == 0
    assert Progress(12).first_unused_segment == 12
    assert Progress(12, {12: SegmentProgress(3, 1)}).first_unused_segment == 13
    assert Progress(0, {40: SegmentProgress(1, 1)}).first_unused_segment == 41
