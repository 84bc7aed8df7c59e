"""Damage that a round inflicts hits what it says: else a round shows nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

import quiver
from quiver.errors import Damage
from tests.chaos import damage
from tests.chaos.content import bundle_of


@pytest.fixture
def crashed(tmp_path: Path) -> Path:
    """A store as a kill leaves it: a log that was never closed, a stage, a checkpoint."""
    path, copy = tmp_path / "store", tmp_path / "crashed"
    with quiver.open(path, background=False) as store:
        for number in range(20):
            store.put(bundle_of(f"b/{number}", ("Logs",), 2), key=f"b/{number}").wait(5)
            if number == 9:
                store.flush()
        stage = store.stage("app", 1, "only")
        stage.put(bundle_of("app/1", ("Logs",), 2))
        stage.finish()
        shutil.copytree(path, copy)
    return copy


def test_a_proved_entry_of_the_active_log_is_refused(crashed: Path) -> None:
    """Scenario: a bit of any bundle in the active log but the last group. Guarantee: the file
    is not taken for one with a torn end."""
    for seed in range(5):
        store = crashed.with_name(f"log-{seed}")
        shutil.copytree(crashed, store)
        told = damage.flip_active_log(store, Random(seed))
        assert told is not None
        with pytest.raises(Damage):
            quiver.open(store, background=False)


@pytest.mark.parametrize("how", [damage.flip_floor, damage.flip_stage, damage.flip_state])
def test_small_files_are_hit(crashed: Path, how: damage.Damager) -> None:
    """Scenario: one bit of another file. Guarantee: just that file differs, as it is told."""
    before = damage.prints(crashed)
    told = how(crashed, Random(1))
    assert told is not None
    changed = {name for name, _ in damage.prints(crashed).items() ^ before.items()}
    assert {Path(name).name for name in changed} == {told["file"]}


def test_nothing_to_damage_is_told(tmp_path: Path) -> None:
    """Scenario: an empty directory. Guarantee: no damage is claimed."""
    for how, _ in damage.AT_REST:
        assert how(tmp_path, Random(1)) is None
