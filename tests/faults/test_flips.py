"""Every byte of every file of a small store flipped, every length cut."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.faults.damage import SAMPLES, Ending, Sample, judge

pytestmark = [pytest.mark.fault, pytest.mark.timeout(1200)]

FLIPS: Final = (0x01, 0xFF)
"""One bit, and all of them; both for small files, by turns for segments."""
SMALL: Final = 4096
STEP: Final = int(os.environ.get("QUIVER_FAULT_STEP", "7"))
"""Segments are large and all alike: `make prove` takes every byte, `make test` some."""

Property = Callable[[str, object], None]


def flips(path: str, data: bytes) -> Iterator[tuple[int, bytes]]:
    """Copies with one byte changed, and where."""
    for at in places(path, data):
        for flip in FLIPS if len(data) <= SMALL else (FLIPS[at % 2],):
            yield at, data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :]


def places(path: str, data: bytes) -> range:
    every = len(data) <= SMALL and not path.startswith("stages/")
    return range(0, len(data), 1 if every else STEP)


def cases() -> list[tuple[str, str]]:
    return [(name, path) for name, make in SAMPLES.items() for path in sorted(make().files)]


def judged(sample: Sample, path: str, at: int, data: bytes) -> tuple[Ending, set[int]]:
    try:
        return judge(sample, {**sample.files, path: data})
    except AssertionError as error:
        raise AssertionError(f"{sample.name}, {path} byte {at}: {error}") from error


@pytest.mark.parametrize(("name", "path"), cases())
def test_every_byte_flipped(name: str, path: str, record_property: Property) -> None:
    """Wherever the byte is: intact, refused, set aside, or torn where nothing proves it.

    In a crashed store that is the last group, and nothing else; in a closed one, nothing.
    """
    sample = SAMPLES[name]()
    endings: Counter[Ending] = Counter()
    torn: set[int] = set()
    for at, data in flips(path, sample.files[path]):
        ending, lost = judged(sample, path, at, data)
        endings[ending] += 1
        if ending is Ending.TORN:
            assert lost <= sample.unproven, f"{path} byte {at}: {lost} had been proven"
            torn |= lost
    if path == "wal/quiver.wal":
        assert torn == sample.unproven
    _record(record_property, endings)


@pytest.mark.parametrize(("name", "path"), cases())
def test_every_length_cut(name: str, path: str, record_property: Property) -> None:
    """However much is gone: intact, refused, set aside, or reported as torn."""
    sample = SAMPLES[name]()
    data = sample.files[path]
    _record(
        record_property,
        Counter(judged(sample, path, at, data[:at])[0] for at in places(path, data)),
    )


def _record(record_property: Property, endings: Counter[Ending]) -> None:
    record_property("tried", endings.total())
    for ending, count in endings.items():
        record_property(str(ending), count)
