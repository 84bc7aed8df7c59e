"""Sizes and durations as people write them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quiver.units import (
    GIB,
    KIB,
    MIB,
    format_duration,
    format_size,
    parse_duration,
    parse_size,
)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("1KiB", KIB),
        ("1kb", 1000),
        ("32MiB", 32 * MIB),
        ("32 mib", 32 * MIB),
        (" 1.5GiB ", 3 * GIB // 2),
        ("2TB", 2 * 10**12),
        ("1_000", 1000),
    ],
)
def test_sizes_are_read(text: str, size: int) -> None:
    """Scenario: sizes as written in files and flags. Guarantee: exact bytes; KB and KiB differ."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["", "MiB", "12 bananas", "-1", "1e3", "0.3KiB", "1 2", "1M", "9" * 100]
)
def test_what_is_no_size_is_refused(text: str) -> None:
    """Scenario: text that names no size, or half a byte. Guarantee: an error, not a guess."""
    with pytest.raises(ValueError, match="is not"):
        parse_size(text)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("25ms", 0.025),
        ("5s", 5.0),
        ("1.5 s", 1.5),
        ("2m", 120.0),
        ("2min", 120.0),
        ("1h30m", 5400.0),
        ("1d 12h", 129_600.0),
        ("250us", 0.00025),
        ("250µs", 0.00025),
        ("10ns", 1e-8),
    ],
)
def test_durations_are_read(text: str, seconds: float) -> None:
    """Scenario: durations as written in files and flags. Guarantee: the right seconds."""
    assert parse_duration(text) == pytest.approx(seconds, rel=1e-12)


@pytest.mark.parametrize("text", ["", "5", "ms", "5 parsecs", "5s later", "-1s", "1s" * 50])
def test_what_is_no_duration_is_refused(text: str) -> None:
    """Scenario: text that names no duration (a bare number has no unit). Guarantee: an error."""
    with pytest.raises(ValueError, match="is not"):
        parse_duration(text)


@given(st.integers(0, 2**10), st.sampled_from([1, KIB, MIB, GIB]))
def test_round_sizes_read_back_as_they_were_written(count: int, unit: int) -> None:
    """Scenario: a default is shown in the docs and pasted into a file. Guarantee: the same size."""
    size = count * unit
    shown = format_size(size)
    assert parse_size(shown) == size or "." in shown


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (2e-9, "2ns"),
        (0.00025, "250us"),
        (0.025, "25ms"),
        (5, "5s"),
        (59.94, "59.9s"),
        (60, "1m"),
        (90, "1m30s"),
        (7800, "2h10m"),
        (86_400 * 3, "3d"),
        (-5, "-5s"),
    ],
)
def test_durations_are_shown_in_the_units_that_matter(seconds: float, text: str) -> None:
    """Scenario: a lag in a message. Guarantee: one or two units, no digits nobody reads."""
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0B"), (1023, "1023B"), (KIB, "1KiB"), (1536, "1.5KiB"), (GIB, "1GiB")]
)
def test_sizes_are_shown_short(size: int, text: str) -> None:
    """Scenario: a size in a message. Guarantee: the largest unit that fits."""
    assert format_size(size) == text
