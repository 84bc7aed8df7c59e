"""Memory for large reads that are kept.

A log is read back into memory that its bundles stay in until their segments are written.
Most of the time that takes goes into the memory, not into the bytes: every page of 4 KiB is
asked for by a fault of its own while the read copies into it, which is several times what the copy
and the checksum take.  So pages are asked for many at a time, just before they are filled, and
the memory is a mapping of its own, which goes back whole when the last bundle in it does.

Huge pages would be cheaper still where memory is all there.  In a virtual machine that gives
free memory back to its host they are the ones that were given back, and cost four times as
much as small ones.
"""

from __future__ import annotations

import contextlib
import mmap
import sys
from typing import Final

SMALL: Final = 1 << 20
"""Below this the heap does as well."""

_POPULATE_WRITE: Final = 23
"""``MADV_POPULATE_WRITE`` of Linux 5.14, which :mod:`mmap` has no name for."""
_CAN_POPULATE: Final = sys.platform == "linux"


class Room:
    """``size`` bytes of private memory, to be filled from front to end through ``view``."""

    __slots__ = ("_memory", "view")

    def __init__(self, size: int) -> None:
        self._memory: mmap.mmap | None = None
        if size < SMALL:
            self.view = memoryview(bytearray(size))
            return
        try:
            flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            self._memory = mmap.mmap(-1, size, flags=flags)
        except OSError as error:
            raise MemoryError(f"no room for {size:,} bytes") from error
        self.view = memoryview(self._memory)

    def part(self, start: int, end: int) -> memoryview:
        """The bytes between two places, their pages all there if the kernel can do that."""
        if self._memory is not None and _CAN_POPULATE:
            first = start - start % mmap.PAGESIZE
            with contextlib.suppress(OSError):  # a kernel that can't: they come by and by
                self._memory.madvise(_POPULATE_WRITE, first, end - first)
        return self.view[start:end]
