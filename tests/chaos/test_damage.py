"""Damage that a round inflicts hits what it says: else a round shows nothing."""

from __future__ import annotations

import shutil
from pathlib import Path
from random import Random

import pytest

import quiver
from quiver.errors import Damage
from quiver.segment.salvage import salvage
from tests.chaos import damage
from tests.chaos.content import IN_FILE, bundle_of
from tests.support.segments import memory_disk


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


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    """A store with a segment of puts and one of a transaction, of bundles with two slots."""
    path = tmp_path / "store"
    with quiver.open(path, background=False) as store:
        for number in range(6):
            store.put(bundle_of(f"b/{number}", ("Logs", "Spans"), 2))
        store.flush()
        stage = store.stage("app", 1, "only")
        for number in range(4):
            stage.put(bundle_of(f"app/1.{number}", ("Logs", "Spans"), 2))
        stage.finish()
        store.commit("app", 1, ["only"])
        store.flush()
    return path


def lost_in(path: Path) -> set[int]:
    """The bundles of a segment file that are not intact."""
    name = f"segments/{path.name}"
    found = salvage(memory_disk({name: path.read_bytes()}), name, damage.number_of(path))
    assert found is not None
    return set(found.lost)


def test_a_flip_of_values_is_told_by_its_ref(committed: Path) -> None:
    """Scenario: a bit of some bundle's values, also in a transaction's segment. Guarantee: the
    ref that is told is that of the one bundle that is not intact, and the name is its own."""
    sealed = damage.segments(committed)
    hit = set()
    for seed in range(20):
        store = committed.with_name(f"values-{seed}")
        shutil.copytree(committed, store)
        told = damage.flip_values(store, Random(seed))
        assert told is not None
        assert lost_in(store / "segments" / told["file"]) == {told["index"]}
        assert told["touched"].endswith(str(told["index"]))
        hit.add(told["segment"])
    assert hit == {damage.number_of(path) for path in sealed}
    assert len(hit) == 2


def test_a_second_flip_is_told_by_its_ref_though_the_name_has_changed(committed: Path) -> None:
    """Scenario: a flip makes another bundle's name out of a name, and hits it again. Guarantee:
    the ref is that of the bundle that was hit."""
    path = damage.segments(committed)[0]
    data = path.read_bytes()
    mark = next(mark for mark in IN_FILE.finditer(data) if mark.group(1) == b"b/2")
    changed = data.replace(b"chaos:b/2;", b"chaos:b/3;", 1)
    assert IN_FILE.match(changed, mark.start()) is not None
    assert damage.bundle_at(changed, mark.start(1)) == 2


def test_where_tables_are_gone_no_ref_is_told(committed: Path) -> None:
    """Scenario: a segment without its end, hit again. Guarantee: the damage is told, and not
    as that of one bundle."""
    for path in damage.segments(committed):
        path.chmod(0o640)
        path.write_bytes(path.read_bytes()[:-60])
    told = damage.flip_values(committed, Random(1))
    assert told is not None
    assert "index" not in told
    assert damage.bundle_at(b"", 0) is None


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
