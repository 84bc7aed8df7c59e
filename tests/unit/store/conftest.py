"""A world for every test of the engine."""

from __future__ import annotations

import pytest

from tests.support.stores import World


@pytest.fixture
def world() -> World:
    """An empty directory in memory, a clock that stands still, no threads."""
    return World()
