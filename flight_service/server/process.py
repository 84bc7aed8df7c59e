"""The server's own process: its memory, its threads' turns, its descriptors, its stacks.

Flight receives every message into memory of the C library's allocator.  By default that
gives each large block back to the kernel at once, which then clears the pages for the
next one: at 1 MiB per message more than half of Flight's own time, and several times that
in a virtual machine whose memory is given to it page by page.  So blocks are taken from
the heap, which is cut only when more than a bound lies unused at its end; there are few
heaps, so that what one thread frees the others find; and Arrow uses them too, instead of
an allocator of its own that would give its pages back as well.

Python's collector of reference cycles looks at everything that is young each time 700
objects have been made, which is every few puts.  The server makes no cycles on its hot
paths: it is enough to look now and then.

Arrow loads pandas, where that is installed, for the first Python list it is given.  The
server's would be that of its first segment, in the middle of a burst: a second of the
interpreter's time and fifty megabytes, for nothing.  So Arrow is told that there is none.

Every connection and every open stream takes descriptors.  Most systems allow a process far
more than it may use without asking (the soft limit, 1,024 by default, is for programs that
call ``select``): the server asks for all of them.

SIGUSR1 prints the stacks of all threads to standard error, from a handler in C that needs
neither the interpreter's lock nor a thread that is still able to run.
"""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import gc
import signal
import sys
from typing import Final

import pyarrow as pa

from quiver.disk.descriptors import raise_limit

# The numbers are those of glibc's <malloc.h>.
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8

MMAP_ABOVE: Final = 32 << 20
"""Larger blocks come from the kernel and go back to it: glibc's own highest value."""
KEEP_UNUSED: Final = 96 << 20
"""Bytes that may lie unused at the end of a heap."""
ARENAS: Final = 2
YOUNG_OBJECTS: Final = 50_000
"""Made and not gone again before the collector looks."""


class _NoPandas:
    """Finds every module as the others do, except one."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name == "pandas":
            raise ImportError("left out", name=name)


def _leave_pandas_out() -> None:
    """Let Arrow look for pandas now, and not find it: it looks only once."""
    if "pandas" not in sys.modules:
        sys.meta_path.insert(0, _NoPandas)
        try:
            pa.array([0])
        finally:
            sys.meta_path.remove(_NoPandas)


def tune_process() -> bool:
    """Set the process up; ``False`` where the C library is another one, and was left alone."""
    raise_limit()
    with contextlib.suppress(RuntimeError, OSError):  # no standard error to print to
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    gc.set_threshold(YOUNG_OBJECTS, 20, 20)
    _leave_pandas_out()
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    wanted = (
        (_M_MMAP_THRESHOLD, MMAP_ABOVE),
        (_M_TRIM_THRESHOLD, KEEP_UNUSED),
        (_M_ARENA_MAX, ARENAS),
    )
    tuned = all(mallopt(name, value) for name, value in wanted)
    if tuned:
        pa.set_memory_pool(pa.system_memory_pool())
    return tuned
