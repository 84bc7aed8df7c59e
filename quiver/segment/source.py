"""A sealed file's bytes: read on demand, mapped, or read into memory as a whole.

Reading on demand is the default; it keeps nothing in memory but what is asked for.  A
mapping is faster, for disks that are trusted: what was verified may be dropped by the kernel
and read again, rotten, and an error of the disk then ends the process.  Only files without
block checksums are read into memory, since nothing less can be verified.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

import pyarrow as pa

from quiver.disk.disk import Disk, File
from quiver.errors import QuiverError
from quiver.format.crc import crc32

CHUNK: Final = 1 << 20
MAX_OPEN_FILES: Final = 128
"""Segments of this process that have a descriptor at a time."""
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


class MemorySource:
    """The file as memory of our own."""

    def __init__(self, data: pa.Buffer) -> None:
        self.mapping: weakref.ref[Mapping] | None = None
        self.size: int = data.size
        self._data = data

    def close(self) -> None:
        """The memory goes with the last array that lies in it."""

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


class MappedSource(MemorySource):
    """The file mapped; only its first ``length`` bytes, if that is said."""

    def __init__(self, disk: Disk, path: str, length: int | None = None) -> None:
        view = disk.view(path)
        holder = Mapping(view)
        size = view.size if length is None else min(view.size, length)
        # Arrow's slices keep the buffer they are cut from, which keeps the holder.
        super().__init__(pa.foreign_buffer(view.address, size, holder))
        self.mapping = weakref.ref(holder)


class ReadSource:
    """The file by positional reads.

    Its descriptor is one of few (:data:`MAX_OPEN_FILES`), and opened again when it is needed
    after others took its place: a server has many streams, and each has many segments.
    ``FileNotFoundError`` if the file is gone by then.
    """

    def __init__(self, disk: Disk, path: str, length: int | None = None) -> None:
        self.mapping: weakref.ref[Mapping] | None = None
        self._disk = disk
        self._path = path
        self._handle: _Handle | None = None
        size = self.handle().file.size()
        self.size = size if length is None else min(size, length)

    def handle(self) -> _Handle:
        """The open file; it stays open for as long as somebody holds this."""
        found = self._handle
        if found is None:
            found = self._handle = _Handle(self._disk.open(self._path))
            _open_files.enter(self)
        return found

    def close(self) -> None:
        self._handle = None

    def bytes(self, offset: int, length: int) -> pa.Buffer:
        handle = self._handle or self.handle()
        return pa.py_buffer(handle.file.pread(length, offset))

    def fill(self, memory: memoryview, offset: int) -> int:
        """Read into memory that is there; the number of bytes read."""
        handle = self.handle()
        return handle.file.pread_into(memory, offset)

    def whole(self) -> MemorySource:
        """All of the file, in memory."""
        return MemorySource(self.bytes(0, self.size))

    def view(self, offset: int, length: int) -> pa.Buffer | None:
        return None

    def crc(self, length: int) -> int:
        crc = 0
        handle = self.handle()
        for offset in range(0, length, CHUNK):
            crc = crc32(handle.file.pread(min(CHUNK, length - offset), offset), crc)
        return crc

    def open_file(self, offset: int, length: int, fields: Sequence[int]) -> FileReader:
        # From memory, not from a Python file: Arrow reads the footer of a file in a thread of
        # its own, which may be the last to let go of the reader.  If the interpreter is ending
        # by then, that thread can't have the lock it needs for a Python object, and aborts
        # the process.
        options = pa.ipc.IpcReadOptions(included_fields=list(fields))
        return pa.ipc.open_file(self.bytes(offset, length), options=options)


class _Handle:
    """An open file that is closed when nobody holds it any more, and not before."""

    __slots__ = ("file",)

    def __init__(self, file: File) -> None:
        self.file = file

    def __del__(self) -> None:
        # Nothing was written, so nothing can be lost; and a destructor has nobody to tell.
        with contextlib.suppress(QuiverError):
            self.file.close()


class _OpenFiles:
    """The sources whose files are open; the one that was opened first lets go of its own."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._sources: OrderedDict[int, weakref.ref[ReadSource]] = OrderedDict()

    def enter(self, source: ReadSource) -> None:
        dropped = []
        with self._lock:
            self._sources[id(source)] = weakref.ref(source)
            self._sources.move_to_end(id(source))
            while len(self._sources) > self._most:
                dropped.append(self._sources.popitem(last=False)[1]())
        for oldest in dropped:
            if oldest is not None:
                oldest.close()


_open_files: Final = _OpenFiles(MAX_OPEN_FILES)
