"""Sizes and durations as people write them: ``32MiB``, ``25ms``, ``1h30m``.

Settings, flags and messages all speak these units, so they are read and written in one
place.  Inside the program a size is an ``int`` of bytes and a duration a ``float`` of
seconds.
"""

from __future__ import annotations

import re
from fractions import Fraction
from typing import Final

KIB: Final = 1024
MIB: Final = 1024 * KIB
GIB: Final = 1024 * MIB
TIB: Final = 1024 * GIB

_SIZE_UNITS: Final = {
    "b": 1,
    "kb": 1000,
    "mb": 1000**2,
    "gb": 1000**3,
    "tb": 1000**4,
    "kib": KIB,
    "mib": MIB,
    "gib": GIB,
    "tib": TIB,
}
_DURATION_UNITS: Final = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),  # micro sign
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "min": Fraction(60),
    "h": Fraction(3600),
    "d": Fraction(86_400),
}
_NUMBER = r"[0-9][0-9_]*(?:\.[0-9]+)?"
_SIZE = re.compile(rf"\s*({_NUMBER})\s*([A-Za-z]*)\s*")
_DURATION_PART = re.compile(rf"\s*({_NUMBER})\s*([A-Za-zµ]+)\s*")

SIZE_HELP: Final = "a number of bytes, or a size such as 64KiB, 32MiB or 1.5GiB"
DURATION_HELP: Final = "a number of seconds, or a duration such as 25ms, 5s or 1h30m"

# Far above any disk or process life: a guard against digits without end, not a limit to meet.
MAX_TEXT: Final = 64


def parse_size(text: str) -> int:
    """Bytes named by ``text``; ``ValueError`` if it names none."""
    match = _SIZE.fullmatch(text) if len(text) <= MAX_TEXT else None
    factor = _SIZE_UNITS.get((match[2] or "b").lower()) if match else None
    if match is None or factor is None:
        raise ValueError(f"{text[:MAX_TEXT]!r} is not {SIZE_HELP}")
    size = Fraction(match[1].replace("_", "")) * factor
    if size.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(size)


def parse_duration(text: str) -> float:
    """Seconds named by ``text``; ``ValueError`` if it names none."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"{text[:MAX_TEXT]!r} is not {DURATION_HELP}")
    total, position = Fraction(0), 0
    while position < len(text):
        match = _DURATION_PART.match(text, position)
        unit = _DURATION_UNITS.get(match[2].lower()) if match else None
        if match is None or unit is None:
            break
        total += Fraction(match[1].replace("_", "")) * unit
        position = match.end()
    if position == 0 or position < len(text):
        raise ValueError(f"{text[:MAX_TEXT]!r} is not {DURATION_HELP}")
    return float(total)


def format_size(size: int) -> str:
    """``size`` for people; exact, so that it can be read back, when it is a round number."""
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(size) >= factor:
            whole, rest = divmod(size, factor)
            return f"{whole}{unit}" if rest == 0 else f"{size / factor:.1f}{unit}"
    return f"{size}B"


def format_duration(seconds: float) -> str:
    """``seconds`` for people, in the one or two units that matter."""
    if seconds < 0:
        return f"-{format_duration(-seconds)}"
    if seconds == 0:
        return "0s"
    if seconds < 60:
        for unit, factor in (("s", 1.0), ("ms", 1e3), ("us", 1e6)):
            if seconds * factor >= 1:
                return f"{seconds * factor:.3g}{unit}"
        return f"{seconds * 1e9:.3g}ns"
    whole = round(seconds)
    for big, small, unit, sub in (
        (86_400, 3600, "d", "h"),
        (3600, 60, "h", "m"),
        (60, 1, "m", "s"),
    ):
        if whole >= big:
            first, rest = divmod(whole, big)
            second = rest // small
            return f"{first}{unit}{second}{sub}" if second else f"{first}{unit}"
    raise AssertionError("at least 60 seconds are at least a minute")
