"""Refs: given at ingest, and from `durable` on the same for ever."""

from __future__ import annotations

import errno

import pytest

from quiver import BundleRef
from quiver.errors import QuiverError, UnknownBundle
from tests.support.faulty import Fault
from tests.support.stores import World


@pytest.mark.parametrize("end", ["kill", "power_cut", "restart"])
def test_refs_are_the_same_after_the_end(world: World, end: str) -> None:
    """Scenario: bundles in three segments, one written, one closed by the crash only.
    Guarantee: each is found under the ref and sequence its receipt said."""
    kept = {}
    for n in range(9):
        receipt = world.put(n).wait()
        kept[receipt.ref] = (n, receipt.sequence)
        if n % 3 == 2 and n < 8:
            world.store.flush()
    getattr(world, end)()
    for ref, (n, sequence) in kept.items():
        assert world.number_at(ref) == n
        assert world.store.meta(ref).sequence == sequence
    later = world.put(99).wait()
    assert later.ref > max(kept)
    assert later.sequence > max(sequence for _, sequence in kept.values())


def test_refs_are_the_same_after_crash_upon_crash(world: World) -> None:
    """Scenario: crash, put, crash, put …, with nothing ever written to a segment by hand.
    Guarantee: every ref ever called durable still leads to its bundle."""
    kept: dict[BundleRef, int] = {}
    for n in range(12):
        kept[world.put(n).wait().ref] = n
        world.put(1000 + n)  # never durable
        world.power_cut()
    assert {ref: world.number_at(ref) for ref in kept} == kept
    assert world.drain() == list(range(12))


def test_a_taken_back_ref_is_given_again_only_to_what_is_kept(world: World) -> None:
    """Scenario: a group fails and is taken back. Guarantee: its refs go to the bundles that
    come next, and only those are ever seen."""
    world.put(0).wait()
    world.faulty.strike(Fault(at=0, error=errno.EIO, ops=frozenset({"pwritev"})))
    failed = world.put(1)
    with pytest.raises(QuiverError):
        failed.wait()
    taken = world.put(2).wait()
    assert taken.ref == failed.ref
    world.power_cut()
    assert world.number_at(taken.ref) == 2
    assert world.drain() == [0, 2]


def test_an_unknown_ref_is_told_from_a_deleted_one(world: World) -> None:
    """Scenario: a ref that never was, beside one whose segment went. Guarantee: different
    errors, and a negative index is no way around."""
    ref = world.sealed(1)[0]
    for never in (BundleRef(0, 1), BundleRef(0, -1)):
        with pytest.raises(UnknownBundle):
            world.store.read(never)
    world.drain()
    world.store.maintain()
    with pytest.raises(QuiverError, match="not here any more"):
        world.store.read(ref)
