"""The file that knows which segment numbers are used up."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import QuiverError, UnsupportedVersion
from quiver.format.crc import crc32
from quiver.format.floor import Floor, decode_floor, encode_floor, gone_below

GOLDEN = Path(__file__).parents[2] / "golden" / "wal" / "floor.bin"
FLOOR = Floor(41, 39, ((0, 7), (9, 30)), has_log=True, has_state=True, log_first=1234)


def test_golden() -> None:
    """The bytes are those written once and for all."""
    assert encode_floor(FLOOR) == GOLDEN.read_bytes()
    assert decode_floor(GOLDEN.read_bytes()) == FLOOR


@given(st.integers(0, 60), st.integers(0, 10), st.frozensets(st.integers(0, 60)), st.booleans())
def test_round_trip(floor: int, more: int, live: frozenset[int], flag: bool) -> None:
    """Any floor comes back as it was; what is neither gone nor live is missing."""
    gone = gone_below(floor, live)
    value = Floor(floor + more, floor, gone, has_log=flag, has_state=not flag, log_first=more)
    assert decode_floor(encode_floor(value)) == value
    below = {seq for seq in live if seq < floor}
    assert {seq for seq in range(floor) if not value.is_gone(seq)} == below
    assert value.missing(live) == []
    assert value.missing(()) == sorted(below)


def test_every_change_is_noticed() -> None:
    """Flipped bytes and any other length are damage: a guessed floor would reuse numbers."""
    good = encode_floor(FLOOR)
    bad = [good[:cut] for cut in range(len(good))] + [good + b"\0"]
    for at in range(len(good)):
        bad += [good[:at] + bytes([good[at] ^ flip]) + good[at + 1 :] for flip in (1, 128, 255)]
    for data in bad:
        with pytest.raises(QuiverError):
            decode_floor(data)


def test_a_newer_version_says_so() -> None:
    """Written by a later Quiver: refused as such, not as damage."""
    later = bytearray(encode_floor(FLOOR)[:-4])
    later[8] = 2
    with pytest.raises(UnsupportedVersion):
        decode_floor(bytes(later) + crc32(later).to_bytes(4, "little"))


@pytest.mark.parametrize(("next_segment", "replay_floor"), [(3, 4), (-1, -1), (1 << 64, 0)])
def test_impossible_floors(next_segment: int, replay_floor: int) -> None:
    """The replay floor never passes the next number, and both fit their fields."""
    with pytest.raises(ValueError, match="floor"):
        Floor(next_segment, replay_floor)
