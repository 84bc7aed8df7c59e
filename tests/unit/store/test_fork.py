"""A store belongs to the process that opened it: what a forked child may do with one."""

from __future__ import annotations

import gc
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import quiver
from quiver.disk.descriptors import DESCRIPTORS
from quiver.errors import Forked
from quiver.ingest.disk_budget import DiskBudget
from quiver.ingest.memory_budget import MemoryBudget
from quiver.upkeep.background import Background
from tests.support.forked import LIMIT, in_child

# Python 3.12 warns of every fork in a process with threads: that is what is tested here.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")


def batch(number: int) -> pa.RecordBatch:
    return pa.record_batch({"n": [number] * 10})


@pytest.fixture
def resting() -> Iterator[Callable[[], int]]:
    """Starts children that live, and do nothing, until the test is over."""
    children: list[tuple[int, int]] = []

    def start() -> int:
        waits, end = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(end)
            os.read(waits, 1)
            os._exit(0)
        os.close(waits)
        children.append((child, end))
        return child

    yield start
    for child, end in children:
        os.close(end)
        os.waitpid(child, 0)


def refused(call: Callable[[], Any]) -> Forked:
    with pytest.raises(Forked) as caught:
        call()
    return caught.value


def test_every_operation_is_refused_in_a_child(tmp_path: Path) -> None:
    """Parent opens, child tries everything: each call raises `Forked`, and says what to do."""
    store = quiver.open(tmp_path / "store", background=True)
    subscription = store.subscribe("a", follow=False)
    store.put({"Logs": batch(1)}).wait()
    claimed = subscription.next_bundle(5.0)
    assert claimed is not None
    receipt = store.put({"Logs": batch(2)})
    stage = store.stage("app", 1, "attempt")
    put = store.put
    bundles = store.bundles([claimed.ref])
    bundles_iterator = iter(subscription)

    def child() -> None:
        error = refused(lambda: store.put({"Logs": batch(3)}))
        assert error.details == {"owner": os.getppid(), "pid": os.getpid()}
        assert "flight_service.client" in error.advice
        calls: list[Callable[[], Any]] = [
            lambda: put({"Logs": batch(3)}),
            lambda: store.put_ipc({}),
            store_call("sync"),
            store_call("flush"),
            store_call("maintain"),
            store_call("close"),
            store_call("status"),
            store_call("activate"),
            lambda: store.register("b"),
            lambda: store.read(claimed.ref),
            lambda: store.unregister("a"),
            lambda: store.commit("app", 1, ["attempt"]),
            lambda: next(bundles),
            lambda: next(bundles_iterator),
            lambda: list(subscription),
            lambda: subscription.next_bundle(),
            lambda: subscription.ack([claimed.ref]),
            lambda: subscription.flush(),
            lambda: subscription.position,
            lambda: claimed.ack(),
            lambda: claimed["Logs"],
            lambda: stage.put({"Logs": batch(3)}),
            lambda: stage.finish(),
            lambda: store.__enter__(),
        ]
        for call in calls:
            refused(call)
        if not receipt.done:
            refused(lambda: receipt.wait(1.0))
        assert isinstance(store, quiver.Store)
        assert str(os.getppid()) in repr(store)

    def store_call(name: str) -> Callable[[], Any]:
        return lambda: getattr(store, name)()

    in_child(child)
    receipt.wait(5.0)
    claimed.ack()
    store.close()


def test_shared_parts_are_refused_in_a_child(tmp_path: Path) -> None:
    """A background has no threads in the child, and budgets count the parent's stores."""
    with Background(1, 1) as background:
        budget, memory = DiskBudget(1 << 40), MemoryBudget(1 << 30)

        def child() -> None:
            mine = tmp_path / "child"
            refused(lambda: quiver.open(mine / "1", background=background))
            refused(lambda: quiver.open(mine / "2", budget=budget))
            refused(lambda: quiver.open(mine / "3", memory=memory))
            refused(lambda: background.close())

        in_child(child)


def test_the_child_writes_nothing_and_the_parent_goes_on(tmp_path: Path) -> None:
    """Both processes put at the same time: only the parent's bundles are there after a reopen."""
    store = quiver.open(tmp_path / "store")
    store.put({"Logs": batch(1)}).wait()

    def child() -> None:
        refused(lambda: store.put({"Logs": batch(666)}).wait())
        refused(lambda: store.close())

    in_child(child)
    receipt = store.put({"Logs": batch(2)}).wait()
    store.close()
    with quiver.open(tmp_path / "store") as again:
        assert again.read(receipt.ref)["Logs"]["n"][0].as_py() == 2
        numbers = [
            again.read((seq, index))["Logs"]["n"][0].as_py()
            for seq, count in again.segments()
            for index in range(count)
        ]
    assert numbers == [1, 2]


def test_a_living_child_keeps_no_lock(tmp_path: Path, resting: Callable[[], int]) -> None:
    """The parent closes while a child lives: another store can be opened there at once."""
    store = quiver.open(tmp_path / "store")
    resting()
    store.close()
    quiver.open(tmp_path / "store").close()


def test_a_killed_parent_leaves_no_lock_with_its_child(tmp_path: Path) -> None:
    """Parent opens, forks, is killed; the child lives on: the directory can be opened."""
    waits, end = os.pipe()
    ready, is_ready = os.pipe()
    parent = os.fork()
    if parent == 0:
        os.close(end)
        os.close(ready)
        store = quiver.open(tmp_path / "store")
        child = os.fork()
        if child == 0:
            os.write(is_ready, b".")
            os.read(waits, 1)
            os._exit(0)
        os.write(is_ready, b".")
        os.read(waits, 1)
        store.close()
        os._exit(0)
    os.close(is_ready)
    os.close(waits)
    assert len(os.read(ready, 1) + os.read(ready, 1)) == 2
    os.kill(parent, signal.SIGKILL)
    os.waitpid(parent, 0)
    try:
        quiver.open(tmp_path / "store").close()
    finally:
        os.close(end)
        os.close(ready)


def test_descriptors_are_not_inherited(tmp_path: Path) -> None:
    """A child has none of the store's files open, and the parent still has all of them."""
    store = quiver.open(tmp_path / "store")
    store.put({"Logs": batch(1)}).wait()

    def ours() -> list[str]:
        found = []
        for name in os.listdir("/proc/self/fd"):
            try:
                found.append(os.readlink(f"/proc/self/fd/{name}"))
            except FileNotFoundError:
                continue  # that of the listing itself
        return [path for path in found if path.startswith(str(tmp_path))]

    before = ours()
    assert before

    def child() -> None:
        assert ours() == []
        assert DESCRIPTORS.spares == 0

    in_child(child)
    assert ours() == before
    store.put({"Logs": batch(2)}).wait()
    store.close()


def test_locks_held_at_the_fork_do_not_hang_the_child(tmp_path: Path) -> None:
    """Other threads put, ack and seal while the process forks; the child drops everything.

    What it inherited is refused, collected and finalized without waiting for a lock.
    """
    store: Any = quiver.open(
        tmp_path / "store",
        background=True,
        segment={"target_size": "64KiB"},
        read_mode="pread",
    )
    subscription: Any = store.subscribe("a")
    stop = threading.Event()

    def put() -> None:
        number = 0
        while not stop.is_set():
            store.put({"Logs": batch(number)}, timeout=5.0).wait(10.0)
            number += 1

    def take() -> None:
        while not stop.is_set():
            bundle = subscription.next_bundle(0.05)
            if bundle is not None:
                bundle["Logs"]
                bundle.ack()

    threads = [threading.Thread(target=put), threading.Thread(target=take)]
    for thread in threads:
        thread.start()

    def child() -> None:
        nonlocal store, subscription
        refused(lambda: store.put({"Logs": batch(0)}))
        refused(lambda: subscription.next_bundle())
        store = subscription = None
        gc.collect()

    try:
        for _ in range(20):
            in_child(child)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert store.status().state == "ok"
    store.close()


def test_a_child_that_exits_normally_is_not_held_up(tmp_path: Path) -> None:
    """`sys.exit` in a child runs finalizers and atexit with an inherited store: it ends, with 0.

    In a process of its own, since the child unwinds the whole test run otherwise.
    """
    program = f"""
import os, signal, sys
import pyarrow as pa
import quiver
with quiver.open({str(tmp_path / "store")!r}, background=True, read_mode="pread") as store:
    store.put({{"Logs": pa.record_batch({{"n": [1]}})}}).wait()
    store.flush()
    held = store.subscribe("a").next_bundle(5.0)
    held["Logs"]
    if os.fork() == 0:
        signal.alarm({LIMIT})
        sys.exit(0)
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    done = os.spawnv(os.P_WAIT, sys.executable, [sys.executable, "-W", "ignore", "-c", program])
    assert done == 0


def test_a_child_may_have_a_store_of_its_own(tmp_path: Path) -> None:
    """The child opens another directory; both write segments, and neither sees the other's."""
    settings: dict[str, Any] = {"segment": {"target_size": "64KiB"}}
    store = quiver.open(tmp_path / "parent", **settings)
    large = pa.record_batch({"s": ["p" * 1000] * 200})
    store.put({"Logs": large}).wait()
    store.flush()  # a buffer for writing past the cache is kept, and inherited

    def child() -> None:
        with quiver.open(tmp_path / "child", **settings) as mine:
            other = pa.record_batch({"s": ["c" * 1000] * 200})
            receipt = mine.put({"Logs": other}).wait()
            mine.flush()
            assert mine.read(receipt.ref)["Logs"].equals(other)

    in_child(child)
    receipt = store.put({"Logs": large}).wait()
    store.flush()
    assert store.read(receipt.ref)["Logs"].equals(large)
    store.close()


def test_memory_for_direct_writes_is_not_shared_with_a_child() -> None:
    """A child that fills an inherited buffer must not change what the parent is about to write."""
    from quiver.disk.direct import _AlignedBuffer

    stage = _AlignedBuffer.take()
    stage.fill([b"parent"])

    def child() -> None:
        stage.fill([b"child!"])

    in_child(child)
    assert bytes(stage.view[:6]) == b"parent"


def _work(store: quiver.Store, answers: Any) -> None:
    try:
        store.put({"Logs": batch(1)})
    except Forked as error:
        answers.put(error.code)
    else:
        answers.put("taken")


def test_multiprocessing_fork(tmp_path: Path) -> None:
    """A store handed to a forked `Process` is refused there, and the parent's lives on."""
    context = multiprocessing.get_context("fork")
    with quiver.open(tmp_path / "store") as store:
        answers = context.SimpleQueue()
        process = context.Process(target=_work, args=(store, answers))
        process.start()
        process.join(LIMIT)
        assert process.exitcode == 0
        assert answers.get() == "forked"
        store.put({"Logs": batch(1)}).wait()


def test_workers_of_a_forking_daemon(tmp_path: Path) -> None:
    """As PySpark's daemon does: workers are forked again and again, and outlive the daemon's job.

    Each opens a store of its own; none can use the daemon's, nor keep it locked.
    """
    store = quiver.open(tmp_path / "daemon")
    for number in range(4):

        def worker(number: int = number) -> None:
            refused(lambda: store.put({"Logs": batch(number)}))
            with quiver.open(tmp_path / f"worker-{number}") as mine:
                mine.put({"Logs": batch(number)}).wait()

            def grandchild() -> None:
                refused(lambda: store.sync())
                refused(lambda: mine.sync())

            in_child(grandchild)

        in_child(worker)
    store.close()
    for number in range(4):
        with quiver.open(tmp_path / f"worker-{number}") as mine:
            assert sum(count for _, count in mine.segments()) == 1
