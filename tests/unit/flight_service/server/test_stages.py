"""Open stages on a clock of the test's own: who writes, who finishes, who is let go."""

from __future__ import annotations

import pyarrow as pa
import pytest

from flight_service.protocol.errors import ServiceError
from flight_service.protocol.stage import Abort, Begin, CommitStages, FinishStage, StageName
from flight_service.server import stages
from flight_service.server.stages import OpenStage, OpenStages
from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.errors import StageNotFound
from quiver.store.store import Store
from tests.support.memory_disk import MemoryDisk

BATCH = {"Logs": pa.record_batch({"x": [1]})}


class World:
    """A store on a manual clock, with its stages."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.store = Store(Disk(MemoryDisk()), Config.load(env={}), where="mem", clock=clock)
        self.stages = OpenStages(self.store, clock)

    def open(self, attempt: str, version: int = 0) -> OpenStage:
        return self.stages.open(StageName(app="a", version=version, attempt=attempt))

    def finish(self, attempt: str, bundles: int = 1) -> int:
        request = FinishStage(stream="t", app="a", version=0, attempt=attempt, bundles=bundles)
        return self.stages.finish(request).bundles


@pytest.fixture
def world(clock: ManualClock) -> World:
    return World(clock)


def test_a_stage_that_nobody_finishes_is_let_go(world: World) -> None:
    """Scenario: a call is over and its finish never comes; another is still being written.
    Guarantee: the first goes when its time is over and not before, the other stays."""
    left, busy = world.open("left"), world.open("busy")
    left.put(BATCH)
    busy.put(BATCH)
    world.stages.call_over(left, broken=False)
    world.clock.advance(stages.UNFINISHED_SECONDS - 1)
    world.stages.tick(world.clock.monotonic())
    assert len(world.store.stages()) == 2
    world.clock.advance(2)
    world.stages.tick(world.clock.monotonic())
    assert [one.attempt for one in world.store.stages()] == ["busy"]
    with pytest.raises(StageNotFound):
        world.finish("left")
    assert world.stages.busy
    assert world.finish("busy") == 1
    assert not world.stages.busy


def test_a_call_that_broke_takes_its_stage_along(world: World) -> None:
    """Scenario: a DoPut ends with an error. Guarantee: its stage is gone at once."""
    opened = world.open("x")
    opened.put(BATCH)
    world.stages.call_over(opened, broken=True)
    assert world.store.stages() == []
    with pytest.raises(StageNotFound):
        world.finish("x")


def test_finished_while_its_call_goes_on(world: World) -> None:
    """Scenario: finish_stage comes before the end of the call, twice, then one more bundle.
    Guarantee: both answers are the same; nothing goes into a finished stage, and the end of
    the call does it no harm."""
    opened = world.open("x")
    opened.put(BATCH)
    assert world.finish("x") == world.finish("x") == 1
    with pytest.raises(ServiceError) as caught:
        opened.put(BATCH)
    assert caught.value.code == stages.STAGE_ENDED
    world.stages.call_over(opened, broken=True)
    assert world.stages.commit(
        CommitStages(stream="t", app="a", version=0, attempts=("x",))
    ).bundles == 1  # fmt: skip


def test_a_commit_ends_what_is_written_for_it_and_before(world: World) -> None:
    """Scenario: attempts of this version, of an earlier and of a later one are open when a
    version is committed. Guarantee: only the later one lives on."""
    same, earlier, later = world.open("same", 5), world.open("earlier", 4), world.open("later", 6)
    world.stages.commit(CommitStages(stream="t", app="a", version=5, attempts=()))
    for lost in (same, earlier):
        with pytest.raises(ServiceError, match="left out of the commit"):
            lost.put(BATCH)
    later.put(BATCH)
    assert world.stages.begin(Begin(stream="t", app="a", version=5)).committed
    assert not world.stages.begin(Begin(stream="t", app="a", version=6)).committed
    assert world.stages.abort(Abort(stream="t", app="a", version=6)).attempts == 1
    assert not world.stages.busy


def test_so_many_at_a_time_and_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: more open stages than there may be. Guarantee: refused for now; room again
    when one has ended."""
    monkeypatch.setattr(stages, "MAX_OPEN", 2)
    first = world.open("1")
    world.open("2")
    with pytest.raises(ServiceError) as caught:
        world.open("3")
    assert caught.value.retryable
    assert caught.value.retry_after_ms
    world.stages.call_over(first, broken=True)
    world.open("3")


def test_closing_lets_everything_open_go(world: World) -> None:
    """Scenario: the stream is closed with a stage open and one finished. Guarantee: the open
    one is gone and its call is told; the finished one stays for a commit."""
    opened, done = world.open("open"), world.open("done")
    done.put(BATCH)
    world.finish("done")
    world.stages.close()
    with pytest.raises(ServiceError, match="stopped"):
        opened.put(BATCH)
    assert [one.attempt for one in world.store.stages()] == ["done"]
