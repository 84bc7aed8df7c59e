"""Subscriptions: outcomes, resuming, competing consumers, and connections that break."""

from __future__ import annotations

import gc
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flight_service.client import (
    BadRequest,
    Client,
    ClientError,
    Closed,
    Delivered,
    NotFound,
    Retry,
    Stream,
    connect,
)
from flight_service.client.call import Arrived, Call
from flight_service.client.feed import Feed
from flight_service.protocol.exchange import ClientMessage, ServerMessage
from flight_service.server import Server
from flight_service.server.bundles import Wrapped
from flight_service.server.claims import PoisonBundle
from flight_service.server.dead_letters import DeadLetters
from flight_service.server.exchange import ExchangeCall
from quiver import BundleRef
from tests.wire.bare import logs
from tests.wire.conftest import MakeServer
from tests.wire.process import ServerProcess


@pytest.fixture
def q(server: Server) -> Iterator[Client]:
    """Our client of a server with default settings."""
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        yield client


@pytest.fixture
def t(q: Client) -> Stream:
    """A stream with ten bundles."""
    fill(q.stream("t"), range(10))
    return q.stream("t")


def fill(stream: Stream, numbers: range) -> None:
    with stream.writer() as writer:
        for number in numbers:
            writer.put({"Logs": logs(number)})


def number_of(bundle: Delivered) -> int:
    value: int = bundle["Logs"]["n"][0].as_py()
    return value


def deliveries_when_all_fail(stream: Stream, name: str) -> list[int]:
    """Drain and defer, each time at once: the counts that came with what was delivered."""
    with stream.subscribe(name, follow=False) as bundles:
        seen = []
        for bundle in bundles:
            seen.append(bundle.delivery)
            bundle.defer(0)
        return seen


def drain(stream: Stream, name: str) -> list[int]:
    """Receive and ack all there is."""
    with stream.subscribe(name, follow=False) as bundles:
        seen = []
        for bundle in bundles:
            seen.append(number_of(bundle))
            bundle.ack()
    return seen


def eventually(check: Callable[[], bool], seconds: float = 10.0) -> None:
    """Wait until something is true; the wait is bounded, the check decides."""
    pause = threading.Event()
    deadline = time.monotonic() + seconds
    while not check():
        assert time.monotonic() < deadline, "it did not come true"
        pause.wait(0.01)


def test_drain_gives_all_there_is_once_and_ends(t: Stream) -> None:
    """Ten bundles, then the end; a second drain has nothing; new ones come to the third."""
    assert drain(t, "s") == list(range(10))
    assert drain(t, "s") == []
    fill(t, range(10, 13))
    assert drain(t, "s") == [10, 11, 12]
    assert t.lag("s").bundles == 0


def test_drain_of_more_than_the_prefetch(t: Stream) -> None:
    """A prefetch of two bundles, or of one byte: all come, in order."""
    for name, options in (("few", {"prefetch": 2}), ("small", {"prefetch_bytes": 1})):
        with t.subscribe(name, follow=False, **options) as bundles:  # type: ignore[arg-type]
            seen = []
            for bundle in bundles:
                seen.append(number_of(bundle))
                bundle.ack()
        assert seen == list(range(10))


def test_a_follower_gets_what_comes(q: Client) -> None:
    """A subscriber that waits gets each bundle soon after its put."""
    stream = q.create_stream("t")
    with stream.subscribe("s") as bundles:
        assert bundles.next_bundle(timeout=0.05) is None
        for number in range(5):
            stream.put({"Logs": logs(number)})
            bundle = bundles.next_bundle(timeout=10)
            assert bundle is not None
            assert number_of(bundle) == number
            bundle.ack()


def test_start_is_for_new_subscribers(t: Stream) -> None:
    """latest begins behind what is there, a ref at that bundle; a known one resumes."""
    refs = [bundle.ref for bundle in t.read()]
    with t.subscribe("late", "latest", follow=False) as bundles:
        assert list(bundles) == []
    with t.subscribe("mid", refs[7], follow=False) as bundles:
        assert [number_of(bundle) for bundle in bundles] == [7, 8, 9]
    fill(t, range(10, 11))
    assert drain(t, "late") == [10]


def test_what_is_not_acked_comes_again(t: Stream) -> None:
    """Half is acked, half is dropped on the floor: only that half comes again."""
    with t.subscribe("s", follow=False) as bundles:
        for bundle in (kept := list(bundles)):
            if number_of(bundle) % 2:
                bundle.ack()
    assert drain(t, "s") == [0, 2, 4, 6, 8]
    assert len(kept) == 10


def test_bundles_nobody_looked_at_do_not_count_as_delivered(t: Stream) -> None:
    """One bundle taken of a prefetch of ten, three times: the others were never delivered,
    the one that was in hand counts its deliveries."""
    for _ in range(3):
        with t.subscribe("s") as bundles:
            first = next(bundles)
            assert number_of(first) == 0
            eventually(lambda: t.status()["subscribers"]["s"]["delivery"]["in_flight"] == 10)
    with t.subscribe("s", follow=False) as bundles:
        deliveries = {number_of(bundle): bundle.delivery for bundle in bundles}
    assert deliveries == {0: 4} | dict.fromkeys(range(1, 10), 1)


def test_defer_comes_again_with_reason_and_count(t: Stream) -> None:
    """A deferred bundle comes back no sooner than asked, and says why it came back."""
    with t.subscribe("s") as bundles:
        first = next(bundles)
        began = time.monotonic()
        first.nack(0.3, "not ready")
        seen = [next(bundles) for _ in range(10)]
        again = seen[-1]
        assert again.ref == first.ref
        assert time.monotonic() - began >= 0.3
        assert (again.delivery, again.last_reason) == (2, "not ready")
        with pytest.raises(BadRequest, match="was given back"):
            first.ack()
        for bundle in seen:
            bundle.ack()
            bundle.ack()
        bundles.flush()
    assert t.lag("s").bundles == 0


def test_reject_is_final_and_on_record(t: Stream) -> None:
    """A rejected bundle does not come again."""
    with t.subscribe("s", follow=False) as bundles:
        for bundle in bundles:
            if number_of(bundle) == 3:
                bundle.reject("broken", durable=True)
            else:
                bundle.ack()
    assert t.lag("s").bundles == 0


def test_the_context_of_a_bundle_gives_it_back_with_the_error(t: Stream) -> None:
    """An exception inside the block: the bundle comes again, with what went wrong."""
    with t.subscribe("s") as bundles:
        bundle = next(bundles)
        with pytest.raises(RuntimeError), bundle:
            raise RuntimeError("cannot ship")
        assert bundle.outcome == "deferred"
        with next(bundles) as other:
            other.ack()
        assert other.outcome == "acked"
    eventually(lambda: t.lag("s").bundles == 9)


def test_a_bundle_that_disappears_is_given_back(t: Stream) -> None:
    """A handle that is garbage without an outcome: its bundle is delivered again."""
    t.register("s", backoff_ms=0)
    with t.subscribe("s") as bundles:
        first = next(bundles).ref
        gc.collect()
        kept = [next(bundles) for _ in range(10)]
        assert first in {bundle.ref for bundle in kept}


@pytest.mark.kill
def test_durable_acks_survive_a_kill(tmp_path: Path) -> None:
    """Acked durably, then the server is killed at once: those are not delivered again."""
    with ServerProcess(tmp_path / "data") as server, connect(server.url) as client:
        stream = client.stream("t")
        fill(stream, range(10))
        with stream.subscribe("s") as bundles:
            for number in range(10):
                bundle = next(bundles)
                if number < 3:
                    bundle.ack(durable=True)
                elif number < 6:
                    bundle.ack()
            bundles.flush(durable=True)
            server.kill()
            server.start()
        assert drain(stream, "s") == [6, 7, 8, 9]


def test_consumers_of_one_name_share_the_work(t: Stream) -> None:
    """Two consumers, one name: every bundle goes to one of them."""
    fill(t, range(10, 200))
    seen: Counter[int] = Counter()

    def consume() -> None:
        with t.subscribe("s", follow=False, prefetch=4) as bundles:
            for bundle in bundles:
                seen[number_of(bundle)] += 1
                bundle.ack()

    threads = [threading.Thread(target=consume) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert seen == Counter(range(200))


def test_slots_and_columns_are_chosen_on_the_server(q: Client) -> None:
    """Only one slot and one column of it are sent; the whole bundle is acked."""
    stream = q.stream("t")
    wide = logs(1).append_column("m", logs(2)["n"])
    stream.put({"Logs": wide, "Other": logs(3)})
    with stream.subscribe("s", follow=False, slots=["Logs"], columns={"Logs": ["m"]}) as bundles:
        (bundle,) = list(bundles)
        assert list(bundle) == ["Logs"]
        assert bundle["Logs"].schema.names == ["m"]
        bundle.ack()
    assert t_lag(stream) == 0


def t_lag(stream: Stream) -> int:
    return stream.lag("s").bundles


def test_a_slow_consumer_keeps_its_bundles_by_heartbeats(t: Stream) -> None:
    """A lease of 0.3 s and work that takes 1 s: nothing is taken back meanwhile."""
    with t.subscribe("s", lease=0.3) as bundles:
        bundle = next(bundles)
        threading.Event().wait(1.0)
        bundle.ack(durable=True)
        assert t.status()["subscribers"]["s"]["delivery"]["redelivering"] == 0


def test_break_ends_the_subscription(t: Stream) -> None:
    """A loop that is left, without close: the claims go back by themselves."""
    for bundle in t.subscribe("s"):
        bundle.ack()
        break
    del bundle
    gc.collect()
    eventually(lambda: t.status()["subscribers"]["s"]["delivery"]["leases"] == 0)


def test_acks_after_the_end_still_count(t: Stream) -> None:
    """A handle that outlives its subscription: whoever dealt with a bundle may say so."""
    with t.subscribe("s", follow=False) as bundles:
        kept = list(bundles)
    for bundle in kept[:4]:
        bundle.ack()
    assert t.lag("s").bundles == 6
    with pytest.raises(Closed):
        bundles.next_bundle()
    assert list(bundles) == []


def test_threads_may_share_a_subscription(t: Stream) -> None:
    """Three threads iterate over one: each bundle goes to one of them."""
    fill(t, range(10, 100))
    seen: Counter[int] = Counter()
    with t.subscribe("s", follow=False) as bundles:

        def work() -> None:
            for bundle in bundles:
                seen[number_of(bundle)] += 1
                bundle.ack()

        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert seen == Counter(range(100))


def test_poison_that_blocks_is_told_to_the_consumer(t: Stream) -> None:
    """A policy that blocks on poison: the iteration raises, and goes on after an ack."""
    t.register("s", max_deliveries=1, poison="block", backoff_ms=0)
    refs = []
    with t.subscribe("s", prefetch=1) as bundles:
        bundle = next(bundles)
        refs.append(bundle.ref)
        bundle.defer(0.0)
        with pytest.raises(ClientError, match="is blocked"):
            next(bundles)
    t.ack("s", refs)
    with t.subscribe("s", follow=False) as bundles:
        for bundle in bundles:
            bundle.ack()
    assert t.lag("s").bundles == 0


def test_a_stream_that_is_not_there(q: Client) -> None:
    """Subscribing to nothing says so."""
    with pytest.raises(NotFound):
        q.stream("nope").subscribe("s")


def test_a_server_that_does_not_come_back_is_given_up(make_server: MakeServer) -> None:
    """The server leaves for good: the iteration raises when patience ends."""
    server = make_server()
    with connect(f"grpc://127.0.0.1:{server.port}") as client:
        stream = client.stream("t")
        fill(stream, range(1))
        patience = Retry(initial=0.01, maximum=0.05, give_up_after=0.3)
        bundles = stream.subscribe("s", retry=patience)
        next(bundles).ack()
        bundles.flush()
        server.stop()
        with pytest.raises(ClientError):
            next(bundles)
        bundles.close()


@pytest.mark.kill
def test_a_server_killed_hard_under_a_subscriber(tmp_path: Path) -> None:
    """The server is killed while bundles are in hand, in the buffer and acked: nothing is
    missed, what is in hand does not come twice, and its ack counts on the new server. (What
    was acked and not yet on disk may come again.)"""
    with ServerProcess(tmp_path / "data") as server, connect(server.url) as client:
        stream = client.stream("t")
        fill(stream, range(300))
        seen: Counter[int] = Counter()
        with stream.subscribe("s", prefetch=16) as bundles:
            held = [next(bundles) for _ in range(5)]
            kills = [50, 150]
            while len(seen) < 295:
                bundle = bundles.next_bundle(timeout=60)
                assert bundle is not None
                seen[number_of(bundle)] += 1
                bundle.ack()
                if kills and len(seen) == kills[0]:
                    del kills[0]
                    server.kill()
                    server.start()
            for bundle in held:
                bundle.ack(durable=True)
            bundles.flush(durable=True)
            assert bundles.reconnects >= 2
        assert set(seen) == set(range(5, 300))
        assert stream.lag("s").bundles == 0
        assert drain(stream, "s") == []


@pytest.mark.kill
def test_a_subscriber_lets_a_server_that_stops_go(tmp_path: Path) -> None:
    """SIGTERM with a subscriber that waits for more: the server ends in order, and the
    subscriber goes on with its successor."""
    with ServerProcess(tmp_path / "data") as server, connect(server.url) as client:
        stream = client.stream("t")
        fill(stream, range(2))
        with stream.subscribe("s") as bundles:
            for _ in range(2):
                next(bundles).ack()
            assert server.terminate() == 0, "it had to be forced"
            server.start()
            fill(stream, range(2, 3))
            bundle = bundles.next_bundle(timeout=60)
            assert bundle is not None
            assert number_of(bundle) == 2


def test_an_answer_from_before_a_deferral_ends_no_drain(
    q: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: "is that all?" was asked before a bundle was deferred, and the answer comes
    late. Guarantee: the drain goes on, since the bundle comes again."""
    stream = q.stream("t")
    fill(stream, range(1))
    stream.register("fragile", max_deliveries=3)
    deferred, answered = threading.Event(), threading.Event()
    received = Call.incoming

    def late(call: Call) -> Iterator[ServerMessage | list[Arrived]]:
        """The first bundle and the answer arrive together, in that order, and the answer is
        looked at only when something was deferred."""
        first: list[list[Arrived]] = []
        for message in received(call):
            if not deferred.is_set() and not isinstance(message, ServerMessage):
                first.append(message)
                continue
            if not deferred.is_set() and isinstance(message, ServerMessage) and message.idle:
                yield from first
                assert deferred.wait(10)
                yield message
                answered.set()
            else:
                yield message

    monkeypatch.setattr(Call, "incoming", late)
    defer = Delivered.defer

    def tell(bundle: Delivered, delay: float | None = None, reason: str = "") -> None:
        defer(bundle, delay, reason)
        deferred.set()
        assert answered.wait(10)

    monkeypatch.setattr(Delivered, "defer", tell)
    assert deliveries_when_all_fail(stream, "fragile") == [1, 2, 3]


def test_when_a_drain_ends_poison_is_a_dead_letter(
    q: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the dead letter takes a while to be written. Guarantee: the drain ends when
    it is there to be looked at."""
    stream = q.stream("t")
    fill(stream, range(1))
    stream.register("fragile", max_deliveries=1)
    dead_letters = DeadLetters._deliver

    def slowly(dead: DeadLetters, poison: PoisonBundle) -> None:
        time.sleep(0.5)
        dead_letters(dead, poison)

    monkeypatch.setattr(DeadLetters, "_deliver", slowly)
    assert deliveries_when_all_fail(stream, "fragile") == [1]
    assert drain(q.stream("t-dead"), "reader") == [0]


class Standstill:
    """The client's side stands still: nothing is sent until it goes on; what comes is counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._going = threading.Event()
        self._came = threading.Semaphore(0)
        self.told = threading.Event()
        """The server has said that the lease is over."""
        take = Feed._take

        def take_and_count(feed: Feed, message: ServerMessage | list[Arrived]) -> None:
            take(feed, message)
            if isinstance(message, list):
                self._came.release(len(message))
            elif message.type == "expired":
                self.told.set()

        monkeypatch.setattr(Feed, "_take", take_and_count)

    def begin(self) -> None:
        send = Call.send

        def send_later(call: Call, message: ClientMessage) -> bool:
            return self._going.wait(60.0) and send(call, message)

        self._patch.setattr(Call, "send", send_later)

    def end(self) -> None:
        self._going.set()

    def await_bundles(self, count: int) -> None:
        for _ in range(count):
            assert self._came.acquire(timeout=30.0)


def test_a_copy_that_came_while_its_ack_was_on_its_way_is_not_handed_out(
    t: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: bundles are acked, the client stands still for longer than its lease before
    it can say so, and the server delivers them again on the same call. Guarantee: after a
    durable flush they are not handed out, though their copies came before it."""
    standstill = Standstill(monkeypatch)
    with t.subscribe("s", lease=0.5, prefetch=40) as feed:
        bundles = [next(feed) for _ in range(10)]
        standstill.await_bundles(10)
        standstill.begin()
        for bundle in bundles:
            bundle.ack()
        standstill.await_bundles(10)
        standstill.end()
        feed.flush(60, durable=True)
        assert feed.next_bundle(timeout=0.5) is None
        assert t.lag("s").bundles == 0


def test_what_expired_in_the_buffer_comes_again_once(
    t: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: bundles that nobody has looked at yet expire while the client stands still,
    and the server delivers them again on the same call. Guarantee: each is handed out, once."""
    standstill = Standstill(monkeypatch)
    with t.subscribe("s", lease=0.5, prefetch=40) as feed:
        standstill.await_bundles(10)
        standstill.begin()
        standstill.await_bundles(10)
        assert standstill.told.wait(30.0)
        standstill.end()
        bundles = [feed.next_bundle(10.0) for _ in range(10)]
        assert sorted(number_of(one) for one in bundles if one) == list(range(10))
        assert feed.next_bundle(timeout=0.3) is None


def test_a_copy_claimed_before_an_ack_is_not_sent_after_it(
    t: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: the server has claimed bundles a second time, their lease being over, and
    takes the acks of the first delivery before it sends them. Guarantee: it does not send
    them, and the client's room for them is not lost."""
    standstill = Standstill(monkeypatch)
    acked, again = threading.Event(), threading.Event()
    write, told = ExchangeCall._write, []

    def write_after_the_acks(
        call: ExchangeCall, message: Wrapped, refs: list[BundleRef]
    ) -> set[BundleRef]:
        again.set()
        assert acked.wait(60.0)
        told.append(write(call, message, refs))
        return told[-1]

    with t.subscribe("s", lease=0.5, prefetch=40) as feed:
        bundles = [next(feed) for _ in range(10)]
        standstill.begin()
        monkeypatch.setattr(ExchangeCall, "_write", write_after_the_acks)
        for bundle in bundles:
            bundle.ack()
        assert again.wait(30.0)
        standstill.end()
        feed.flush(60, durable=True)
        acked.set()
        assert feed.next_bundle(timeout=0.5) is None
        assert any(told)
        fill(t, range(10, 20))
        assert sorted(number_of(next(feed)) for _ in range(10)) == list(range(10, 20))
