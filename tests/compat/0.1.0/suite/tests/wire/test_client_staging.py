"""The client's staged writes: parts, lost connections, servers killed at every step."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from flight_service.client import (
    Backpressure,
    BadRequest,
    Client,
    Closed,
    NotFound,
    Rejected,
    Retry,
    Staged,
    StageWriter,
    connect,
)
from flight_service.client.connection import Connection
from flight_service.server import Server
from tests.wire.conftest import MakeServer
from tests.wire.process import ServerProcess
from tests.wire.proxy import Proxy
from tests.wire.test_exchange import eventually

QUICK = Retry(initial=0.02, maximum=0.2, give_up_after=30.0)


def batch(*values: int) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def values(client: Client, stream: str = "t") -> list[int]:
    """Every row there is to be seen, in order."""
    return [n for one in client.stream(stream).read() for n in one["Rows"]["n"].to_pylist()]


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with connect(f"grpc://127.0.0.1:{server.port}", retry=QUICK) as client:
        client.create_stream("t")
        yield client


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path / "data") as server:
        yield server


def test_parts_are_attempts_and_the_order_holds(client: Client) -> None:
    """Scenario: a share of many small parts and one large bundle, beside another share.
    Guarantee: commit publishes both, each in its order; nothing is seen before."""
    stream = client.stream("t")
    with stream.stage("job", 0, "p0", part_bytes=64, window=4) as one:
        for n in range(40):
            one.put({"Rows": batch(n)})
    with stream.stage("job", 0) as other:
        other.put({"Rows": batch(*range(100, 200))}, attributes={"from": "other"})
    staged = one.finish()
    assert staged.bundles == staged.rows == 40
    assert len(staged.attempts) == 5
    assert staged.attempts[0].startswith("p0.")
    assert values(client) == []
    done = stream.commit("job", 0, other.finish().attempts + staged.attempts)
    assert (done.bundles, done.rows) == (41, 140)
    assert values(client) == [*range(100, 200), *range(40)]
    assert next(stream.read()).attributes == {"from": "other"}


def test_a_share_without_bundles(client: Client) -> None:
    """Scenario: nothing was put. Guarantee: a share without attempts, and a commit of none."""
    stream = client.stream("t")
    with stream.stage("job", 0) as share:
        pass
    assert share.finish().attempts == ()
    assert stream.commit("job", 0, ()).first_ref is None
    assert stream.begin("job", 0).committed


def test_a_block_left_by_an_exception_leaves_nothing(client: Client) -> None:
    """Scenario: the producer fails after some parts are finished. Guarantee: they are
    removed, and the writer is closed."""
    stream = client.stream("t")

    def fail() -> None:
        with stream.stage("job", 0, part_bytes=8) as share:
            kept.append(share)
            for n in range(3):
                share.put({"Rows": batch(n)})
            raise ZeroDivisionError

    kept: list[StageWriter] = []
    with pytest.raises(ZeroDivisionError):
        fail()
    assert stream.status()["stages"]["attempts"] == 0
    with pytest.raises(Closed):
        kept[0].put({"Rows": batch(1)})
    with pytest.raises(Closed):
        kept[0].finish()


def test_what_can_never_be_taken_ends_the_share(client: Client) -> None:
    """Scenario: a bundle over the stream's limit, an odd slot name, a committed transaction.
    Guarantee: each raises its reason at once, and nothing is retried for ever."""
    client.create_stream("small", {"limits": {"max_bundle": "1KiB"}})
    stream = client.stream("small")
    share = stream.stage("job", 0)
    share.put({"Rows": batch(*range(1000))})
    with pytest.raises(Rejected, match="limit"):
        share.finish()
    with pytest.raises(Exception, match="slot name"):
        stream.stage("job", 0).put({"a/b": batch(1)})
    stream.commit("job", 0, ())
    with (
        pytest.raises(BadRequest, match="committed already") as caught,
        stream.stage("job", 0) as w,
    ):
        w.put({"Rows": batch(1)})
    assert caught.value.code == "already_committed"
    with pytest.raises(NotFound) as missing:
        stream.commit("job", 1, ["never-was.0"])
    assert missing.value.code == "stage_not_found"


def test_a_full_stream_is_waited_for(client: Client) -> None:
    """Scenario: what others have staged fills the stream's budget; later it is aborted.
    Guarantee: the writer waits, sends again what was refused, and nothing is out of order."""
    tiny = {
        "segment": {"target_size": "64KiB"},
        "limits": {"max_bundle": "64KiB", "max_unsynced": "64KiB"},
        "wal": {"rotation_target": "64KiB", "max_size": "256KiB"},
        "retention": {"size_cap": "512KiB"},
        "reserve": 0,
    }
    client.create_stream("full", tiny)
    stream = client.stream("full")
    big = {"Rows": batch(*range(4_000))}
    other = stream.stage("other", 0, retry=Retry(initial=0.02, maximum=0.1, give_up_after=0.5))

    def fill() -> None:
        for _ in range(100):
            other.put(big)
            other.flush()

    with pytest.raises(Backpressure):
        fill()
    with ThreadPoolExecutor(1) as pool, stream.stage("job", 0, window=3) as share:

        def write() -> Staged:
            for n in range(5):
                share.put({"Rows": batch(n, *range(3_000))})
            return share.finish()

        writing = pool.submit(write)
        eventually(lambda: share.waiting_for is not None)
        assert isinstance(share.waiting_for, Backpressure)
        other.discard()
        assert writing.result(30).bundles == 5
    stream.commit("job", 0, share.finish().attempts)
    assert [one["Rows"]["n"][0].as_py() for one in stream.read()] == list(range(5))


def test_a_cut_connection_costs_a_part(server: Server) -> None:
    """Scenario: the network is cut again and again while a share is written. Guarantee: every
    bundle is in it once."""
    proxy = Proxy(server.port)
    with connect(proxy.url, retry=QUICK) as client:
        stream = client.stream("t")
        with stream.stage("job", 0, part_bytes=200, window=8) as share:
            for n in range(200):
                share.put({"Rows": batch(n)})
                if n % 40 == 20:
                    proxy.cut()
        stream.commit("job", 0, share.finish().attempts)
        assert values(client) == list(range(200))
        assert stream.status()["stages"]["attempts"] == 0
    proxy.close()


@pytest.mark.kill
def test_a_server_killed_while_a_share_is_written(process: ServerProcess) -> None:
    """Scenario: kill -9 in the middle of a part, after some are finished. Guarantee: the
    finished ones are still there, the open one goes again, and the rows are exactly those."""
    with connect(process.url, retry=QUICK) as client:
        stream = client.stream("t")
        with stream.stage("job", 0, part_bytes=400) as share:
            for n in range(180):
                share.put({"Rows": batch(n)})
                if n in (70, 120):
                    process.kill()
                    process.start()
        done = stream.commit("job", 0, share.finish().attempts)
        assert (done.bundles, done.repeated) == (180, False)
        assert values(client) == list(range(180))


@pytest.mark.kill
def test_a_server_killed_between_finish_and_commit(process: ServerProcess) -> None:
    """Scenario: all shares are finished; kill -9; then the commit. Guarantee: what was
    finished can be committed by the server's successor."""
    with connect(process.url, retry=QUICK) as client:
        stream = client.stream("t")
        shares = []
        for n in range(3):
            with stream.stage("job", 7) as share:
                share.put({"Rows": batch(n, n)})
            shares.append(share.finish())
        process.kill()
        process.start()
        attempts = [name for share in shares for name in share.attempts]
        assert stream.commit("job", 7, attempts).bundles == 3
        process.kill()
        process.start()
        assert values(client) == [0, 0, 1, 1, 2, 2]
        assert stream.begin("job", 7).committed
        assert stream.commit("job", 7, attempts).repeated


@pytest.mark.kill
def test_a_server_killed_between_commit_and_answer(process: ServerProcess) -> None:
    """Scenario: the commit is done, its answer never arrives, the server is killed. Guarantee:
    the client asks again, is told `repeated`, and the rows are there once."""
    proxy = Proxy(process.port)
    with (
        connect(proxy.url, retry=QUICK) as client,
        connect(process.url) as beside,
        ThreadPoolExecutor(1) as pool,
    ):
        stream = client.stream("t")
        with stream.stage("job", 0) as share:
            share.put({"Rows": batch(1, 2, 3)})
        proxy.mute()
        answer = pool.submit(stream.commit, "job", 0, share.finish().attempts)
        eventually(lambda: beside.stream("t").begin("job", 0).committed)
        assert not answer.done()
        process.kill()
        proxy.cut()
        proxy.thaw()
        process.start()
        assert answer.result(30).repeated
        assert values(client) == [1, 2, 3]
    proxy.close()


@pytest.mark.kill
def test_a_lost_answer_of_finish_is_asked_for_again(
    process: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the stage is finished, the answer gets lost. Guarantee: asked again, the
    server says the same, and nothing is sent twice."""
    proxy = Proxy(process.port)
    with (
        connect(proxy.url, retry=QUICK) as client,
        connect(process.url) as beside,
        ThreadPoolExecutor(1) as pool,
    ):
        share = client.stream("t").stage("job", 0, "p")
        action = Connection.action
        watching: list[Future[None]] = []

        def lose_the_answer() -> None:
            eventually(lambda: beside.stream("t").status()["stages"]["attempts"] == 1)
            eventually(lambda: beside.stream("t").status()["stages"]["open"] == 0)
            proxy.cut()
            proxy.thaw()

        def muted(connection: Connection, name: str, *args: Any, **kwargs: Any) -> Any:
            if name == "finish_stage" and not watching:
                proxy.mute()
                watching.append(pool.submit(lose_the_answer))
            return action(connection, name, *args, **kwargs)

        monkeypatch.setattr(Connection, "action", muted)
        share.put({"Rows": batch(1)})
        assert share.finish().attempts == ("p.0",)
        watching[0].result(10)
        client.stream("t").commit("job", 0, share.finish().attempts)
        assert values(client) == [1]
    proxy.close()


def test_many_producers_and_one_commit(make_server: MakeServer) -> None:
    """Scenario: eight producers at a time, each with a loser beside it. Guarantee: the
    multiset of rows is that of the winners."""
    server = make_server(segment__target_size="64KiB")
    with connect(f"grpc://127.0.0.1:{server.port}", retry=QUICK) as client:
        stream = client.stream("t")

        def produce(number: int) -> tuple[str, ...]:
            with stream.stage("job", 0, part_bytes=20_000) as share:
                for n in range(20):
                    first = number * 10_000 + n * 500
                    share.put({"Rows": batch(*range(first, first + 500))})
            return share.finish().attempts

        with ThreadPoolExecutor(8) as pool:
            losers = [pool.submit(produce, n) for n in range(8)]
            winners = [pool.submit(produce, n) for n in range(8)]
            named = [name for one in winners for name in one.result(60)]
            assert all(one.result(60) for one in losers)
        done = stream.commit("job", 0, named)
        assert done.rows == 80_000
        assert sorted(values(client)) == list(range(80_000))
        assert stream.status()["stages"]["attempts"] == 0
