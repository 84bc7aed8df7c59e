"""Memory for large reads: filled part by part, and there whatever the kernel knows."""

from __future__ import annotations

import mmap

import pytest

from quiver.disk import room
from quiver.disk.room import SMALL, Room


@pytest.mark.parametrize("size", [0, 1, SMALL - 1, SMALL, SMALL + 4097])
def test_parts_lie_side_by_side(size: int) -> None:
    """Scenario: memory of any size is filled in two parts.

    Guarantee: both are in ``view``, where they were asked for, and nothing is missing.
    """
    memory = Room(size)
    middle = size // 3
    memory.part(0, middle)[:] = b"a" * middle
    memory.part(middle, size)[:] = b"b" * (size - middle)
    assert bytes(memory.view) == b"a" * middle + b"b" * (size - middle)


def test_a_kernel_that_fills_no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: the kernel doesn't know the call. Guarantee: the memory is there all the same."""
    monkeypatch.setattr(room, "_POPULATE_WRITE", 10_000)
    part = Room(SMALL).part(5000, SMALL)
    part[:3] = b"abc"
    assert bytes(part[:4]) == b"abc\0"


def test_no_room_is_a_memory_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: no memory is left. Guarantee: the error that Python has for it."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", refuse)
    with pytest.raises(MemoryError):
        Room(SMALL)
