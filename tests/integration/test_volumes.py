"""The data volume: full, under a new release, and wanted by two servers."""

from __future__ import annotations

import json

import pytest

from tests.integration.conftest import MakeProject
from tests.integration.engine import docker, eventually
from tests.integration.images import NEXT_VERSION, build_next
from tests.integration.project import Project

SERVER = "grpc://quiver:8815"
SMALL = {
    "wal.max_size": "16MiB",
    "wal.rotation_target": "4MiB",
    "segment.target_size": "4MiB",
    "segment.max_open_duration": "1s",
    "limits.max_bundle": "4MiB",
    "limits.max_unsynced": "8MiB",
    "reserve": "2MiB",
}
TMPFS = {"type": "tmpfs", "device": "tmpfs", "o": "size=96m,uid=10001,mode=0700"}
FILL = "dd if=/dev/zero of=/data/filler bs=64k 2> /dev/null; test -s /data/filler"


@pytest.mark.timeout(300)
def test_a_full_volume_refuses_with_its_reason_and_recovers(make_project: MakeProject) -> None:
    """Scenario: something else fills the volume, then goes away. Guarantee: puts are refused
    with `storage_full`, retryable; the server is degraded, says so, and stays up; what was
    answered durable is still delivered and finished; once there is room, puts are taken
    again without a restart, and nothing is lost or doubled.

    Seen to fail: a full disk poisons the store."""
    project = make_project(
        settings=SMALL, overlay={"volumes": {"data": {"driver_opts": TMPFS}}, "services": {}}
    )
    project.up("quiver")
    words = ("producer.py", SERVER, "t", "before", "--bundles", "50", "--size", "200000")
    before = project.finished(project.program("before", *words)).promised
    server = project.container("quiver")
    docker("exec", server, "sh", "-c", FILL)

    words = ("producer.py", SERVER, "t", "full", "--bundles", "500", "--size", "200000")
    full = project.finished(project.program("full", *words, "--patience", "3"))
    [said] = full.of("told")
    assert said["told"] == "storage_full", said
    assert "disk" in said["message"] or "space" in said["message"], said
    assert said["retryable"]
    assert "full" in project.page("/status")
    assert json.loads(project.page("/readyz"))["status"] == "degraded"
    reader = project.program("reader", "subscriber.py", SERVER, "t", "reader")
    eventually(
        lambda: set(project.journal(reader).received) >= {*before, *full.promised},
        "what is durable is delivered from a full volume",
    )

    waiting = project.program(
        *("after", "producer.py", SERVER, "t", "after"), *("--bundles", "50", "--size", "200000")
    )
    assert not project.journal(waiting).promised
    docker("exec", server, "rm", "/data/filler")
    after = project.finished(waiting).promised
    project.until_ready()
    assert len(after) == 50
    promised = {**before, **full.promised, **after}
    eventually(lambda: finished(project, "reader"), "everything is finished")
    got = project.stop(reader)
    # The one that was refused last may have been kept all the same: it was never answered.
    unanswered = set(got.refs) - set(promised)
    assert unanswered <= {f"full/{len(full.promised)}"}
    assert {key: got.refs[key] for key in promised} == {key: {r} for key, r in promised.items()}
    assert project.state(server)["Status"] == "running"
    assert project.state(server)["Pid"] > 0


@pytest.mark.timeout(300)
def test_a_new_release_takes_over_the_volume_under_load(
    make_project: MakeProject, tag: str
) -> None:
    """Scenario: the image's tag is changed and compose replaces the container, while a
    producer puts and a subscriber takes. Guarantee: the new release serves the same volume;
    both go on without being told; everything is there once.

    Seen to fail: clients give up while the server is away."""
    following = build_next(tag)
    project = make_project()
    project.up("quiver")
    old = project.container("quiver")
    assert server_version(project) != NEXT_VERSION
    reader = project.program("reader", "subscriber.py", SERVER, "t", "reader", "--create")
    words = ("producer.py", SERVER, "t", "p", "--bundles", "100000", "--pace", "0.01")
    producer = project.program("producer", *words)
    project.until(reader, "acked")

    project.tag = following
    project.up("quiver")
    assert project.container("quiver") != old
    assert server_version(project) == NEXT_VERSION
    there = len(project.journal(producer).promised)
    eventually(lambda: len(project.journal(producer).promised) > there + 100, "puts go on")
    promised = project.stop(producer).promised
    eventually(lambda: finished(project, "reader"), "everything is finished")
    assert project.stop(reader).refs == {key: {ref} for key, ref in promised.items()}


@pytest.mark.timeout(240)
def test_a_second_server_on_the_volume_is_refused(make_project: MakeProject) -> None:
    """Scenario: another container with the same volume, twice the replicas by mistake.
    Guarantee: it ends at once and names who has the volume; the first one doesn't notice;
    once that is gone, even killed, another one may have it.

    Seen to fail: no `flock` on the root."""
    project = make_project()
    project.up("quiver")
    first = project.container("quiver")
    volume = ("--volume", f"{project.name}_data:/data", "--env", "QUIVER_SERVER__INSECURE=true")
    second = project.run("second", ["quiver", "serve"], options=volume)
    assert docker("wait", second) == "1"
    said = docker("logs", second)
    assert "is writing to it" in said
    assert docker("inspect", "-f", "{{.Config.Hostname}}", first) in said
    with project.client() as client:
        client.create_stream("t")

    project.kill("quiver")
    third = project.run("third", ["quiver", "serve"], options=volume)
    eventually(lambda: "serving /data" in docker("logs", third), "another one has it")
    streams = docker("exec", third, "quiver", "streams", "--json")
    assert [one["name"] for one in json.loads(streams)] == ["t"]


def finished(project: Project, subscriber: str) -> bool:
    """Whether a subscriber has nothing left to do."""
    status = project.status("t")["subscribers"][subscriber]
    return bool(status["lag"]["bundles"] == 0)


def server_version(project: Project) -> str:
    """Of the release that serves."""
    version: str = json.loads(project.page("/status"))["server"]["version"]
    return version
