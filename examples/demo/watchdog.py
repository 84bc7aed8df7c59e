"""Ends a demo that makes no progress, and shows where everybody stands."""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final

PATIENCE: Final = 180.0
"""Seconds without any progress: starting Spark takes a fraction of it on a slow machine."""
LOOK_SECONDS: Final = 1.0


class Watchdog:
    """A thread of its own: whoever hangs can't look at the clock.

    ``show`` is called before the process ends, to show what others know.
    """

    def __init__(self, show: Callable[[], None], patience: float = PATIENCE) -> None:
        self._show = show
        self._patience = patience
        self._last: tuple[object, ...] = ()
        self._since = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="demo-watchdog", daemon=True)

    def progress(self, *how_far: object) -> None:
        """How far it is; the clock starts again whenever that has changed."""
        if how_far != self._last:
            self._last = how_far
            self._since = time.monotonic()

    def _watch(self) -> None:
        while not self._over.wait(min(LOOK_SECONDS, self._patience)):
            if time.monotonic() - self._since > self._patience:
                sys.stderr.write(
                    f"no progress for {self._patience:.0f} s, at {self._last}; all stacks:\n"
                )
                sys.stderr.flush()
                faulthandler.dump_traceback(all_threads=True)
                try:
                    self._show()
                finally:
                    os._exit(1)

    def __enter__(self) -> Watchdog:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._over.set()
        self._thread.join()
