"""Waking: nobody sleeps through a ring, and ringing takes no lock."""

from __future__ import annotations

import threading

from quiver.subscriber.doorbell import Doorbell

LONG = 30.0


def test_a_ring_after_arming_is_heard() -> None:
    """The ring comes between the look and the wait: the wait returns at once."""
    bell = Doorbell()
    with bell.armed() as heard:
        bell.ring()
        assert heard(LONG)


def test_time_runs_out() -> None:
    """Nobody rings: the wait ends, and leaves no waiter behind."""
    bell = Doorbell()
    for _ in range(3):
        with bell.armed() as heard:
            assert not heard(0.0)
    assert not bell._waiters


def test_everyone_is_woken() -> None:
    """Several wait, one ring reaches them all; a second ring has nobody to wake."""
    bell = Doorbell()
    armed = threading.Barrier(5)
    results: list[bool] = []

    def wait() -> None:
        with bell.armed() as heard:
            armed.wait(LONG)
            results.append(heard(LONG))

    threads = [threading.Thread(target=wait) for _ in range(4)]
    for thread in threads:
        thread.start()
    armed.wait(LONG)
    bell.ring()
    bell.ring()
    for thread in threads:
        thread.join(LONG)
    assert results == [True] * 4


def test_rings_from_many_threads() -> None:
    """Rings and waits race: each wait is over within its time, and nothing breaks."""
    bell = Doorbell()
    stop = threading.Event()

    def ring() -> None:
        while not stop.is_set():
            bell.ring()

    ringers = [threading.Thread(target=ring) for _ in range(2)]
    for thread in ringers:
        thread.start()
    for _ in range(40):
        with bell.armed() as heard:
            assert heard(LONG)
    stop.set()
    for thread in ringers:
        thread.join(LONG)
