"""Segments that go, or turn out damaged, while many read them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from threading import Barrier, Event
from typing import Final

import pytest

import quiver
from quiver.errors import NotFound
from quiver.ingest.receipt import Receipt
from quiver.store.store import Store
from quiver.subscriber.handle import ClaimedBundle
from quiver.subscriber.state import Outcome
from tests.stress.crew import (
    JOIN_SECONDS,
    SLOT,
    Crew,
    Tally,
    batch_of,
    number_of,
    produce,
    tiny,
    wait_until,
)

pytestmark = [pytest.mark.stress, pytest.mark.usefixtures("_frantic")]

BUNDLES: Final = 150
READERS: Final = 4
ROUNDS: Final = 2
READ_EVERY: Final = 30


def take_slowly(crew: Crew, store: Store, tally: Tally, over: Event) -> None:
    """Keep all bundles in hand until no more are put: many are given up meanwhile.

    Few of them are read before: a file that is mapped still takes its room when deleted.
    """
    subscription = store.subscribe("a")
    held: list[ClaimedBundle] = []
    while not crew.stop.is_set():
        bundle = subscription.next_bundle(0.02)
        if bundle is not None:
            held.append(bundle)
            if len(held) % READ_EVERY == 0:
                with suppress(NotFound):  # given up between the claim and the read
                    number_of(bundle[SLOT])
        while over.is_set() and held:
            finish(held.pop(), tally)


def finish(bundle: ClaimedBundle, tally: Tally) -> None:
    try:
        number = number_of(bundle[SLOT])  # whole, wherever its file is by now
    except NotFound:
        assert bundle.ack() is Outcome.DROPPED
        return
    if bundle.ack() is Outcome.ACKED:
        tally.finished("a", number)


def test_dropped_while_held(tmp_path: Path) -> None:
    """A cap is held by dropping the oldest, under the hands of a slow consumer.

    Batches in hand stay whole; what was acked and what is on record as dropped make up,
    together, everything that was durable.
    """
    crew, tally = Crew(), Tally()
    settings = tiny(retention={"size_cap": "224KiB", "size_cap_policy": "drop_oldest"})
    with quiver.open(tmp_path, background=True, **settings) as store:
        store.register("a")
        over = Event()
        crew.start(take_slowly, crew, store, tally, over)
        producers = [
            crew.start(produce, crew, store, tally, range(1000 * n, 1000 * n + BUNDLES), n)
            for n in range(2)
        ]
        crew.join(*producers)
        over.set()
        wait_until(crew, store.all_subscribers_drained, "all finished or dropped")
        crew.stop.set()
        crew.join()
        lost = sum(loss.subscribers.get("a", 0) for loss in store.status().losses)
    assert len(tally.durable) == 2 * BUNDLES
    assert lost, "the cap was never reached"
    assert len(tally.outcomes["a"]) + lost == len(tally.durable)


def read_all(start: Barrier, store: Store, receipts: dict[int, Receipt]) -> None:
    start.wait(JOIN_SECONDS)
    for number, receipt in receipts.items():
        assert number_of(store.read(receipt.ref)[SLOT]) == number


def flip_a_byte(file: Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 3] ^= 0xFF
    file.chmod(0o600)
    file.write_bytes(data)


def test_damaged_under_readers(tmp_path: Path) -> None:
    """Several threads find damaged segments at once, while puts and upkeep go on.

    The log still has them: each is set aside once and built anew, and every read gives the
    right rows, from memory or from the new file.
    """
    crew = Crew()
    with quiver.open(tmp_path, reserve=0, background=True) as store:
        for turn in range(ROUNDS):
            receipts = {}
            for number in range(10 * turn, 10 * turn + 6):
                receipts[number] = store.put({SLOT: batch_of(number)}).wait()
                store.flush()
            for receipt in receipts.values():
                flip_a_byte(tmp_path / f"segments/{receipt.ref.segment_seq:016}.qseg")
            start = Barrier(READERS + 1)
            readers = [crew.start(read_all, start, store, receipts) for _ in range(READERS)]
            start.wait(JOIN_SECONDS)
            while any(reader.is_alive() for reader in readers):
                store.put({SLOT: batch_of(-1)}).wait()
                store.flush()
            crew.join()
            read_all(Barrier(1), store, receipts)
        status = store.status()
        assert not status.losses
        assert len(list((tmp_path / "quarantine").iterdir())) == 6 * ROUNDS
