"""docs/operations.md, «In a container»: what it tells the reader to type runs and holds."""

from __future__ import annotations

import os
import re
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import flight

from flight_service.client import AccessDenied, Client, connect
from flight_service.protocol.names import Ref
from tests.integration.conftest import MakeProject
from tests.integration.engine import REPOSITORY, docker, eventually, run
from tests.integration.images import BUILD_SECONDS, base_image, build_arguments
from tests.integration.project import LABEL, Project

PAGE = REPOSITORY / "docs" / "operations.md"
FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.M | re.S)
GIVEN = (
    '{{.Config.StopTimeout}}{{range .Mounts}}{{if eq .Destination "/data"}} {{.Name}}{{end}}{{end}}'
)
HEALTHY_SECONDS = 60.0
ROWS = pa.record_batch({"body": ["kept"]})


@pytest.fixture
def image(tag: str) -> Iterator[str]:
    """A name for the image of the page; ``tag`` has made its layers already.  Ask for it
    before a project: it goes after the container."""
    name = f"quiver-page:{uuid.uuid4().hex[:10]}"
    yield name
    docker("rmi", name, check=False)


@pytest.mark.timeout(BUILD_SECONDS + 300)
def test_the_container_of_the_page_keeps_what_it_was_given(
    image: str, make_project: MakeProject, tmp_path: Path
) -> None:
    """Scenario: a reader makes keys and a token as the page says, types its `docker build`
    and `docker run`, later stops and starts the container. Guarantee: it becomes healthy;
    who has the token and the CA puts and reads, who has no token gets nothing; it stops by
    itself in the time it is given, and after the start the bundle is still there.

    Seen to fail: a flag misspelt or left out; keys that the container's user can't read;
    another place for the volume; no auth file; a signal that the server doesn't hear."""
    project = make_project()
    keys = tmp_path / "quiver"
    keys.mkdir()
    token = make_keys(keys)
    shell(as_here(block("docker run"), project, image, keys))
    server = project.name
    eventually(
        lambda: project.state(server)["Health"]["Status"] == "healthy", "healthy", HEALTHY_SECONDS
    )
    ca = (keys / "ca.pem").read_bytes()
    with connected(project, ca, token) as client:
        receipt = client.stream("telemetry").put({"Logs": ROWS}, key="k")
        assert bundles(client) == {"k": receipt.ref}
    gets_nothing(project, ca)

    stop_in_time(project, server)
    docker("start", server)
    with connected(project, ca, token) as client:
        assert bundles(client) == {"k": receipt.ref}


def block(having: str) -> str:
    """The one block of commands on the page that has these words."""
    [found] = [code for code in FENCED.findall(PAGE.read_text()) if having in code]
    return str(found)


def make_keys(where: Path) -> str:
    """A CA, a certificate and an auth file, as the page makes them; the token."""
    text = block("openssl req -x509") + block("quiver token") + 'echo "$token"\n'
    return shell(text.replace("/etc/quiver", str(where))).splitlines()[-1]


def as_here(text: str, project: Project, image: str, keys: Path) -> str:
    """The block with names, places and a port of the test's own, and in the background."""
    changed = {
        "docker build ": f"docker build {' '.join(build_arguments(base_image()))} ",
        "--tag quiver ": f"--tag {image} ",
        "docker run ": f"docker run --detach --label {LABEL}={project.name} ",
        "--name quiver ": f"--name {project.name} ",
        "quiver-data:": f"{project.name}_data:",  # as the project's own: it goes with it
        "--publish 8815:": f"--publish 127.0.0.1:{project.flight_port}:",
        " quiver\n": f" {image}\n",
    }
    if os.geteuid() != 0:
        changed["chown 10001 "] = "chmod a+r "  # only root may give files away
    for old, new in changed.items():
        assert text.count(old) == 1, f"{old!r} is not once in the block"
        text = text.replace(old, new)
    return text.replace(" /etc/quiver", f" {keys}")  # the container's side follows a : or =


def shell(text: str) -> str:
    """Run commands of the page, with the ``quiver`` of this project; what they said."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = ["bash", "-euo", "pipefail", "-c", text]
    return run(words, seconds=BUILD_SECONDS, environment={**os.environ, "PATH": path}).stdout


def stop_in_time(project: Project, server: str) -> None:
    """Stop it as the block lets it, and see that what is kept is on the block's volume: a
    container that is started again would have its own layer still."""
    seconds, volume = docker("inspect", "-f", GIVEN, server).split()
    assert volume == f"{project.name}_data"
    begun = time.monotonic()
    docker("stop", server)
    assert time.monotonic() - begun < float(seconds)
    assert project.state(server)["ExitCode"] == 0, "it ended by itself"


def connected(project: Project, ca: bytes, token: str) -> Client:
    """Somebody whom the page's certificate and token let in."""
    return connect(address(project), token=token, tls_ca=ca, wait=30)


def address(project: Project) -> str:
    return f"grpc+tls://localhost:{project.flight_port}"


def bundles(client: Client) -> dict[str | None, Ref]:
    """Every bundle's key and ref."""
    found = list(client.stream("telemetry").read())
    assert all(one["Logs"].equals(ROWS) for one in found)
    return {one.key: one.ref for one in found}


def gets_nothing(project: Project, ca: bytes) -> None:
    """Without a token: neither by our client nor by a bare one."""
    with pytest.raises(AccessDenied):
        connect(address(project), tls_ca=ca)
    with flight.connect(address(project), tls_root_certs=ca) as bare:
        with pytest.raises(flight.FlightUnauthenticatedError):
            list(bare.list_flights())
        with pytest.raises(flight.FlightUnauthenticatedError):
            bare.get_flight_info(flight.FlightDescriptor.for_path("telemetry"))
