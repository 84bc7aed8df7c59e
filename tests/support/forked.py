"""Running a part of a test in a forked child: for what must not happen to the test run itself."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from typing import Final

LIMIT: Final = 30
"""Seconds after which a child that hangs is ended: the test fails then."""


def in_child(work: Callable[[], None]) -> None:
    """Run ``work`` in a forked child and fail if it raises, crashes or hangs."""
    said, says = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT)
        code = 1
        try:
            os.close(said)
            work()
            code = 0
        except BaseException:
            os.write(says, traceback.format_exc().encode())
        finally:
            os._exit(code)
    os.close(says)
    with os.fdopen(said, "rb") as lines:
        text = lines.read().decode()
    status = os.waitpid(child, 0)[1]
    assert status == 0, text or f"the child ended with {status}"
