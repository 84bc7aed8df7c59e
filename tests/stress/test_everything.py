"""All calls at once, from many threads, with a background: at the end it all adds up."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest

import quiver
from quiver.errors import NotFound, UnknownSubscriber
from quiver.ids import BundleRef
from quiver.store.store import Store
from tests.stress.crew import (
    SLOT,
    Crew,
    Tally,
    consume,
    number_of,
    produce,
    tiny,
    wait_until,
)

pytestmark = [pytest.mark.stress, pytest.mark.usefixtures("_frantic")]

PRODUCERS = 3
BUNDLES = 80
"""Of each producer."""
HELD_BATCHES = 50


def come_and_go(crew: Crew, store: Store, name: str, seed: int) -> None:
    """A subscriber that registers, looks around, seeks, and leaves, again and again."""
    random = Random(seed)
    while not crew.stop.is_set():
        subscription = store.subscribe(name, random.choice(["earliest", "latest"]))
        for _ in range(random.randrange(5)):
            bundle = subscription.next_bundle(0.01)
            if bundle is None:
                break
            number_of(bundle[SLOT])
            bundle.ack()
            subscription.seek(BundleRef(max(0, bundle.ref.segment_seq - random.randrange(3)), 0))
        subscription.flush()
        subscription.lag()
        store.unregister(name)
        with pytest.raises(UnknownSubscriber):
            subscription.next_bundle(5)


def look_around(crew: Crew, store: Store, tally: Tally, seed: int) -> None:
    """Upkeep and questions from outside, and batches kept while their segments go."""
    random = Random(seed)
    held: list[tuple[int, pa.RecordBatch]] = []
    while not crew.stop.is_set():
        random.choice(
            [
                store.flush,
                store.maintain,
                store.sync,
                store.flush_progress,
                store.status().as_dict,
                store.metrics.snapshot,
                lambda: store.lag("a"),
                store.segments,
                store.all_subscribers_drained,
            ]
        )()
        known = list(tally.durable.items())
        if known:
            number, ref = random.choice(known[-20:])
            with suppress(NotFound):  # finished by all, and deleted
                held.append((number, store.read(ref)[SLOT]))
        while len(held) > HELD_BATCHES:
            number, batch = held.pop(random.randrange(len(held)))
            assert number_of(batch) == number
        crew.stop.wait(0.002)
    assert all(number_of(batch) == number for number, batch in held)


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({}, id="group"),
        pytest.param({"wal": {"flush": "interval", "flush_interval": 0.002}}, id="interval"),
        pytest.param({"read_mode": "pread", "wal": {"flush": "every"}}, id="every-pread"),
        pytest.param({"durability": "segment_only"}, id="segment-only"),
        pytest.param(
            {"deliver": "sealed", "retention": {"size_cap": "1MiB"}, "wal": {"recycle": False}},
            id="sealed-capped",
        ),
    ],
)
def test_it_all_adds_up(tmp_path: Path, settings: dict[str, Any]) -> None:
    """Producers, competing consumers, comers and goers, upkeep and questions at once.

    Every durable bundle comes to each subscriber that was there from the start, whole, and
    gets its outcome once; after a reopen nothing comes again.
    """
    crew, tally = Crew(), Tally()
    chosen = tiny(**settings)
    with quiver.open(tmp_path, background=True, **chosen) as store:
        for name in ("a", "b"):
            subscription = store.subscribe(name)
            for seed in range(2):
                crew.start(consume, crew, subscription, tally, seed)
        crew.start(come_and_go, crew, store, "guest", 1)
        crew.start(look_around, crew, store, tally, 2)
        producers = [
            crew.start(produce, crew, store, tally, range(1000 * n, 1000 * n + BUNDLES), n)
            for n in range(PRODUCERS)
        ]
        crew.join(*producers)
        wait_until(crew, lambda: tally.is_drained("a", "b"), "all delivered")
        crew.stop.set()
        crew.join()
        assert len(tally.durable) == PRODUCERS * BUNDLES
        tally.check("a", "b")
    with quiver.open(tmp_path, **chosen) as store:
        for name in ("a", "b"):
            assert store.subscribe(name).next_bundle() is None
            assert store.lag(name).bundles == 0
