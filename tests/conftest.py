"""What every test can rely on: a clock, a clean environment, known randomness, a watchdog."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

from quiver.clock import ManualClock
from tests.support.watchdog import pytest_configure, pytest_runtest_protocol

__all__ = ["pytest_configure", "pytest_runtest_protocol"]

# No deadline: a shared machine's pause is not a property of the code.  In CI the examples
# are the same every time, so that a red run can be run again.
settings.register_profile("dev", deadline=None)
settings.register_profile(
    "ci", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves only when the test says so."""
    return ManualClock()


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings of the developer's own shell must not decide a test."""
    for name in list(os.environ):
        if name.startswith("QUIVER_"):
            monkeypatch.delenv(name)
