"""Subscribers that stand still or lose the network: nobody else notices, nothing is lost."""

from __future__ import annotations

import threading

import pytest

from tests.integration.conftest import MakeProject
from tests.integration.engine import docker, eventually
from tests.integration.project import Project

SERVER = "grpc://quiver:8815"
CUT_SECONDS = 20.0


@pytest.mark.timeout(300)
def test_a_paused_subscriber_slows_nobody_and_its_backlog_waits(make_project: MakeProject) -> None:
    """Scenario: two subscribers, one of them frozen by the engine (`docker pause`) with
    bundles in hand, while a producer goes on. Guarantee: the other gets everything while it
    is frozen; all of the backlog is held for the frozen one, which has it afterwards; then
    the segments are freed."""
    project = make_project(settings={"segment.max_open_duration": "1s"})
    project.up("quiver")
    live = project.program("live", "subscriber.py", SERVER, "t", "live", "--create")
    late = project.program(
        "late", "subscriber.py", SERVER, "t", "late", "--prefetch", "4", "--create"
    )
    project.until(live, "ready")
    project.until(late, "ready")
    first = project.finished(project.program("first", "producer.py", SERVER, "t", "a"))
    eventually(lambda: len(project.journal(late).received) == 100, "late has the first hundred")

    docker("pause", late)
    words = ("producer.py", SERVER, "t", "b", "--bundles", "1000")
    second = project.finished(project.program("second", *words))
    promised = {**first.promised, **second.promised}
    eventually(lambda: len(project.journal(live).received) == 1_100, "live has them all")
    assert project.state(late)["Paused"]
    waiting = project.metric("quiver_subscriber_lag_bundles", stream="t", subscriber="late")
    assert waiting >= 1_000
    eventually(lambda: lag(project, "live") == 0, "live has finished them all")
    assert lag(project, "late") == waiting

    docker("unpause", late)
    eventually(lambda: len(project.journal(late).received) == 1_100, "late has caught up")
    eventually(lambda: lag(project, "late") == 0, "late has finished them all")
    for name in (live, late):
        journal = project.stop(name)
        assert {key: {ref} for key, ref in promised.items()} == journal.refs, name
    eventually(lambda: project.status("t")["bundles"] == 0, "all segments are freed")


@pytest.mark.timeout(300)
def test_a_subscriber_that_loses_the_network_is_replaced_and_comes_back(
    make_project: MakeProject,
) -> None:
    """Scenario: two processes share one subscriber's work; one is cut off for 20 s with
    bundles in hand, and comes back, while a producer goes on. Guarantee: the lease ends and
    the other one gets what was in its hands; the one that is back gets new work; every
    bundle is finished exactly once."""
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
