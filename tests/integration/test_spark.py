"""Spark on its own machines puts into Quiver: both workers, and outages in the middle.

One cluster for all tests of this file: each has a stream of its own.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from ipaddress import IPv4Address

import pytest

from tests.integration.conftest import MakeProject
from tests.integration.engine import docker, eventually
from tests.integration.project import Project

pytestmark = pytest.mark.xdist_group("spark")  # one cluster at a time is enough for a machine

SERVER = "grpc://quiver:8815"
WORKERS = ("spark-worker-1", "spark-worker-2")
JOB_SECONDS = 300.0
CUT_SECONDS = 20.0


@pytest.fixture(scope="module")
def cluster(make_shared_project: MakeProject) -> Project:
    """Quiver, a Spark master and two workers, as the compose file has them."""
    project = make_shared_project(
        settings={"segment.max_open_duration": "1s", "subscribers.progress_interval": "50ms"}
    )
    project.up("quiver", "spark-master", *WORKERS)
    return project


@pytest.mark.timeout(600)
def test_a_job_puts_from_both_workers_and_subscribers_drain_it(cluster: Project) -> None:
    """Scenario: `spark-submit` to the cluster; `mapInArrow` puts from tasks on machines that
    have pyspark and pyarrow only; two subscribers, one of them slower. Guarantee: both
    workers put; nothing of this project can be imported there; each subscriber gets every
    row once and acks it; then the segments are freed.

    Seen to fail: segments that all have finished stay."""
    with cluster.client() as client:
        client.create_stream("bare").register("witness")  # holds everything for a look
    fast = subscriber(cluster, "fast", "bare")
    slow = subscriber(cluster, "slow", "bare", "--pace", "0.02")
    job = submit(cluster, "looking", "bare", "--rows", "60000", "--look", "--pace", "0.05")
    assert finished(cluster, job) == 60_000

    with cluster.client() as client:
        batches = list(client.stream("bare").batches("Logs"))
    hosts = {host for batch in batches for host in batch["host"].to_pylist()}
    assert hosts == {hostname(cluster, one) for one in WORKERS}
    assert {text for batch in batches for text in batch["found"].to_pylist()} == {""}
    assert sorted(n for batch in batches for n in batch["id"].to_pylist()) == list(range(60_000))

    eventually(lambda: rows(cluster, fast) == 60_000, "the fast one has every row")
    eventually(lambda: rows(cluster, slow) == 60_000, "the slow one has every row")
    for journal in (cluster.stop(fast), cluster.stop(slow)):
        assert set(journal.received.values()) == {1}
        assert set(journal.acked.values()) == {1}
        assert len(journal.acked) == len(journal.received)
    assert cluster.status("bare")["bundles"] == len(batches)
    with cluster.client() as client:
        client.stream("bare").unregister("witness")
    eventually(lambda: cluster.status("bare")["bundles"] == 0, "all segments are freed")
    assert cluster.metric("quiver_segment_count", stream="bare") == 0


@pytest.mark.timeout(600)
def test_a_job_survives_a_killed_server(cluster: Project) -> None:
    """Scenario: quiver is killed with -9 in the middle of the job and started again on its
    volume. Guarantee: the job ends well; every row is there once; nothing that was durable
    before the kill is missing or has moved.

    Seen to fail: the last of the log is gone after the kill."""
    job = submit(cluster, "killing", "killed", "--rows", "60000", "--pace", "0.15")
    durable_before = eventually(lambda: some(cluster, "killed", 10), "puts are under way", 240)
    before = refs(cluster, "killed")
    cluster.kill("quiver")
    assert cluster.state(cluster.container("quiver"))["ExitCode"] == 137
    assert cluster.state(job)["Status"] == "running", "the kill must come during the job"
    cluster.start("quiver")
    cluster.until_ready()
    assert finished(cluster, job) == 60_000
    after = refs(cluster, "killed")
    assert len(before) >= durable_before
    assert {key: after.get(key) for key in before} == before
    assert ids(cluster, "killed") == Counter(range(60_000))


@pytest.mark.timeout(600)
def test_a_job_survives_a_network_that_is_cut(cluster: Project) -> None:
    """Scenario: both workers lose the network to quiver for 20 s in the middle of the job,
    and get other addresses when it is back; Spark's own network is untouched. Guarantee: the
    tasks try again by themselves, none fails, and every row is there once.

    Seen to fail: a connection that is lost ends its task."""
    job = submit(cluster, "cutting", "cut", "--rows", "60000", "--pace", "0.15")
    eventually(lambda: some(cluster, "cut", 10), "puts are under way", 240)
    workers = [cluster.container(one) for one in WORKERS]
    before = addresses(cluster, workers)
    cluster.cut("data", *workers)
    held = cluster.metric("quiver_ingest_bundles_total", stream="cut")
    threading.Event().wait(CUT_SECONDS)
    assert cluster.metric("quiver_ingest_bundles_total", stream="cut") <= held + 16
    assert cluster.state(job)["Status"] == "running", "the cut must come during the job"
    # The engine gives the lowest free address.  With the old ones the old connections would
    # go on as if nothing had been, so the one with the highest goes first.
    cluster.mend("data", *sorted(workers, key=before.__getitem__, reverse=True))
    after = addresses(cluster, workers)
    assert not any(after[one] == before[one] for one in workers), (before, after)
    assert finished(cluster, job) == 60_000
    assert "Lost task" not in docker("logs", job)
    assert ids(cluster, "cut") == Counter(range(60_000))


def submit(cluster: Project, name: str, stream: str, *words: str) -> str:
    """Start the job of ``programs/spark_job.py``; its driver's container."""
    return cluster.spark_submit(name, "spark_job.py", f"quiver://quiver:8815/{stream}", *words)


def finished(cluster: Project, job: str) -> int:
    """Wait for a job's end; how many rows it says it put."""
    journal = cluster.finished(job, JOB_SECONDS)
    assert journal.done is not None, docker("logs", "--tail", "60", job)
    return int(journal.done["done"])


def subscriber(cluster: Project, name: str, stream: str, *words: str) -> str:
    """Start one that is registered before anything is put."""
    made = cluster.program(name, "subscriber.py", SERVER, stream, name, "--create", *words)
    cluster.until(made, "ready")
    return made


def rows(cluster: Project, name: str) -> int:
    """Rows a subscriber was given."""
    return sum(one["rows"] for one in cluster.journal(name).of("got"))


def some(cluster: Project, stream: str, least: int) -> int:
    """How many bundles of a stream are durable, if these are enough."""
    found = int(cluster.status(stream).get("bundles", 0))
    return found if found >= least else 0


def refs(cluster: Project, stream: str) -> dict[str | None, str]:
    """Every bundle's key and ref."""
    with cluster.client() as client:
        return {one.key: str(one.ref) for one in client.stream(stream).read()}


def ids(cluster: Project, stream: str) -> Counter[int]:
    """How often each row is there."""
    with cluster.client() as client:
        batches = client.stream(stream).batches("Logs", ["id"])
        return Counter(n for batch in batches for n in batch["id"].to_pylist())


def addresses(cluster: Project, containers: Sequence[str]) -> dict[str, IPv4Address]:
    """Where each is in the network to quiver."""
    shown = f'{{{{(index .NetworkSettings.Networks "{cluster.name}_data").IPAddress}}}}'
    return {one: IPv4Address(docker("inspect", "-f", shown, one)) for one in containers}


def hostname(cluster: Project, service: str) -> str:
    """What a container calls itself."""
    return docker("inspect", "-f", "{{.Config.Hostname}}", cluster.container(service))
