"""Clients that come and go at the worst moments; connections that just stay."""

from __future__ import annotations

import contextlib
import json
import os
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_service.protocol.errors import ServiceError
from tests.wire.bare import act, command, info, logs, put_slot
from tests.wire.process import ServerProcess
from tests.wire.test_exchange import eventually

GONE = (flight.FlightError, pa.ArrowException, OSError, ServiceError, StopIteration)
BIG = pa.record_batch({"x": pa.array(range(20_000), pa.int64())})
SPARE_THREADS = 16
"""gRPC keeps a few for the next calls."""
IDLE_SECONDS = float(os.environ.get("IDLE_SECONDS", "120"))


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(tmp_path / "data", {"delivery.lease": "5s"})
    process.start()
    yield process
    process.kill()


def put_and_vanish(client: flight.FlightClient, chooser: random.Random) -> None:
    """Send some bundles, read some receipts, and drop everything."""
    where = command(stream="t", mode="slot", slot="Logs")
    writer, reader = client.do_put(where, BIG.schema)
    for _ in range(chooser.randrange(1, 30)):
        writer.write_batch(BIG)
        if chooser.random() < 0.2:
            reader.read()
    if chooser.random() < 0.5:
        writer.done_writing()


def read_and_vanish(client: flight.FlightClient, chooser: random.Random) -> None:
    """Start a DoGet in either mode and leave it."""
    fields = {"mode": "slot", "slot": "Logs"} if chooser.random() < 0.5 else {}
    endpoints = info(client, stream="t", **fields).endpoints
    reader = client.do_get(endpoints[0].ticket)
    for _ in range(chooser.randrange(3)):
        reader.read_chunk()
    if chooser.random() < 0.5:
        reader.cancel()


def subscribe_and_vanish(client: flight.FlightClient, chooser: random.Random) -> None:
    """A live subscription in the middle of being pushed to."""
    writer, reader = client.do_exchange(command(stream="t", subscriber="s"))
    for _ in range(chooser.randrange(5)):
        chunk = reader.read_chunk()
        note = json.loads(chunk.app_metadata.to_pybytes())
        if chunk.data is not None and chooser.random() < 0.5:
            writer.write_metadata(json.dumps({"v": 1, "ack": [note["ref"]]}).encode())
    if chooser.random() < 0.3:
        reader.cancel()
    elif chooser.random() < 0.5:
        writer.done_writing()


def claim_and_vanish(client: flight.FlightClient, chooser: random.Random) -> None:
    """A claim whose client runs out of patience."""
    body = json.dumps({"v": 1, "stream": "t", "subscriber": "w", "wait_ms": 5_000, "lease_ms": 500})
    options = flight.FlightCallOptions(timeout=chooser.uniform(0.001, 0.2))
    list(client.do_action(flight.Action("claim", body.encode()), options))


@pytest.mark.kill
def test_clients_that_vanish_leave_nothing_behind(process: ServerProcess) -> None:
    """Scenario: hundreds of calls of every kind dropped at random moments, helpers busy.
    Guarantee: the process lives; calls, claims and threads are all given back; and it
    serves as before."""
    with flight.FlightClient(process.url) as client:
        put_slot(client, "t", [BIG] * 5)
    before = _threads(process.pid)

    def churn(seed: int) -> None:
        chooser = random.Random(seed)
        for _ in range(40):
            client = flight.FlightClient(process.url)
            what = chooser.choice(
                [put_and_vanish, read_and_vanish, subscribe_and_vanish, claim_and_vanish]
            )
            with contextlib.suppress(*GONE):
                what(client, chooser)
            client.close()

    threads = [threading.Thread(target=churn, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    with flight.FlightClient(process.url) as client:
        eventually(lambda: _calls(client) == 1, 10.0)
        eventually(lambda: _in_flight(client) == 0, 10.0)
        assert put_slot(client, "t", [BIG])[0]["status"] == "ok"
        eventually(lambda: _threads(process.pid) <= before + SPARE_THREADS, 30.0)


def _calls(client: flight.FlightClient) -> int:
    running: int = act(client, "status")["server"]["calls"]["running"]
    return running


def _in_flight(client: flight.FlightClient) -> int:
    subscribers: dict[str, Any] = act(client, "status", stream="t")["streams"]["t"]["subscribers"]
    return sum(
        one["delivery"]["in_flight"] + one["claimed"]
        for one in subscribers.values()
        if one["delivery"] is not None
    )


def _threads(pid: int) -> int:
    return len(list(Path(f"/proc/{pid}/task").iterdir()))


@pytest.mark.slow
@pytest.mark.timeout(4_000)
def test_an_idle_connection_stays(process: ServerProcess) -> None:
    """Scenario: a connection and a live subscription with nothing to do for minutes (an
    hour under soak). Guarantee: both work afterwards as if no time had passed."""
    client = flight.FlightClient(process.url)
    act(client, "create_stream", stream="t")
    writer, reader = client.do_exchange(command(stream="t", subscriber="s"))
    assert b"ready" in reader.read_chunk().app_metadata.to_pybytes()
    threading.Event().wait(IDLE_SECONDS)
    assert put_slot(client, "t", [logs(1)])[0]["status"] == "ok"
    chunk = reader.read_chunk()
    ref = json.loads(chunk.app_metadata.to_pybytes())["ref"]
    writer.write_metadata(json.dumps({"v": 1, "ack": [ref], "id": 1}).encode())
    assert b'"done"' in reader.read_chunk().app_metadata.to_pybytes()
    writer.done_writing()
    writer.close()
    client.close()
