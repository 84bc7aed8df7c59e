"""Leases on a clock of the test's own: who has what, until when."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from flight_service.protocol.actions import Register
from flight_service.protocol.errors import ServiceError
from flight_service.protocol.names import Ref
from flight_service.server import leases
from flight_service.server.claims import Lease, PoisonBundle
from flight_service.server.leases import ConsumerGroup
from flight_service.server.policy import Policy
from flight_service.server.settings import DeliverySection
from quiver import BundleRef
from quiver.clock import ManualClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.store.store import Store
from tests.support.memory_disk import MemoryDisk

DEFAULT = Policy.default(DeliverySection())


class World:
    """A store on a manual clock, with a consumer group."""

    def __init__(self, clock: ManualClock, **policy: Any) -> None:
        self.clock = clock
        self.store = Store(Disk(MemoryDisk()), Config.load(env={}), where="mem", clock=clock)
        self.settled: list[PoisonBundle] = []
        register = Register(stream="t", subscriber="s", **policy)
        self.group = ConsumerGroup(
            self.store, "t", "s", DEFAULT.changed_by(register), clock, self.settled.append
        )
        self.store.subscribe("s")

    def put(self, count: int) -> list[Ref]:
        batch = pa.record_batch({"x": [1]})
        return [Ref(*self.store.put({"Logs": batch}).wait().ref) for _ in range(count)]

    def claim(self, count: int = 100, *, bound: bool = False) -> tuple[Lease, list[Ref]]:
        lease = self.group.lease(None, None, bound=bound)
        found = self.group.claim(lease, max_bundles=count, max_bytes=1 << 40)
        return lease, [Ref(*one.handle.ref) for one in found]


@pytest.fixture
def world(clock: ManualClock) -> World:
    return World(clock, lease_ms=10_000, backoff_ms=1_000, backoff_max_ms=8_000)


def test_a_lease_ends_when_its_time_is_over(world: World) -> None:
    """Scenario: the clock passes a lease's end. Guarantee: not a moment before, its bundles
    are pending again, counted once."""
    refs = world.put(2)
    lease, mine = world.claim()
    assert mine == refs
    world.clock.advance(9.9)
    assert world.group.expire(world.clock.monotonic()) == 0
    world.clock.advance(0.2)
    assert world.group.expire(world.clock.monotonic()) == 2
    assert world.group.ack(mine, lease.id) == (0, [(ref, "pending") for ref in mine])
    assert world.claim()[1] == refs
    assert {failure.count for failure in world.group.failures.values()} == {1}


def test_renewing_moves_the_end(world: World) -> None:
    """Scenario: a lease is renewed half way. Guarantee: it counts from the renewal."""
    world.put(1)
    lease, _ = world.claim()
    world.clock.advance(6)
    assert world.group.renew(lease.id, None, None) == (1, 10.0)
    world.clock.advance(6)
    assert world.group.expire(world.clock.monotonic()) == 0
    world.clock.advance(5)
    assert world.group.expire(world.clock.monotonic()) == 1
    assert world.group.renew(lease.id, None, None) == (0, None)


def test_a_calls_lease_lives_by_what_is_heard(world: World) -> None:
    """Scenario: a call claims again and again and is never heard of. Guarantee: claiming
    alone doesn't keep the first claims alive; being heard does; waiting for work with
    nothing in hand costs nothing."""
    lease, _ = world.claim(bound=True)
    world.clock.advance(60)
    first = world.put(1)
    taken = world.group.claim(lease, max_bundles=1, max_bytes=1 << 40)
    assert len(taken) == 1
    world.clock.advance(6)
    world.put(1)
    world.group.claim(lease, max_bundles=1, max_bytes=1 << 40)
    world.clock.advance(3)
    world.group.heard(lease)
    world.clock.advance(9)
    assert world.group.expire(world.clock.monotonic()) == 0
    world.clock.advance(2)
    assert world.group.expire(world.clock.monotonic()) == 2
    assert [Ref(*ref) for ref in world.group.take_expired(lease)][:1] == first
    assert world.group.take_expired(lease) == []


def test_backoff_doubles_up_to_its_limit(world: World) -> None:
    """Scenario: one bundle fails again and again. Guarantee: each wait lies between half of
    and all of 1, 2, 4, 8, 8 … seconds."""
    world.put(1)
    for longest in (1.0, 2.0, 4.0, 8.0, 8.0):
        lease, mine = world.claim()
        assert len(mine) == 1
        world.group.defer(mine, None, "no", lease.id)
        world.clock.advance(longest / 2 - 0.01)
        assert world.claim()[1] == []
        world.clock.advance(longest / 2 + 0.02)


def test_chance_spreads_those_who_failed_together() -> None:
    """Scenario: many backoffs of the same age. Guarantee: they differ, within bounds."""
    waits = {DEFAULT.backoff(3) for _ in range(100)}
    assert len(waits) > 90
    assert all(2.0 <= wait <= 4.0 for wait in waits)
    assert DEFAULT.backoff(10_000) <= DEFAULT.backoff_max_ms / 1000


def test_outcomes_without_a_lease_always_count(world: World) -> None:
    """Scenario: an ack by ref while another consumer holds the bundle. Guarantee: it
    counts, and the other's late outcome is answered with what is true."""
    refs = world.put(2)
    lease, _ = world.claim()
    assert world.group.ack(refs[:1], None) == (1, [])
    assert world.group.reject(refs[:1], "x", lease.id) == (1, [])
    assert world.group.defer(refs[:1], 0.0, "x", lease.id) == (0, [(refs[0], "acked")])


def test_a_closed_lease_gets_nothing_more(world: World) -> None:
    """Scenario: a call ends while its pusher is about to claim. Guarantee: nothing is
    handed to it any more; what it had is back."""
    refs = world.put(2)
    lease, _ = world.claim(1, bound=True)
    assert world.group.release(lease) == 1
    assert world.group.claim(lease, max_bundles=5, max_bytes=1 << 40) == []
    assert world.claim()[1] == refs
    assert world.group.busy


def test_who_has_gone_meanwhile_gets_nothing(world: World) -> None:
    """Scenario: a claim succeeds just as its caller disappears. Guarantee: the bundles are
    free at once, and no delivery was counted."""
    refs = world.put(2)
    lease = world.group.lease(None, None)
    assert world.group.claim(lease, max_bundles=2, max_bytes=1 << 40, gone=lambda: True) == []
    assert world.claim()[1] == refs
    assert world.group.failures == {}


def test_leases_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: claims without end by one subscriber. Guarantee: a typed refusal."""
    monkeypatch.setattr(leases, "MAX_LEASES", 2)
    world.put(3)
    world.claim(1)
    world.claim(1)
    with pytest.raises(ServiceError, match="2 leases"):
        world.claim(1)


def test_an_empty_claim_leaves_no_lease(world: World) -> None:
    """Scenario: nothing is there. Guarantee: polling leaves nothing behind."""
    for _ in range(10):
        assert world.claim()[1] == []
    assert world.group.status()["leases"] == 0
    assert not world.group.busy


def test_failures_remembered_are_bounded(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scenario: more bundles fail than are remembered. Guarantee: the oldest is forgotten."""
    monkeypatch.setattr(leases, "MAX_FAILURES", 3)
    refs = world.put(5)
    lease, mine = world.claim()
    world.group.defer(mine, 0.0, "x", lease.id)
    assert [Ref(*ref) for ref in world.group.failures] == refs[2:]


def test_poison_becomes_a_dead_letter_once_and_stays_claimed(clock: ManualClock) -> None:
    """Scenario: poison with the dead-letter policy, before the letter is safe. Guarantee:
    handed over once; nobody gets it meanwhile; then it is finished and forgotten."""
    world = World(clock, max_deliveries=1)
    world.put(1)
    lease, mine = world.claim()
    world.group.defer(mine, 0.0, "why", lease.id)
    assert world.claim()[1] == []
    assert world.claim()[1] == []
    (poison,) = world.settled
    assert (poison.deliveries, poison.reason) == (1, "why")
    assert world.group.status()["dead_letters_pending"] == 1
    poison.handle.reject("dead")
    poison.settled(poison.handle.ref)
    assert not world.group.busy
    assert world.store.lag("s").bundles == 0


def test_seeking_forgets_claims_blocks_and_failures(clock: ManualClock) -> None:
    """Scenario: a blocked subscriber seeks. Guarantee: it starts over."""
    world = World(clock, max_deliveries=1, poison="block")
    refs = world.put(2)
    lease, _ = world.claim(1)
    world.group.defer(refs[:1], 0.0, "x", lease.id)
    with pytest.raises(ServiceError, match="blocked"):
        world.claim()
    world.group.seek(BundleRef(*refs[0]))
    assert world.claim()[1] == refs


def test_a_policy_keeps_what_a_register_leaves_out() -> None:
    """Scenario: policies written, read and changed. Guarantee: nothing is lost; fields of
    an older version have their defaults."""
    policy = DEFAULT.changed_by(Register(stream="t", subscriber="s", lease_ms=5_000, slots=("a",)))
    assert policy.changed_by(Register(stream="t", subscriber="s")) == policy
    assert Policy.read(policy.write(), DEFAULT) == policy
    assert Policy.read({"lease_ms": 7}, DEFAULT).max_in_flight == DEFAULT.max_in_flight
    assert policy.dead_letters("x" * 64) == "x" * 59 + "-dead"
