"""After a failed fsync nothing is promised any more; what was promised can be read."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable

import pytest

from quiver import Background
from quiver.errors import Poisoned
from quiver.events import STORE_POISONED
from quiver.metrics import POISONED
from tests.support.faulty import Fault
from tests.support.stores import World, number_of

SYNC = frozenset({"fsync", "fdatasync", "fsync_dir"})


@pytest.mark.parametrize("where", ["log", "segment", "progress"])
def test_a_failed_sync_latches(world: World, where: str, caplog: pytest.LogCaptureFixture) -> None:
    """Scenario: one fsync fails, of the log, of a segment, of a progress file; the next
    would succeed. Guarantee: writes are refused from then on with the cause, it is logged
    once, shown in status and metrics; reading goes on; nothing new is called durable."""
    refs = world.put_durable(1)
    reader = world.store.subscribe("r")
    bundle = reader.next_bundle()
    assert bundle is not None
    bundle.ack()
    staged = world.put(2)
    steps: dict[str, Callable[[], object]] = {
        "log": staged.wait,
        "segment": world.store.flush,
        "progress": reader.flush,
    }
    if where == "segment":
        staged.wait()
    world.faulty.strike(Fault(at=0, error=errno.EIO, ops=SYNC))
    with caplog.at_level(logging.ERROR, "quiver"), pytest.raises(Poisoned):
        steps[where]()
    for _ in range(3):
        with pytest.raises(Poisoned) as caught:
            world.put(3)
        assert caught.value.details["errno"] == errno.EIO
    assert [r.event for r in caplog.records if r.event == STORE_POISONED] == [STORE_POISONED]  # type: ignore[attr-defined]
    assert world.store.status().state == "poisoned"
    assert world.store.metrics.gauge(POISONED).value == 1
    assert world.number_at(refs[0]) == 1
    world.store.close()
    assert not any(r.durable for r in (staged,) if where == "log")


def test_nothing_is_called_durable_after_a_failed_sync(world: World) -> None:
    """Scenario: a group's sync fails, more was staged behind it. Guarantee: every receipt
    is told, and after a restart all that was called durable is there."""
    kept = world.put(1).wait()
    world.faulty.strike(Fault(at=0, error=errno.EIO, ops=SYNC))
    lost = [world.put(n) for n in (2, 3)]
    for receipt in lost:
        with pytest.raises(Poisoned):
            receipt.wait()
        assert not receipt.durable
    world.power_cut()
    assert world.number_at(kept.ref) == 1
    assert world.drain() == [1]


def test_a_poisoned_store_lets_nobody_wait_for_ever() -> None:
    """Scenario: `segment_only` with a background: somebody waits for a segment whose sync
    fails. Guarantee: the wait ends with the error."""
    world = World(durability="segment_only", segment={"max_bundles": 2})
    with Background(1, 1) as background:
        store = world.open(background=background)
        first = world.put(1)
        world.faulty.strike(Fault(at=0, error=errno.EIO, ops=SYNC))
        world.put(2)
        with pytest.raises(Poisoned):
            first.wait(timeout=20)
        store.close()


def test_a_restart_clears_it(world: World) -> None:
    """Scenario: poisoned, closed, opened on a disk that works. Guarantee: all that was
    durable is there, and puts work."""
    world.put_durable(1)
    world.faulty.strike(Fault(at=0, error=errno.EIO, ops=SYNC))
    with pytest.raises(Poisoned):
        world.put(2).wait()
    world.restart()
    world.put_durable(3)
    found = [number_of(b["Logs"]) for b in world.store.subscribe("r", follow=False)]
    assert found in ([1, 3], [1, 2, 3]), "2 may have reached the disk; nobody promised it"


def test_without_a_log_what_waited_is_unknown_not_refused() -> None:
    """Scenario: without a log, the sync of the directory fails after a segment was renamed, and the
    store is closed. Guarantee: its receipts say `poisoned`, which leaves it open: the segment
    may be there after a restart."""
    world = World(durability="segment_only")
    waiting = world.put(1)
    world.faulty.strike(Fault(at=0, error=errno.EIO, ops=frozenset({"fsync_dir"})))
    with pytest.raises(Poisoned):
        world.store.flush()
    world.store.close()
    assert isinstance(waiting.error, Poisoned)
