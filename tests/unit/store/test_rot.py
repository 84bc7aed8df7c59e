"""Bytes of a segment that rot while the store is open: noticed by whoever reads them."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest

from quiver.disk.disk import Disk
from quiver.errors import BundleGone
from quiver.ids import BundleRef
from quiver.segment import segment_path
from quiver.store.store import Store
from tests.support.segments import data_of, rot
from tests.support.stores import World, number_of

PATH = segment_path(0)

WAYS: dict[str, Callable[[Store, BundleRef], object]] = {
    "read": lambda store, ref: number_of(store.read(ref)["Logs"]),
    "read_slot": lambda store, ref: next(map(number_of, store.read_slot([ref], "Logs"))),
    "encoded": lambda store, ref: number_of(store.encoded(ref)["Logs"].batch.decode()),
    "bundles": lambda store, ref: next(
        number_of(slots["Logs"].batch.decode()) for _, slots in store.bundles([ref])
    ),
}


def served() -> tuple[World, list[BundleRef]]:
    """A store whose log no longer has its only segment, which was read from already."""
    world = World()
    world.store.subscribe("r")
    refs = world.sealed(1, 2, 3)
    world.store.close()
    world.open()
    assert world.number_at(refs[0]) == 1
    return world, refs


def place_in(world: World, index: int) -> int:
    """A byte of a bundle's data."""
    return data_of(Disk(world.raw), 0, index)


@pytest.mark.parametrize("way", WAYS)
def test_no_way_of_reading_serves_what_rotted(way: str) -> None:
    """Scenario: a byte of the second bundle rots in a store that has the segment open. Guarantee:
    it is lost, on record, and never other content; nor is any other bundle's."""
    world, refs = served()
    rot(Disk(world.raw), PATH, place_in(world, 1))
    with pytest.raises(BundleGone) as caught:
        WAYS[way](world.store, refs[1])
    assert caught.value.details["outcome"] == "lost"
    status = world.store.status()
    assert status.state == "degraded"
    assert [loss.segment_seq for loss in status.losses] == [0]
    for number, ref in enumerate(refs, 1):
        with suppress(BundleGone):
            assert WAYS[way](world.store, ref) == number


def test_a_subscriber_goes_on_behind_what_rotted() -> None:
    """Scenario: a bundle rots while its segment is open, and a subscriber comes to it.
    Guarantee: it isn't given out; the loop goes on and ends, and the loss is on record."""
    world, _ = served()
    rot(Disk(world.raw), PATH, place_in(world, 0))
    got = world.drain("r")
    assert 1 not in got
    assert world.drain("r") == []
    assert world.store.status().losses


def test_while_the_log_has_it_nothing_is_lost() -> None:
    """Scenario: the same while the log still has the bundles. Guarantee: all are read, from the
    log, and nothing is on record as lost."""
    world = World()
    refs = world.sealed(1, 2, 3)
    assert world.number_at(refs[0]) == 1
    rot(Disk(world.raw), PATH, place_in(world, 1))
    assert [world.number_at(ref) for ref in refs] == [1, 2, 3]
    assert world.store.status().losses == ()
