"""Staged writes: seen together and once, or not at all."""

from __future__ import annotations

import errno

import pytest

from quiver import Background, MemoryBudget, Stage, Store
from quiver.errors import (
    Backpressure,
    InvalidInput,
    LimitExceeded,
    NotFound,
    StageNotFound,
    StorageFull,
    StoreClosed,
)
from quiver.format.segment.stage import StageKey, stage_path
from quiver.ids import BundleRef
from tests.support.faulty import FOREVER, Fault
from tests.support.stores import World, batch, number_of, payload


def stage(store: Store, attempt: str, *numbers: int, app: str = "app", version: int = 0) -> None:
    with store.stage(app, version, attempt) as one:
        for number in numbers:
            one.put({"Logs": batch(number)})
        one.finish()


def seen(store: Store) -> list[int]:
    """Every bundle that can be read, in order."""
    refs = [BundleRef(seq, index) for seq, count in store.segments() for index in range(count)]
    return [number_of(store.read(ref)["Logs"]) for ref in refs]


def test_nothing_is_seen_before_the_commit_and_all_of_it_behind(world: World) -> None:
    """Scenario: two attempts, one that loses, a put between. Guarantee: the winners' bundles
    appear with the commit, in the order of the attempts, and what lost never does."""
    store = world.store
    world.put(1).wait()
    stage(store, "a", 10, 11)
    stage(store, "b", 12)
    stage(store, "loser", 99)
    assert seen(store) == [1]
    assert [one.attempt for one in store.stages()] == ["a", "b", "loser"]
    answer = store.commit("app", 0, ["a", "b"])
    assert (answer.bundles, answer.rows, answer.repeated) == (3, 9, False)
    assert answer.first_ref == BundleRef(1, 0)
    assert seen(store) == [1, 10, 11, 12]
    assert store.stages() == []
    assert world.files("stages/") == []
    world.put(2).wait()
    assert seen(store) == [1, 10, 11, 12, 2]


@pytest.mark.parametrize("end", ["restart", "kill", "power_cut"])
def test_a_commit_that_comes_again_does_nothing(world: World, end: str) -> None:
    """Scenario: the answer to a commit is lost, the client sends it again, before and behind
    a restart. Guarantee: the same answer with ``repeated``, nothing twice; a lower version
    is a repeat, too."""
    stage(world.store, "a", 1, version=4)
    first = world.store.commit("app", 4, ["a"])
    for _ in range(2):
        again = world.store.commit("app", 4, ["a"])
        assert again.repeated
        assert (again.first_ref, again.bundles, again.rows) == (first.first_ref, 1, 3)
        assert world.store.commit("app", 3, ["anything"]).repeated
        assert world.store.committed("app") == 4
        assert seen(world.store) == [1]
        getattr(world, end)()
    assert world.store.committed("other") is None


@pytest.mark.parametrize("end", ["restart", "kill", "power_cut"])
def test_a_finished_stage_outlives_the_process(world: World, end: str) -> None:
    """Scenario: finished, then the process ends; another stage was not finished. Guarantee:
    the first can be committed, the second is gone with all its files."""
    stage(world.store, "a", 1, 2)
    unfinished = world.store.stage("app", 0, "b")
    unfinished.put({"Logs": batch(3)})
    getattr(world, end)()
    assert world.store.staged("app", 0, "a").bundles == 2
    with pytest.raises(StageNotFound):
        world.store.commit("app", 0, ["a", "b"])
    assert seen(world.store) == []
    world.store.commit("app", 0, ["a"])
    assert seen(world.store) == [1, 2]


def test_a_crash_between_the_entry_and_the_segments_is_ended_by_the_next_start() -> None:
    """Scenario: the commit's entry is durable, its three files are no segments yet, and the
    power goes. Guarantee: the next start shows all of it, before what was put behind."""
    world = World(segment={"max_bundles": 2, "target_size": 512})
    store = world.store
    stage(store, "a", *range(6))
    store._upkeep.seal_quietly = lambda: None  # type: ignore[method-assign]
    assert store.commit("app", 0, ["a"]).segments == 3
    assert seen(store) == []
    world.put(50).wait()
    world.power_cut()
    assert seen(world.store) == [0, 1, 2, 3, 4, 5, 50]
    assert world.store.commit("app", 0, ["a"]).repeated
    assert world.store.status().state == "ok"


def test_half_of_a_commit_is_never_seen_on_a_full_disk() -> None:
    """Scenario: the disk is full when the second of two files is to become a segment, also
    at the next start. Guarantee: the commit is answered, nothing of it is seen until all
    of it can be; then it is."""
    world = World(segment={"max_bundles": 2, "target_size": 512})
    store = world.store
    stage(store, "a", 1, 2, 3, 4)
    full = Fault(
        at=1, error=errno.ENOSPC, ops=frozenset({"pwritev"}), under="stages/", times=FOREVER
    )
    world.faulty.strike(full)
    assert not store.commit("app", 0, ["a"]).repeated
    assert len(world.files("segments/0")) == 1
    assert seen(store) == []
    with pytest.raises(NotFound):
        store.read((0, 0))
    world.faulty.heal()
    store.maintain()
    assert seen(store) == [1, 2, 3, 4]


def test_a_log_that_cannot_take_the_entry_leaves_everything_as_it_was(world: World) -> None:
    """Scenario: the disk is full when the commit's entry is written. Guarantee: it fails,
    nothing is seen, the stages wait, and the same commit works once there is room."""
    stage(world.store, "a", 1)
    stage(world.store, "b", 2)
    world.faulty.strike(Fault(at=0, error=errno.ENOSPC, ops=frozenset({"pwritev"}), under="wal/"))
    with pytest.raises(StorageFull):
        world.store.commit("app", 0, ["a", "b"])
    world.faulty.heal()
    assert world.store.committed("app") is None
    assert [one.attempt for one in world.store.stages()] == ["a", "b"]
    assert len(world.files("stages/")) == 2
    world.put(7).wait()
    assert not world.store.commit("app", 0, ["a", "b"]).repeated
    assert seen(world.store) == [7, 1, 2]


def test_abort_and_discard_leave_nothing(world: World) -> None:
    """Scenario: a transaction is aborted while one of its stages is being written. Guarantee:
    no file is left, the writer is told, the same version can be tried again; a committed
    transaction is not undone."""
    store = world.store
    stage(store, "a", 1)
    writing = store.stage("app", 0, "b")
    writing.put({"Logs": batch(2)})
    with store.stage("app", 0, "c") as third:
        third.put({"Logs": batch(3)})
    assert store.abort("app", 0) == 2
    assert world.files("stages/") == []
    assert store.status().usage.stages == 0
    for call in (writing.finish, lambda: writing.put({"Logs": batch(2)})):
        with pytest.raises(StageNotFound):
            call()
    stage(store, "again", 4)
    store.commit("app", 0, ["again"])
    assert store.abort("app", 0) == 0
    assert seen(store) == [4]


def test_one_attempt_alone_can_be_aborted(world: World) -> None:
    """Scenario: a task gives up its own attempt. Guarantee: only that goes; stages of versions
    before the one that is committed go with the commit."""
    store = world.store
    stage(store, "old", 1, version=0)
    stage(store, "a", 2, version=1)
    stage(store, "b", 3, version=1)
    assert store.abort("app", 1, ["b", "unknown"]) == 1
    assert [one.attempt for one in store.stages()] == ["old", "a"]
    store.commit("app", 1, ["a"])
    assert store.stages() == []
    assert seen(store) == [2]


def test_small_stages_become_one_segment_and_large_ones_stay() -> None:
    """Scenario: twenty attempts with one small bundle each, and one with a large one.
    Guarantee: two segments; every bundle once, each attempt's in its order."""
    world = World(segment={"target_size": 20_000})
    for number in range(20):
        stage(world.store, f"a{number}", number)
    with world.store.stage("app", 0, "large") as one:
        one.put({"Blob": payload(30_000)})
        one.put({"Logs": batch(30)})
        one.finish()
    answer = world.store.commit("app", 0, [*(f"a{n}" for n in range(20)), "large"])
    assert (answer.segments, answer.bundles) == (2, 22)
    [large, small] = world.store.segments()
    assert (large[1], small[1]) == (1, 21)
    refs = [BundleRef(small[0], index) for index in range(21)]
    assert [number_of(world.store.read(r)["Logs"]) for r in refs] == [*range(20), 30]


def test_stages_expire_on_record(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario: nobody commits for a day, one stage finished and one not. Guarantee: upkeep
    removes both, says so, and a commit is told to write again."""
    stage(world.store, "a", 1)
    idle = world.store.stage("app", 0, "b")
    world.clock.advance(86_000)
    world.store.maintain()
    assert len(world.store.stages()) == 2
    world.clock.advance(1_000)
    with caplog.at_level("WARNING", logger="quiver"):
        world.store.maintain()
    assert world.store.stages() == []
    assert world.files("stages/") == []
    assert sum("quiver.stage.expired" in line for line in caplog.messages) == 2
    with pytest.raises(StageNotFound, match="write it again"):
        world.store.commit("app", 0, ["a"])
    with pytest.raises(StageNotFound):
        idle.finish()


def test_damage_to_a_waiting_stage_is_found_by_the_commit(world: World) -> None:
    """Scenario: a byte of a finished stage changes while the store is shut. Guarantee: the
    commit is refused with what to do, nothing is seen, the file is set aside, on record."""
    stage(world.store, "a", 1, 2)
    stage(world.store, "b", 3)
    world.store.close()
    path = _path_of("app", 0, "a")
    world.change(path, lambda data: data[:200] + bytes([data[200] ^ 1]) + data[201:])
    with pytest.raises(StageNotFound, match="Nothing was committed"):
        world.store.commit("app", 0, ["a", "b"])
    assert seen(world.store) == []
    assert len(world.files("quarantine/")) == 1
    assert world.store.status().problems
    stage(world.store, "again", 1, 2)
    world.store.commit("app", 0, ["again", "b"])
    assert seen(world.store) == [1, 2, 3]


def test_lost_before_it_was_a_segment() -> None:
    """Scenario: committed, the power goes before it is a segment, and the file vanishes.
    Guarantee: the loss is in the ledger, once, with its bundles; the store goes on."""
    world = World()
    stage(world.store, "a", 1, 2)
    world.store._upkeep.seal_quietly = lambda: None  # type: ignore[method-assign]
    world.store.commit("app", 0, ["a"])
    world.put(9).wait()
    world.change(_path_of("app", 0, "a"), lambda data: None)
    store = world.open()
    assert seen(store) == [9]
    [loss] = store.status().losses
    assert (loss.segment_seq, loss.bundles, loss.reason) == (0, 2, "damaged")
    assert store.report.degraded
    assert store.committed("app") == 0
    world.restart()
    assert len(world.store.status().losses) == 1
    assert seen(world.store) == [9]


def test_the_version_outlives_the_log() -> None:
    """Scenario: many puts behind a commit, until its log file is gone; everything is finished
    and deleted. Guarantee: the commit is still known, through the checkpoint."""
    world = World(
        wal={"rotation_target": 512, "max_size": 16_384},
        segment={"max_bundles": 2, "target_size": 1024},
        limits={"max_bundle": 2048, "max_unsynced": 4096},
    )
    subscription = world.store.subscribe("a")
    stage(world.store, "a", 1)
    world.store.commit("app", 7, [])
    stage(world.store, "b", 2, version=8)
    world.store.commit("app", 8, ["b"])
    for number in range(20):
        world.put(number).wait()
        bundle = subscription.next_bundle()
        if bundle is not None:
            bundle.ack()
        world.store.maintain()
    for bundle in world.store.subscribe("a", follow=False):
        bundle.ack()
    world.store.flush()
    world.store.maintain()
    world.power_cut()
    assert world.store.committed("app") == 8
    assert world.store.commit("app", 8, ["b"]).repeated


def test_slot_ids_of_a_stage_keep_their_names(world: World) -> None:
    """Scenario: a stage brings a slot nobody knew; the power goes; another new slot comes
    before the commit. Guarantee: each bundle is read under the name it was put with."""
    with world.store.stage("app", 0, "a") as one:
        one.put({"Rare": batch(1)})
        one.finish()
    world.power_cut()
    world.store.put({"Other": batch(2)}).wait()
    world.store.commit("app", 0, ["a"])
    [(first, _), (second, _)] = world.store.segments()
    assert set(world.store.read((first, 0))) == {"Other"}
    assert set(world.store.read((second, 0))) == {"Rare"}


def test_memory_is_bounded_by_writing_early() -> None:
    """Scenario: five stages get more than they may hold together. Guarantee: files are
    written early, memory stays within the bound, the commit merges them again."""
    world = World(transactions={"max_memory": "64KiB"})
    stages = [world.store.stage("app", 0, f"a{n}") for n in range(5)]
    for _ in range(10):
        for one in stages:
            one.put({"Blob": payload(8_000)})
            assert world.store.status().usage.unwritten <= 72 * 1024
    assert len(world.files("stages/")) > 5
    assert sum(one.finish().bundles for one in stages) == 50
    answer = world.store.commit("app", 0, [one.attempt for one in stages])
    assert (answer.bundles, answer.segments) == (50, 1)


def test_the_memory_budget_counts_stages() -> None:
    """Scenario: a shared memory budget that stages alone would pass. Guarantee: they are
    written out, and nobody is refused for good."""
    world = World()
    memory = MemoryBudget(40_000)
    store = world.open(memory=memory)
    one = store.stage("app", 0, "a")
    for _ in range(20):
        one.put({"Blob": payload(8_000)})
        world.clock.advance(1.0)  # it is measured now and then
        store.maintain()
    assert memory.used < 40_000
    assert one.finish().bundles == 20


def test_stages_count_towards_the_disk_budget() -> None:
    """Scenario: stages fill the store's cap. Guarantee: more is refused with the reason,
    nothing passes the cap, and an abort makes room again."""
    world = World(
        wal={"rotation_target": 4096, "max_size": 40_960},
        segment={"target_size": 16_384},
        limits={"max_bundle": 4096, "max_unsynced": 4096},
        retention={"size_cap": 120_000},
    )
    one = world.store.stage("app", 0, "a")
    with pytest.raises(Backpressure, match="disk budget"):
        _fill(one)
    assert world.store.status().usage.on_disk <= 120_000
    one.finish()
    world.store.abort("app", 0)
    world.store.stage("app", 0, "b").put({"Blob": payload(2_000)})


def test_a_closed_store_takes_no_more(world: World) -> None:
    """Scenario: the store is closed while a stage is open. Guarantee: its writer is told, no
    file of it is left; without a log there are no stages at all."""
    one = world.store.stage("app", 0, "a")
    one.put({"Logs": batch(1)})
    world.store.close()
    for call in (one.finish, lambda: one.put({"Logs": batch(1)})):
        with pytest.raises((StoreClosed, StageNotFound)):
            call()
    assert world.files("stages/") == []
    without = World(durability="segment_only")
    with pytest.raises(InvalidInput, match="need the log"):
        without.store.stage("app", 0, "a")
    with pytest.raises(InvalidInput, match="need the log"):
        without.store.commit("app", 0, [])


def test_switching_the_log_off_keeps_commits_and_versions(world: World) -> None:
    """Scenario: a commit is not published yet when the store is opened without a log.
    Guarantee: it is published first; the version is known with and without the log."""
    stage(world.store, "a", 1, 2)
    world.store._upkeep.seal_quietly = lambda: None  # type: ignore[method-assign]
    world.store.commit("app", 0, ["a"])
    world.kill(durability="segment_only")
    assert seen(world.store) == [1, 2]
    assert world.store.committed("app") == 0
    world.restart(durability="wal")
    assert world.store.commit("app", 0, ["a"]).repeated
    assert seen(world.store) == [1, 2]


def test_names_and_misuse_are_refused(world: World) -> None:
    """Scenario: names that can't be, an attempt used twice. Guarantee: refused with a word."""
    store = world.store
    for app, version, attempt in (("", 0, "a"), ("a\nb", 0, "a"), ("a", -1, "a"), ("a", 0, "")):
        with pytest.raises(InvalidInput):
            store.stage(app, version, attempt)
    with pytest.raises(LimitExceeded):
        store.stage("x" * 513, 0, "a")
    stage(store, "a", 1)
    with pytest.raises(InvalidInput, match="finished already"):
        store.stage("app", 0, "a")
    writing = store.stage("app", 0, "b")
    with pytest.raises(InvalidInput, match="being written already"):
        store.stage("app", 0, "b")
    with pytest.raises(StageNotFound):
        store.commit("app", 0, ["b"])
    with pytest.raises(InvalidInput, match="twice"):
        store.commit("app", 0, ["a", "a"])
    with pytest.raises(InvalidInput, match="list of names"):
        store.commit("app", 0, "a")
    assert writing.finish().bundles == 0
    assert store.commit("app", 0, ["b"]).first_ref is None
    assert store.committed("app") == 0


def test_with_a_background_and_subscribers() -> None:
    """Scenario: threads do the upkeep; a subscriber follows. Guarantee: it gets every bundle
    of every commit and of the puts between, once."""
    world = World(segment={"max_bundles": 4})
    with Background(1, 1) as background:
        store = world.open(background=background)
        for version in range(5):
            world.put(100 + version).wait()
            stage(store, f"a{version}", version, version + 50, version=version)
            store.commit("app", version, [f"a{version}"])
        found = []
        for bundle in store.subscribe("a", follow=False):
            found.append(number_of(bundle["Logs"]))
            bundle.ack()
        store.close()
    assert sorted(found) == sorted([*range(100, 105), *range(5), *range(50, 55)])


def _fill(stage: Stage) -> None:
    for _ in range(100):
        stage.put({"Blob": payload(2_000)})


def _path_of(app: str, version: int, attempt: str) -> str:
    return stage_path(StageKey(app, version, attempt).id, 0)
