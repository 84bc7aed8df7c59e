"""The last release gives its volume to this one, and doesn't get it back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from flight_service.client import Client
from tests.integration.conftest import MakeProject
from tests.integration.engine import REPOSITORY, docker, eventually
from tests.integration.images import LAST_VERSION, build_last
from tests.integration.journal import Journal
from tests.integration.project import Project
from tests.support.compat import release

SERVER: Final = "grpc://quiver:8815"
SETTINGS: Final = {
    "wal.rotation_target": "64KiB",  # logs are retired with their keys, segments are sealed
    "wal.max_size": "1MiB",
    "segment.target_size": "64KiB",
    "segment.max_open_duration": "1s",
    "limits.max_bundle": "64KiB",
    "limits.max_unsynced": "128KiB",
}
FIRST: Final = 100
"""Bundles that are put, each with a key, before anything happens."""
COMMITTED, LATER = 5, 3
"""Bundles of a transaction that 0.1.0 commits, and of one that it only stages."""
MORE: Final = 50
"""So many puts more show that a producer works on."""
PACKAGES: Final = ("quiver", "flight_service")
CODE: Final = """
import hashlib, json, pathlib, flight_service, quiver
print(json.dumps({
    f"{name}/{path.relative_to(place)}": hashlib.sha256(path.read_bytes()).hexdigest()
    for name, module in (("quiver", quiver), ("flight_service", flight_service))
    for place in [pathlib.Path(module.__file__).parent]
    for path in place.rglob("*.py")
}))
"""
OPEN: Final = """
import quiver
try:
    quiver.open("/data/streams/t/store").close()
except quiver.QuiverError as error:
    print(error.code)
"""
SUMS: Final = (
    "cd /data && find . -type d | sort && find . -type f ! -name LOCK | sort | xargs sha256sum"
)


@pytest.mark.timeout(180)
@pytest.mark.parametrize("end", ["stopped", "killed"])
def test_upgrade_of_the_last_release_on_its_volume(
    end: str, make_project: MakeProject, tag: str
) -> None:
    """Scenario: a server of 0.1.0 with bundles in logs and segments, a transaction committed and
    another one staged, ends (SIGTERM or SIGKILL) while a producer puts and a subscriber acks
    durably, both with the client of 0.1.0; this version starts on its volume, under its
    address; then somebody goes back to 0.1.0, and forward again. Guarantee: both clients go on
    without being told; every bundle is there once, equal, under the ref that was promised;
    what was put before is `dup` when it is put again; what was acked durably never comes
    again; the commit is `repeated`, what was staged can be committed; the server of 0.1.0
    refuses the stream for its `service.json`, its engine refuses the store, and neither
    changes a byte; afterwards this version serves it as before.

    Seen to fail: the keys, or the transactions, of a checkpoint of 0.1.0 are not taken over; the
    image of 0.1.0 has the code of this version."""
    project = make_project(settings=SETTINGS)
    project.tag = last = build_last(tag)
    project.up("quiver")
    assert code_of(project) == code_in(release(LAST_VERSION).code)
    worker = project.program("worker", "subscriber.py", SERVER, "t", "worker", "--create")
    project.until(worker, "ready")
    quiver(project, "subscribers", "t", "--add", "archive", "--start", "earliest")
    some = (SERVER, "t", "first", "--bundles", str(FIRST))
    first = project.finished(project.program("first", "producer.py", *some)).promised
    assert len(first) == FIRST
    done = transaction(project, "done", "done", "--bundles", str(COMMITTED), "--commit")
    assert done.of("committed") == [{"committed": COMMITTED, "repeated": False}]
    later = transaction(project, "later", "later", "--bundles", str(LATER))
    many = (SERVER, "t", "busy", "--bundles", "100000", "--pace", "0.01")
    busy = project.program("busy", "producer.py", *many)
    until_more(project, busy)
    eventually(lambda: len(project.journal(worker).acked) > FIRST + MORE, "many are acked")
    with project.client() as client:
        before = rows(client)

    if end == "stopped":
        project.compose("stop", "quiver")
        assert project.state(project.container("quiver"))["ExitCode"] == 0
    else:
        project.kill("quiver")
    project.tag = tag
    project.up("quiver")
    assert code_of(project) == code_in(REPOSITORY)
    until_more(project, busy)
    promised = {**first, **project.stop(busy).promised}

    [attempts] = (one["staged"] for one in done.of("staged"))
    again = transaction(project, "again", "done", "--commit", *attempts, tag=last)
    assert again.of("committed") == [{"committed": COMMITTED, "repeated": True}]
    [attempts] = (one["staged"] for one in later.of("staged"))
    now = transaction(project, "now", "later", "--commit", *attempts, tag=last)
    assert now.of("committed") == [{"committed": LATER, "repeated": False}]
    with project.client() as client:
        after = rows(client)
        assert after.items() >= before.items()
        assert len(after) == len(promised) + COMMITTED + LATER, "nothing lost, nothing doubled"
        put_again(client, promised)
        assert rows(client) == after
    eventually(lambda: project.status("t")["subscribers"]["worker"]["lag"]["bundles"] == 0, "done")
    got = project.stop(worker)
    assert came_again(got) == []
    assert {ref for refs in got.refs.values() for ref in refs} == set(after)
    assert {key: got.refs[key] for key in promised} == {key: {r} for key, r in promised.items()}

    project.compose("stop", "quiver")
    kept = sums(project, "before")
    project.tag = last
    project.compose("up", "-d", "--no-build", "quiver")
    problem = eventually(lambda: project.status("t").get("problem"), "0.1.0 refuses it")
    assert "version 2" in problem, problem
    assert code_of(project) == code_in(release(LAST_VERSION).code)
    one = (SERVER, "t", "back", "--bundles", "1", "--patience", "1")
    back = project.finished(project.program("back", "producer.py", *one))
    assert back.of("told")
    assert not back.promised
    volume = ("--volume", f"{project.name}_data:/data")
    opened = project.run("opened", ["python", "-c", OPEN], options=volume)
    project.finished(opened)
    assert docker("logs", opened) == "unsupported_version"
    project.compose("stop", "quiver")
    assert sums(project, "after") == kept

    project.tag = tag
    project.up("quiver")
    with project.client() as client:
        assert rows(client) == after
    archive = project.program("archive", "subscriber.py", SERVER, "t", "archive")
    eventually(lambda: project.status("t")["subscribers"]["archive"]["lag"]["bundles"] == 0, "done")
    refs = project.stop(archive).refs
    assert {ref for found in refs.values() for ref in found} == set(after)


def quiver(project: Project, *words: str) -> str:
    """A command, by the code that serves."""
    return docker("exec", project.container("quiver"), "quiver", *words)


def transaction(
    project: Project, name: str, app: str, *words: str, tag: str | None = None
) -> Journal:
    """Stage or commit, in a container of the tag; what it said."""
    made = project.program(name, "transaction.py", SERVER, "t", app, *words, tag=tag)
    return project.finished(made)


def until_more(project: Project, producer: str) -> None:
    """Wait until a producer has some more receipts."""
    there = len(project.journal(producer).promised)
    eventually(lambda: len(project.journal(producer).promised) > there + MORE, "puts go on")


def rows(client: Client) -> dict[str, tuple[str | None, bytes]]:
    """Every bundle by its ref: its key and its rows; each ref once."""
    found = [
        (f"{one.ref[0]}.{one.ref[1]}", (one.key, one["Logs"].serialize().to_pybytes()))
        for one in client.stream("t").read()
    ]
    assert len({ref for ref, _ in found}) == len(found)
    return dict(found)


def put_again(client: Client, promised: dict[str, str]) -> None:
    """What a producer does that didn't get its answer: each is there already, where it was."""
    stream = client.stream("t")
    with stream.writer() as writer:
        sent = [writer.put({"Logs": one["Logs"]}, key=one.key) for one in stream.read() if one.key]
        said = {one.key: one.result() for one in sent}
    assert all(one.duplicate for one in said.values())
    assert {key: f"{one.ref[0]}.{one.ref[1]}" for key, one in said.items()} == promised


def came_again(journal: Journal) -> list[str]:
    """Refs that were delivered after they had been acked durably."""
    acked: set[str] = set()
    found = []
    for one in journal.entries:
        acked.update(one.get("acked", ()))
        found += [one["ref"]] if "got" in one and one["ref"] in acked else []
    return found


def code_of(project: Project) -> dict[str, str]:
    """The files of the packages that serve.  Both versions have the same number until the
    next release: only the code tells them apart."""
    words = ("exec", project.container("quiver"), "python", "-c", CODE)
    found: dict[str, str] = json.loads(docker(*words))
    return found


def code_in(place: Path) -> dict[str, str]:
    """The same of a directory here."""
    return {
        str(path.relative_to(place)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in _modules(place)
    }


def _modules(place: Path) -> Iterator[Path]:
    for package in PACKAGES:
        yield from (place / package).rglob("*.py")


def sums(project: Project, name: str) -> str:
    """Directories and checksums of everything on the volume, but the lock, which names its
    last holder."""
    options = ("--volume", f"{project.name}_data:/data:ro")
    made = project.run(name, ["sh", "-c", SUMS], options=options)
    project.finished(made)
    return docker("logs", made)
