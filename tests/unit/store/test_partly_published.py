"""A commit of several files, a crash before all of them are segments, damage to one of them,
and a next start under any durability and delivery.

A flipped byte costs the bundle that it is in.  Everything else of the commit is delivered,
and what is missing is on record.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, Final
from unittest.mock import patch

import pyarrow as pa
import pytest

from quiver.segment.info import segment_path
from tests.support.faulty import FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.stores import World, flipped, number_of

SMALL: Final[dict[str, Any]] = {
    "segment": {"target_size": "1KiB"},
    "limits": {"max_bundle": "16KiB"},
}
NUMBERS: Final = [1, 2, 3, 4, 5, 6]
FILES: Final = 4

Edit = Callable[[bytes], bytes]


def filled(number: int) -> pa.RecordBatch:
    """A batch that is large enough for a byte of it to be hit."""
    return pa.record_batch(
        {"n": pa.array([number * 1000], pa.int64()), "pad": pa.array([bytes([number]) * 600])}
    )


def stage(world: World, attempt: str, *numbers: int) -> None:
    """Write and finish an attempt."""
    staged = world.store.stage("app", 1, attempt)
    for number in numbers:
        staged.put({"Logs": filled(number)})
    staged.finish()


@dataclass(frozen=True)
class Crash:
    """What a killed process leaves of a commit."""

    files: dict[str, bytes]
    directories: tuple[str, ...]
    staged: tuple[tuple[str, int], ...]
    """The staged files of the commit, in order, and their lengths when it was made."""

    def damaged(self, seq: int, edit: Edit) -> World:
        """The directory, with the file that is, or is to become, a segment damaged."""
        files = dict(self.files)
        path, length = self.staged[seq]
        if path in files:
            edited, behind = edit(files[path][:length]), files[path][length:]
            files[path] = edited + behind if len(edited) == length else edited
        else:
            files[segment_path(seq)] = edit(files[segment_path(seq)])
        return World(MemoryDisk.from_image(files, self.directories), **SMALL)


@cache
def crashes() -> tuple[Crash, ...]:
    """Killed before each rename of a commit of two attempts, of two files each."""
    found: list[Crash] = []
    order: list[str] = []
    world = World(**SMALL)
    world.store.register("reader")
    stage(world, "a", 1, 2, 3)
    stage(world, "b", 4, 5, 6)
    lengths = {path: len(world.raw.image()[path]) for path in world.files("stages/")}
    images: list[tuple[dict[str, bytes], tuple[str, ...]]] = []
    rename = FaultyDisk.rename

    def watched(self: FaultyDisk, source: str, target: str) -> None:
        if source.startswith("stages/") and target.startswith("segments/"):
            images.append((world.raw.image(), tuple(world.raw.directories())))
            order.append(source)
        rename(self, source, target)

    with patch.object(FaultyDisk, "rename", watched):
        world.store.commit("app", 1, ["a", "b"])
        world.store.flush()
    assert len(order) == FILES
    for files, directories in images:
        staged = tuple((path, lengths[path]) for path in order)
        found.append(Crash(files, directories, staged))
    return tuple(found)


def in_a_bundle(data: bytes) -> bytes:
    return flipped(data, 203)


def in_the_footer(data: bytes) -> bytes:
    return flipped(data, len(data) - 42)


DAMAGE: Final[dict[str, tuple[Edit, int]]] = {
    "none": (lambda data: data, 0),
    "a bundle": (in_a_bundle, 1),
    "the footer": (in_the_footer, 0),
    "a bundle and the footer": (lambda data: in_a_bundle(in_the_footer(data)), 1),
    "zeros in a bundle": (lambda data: data[:200] + bytes(60) + data[260:], 1),
    "cut short": (lambda data: data[:-10], 0),
    "a bundle, cut short": (lambda data: in_a_bundle(data)[:-10], 1),
}
STARTS: Final[list[dict[str, Any]]] = [
    {"durability": durability, "deliver": deliver}
    for durability in ("wal", "segment_only")
    for deliver in ("durable", "sealed")
]


def lost_numbers(world: World) -> int:
    return sum(loss.bundles for loss in world.store.losses)


@pytest.mark.parametrize("settings", STARTS, ids=lambda one: "-".join(one.values()))
@pytest.mark.parametrize("kind", DAMAGE)
@pytest.mark.parametrize("published", range(FILES))
def test_damage_costs_the_bundles_it_is_in(
    published: int, kind: str, settings: dict[str, Any]
) -> None:
    """Scenario: a process is killed between two renames of a commit's files; one of them, already
    renamed or not, is damaged; the next start has other settings, and is killed as well.
    Guarantee: the bundles that the damage is in are in the ledger, once; all others come, once,
    under both starts."""
    edit, cost = DAMAGE[kind]
    for seq in range(FILES):
        world = crashes()[published].damaged(seq, edit)
        world.open(**settings)
        first = [
            number_of(bundle["Logs"]) for bundle in world.store.subscribe("reader", follow=False)
        ]
        assert lost_numbers(world) == cost  # some damage is found by the first read
        world.kill()
        assert world.drain() == first
        assert lost_numbers(world) == cost
        assert set(first) <= set(NUMBERS)
        assert len(first) == len(NUMBERS) - cost
        if not cost:
            assert world.store.status().state == "ok", world.store.status().problems
        world.store.flush_progress()
        world.store.maintain()
        world.restart()
        assert world.drain() == []
        assert lost_numbers(world) == cost


def test_damage_found_when_it_is_published() -> None:
    """Scenario: a commit of several files can't be made segments at once; meanwhile the tables of
    one rot, and a bundle of it. Guarantee: while the store runs, its other bundles become a
    segment with the rest of the commit, and the lost one is on record, once, also later."""
    world = World(**SMALL)
    world.store.register("reader")
    stage(world, "a", 1, 2, 3)
    with patch.object(world.store._upkeep, "seal_quietly", lambda: None):
        world.store.commit("app", 1, ["a"])
    path = world.files("stages/")[0]
    inode = world.raw._file(path)[2]
    inode.thawed()[:] = in_a_bundle(in_the_footer(bytes(inode.frozen())))
    world.store.flush()
    assert world.drain() == [2, 3]
    [loss] = world.store.losses
    assert (loss.segment_seq, loss.indexes, dict(loss.subscribers)) == (0, ((0, 1),), {"reader": 1})
    assert any("1 of the 2 bundles of segment 0" in one for one in world.store.status().problems)
    assert world.files("quarantine/")
    assert not world.files("stages/")
    world.kill()
    assert lost_numbers(world) == 1
    assert world.store.status().recovery.lost == ()
