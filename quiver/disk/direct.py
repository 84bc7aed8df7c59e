"""Files that are written once, from front to end, without going through the page cache.

A new file's pages have to be found, cleared and copied to before they are written out: on
a machine with little free memory, or a virtual one whose memory is given to it page by
page, that costs several times the write itself.  A segment is written in one go and read
much later, or never.  So it is gathered in an aligned buffer and goes from there to the
disk (``O_DIRECT``), and the cache stays with those who use it.

Where the file system can't do that, or for the last bytes that fill no block, the file is
written the usual way.  Syncing is the caller's, as for any other file.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
from collections import deque
from collections.abc import Sequence
from typing import ClassVar, Final

import pyarrow as pa

from quiver.disk.seam import Bytes

BLOCK: Final = 4096
STAGE: Final = 4 << 20
"""Bytes per write: enough that the disk, not the call, sets the pace."""
KEPT: Final = 2
"""Idle buffers kept for the next file: one per thread that writes segments."""
SMALL: Final = 16 << 10
"""From this size on a copy is worth giving up the interpreter lock for, as ctypes does."""

FLAG: Final = getattr(os, "O_DIRECT", 0)
"""0 where there is no such thing."""


class _AlignedBuffer:
    """Memory that begins at a page, as direct writes need it."""

    _idle: ClassVar[deque[_AlignedBuffer]] = deque(maxlen=KEPT)

    def __init__(self) -> None:
        # Private: a forked child that writes segments of its own must not write into ours.
        memory = mmap.mmap(-1, STAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(memory)
        self._address = pa.py_buffer(memory).address

    @classmethod
    def take(cls) -> _AlignedBuffer:
        try:
            return cls._idle.pop()
        except IndexError:
            return cls()

    def give_back(self) -> None:
        self._idle.append(self)

    def fill(self, buffers: Sequence[Bytes]) -> int:
        """Copy as much as there is room for, from the first on; how many bytes."""
        end = 0
        for buffer in buffers:
            piece = buffer if isinstance(buffer, pa.Buffer) else pa.py_buffer(buffer)
            size = min(piece.size, STAGE - end)
            if size < SMALL:
                self.view[end : end + size] = memoryview(piece).cast("B")[:size]
            else:
                ctypes.memmove(self._address + end, piece.address, size)
            end += size
            if end == STAGE:
                break
        return end


class DirectWriter:
    """Writes for one descriptor that was opened with :data:`FLAG`."""

    __slots__ = ("_fd", "_stage")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._stage: _AlignedBuffer | None = _AlignedBuffer.take()

    def pwritev(self, buffers: Sequence[Bytes], offset: int) -> int:
        """Write, perhaps only in part; the number of bytes written."""
        stage = self._stage
        if stage is not None and offset % BLOCK == 0:
            filled = stage.fill(buffers)
            whole = filled - filled % BLOCK
            try:
                if whole:
                    return os.pwrite(self._fd, stage.view[:whole], offset)
            except OSError as error:
                if error.errno != errno.EINVAL:
                    raise
        self._leave()
        return os.pwritev(self._fd, buffers, offset)

    def _leave(self) -> None:
        """From here on through the cache: the rest fills no block, or it can't be done."""
        if self._stage is not None:
            self.close()
            flags = fcntl.fcntl(self._fd, fcntl.F_GETFL)
            fcntl.fcntl(self._fd, fcntl.F_SETFL, flags & ~FLAG)

    def close(self) -> None:
        """Let the buffer go; a second time does nothing."""
        stage, self._stage = self._stage, None
        if stage is not None:
            stage.give_back()
