"""Small changes to bytes."""

from __future__ import annotations

from random import Random
from typing import Final, NamedTuple

LONGEST: Final = 64
NUMBERS: Final = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFF_FFFF, 0xFFFF_FFFF, 2**63 - 1, 2**64 - 1)
KINDS: Final = ("flip", "number", "insert", "delete", "copy", "cut")


class Mutation(NamedTuple):
    """One change: of what kind, where (as a fraction of 2**32), and with what."""

    kind: str
    at: int
    value: int


def apply(data: bytes, mutations: list[Mutation]) -> bytes:
    """The bytes after these changes."""
    for mutation in mutations:
        data = _apply(data, mutation)
    return data


def _apply(data: bytes, mutation: Mutation) -> bytes:
    kind, place, value = mutation
    at = place * (len(data) + 1) >> 32
    length = value % LONGEST + 1
    match kind:
        case "flip":
            flipped = bytes([byte ^ (1 << value % 8) for byte in data[at : at + 1]])
            return data[:at] + flipped + data[at + 1 :]
        case "number":
            size = (1, 2, 4, 8)[value % 4]
            number = NUMBERS[value // 4 % len(NUMBERS)] % (1 << size * 8)
            return data[:at] + number.to_bytes(size, "little") + data[at + size :]
        case "insert":
            return data[:at] + bytes([value % 256]) * length + data[at:]
        case "delete":
            return data[:at] + data[at + length :]
        case "copy":
            start = (value * 2_654_435_761) % (len(data) + 1)
            return data[:at] + data[start : start + length] + data[at + length :]
        case _:
            return data[:at]


def at_random(random: Random) -> list[Mutation]:
    """Some changes."""
    return [
        Mutation(random.choice(KINDS), random.getrandbits(32), random.getrandbits(32))
        for _ in range(random.randint(1, 6))
    ]
