"""A sealed file's bytes: mapped, or read on demand.

Mapping is the fast way and the default.  Reading on demand is for file systems where a
mapping can't be trusted; it keeps nothing in memory but what is asked for.
"""

from __future__ import annotations

import contextlib
import io
import weakref
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import pyarrow as pa

from quiver.disk.disk import Disk, File
from quiver.errors import QuiverError
from quiver.format.crc import crc32

CHUNK: Final = 1 << 20
ALIGNMENT: Final = 8

FileReader: TypeAlias = pa.ipc.RecordBatchFileReader


class Mapping:
    """Holds a mapping for all arrays that lie in it, and goes with the last of them."""

    __slots__ = ("__weakref__", "view")

    def __init__(self, view: pa.Buffer) -> None:
        self.view = view


class Source(Protocol):
    """Where a reader gets its bytes from; bounds are the reader's to check."""

    size: int
    mapping: weakref.ref[Mapping] | None

    def bytes(self, offset: int, length: int) -> pa.Buffer:
        """A small part, in aligned memory."""
        ...

    def view(self, offset: int, length: int) -> pa.Buffer | None:
        """A part where it lies, however large; ``None`` if it isn't in memory."""
        ...

    def crc(self, length: int) -> int:
        """Checksum of the first ``length`` bytes."""
        ...

    def open_file(self, offset: int, length: int, fields: Sequence[int]) -> FileReader:
        """The Arrow file that lies there; of its columns, ``fields`` (all if empty)."""
        ...

    def close(self) -> None:
        """Let go of the file now, not when nobody knows this any more."""
        ...


class MappedSource:
    """The file as memory; only its first ``length`` bytes, if that is said."""

    def __init__(self, disk: Disk, path: str, length: int | None = None) -> None:
        view = disk.view(path)
        holder = Mapping(view)
        self.size: int = view.size if length is None else min(view.size, length)
        # Arrow's slices keep the buffer they are cut from, which keeps the holder.
        self._data = pa.foreign_buffer(view.address, self.size, holder)
        self.mapping: weakref.ref[Mapping] | None = weakref.ref(holder)

    def close(self) -> None:
        """A mapping goes with the last array that lies in it."""

    def bytes(self, offset: int, length: int) -> pa.Buffer:
        part = self._data.slice(offset, length)
        return pa.py_buffer(part.to_pybytes()) if part.address % ALIGNMENT else part

    def view(self, offset: int, length: int) -> pa.Buffer | None:
        return self._data.slice(offset, length)

    def crc(self, length: int) -> int:
        return crc32(self._data.slice(0, length))

    def open_file(self, offset: int, length: int, fields: Sequence[int]) -> FileReader:
        options = pa.ipc.IpcReadOptions(included_fields=list(fields))
        return pa.ipc.open_file(self._data.slice(offset, length), options=options)


class ReadSource:
    """The file by positional reads; the descriptor goes with this object."""

    def __init__(self, disk: Disk, path: str, length: int | None = None) -> None:
        self.mapping: weakref.ref[Mapping] | None = None
        self._file = disk.open(path)
        self._closer = weakref.finalize(self, _close_quietly, self._file)
        size = self._file.size()
        self.size = size if length is None else min(size, length)

    def close(self) -> None:
        self._closer()

    def bytes(self, offset: int, length: int) -> pa.Buffer:
        return pa.py_buffer(self._file.pread(length, offset))

    def view(self, offset: int, length: int) -> pa.Buffer | None:
        return None

    def crc(self, length: int) -> int:
        crc = 0
        for offset in range(0, length, CHUNK):
            crc = crc32(self._file.pread(min(CHUNK, length - offset), offset), crc)
        return crc

    def open_file(self, offset: int, length: int, fields: Sequence[int]) -> FileReader:
        options = pa.ipc.IpcReadOptions(included_fields=list(fields))
        window = _Window(self, self._file, offset, length)
        return pa.ipc.open_file(pa.PythonFile(window, mode="r"), options=options)


def _close_quietly(file: File) -> None:
    """Nothing was written, so nothing can be lost; and a destructor has nobody to tell."""
    with contextlib.suppress(QuiverError):
        file.close()


class _Window(io.RawIOBase):
    """A part of a file as Python knows files, for Arrow to read from."""

    def __init__(self, owner: ReadSource, file: File, offset: int, length: int) -> None:
        super().__init__()
        self._owner = owner  # the descriptor must stay open
        self._file = file
        self._offset = offset
        self._length = length
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._length}[whence]
        self._at = base + offset
        return self._at

    def read(self, size: int = -1) -> bytes:
        left = max(self._length - self._at, 0)
        size = left if size < 0 else min(size, left)
        data = self._file.pread(size, self._offset + self._at)
        self._at += len(data)
        return data
