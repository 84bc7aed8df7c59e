"""Threads: none that were not asked for, and all of them gone in the end."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import quiver
from quiver import Background, Store
from quiver.segment.writer import write_segment
from quiver.upkeep import background, sealing
from tests.support.faulty import Fault
from tests.support.stores import SECONDS, World, batch, number_of, run_in_threads


def names() -> set[str]:
    return {t.name for t in threading.enumerate() if t.name.startswith("quiver")}


def until(condition: Callable[[], bool], step: Callable[[], object] = lambda: None) -> None:
    """Wait for another thread to bring something about; ``step`` runs in between."""
    pause = threading.Event()
    for _ in range(int(SECONDS * 200)):
        if condition():
            return
        step()
        pause.wait(0.005)
    pytest.fail("it never happened")


def test_no_thread_unless_asked(tmp_path: Path) -> None:
    """Scenario: a store is opened, used in every way, closed. Guarantee: no thread is ever
    started."""
    before = threading.active_count()
    with quiver.open(tmp_path, reserve=0) as store:
        store.put({"Logs": batch()}).wait()
        store.flush()
        for bundle in store.subscribe("r", follow=False):
            bundle.ack()
        store.maintain()
        assert threading.active_count() == before
    assert threading.active_count() == before


def test_a_background_of_its_own_ends_with_the_store(tmp_path: Path) -> None:
    """Scenario: `background=True`. Guarantee: a flusher, a worker and a ticker while the
    store is open, none of them afterwards."""
    with quiver.open(tmp_path, reserve=0, background=True) as store:
        assert len(names()) == 3
        store.put({"Logs": batch()}).wait()
    assert names() == set()


def test_full_segments_are_written_beside_the_puts() -> None:
    """Scenario: a background, segments of three bundles, puts in quick succession.
    Guarantee: they are written without the putting thread ever writing one."""
    world = World(segment={"max_bundles": 3, "max_unfinalized": 16})
    writers: set[str] = set()
    with Background(1, 1) as background:
        store = world.open(background=background)
        seal = store._upkeep.sealing.seal_one

        def noted() -> bool:
            done = seal()
            if done:
                writers.add(threading.current_thread().name)
            return done

        store._upkeep.sealing.seal_one = noted  # type: ignore[method-assign]
        for n in range(30):
            world.put(n, timeout=SECONDS)
        until(lambda: len(world.files("segments/0")) == 10)
        assert all(name.startswith("quiver-work") for name in writers)
        store.close()
    world.open()
    assert world.drain() == list(range(30))


def test_puts_go_on_while_a_segment_is_being_written(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: the worker is stuck in the middle of writing a segment. Guarantee: puts are
    taken, become durable and are delivered meanwhile; acks can be saved."""
    world = World(segment={"max_bundles": 3})
    go_on, stuck = threading.Event(), threading.Event()

    def slow(*arguments: Any) -> object:
        stuck.set()
        assert go_on.wait(SECONDS)
        return write_segment(*arguments)

    monkeypatch.setattr(sealing, "write_segment", slow)
    with Background(1, 1) as background:
        store = world.open(background=background)
        reader = store.subscribe("r")
        for n in range(3):
            world.put(n)
        assert stuck.wait(SECONDS)
        for n in range(3, 5):
            assert world.put(n).wait(SECONDS).durable
        for n in range(5):
            bundle = reader.next_bundle(timeout=SECONDS)
            assert bundle is not None
            assert number_of(bundle["Logs"]) == n
            bundle.ack()
        reader.flush()
        assert world.files("segments/0") == []
        go_on.set()
        store.close()


def test_an_idle_segment_is_written_by_the_background() -> None:
    """Scenario: one put, then time passes and nobody calls anything. Guarantee: the segment
    is written at its age."""
    world = World(segment={"max_open_duration": "5s"})
    with Background(1, 1) as background:
        store = world.open(background=background)
        world.put_durable(1)
        world.clock.advance(1)
        wal = store._wal
        assert wal is not None
        until(lambda: not wal.wants_watermark)  # upkeep for another reason is over
        world.clock.advance(3)
        assert world.files("segments/0") == []
        world.clock.advance(2)
        until(lambda: len(world.files("segments/0")) == 1)
        store.close()


def test_acks_are_saved_by_the_background() -> None:
    """Scenario: a bundle is acked, nobody flushes. Guarantee: within the interval the
    progress file says so, and the finished segment goes."""
    world = World(subscribers={"progress_interval": "100ms"})
    with Background(1, 1) as background:
        store = world.open(background=background)
        world.sealed(1)
        reader = store.subscribe("r")
        bundle = reader.next_bundle(timeout=None)
        assert bundle is not None
        bundle.ack()
        until(lambda: world.files("segments/0") == [], lambda: world.clock.advance(0.05))
        store.close()


def test_single_puts_after_idling_share_segments() -> None:
    """Scenario: the store idles for long, then 3,500 single puts arrive, with upkeep running
    beside them. Guarantee: as few segments as their limit allows, not 3,500."""
    world = World(segment={"max_bundles": 1000, "max_open_duration": "3s"})
    with Background(1, 1) as background:
        store = world.open(background=background)
        world.clock.advance(3600)
        for n in range(3500):
            world.put(n, timeout=SECONDS)
        store.sync()
        assert len(store.segments()) == 4
        store.close()


def test_a_failed_segment_is_tried_again_by_the_background() -> None:
    """Scenario: the first try to write a segment fails. Guarantee: the background comes back
    to it by itself."""
    world = World(segment={"max_bundles": 2})
    with Background(1, 1) as background:
        store = world.open(background=background)
        world.put_durable(1)
        world.faulty.strike(Fault(at=0, error=errno.EIO, ops=frozenset({"create"})))
        world.put_durable(2)
        until(lambda: len(world.files("segments/0")) == 1, lambda: world.clock.advance(0.05))
        assert len(world.faulty.fired) == 1
        store.close()


def test_puts_reads_acks_and_upkeep_at_the_same_time() -> None:
    """Scenario: four producers, three subscribers, a background, small segments, all at
    once. Guarantee: each subscriber gets every bundle exactly once, equal to what was put."""
    world = World(segment={"max_bundles": 20, "max_unfinalized": 4})
    with Background(2, 2) as background:
        store = world.open(background=background)
        readers = [store.subscribe(f"r{n}") for n in range(3)]
        seen: list[list[int]] = [[], [], []]
        total = 4 * 150

        def produce(first: int) -> None:
            for n in range(first, first + 150):
                world.put(n, timeout=SECONDS)

        def consume(index: int) -> None:
            while len(seen[index]) < total:
                bundle = readers[index].next_bundle(timeout=None)
                assert bundle is not None
                seen[index].append(number_of(bundle["Logs"]))
                bundle.ack()

        run_in_threads(
            *(lambda f=f: produce(f) for f in range(0, total, 150)),
            *(lambda i=i: consume(i) for i in range(3)),
        )
        store.close()
    for numbers in seen:
        assert sorted(numbers) == list(range(total))


def test_many_stores_share_one_background() -> None:
    """Scenario: twenty stores on two threads for syncing and two for upkeep; one of them
    fails at everything. Guarantee: the others become durable and are written; closing one
    doesn't end the others; no thread per store."""
    worlds = [World(segment={"max_bundles": 5}) for _ in range(20)]
    with Background(2, 2) as background:
        stores = [w.open(background=background, where=f"s{n}") for n, w in enumerate(worlds)]
        assert len(names()) == 5
        worlds[0].faulty.strike(Fault(at=0, error=errno.EIO, times=10**9))
        for n in range(10):
            for world in worlds[1:]:
                world.put(n, timeout=SECONDS)
        stores[1].close()
        for world in worlds[2:]:
            until(lambda world=world: len(world.files("segments/0")) == 2)  # type: ignore[misc]
        worlds[0].faulty.heal()
        for store in stores:
            store.close()
    for world in worlds[1:]:
        world.open()
        assert world.drain() == list(range(10))


@pytest.mark.parametrize(
    "settings", [{}, {"wal": {"flush": "interval"}}, {"durability": "segment_only"}]
)
def test_a_store_goes_on_when_its_background_ends(settings: dict[str, Any]) -> None:
    """Scenario: the shared background is closed before the store. Guarantee: the store goes
    on without: whoever waits does the work, and nobody hangs."""
    world = World(**settings)
    background = Background(1, 1)
    store: Store = world.open(background=background)
    background.close()
    assert world.put(1).wait(timeout=SECONDS).durable
    store.maintain()
    store.close()
    world.open()
    assert world.drain() == [1]


@pytest.mark.parametrize("how", ["ack", "reject", "seek", "unregister", "put"])
def test_a_sleeping_ticker_hears_what_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """Scenario: a store that was idle for so long that it is looked at once in ten minutes; a
    subscriber acks, rejects, seeks or leaves, or a bundle is put. Guarantee: what that makes
    due by time (progress on disk, segments deleted, the log's watermark) is done in time."""
    monkeypatch.setattr(background, "DOZE_SECONDS", 600.0)
    with quiver.open(tmp_path, reserve=0, background=True) as store:
        stays, leaves = store.subscribe("stays"), store.subscribe("leaves")
        store.put({"Logs": batch()}).wait()
        store.flush()
        stays.ack([(0, 0)])
        until(lambda: not store.watched and not store._registry.dirty)
        assert store.segments() == [(0, 1)]
        if how == "ack":
            leaves.ack([(0, 0)])
        elif how == "reject":
            leaves.reject((0, 0))
        elif how == "seek":
            leaves.seek((1, 0))
        elif how == "unregister":
            store.unregister("leaves")
        else:
            store.put({"Logs": batch()}).wait()
            store.flush()
            wal = store._wal
            assert wal is not None
            assert wal.wants_watermark
            until(lambda: not wal.wants_watermark)
            return
        until(lambda: not store._registry.dirty and not store.segments())
