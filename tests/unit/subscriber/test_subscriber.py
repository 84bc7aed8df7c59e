"""One subscriber: claiming, waking and flushing, with several threads."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Sequence

import pyarrow as pa
import pytest

from quiver.disk.disk import Disk
from quiver.disk.seam import Bytes
from quiver.errors import BundleGone, Busy, InvalidInput, UnknownBundle, UnknownSubscriber
from quiver.format.progress import Progress, SegmentProgress, decode_progress
from quiver.format.record import BundleMeta
from quiver.ids import BundleRef
from quiver.subscriber.handle import ClaimedBundle
from quiver.subscriber.state import Order, Outcome, SubscriberState
from quiver.subscriber.subscriber import Status, Subscriber
from tests.support.memory_disk import MemoryDisk

LONG = 30.0


def make(counts: dict[int, int], disk: Disk | None = None) -> Subscriber:
    state = SubscriberState()
    for segment_seq, count in counts.items():
        state.observe(segment_seq, count)
    return Subscriber(disk or Disk(MemoryDisk()), "one", state, Status.ACTIVE, durable=True)


def stored(disk: Disk) -> Progress:
    return decode_progress(disk.read("quiver.sub.one"))


def test_claim_next_in_either_order() -> None:
    """Each call takes one bundle; `None` when all are taken."""
    subscriber = make({0: 2, 1: 1})
    assert subscriber.claim_next() == (0, 0)
    assert subscriber.claim_next(Order.NEWEST) == (1, 0)
    assert subscriber.claim_next() == (0, 1)
    assert subscriber.claim_next() is None
    assert subscriber.claimed == subscriber.outstanding == 3


def test_claim_by_ref_says_why_not() -> None:
    """A bundle that can't be had: claimed, done, deleted and unknown are told apart."""
    subscriber = make({0: 1, 1: 3})
    subscriber.ack(BundleRef(0, 0))
    subscriber.forget(0)
    subscriber.claim(BundleRef(1, 0))
    subscriber.reject(BundleRef(1, 1))
    with pytest.raises(Busy) as busy:
        subscriber.claim(BundleRef(1, 0))
    assert busy.value.retryable
    with pytest.raises(BundleGone) as gone:
        subscriber.claim(BundleRef(1, 1))
    assert gone.value.details["outcome"] == "dropped"
    with pytest.raises(BundleGone) as gone:
        subscriber.claim(BundleRef(0, 0))
    assert gone.value.details["outcome"] == "deleted"
    with pytest.raises(UnknownBundle):
        subscriber.claim(BundleRef(1, 3))


@pytest.mark.parametrize("status", [Status.KNOWN, Status.REGISTERED, Status.ORPHAN])
def test_takes_nothing_before_it_is_active(status: Status) -> None:
    """Who isn't active gets nothing, but can still report what it had."""
    subscriber = make({0: 1})
    subscriber.status = status
    with pytest.raises(InvalidInput, match=str(status)):
        subscriber.claim_next()
    with pytest.raises(InvalidInput):
        subscriber.claim(BundleRef(0, 0))
    assert subscriber.ack(BundleRef(0, 0)) is Outcome.ACKED


def test_questions() -> None:
    """Lag and position, as the status page asks for them."""
    subscriber = make({0: 2, 1: 2})
    subscriber.ack(BundleRef(0, 0))
    assert subscriber.frontier == (0, 1)
    assert subscriber.pending_in(0, 2) == 1
    assert not subscriber.is_complete(0, 2)
    assert subscriber.oldest_incomplete(2) == 0
    assert subscriber.outcome(BundleRef(0, 0)) is Outcome.ACKED
    assert subscriber.pending_bundles_in_range(0, 1, limit=2) == [(0, 1), (1, 0)]
    assert subscriber.pending_bundles_in_range(1, 1, limit=9) == [(1, 0), (1, 1)]


# Waking


def waiting(subscriber: Subscriber) -> tuple[threading.Thread, list[BundleRef | None]]:
    """A consumer that waits for one bundle and claims it."""
    got: list[BundleRef | None] = []

    def consume() -> None:
        ref = None
        while ref is None:
            assert subscriber.wait(LONG)
            ref = subscriber.claim_next()
        got.append(ref)

    thread = threading.Thread(target=consume)
    thread.start()
    return thread, got


@pytest.mark.parametrize("what", ["observe", "release", "abandon", "seek"])
def test_every_way_back_to_pending_wakes(what: str) -> None:
    """A consumer waits; new bundles, released and abandoned ones and a seek all wake it."""
    subscriber = make({0: 1})
    ref = BundleRef(0, 0)
    subscriber.claim(ref)
    if what == "seek":
        subscriber.ack(ref)
    thread, got = waiting(subscriber)
    if what == "observe":
        subscriber.observe(0, 2)
    else:
        getattr(subscriber, what)(ref)
    thread.join(LONG)
    assert got == [BundleRef(0, 1) if what == "observe" else ref]


def test_wait_returns_at_once_when_there_is_work() -> None:
    """No ring needed: the look after arming finds it."""
    assert make({0: 1}).wait(0.0)
    assert not make({}).wait(0.0)


def test_wake_ends_a_wait_without_work() -> None:
    """The store closes: who waits must not sleep on."""
    subscriber = make({})
    woken: list[bool] = []
    thread = threading.Thread(target=lambda: woken.append(subscriber.wait(LONG)))
    thread.start()
    while thread.is_alive():
        subscriber.wake()
        thread.join(0.001)
    assert woken == [True]


def test_no_wake_up_is_lost() -> None:
    """Four consumers, bundles one at a time as fast as they come: each is taken exactly once."""
    total = 2000
    subscriber = make({})
    taken: list[BundleRef] = []
    finished = threading.Event()

    def consume() -> None:
        while not finished.is_set():
            ref = subscriber.claim_next()
            if ref is None:
                subscriber.wait(LONG)
                continue
            subscriber.ack(ref)
            taken.append(ref)
            if len(taken) == total:
                finished.set()
                subscriber.wake()

    threads = [threading.Thread(target=consume) for _ in range(4)]
    for thread in threads:
        thread.start()
    for count in range(1, total + 1):
        subscriber.observe(0, count)
    assert finished.wait(LONG)
    while any(thread.is_alive() for thread in threads):
        subscriber.wake()
        for thread in threads:
            thread.join(0.001)
    assert sorted(taken) == [(0, index) for index in range(total)]


class Resolver:
    """A resolver with nothing to read."""

    def __init__(self, subscriber: Subscriber) -> None:
        self.ack = subscriber.ack
        self.abandon = subscriber.abandon

    def slots(self, ref: BundleRef) -> Sequence[str]:
        return ()

    def read(self, ref: BundleRef, slot: str) -> pa.RecordBatch:
        raise NotImplementedError

    def reject(self, ref: BundleRef, reason: str) -> Outcome:
        raise NotImplementedError

    def hand_over(self, ref: BundleRef, where: str) -> Outcome:
        raise NotImplementedError

    def defer(self, ref: BundleRef, delay: float) -> Outcome:
        raise NotImplementedError


def test_handle_collected_inside_a_locked_region() -> None:
    """The collector destroys a handle while its subscriber's lock is held: no deadlock.

    The bundle comes back with the next look.
    """
    subscriber = make({0: 1})
    ref = subscriber.claim_next()
    assert ref is not None
    cycle: list[object] = [ClaimedBundle(Resolver(subscriber), ref, BundleMeta())]
    cycle.append(cycle)
    with subscriber.locked():
        del cycle
        gc.collect()
    assert subscriber.claimed == 0
    assert subscriber.claim_next() == ref


def test_abandoned_after_its_segment_went() -> None:
    """The segment was deleted before the handle was collected: nothing to give back, no error."""
    subscriber = make({0: 1, 1: 1})
    subscriber.claim(BundleRef(0, 0))
    subscriber.ack(BundleRef(0, 0))
    subscriber.forget(0)
    subscriber.abandon(BundleRef(0, 0))
    assert subscriber.claim_next() == (1, 0)


# Flushing


class CountingDisk(Disk):
    """Counts replaced files, and runs something in the middle of each."""

    def __init__(self, raw: MemoryDisk) -> None:
        super().__init__(raw)
        self.replaced = 0
        self.meanwhile: Callable[[], object] = int

    def replace(self, path: str, data: Bytes | Sequence[Bytes]) -> None:
        self.replaced += 1
        self.meanwhile()
        super().replace(path, data)


def test_many_acks_make_one_write() -> None:
    """A hundred outcomes, one file; without new ones no file at all."""
    disk = CountingDisk(MemoryDisk())
    subscriber = make({0: 200}, disk)
    assert not subscriber.dirty
    for index in range(100):
        subscriber.ack(BundleRef(0, index))
    assert subscriber.flush(1)
    assert not subscriber.flush(1)
    subscriber.ack(BundleRef(0, 0))  # again: nothing new
    assert not subscriber.flush(1)
    assert disk.replaced == 1
    assert stored(disk) == Progress(0, {0: SegmentProgress(200, (1 << 100) - 1)})


def test_ack_during_a_flush_stays_dirty() -> None:
    """An ack after the snapshot isn't in the file: the next flush writes it."""
    disk = CountingDisk(MemoryDisk())
    subscriber = make({0: 2}, disk)
    subscriber.ack(BundleRef(0, 0))
    disk.meanwhile = lambda: subscriber.ack(BundleRef(0, 1))
    subscriber.flush(1)
    assert stored(disk) == Progress(0, {0: SegmentProgress(2, 0b01)})
    assert subscriber.dirty
    assert subscriber.flush(1)
    assert stored(disk) == Progress(1)


def test_failed_flush_stays_dirty() -> None:
    """The file couldn't be written: the outcomes are still to be kept."""
    disk = CountingDisk(MemoryDisk())
    subscriber = make({0: 1}, disk)
    subscriber.ack(BundleRef(0, 0))

    def fail() -> None:
        raise Busy("full")

    disk.meanwhile = fail
    with pytest.raises(Busy):
        subscriber.flush(1)
    assert subscriber.dirty
    disk.meanwhile = int
    assert subscriber.flush(1)
    assert stored(disk) == Progress(1)


def test_flush_and_acks_race() -> None:
    """Acks and flushes from several threads: after a last flush the file has every ack."""
    disk = Disk(MemoryDisk(record=False))
    subscriber = make({0: 4000}, disk)
    stop = threading.Event()

    def flush() -> None:
        while not stop.is_set():
            subscriber.flush(1)

    def ack(first: int) -> None:
        for index in range(first, 4000, 4):
            subscriber.ack(BundleRef(0, index))

    flushers = [threading.Thread(target=flush) for _ in range(2)]
    ackers = [threading.Thread(target=ack, args=(first,)) for first in range(4)]
    for thread in [*flushers, *ackers]:
        thread.start()
    for thread in ackers:
        thread.join(LONG)
    stop.set()
    for thread in flushers:
        thread.join(LONG)
    subscriber.flush(1)
    assert stored(disk) == Progress(1)


# Leaving


def test_leaving() -> None:
    """The file goes, what was left is dropped, and late callers are told."""
    disk = Disk(MemoryDisk())
    subscriber = make({0: 3}, disk)
    subscriber.ack(BundleRef(0, 0))
    subscriber.flush(0)
    subscriber.claim(BundleRef(0, 1))
    assert subscriber.leave() == 2
    assert disk.listdir("") == []
    assert subscriber.ack(BundleRef(0, 1)) is Outcome.DROPPED
    with pytest.raises(UnknownSubscriber):
        subscriber.claim_next()


def test_flush_after_leaving_writes_no_file() -> None:
    """A flush that was late must not bring the subscriber's file back."""
    disk = Disk(MemoryDisk())
    subscriber = make({0: 3}, disk)
    subscriber.leave()
    assert not subscriber.dirty
    assert not subscriber.flush(0)
    assert disk.listdir("") == []
