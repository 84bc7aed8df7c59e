"""What a subscriber rejects is on record before its progress says that it is done."""

from __future__ import annotations

import errno

import pytest

from quiver import BundleRef, Config, Store
from quiver.disk.disk import Disk
from quiver.errors import BundleGone, QuiverError
from quiver.events import BUNDLE_HANDED_OVER
from quiver.format.progress import decode_progress
from quiver.format.state import REJECTED, Loss, decode_state
from quiver.metrics import (
    LEDGER_BUNDLES,
    SEGMENT_DROPPED,
    SUBSCRIBER_DROPPED,
    SUBSCRIBER_HANDED_OVER,
    SUBSCRIBER_REJECTED,
)
from quiver.subscriber.progress import progress_file
from quiver.subscriber.state import Outcome
from tests.support.faulty import FOREVER, Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.segments import data_of
from tests.support.stores import World, ack_all, flipped, run_in_threads

WRITING = frozenset({"create", "pwritev", "fsync", "fsync_dir", "rename", "unlink", "mkdir"})
STATE = "quiver.state"


def rows(store: Store) -> list[tuple[int, dict[str, int], object]]:
    """Segment, counts and indexes of every row; all of them exact rejects."""
    assert all(loss.reason == REJECTED and loss.exact for loss in store.losses)
    return [(loss.segment_seq, dict(loss.subscribers), loss.indexes) for loss in store.losses]


def reject(store: Store, name: str, *refs: tuple[int, int]) -> None:
    subscription = store.subscribe(name, follow=False)
    for ref in refs:
        assert subscription.reject(ref, "no") is Outcome.DROPPED


def spoil(world: World) -> None:
    """Damage the first bundle of the first segment's file. The store must be shut."""
    place = data_of(Disk(world.raw), 0, 0)
    world.change("segments/0000000000000000.qseg", lambda data: flipped(data, place))


def test_a_reject_is_a_row_of_the_ledger(world: World) -> None:
    """Scenario: a handle, and a ref, are rejected and flushed; then a power cut. Guarantee: one row
    per segment and subscriber with the exact bundles; the store is not degraded by it."""
    world.store.subscribe("a")
    world.sealed(0, 1, 2, 3)
    world.sealed(4)
    reader = world.store.subscribe("a", follow=False)
    bundle = reader.claim_bundle((0, 1))
    bundle.reject("broken")
    reject(world.store, "a", (0, 2), (1, 0))
    reader.flush()
    for _ in range(2):
        store = world.store
        assert rows(store) == [(0, {"a": 2}, ((1, 3),)), (1, {"a": 1}, ((0, 1),))]
        assert store.status().state == "ok"
        assert store.status().loss_totals == {"rejected.bundles": 3, "rejected.subscriber.a": 3}
        assert store.metrics.gauge(LEDGER_BUNDLES, reason=REJECTED).value == 3
        shown = store.metrics.counter(SUBSCRIBER_DROPPED, subscriber="a", reason=REJECTED)
        assert shown.value == 3
        assert store.metrics.counter(SEGMENT_DROPPED, reason=REJECTED).value == 0
        world.power_cut()


def test_rows_of_one_segment_are_merged(world: World) -> None:
    """Scenario: rejects come one by one, each made durable, by two subscribers. Guarantee: one row
    for each of the two, which grows; who rejected what stays apart."""
    for name in ("a", "b"):
        world.store.subscribe(name)
    world.sealed(0, 1, 2, 3, 4)
    for index in (4, 0, 1):
        reject(world.store, "a", (0, index))
        world.store.flush_progress(("a",))
    reject(world.store, "b", (0, 4))
    world.store.flush_progress()
    assert rows(world.store) == [(0, {"a": 3}, ((0, 2), (4, 5))), (0, {"b": 1}, ((4, 5),))]
    assert world.store.status().loss_totals["rejected.bundles"] == 4


def test_only_a_reject_is_recorded(world: World) -> None:
    """Scenario: a bundle acked before it is rejected, one rejected twice, one rejected and sought
    back to before anything was durable. Guarantee: one row, for the second."""
    world.store.subscribe("a")
    world.sealed(0, 1, 2)
    reader = world.store.subscribe("a", follow=False)
    reader.ack([(0, 0)])
    assert reader.reject((0, 0)) is Outcome.ACKED
    reject(world.store, "a", (0, 1), (0, 1), (0, 2))
    reader.seek((0, 2))
    reader.flush()
    assert rows(world.store) == [(0, {"a": 1}, ((1, 2),))]


def test_no_crash_leaves_a_reject_without_a_row() -> None:
    """Scenario: rejects in a finished segment and in another are made durable; every call that
    changes the disk fails once. Guarantee: whatever the disk then says is done and dropped is
    on record; after a restart the rest is pending, and rejected again it is counted once."""
    world = World()
    world.store.subscribe("a")
    world.sealed(0, 1)
    world.sealed(2, 3)
    world.store.close()
    image, directories = world.raw.image(), world.raw.directories()
    at, pending_again, done = 0, 0, False
    while not done:
        raw = MemoryDisk.from_image(image, directories)
        faulty = FaultyDisk(raw)
        store = Store(Disk(faulty), Config.load(env={}, reserve=0), where="mem", clock=world.clock)
        store.subscribe("a", follow=False).ack([(0, 0)])
        reject(store, "a", (0, 1), (1, 0))
        faulty.arm(Fault(at, errno.EIO, ops=WRITING))
        try:
            store.flush_progress()
            done = True
        except QuiverError:
            at += 1
        left = raw.durability()
        recorded = decode_state(left.image()[STATE]).losses
        named = {(one.segment_seq, index) for one in recorded for index in _indexes(one)}
        progress = decode_progress(left.image()[progress_file("a")])
        for seq, entry in progress.entries.items():
            dropped = {(seq, index) for index in range(2) if entry.dropped >> index & 1}
            assert dropped <= named, at
        assert named or progress.oldest_incomplete == 0, at
        again = World(MemoryDisk.from_image(left.image(), left.directories()))
        reader = again.store.subscribe("a", follow=False)
        pending_again += reader.outcome(BundleRef(0, 1)) is Outcome.PENDING
        reader.ack([(0, 0)])
        reject(again.store, "a", (0, 1), (1, 0))
        reader.flush()
        assert rows(again.store) == [(0, {"a": 1}, ((1, 2),)), (1, {"a": 1}, ((0, 1),))], at
        assert again.store.status().loss_totals["rejected.bundles"] == 2, at
    assert at > 5
    assert pending_again > at // 2


def _indexes(loss: Loss) -> set[int]:
    return {index for first, end in loss.indexes or () for index in range(first, end)}


def test_acks_are_kept_when_rejects_cant_be(world: World) -> None:
    """Scenario: the checkpoint can't be written. Guarantee: a flush says so, the rejects are
    pending after a crash and on no record, the acks are durable; the next flush makes up for
    it."""
    world.store.subscribe("a")
    world.sealed(0, 1, 2)
    reader = world.store.subscribe("a", follow=False)
    reader.ack([(0, 0)])
    reject(world.store, "a", (0, 1))
    world.faulty.arm(Fault(0, errno.ENOSPC, times=FOREVER, under=STATE))
    with pytest.raises(QuiverError):
        reader.flush()
    cut = world.raw.durability()
    world.faulty.arm()
    reader.flush()
    assert rows(world.store) == [(0, {"a": 1}, ((1, 2),))]
    world.power_cut()
    assert world.store.subscribe("a").outcome(BundleRef(0, 1)) is Outcome.DROPPED
    earlier = World(MemoryDisk.from_image(cut.image(), cut.directories()))
    reader = earlier.store.subscribe("a")
    assert rows(earlier.store) == []
    outcomes = [reader.outcome(BundleRef(0, index)) for index in range(3)]
    assert outcomes == [Outcome.ACKED, Outcome.PENDING, Outcome.PENDING]


def test_a_registration_does_not_make_a_reject_durable(world: World) -> None:
    """Scenario: a subscriber registers again between a reject and the next flush, which writes its
    file. Guarantee: that file hides the reject; the flush records it and writes another one."""
    world.store.subscribe("a")
    world.sealed(0, 1)
    reject(world.store, "a", (0, 1))
    world.store.subscribe("a")
    progress = decode_progress(world.raw.durability().image()[progress_file("a")])
    assert not progress.entries or not progress.entries[0].done
    assert world.store.flush_progress() == 1
    progress = decode_progress(world.raw.durability().image()[progress_file("a")])
    assert progress.entries[0].dropped == 0b10
    assert len(world.store.losses) == 1
    assert world.store.flush_progress() == 0


def test_a_segment_of_rejects_is_deleted_on_record(world: World) -> None:
    """Scenario: everyone has finished a segment, one by rejecting it; upkeep deletes it, or, if it
    was not written yet, leaves it unwritten. Guarantee: the rows are there, after a power cut
    too, and the segment is neither lost nor reclaimed."""
    world.store.subscribe("a")
    world.sealed(0, 1)
    world.put_durable(2)
    world.store.subscribe("a").ack([(0, 0)])
    reject(world.store, "a", (0, 1), (1, 0))
    world.store.flush()
    world.store.maintain()
    assert world.files("segments/0") == []
    for _ in range(2):
        assert rows(world.store) == [(0, {"a": 1}, ((1, 2),)), (1, {"a": 1}, ((0, 1),))]
        assert world.store.status().state == "ok"
        world.power_cut()
    assert not world.store.report.lost
    assert not world.store.report.reclaimed


def test_who_leaves_leaves_its_rejects_on_record(world: World) -> None:
    """Scenario: a subscriber rejects a bundle and is unregistered before a flush. Guarantee: the
    row is durable before its progress file goes."""
    world.store.subscribe("a")
    world.sealed(0, 1)
    reject(world.store, "a", (0, 1))
    world.store.unregister("a")
    world.power_cut()
    assert rows(world.store) == [(0, {"a": 1}, ((1, 2),))]


def test_a_rejected_bundle_is_not_lost(world: World) -> None:
    """Scenario: a keyed bundle is rejected by one subscriber; later its segment is damaged while
    another needs it. Guarantee: before the damage a repeat is a duplicate; the damage is on record
    as such, for the other one only, and then a repeat is stored again."""
    for name in ("a", "b"):
        world.store.subscribe(name)
    world.put(0, key="k").wait()
    world.store.flush()
    reject(world.store, "a", (0, 0))
    world.restart()
    assert world.put(0, key="k").duplicate
    assert world.store.status().state == "ok"
    world.store.close()
    spoil(world)
    world.open()
    assert ack_all(world.store, "b") == 0
    first, loss = world.store.losses
    assert first.reason == REJECTED
    assert (loss.reason, dict(loss.subscribers), loss.bundles) == ("damaged", {"b": 1}, 1)
    assert not world.put(0, key="k").duplicate


def test_damage_to_what_all_had_rejected_is_no_loss(world: World) -> None:
    """Scenario: the only subscriber has rejected two segments that are kept for a while; the file
    of one rots. Guarantee: found at the next open or by a read, it is told as reclaimed and not
    recorded as lost, whatever the ledger says of rejects."""
    world.settings |= {"retention": {"keep_after_finish": 3600}}
    world.store.subscribe("a")
    world.sealed(0)
    world.sealed(1)
    reject(world.store, "a", (0, 0), (1, 0))
    world.store.close()
    sound = world.raw.image()
    spoil(world)
    with pytest.raises(BundleGone):
        world.open().read((0, 0))
    assert "every subscriber had finished" in world.store.status().problems[0]
    assert len(rows(world.store)) == 2
    world.raw = MemoryDisk.from_image(sound, world.raw.directories())
    world.change("segments/0000000000000000.qseg", lambda data: data[:60])
    world.open()
    assert world.store.report.reclaimed == (0,)
    assert len(rows(world.store)) == 2


def test_what_was_lost_before_it_could_be_given_is_no_reject(world: World) -> None:
    """Scenario: a subscriber's next bundle turns out damaged; another subscriber comes later and
    finds it lost. Guarantee: it is on record as damaged, and as rejected by neither."""
    world.store.subscribe("a")
    world.sealed(0, 1)
    world.store.close()
    spoil(world)
    world.open(deliver="durable")
    for name in ("a", "late"):
        assert ack_all(world.store, name) == 1
    world.store.flush_progress()
    assert {loss.reason for loss in world.store.losses} == {"damaged"}


def test_what_is_handed_over_is_no_entry_of_the_ledger(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Scenario: a bundle that is durable in another stream is handed over. Guarantee: it is done
    and stays so, counted and told as handed over; the ledger has no row of it."""
    world.store.subscribe("a")
    world.sealed(0, 1)
    reader = world.store.subscribe("a", follow=False)
    with caplog.at_level("INFO", "quiver"):
        bundle = reader.claim_bundle((0, 0))
        assert bundle.hand_over("other 3.1") is Outcome.DROPPED
        assert bundle.hand_over("other 3.1") is Outcome.DROPPED
    reader.flush()
    metrics = world.store.metrics
    assert metrics.counter(SUBSCRIBER_HANDED_OVER, subscriber="a").value == 1
    assert metrics.counter(SUBSCRIBER_REJECTED, subscriber="a").value == 0
    assert any(getattr(one, "event", "") == BUNDLE_HANDED_OVER for one in caplog.records)
    world.power_cut()
    assert world.store.losses == ()
    assert world.store.subscribe("a").outcome(BundleRef(0, 0)) is Outcome.DROPPED


def test_rejects_by_many_threads_are_counted_exactly(world: World) -> None:
    """Scenario: four subscribers reject and flush at the same time, upkeep beside them. Guarantee:
    every reject is on record once, for the one who rejected it."""
    names = ("a", "b", "c", "d")
    for name in names:
        world.store.subscribe(name)
    refs = [ref for start in range(0, 60, 20) for ref in world.sealed(*range(start, start + 20))]
    world.store.subscribe("slow")

    def refuse(name: str) -> None:
        subscription = world.store.subscribe(name, follow=False)
        for number, ref in enumerate(refs):
            if number % 3:
                subscription.reject(ref)
            else:
                subscription.ack([ref])
            if not number % 5:
                subscription.flush()
        subscription.flush()

    def keep_up() -> None:
        for _ in range(30):
            world.store.maintain()

    run_in_threads(*((lambda name=name: refuse(name)) for name in names), keep_up)
    world.power_cut()
    expected = [number for number in range(60) if number % 3]
    for name in names:
        mine = [loss for loss in world.store.losses if name in loss.subscribers]
        named = sorted(20 * loss.segment_seq + index for loss in mine for index in _indexes(loss))
        assert named == expected
    assert world.store.status().loss_totals["rejected.bundles"] == 4 * len(expected)
