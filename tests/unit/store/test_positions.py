"""Positions: where the store ends, and finishing by position instead of one by one."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from quiver.errors import StoreClosed
from tests.support.stores import World, batch
from tests.unit.store.test_damage_and_crash import rot


def put(world: World, count: int) -> list[tuple[int, int]]:
    receipts = [world.store.put({"A": batch(n)}) for n in range(count)]
    world.store.sync()
    return [receipt.ref for receipt in receipts]


def test_all_before_a_position_is_finished() -> None:
    """Scenario: bundles in two files and in memory, one of them claimed. Guarantee: what
    lies before the position is finished, claimed or not; the rest is untouched."""
    world = World()
    put(world, 3)
    world.store.flush()
    put(world, 3)
    subscription = world.store.subscribe("s")
    held = subscription.next_bundle()
    assert held is not None
    assert held.ref == (0, 0)
    assert subscription.ack_before((1, 1)) == 4
    assert subscription.ack_before((1, 1)) == 0
    assert subscription.position == (1, 1)
    assert [one.ref for one in world.store.subscribe("s", follow=False)] == [(1, 1), (1, 2)]
    assert held.defer().final


def test_it_lasts_and_frees_segments() -> None:
    """Scenario: finished by position, flushed, and the machine loses power. Guarantee: it
    stays finished, and the segment behind it is deleted."""
    world = World()
    put(world, 3)
    world.store.flush()
    put(world, 2)
    world.store.subscribe("s").ack_before((1, 1))
    world.store.flush_progress()
    world.kill()
    assert [one.ref for one in world.store.subscribe("s", follow=False)] == [(1, 1)]
    world.store.maintain()
    assert world.store.segment_sequences() == [1]


def test_a_position_ahead_finishes_nothing_that_comes() -> None:
    """Scenario: a position behind the end. Guarantee: only what was there is finished."""
    world = World()
    put(world, 2)
    subscription = world.store.subscribe("s")
    assert subscription.ack_before((9, 0)) == 2
    put(world, 1)
    assert subscription.pending_bundle_count == 1
    world.store.close()
    with pytest.raises(StoreClosed):
        subscription.ack_before((9, 0))


def test_the_end_never_goes_back() -> None:
    """Scenario: puts, a flush, all finished and deleted, a restart. Guarantee: the end only
    moves on, and every bundle put later is behind it."""
    world = World()
    seen = [world.store.end]

    def look() -> None:
        seen.append(world.store.end)
        assert seen == sorted(seen)

    for _ in range(2):
        assert put(world, 2)[0] >= seen[-1]
        look()
        world.store.flush()
        look()
        world.store.subscribe("s").ack_before(world.store.end)
        world.store.maintain()
        look()
        assert world.store.segment_sequences() == []
        world.restart()
        look()
        assert world.store.subscribe("s").position == world.store.end


def test_the_end_waits_for_what_is_not_durable() -> None:
    """Scenario: a bundle is accepted and not on disk yet. Guarantee: it is behind the end."""
    world = World(wal={"flush": "interval"})
    put(world, 1)
    end = world.store.end
    ref = world.store.put({"A": batch(1)}).ref
    assert world.store.end == end == ref
    world.store.sync()
    assert world.store.end > ref


def test_the_end_and_transactions() -> None:
    """Scenario: staged bundles are committed between puts, twice. Guarantee: before the commit
    they are behind the end, after it before; the end never goes back, and whoever reads from
    one end to the next sees every bundle once."""
    world = World()
    seen: list[tuple[int, int]] = []
    position = world.store.end

    def read_on() -> None:
        nonlocal position
        end = world.store.end
        assert end >= position
        refs = [(seq, n) for seq, count in world.store.segments() for n in range(count)]
        seen.extend(ref for ref in refs if position <= ref < end)
        position = end

    for version in range(2):
        put(world, 2)
        with world.store.stage("app", version, f"a{version}") as stage:
            stage.put({"A": batch(9)})
            stage.finish()
        read_on()
        put(world, 1)
        world.store.commit("app", version, [f"a{version}"])
        put(world, 1)
        read_on()
    assert seen == [(seq, n) for seq, count in world.store.segments() for n in range(count)]
    assert len(seen) == 2 * 5


def test_a_time_before_a_segment_that_was_just_rebuilt() -> None:
    """Scenario: the older of two segments is damaged; a read has rebuilt it in memory, and its
    file is not written anew yet. Guarantee: a time before all is the position of its first
    bundle, for a reader and for a new subscriber, not that of the next file."""
    world = World()
    put(world, 3)
    world.store.flush()
    first = world.store.meta((0, 0)).ingestion_ts_ns
    assert first is not None
    world.clock.advance(1.0)
    put(world, 3)
    world.store.flush()
    rot(world, 0)
    assert world.store.read((0, 1))
    assert world.store.segment_info(0) is None, "it is in memory"
    assert world.store.position_at(first) == (0, 0)
    when = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=first // 1000)
    assert world.store.subscribe("s", start=when).position == (0, 0)
    assert world.store.position_at(first + 1_000_000_000) == (1, 0)
    assert world.store.position_at(first + 10_000_000_000) == world.store.end
