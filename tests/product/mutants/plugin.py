"""``pytest -p tests.product.mutants.plugin``: tests with the mutant ``QUIVER_MUTANT``."""

from __future__ import annotations

import os
from contextlib import ExitStack
from typing import Final

import pytest

from tests.product.mutants import MUTANTS

NAME: Final = "QUIVER_MUTANT"
_applied: Final = ExitStack()


def pytest_configure(config: pytest.Config) -> None:
    chosen = next(one for one in MUTANTS if one.name == os.environ[NAME])
    _applied.enter_context(chosen.apply())


def pytest_unconfigure(config: pytest.Config) -> None:
    _applied.close()
