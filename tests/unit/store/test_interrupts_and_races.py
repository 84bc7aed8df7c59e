"""Interrupts, late comers and races: found once, kept out for good."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quiver
from quiver import Background
from quiver.disk import quarantine
from quiver.errors import (
    InvalidInput,
    IoFault,
    SegmentChecksum,
    StorageFull,
    StoreClosed,
    UnknownSubscriber,
    WaitTimeout,
)
from quiver.upkeep.maintenance_lock import MaintenanceLock
from quiver.upkeep.upkeep import IDLE_WATERMARK_SECONDS
from tests.support.faulty import FOREVER, Fault
from tests.support.stores import SECONDS, World, batch, number_of


def once(error: BaseException, work: Callable[..., Any]) -> Callable[..., Any]:
    """``work``, but the first call raises instead."""
    left = [error]

    def call(*args: Any, **kwargs: Any) -> Any:
        if left:
            raise left.pop()
        return work(*args, **kwargs)

    return call


def outcome_of(work: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """A thread that does ``work``, and what it gave or raised."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, found


def joined(thread: threading.Thread) -> None:
    thread.join(SECONDS)
    assert not thread.is_alive(), "it hangs"


# The background ends


@pytest.mark.parametrize(
    "settings",
    [{"wal": {"flush": "interval", "flush_interval": 60}}, {"durability": "segment_only"}],
    ids=["interval", "segment-only"],
)
def test_who_waits_for_a_background_that_ends_does_the_work(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    """Scenario: a put waits for its time to come, and the shared threads are closed before.
    Guarantee: the waiting thread is woken and makes it durable itself."""
    background = Background(1, 1)
    segment = {"max_open_duration": 3600}
    with quiver.open(tmp_path, background=background, segment=segment, **settings) as store:
        receipt = store.put({"Logs": batch()})
        thread, _ = outcome_of(receipt.wait)
        thread.join(0.05)
        background.close()
        joined(thread)
        assert receipt.durable


def test_a_closed_background_takes_no_store(tmp_path: Path) -> None:
    """Scenario: a store is opened with threads that have ended. Guarantee: refused, instead
    of waiting for ever later; and the directory is free again."""
    background = Background(1, 1)
    background.close()
    with pytest.raises(InvalidInput):
        quiver.open(tmp_path, background=background)
    quiver.open(tmp_path).close()


# Behind a closed store


def test_a_gate_that_is_shut_stays_shut() -> None:
    """Scenario: a thread waits for the gate while another closes it. Guarantee: it does not
    come in; before, one thread could come in twice."""
    gate = MaintenanceLock()
    with gate, gate:
        thread, found = outcome_of(lambda: gate.__enter__())
        gate.shut(StoreClosed("closed."))
    joined(thread)
    assert isinstance(found[0], StoreClosed)


def test_late_upkeep_finds_the_door_shut(world: World) -> None:
    """Scenario: upkeep was asked for in time and gets its turn when the store is closed and
    its directory somebody else's. Guarantee: it does nothing."""
    store = world.store
    store.put({"Logs": batch()}).wait()
    subscription = store.subscribe("a")
    bundle = subscription.next_bundle()
    assert bundle is not None
    store.close()
    calls = len(world.faulty.calls)
    for late in (
        store._upkeep.run,
        store._upkeep.records.checkpoint,
        store._upkeep.sweeping.sweep,
        store._upkeep.sealing.seal_one,
        lambda: store._registry.flush(["a"]),
        lambda: store._registry.register("b"),
    ):
        with pytest.raises(StoreClosed):
            late()
    assert len(world.faulty.calls) == calls


def test_an_outcome_behind_a_closed_store_is_refused(world: World) -> None:
    """Scenario: a handle is acked after the store was closed. Guarantee: told so, since it
    can't become durable; the bundle comes again."""
    subscription = world.store.subscribe("a")
    world.store.put({"Logs": batch(7)}).wait()
    bundle = subscription.next_bundle()
    assert bundle is not None
    world.store.close()
    with pytest.raises(StoreClosed):
        bundle.ack()
    again = world.open().subscribe("a").next_bundle()
    assert again is not None
    assert number_of(again["Logs"]) == 7


def test_an_interrupted_close_lets_the_directory_go(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: Ctrl-C while a store writes its last segment. Guarantee: the directory can be
    opened again, and has everything."""
    store = world.store
    store.put({"Logs": batch(3)}).wait()
    monkeypatch.setattr(store._upkeep, "finish", once(KeyboardInterrupt(), store._upkeep.finish))
    with pytest.raises(KeyboardInterrupt):
        store.close()
    bundle = world.open().subscribe("a").next_bundle()
    assert bundle is not None
    assert number_of(bundle["Logs"]) == 3


# Interrupts


@pytest.mark.parametrize("step", ["confirm", "append"])
def test_an_interrupted_commit_answers_its_receipts(
    world: World, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Scenario: Ctrl-C while a group is written, or when it is and just not announced.
    Guarantee: its receipts get the answer that is true, and the log goes on."""
    store = world.store
    receipt = store.put({"Logs": batch(1)})
    files = store._wal._files  # type: ignore[union-attr]
    monkeypatch.setattr(files, step, once(KeyboardInterrupt(), getattr(files, step)))
    with pytest.raises(KeyboardInterrupt):
        receipt.wait()
    assert receipt.done
    assert receipt.durable is (step == "confirm")
    assert store._wal is not None
    assert store._wal.staged_bytes == 0
    assert store.put({"Logs": batch(2)}).wait(0).durable
    found = [number_of(b["Logs"]) for b in world.kill().subscribe("a", follow=False)]
    assert found == ([1, 2] if step == "confirm" else [2])


def test_an_interrupted_leader_steps_down(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a thread is interrupted when it has just taken the lead. Guarantee: the next
    one who waits takes it over and commits for both."""
    store = world.store
    first, second = store.put({"Logs": batch(1)}), store.put({"Logs": batch(2)})
    commits = store._commits
    assert commits is not None
    take_lead = commits._take_lead

    def interrupted(*args: Any) -> bool:
        take_lead(*args)
        raise KeyboardInterrupt

    monkeypatch.setattr(commits, "_take_lead", interrupted)
    with pytest.raises(KeyboardInterrupt):
        first.wait()
    monkeypatch.undo()
    thread, _ = outcome_of(second.wait)
    joined(thread)
    assert first.durable
    assert second.durable


def test_an_interrupted_put_uses_no_ref_twice(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: Ctrl-C in a put, when the log has its entry and memory doesn't yet.
    Guarantee: no further put gets the same ref: the store wants to be opened anew, and has
    what was durable before."""
    store = world.store
    store.put({"Logs": batch(1)}).wait()
    monkeypatch.setattr(
        store._segments, "append", once(KeyboardInterrupt(), store._segments.append)
    )
    with pytest.raises(KeyboardInterrupt):
        store.put({"Logs": batch(2)})
    with pytest.raises(IoFault):
        store.put({"Logs": batch(3)})
    store.sync()
    found = [number_of(b["Logs"]) for b in world.kill().subscribe("a", follow=False)]
    assert found in ([1], [1, 2])  # nobody was promised the second


# Failures that come back


def test_a_full_disk_is_not_asked_at_every_tick(world: World) -> None:
    """Scenario: the disk is full and a watermark is wanted. Guarantee: after a failed try
    nothing is due for a while; then it is."""
    store = world.store
    store.put({"Logs": batch()}).wait()
    store.flush()
    store.put({"Logs": batch()}).wait()
    world.clock.advance(IDLE_WATERMARK_SECONDS)
    assert store._upkeep.is_due()
    world.faulty.arm(Fault(0, errno.ENOSPC, ops=frozenset({"pwritev"}), times=FOREVER))
    store.maintain()
    assert not store._upkeep.is_due()
    world.clock.advance(1)
    assert store._upkeep.is_due()
    world.faulty.heal()
    store.maintain()
    world.clock.advance(1)
    assert not store._wal.wants_watermark  # type: ignore[union-attr]


def test_progress_that_fails_is_not_tried_at_every_tick(world: World) -> None:
    """Scenario: acks can't be written. Guarantee: upkeep says so, and waits before it tries
    again."""
    store = world.store
    subscription = store.subscribe("a")
    store.put({"Logs": batch()}).wait()
    bundle = subscription.next_bundle()
    assert bundle is not None
    bundle.ack()
    world.clock.advance(IDLE_WATERMARK_SECONDS)
    world.faulty.arm(Fault(0, errno.ENOSPC, ops=frozenset({"create"}), times=FOREVER))
    with pytest.raises(StorageFull):
        store.maintain()
    assert not store._upkeep.is_due()


def test_a_log_that_could_not_be_shortened_is_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: a segment is written, and letting go of its log fails. Guarantee: the next
    upkeep does it: a full log would else refuse every put that could bring it about."""
    world = World(
        segment={"target_size": 1024, "max_bundles": 8},
        wal={"rotation_target": 1024, "max_size": "64KiB", "max_rotated_files": 60},
        limits={"max_bundle": "2KiB"},
    )
    store = world.store
    records, wal = store._upkeep.records, store._wal
    assert wal is not None
    monkeypatch.setattr(store._upkeep.sealing, "retire_log", lambda: None)
    for n in range(6):
        store.put({"Logs": batch(n)}).wait()
    store.flush()
    monkeypatch.undo()
    monkeypatch.setattr(records, "keep_floor", once(IoFault("no."), records.keep_floor))
    files = wal.file_count
    with pytest.raises(IoFault):
        store.maintain()
    assert wal.file_count == files
    store.maintain()
    assert wal.file_count < files


# Subscribers


def test_who_waits_for_a_subscriber_that_left_is_told(world: World) -> None:
    """Scenario: a subscriber is removed between a thread's look and its wait. Guarantee: the
    wait ends, and the next look says why."""
    subscription = world.store.subscribe("a")
    subscriber = world.store._registry.get("a")
    world.store.unregister("a")
    thread, found = outcome_of(lambda: subscriber.wait(SECONDS))
    joined(thread)
    assert found == [True]
    with pytest.raises(UnknownSubscriber):
        subscription.next_bundle(None)


def test_a_registration_that_failed_half_way_is_finished_by_the_next(world: World) -> None:
    """Scenario: a subscriber's file is written, the checkpoint that names it fails.
    Guarantee: registering again names it, so that its file can't go unnoticed."""
    store = world.store
    world.faulty.arm(Fault(1, errno.EIO, ops=frozenset({"create"})))
    with pytest.raises(IoFault):
        store.register("a")
    store.register("a")
    assert store._upkeep.records.names("a")


def test_a_repeat_is_durable_when_the_first_is(world: World) -> None:
    """Scenario: a repeat of a put under way is never waited for. Guarantee: its receipt
    says durable all the same, as soon as the first one is."""
    first = world.store.put({"Logs": batch()}, key="k")
    repeat = world.store.put({"Logs": batch()}, key="k")
    assert not repeat.done
    first.wait()
    assert repeat.durable
    assert repeat.wait(0).ref == first.ref


# Waits that must not spin


def test_draining_ends_when_the_store_closes(tmp_path: Path) -> None:
    """Scenario: a store is closed while it is drained. Guarantee: the drain ends at once."""
    store = quiver.open(tmp_path, reserve=0)
    store.subscribe("a")
    store.put({"Logs": batch()}).wait()
    thread, found = outcome_of(lambda: store.drain(3600))
    thread.join(0.05)
    store.close()
    joined(thread)
    assert isinstance(found[0], StoreClosed)


def test_waiting_for_what_is_not_there_yet(tmp_path: Path) -> None:
    """Scenario: a wait for a sequence that nobody has put. Guarantee: it looks now and then,
    until its time is up."""
    with quiver.open(tmp_path, reserve=0) as store:
        looks: list[int] = []
        sync = store.sync
        store.sync = lambda: (looks.append(1), sync())[1]  # type: ignore[func-returns-value,method-assign]
        with pytest.raises(WaitTimeout):
            store.wait_durable(10**6, timeout=0.12)
        assert 1 < len(looks) < 10


# Damage found by two


def test_a_segment_is_set_aside_once(world: World) -> None:
    """Scenario: two readers find the same damage; one has it rebuilt from the log and written
    again before the other reports. Guarantee: the new file stays."""
    store = world.store
    receipt = store.put({"Logs": batch(5)}).wait()
    store.flush()
    seq = receipt.ref.segment_seq
    info = store._parts.segments.info(seq)
    assert info is not None
    damage = SegmentChecksum("it is damaged.")
    store._upkeep.healing.heal(info, damage)
    assert number_of(store.read(receipt.ref)["Logs"]) == 5  # from memory
    store.flush()
    store._upkeep.healing.heal(info, damage)
    assert store._parts.segments.info(seq) is not None
    assert len(world.files("quarantine/")) == 1
    assert number_of(store.read(receipt.ref)["Logs"]) == 5


def test_a_failed_setting_aside_changes_nothing(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a damaged segment can be rebuilt, but not set aside. Guarantee: told so, and
    it is not in memory and on disk at once."""
    store = world.store
    receipt = store.put({"Logs": batch(5)}).wait()
    store.flush()
    info = store._parts.segments.info(receipt.ref.segment_seq)
    assert info is not None
    failing: Callable[..., object] = once(IoFault("no."), quarantine.move)
    monkeypatch.setattr(quarantine, "move", failing)
    with pytest.raises(IoFault):
        store._upkeep.healing.heal(info, SegmentChecksum("it is damaged."))
    assert store._segments.in_memory == 0
