"""``flush(durable=True)`` means the disk of the server, also of one that dies meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from flight_service.client import (
    AccessDenied,
    Client,
    Delivered,
    NotFound,
    Subscription,
    connect,
)
from flight_service.client import feed as feed_module
from flight_service.client.bundle import ACKED
from flight_service.client.call import Arrived, Call
from flight_service.client.connection import Connection
from flight_service.client.errors import by_code
from flight_service.client.feed import Feed
from flight_service.client.outcomes import OutcomeGroup
from flight_service.protocol.actions import Outcomes
from flight_service.protocol.exchange import ClientMessage, ServerMessage, SubscribeCommand
from flight_service.protocol.names import Ref
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

        def say_after_the_copies(group: OutcomeGroup) -> Outcomes:
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

        def say_and_kill(group: OutcomeGroup) -> Outcomes:
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


def acked_and_forgotten(client: Client, process: ServerProcess) -> Subscription:
    """A subscription whose acks were confirmed by a server that died before it wrote them, and
    which is connected to the next one."""
    feed, bundles = taken(client)
    for bundle in bundles:
        bundle.ack()
    feed.flush()
    process.kill()
    process.start()
    behind = feed._feed
    with behind._lock:
        assert behind._changed.wait_for(lambda: behind.reconnects and behind._call, 30.0)
    return feed


def refuse(group: OutcomeGroup) -> Outcomes:
    raise by_code("forbidden", "not you.")


def test_a_flush_reports_acks_that_the_server_refuses(
    client: Client, process: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: acks died with the server, and the next one refuses them for good. Guarantee:
    every durable flush raises, until they are taken after all."""
    with acked_and_forgotten(client, process) as feed:
        with monkeypatch.context() as patch:
            patch.setattr(feed._feed, "_say", refuse)
            for _ in range(2):
                with pytest.raises(AccessDenied):
                    feed.flush(30, durable=True)
        assert client.stream("t").lag("s").bundles == COUNT
        feed.flush(30, durable=True)
        assert client.stream("t").lag("s").bundles == 0


def test_a_flush_reports_acks_that_were_refused_before_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the connection breaks with acks on their way, and the server refuses them
    before the client flushes. Guarantee: the durable flush sends them again and reports it."""
    feed, bundles = taken(client)
    with feed:
        behind = feed._feed
        with monkeypatch.context() as patch:
            patch.setattr(behind, "_say", refuse)
            patch.setattr(behind._call, "send", lambda message: True)
            for bundle in bundles:
                bundle.ack()
            with behind._lock:
                assert behind._call is not None
                behind._call.cancel()
                assert behind._changed.wait_for(lambda: not len(behind._outcomes), 30.0)
            with pytest.raises(AccessDenied):
                feed.flush(30, durable=True)
        feed.flush(30, durable=True)
        assert client.stream("t").lag("s").bundles == 0


def test_a_bundle_that_the_server_does_not_have_is_reported(client: Client) -> None:
    """Scenario: an ack names a bundle that the server does not know. Guarantee: the durable ack
    and the durable flush raise; acks that travel with it count, and are on disk."""
    feed, bundles = taken(client)
    unknown = Ref(99, 0)
    with feed:
        for bundle in bundles:
            bundle.ack()
        with pytest.raises(NotFound, match="99"):
            feed._feed.finish(unknown, ACKED, reason="", delay=None, durable=True)
        with pytest.raises(NotFound, match="99") as caught:
            feed.flush(30, durable=True)
        assert caught.value.details["refs"] == [list(unknown)]
        assert client.stream("t").lag("s").bundles == 0


def test_a_flush_after_the_end_sends_confirmed_acks_again(
    client: Client, process: ServerProcess
) -> None:
    """Scenario: acks died with the server, and the subscription is closed before they are
    flushed. Guarantee: after the flush they are on disk."""
    feed = acked_and_forgotten(client, process)
    feed.close()
    feed.flush(30, durable=True)
    process.kill()
    process.start()
    assert client.stream("t").lag("s").bundles == 0


def test_a_flush_after_the_end_reports_what_is_refused(
    client: Client, process: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: as before, and the server refuses the acks. Guarantee: the flush raises."""
    feed = acked_and_forgotten(client, process)
    feed.close()
    with monkeypatch.context() as patch:
        patch.setattr(feed._feed, "_say", refuse)
        for _ in range(2):
            with pytest.raises(AccessDenied):
                feed.flush(30, durable=True)
    feed.flush(30, durable=True)
    assert client.stream("t").lag("s").bundles == 0


def test_a_flush_after_the_end_waits_for_acks_that_another_thread_sends(
    client: Client, process: ServerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the subscription is closed while its messenger is sending acks by an action
    that takes long. Guarantee: a durable flush does not return before the action is answered."""
    feed = acked_and_forgotten(client, process)
    behind, saying, going, done = feed._feed, threading.Event(), threading.Event(), []
    say = behind._say

    def say_later(group: OutcomeGroup) -> Outcomes:
        if group.refs:
            saying.set()
            assert going.wait(60.0)
        return say(group)

    def flush() -> None:
        feed.flush(60, durable=True)
        done.append(client.stream("t").lag("s").bundles)

    monkeypatch.setattr(behind, "_say", say_later)
    flushers = [threading.Thread(target=flush) for _ in range(2)]
    flushers[0].start()
    assert saying.wait(30.0)
    feed.close(0.1)
    flushers[1].start()
    flushers[1].join(0.5)
    early = list(done)
    going.set()
    for flusher in flushers:
        flusher.join(60.0)
    assert early == []
    assert done == [0, 0]


def test_a_second_ack_may_ask_for_the_disk(client: Client, process: ServerProcess) -> None:
    """Scenario: bundles are acked, and one of them a second time, durably. Guarantee: what was
    acked by then is on disk."""
    feed, bundles = taken(client)
    with feed:
        for bundle in bundles:
            bundle.ack()
        bundles[0].ack(durable=True)
        process.kill()
        process.start()
        assert client.stream("t").lag("s").bundles == 0


def test_a_durable_ack_that_failed_is_not_taken_for_done(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: a durable ack raises, and the caller tries again. Guarantee: the second one
    raises too, until the ack is on disk."""
    feed, bundles = taken(client)
    feed.close()
    with monkeypatch.context() as patch:
        patch.setattr(feed._feed, "_say", refuse)
        for _ in range(2):
            with pytest.raises(AccessDenied):
                bundles[0].ack(durable=True)
    bundles[0].ack(durable=True)
    assert client.stream("t").lag("s").bundles == COUNT - 1


class Overtaking:
    """An action that finishes bundles after the next call has claimed them, and before the
    client has taken that call into use."""

    def __init__(self, feed: Feed, patch: pytest.MonkeyPatch) -> None:
        self._feed = feed
        self.saying = threading.Event()
        self._going = threading.Event()
        self._say = feed._say
        patch.setattr(feed, "_say", self._say_later)
        patch.setattr(feed_module, "Call", self._call)

    def _say_later(self, group: OutcomeGroup) -> Outcomes:
        self.saying.set()
        assert self._going.wait(30.0)
        return self._say(group)

    def _call(self, connection: Connection, command: SubscribeCommand) -> Call:
        call = Call(connection, command)
        if self.saying.is_set() and not self._going.is_set():
            # What the server sends is in the client's process, and nobody has read it yet.
            threading.Event().wait(1.0)
            self._going.set()
            feed = self._feed
            with feed._lock:
                assert feed._changed.wait_for(lambda: not feed._outcomes._saying, 30.0)
        return call


def test_a_copy_on_a_call_that_an_action_overtook_is_not_handed_out(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the server no longer holds a bundle for the call that acks it, so an action
    does; meanwhile the call breaks and the next one brings a copy. Guarantee: the bundle is not
    handed out after its durable ack, though the copy was claimed before it."""
    feed, bundles = taken(client)
    with feed:
        behind = feed._feed
        live = behind._call
        assert live is not None
        send = live.send

        def as_if_expired(message: ClientMessage) -> bool:
            if not message.ack:
                return send(message)
            done = ServerMessage(type="done", id=message.id, durable=True, refs=message.ack)
            threading.Thread(target=behind._take, args=[done]).start()
            return True

        monkeypatch.setattr(live, "send", as_if_expired)
        overtaking = Overtaking(behind, monkeypatch)
        acker = threading.Thread(target=lambda: bundles[0].ack(durable=True))
        acker.start()
        assert overtaking.saying.wait(30.0)
        live.cancel()
        acker.join(60.0)
        assert not acker.is_alive()
        assert client.stream("t").lag("s").bundles == COUNT - 1
        assert feed.next_bundle(timeout=1.0) is None
        # Once the live call has brought all copies there were, a bundle may come again.
        client.stream("t").seek("s", bundles[0].ref)
        again = feed.next_bundle(timeout=30.0)
        assert again is not None
        assert again.ref == bundles[0].ref
