"""A JSON file with a checksum: what was written is read, and nothing else is taken for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quiver.errors import QuiverError, StateCorrupt, UnsupportedVersion
from quiver.format.checked_json import (
    decode_checked,
    decode_lines,
    encode_checked,
    encode_line,
    encode_title,
)

BODY: dict[str, Any] = {"settings": {"wal": {"max_size": "1GiB"}}, "n": [1, 2.5, None, "ü"]}


def test_what_was_written_is_read() -> None:
    """Scenario: encode, decode. Guarantee: the same values."""
    assert decode_checked(encode_checked(BODY), "f") == BODY


def test_every_flipped_byte_is_noticed() -> None:
    """Scenario: each byte of the file is changed in each of its bits, version and digits
    included. Guarantee: refused as damaged, or read as the very same values (white space);
    never taken for a newer version."""
    data = encode_checked(BODY)
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            try:
                found = decode_checked(bytes(damaged), "f", version_1=("settings", "n"))
            except StateCorrupt:
                continue
            assert found == BODY


def test_a_changed_digit_in_the_version_does_not_switch_the_check_off() -> None:
    """Scenario: the 2 of the version becomes a 1 and a value changes. Guarantee: refused; a
    checked file can't pass for one from before there were checksums."""
    data = encode_checked(BODY).replace(b'"v":2', b'"v":1').replace(b"1GiB", b"9GiB")
    with pytest.raises(StateCorrupt, match="never had"):
        decode_checked(data, "f", version_1=("settings", "n"))


def test_version_1_is_read_where_it_may_be() -> None:
    """Scenario: a file of 0.1.0, without a checksum. Guarantee: read where such files exist,
    refused where they never did."""
    old = json.dumps({"v": 1, "settings": {}}).encode()
    assert decode_checked(old, "f", version_1=("settings",)) == {"settings": {}}
    with pytest.raises(StateCorrupt):
        decode_checked(old, "f")


def test_a_newer_version_is_refused_by_name() -> None:
    """Scenario: a later Quiver wrote version 3. Guarantee: that is said, not damage."""
    with pytest.raises(UnsupportedVersion, match="version 3"):
        decode_checked(b'{"v":3,"crc32":"00000000","body":{}}', "f")


LINES: list[list[Any]] = [["s", 0, 0, 1, "no"], ["t"], ["s", 0, 1, 2, ""]]


def lines_of(data: bytes) -> list[tuple[int, list[Any] | None]]:
    return list(decode_lines(data, "quiver failures", 1, "f"))


def test_lines_are_read_and_every_flipped_bit_is_noticed() -> None:
    """Scenario: each bit of a file of lines is flipped, its title and its last byte included.
    Guarantee: damage is named, never a newer version, and costs at most two lines."""
    data = encode_title("quiver failures", 1) + b"".join(map(encode_line, LINES))
    assert lines_of(data) == list(enumerate(LINES, 2))
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            found = lines_of(bytes(damaged))
            assert None in [values for _, values in found]
            assert sum(values in LINES for _, values in found) >= len(LINES) - 2


def test_a_last_line_cut_short_is_no_damage() -> None:
    """Scenario: a crash leaves any part of the last line. Guarantee: the lines before it."""
    whole = encode_title("quiver failures", 1) + encode_line(LINES[0])
    for cut in range(len(last := encode_line(LINES[2]))):
        assert lines_of(whole + last[:cut]) == [(2, LINES[0])]


def test_a_newer_title_is_told_from_a_damaged_one() -> None:
    """Scenario: a later Quiver wrote the title. Guarantee: refused by its version."""
    with pytest.raises(UnsupportedVersion, match="version 2"):
        lines_of(encode_title("quiver failures", 2))


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b'{"v":"2"}', b'{"v":true}', b"\xff"])
def test_anything_else_is_damage(data: bytes) -> None:
    """Scenario: bytes that nobody wrote. Guarantee: one of our errors, never another."""
    with pytest.raises(QuiverError):
        decode_checked(data, "f", version_1=("settings",))
