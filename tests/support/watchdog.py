"""A test that hangs shows where every thread is, and ends the run.

pytest-timeout ends a test by a signal, whose handler is Python code: a thread that hangs in C
with the interpreter's lock, or for ever in a call that restarts, never gets there.  This
watchdog is faulthandler's own thread, which needs nothing of the interpreter.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator
from typing import Final

import pytest

GRACE: Final = float(os.environ.get("WATCHDOG_GRACE", "30"))
"""Seconds beyond a test's own timeout, in which pytest-timeout has its turn."""

_ERR: Final = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep the real standard error: in a test it is captured, and lost with the process."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        config.stash[_ERR] = os.dup(2)
        return
    with capture.global_and_fixture_disabled():
        config.stash[_ERR] = os.dup(2)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Watch over one test, with its fixtures."""
    limit = _timeout(item)
    if limit > 0:
        faulthandler.dump_traceback_later(limit + GRACE, exit=True, file=item.config.stash[_ERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _timeout(item: pytest.Item) -> float:
    """Seconds, from the mark or from the settings; 0: no limit."""
    mark = item.get_closest_marker("timeout")
    said = mark.args[0] if mark is not None and mark.args else item.config.getini("timeout")
    return float(said or 0)
