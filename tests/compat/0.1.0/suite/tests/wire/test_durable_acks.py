"""``flush(durable=True)`` means the disk of the server, also of one that dies meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flight_service.client import Client, Delivered, Subscription, connect
from tests.wire.bare import logs
from tests.wire.process import ServerProcess

COUNT = 40


@pytest.fixture
def process(tmp_path: Path) -> Iterator[ServerProcess]:
    # Progress is written only when somebody asks: what is acked is in memory until then.
    with ServerProcess(tmp_path / "data", {"subscribers.progress_interval": "60s"}) as process:
        yield process


@pytest.fixture
def client(process: ServerProcess) -> Iterator[Client]:
    with connect(process.url, wait=20) as client:
        yield client


def taken(client: Client) -> tuple[Subscription, list[Delivered]]:
    """A subscription with everything in hand."""
    stream = client.stream("t")
    for number in range(COUNT):
        stream.put({"Logs": logs(number)})
    feed = stream.subscribe("s")
    return feed, [next(feed) for _ in range(COUNT)]


def test_acks_that_died_with_the_server_are_said_again(
    client: Client, process: ServerProcess
) -> None:
    """Scenario: acks are confirmed, the server is killed before it wrote them and starts
    again, then they are flushed. Guarantee: after the flush they are on disk, and nothing of
    them comes again; without one they would be delivered again."""
    feed, bundles = taken(client)
    with feed:
        for bundle in bundles:
            bundle.ack()
        feed.flush()
        process.kill()
        process.start()
        assert client.stream("t").lag("s").bundles == COUNT
        feed.flush(60, durable=True)
        process.kill()
        process.start()
        assert client.stream("t").lag("s").bundles == 0
        assert feed.next_bundle(timeout=1.0) is None


def test_a_flush_waits_for_a_server_that_is_away(client: Client, process: ServerProcess) -> None:
    """Scenario: the server is away when a flush is asked for, and comes back. Guarantee: the
    flush ends well, then, and not before."""
    feed, bundles = taken(client)
    with feed:
        process.kill()
        for bundle in bundles:
            bundle.ack()
        done = threading.Event()

        def flush() -> None:
            feed.flush(60, durable=True)
            done.set()

        flusher = threading.Thread(target=flush)
        flusher.start()
        assert not done.wait(1.0)
        process.start()
        assert done.wait(30.0)
        flusher.join()
        process.kill()
        process.start()
        assert client.stream("t").lag("s").bundles == 0
