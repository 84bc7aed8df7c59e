"""The descriptors of this process: which are ours, and a few kept back.

**Fork.**  A child inherits copies of all descriptors, and with them the store's ``flock``,
which is held as long as any copy is open.  So every descriptor is known here, and a forked
child closes its copies before it does anything else.  A fork waits while a descriptor is
being opened or closed, so the child knows all of them, and none that is closed already.

**Out of descriptors.**  Connections can use up all descriptors of the process.  A store must
still be able to open its next log file then.  So an open that fails with ``EMFILE`` first has
caches close the files they keep open for the next read, and some descriptors are kept back:
it gives one up and tries again.  A descriptor that is closed while
the reserve is short becomes part of it in one step (``dup3``), so no connection can take it
in between.  Giving one up takes two steps, and another thread may be faster; the interpreter
lock is kept over the first one, so that no thread of Python's is.  What was lost in that way is
taken back by upkeep, as soon as descriptors are free.
"""

from __future__ import annotations

import ctypes
import errno
import os
import resource
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Final, TypeVar

SPARES: Final = 16
"""Descriptors kept back: more than threads that open files at the same time."""
FEW: Final = 64
"""With fewer free descriptors than this, or an eighth of the limit, there are few left."""
FORK_WAIT: Final = 5.0
"""Longest time a fork waits for files being opened or closed."""
LOOK_SECONDS: Final = 1.0
"""Descriptors are counted at most this often: many stores ask."""

_OPEN_NOW: Final = "/proc/self/fd"
_close_at_once: Final = ctypes.PyDLL(None).close
"""Closes without giving up the interpreter lock, as ``os.close`` does: a thread that waits for
it would take the free number before the open that it is for."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Headroom:
    """How many descriptors the process uses, the reserve included, and may use."""

    used: int
    limit: int

    @property
    def free(self) -> int:
        return max(self.limit - self.used, 0)

    @property
    def is_low(self) -> bool:
        return self.free < min(FEW, self.limit // 8)

    def describe(self) -> str:
        return (
            f"few file descriptors are left: {self.free:,} of {self.limit:,};"
            " raise the limit (ulimit -n, LimitNOFILE) or close connections"
        )


class Holder:
    """One descriptor that this process owns; -1 once it is closed."""

    __slots__ = ("__weakref__", "_fd")

    def __init__(self, fd: int) -> None:
        self._fd = fd
        DESCRIPTORS.holders.add(self)

    def live(self) -> int:
        """The descriptor, or ``EBADF``."""
        # Python's own check raises ValueError for some calls and OSError for others.
        if self._fd < 0:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        return self._fd

    def close(self) -> bool:
        """Close it; ``False`` if it was closed before. One of several threads does it."""
        with DESCRIPTORS.changing():
            fd = self.disown()
            if fd >= 0:
                DESCRIPTORS.close(fd)
        return fd >= 0

    def disown(self) -> int:
        """Forget the descriptor; whoever gets its number has to close it.

        Forgotten before it is closed: a failed close may have freed the number, and then
        it belongs to another file.
        """
        with DESCRIPTORS.turn:
            fd, self._fd = self._fd, -1
        return fd


class Descriptors:
    """All descriptors that the disks of this process hold, and the reserve."""

    def __init__(self) -> None:
        # Reentrant: the collector may close a file anywhere, also while this is held.
        self.turn = threading.Condition(threading.RLock())
        self.holders: weakref.WeakSet[Holder] = weakref.WeakSet()
        self.shortages = 0
        """Counts opens that found no free descriptor."""
        self._caches: list[weakref.WeakMethod[Callable[[], int]]] = []
        self._changing = 0
        self._null = -1  # what the spares are copies of
        self._spares: list[int] = []
        self._wanted = 0
        self._looked: tuple[float, Headroom] | None = None

    @contextmanager
    def changing(self) -> Iterator[None]:
        """A descriptor is being opened or closed in this block: a fork has to wait."""
        with self.turn:
            self._changing += 1
        try:
            yield
        finally:
            with self.turn:
                self._changing -= 1
                if not self._changing:
                    self.turn.notify_all()

    # Opening and closing

    def open(self, call: Callable[[], T]) -> T:
        """Run a call that needs a descriptor, with one of the reserve if none is left."""
        try:
            return call()
        except OSError as error:
            if error.errno != errno.EMFILE:
                raise
        self.shortages += 1
        self._empty_caches()
        while True:
            try:
                result = call()
            except OSError as error:
                if error.errno == errno.EMFILE and self._give_up_spare():
                    continue
                self.refill()  # what was given up was not used: there is no such file
                raise
            if not isinstance(result, int):
                self.refill()  # a listing has closed it again
            return result

    def close(self, fd: int) -> None:
        """Close a descriptor; while the reserve is short it goes there instead."""
        with self.turn:
            if self._null >= 0 and len(self._spares) < self._wanted:
                os.dup2(self._null, fd, inheritable=False)
                self._spares.append(fd)
                return
        os.close(fd)

    def relieved_by(self, give_up: Callable[[], int]) -> None:
        """Have a cache give up what it keeps open, when no descriptor is left.

        ``give_up`` is a method; it may be called from any thread, with any lock held but its
        own's, so it must not wait.  Forgotten with the object it belongs to.
        """
        with self.turn:
            self._caches = [one for one in self._caches if one() is not None]
            self._caches.append(weakref.WeakMethod(give_up))

    def _empty_caches(self) -> None:
        for one in self._caches:
            give_up = one()
            if give_up is not None:
                give_up()

    # The reserve

    def keep_reserve(self) -> None:
        """From now on some descriptors are kept back, as far as there are any."""
        with self.turn:
            self._wanted = SPARES
            with suppress(OSError):  # none left: what is closed next goes to the reserve
                if self._null < 0:
                    self._null = os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC)
                while len(self._spares) < self._wanted:
                    self._spares.append(os.dup(self._null))

    def refill(self) -> None:
        """Take back what the reserve lost, as far as descriptors are free."""
        if len(self._spares) < self._wanted:
            self.keep_reserve()

    def _give_up_spare(self) -> bool:
        with self.turn:
            if not self._spares:
                return False
            _close_at_once(self._spares.pop())
            return True

    @property
    def spares(self) -> int:
        """Descriptors kept back right now."""
        return len(self._spares)

    # Questions

    def headroom(self) -> Headroom:
        """How many descriptors are in use; where that can't be counted, only our own."""
        now = time.monotonic()
        if self._looked is None or now - self._looked[0] >= LOOK_SECONDS:
            self._looked = (now, self._count())
        return self._looked[1]

    def _count(self) -> Headroom:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            limit = 1 << 30
        try:
            used = len(os.listdir(_OPEN_NOW)) - 1  # the listing itself needs one
        except OSError as error:
            used = limit if error.errno == errno.EMFILE else len(self.holders)
        return Headroom(used, limit)

    # Forking

    def before_fork(self) -> None:
        """Wait until nothing is being opened or closed, and hold that off."""
        self.turn.acquire()
        self.turn.wait_for(lambda: not self._changing, FORK_WAIT)

    def after_in_parent(self) -> None:
        self.turn.release()

    def after_in_child(self) -> None:
        """Close the copies of what the parent holds. The parent's lock stays its own."""
        inherited = [holder._fd for holder in list(self.holders)]
        for holder in list(self.holders):
            holder._fd = -1
        for fd in (*inherited, *self._spares, self._null):
            if fd >= 0:
                with suppress(OSError):
                    os.close(fd)
        self.__init__()  # type: ignore[misc]  # as new: nothing of the parent's is left


def raise_limit() -> int:
    """Raise the process's soft limit of descriptors to the hard one; the limit now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


DESCRIPTORS: Final = Descriptors()

os.register_at_fork(
    before=DESCRIPTORS.before_fork,
    after_in_parent=DESCRIPTORS.after_in_parent,
    after_in_child=DESCRIPTORS.after_in_child,
)
