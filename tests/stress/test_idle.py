"""What a store costs that has nothing to do."""

from __future__ import annotations

import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import pytest

import quiver
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.store.store import Store
from quiver.upkeep.background import Background
from tests.stress.crew import SLOT, batch_of
from tests.support.memory_disk import MemoryDisk

pytestmark = pytest.mark.stress

WATCHED_SECONDS: Final = 2.0
STORES: Final = 100


def cost_of_idling() -> float:
    """The part of a core used while this thread sleeps."""
    began, used = time.monotonic(), time.process_time()
    threading.Event().wait(WATCHED_SECONDS)
    return (time.process_time() - used) / (time.monotonic() - began)


def used(store: Store) -> None:
    """Put, delivered, written, finished: everything has happened once, and all is quiet."""
    store.put({SLOT: batch_of(1)}).wait()
    bundle = store.subscribe("a").next_bundle(5)
    assert bundle is not None
    bundle.ack()
    store.flush()
    store.maintain()


@pytest.mark.parametrize("flush", ["group", "interval"])
def test_one_idle_store(tmp_path: Path, flush: str) -> None:
    """A store with threads of its own and nothing to do: well below a hundredth of a core."""
    with quiver.open(tmp_path, background=True, wal={"flush": flush}) as store:
        used(store)
        threading.Event().wait(0.5)  # the watermark, and the last progress
        assert cost_of_idling() < 0.01


def test_many_idle_stores() -> None:
    """A hundred stores on one background: still a small part of a core."""
    with ExitStack() as opened:
        background = opened.enter_context(Background(2, 2))
        config = Config.load(env={}, reserve=0)
        for n in range(STORES):
            # In memory: opening so many takes long on a real disk, idling doesn't touch it.
            disk = Disk(MemoryDisk())
            used(opened.enter_context(Store(disk, config, where=str(n), background=background)))
        threading.Event().wait(0.5)
        assert cost_of_idling() < 0.04
