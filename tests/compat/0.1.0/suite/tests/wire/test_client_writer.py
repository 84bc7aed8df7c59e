"""The windowed writer: receipts, refusals, bounds, and servers that go away."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from flight_service.client import (
    Backpressure,
    BadRequest,
    Client,
    Closed,
    Disconnected,
    NotFound,
    Rejected,
    Rejection,
    Retry,
    Timeout,
    connect,
)
from flight_service.client import writer as writer_room
from flight_service.protocol.wrapper import wrap as really_wrap
from flight_service.server import Server
from tests.wire.bare import logs
from tests.wire.conftest import MakeServer
from tests.wire.process import ServerProcess
from tests.wire.test_exchange import eventually


@pytest.fixture
def q(server: Server) -> Iterator[Client]:
    """Our client of a server with default settings."""
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        yield client


def numbers(client: Client, stream: str) -> list[int]:
    """The first value of every bundle of a stream."""
    return [bundle["Logs"]["n"][0].as_py() for bundle in client.stream(stream).read()]


def test_leaving_the_block_means_all_are_durable(q: Client) -> None:
    """A thousand bundles through a small window: all there, once, in order."""
    with q.stream("t").writer(window=16) as writer:
        pendings = [writer.put({"Logs": logs(n)}) for n in range(1000)]
    assert all(pending.done for pending in pendings)
    assert {pending.result().durability for pending in pendings} == {"durable"}
    assert numbers(q, "t") == list(range(1000))
    assert (writer.stats.bundles, writer.stats.duplicates) == (1000, 0)


def test_the_window_bounds_what_is_in_flight(q: Client) -> None:
    """Windows of one bundle, and of fewer bytes than a bundle has: slow, never stuck."""
    for window, nbytes in ((1, 1 << 20), (100, 1)):
        with q.stream("t").writer(window=window, window_bytes=nbytes) as writer:
            for number in range(20):
                writer.put({"Logs": logs(number)})
    with pytest.raises(BadRequest):
        q.stream("t").writer(window=0)


def test_a_rejected_bundle_ends_nothing_and_is_told_at_the_end(q: Client) -> None:
    """One of three conflicts with an old key: the others are kept, leaving says which not."""
    stream = q.stream("t")
    stream.put({"Logs": logs(0)}, key="old")
    writer = stream.writer()
    good = writer.put({"Logs": logs(1)})
    bad = writer.put({"Logs": logs(2)}, key="old")
    also_good = writer.put({"Logs": logs(3)})
    with pytest.raises(Rejected, match="old: the idempotency key") as caught, writer:
        pass
    assert caught.value.count == 1
    assert caught.value.rejections[0].key == "old"
    assert good.result().ref < also_good.result().ref
    with pytest.raises(Rejected):
        bad.result()
    assert numbers(q, "t") == [0, 1, 3]


def test_a_listener_for_rejections_replaces_the_error(q: Client) -> None:
    """With on_reject the block ends well, and the listener was told each of them."""
    told: list[Rejection] = []
    with q.stream("t").writer(on_reject=told.append) as writer:
        writer.put({"Logs": logs(1)}, key="k").result()
        writer.put({"Logs": logs(2)}, key="k")
    assert [one.code for one in told] == ["key_conflict"]
    assert writer.stats.rejected == 1


def test_flush_is_a_checkpoint_in_between(q: Client) -> None:
    """After flush everything is answered, and the writer goes on."""
    with q.stream("t").writer() as writer:
        first = writer.put({"Logs": logs(1)})
        writer.flush()
        assert first.done
        writer.put({"Logs": logs(2)})
    assert numbers(q, "t") == [1, 2]
    with pytest.raises(Closed):
        writer.put({"Logs": logs(3)})
    writer.close()


def test_an_exception_in_the_block_is_the_one_that_is_raised(q: Client) -> None:
    """What was put before it still arrives."""
    writer = q.stream("t").writer()
    writer.put({"Logs": logs(1)})
    with pytest.raises(RuntimeError, match="mine"), writer:
        raise RuntimeError("mine")
    assert numbers(q, "t") == [1]


def test_backpressure_is_waited_out_in_order(make_server: MakeServer) -> None:
    """A log too small for what comes: the server says retry, the writer waits; all arrive in
    order, none twice, and it says meanwhile what it waits for."""
    server = make_server(
        wal__max_size="3MiB",
        wal__rotation_target="256KiB",
        segment__target_size="512KiB",
        limits__max_bundle="1MiB",
        calls__put_wait=0,
        wal__max_group="256KiB",
    )
    big = pa.record_batch({"n": pa.array(range(40_000), pa.int64())})
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        with client.stream("t").writer(window=64) as writer:
            for number in range(60):
                writer.put({"Logs": big, "Number": logs(number)}, timeout=60)
        assert writer.stats.bundles == 60
        seen = [b["Number"]["n"][0].as_py() for b in client.stream("t").read(slots=["Number"])]
        assert seen == list(range(60))


def test_a_writer_for_one_slot(make_server: MakeServer) -> None:
    """Scenario: bundles of one slot, to a log too small for what comes.

    Guarantee: as with any writer, all arrive in order and none twice.
    """
    server = make_server(
        wal__max_size="3MiB",
        wal__rotation_target="256KiB",
        segment__target_size="512KiB",
        limits__max_bundle="1MiB",
        calls__put_wait=0,
        wal__max_group="256KiB",
    )
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        with client.stream("t").writer(window=64, slot="Logs") as writer:
            for number in range(60):
                batch = pa.record_batch({"n": pa.array([number] * 40_000, pa.int64())})
                writer.put({"Logs": batch}, timeout=60)
        assert (writer.stats.bundles, writer.stats.duplicates) == (60, 0)
        assert writer.stats.retries > 0
        assert numbers(client, "t") == list(range(60))


def test_a_writer_for_one_slot_takes_no_other(q: Client) -> None:
    """Scenario: another slot, two slots, or another schema are put.

    Guarantee: they are refused at once, by name, and the writer goes on.
    """
    other = pa.record_batch({"n": ["text"]})
    with q.stream("t").writer(slot="Logs") as writer:
        writer.put({"Logs": logs(1)})
        for wrong in ({"Spans": logs(2)}, {"Logs": logs(2), "Spans": logs(2)}, {}):
            with pytest.raises(BadRequest, match="slot Logs and no other"):
                writer.put(wrong)
        with pytest.raises(BadRequest, match="one schema") as caught:
            writer.put({"Logs": other})
        assert caught.value.code == "schema_mismatch"
        writer.put({"Logs": logs(3)})
    assert numbers(q, "t") == [1, 3]


@pytest.mark.parametrize("first", [None, "Logs"])
def test_a_key_is_the_same_whichever_way_it_comes(q: Client, first: str | None) -> None:
    """Scenario: a bundle is put again under its key, by a writer of the other kind.

    Guarantee: it is known as the same: a job may be run again with another version of us.
    """
    stream = q.stream("t")
    batch = pa.record_batch({"n": [1, None, 3], "s": ["a", None, "ccc"], "b": [True, None, False]})
    for slot in (first, "Logs" if first is None else None):
        with stream.writer(slot=slot) as writer:
            receipts = [
                writer.put({"Logs": one}, key=f"{len(one)}").result()
                for one in (batch, batch.slice(1))
            ]
    assert [one.duplicate for one in receipts] == [True, True]
    assert len(list(stream.read())) == 2


def test_a_full_disk_budget_is_an_error_when_patience_ends(make_server: MakeServer) -> None:
    """A subscriber that never acks, and a size cap: puts are refused for now, and after the
    writer's patience for good, with the server's reason."""
    server = make_server(
        retention__size_cap="5MiB",
        segment__target_size="512KiB",
        wal__max_size="3MiB",
        wal__rotation_target="256KiB",
        limits__max_bundle="1MiB",
        wal__max_group="256KiB",
    )
    big = pa.record_batch({"n": pa.array(range(60_000), pa.int64())})
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        stream = client.create_stream("t")
        stream.register("never")
        patience = Retry(initial=0.01, maximum=0.05, give_up_after=0.5)
        writer = stream.writer(window=100, window_bytes=1 << 30, retry=patience)
        for _ in range(60):
            writer.put({"Logs": big})
        with pytest.raises(Backpressure, match="put refused"):
            writer.close()
        assert writer.stats.bundles > 0


def test_a_wrong_request_fails_at_once(make_server: MakeServer) -> None:
    """A stream that is not there and not made by a put: no retry, the same error everywhere."""
    server = make_server(server__auto_create=False)
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        writer = client.stream("nope").writer()
        pending = writer.put({"Logs": logs(1)})
        with pytest.raises(NotFound):
            pending.result(timeout=10)
        with pytest.raises(NotFound):
            writer.put({"Logs": logs(1)})
        with pytest.raises(NotFound):
            writer.close()


@pytest.fixture
def gone(server: Server) -> Iterator[Client]:
    """A client whose server has just left."""
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        server.stop()
        yield client


def test_a_server_that_does_not_come_back_is_given_up(gone: Client) -> None:
    """Nobody listens any more: the writer tries for its patience, then says so."""
    writer = gone.stream("t").writer(retry=Retry(0.01, 0.05, give_up_after=0.3))
    pending = writer.put({"Logs": logs(1)})
    with pytest.raises(Disconnected):
        pending.result(timeout=20)
    writer.abort()


def test_waits_can_be_bounded(gone: Client) -> None:
    """put, flush and result take a timeout, and say what they waited for."""
    writer = gone.stream("t").writer(window=1)
    pending = writer.put({"Logs": logs(1)})
    for wait in (
        lambda: writer.put({"Logs": logs(2)}, timeout=0.05),
        lambda: writer.flush(timeout=0.05),
        lambda: pending.result(timeout=0.05),
    ):
        with pytest.raises(Timeout, match=r"waited 0\.05 s"):
            wait()
    writer.abort(timeout=0.05)
    with pytest.raises(Closed):
        pending.result()


@pytest.mark.kill
def test_a_server_killed_hard_costs_time_and_nothing_else(tmp_path: Path) -> None:
    """Two producers, one with keys of its own; the server is killed three times under them
    and started again. Every bundle is there exactly once, in each producer's order."""
    bundles = 1500
    with ServerProcess(tmp_path / "data") as server, connect(server.url) as client:
        marks = {mark: threading.Event() for mark in (200, 600, 1000)}
        stream = client.stream("t")
        writers = [stream.writer(window=32), stream.writer(window=32)]

        def produce(who: int) -> None:
            with writers[who] as writer:
                for number in range(bundles):
                    key = f"mine/{number}" if who else None
                    writer.put({"Logs": logs(number * 2 + who)}, key=key, timeout=60)
                    if number in marks:
                        marks[number].set()

        threads = [threading.Thread(target=produce, args=[who]) for who in (0, 1)]
        for thread in threads:
            thread.start()
        for mark in marks.values():
            assert mark.wait(60)
            server.kill()
            server.start()
        for thread in threads:
            thread.join(60)
        seen = numbers(client, "t")
        assert [n for n in seen if n % 2 == 0] == list(range(0, bundles * 2, 2))
        assert [n for n in seen if n % 2 == 1] == list(range(1, bundles * 2, 2))
        assert sum(writer.stats.reconnects for writer in writers) >= 3


@pytest.mark.kill
def test_a_server_that_drains_and_restarts_loses_nobody(tmp_path: Path) -> None:
    """SIGTERM under a writer: the server leaves in order, the writer goes on with the next."""
    with ServerProcess(tmp_path / "data") as server, connect(server.url) as client:
        half = threading.Event()

        def produce() -> None:
            with client.stream("t").writer(window=32) as writer:
                for number in range(800):
                    writer.put({"Logs": logs(number)}, timeout=60)
                    if number == 300:
                        half.set()

        thread = threading.Thread(target=produce)
        thread.start()
        assert half.wait(60)
        assert server.terminate() == 0, "it had to be forced: the writer did not let go"
        server.start()
        thread.join(60)
        assert numbers(client, "t") == list(range(800))


def test_a_bundle_that_cannot_be_written_is_rejected_here(
    q: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Arrow can't put one of three on the wire: that one is rejected, the others arrive."""

    def wrap(slots: dict[str, pa.RecordBatch]) -> pa.RecordBatch:
        if slots["Logs"].equals(logs(2)):
            raise pa.ArrowInvalid("cannot be written")
        return really_wrap(slots)

    monkeypatch.setattr(writer_room, "wrap", wrap)
    writer = q.stream("t").writer()
    pendings = [writer.put({"Logs": logs(n)}) for n in (1, 2, 3)]
    with pytest.raises(Rejected, match="cannot be written"):
        writer.close()
    assert [pending.done for pending in pendings] == [True] * 3
    assert numbers(q, "t") == [1, 3]


def test_threads_may_share_a_writer(q: Client) -> None:
    """Four threads, one writer: everything arrives once, each thread's bundles in order."""
    with q.stream("t").writer(window=8) as writer:

        def produce(who: int) -> None:
            for number in range(100):
                writer.put({"Logs": logs(number * 4 + who)})

        threads = [threading.Thread(target=produce, args=[who]) for who in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
    seen = numbers(q, "t")
    for who in range(4):
        assert [n for n in seen if n % 4 == who] == list(range(who, 400, 4))


def test_an_idle_writer_holds_nobody_up(
    server: Server, q: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer without bundles lets its call go, so that a server that stops need not wait
    for it; the next bundle begins another call."""
    monkeypatch.setattr(writer_room, "IDLE", 0.05)

    def calls() -> int:
        running: int = q.status()["server"]["calls"]["running"]
        return running

    with q.stream("t").writer() as writer:
        for number in range(3):
            writer.put({"Logs": logs(number)}).result()
            eventually(lambda: calls() == 1)  # the question itself
        writer.put({"Logs": logs(3)})
    assert numbers(q, "t") == [0, 1, 2, 3]
    assert writer.stats.reconnects == 0
    q.stream("t").put({"Logs": logs(4)})
    eventually(lambda: calls() == 1)
    assert server.stop(), "it had to be forced"


def test_writers_leave_no_threads_behind(q: Client) -> None:
    """Ten writers, opened and closed: as many threads as before."""
    stream = q.stream("t")
    before = {one for one in threading.enumerate() if one.name.startswith("quiver-courier")}
    for number in range(10):
        with stream.writer() as writer:
            writer.put({"Logs": logs(number)})
    after = {one for one in threading.enumerate() if one.name.startswith("quiver-courier")}
    assert after == before
