"""What an option's text may be: how it is read, and what it is called when it isn't."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

_SIZES: Final = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "k": 1 << 10,
    "m": 1 << 20,
    "g": 1 << 30,
    "kib": 1 << 10,
    "mib": 1 << 20,
    "gib": 1 << 30,
}
_TIMES: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_NUMBER: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)")


@dataclass(frozen=True, slots=True)
class OptionKind:
    """A set of allowed values; ``read`` raises ``ValueError`` for others."""

    name: str
    read: Callable[[str], Any]


def text() -> OptionKind:
    """Any text but none at all."""

    def read(given: str) -> str:
        if not given.strip():
            raise ValueError
        return given.strip()

    return OptionKind("text", read)


def flag() -> OptionKind:
    """Yes or no, as Spark writes it."""
    words = {"true": True, "false": False}

    def read(given: str) -> bool:
        if given.strip().lower() not in words:
            raise ValueError
        return words[given.strip().lower()]

    return OptionKind("true or false", read)


def whole(minimum: int, maximum: int) -> OptionKind:
    """A whole number within bounds."""

    def read(given: str) -> int:
        value = int(given.strip().replace("_", ""))
        if not minimum <= value <= maximum:
            raise ValueError
        return value

    return OptionKind(f"a whole number from {minimum:,} to {maximum:,}", read)


def choice(*words: str) -> OptionKind:
    """One of a few words, in any case."""
    found = {word.lower(): word for word in words}

    def read(given: str) -> str:
        if given.strip().lower() not in found:
            raise ValueError
        return found[given.strip().lower()]

    return OptionKind(" | ".join(words), read)


def words() -> OptionKind:
    """Names, separated by commas; none twice."""

    def read(given: str) -> tuple[str, ...]:
        names = tuple(word.strip() for word in given.split(","))
        if not all(names) or len(set(names)) != len(names):
            raise ValueError
        return names

    return OptionKind("names, separated by commas", read)


def size(minimum: int = 1) -> OptionKind:
    """Bytes, as people write them."""

    def read(given: str) -> int:
        value = int(_scaled(given, _SIZES))
        if value < minimum:
            raise ValueError
        return value

    return OptionKind(f"a size of at least {minimum:,} bytes, such as 64MiB", read)


def duration() -> OptionKind:
    """Seconds, as people write them: always with a unit."""
    return OptionKind(
        "a time with its unit, such as 500ms, 30s, 5m", lambda given: _scaled(given, _TIMES)
    )


def _scaled(given: str, units: Mapping[str, float]) -> float:
    found = _NUMBER.fullmatch(given.strip().lower())
    if found is None or found[2] not in units:
        raise ValueError
    return float(found[1]) * units[found[2]]
