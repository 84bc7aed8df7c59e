"""A JSON file with a checksum: what was written is read, and nothing else is taken for it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from quiver.errors import QuiverError, StateCorrupt, UnsupportedVersion
from quiver.format.checked_json import decode_checked, encode_checked

BODY: dict[str, Any] = {"settings": {"wal": {"max_size": "1GiB"}}, "n": [1, 2.5, None, "ü"]}


def test_what_was_written_is_read() -> None:
    """Scenario: encode, decode. Guarantee: the same values."""
    assert decode_checked(encode_checked(BODY), "f") == BODY


def test_every_flipped_byte_is_noticed() -> None:
    """Scenario: each byte of the file is changed in each of its bits, version and digits
    included. Guarantee: refused, or read as the very same values (white space)."""
    data = encode_checked(BODY)
    for at in range(len(data)):
        for bit in range(8):
            damaged = bytearray(data)
            damaged[at] ^= 1 << bit
            try:
                found = decode_checked(bytes(damaged), "f", version_1=("settings", "n"))
            except (StateCorrupt, UnsupportedVersion):
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


@pytest.mark.parametrize("data", [b"", b"null", b"[]", b"{}", b'{"v":"2"}', b'{"v":true}', b"\xff"])
def test_anything_else_is_damage(data: bytes) -> None:
    """Scenario: bytes that nobody wrote. Guarantee: one of our errors, never another."""
    with pytest.raises(QuiverError):
        decode_checked(data, "f", version_1=("settings",))
