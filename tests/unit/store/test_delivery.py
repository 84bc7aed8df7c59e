"""Delivery: who gets what, when, in which order, and what becomes of it."""

from __future__ import annotations

import errno
import gc
import threading

import pytest

from quiver import Background, BundleRef, Outcome, SystemClock
from quiver.disk.disk import Disk
from quiver.errors import (
    BundleGone,
    Busy,
    InvalidInput,
    IoFault,
    SlotNotInBundle,
    UnknownBundle,
)
from tests.support.faulty import Fault
from tests.support.segments import data_of
from tests.support.stores import SECONDS, World, batch, flipped, number_of, run_in_threads


def test_durable_bundles_are_delivered_from_memory(world: World) -> None:
    """Scenario: a bundle is durable, its segment unwritten. Guarantee: it is delivered at
    once, and nothing was written for it."""
    world.put_durable(1)
    assert world.drain() == [1]
    assert world.files("segments/0") == []


def test_accepted_bundles_are_not_delivered_before_they_are_durable() -> None:
    """Scenario: a put that nobody waited for, with a background that is not allowed to
    sync yet. Guarantee: a subscriber gets nothing until the sync is done."""
    world = World(wal={"flush": "interval", "flush_interval": "60s"})
    with Background(1, 1) as background:
        store = world.open(background=background)
        reader = store.subscribe("r")
        world.put(1)
        assert reader.next_bundle() is None
        store.sync()
        bundle = reader.next_bundle()
        assert bundle is not None
        store.close()


def test_whoever_looks_makes_staged_bundles_durable(world: World) -> None:
    """Scenario: no background, a put not waited for, a subscriber looks. Guarantee: it gets
    the bundle, and what it got survives a power cut."""
    reader = world.store.subscribe("r", follow=False)
    receipt = world.put(1)
    bundle = reader.next_bundle()
    assert bundle is not None
    assert receipt.durable
    world.power_cut()
    assert world.drain("r") == [1]


def test_sealed_delivery_waits_for_the_segment() -> None:
    """Scenario: `deliver: sealed`. Guarantee: nothing before the segment's file is there,
    all of it afterwards; also after a crash in between."""
    world = World(deliver="sealed")
    world.put_durable(1, 2)
    assert world.drain("r") == []
    world.kill()
    assert world.drain("r") == []
    world.store.flush()
    assert world.drain("r") == [1, 2]


def test_oldest_first(world: World) -> None:
    """Scenario: three segments, the last in memory. Guarantee: delivered as they came."""
    world.sealed(1, 2)
    world.sealed(3, 4)
    world.put_durable(5)
    assert world.drain() == [1, 2, 3, 4, 5]


def test_newest_first_with_backfill(world: World) -> None:
    """Scenario: newest first, and while the backlog is worked off something new comes.
    Guarantee: the new one is next, then the backlog goes on, each bundle once."""
    world.sealed(1, 2)
    world.sealed(3)
    reader = world.store.subscribe("r", order="newest", follow=False)
    seen = []
    for bundle in reader:
        seen.append(number_of(bundle["Logs"]))
        bundle.ack()
        if len(seen) == 2:
            world.put_durable(9)
    assert seen == [3, 2, 9, 1]


def test_own_priorities_by_segments_and_claims(world: World) -> None:
    """Scenario: an application picks by itself: newest segment first, oldest bundle in it.
    Guarantee: segment numbers, pending refs and claims by ref are enough for it."""
    world.sealed(1, 2)
    world.sealed(3, 4)
    reader = world.store.subscribe("r")
    seen = []
    for seq in reversed(world.store.segment_sequences()):
        for ref in reader.pending_bundles_in_range(seq, seq):
            bundle = reader.claim_bundle(ref)
            seen.append(number_of(bundle["Logs"]))
            bundle.ack()
    assert seen == [3, 4, 1, 2]
    assert reader.pending_bundle_count == 0


def test_acks_in_any_order(world: World) -> None:
    """Scenario: three bundles acked back to front, a crash after the flush of two.
    Guarantee: exactly the one not acked comes again."""
    world.put_durable(1, 2, 3)
    reader = world.store.subscribe("r")
    bundles = [reader.next_bundle() for _ in range(3)]
    for bundle in (bundles[2], bundles[0]):
        assert bundle is not None
        bundle.ack()
    reader.flush()
    world.power_cut()
    assert world.drain("r") == [2]


def test_an_ack_is_durable_after_flush(world: World) -> None:
    """Scenario: two acks, a flush between them, the power goes. Guarantee: the first is
    known afterwards, the second is delivered again."""
    world.put_durable(1, 2)
    reader = world.store.subscribe("r")
    for bundle in (reader.next_bundle(), reader.next_bundle()):
        assert bundle is not None
        bundle.ack()
        if number_of(bundle["Logs"]) == 1:
            reader.flush()
    world.power_cut()
    assert world.drain("r") == [2]


def test_rejected_bundles_are_dropped_on_record(world: World) -> None:
    """Scenario: a bundle is rejected. Guarantee: it isn't delivered again, not even after a
    restart, and its outcome is `dropped`, not `acked`."""
    refs = world.put_durable(1, 2)
    reader = world.store.subscribe("r")
    bundle = reader.next_bundle()
    assert bundle is not None
    assert bundle.reject("poison pill") is Outcome.DROPPED
    reader.flush()
    world.power_cut()
    reader = world.store.subscribe("r")
    assert reader.outcome(refs[0]) is Outcome.DROPPED
    assert reader.outcome(refs[1]) is Outcome.PENDING
    assert world.drain("r") == [2]


def test_deferred_bundles_come_back_after_their_delay(world: World) -> None:
    """Scenario: a bundle deferred for ten seconds. Guarantee: others come meanwhile, it
    comes back then and not before."""
    world.put_durable(1, 2)
    reader = world.store.subscribe("r")
    first = reader.next_bundle()
    assert first is not None
    first.defer(10.0)
    second = reader.next_bundle()
    assert second is not None
    assert number_of(second["Logs"]) == 2
    second.ack()
    assert reader.next_bundle() is None
    world.clock.advance(10)
    again = reader.next_bundle()
    assert again is not None
    assert again.ref == first.ref


def test_the_same_bundle_deferred_by_two_at_the_same_moment(world: World) -> None:
    """Scenario: two subscribers defer the same bundle at the same time by the same delay.
    Guarantee: both get it back."""
    world.put_durable(1)
    readers = [world.store.subscribe(name) for name in ("a", "b")]
    for reader in readers:
        bundle = reader.next_bundle()
        assert bundle is not None
        bundle.defer(5.0)
    world.clock.advance(5)
    for reader in readers:
        assert reader.next_bundle() is not None


def test_a_lost_handle_gives_its_bundle_back(world: World) -> None:
    """Scenario: a handle goes out of scope without an outcome, another one leaves a `with`
    block by an exception. Guarantee: both bundles are pending again."""
    world.put_durable(1)
    reader = world.store.subscribe("r")
    bundle = reader.next_bundle()
    assert reader.next_bundle() is None
    del bundle
    gc.collect()
    again = reader.next_bundle()
    assert again is not None
    with pytest.raises(ZeroDivisionError), again:
        raise ZeroDivisionError
    assert reader.outcome(again.ref) is Outcome.PENDING


def test_a_claim_says_why_not(world: World) -> None:
    """Scenario: claiming what is claimed, acked, deleted, or never was. Guarantee: each has
    its own answer."""
    refs = world.sealed(1, 2)
    world.sealed(3)
    reader = world.store.subscribe("r")
    held = reader.claim_bundle(refs[1])
    with pytest.raises(Busy):
        reader.claim_bundle(refs[1])
    reader.claim_bundle(refs[0]).ack()
    with pytest.raises(BundleGone) as caught:
        reader.claim_bundle(refs[0])
    assert caught.value.details["outcome"] == "acked"
    held.ack()
    world.store.maintain()
    with pytest.raises(BundleGone) as caught:
        reader.claim_bundle(refs[0])
    assert caught.value.details["outcome"] == "deleted"
    with pytest.raises(UnknownBundle):
        reader.claim_bundle(BundleRef(77, 0))


def test_what_a_handle_shows(world: World) -> None:
    """Scenario: a bundle with two slots. Guarantee: it reads like a mapping, and a slot it
    doesn't have is the caller's mistake, not damage: the segment stays where it is."""
    world.store.put({"A": batch(1), "B": batch(2)}, attributes={"x": "y"}).wait()
    world.store.put({"C": batch(3)}).wait()
    world.store.flush()
    reader = world.store.subscribe("r")
    bundle = reader.next_bundle()
    assert bundle is not None
    assert set(bundle) == {"A", "B"} == set(bundle.keys())
    assert {slot: number_of(batch) for slot, batch in bundle.items()} == {"A": 1, "B": 2}
    assert bundle.get("C") is None
    assert dict(bundle.attributes) == {"x": "y"}
    with pytest.raises(SlotNotInBundle):
        bundle["C"]
    assert world.files("quarantine") == []
    assert world.store.read(bundle.ref, slots=["C", "nope"]) == {}


def test_each_subscriber_has_its_own_progress(world: World) -> None:
    """Scenario: one is done, one hasn't begun. Guarantee: neither sees the other's acks."""
    world.sealed(1, 2)
    assert world.drain("fast") == [1, 2]
    assert world.drain("slow") == [1, 2]


def test_competing_threads_share_a_subscription(world: World) -> None:
    """Scenario: four threads iterate over one subscription. Guarantee: together they get
    every bundle, each exactly once."""
    world.put_durable(*range(200))
    reader = world.store.subscribe("r", follow=False)
    seen: list[int] = []

    def take() -> None:
        for bundle in reader:
            seen.append(number_of(bundle["Logs"]))
            bundle.ack()

    run_in_threads(take, take, take, take)
    assert sorted(seen) == list(range(200))


def test_no_wake_up_is_lost() -> None:
    """Scenario: a follower waits without a timeout while bundles come one by one, each only
    after the one before was taken. Guarantee: it is woken for each of them."""
    world = World()
    with Background(1, 1) as background:
        store = world.open(background=background)
        reader = store.subscribe("r")
        seen: list[int] = []
        taken = threading.Semaphore(0)

        def follow() -> None:
            for bundle in reader:
                seen.append(number_of(bundle["Logs"]))
                bundle.ack()
                taken.release()

        def produce() -> None:
            for n in range(300):
                world.put(n)
                assert taken.acquire(timeout=SECONDS), f"nobody was woken for {n}"
            store.close()

        run_in_threads(follow, produce)
    assert seen == list(range(300))


def test_a_closing_store_ends_every_follower() -> None:
    """Scenario: several threads follow an empty store, which is closed. Guarantee: their
    loops end; none hangs, none raises."""
    world = World()
    store = world.open(background=True)
    readers = [store.subscribe(f"r{n}") for n in range(3)]
    waiting = threading.Barrier(4)

    def follow(index: int) -> None:
        waiting.wait(SECONDS)
        for _ in readers[index]:
            pytest.fail("there is nothing to deliver")

    def close() -> None:
        waiting.wait(SECONDS)
        store.close()

    run_in_threads(*(lambda n=n: follow(n) for n in range(3)), close)


def test_a_timeout_is_kept_though_others_are_faster() -> None:
    """Scenario: a reader waits a moment on an empty store. Guarantee: it gets `None` after
    that time, by the clock of the machine."""
    world = World()
    world.clock = SystemClock()  # type: ignore[assignment]
    reader = world.store.subscribe("r")
    assert reader.next_bundle(timeout=0.05) is None


def test_taking_needs_an_active_subscriber(world: World) -> None:
    """Scenario: a subscriber was registered and the start-up isn't over. Guarantee: it gets
    a clear refusal; after `activate` it gets its bundle."""
    world.put_durable(1)
    reader = world.store.register("r")
    with pytest.raises(InvalidInput, match="registered"):
        reader.next_bundle()
    assert world.store.activate() == []
    assert reader.next_bundle() is not None


def test_a_drain_ends_though_nothing_is_acked(world: World) -> None:
    """Scenario: somebody looks at everything and acks nothing. Guarantee: the loop ends,
    having shown each bundle once; afterwards all are pending again."""
    world.put_durable(1, 2, 3)
    reader = world.store.subscribe("r", follow=False)
    assert [number_of(bundle["Logs"]) for bundle in reader] == [1, 2, 3]
    assert [number_of(bundle["Logs"]) for bundle in reader] == [1, 2, 3]


def test_a_read_that_fails_does_not_keep_the_claim(world: World) -> None:
    """Scenario: the disk fails while a bundle is fetched for a subscriber. Guarantee: the
    fault is told, the bundle is not taken for damaged, and it is delivered when the disk is
    well again."""
    world.store.subscribe("r")
    world.sealed(1)
    world.restart()
    reader = world.store.subscribe("r")
    world.faulty.strike(
        Fault(at=0, error=errno.EIO, ops=frozenset({"open", "view", "pread"}), under="segments/0")
    )
    with pytest.raises(IoFault):
        reader.next_bundle()
    assert world.files("quarantine/") == []
    bundle = reader.next_bundle()
    assert bundle is not None
    assert number_of(bundle["Logs"]) == 1


def test_a_claim_of_what_turns_out_lost(world: World) -> None:
    """Scenario: a bundle is claimed by its ref, and its segment is damaged. Guarantee: the
    answer is that it is gone, and how; it is not pending any more."""
    world.store.subscribe("r")
    refs = world.sealed(1)
    world.store.close()
    place = data_of(Disk(world.raw), 0, 0)
    world.change("segments/0000000000000000.qseg", lambda data: flipped(data, place))
    world.open()
    reader = world.store.subscribe("r")
    with pytest.raises(BundleGone) as caught:
        reader.claim_bundle(refs[0])
    assert caught.value.details["outcome"] == "lost"
    assert reader.pending_bundle_count == 0
