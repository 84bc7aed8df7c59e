"""A key makes a put repeatable: the first one counts, wherever it is by now."""

from __future__ import annotations

import errno

import pytest

from quiver.errors import KeyConflict, LimitExceeded, StorageFull
from quiver.metrics import INGEST_DUPLICATES
from tests.support.faulty import Fault
from tests.support.stores import World, batch


def test_a_repeat_gets_the_first_ref(world: World) -> None:
    """Scenario: the same bundle under the same key, twice. Guarantee: one bundle, one ref,
    and the second answer says that it is a repeat."""
    first = world.put(1, key="k").wait()
    again = world.put(1, key="k")
    assert (again.ref, again.sequence, again.ingestion_ts_ns) == (
        first.ref,
        first.sequence,
        first.ingestion_ts_ns,
    )
    assert again.duplicate
    assert not first.duplicate
    assert again.durable
    assert world.drain() == [1]
    assert world.store.metrics.counter(INGEST_DUPLICATES).value == 1


def test_a_repeat_of_what_is_not_durable_waits_for_the_first(world: World) -> None:
    """Scenario: a repeat comes before the first is synced. Guarantee: it is not called
    durable, and waiting for it makes the first durable."""
    first = world.put(1, key="k")
    again = world.put(1, key="k")
    assert [again.done, first.done] == [False, False]
    again.wait()
    assert first.durable
    assert again.durable
    world.power_cut()
    assert world.drain() == [1]


def test_a_repeat_fails_with_the_first(world: World) -> None:
    """Scenario: the first and its repeat are accepted, then the disk is full. Guarantee:
    both are told, and a third try with the same key is a new put that works."""
    world.put(0).wait()
    world.faulty.strike(Fault(at=0, error=errno.ENOSPC, ops=frozenset({"pwritev"})))
    first = world.put(1, key="k")
    again = world.put(1, key="k")
    with pytest.raises(StorageFull):
        again.wait()
    assert isinstance(first.error, StorageFull)
    third = world.put(1, key="k").wait()
    assert not third.duplicate
    assert world.drain() == [0, 1]


@pytest.mark.parametrize("end", ["kill", "power_cut", "restart"])
@pytest.mark.parametrize("written", [False, True])
def test_a_key_outlives_the_process(world: World, end: str, written: bool) -> None:
    """Scenario: the store ends, cleanly or not, with the bundle in the log or in a segment.
    Guarantee: the key is known afterwards."""
    first = world.put(1, key="k").wait()
    if written:
        world.store.flush()
    getattr(world, end)()
    assert world.put(1, key="k").ref == first.ref
    assert world.drain() == [1]


def test_a_key_outlives_its_segment(world: World) -> None:
    """Scenario: the bundle is finished by all, its segment deleted, the store closed.
    Guarantee: a late repeat is still answered, not taken in again."""
    first = world.put(1, key="k").wait()
    world.store.flush()
    assert world.drain() == [1]
    world.store.maintain()
    assert world.store.segments() == []
    world.restart()
    again = world.put(1, key="k")
    assert again.duplicate
    assert again.ref == first.ref
    assert world.drain() == []


def test_other_content_under_a_known_key_is_refused(world: World) -> None:
    """Scenario: a producer uses a key twice for different data. Guarantee: an error that
    names the first bundle, and nothing is taken in; also after a crash."""
    first = world.put(1, key="k").wait()
    for _ in range(2):
        with pytest.raises(KeyConflict) as caught:
            world.put(2, key="k")
        assert caught.value.details["ref"] == tuple(first.ref)
        world.kill()
    assert world.drain() == [1]


def test_the_window_is_bounded_by_count() -> None:
    """Scenario: a window of three keys and four puts. Guarantee: the oldest key is new
    again, the others are known; the same after a restart."""
    world = World(idempotency={"window_count": 3})
    for n in range(4):
        world.put(n, key=f"k{n}").wait()
    world.restart()
    assert world.put(1, key="k1").duplicate
    assert not world.put(0, key="k0").duplicate


def test_the_window_is_bounded_by_age() -> None:
    """Scenario: a window of ten seconds. Guarantee: a repeat after nine is answered, after
    eleven it is a new bundle."""
    world = World(idempotency={"window_age": "10s"})
    world.put(1, key="k").wait()
    world.clock.advance(9)
    assert world.put(1, key="k").duplicate
    world.clock.advance(2)
    assert not world.put(1, key="k").duplicate


def test_keys_can_be_turned_off() -> None:
    """Scenario: a window of no keys. Guarantee: every put is new, keys still travel."""
    world = World(idempotency={"window_count": 0})
    first, again = world.put(1, key="k").wait(), world.put(1, key="k").wait()
    assert first.ref != again.ref
    assert world.store.meta(again.ref).key == "k"


def test_a_producer_may_hash_the_content_itself(world: World) -> None:
    """Scenario: the content hash is given: two different encodings of the same thing.
    Guarantee: the hash decides what is the same."""
    world.put(1, key="k", content_hash=b"h" * 32).wait()
    assert world.put(2, key="k", content_hash=b"h" * 32).duplicate
    with pytest.raises(KeyConflict):
        world.put(1, key="k", content_hash=b"i" * 32)


def test_an_oversized_key_is_refused(world: World) -> None:
    """Scenario: a key of 257 bytes. Guarantee: refused, by the limit's name."""
    with pytest.raises(LimitExceeded, match="key bytes"):
        world.store.put({"Logs": batch()}, key="x" * 257)


def test_keys_without_a_log() -> None:
    """Scenario: `segment_only`, the bundle sealed, the process killed. Guarantee: the key
    is found in the segment."""
    world = World(durability="segment_only")
    first = world.put(1, key="k").wait()
    world.kill()
    assert world.put(1, key="k").ref == first.ref
