"""Connections that break or fall silent while the server lives: the client's own business."""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Iterator

import pytest

from flight_service.client import Client, Delivered, connect
from flight_service.server import Server
from tests.wire.bare import logs
from tests.wire.proxy import Proxy
from tests.wire.test_exchange import eventually


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.port)
    yield proxy
    proxy.close()


@pytest.fixture
def q(proxy: Proxy) -> Iterator[Client]:
    """A client behind the network that breaks."""
    with connect(proxy.url) as client:
        yield client


def number_of(bundle: Delivered) -> int:
    value: int = bundle["Logs"]["n"][0].as_py()
    return value


@pytest.mark.parametrize("slot", [None, "Logs"])
def test_a_writer_survives_a_network_that_breaks_again_and_again(
    q: Client, proxy: Proxy, slot: str | None
) -> None:
    """Twenty cuts at random moments: everything is there once, in order."""
    rng = random.Random(7)
    cuts = set(rng.sample(range(2000), 20))
    with q.stream("t").writer(window=64, slot=slot) as writer:
        for number in range(2000):
            writer.put({"Logs": logs(number)}, timeout=60)
            if number in cuts:
                proxy.cut()
    assert writer.stats.reconnects > 0
    seen = [bundle["Logs"]["n"][0].as_py() for bundle in q.stream("t").read()]
    assert seen == list(range(2000))


def test_what_is_in_hand_does_not_come_twice(q: Client, proxy: Proxy) -> None:
    """Bundles are in hand when the connection breaks; the server delivers them again, the
    client knows that they are in hand, and its late acks count."""
    stream = q.stream("t")
    for number in range(20):
        stream.put({"Logs": logs(number)})
    seen: Counter[int] = Counter()
    with stream.subscribe("s", prefetch=4) as bundles:
        held = [next(bundles) for _ in range(6)]
        for bundle in held[:3]:
            bundle.ack()  # on its way when the network breaks
        proxy.cut()
        for bundle in held:
            seen[number_of(bundle)] += 1
        while len(seen) < 20:
            bundle = next(bundles)
            seen[number_of(bundle)] += 1
            bundle.ack()
        for bundle in held[3:]:
            bundle.ack(durable=True)
        bundles.flush(durable=True)
        assert bundles.reconnects == 1
    assert seen == Counter(range(20))
    assert stream.lag("s").bundles == 0


def test_a_subscriber_survives_a_network_that_breaks_again_and_again(
    q: Client, proxy: Proxy
) -> None:
    """Ten cuts while bundles are received and acked at once: nothing is missed, and all acks
    arrive in the end."""
    stream = q.stream("t")
    with stream.writer() as writer:
        for number in range(300):
            writer.put({"Logs": logs(number)})
    seen: Counter[int] = Counter()
    with stream.subscribe("s", prefetch=16) as bundles:
        while len(seen) < 300:
            bundle = bundles.next_bundle(timeout=60)
            assert bundle is not None
            seen[number_of(bundle)] += 1
            bundle.ack()
            if len(seen) % 30 == 0:
                proxy.cut()
        bundles.flush(durable=True)
    assert set(seen) == set(range(300))
    assert stream.lag("s").bundles == 0


def test_reads_go_on_behind_the_last_bundle(q: Client, proxy: Proxy) -> None:
    """A read that is cut in the middle: every bundle once, in order."""
    stream = q.stream("t")
    with stream.writer() as writer:
        for number in range(500):
            writer.put({"Logs": logs(*([number] * 500))})
    seen = []
    for bundle in stream.read():
        seen.append(bundle["Logs"]["n"][0].as_py())
        if len(seen) in (100, 300):
            proxy.cut()
    assert seen == list(range(500))


def test_a_client_that_falls_silent_loses_its_claims(
    server: Server, q: Client, proxy: Proxy
) -> None:
    """The network swallows everything, without a word: after the lease the bundles go to
    another consumer; the silent one's ack, when it arrives, is no error and no second life."""
    stream = q.stream("t")
    for number in range(5):
        stream.put({"Logs": logs(number)})
    with stream.subscribe("s", lease=0.3, prefetch=1) as silent:
        first = next(silent)
        proxy.freeze()
        with (
            connect(f"grpc://127.0.0.1:{server.port}") as other,
            other.stream("t").subscribe("s") as bundles,
        ):
            taken = [next(bundles) for _ in range(5)]
            assert first.ref in {bundle.ref for bundle in taken}
            for bundle in taken:
                bundle.ack(durable=True)
        proxy.thaw()
        first.ack(durable=True)
        assert stream.lag("s").bundles == 0


def test_closing_while_the_network_is_silent_does_not_hang(q: Client, proxy: Proxy) -> None:
    """Nothing moves any more: close returns within its time, and leaves no thread."""
    stream = q.stream("t")
    stream.put({"Logs": logs(1)})
    bundles = stream.subscribe("s")
    next(bundles).ack()
    proxy.freeze()
    bundles.close(timeout=0.5)
    eventually(
        lambda: not any(one.name in ("quiver-feed", "quiver-messenger") for one in _threads())
    )
    proxy.thaw()


def _threads() -> list[threading.Thread]:
    return [one for one in threading.enumerate() if one.is_alive()]
