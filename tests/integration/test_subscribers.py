"""Subscribers that stand still or lose the network: nobody else notices, nothing is lost."""

from __future__ import annotations

import threading
from collections.abc import Collection
from statistics import median

import pytest

from flight_service.server.events import LEASE_EXPIRED
from tests.integration.conftest import MakeProject
from tests.integration.engine import docker, eventually
from tests.integration.journal import Journal
from tests.integration.project import Project

SERVER = "grpc://quiver:8815"
CUT_SECONDS = 20.0
PREFETCH = {"live": 64, "spent": 4, "full": 64}
FROZEN = ("spent", "full")
LARGE = 200_000
"""Bytes of a bundle: 64 of them are several times what a connection holds unread."""
SLACK = 0.1
"""Seconds that a busy machine may add; the pusher's own wait, half a second, would show."""


@pytest.mark.timeout(300)
def test_a_paused_subscriber_slows_nobody_and_its_backlog_waits(make_project: MakeProject) -> None:
    """Scenario: three subscribers, two of them frozen by the engine (`docker pause`) until
    their leases are over, while a producer goes on: one that soon has no credit left, one that
    has, but whose connection is full. Guarantee: the third gets everything meanwhile, as soon
    as before; all of the backlog is held for the others, which have it afterwards; then the
    segments are freed.

    Seen to fail: one lock for all who push; all wait for the one without credit, for good or
    0.5 s at a time; a segment goes once one has finished it; a lease that ends acks."""
    project = make_project(settings={"segment.max_open_duration": "1s", "delivery.lease": "2s"})
    project.up("quiver")
    made = {name: subscriber(project, name, prefetch) for name, prefetch in PREFETCH.items()}
    live, *frozen = made.values()
    first = put(project, "first", 100)
    for one in made.values():
        until_received(project, one, 100)

    docker("pause", *frozen)
    second = put(project, "second", 300)
    until_received(project, live, 400)
    assert all(project.state(one)["Paused"] for one in frozen)
    before, meanwhile = (typical_age(project, live, keys) for keys in (first, second))
    assert meanwhile <= 5 * before + SLACK, f"{before} s before"
    waiting = {name: lag(project, name) for name in FROZEN}
    assert min(waiting.values()) >= 300, waiting
    eventually(lambda: lag(project, "live") == 0, "live has finished them all")
    eventually(lambda: set(FROZEN) <= without_lease(project), "the leases are over")
    assert {name: lag(project, name) for name in FROZEN} == waiting

    docker("unpause", *frozen)
    for one in made.values():
        until_received(project, one, 400)
    eventually(lambda: {lag(project, name) for name in made} == {0}, "all have finished them")
    for one in made.values():
        assert project.stop(one).refs == {key: {ref} for key, ref in {**first, **second}.items()}
    eventually(lambda: project.status("t")["bundles"] == 0, "all segments are freed")


@pytest.mark.timeout(300)
def test_a_subscriber_that_loses_the_network_is_replaced_and_comes_back(
    make_project: MakeProject,
) -> None:
    """Scenario: two processes share one subscriber's work; one is cut off for 20 s with
    bundles in hand, and comes back, while a producer goes on. Guarantee: the lease ends and
    the other one gets what was in its hands; the one that is back gets new work; every
    bundle is finished exactly once.

    Seen to fail: a lease that never ends."""
    project = make_project(settings={"delivery.lease": "5s"})
    project.up("quiver")
    near = project.program("near", "subscriber.py", SERVER, "t", "team", "--create")
    # It keeps what it has in its hands for longer than it takes to be cut off.
    words = ("subscriber.py", SERVER, "t", "team", "--create", "--pace", "0.05", "--prefetch", "16")
    far = project.program("far", *words)
    project.until(near, "ready")
    project.until(far, "ready")
    put = ("producer.py", SERVER, "t", "p", "--bundles", "100000", "--pace", "0.02")
    producer = project.program("producer", *put)
    project.until(far, "acked")

    project.cut("data", far)
    before = len(project.journal(far).received)
    threading.Event().wait(CUT_SECONDS)
    redelivered = [one for one in project.journal(near).of("got") if one["delivery"] > 1]
    assert redelivered, "what the lost one had in its hands must go to the other"
    project.mend("data", far)
    eventually(lambda: len(project.journal(far).received) > before + 100, "far works again")

    promised = project.stop(producer).promised
    eventually(lambda: lag(project, "team") == 0, "everything is finished")
    seen = [project.stop(near), project.stop(far)]
    assert set(seen[0].received) | set(seen[1].received) == set(promised)
    assert max(seen[0].acked.values()) == max(seen[1].acked.values()) == 1
    acked = project.metric("quiver_subscriber_acked_bundles_total", stream="t", subscriber="team")
    assert acked == len(promised)


def lag(project: Project, name: str) -> float:
    """Bundles a subscriber of the stream has not finished."""
    return project.metric("quiver_subscriber_lag_bundles", stream="t", subscriber=name)


def subscriber(project: Project, name: str, prefetch: int) -> str:
    """Start one that is registered before anything is put."""
    words = (SERVER, "t", name, "--create", "--prefetch", str(prefetch))
    made = project.program(name, "subscriber.py", *words)
    project.until(made, "ready")
    return made


def put(project: Project, name: str, bundles: int) -> dict[str, str]:
    """Put large bundles, not faster than they can be taken; what was promised."""
    words = (SERVER, "t", name, "--bundles", str(bundles), "--size", str(LARGE), "--pace", "0.01")
    return project.finished(project.program(name, "producer.py", *words)).promised


def until_received(project: Project, container: str, count: int) -> None:
    """Wait until a subscriber was given so many bundles."""
    eventually(
        lambda: len(project.journal(container).received) == count, f"{container} has {count}"
    )


def typical_age(project: Project, container: str, keys: Collection[str]) -> float:
    """How old these bundles mostly were when a subscriber got them, in seconds."""
    got = project.journal(container).of("got")
    ages: list[float] = [one["age"] for one in got if one["got"] in keys]
    return median(ages)


def without_lease(project: Project) -> set[str]:
    """Subscribers that didn't answer in time, as the server has it."""
    said = Journal.read(docker("logs", project.container("quiver"))).of("subscriber")
    return {one["subscriber"] for one in said if LEASE_EXPIRED in one.values()}
