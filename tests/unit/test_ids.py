"""Names and refs: checked where they come in, ordered as the bundles came."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.errors import InvalidName
from quiver.ids import BundleRef, slot_name, stream_name, subscriber_id

CHECKS: list[Callable[[object], str]] = [subscriber_id, stream_name, slot_name]
GOOD = ["a", "A", "0", "_", "-", "exporter-otlp", "backup_s3", "x" * 64, "console", "com", "com10"]
BAD: list[object] = [
    "",
    "x" * 65,
    "a b",
    "a.b",
    "a/b",
    "../a",
    "a\\b",
    "a\n",
    "\0",
    "ä",
    "\uff11",  # a full-width digit: a digit to Unicode, not to us
    "é",
    None,
    7,
    b"a",
]
RESERVED = ["con", "CON", "Nul", "prn", "aux", "com1", "LPT9"]


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", GOOD)
def test_good_names_come_back_unchanged(check: Callable[[object], str], name: str) -> None:
    """Scenario: a name within the rules. Guarantee: accepted as it is."""
    assert check(name) == name


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", BAD)
def test_bad_names_are_refused(check: Callable[[object], str], name: object) -> None:
    """Scenario: a name that could leave its directory or collide. Guarantee: refused, with the
    rule."""
    with pytest.raises(InvalidName, match="1 to 64"):
        check(name)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("name", RESERVED)
def test_device_names_are_refused(check: Callable[[object], str], name: str) -> None:
    """Scenario: the store is copied to Windows. Guarantee: no file there is a device."""
    with pytest.raises(InvalidName, match="reserved"):
        check(name)


def test_a_long_bad_name_is_shown_cut_off() -> None:
    """Scenario: a megabyte is sent as a name. Guarantee: the error text stays short."""
    with pytest.raises(InvalidName) as caught:
        subscriber_id("x/" * 500_000)
    assert len(str(caught.value)) < 300


@given(st.text())
def test_whatever_is_accepted_is_a_plain_file_name(name: str) -> None:
    """Scenario: any text at all. Guarantee: accepted means safe as part of a path."""
    try:
        accepted = subscriber_id(name)
    except InvalidName:
        return
    assert accepted.isascii()
    assert not set(accepted) & set("/\\.:\0 ")
    assert 1 <= len(accepted) <= 64


def test_refs_order_as_the_bundles_came() -> None:
    """Scenario: refs are compared. Guarantee: segment first, then position, as numbers."""
    refs = [BundleRef(10, 0), BundleRef(9, 65_535), BundleRef(9, 2), BundleRef(9, 10)]
    assert sorted(refs) == [(9, 2), (9, 10), (9, 65_535), (10, 0)]
    assert str(BundleRef(12, 3)) == "12.3"
