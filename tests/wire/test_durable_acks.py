"""``flush(durable=True)`` means the disk of the server, also of one that dies meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flight_service.client import Client, Delivered, Subscription, connect
from flight_service.client.call import Arrived
from flight_service.client.outcomes import Group
from flight_service.protocol.actions import Outcomes
from flight_service.protocol.exchange import ServerMessage
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


def test_a_copy_that_came_before_its_ack_was_said_again_is_not_handed_out(
    client: Client, process: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: confirmed acks die with the server; it comes back and delivers again while
    the client is saying them again. Guarantee: what a flush has made durable is not handed
    out afterwards, though its copy was there first."""
    feed, bundles = taken(client)
    with feed:
        for bundle in bundles:
            bundle.ack()
        feed.flush()
        behind, saying, came = feed._feed, threading.Event(), threading.Semaphore(0)
        say, take = behind._say, behind._take

        def say_after_the_copies(group: Group) -> Outcomes:
            saying.set()
            for _ in range(COUNT):
                assert came.acquire(timeout=30.0)
            return say(group)

        def take_while_saying(message: ServerMessage | list[Arrived]) -> None:
            if isinstance(message, list):
                assert saying.wait(30.0)
            take(message)
            if isinstance(message, list):
                came.release(len(message))

        monkeypatch.setattr(behind, "_say", say_after_the_copies)
        monkeypatch.setattr(behind, "_take", take_while_saying)
        process.kill()
        process.start()
        with behind._lock:
            assert behind._changed.wait_for(lambda: behind.reconnects and behind._call, 30.0)
        feed.flush(60, durable=True)
        assert client.stream("t").lag("s").bundles == 0
        assert feed.next_bundle(timeout=0.5) is None


def test_late_acks_are_on_the_disk_of_the_server_that_took_them(
    client: Client, process: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the server dies with acks on their way; they are said again to its second
    life, which dies before the next call reaches it. Guarantee: a durable flush by the third
    life speaks of them too."""
    feed, bundles = taken(client)
    with feed:
        behind = feed._feed
        say = behind._say
        lives: list[int] = []

        def say_and_kill(group: Group) -> Outcomes:
            told = say(group)
            if not lives:
                lives.append(2)
                process.kill()
                process.start()
            return told

        monkeypatch.setattr(behind, "_say", say_and_kill)
        process.kill()
        for bundle in bundles:
            bundle.ack()
        process.start()
        feed.flush(60, durable=True)
        process.kill()
        process.start()
        assert lives
        assert client.stream("t").lag("s").bundles == 0
