"""What an open and a repair put on record: exact, or an upper bound that says so; before
anything is given up; and shown by the metrics of the next start."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace

import pytest

from quiver import BundleRef, Config, Store
from quiver.disk.disk import Disk
from quiver.errors import BundleGone, QuiverError
from quiver.format.state import Loss, decode_state, encode_state
from quiver.metrics import LEDGER_BUNDLES, SUBSCRIBER_DROPPED, SUBSCRIBER_LOST
from quiver.offline.dump import dump
from quiver.offline.mend import mend
from quiver.offline.verify import verify
from quiver.upkeep.retention import Eviction
from quiver.upkeep.sweeping import Sweeping
from tests.support.faulty import FOREVER, Fault, FaultyDisk
from tests.support.memory_disk import MemoryDisk
from tests.support.stores import World, batch, flipped

FIRST = "segments/0000000000000000.qseg"


def ack(world: World, name: str, *indexes: int) -> None:
    """Have a subscriber finish bundles of the first segment, and one of the second."""
    subscription = world.store.subscribe(name, follow=False)
    subscription.ack([*((0, index) for index in indexes), (1, 0)])
    subscription.flush()


def closed(acks: dict[str, tuple[int, ...]]) -> World:
    """Three bundles in the first segment, two in the second, and the log has neither."""
    world = World()
    for name in acks:
        world.store.subscribe(name, follow=False)
    world.sealed(1, 2, 3)
    world.sealed(4, 5)
    for name, indexes in acks.items():
        if indexes:
            ack(world, name, *indexes)
    world.store.close()
    return world


def cut(data: bytes) -> bytes:
    """Footer and directory gone: the file can't say any more how many bundles it had."""
    return data[:60]


def opened(world: World) -> tuple[Loss, ...]:
    return world.open().report.lost


def repaired(world: World) -> tuple[Loss, ...]:
    world.raw.locked.clear()
    return mend(Disk(world.raw), world.clock, where="mem").losses


BOTH = pytest.mark.parametrize("act", [opened, repaired])
Act = Callable[[World], tuple[Loss, ...]]


@BOTH
def test_each_bundle_counts_once_and_only_if_somebody_needed_it(act: Act) -> None:
    """Scenario: of three bundles, `a` has finished two and `b` one of those; the file is gone.
    Guarantee: two are lost, named by their indexes: the one that both had finished is not."""
    world = closed({"a": (0, 1), "b": (1,)})
    world.change(FIRST, lambda _: None)
    [loss] = act(world)
    assert (loss.segment_seq, loss.bundles, loss.exact) == (0, 2, True)
    assert loss.indexes == ((0, 1), (2, 3))
    assert dict(loss.subscribers) == {"a": 1, "b": 2}
    ledger = world.store._parts.ledger
    assert [ledger.covers(BundleRef(0, index)) for index in range(3)] == [True, False, True]


@BOTH
def test_what_all_had_finished_is_not_lost(act: Act) -> None:
    """Scenario: a file is gone whose bundles every subscriber had finished. Guarantee: nothing
    is recorded as lost; that a file is gone is told all the same."""
    world = kept_after_finish()
    world.change(FIRST, lambda _: None)
    assert act(world) == ()
    assert world.store.status().losses == ()
    assert world.store.status().loss_totals.get("damaged.bundles", 0) == 0


def kept_after_finish() -> World:
    world = World(retention={"keep_after_finish": "1d"})
    world.store.subscribe("a", follow=False)
    world.sealed(1, 2, 3)
    world.sealed(4, 5)
    ack(world, "a", 0, 1, 2)
    world.store.close()
    assert FIRST in world.raw.image()
    return world


def test_an_open_tells_of_a_file_that_all_had_finished() -> None:
    """Scenario: as above. Guarantee: the report and the status name it, once."""
    world = kept_after_finish()
    world.change(FIRST, lambda _: None)
    store = world.open()
    assert store.report.reclaimed == (0,)
    assert any("segment 0" in problem for problem in store.status().problems)
    assert world.restart().report.reclaimed == ()


@BOTH
def test_an_upper_bound_says_so(act: Act) -> None:
    """Scenario: nobody has progress in a segment, its file can't be read at all, and the
    checkpoint has no count of it: only the sequences around it tell how many bundles it had, and
    the entry that names the slot has one too. Guarantee: what is recorded says that it is an
    upper bound, for every subscriber."""
    world = closed({"idle": ()})
    world.change(FIRST, cut)
    forget_counts(world)
    [loss] = act(world)
    assert loss.exact is False
    assert loss.bundles == 4
    assert dict(loss.subscribers) == {"idle": 4}
    assert world.store.status().loss_totals["damaged.bundles"] == 4


@BOTH
def test_the_slot_name_is_no_bundle(act: Act) -> None:
    """Scenario: the same, but a subscriber has been shown the segment and the next. Guarantee:
    three bundles were lost, not four."""
    world = closed({"a": (0,), "idle": ()})
    world.change(FIRST, cut)
    [loss] = act(world)
    assert (loss.bundles, loss.exact) == (3, True)
    assert dict(loss.subscribers) == {"a": 2, "idle": 3}


def test_a_repair_is_in_the_metrics_of_the_next_start() -> None:
    """Scenario: a repair gives up a segment in which no subscriber has progress. Guarantee: the
    ledger names the subscribers that miss it, and gauge and counter are right in the first
    scrape after the next start, and after the one after that."""
    world = closed({"idle": ()})
    world.change(FIRST, cut)
    [loss] = repaired(world)
    assert loss.bundles
    assert loss.subscribers == {"idle": loss.bundles}
    for store in (world.open(), world.restart()):
        assert store.metrics.gauge(LEDGER_BUNDLES, reason="damaged").value == loss.bundles
        lost = store.metrics.counter(SUBSCRIBER_LOST, subscriber="idle")
        assert lost.value == loss.bundles


def test_without_subscribers_everything_counts() -> None:
    """Scenario: nobody has subscribed yet. Guarantee: what is gone is lost all the same: it was
    kept for those to come."""
    world = World()
    world.sealed(1, 2, 3)
    world.sealed(4)
    world.store.close()
    world.change(FIRST, lambda _: None)
    [loss] = opened(world)
    assert (loss.bundles, loss.exact, dict(loss.subscribers)) == (3, True, {})


@pytest.mark.parametrize("how", ["open", "repair"])
def test_on_record_before_anything_is_given_up(how: str) -> None:
    """Scenario: the open, or the repair, fails at each of its writes in turn, and is done again.
    Guarantee: the damaged file is not moved before the loss is durable, and it is recorded
    once."""
    world = closed({"a": (0,), "idle": ()})
    world.change(FIRST, cut)
    image = world.raw.image()
    writing = frozenset({"create", "pwritev", "fsync", "fsync_dir", "rename", "unlink", "mkdir"})
    at, done = 0, False
    while not done:
        raw = MemoryDisk.from_image(image, ["", "wal", "segments"])
        disk = Disk(FaultyDisk(raw, Fault(at, errno.EIO, ops=writing)))
        config = Config.load(env={}, reserve=0)
        try:
            if how == "repair":
                mend(disk, world.clock, where="mem")
            else:
                Store(disk, config, where="mem", clock=world.clock)
            done = True
        except QuiverError:
            at += 1
        left = raw.image()
        if left.get(FIRST) != image[FIRST]:
            [loss] = decode_state(left["quiver.state"]).losses
            assert loss.segment_seq == 0, at
        again = World(MemoryDisk.from_image(left, ["", "wal", "segments"]))
        if how == "repair":
            repaired(again)
        losses = again.store.status().losses
        assert len(losses) == 1, (at, losses)
        [loss] = losses
        assert again.store.status().loss_totals["damaged.bundles"] == loss.bundles, at
    assert at > 5


def test_a_damaged_file_that_was_deleted_is_not_lost() -> None:
    """Scenario: a crash came between the floor, which says that a segment is deleted, and its
    file's removal; and the file has rotted. Guarantee: the deletion is finished, nothing is
    recorded as lost, and nothing comes back."""
    world = World()
    world.sealed(1, 2)
    rotten = cut(world.raw.image()[FIRST])
    world.drain("a")
    world.store.maintain()
    assert FIRST not in world.raw.image()
    files = {**world.raw.image(), FIRST: rotten}
    world.raw = MemoryDisk.from_image(files, world.raw.directories())
    store = world.open()
    assert store.report.lost == ()
    assert store.report.quarantined == ()
    assert FIRST not in world.raw.image()


def test_losses_that_segments_show_outlive_the_checkpoint() -> None:
    """Scenario: a damaged bundle is on record, and later the checkpoint, with the ledger in it,
    is damaged and repaired. Guarantee: the bundle is on record again, as at most one, and a row
    without a number says that there may have been others."""
    world = closed({"a": (), "b": (1,)})
    message = batch(1).serialize().to_pybytes()
    world.change(FIRST, lambda data: flipped(data, data.index(message) + len(message) // 2))
    store = world.open()
    with pytest.raises(QuiverError):
        store.read((0, 0))
    [before] = store.losses
    store.close()
    world.change("quiver.state", lambda data: flipped(data, 60))
    repaired(world)
    shown, unknown = world.open().losses
    assert (shown.segment_seq, shown.indexes, shown.exact) == (0, before.indexes, False)
    assert shown.subscribers == before.subscribers
    assert (unknown.bundles, unknown.indexes, unknown.exact) == (0, (), False)


@BOTH
def test_sequences_bound_no_transaction(act: Act) -> None:
    """Scenario: the segment of a commit can't be read at all, and its commit is out of the log:
    its three bundles share one sequence. Guarantee: the bound on record is the commit's own
    count, not that of the sequences."""
    world = World()
    world.store.subscribe("idle", follow=False)
    stage = world.store.stage("app", 1, "a")
    for number in range(3):
        stage.put({"Logs": batch(number)})
    stage.finish()
    world.store.commit("app", 1, ["a"])
    world.sealed(4, 5)
    world.store.close()
    world.change(FIRST, cut)
    forget_counts(world)
    [loss] = act(world)
    assert (loss.bundles, loss.exact) == (3, False)


@BOTH
@pytest.mark.parametrize("durability", ["wal", "segment_only"])
@pytest.mark.parametrize("with_commit", [True, False])
@pytest.mark.parametrize("which", [-1, -2])
def test_the_checkpoint_knows_the_counts(
    act: Act, durability: str, with_commit: bool, which: int
) -> None:
    """Scenario: a segment's file is gone, the newest or one before it, of a store that had a
    transaction or none, with a log or without; no subscriber has begun with it. Guarantee: the
    row names its three bundles, exactly, and who misses them; `verify` counts the same."""
    world = with_three_segments(durability, with_commit)
    world.store.close()
    path = [name for name in world.files("segments/") if name.endswith(".qseg")][which]
    world.change(path, lambda _: None)
    assert verify(Disk(world.raw)).lost_bundles == 3
    [loss] = act(world)
    assert (loss.bundles, loss.exact, loss.indexes) == (3, True, ((0, 3),))
    assert dict(loss.subscribers) == {"idle": 3}
    lost = world.store.metrics.counter(SUBSCRIBER_LOST, subscriber="idle")
    assert lost.value == 3


@BOTH
@pytest.mark.parametrize("durability", ["wal", "segment_only"])
@pytest.mark.parametrize("with_commit", [True, False])
def test_without_a_count_the_bound_is_above_the_truth(
    act: Act, durability: str, with_commit: bool
) -> None:
    """Scenario: the same, and the checkpoint has no count of the segment. Guarantee: what is
    recorded is no lower than what is lost, says that it is an upper bound, and names every
    subscriber that may miss something."""
    world = with_three_segments(durability, with_commit)
    world.store.close()
    *_, path = (name for name in world.files("segments/") if name.endswith(".qseg"))
    world.change(path, lambda _: None)
    forget_counts(world)
    [loss] = act(world)
    assert loss.bundles >= 3
    assert not loss.exact
    assert dict(loss.subscribers) == {"idle": loss.bundles}


def with_three_segments(durability: str, with_commit: bool) -> World:
    """Three segments of three bundles each, and the log has none of them."""
    world = World()
    world.store.register("idle")
    if with_commit:  # which needs a log; the store may go without one later
        with world.store.stage("app", 1, "a") as stage:
            stage.put({"Logs": batch(50)})
            stage.finish()
        world.store.commit("app", 1, ["a"])
    world.restart(durability=durability)
    for number in range(3):
        world.sealed(*range(3 * number, 3 * number + 3))
    return world


def forget_counts(world: World) -> None:
    """As if the segments were too old, or too new, for the checkpoint to have counted them."""
    world.change(
        "quiver.state", lambda data: encode_state(replace(decode_state(data), bundle_counts={}))
    )


def test_what_all_had_finished_is_not_lost_to_verify() -> None:
    """Scenario: of three bundles two subscribers have finished the first two; the file is gone.
    Guarantee: `verify` and `dump` count one as lost, as the open does that follows."""
    world = closed({"a": (0, 1), "b": (0, 1)})
    world.change(FIRST, lambda _: None)
    verdict = verify(Disk(world.raw))
    assert verdict.lost_bundles == 1
    assert "0.2" in verdict.problems[0].affects
    assert [one.refs for one in dump(Disk(world.raw), Disk(MemoryDisk())).lost] == [
        (BundleRef(0, 2),)
    ]
    [loss] = opened(world)
    assert loss.bundles == 1


def test_a_series_is_there_before_the_first_loss() -> None:
    """Scenario: a store that has lost nothing. Guarantee: the series that alerts watch are there
    and 0, for each reason and each subscriber, also one that comes later; those of one that is
    unregistered go with it."""
    world = World()
    world.store.register("first")
    world.restart()
    world.store.register("later")
    series = {(one.metric, one.labels): one.value for one in world.store.metrics.snapshot()}
    for reason in ("damaged", "size", "time", "rejected"):
        assert series[LEDGER_BUNDLES, (("reason", reason),)] == 0
    for name in ("first", "later"):
        assert series[SUBSCRIBER_LOST, (("subscriber", name),)] == 0
        for reason in ("size", "time", "rejected"):
            labels = (("subscriber", name), ("reason", reason))
            assert series[SUBSCRIBER_DROPPED, labels] == 0
    world.store.unregister("later")
    left = {(one.metric, one.labels) for one in world.store.metrics.snapshot()}
    assert (SUBSCRIBER_LOST, (("subscriber", "later"),)) not in left
    assert (SUBSCRIBER_LOST, (("subscriber", "first"),)) in left


@BOTH
def test_a_loss_outlives_its_row(act: Act, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: more segments are lost than the ledger keeps rows. Guarantee: of each, also after
    a crash and another start, the bundle is reported as lost and counted once, and the producer
    can send it again."""
    monkeypatch.setattr("quiver.record.ledger.MAX_ENTRIES", 3)
    world, lost = World(), 8
    world.store.subscribe("s", follow=False)
    refs = []
    for number in range(lost):
        receipt = world.put(number, key=f"k{number}")
        world.store.flush()
        refs.append(receipt.wait().ref)
    world.store.close()
    for ref in refs:
        world.change(f"segments/{ref.segment_seq:016}.qseg", lambda _: None)
    assert len(act(world)) == lost
    for _ in range(2):
        store = world.kill()
        assert len(store.losses) == 3
        assert store.status().loss_totals["damaged.bundles"] == lost
        for ref in refs:
            with pytest.raises(BundleGone) as gone:
                store.read(ref)
            assert gone.value.details["outcome"] == "lost"
    again = [world.put(number, key=f"k{number}").wait().ref for number in range(lost)]
    assert not set(again) & set(refs)
    assert world.drain("s") == list(range(lost))
    assert [world.put(number, key=f"k{number}").wait().ref for number in range(lost)] == again


def test_a_log_whose_end_is_gone_is_bounded_by_its_size() -> None:
    """Scenario: every byte of the newest log file has rotted, with two bundles in it. Guarantee:
    the repair records at least those two, says that it is an upper bound, and names the
    subscriber that may miss them."""
    world = World()
    world.store.register("idle")
    world.put_durable(0, 1)
    world.kill()  # a log that is found is never appended to
    world.put_durable(2, 3)
    world.change("wal/quiver.wal", lambda data: b"\xff" * len(data))
    [loss] = repaired(world)
    assert loss.bundles >= 2
    assert not loss.exact
    assert dict(loss.subscribers) == {"idle": loss.bundles}


def test_who_came_after_a_row_was_written_is_in_it() -> None:
    """Scenario: a drop by age is on record and fails behind that; a crash, another subscriber
    comes, and the drop is carried out. Guarantee: the row names both, as do their
    metrics, and each bundle is counted once."""
    world = World(retention={"max_retain_after_ingestion_hours": 1})
    world.store.subscribe("early")
    world.sealed(1, 2)
    world.clock.advance(3700)
    world.faulty.arm(Fault(0, errno.EIO, ops=frozenset({"rename"}), under="quiver.sub."))
    with pytest.raises(QuiverError):
        world.store.maintain()
    world.faulty.heal()
    [row] = world.store.losses
    assert dict(row.subscribers) == {"early": 2}
    world.kill()
    world.store.subscribe("late")
    world.store.maintain()
    assert not world.store.segments()
    for store in (world.store, world.kill()):
        [row] = store.losses
        assert (row.bundles, dict(row.subscribers)) == (2, {"early": 2, "late": 2})
        assert store.status().loss_totals["time.bundles"] == 2
        late = store.metrics.counter(SUBSCRIBER_DROPPED, subscriber="late", reason="time")
        assert late.value == 2


def test_who_comes_while_a_row_is_written_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a subscriber comes between the record of a drop and the drop. Guarantee: the row
    names it too."""
    world = World(retention={"max_retain_after_ingestion_hours": 1})
    world.store.subscribe("early")
    world.sealed(1, 2)
    world.clock.advance(3700)
    original = Sweeping._put_on_record

    def then_come(self: Sweeping, evictions: list[Eviction]) -> None:
        original(self, evictions)
        world.store.subscribe("late")

    monkeypatch.setattr(Sweeping, "_put_on_record", then_come)
    world.store.maintain()
    assert not world.store.segments()
    [row] = world.kill().losses
    assert (row.bundles, dict(row.subscribers)) == (2, {"early": 2, "late": 2})


def rotten() -> World:
    """A subscriber needs three bundles, and the second can't be read any more."""
    world = closed({"a": ()})
    message = batch(2).serialize().to_pybytes()
    world.change(FIRST, lambda data: flipped(data, data.index(message) + len(message) // 2))
    world.open()
    return world


def test_a_row_that_could_not_be_written_is_written_before_the_loss_is_carried_out() -> None:
    """Scenario: a bundle is found damaged, its row does not fit the disk, and it is read again.
    Guarantee: the row is durable before the subscriber's file says that the bundle is gone."""
    world = rotten()
    world.faulty.arm(Fault(0, errno.ENOSPC, times=FOREVER, under="quiver.state"))
    with pytest.raises(QuiverError):
        world.store.read((0, 1))
    world.faulty.heal()
    with pytest.raises(BundleGone):
        world.store.read((0, 1))
    assert not any("had finished" in problem for problem in world.store.status().problems)
    store = world.kill()
    [row] = store.losses
    assert (row.indexes, dict(row.subscribers)) == (((1, 2),), {"a": 1})
    assert store.status().loss_totals["damaged.bundles"] == 1


@pytest.mark.parametrize("carried_out", [True, False])
def test_who_comes_after_damage_is_named_as_long_as_it_was_owed(carried_out: bool) -> None:
    """Scenario: damage is on record, and its segment is written again or that failed; another
    subscriber comes, and the segment is dropped by age. Guarantee: the damage's row names the
    newcomer only if the bundle's place was not empty yet when it came."""
    world = rotten()
    if not carried_out:
        world.faulty.arm(Fault(0, errno.EIO, ops=frozenset({"rename"}), under="quiver.sub."))
    with pytest.raises(QuiverError):
        world.store.read((0, 1))
    world.faulty.heal()
    if carried_out:
        world.store.flush()
    world.kill(retention={"max_retain_after_ingestion_hours": 1})
    world.store.subscribe("late")
    world.clock.advance(3700)
    world.store.maintain()
    rows = [row for row in world.store.losses if row.segment_seq == 0]
    damage = [dict(row.subscribers) for row in rows if row.reason == "damaged"]
    assert damage == [{"a": 1} if carried_out else {"a": 1, "late": 1}]
    assert [(row.bundles, dict(row.subscribers)) for row in rows if row.reason == "time"] == [
        (2, {"a": 2, "late": 2})
    ]
