"""kill -9 of the real server under real load, again and again.

What must hold whatever the moment: a bundle answered `durable` is delivered; a keyed one
never twice under two refs; what was acked with `durable` never comes again; everything
else comes until it is acked.
"""

from __future__ import annotations

import json
import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_service.protocol.errors import ServiceError
from tests.wire.bare import act, command, get, receipts
from tests.wire.process import ServerProcess

ROUNDS = int(os.environ.get("KILL_ROUNDS", "25"))
PRODUCERS = 3
SUBSCRIBERS = ("alpha", "beta")
WINDOW = 8
GONE = (flight.FlightError, pa.ArrowException, OSError, ServiceError, StopIteration)


def bundle(key: str) -> pa.RecordBatch:
    """A batch that says which key it was put with."""
    return pa.record_batch({"key": pa.array([key] * 50), "n": pa.array(range(50), pa.int64())})


class World:
    """What producers and subscribers saw."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.stop = threading.Event()
        self.done_putting = threading.Event()
        self.durable: dict[str, tuple[int, int]] = {}
        self.refs: dict[str, dict[str, set[tuple[int, int]]]] = {s: {} for s in SUBSCRIBERS}
        self.acked: dict[str, set[tuple[int, int]]] = {s: set() for s in SUBSCRIBERS}
        self.problems: list[str] = []
        self._lock = threading.Lock()

    def pause(self) -> None:
        self.stop.wait(0.02)

    def produce(self, who: int) -> None:
        """Put keyed bundles in order; after a loss send what was not answered again."""
        sent = 0
        while not self.done_putting.is_set():
            try:
                with flight.FlightClient(self.url) as client:
                    sent = self._put_on(client, who, sent)
            except GONE:
                self.pause()

    def _put_on(self, client: flight.FlightClient, who: int, sent: int) -> int:
        where = command(stream="t", mode="slot", slot="Logs")
        writer, reader = client.do_put(where, bundle("").schema)
        while not self.done_putting.is_set():
            keys = [f"{who}/{n}" for n in range(sent, sent + WINDOW)]
            for key in keys:
                writer.write_with_metadata(bundle(key), json.dumps({"v": 1, "key": key}).encode())
            for key, receipt in zip(keys, receipts(reader, WINDOW), strict=False):
                if receipt["status"] not in ("ok", "dup"):
                    raise OSError(receipt["status"])
                with self._lock:
                    ref = tuple(receipt["ref"])
                    first = self.durable.setdefault(key, ref)
                    if first != ref:
                        self.problems.append(f"{key} is at {first} and at {ref}")
                sent += 1
        writer.close()
        return sent

    def subscribe(self, name: str) -> None:
        """Claim, read, ack durably."""
        while not self.stop.is_set():
            try:
                with flight.FlightClient(self.url) as client:
                    while not self.stop.is_set():
                        self._take_some(client, name)
            except GONE:
                self.pause()

    def _take_some(self, client: flight.FlightClient, name: str) -> None:
        who = {"stream": "t", "subscriber": name}
        claimed = act(client, "claim", **who, max_bundles=16, wait_ms=200)
        refs = [one["ref"] for one in claimed["bundles"]]
        if not refs:
            return
        for ref in refs:
            if tuple(ref) in self.acked[name]:
                self.problems.append(f"{name}: {ref} came again after a durable ack")
        ticket = {
            "v": 1,
            "stream": "t",
            "refs": refs,
            "subscriber": name,
            "lease": claimed["lease"],
        }
        for note, batches in get(client, flight.Ticket(json.dumps(ticket))):
            key = batches["Logs"]["key"][0].as_py()
            if key != note["key"] or not batches["Logs"].equals(bundle(key)):
                self.problems.append(f"{note['ref']} is not what was put")
            self.refs[name].setdefault(key, set()).add(tuple(note["ref"]))
        # Some are forgotten, to come again.
        mine = [ref for ref in refs if random.random() < 0.9]
        answer = act(client, "ack", **who, refs=mine, lease=claimed["lease"], durable=True)
        if answer["durable"] and "problems" not in answer:
            self.acked[name] |= {tuple(ref) for ref in mine}
        left = [ref for ref in refs if ref not in mine]
        if left:
            act(client, "defer", **who, refs=left, lease=claimed["lease"], delay_ms=0)


@pytest.mark.kill
@pytest.mark.timeout(120 + 20 * ROUNDS)
def test_kill_nine_loses_and_doubles_nothing(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Scenario: producers and subscribers under load while the server is killed at random
    moments and started again. Guarantee: see the top of this file."""
    server = ServerProcess(
        tmp_path / "data",
        {
            "segment.target_size": "256KiB",
            "segment.max_open_duration": "200ms",
            "subscribers.progress_interval": "20ms",
            "delivery.lease": "2s",
        },
    )
    world = World(server.url)
    threads = [
        *(threading.Thread(target=world.produce, args=(n,)) for n in range(PRODUCERS)),
        *(threading.Thread(target=world.subscribe, args=(s,)) for s in SUBSCRIBERS),
    ]
    server.start()
    try:
        with flight.FlightClient(server.url) as client:
            act(client, "create_stream", stream="t")
            for name in SUBSCRIBERS:
                act(client, "register", stream="t", subscriber=name)
        for thread in threads:
            thread.start()
        for _ in range(ROUNDS):
            world.stop.wait(random.uniform(0.05, 0.6))
            server.kill()
            server.start()
        world.done_putting.set()
        for thread in threads[:PRODUCERS]:
            thread.join(60)
        _drain(server.url, world)
        world.stop.set()
        for thread in threads[PRODUCERS:]:
            thread.join(60)
    finally:
        world.done_putting.set()
        world.stop.set()
        server.kill()
    _judge(world)
    record_property("tried", ROUNDS)
    record_property("answered durable", len(world.durable))


def _drain(url: str, world: World) -> None:
    """Wait until every subscriber has finished everything."""
    for _ in range(600):
        with flight.FlightClient(url) as client:
            lag: dict[str, Any] = act(client, "lag", stream="t")["subscribers"]
        if not any(one["bundles"] for one in lag.values()):
            return
        world.stop.wait(0.1)
    raise AssertionError(f"not drained: {lag}")


def _judge(world: World) -> None:
    assert not world.problems, world.problems[:10]
    assert len(world.durable) > ROUNDS * WINDOW
    for name in SUBSCRIBERS:
        seen = world.refs[name]
        lost = world.durable.keys() - seen.keys()
        assert not lost, f"{name} never saw {sorted(lost)[:5]} of {len(world.durable)}"
        doubled = {key: refs for key, refs in seen.items() if len(refs) > 1}
        assert not doubled, doubled
