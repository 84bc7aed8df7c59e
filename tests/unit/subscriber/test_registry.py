"""All subscribers of a store: start-up in two phases, retention, flushing, leaving."""

from __future__ import annotations

import errno
import threading
from collections.abc import Mapping

import pytest

from quiver.config import CorruptProgress
from quiver.disk.disk import Disk
from quiver.errors import (
    InvalidInput,
    InvalidName,
    Poisoned,
    ProgressCorrupt,
    StorageFull,
    StoreClosed,
    UnknownSubscriber,
)
from quiver.format.progress import Progress, SegmentProgress, decode_progress
from quiver.ids import BundleRef
from quiver.segment.segments import Unshown
from quiver.subscriber.progress import scan_progress
from quiver.subscriber.registry import Registry
from quiver.subscriber.subscriber import Subscriber
from tests.support.faulty import Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk


class Numbers:
    """What the owner of segment numbers would say."""

    def __init__(self, counts: Mapping[int, int], growing: int) -> None:
        self.counts = dict(counts)
        self.growing = growing

    def visible(self) -> list[tuple[int, int]]:
        return sorted(self.counts.items())

    def waiting(self) -> list[Unshown]:
        return []

    @property
    def end(self) -> BundleRef:
        return BundleRef(self.growing, self.counts.get(self.growing, 0))

    def hide(self, seq: int) -> None:
        self.counts.pop(seq, None)


class Told(Registry):
    """A registry, and the segments that a test says there are."""

    def __init__(
        self,
        disk: Disk,
        counts: Mapping[int, int] | None = None,
        growing: int | None = None,
        *,
        policy: CorruptProgress = "fail",
    ) -> None:
        counts = counts or {}
        following = max(counts, default=-1) + 1 if growing is None else growing
        self.numbers = Numbers(counts, following)
        super().__init__(disk, self.numbers, policy=policy)

    def observe(self, seq: int, visible: int) -> None:
        self.numbers.counts[seq] = visible
        self.show(lambda: {seq: visible})

    def advance(self, growing: int) -> None:
        self.numbers.growing = growing
        self.show(dict)

    def let_go(self, seq: int, total: int) -> bool:
        return self.retire(seq, total, self.numbers.hide)


def started(disk: Disk | None = None, counts: dict[int, int] | None = None) -> Told:
    """A registry whose start-up is over, with these segments."""
    registry = Told(disk or Disk(MemoryDisk()), counts)
    registry.load({})
    registry.activate()
    return registry


def stored(disk: Disk, name: str) -> Progress:
    return decode_progress(disk.read(f"quiver.sub.{name}"))


def statuses(registry: Registry) -> dict[str, str]:
    return {one.name: str(one.status) for one in registry.subscribers()}


def drain(subscriber: Subscriber) -> list[BundleRef]:
    refs: list[BundleRef] = []
    while (ref := subscriber.claim_next()) is not None:
        subscriber.ack(ref)
        refs.append(ref)
    return refs


# Start-up


def test_two_phase_start() -> None:
    """Known, registered, new: only who was registered is active, the rest are orphans."""
    disk = Disk(MemoryDisk())
    before = started(disk, {0: 2})
    for name in ("back", "away"):
        before.register(name)
    registry = Told(disk, {0: 2}, 1)
    registry.load(scan_progress(disk))
    assert statuses(registry) == {"away": "known", "back": "known"}
    registry.register("back")
    registry.register("new")
    assert statuses(registry) == {"away": "known", "back": "registered", "new": "registered"}
    assert registry.activate() == ["away"] == registry.orphans()
    registry.register("late")
    active = dict.fromkeys(["back", "late", "new"], "active")
    assert statuses(registry) == {"away": "orphan", **active}
    registry.register("away")
    assert registry.orphans() == []


def test_known_resumes_and_ignores_the_start() -> None:
    """A start position is for new subscribers: a known one goes on where it was."""
    disk = Disk(MemoryDisk())
    first = started(disk, {0: 3}).register("one")
    first.ack(BundleRef(0, 0))
    first.flush(1)
    registry = Told(disk, {0: 3}, 1)
    registry.load(scan_progress(disk))
    again = registry.register("one", start=BundleRef(1, 0))
    registry.activate()
    assert drain(again) == [(0, 1), (0, 2)]
    assert registry.register("one") is again


def test_away_for_a_restart_loses_nothing() -> None:
    """A subscriber that isn't there takes part all the same: new segments wait for it."""
    disk = Disk(MemoryDisk())
    started(disk, {0: 1}).register("away")
    registry = Told(disk, {0: 1}, 1)
    registry.load(scan_progress(disk))
    registry.activate()
    registry.observe(1, 2)
    assert not registry.is_complete(1, 2)
    assert registry.oldest_incomplete() == 0
    assert not registry.all_drained()
    assert drain(registry.register("away")) == [(0, 0), (1, 0), (1, 1)]


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (BundleRef(0, 0), [(3, 0), (3, 1), (4, 0), (4, 1), (4, 2)]),
        (BundleRef(4, 2), [(4, 2)]),
        (BundleRef(3, 1), [(3, 1), (4, 0), (4, 1), (4, 2)]),
    ],
)
def test_starts_of_a_new_one(start: BundleRef, expected: list[tuple[int, int]]) -> None:
    """Earliest, latest in the open segment, a ref: each survives a crash right afterwards."""
    disk = Disk(MemoryDisk())
    registry = started(disk, {3: 2})
    registry.observe(4, 2)
    registry.register("one", start)
    again = Told(disk, {3: 2, 4: 3}, 4)
    again.load(scan_progress(disk))
    subscriber = again.register("one")
    again.activate()
    assert drain(subscriber) == expected


def test_registering_is_durable() -> None:
    """On return the file is there: a subscriber at `latest` doesn't lose its place."""
    raw = MemoryDisk()
    started(Disk(raw)).register("one")
    durability = raw.durability()
    assert "quiver.sub.one" in durability.entries
    assert not durability.pending_entries


def test_failed_registration_leaves_nothing() -> None:
    """No room for the file: not registered, nothing holds data back, and it works later."""
    raw = MemoryDisk(capacity=10)
    registry = started(Disk(raw), {0: 1})
    with pytest.raises(StorageFull):
        registry.register("one")
    with pytest.raises(UnknownSubscriber):
        registry.get("one")
    assert raw.image() == {}
    raw.capacity = None
    assert drain(registry.register("one")) == [(0, 0)]


@pytest.mark.parametrize("name", ["", "a b", "../x", "con", "x" * 65])
def test_names_are_checked(name: str) -> None:
    """A name becomes a file name: others are refused before anything is written."""
    registry = started()
    with pytest.raises(InvalidName):
        registry.register(name)
    assert registry.subscribers() == []


def test_damage_goes_by_the_policy() -> None:
    """`fail` stops the load; `earliest` goes on, reports, and replaces the file when flushed."""
    raw = MemoryDisk.from_image({"quiver.sub.one": b"junk"})
    disk = Disk(raw)
    with pytest.raises(ProgressCorrupt):
        Told(disk, {0: 2}).load(scan_progress(disk))
    registry = Told(disk, {0: 2}, 1, policy="earliest")
    (report,) = registry.load(scan_progress(disk, ["one"]))
    assert report.problem is not None
    assert report.copy is not None
    assert raw.image()[report.copy] == b"junk"
    assert registry.dirty == ["one"]
    registry.flush()
    assert stored(disk, "one") == Progress(0)


def test_missing_file_of_a_known_one_under_latest() -> None:
    """`latest`: what is there is skipped, on record in a new file; what comes is delivered."""
    disk = Disk(MemoryDisk())
    registry = Told(disk, {0: 2}, 1, policy="latest")
    (report,) = registry.load(scan_progress(disk, ["one"]))
    assert "missing" in str(report.problem)
    subscriber = registry.register("one")
    registry.activate()
    assert stored(disk, "one") == Progress(1)
    registry.observe(1, 1)
    assert drain(subscriber) == [(1, 0)]


def test_leftovers_of_a_crash_go_at_load() -> None:
    """A registration cut short by a crash leaves no subscriber and no file."""
    raw = MemoryDisk.from_image({"quiver.sub.one.tmp": b"half"})
    disk = Disk(raw)
    registry = Told(disk, {}, 0)
    assert registry.load(scan_progress(disk)) == []
    assert raw.image() == {}


# Leaving


def test_unregister() -> None:
    """Pending becomes dropped, the file goes for good, and its segments are free."""
    raw = MemoryDisk()
    registry = started(Disk(raw), {0: 2, 1: 1})
    registry.register("stays").ack(BundleRef(0, 0))
    registry.get("stays").ack(BundleRef(0, 1))
    registry.register("leaves")
    assert not registry.is_complete(0, 2)
    assert registry.unregister("leaves") == 3
    assert registry.is_complete(0, 2)
    durability = raw.durability()
    assert "quiver.sub.leaves" not in durability.entries
    assert not durability.pending_entries
    with pytest.raises(UnknownSubscriber):
        registry.unregister("leaves")


@pytest.mark.parametrize("busy", [False, True])
def test_leaving_is_work_for_upkeep(busy: bool) -> None:
    """Scenario: one of two is removed, whether it ever did something or not. Guarantee: that
    counts as a change, so what only it held is looked at. (One that never acked anything left
    no trace, and its data stayed until somebody else did something.)"""
    registry = started(counts={0: 2})
    registry.register("stays")
    leaves = registry.register("leaves")
    if busy:
        drain(leaves)
    before = registry.changes
    registry.unregister("leaves")
    assert registry.changes > before


def test_who_comes_back_starts_fresh() -> None:
    """After unregister nothing of the old progress is left."""
    registry = started(counts={0: 2})
    registry.register("one").ack(BundleRef(0, 0))
    registry.unregister("one")
    assert len(drain(registry.register("one"))) == 2


def test_failed_unregister_changes_nothing() -> None:
    """The file can't be removed: the subscriber is as it was, its data still held."""
    faulty = FaultyDisk(
        MemoryDisk(), Fault(0, error=errno.EIO, ops=frozenset({"fsync_dir"}), after=True)
    )
    disk = Disk(MemoryDisk())
    registry = started(disk, {0: 2})
    subscriber = registry.register("one")
    disk.raw = faulty
    with pytest.raises(Poisoned):
        registry.unregister("one")
    assert registry.get("one") is subscriber
    assert subscriber.outstanding == 2
    assert not registry.is_complete(0, 2)


def test_drop_orphan() -> None:
    """Only an orphan can be dropped; then what it held is free."""
    disk = Disk(MemoryDisk())
    first = started(disk, {0: 2})
    for name in ("here", "gone"):
        first.register(name)
    registry = Told(disk, {0: 2}, 1)
    registry.load(scan_progress(disk))
    drain_me = registry.register("here")
    registry.activate()
    drain(drain_me)
    with pytest.raises(InvalidInput, match="active"):
        registry.drop_orphan("here")
    with pytest.raises(UnknownSubscriber):
        registry.drop_orphan("nobody")
    assert not registry.all_drained()
    assert registry.drop_orphan("gone") == 2
    assert registry.all_drained()
    assert disk.listdir("") == ["quiver.sub.here"]


# Retention


def test_without_subscribers_nothing_is_finished() -> None:
    """An empty registry must not look like everyone being done."""
    registry = started(counts={0: 1})
    assert not registry.is_complete(0, 1)
    assert not registry.let_go(0, 1)
    assert registry.oldest_incomplete() is None
    assert registry.all_drained()


def test_drop_oldest_is_on_record_before_the_file_goes() -> None:
    """Dropped, flushed, forgotten: the file says dropped, nobody is stuck, newcomers skip it."""
    disk = Disk(MemoryDisk())
    registry = started(disk, {0: 3, 1: 1})
    slow, done = registry.register("slow"), registry.register("done")
    drain(done)
    held = slow.claim_next()
    assert held == (0, 0)
    assert registry.drop_segment(0, 3, registry.numbers.hide) == {"slow": 3}
    assert registry.flush() == 2
    assert stored(disk, "slow") == Progress(1, {0: SegmentProgress(3, 0b111, 0b111)})
    assert drain(registry.register("new")) == [(1, 0)]
    assert registry.forget(0) == {}
    assert slow.ack(held) == "dropped"
    assert drain(slow) == [(1, 0)]
    registry.advance(2)
    registry.flush()
    assert stored(disk, "slow") == Progress(2)


def test_retire_needs_everyone() -> None:
    """A segment is retired when all are done with it; then neither seek nor register sees it."""
    registry = started(counts={0: 1, 1: 1})
    one, two = registry.register("one"), registry.register("two")
    drain(one)
    assert not registry.let_go(0, 1)
    one.seek(BundleRef(0, 0))  # still possible: it wasn't retired
    drain(one)
    drain(two)
    assert registry.let_go(0, 1)
    one.seek(BundleRef(0, 0))
    assert drain(one) == [(1, 0)]
    assert drain(registry.register("three")) == [(1, 0)]
    assert registry.forget(0) == {}


def test_retire_and_seek_race() -> None:
    """Seeks run against retire: a segment that was retired is delivered to nobody again."""
    registry = started(counts=dict.fromkeys(range(200), 1))
    subscriber = registry.register("one")
    drain(subscriber)
    retired: set[int] = set()

    def retire() -> None:
        retired.update(n for n in range(200) if registry.let_go(n, 1))

    thread = threading.Thread(target=retire)
    thread.start()
    subscriber.seek(BundleRef(0, 0))
    thread.join(30)
    assert not {ref.segment_seq for ref in drain(subscriber)} & retired


def test_forgetting_unfinished_work_is_told() -> None:
    """A segment deleted by others costs bundles: the registry says whose and how many."""
    registry = started(counts={0: 2})
    registry.register("one")
    registry.numbers.hide(0)
    assert registry.forget(0) == {"one": 2}
    assert registry.register("two").outstanding == 0


# Files


def test_flush_some_or_all() -> None:
    """Only those asked for are written, and only if they have something to say."""
    disk = Disk(MemoryDisk())
    registry = started(disk, {0: 2})
    for name in ("one", "two", "three"):
        registry.register(name)
    registry.get("one").ack(BundleRef(0, 0))
    registry.get("two").ack(BundleRef(0, 1))
    assert registry.dirty == ["one", "two"]
    assert registry.flush(["one", "three"]) == 1
    assert registry.dirty == ["two"]
    assert registry.flush() == 1
    assert registry.flush() == 0
    with pytest.raises(UnknownSubscriber):
        registry.flush(["nobody"])


def test_one_failing_flush_does_not_stop_the_others() -> None:
    """The first file can't be written: the others are, and the error is raised."""
    disk = Disk(MemoryDisk())
    registry = started(disk, {0: 1})
    for name in ("one", "two"):
        registry.register(name).ack(BundleRef(0, 0))
    fault = Fault(0, error=errno.ENOSPC, ops=frozenset({"pwritev"}))
    disk.raw = FaultyDisk(disk.raw, fault)
    with pytest.raises(StorageFull):
        registry.flush()
    assert registry.dirty == ["one"]
    assert stored(disk, "two") == Progress(1)
    assert registry.flush() == 1


def test_finalizing_is_news_only_for_who_is_done() -> None:
    """A finalized segment moves the position of who finished it, and of nobody else."""
    disk = Disk(MemoryDisk())
    registry = Told(disk, {}, 0)
    registry.load({})
    fast, slow = registry.register("fast"), registry.register("slow")
    registry.activate()
    registry.observe(0, 2)
    drain(fast)
    slow.ack(BundleRef(0, 1))
    registry.flush()
    registry.advance(1)
    assert registry.dirty == ["fast"]
    registry.flush()
    assert stored(disk, "fast") == Progress(1)
    assert stored(disk, "slow") == Progress(0, {0: SegmentProgress(2, 0b10)})


def test_shut() -> None:
    """Closing the store ends every wait; nobody comes any more and no file is written."""
    registry = started(counts={0: 1})
    subscriber = registry.register("one")
    subscriber.claim_next()
    thread = threading.Thread(target=lambda: subscriber.wait(30))
    thread.start()
    while thread.is_alive():
        registry.shut(StoreClosed("closed."))
        thread.join(0.001)
    subscriber.ack(BundleRef(0, 0))
    with pytest.raises(StoreClosed):
        subscriber.flush(1)
    with pytest.raises(StoreClosed):
        registry.register("late")


# The walk-through of the architecture document


def test_two_exporters_and_segment_120() -> None:
    """Two exporters drain segment 120, each at its pace and with its own file.

    Three bundles arrive in the open segment and can be taken at once.  One exporter acks
    them in order; the other gives one back, retries it, and acks out of order.  Only when
    both files say that 120 is finished may it go.
    """
    disk = Disk(MemoryDisk())
    registry = Told(disk, {}, 120)
    registry.load({})
    parquet, otlp = registry.register("parquet_exporter"), registry.register("otlp_exporter")
    registry.activate()
    for visible in (1, 2, 3):
        registry.observe(120, visible)

    assert drain(parquet) == [(120, 0), (120, 1), (120, 2)]
    registry.flush()
    assert stored(disk, "parquet_exporter") == Progress(
        120, {120: SegmentProgress(3, 0b111)}
    )  # the segment is still open

    refs = [otlp.claim_next() for _ in range(3)]
    assert refs == [(120, 0), (120, 1), (120, 2)]
    otlp.ack(BundleRef(120, 2))
    otlp.release(BundleRef(120, 0))  # a transient failure: the progress never hears of it
    otlp.ack(BundleRef(120, 1))
    registry.advance(121)  # finalized
    registry.flush()
    assert stored(disk, "otlp_exporter") == Progress(120, {120: SegmentProgress(3, 0b110)})
    assert not registry.let_go(120, 3)

    retry = BundleRef(120, 0)
    otlp.claim(retry)
    otlp.ack(retry)
    assert registry.let_go(120, 3)
    registry.flush()
    for name in ("parquet_exporter", "otlp_exporter"):
        assert stored(disk, name) == Progress(121)

    again = Told(disk, {120: 3}, 121)
    again.load(scan_progress(disk))
    assert again.all_drained()
    assert again.oldest_incomplete() == 121
