"""The disk as the rest of Quiver sees it: the seam's calls, with Quiver's errors.

=====================================  ==============================================
what the seam raised                   what the caller gets
=====================================  ==============================================
ENOSPC, EDQUOT                         ``StorageFull``: retry later, nothing is lost
any error of an fsync                  ``Poisoned``, latched: no write is tried again
EMFILE, ENFILE, ENOMEM                 ``OutOfResources``: retry later, nothing is lost;
                                       also of a directory to be fsynced (``NotOpened``)
``FileNotFoundError`` of open, read,   the same: callers expect it
view, unlink
``FileExistsError`` of create          the same
``BlockingIOError`` of lock            the same
any other ``OSError``                  ``IoFault`` with ``op``, ``file``, ``errno``
=====================================  ==============================================

Once poisoned, every call that would change the disk raises ``Poisoned`` at once; reading
goes on.
"""

from __future__ import annotations

import contextlib
import errno
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Final, ParamSpec, TypeVar

import pyarrow as pa

from quiver.disk.poison import Poison
from quiver.disk.seam import Bytes, NotOpened, RawDisk, RawFile, RawLock
from quiver.errors import IoFault, OutOfResources, QuiverError, StorageFull

IOV_MAX: Final = 1024
"""Buffers per ``pwritev``: what Linux allows."""

MAX_INTERRUPTS: Final = 100
"""Interruptions of one write before it is called a fault: no loop without an end."""

TMP_SUFFIX: Final = ".tmp"

_NO_SPACE = frozenset({errno.ENOSPC, errno.EDQUOT})
_LIMIT_ADVICE: Final = {
    errno.EMFILE: "Raise the process's limit of file descriptors (ulimit -n, LimitNOFILE), or"
    " close connections; retry then.",
    errno.ENFILE: "Raise the system's limit of open files (fs.file-max); retry then.",
    errno.ENOMEM: "The kernel is out of memory; retry when there is some.",
}

P = ParamSpec("P")
T = TypeVar("T")


def _fault(op: str, path: str, exc: OSError) -> QuiverError:
    if exc.errno in _NO_SPACE:
        return StorageFull(path)
    advice = _LIMIT_ADVICE.get(exc.errno or 0)
    kind = IoFault if advice is None else OutOfResources
    return kind(
        f"{op} of {path or 'the store directory'} failed: {exc.strerror or exc}.",
        advice=advice or "Check the disk and the directory's permissions.",
        op=op,
        file=path,
        errno=exc.errno,
    )


def _run(op: str, path: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    try:
        return call(*args, **kwargs)
    except OSError as exc:
        raise _fault(op, path, exc) from exc


def _find(op: str, path: str, call: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """As :func:`_run`, for calls whose answer may well be that there is no such file."""
    try:
        return call(*args, **kwargs)
    except FileNotFoundError:
        raise
    except OSError as exc:
        raise _fault(op, path, exc) from exc


def _nbytes(buffer: Bytes) -> int:
    # A memoryview's len() counts items, not bytes.
    return buffer.nbytes if isinstance(buffer, memoryview) else len(buffer)


def _without(buffers: Sequence[Bytes], done: int) -> list[Bytes]:
    """What is left of ``buffers`` after their first ``done`` bytes."""
    index = 0
    while done >= (length := _nbytes(buffers[index])):
        done -= length
        index += 1
    return [memoryview(buffers[index]).cast("B")[done:], *buffers[index + 1 :]]


class File:
    """An open file. Use it as a context manager: descriptors are few."""

    __slots__ = ("_poison", "_raw", "path")

    def __init__(self, raw: RawFile, path: str, poison: Poison) -> None:
        self._raw = raw
        self._poison = poison
        self.path = path

    def write_all(self, buffers: Sequence[Bytes], offset: int) -> int:
        """Write every byte of ``buffers`` from ``offset`` on; how many that was.

        If it raises, any part may have been written: go back to the last good offset.
        """
        self._poison.check()
        total = sum([_nbytes(one) if type(one) is memoryview else len(one) for one in buffers])
        left = buffers
        written = interrupts = 0
        while written < total:
            try:
                count = self._raw.pwritev(left[:IOV_MAX], offset + written)
            except InterruptedError as exc:
                interrupts += 1
                if interrupts > MAX_INTERRUPTS:
                    raise _fault("write", self.path, exc) from exc
                continue
            except OSError as exc:
                raise _fault("write", self.path, exc) from exc
            if count <= 0:
                raise _fault("write", self.path, OSError(errno.EIO, "no byte was written"))
            written += count
            if written < total:
                left = _without(left, count)
        return written

    def pread(self, size: int, offset: int) -> bytes:
        """Read ``size`` bytes from ``offset``; fewer only at the end of the file."""
        try:  # as _run does, which takes as long again as a small read
            return self._raw.pread(size, offset)
        except OSError as exc:
            raise _fault("read", self.path, exc) from exc

    def pread_into(self, memory: memoryview, offset: int) -> int:
        """As :meth:`pread`, into memory that is there; the number of bytes read."""
        return _run("read", self.path, self._raw.pread_into, memory, offset)

    def size(self) -> int:
        return _run("stat", self.path, self._raw.size)

    def truncate(self, size: int) -> None:
        """Cut, or grow with zeros."""
        self._poison.check()
        _run("truncate", self.path, self._raw.truncate, size)

    def fdatasync(self) -> None:
        """Data and size on the disk when this returns; poisons when it fails."""
        self._sync("fdatasync", self._raw.fdatasync)

    def fsync(self) -> None:
        """As :meth:`fdatasync`, all metadata too: for new files."""
        self._sync("fsync", self._raw.fsync)

    def _sync(self, op: str, call: Callable[[], None]) -> None:
        self._poison.check()
        try:
            call()
        except OSError as exc:
            raise self._poison.trip(op, self.path, exc) from exc

    def close(self) -> None:
        """Close; a second time does nothing."""
        _run("close", self.path, self._raw.close)

    def __enter__(self) -> File:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Disk:
    """One store's directory tree: what everything above calls."""

    def __init__(self, raw: RawDisk, poison: Poison | None = None) -> None:
        self.raw = raw
        self.poison = poison if poison is not None else Poison()
        self.held_back = 0
        """Free bytes that data must leave to the small files: a reserve that was released."""
        self._replacing: set[str] = set()
        self._turn = threading.Condition()

    # Files

    def create(self, path: str, *, bulk: bool = False) -> File:
        """A new empty file; ``FileExistsError`` if the name is taken.

        ``bulk`` says that it is written once, from front to end, and not read soon: it then
        leaves the page cache alone where the disk can do that.
        """
        self.poison.check()
        try:
            raw = self.raw.create(path, bulk=bulk)
        except FileExistsError:
            raise
        except OSError as exc:
            raise _fault("create", path, exc) from exc
        return File(raw, path, self.poison)

    def open(self, path: str, *, write: bool = False) -> File:
        """An existing file, or ``FileNotFoundError``."""
        if write:
            self.poison.check()
        return File(_find("open", path, self.raw.open, path, write=write), path, self.poison)

    def read(self, path: str) -> bytes:
        """A whole file as bytes of our own, or ``FileNotFoundError``."""
        with self.open(path) as file:
            return file.pread(file.size(), 0)

    def view(self, path: str) -> pa.Buffer:
        """A whole *sealed* file as read-only memory, or ``FileNotFoundError``."""
        return _find("view", path, self.raw.view, path)

    def replace(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        """Put ``data`` in place of the file: after a crash it is the old or the new, whole.

        Calls for one path take turns, so the last one to start is the one that stays.
        """
        self.poison.check()
        buffers = data if isinstance(data, (list, tuple)) else [data]
        with self._turn_for(path):
            tmp = path + TMP_SUFFIX
            self.unlink(tmp, missing_ok=True)  # left over from a crash
            try:
                with self.create(tmp) as file:
                    file.write_all(buffers, 0)
                    file.fsync()
                self.rename(tmp, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    self.raw.unlink(tmp)
                raise
            self.fsync_dir(path.rpartition("/")[0])

    @contextlib.contextmanager
    def _turn_for(self, path: str) -> Iterator[None]:
        with self._turn:
            self._turn.wait_for(lambda: path not in self._replacing)
            self._replacing.add(path)
        try:
            yield
        finally:
            with self._turn:
                self._replacing.discard(path)
                self._turn.notify_all()

    # Names

    def rename(self, source: str, target: str) -> None:
        """Move a name, over another if need be; durable only after :meth:`fsync_dir`."""
        self.poison.check()
        _run("rename", source, self.raw.rename, source, target)

    def unlink(self, path: str, *, missing_ok: bool = False) -> None:
        """Remove a name; durable only after :meth:`fsync_dir`."""
        self.poison.check()
        try:
            _find("unlink", path, self.raw.unlink, path)
        except FileNotFoundError:
            if not missing_ok:
                raise

    def mkdir(self, path: str) -> None:
        """Make a directory if it isn't there; ``""`` is the store's root."""
        self.poison.check()
        _run("mkdir", path, self.raw.mkdir, path)

    def make_directory(self, path: str) -> None:
        """Make a directory if it isn't there, durably, ready for names to be made in it."""
        self.mkdir(path)
        self.fsync_dir(path.rpartition("/")[0])
        self.fsync_dir(path)

    def fsync_dir(self, path: str) -> None:
        """Make a directory's entries durable; poisons when the sync fails."""
        self.poison.check()
        try:
            self.raw.fsync_dir(path)
        except NotOpened as exc:
            raise _fault("open", path, exc) from exc
        except OSError as exc:
            raise self.poison.trip("fsync_dir", path, exc) from exc

    def listdir(self, path: str) -> list[str]:
        """Sorted names; none if the directory isn't there."""
        try:
            return _find("listdir", path, self.raw.listdir, path)
        except FileNotFoundError:
            return []

    def stat_size(self, path: str) -> int | None:
        """A file's size, or ``None`` if there is no such file."""
        return _run("stat", path, self.raw.stat_size, path)

    def chmod(self, path: str, mode: int) -> None:
        """Best effort: some file systems know no modes, and no promise rests on them."""
        with contextlib.suppress(OSError):
            self.raw.chmod(path, mode)

    # Space, and who may write

    def allocate(self, path: str, size: int) -> None:
        """A file of ``size`` bytes that are really reserved, or ``StorageFull``."""
        self.poison.check()
        _run("allocate", path, self.raw.allocate, path, size)

    def check_room(self, path: str, nbytes: int) -> None:
        """``StorageFull`` if so many bytes of data would take what is held back."""
        if self.held_back and nbytes > 0 and self.free_bytes() < nbytes + self.held_back:
            raise StorageFull(path)

    def free_bytes(self) -> int:
        return _run("statvfs", "", self.raw.free_bytes)

    def lock(self, path: str, owner: bytes) -> RawLock:
        """Take the exclusive lock, or raise ``BlockingIOError`` at once."""
        try:
            return self.raw.lock(path, owner)
        except BlockingIOError:
            raise
        except OSError as exc:
            raise _fault("lock", path, exc) from exc
