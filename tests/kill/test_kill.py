"""A process that ingests from several threads, killed at random moments, round after round."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.kill.rounds import Rounds

pytestmark = [pytest.mark.kill, pytest.mark.timeout(3600)]

ROUNDS: Final = int(os.environ.get("QUIVER_KILL_ROUNDS", "30"))


def test_nothing_durable_is_lost(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Whatever was answered `durable` is there once, equal, under its ref; acks hold.

    Whenever the kill comes: while starting, putting, writing segments, rotating, deleting.
    """
    logging.disable(logging.CRITICAL)
    rounds = Rounds(tmp_path, seed=20_260)
    for _ in range(ROUNDS):
        rounds.play()
    logging.disable(logging.NOTSET)
    assert rounds.tally.durable > ROUNDS
    assert rounds.tally.kept > 0
    record_property("tried", rounds.tally.rounds)
    record_property("answered durable", rounds.tally.durable)
    record_property("acks answered durable", rounds.tally.kept)
    record_property("killed while starting", rounds.tally.in_recovery)
