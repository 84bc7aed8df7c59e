"""A producer's order when a group can't be written: what was sent later never gets ahead."""

from __future__ import annotations

import contextlib
import errno
import random
from typing import Final

import pytest

from quiver import ManualClock, Receipt
from quiver.errors import OutOfTurn, StorageFull
from tests.crash.scheduler import Scheduler, simulated
from tests.support.faulty import Fault
from tests.support.stores import World, batch

WRITE: Final = frozenset({"pwritev"})
BATCH: Final = batch()
POINTS: Final = 80
"""More places than a failing commit has at which it can be left."""


def in_order(inside: int) -> list[Receipt | None]:
    """Two bundles of one producer; the commit of the first finds the disk full, and is left at
    its so-manieth point for the second to be put. Their receipts; ``None``: not taken."""
    scheduler = Scheduler(random.Random(inside), ManualClock())
    with simulated(scheduler):
        world = World()
        store = world.store
        first = store.put({"Logs": BATCH})
        world.faulty.strike(Fault(at=0, error=errno.ENOSPC, ops=WRITE, under="wal/"))
        receipts: list[Receipt | None] = [first, None]

        def commit() -> None:
            with contextlib.suppress(StorageFull):
                first.wait()

        def put() -> None:
            if first.error is None:  # as a server does, which looks before it puts
                with contextlib.suppress(OutOfTurn):
                    receipts[1] = store.put({"Logs": BATCH}, after=first)

        for task in scheduler.run(("commit", commit), ("put", put), inside=inside):
            assert task.error is None, task.error
        world.faulty.heal()
        store.sync()
        return receipts


@pytest.mark.parametrize("inside", range(POINTS))
def test_what_follows_a_failed_bundle_does_not_get_ahead_of_it(inside: int) -> None:
    """Scenario: a producer puts without waiting; the group of its first bundle can't be written,
    and its second comes inside any step of that. Guarantee: the second is taken back with the
    first, or not taken: were it kept, the first, sent again, would come behind it."""
    first, second = in_order(inside)
    assert first is not None
    if first.error is not None and second is not None:
        assert second.error is not None, f"{second} was kept, {first} was not"


def test_the_first_bundle_fails_at_most_points() -> None:
    """Scenario: as above. Guarantee: the commit is left inside, and not only around, its failure:
    at some points the second is taken back with the first, at others it is not taken."""
    seen = {"not taken" if two is None else "taken back" for _, two in map(in_order, range(POINTS))}
    assert seen == {"not taken", "taken back"}
