"""One compose project of a test: start it, break it, mend it, look at it, take it down."""

from __future__ import annotations

import json
import os
import re
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any, Final

import pytest

from flight_service.client import Client, connect
from tests.integration.engine import (
    REPOSITORY,
    SECONDS,
    compose_command,
    docker,
    eventually,
    run,
)
from tests.integration.images import SERVICE, SPARK
from tests.integration.journal import Journal
from tests.wire.process import free_port

PROGRAMS: Final = Path(__file__).parent / "programs"
STOP_SECONDS: Final = 40.0
LABEL: Final = "quiver.integration"
DRIVER: Final = {
    "spark_client": "/project/spark_client",
    "flight_service": "/project/flight_service",
}


class Project:
    """Containers, networks and volumes of one test, all under one name."""

    def __init__(
        self,
        tag: str,
        *,
        settings: Mapping[str, str] | None = None,
        overlay: Mapping[str, Any] | None = None,
    ) -> None:
        """``settings`` are the server's; ``overlay`` goes on top of the compose file."""
        self.name = f"quiverit{uuid.uuid4().hex[:10]}"
        self.tag = tag
        self.flight_port, self.http_port, self.spark_port = (free_port() for _ in range(3))
        self._overlay = Path(tempfile.gettempdir()) / f"{self.name}.json"
        self._overlay.write_text(json.dumps(_merged(settings or {}, overlay or {})))

    # Services of the compose file

    def compose(self, *words: str, seconds: float = 180.0, check: bool = True) -> str:
        """A command of compose."""
        files = ["-f", str(REPOSITORY / "docker-compose.yml"), "-f", str(self._overlay)]
        environment = {
            **os.environ,
            "QUIVER_TAG": self.tag,
            "QUIVER_FLIGHT_PORT": str(self.flight_port),
            "QUIVER_HTTP_PORT": str(self.http_port),
            "QUIVER_SPARK_PORT": str(self.spark_port),
        }
        command = [*compose_command(), "-p", self.name, *files, *words]
        return run(command, seconds=seconds, check=check, environment=environment).stdout

    def up(self, *services: str) -> None:
        """Start services; quiver is ready when this returns."""
        self.compose("up", "-d", "--no-build", *services)
        if "quiver" in services:
            self.until_ready()

    def container(self, service: str) -> str:
        """The id of a service's container."""
        found = docker(
            *("ps", "-aq", "--filter", f"label=com.docker.compose.project={self.name}"),
            *("--filter", f"label=com.docker.compose.service={service}"),
        )
        assert found, f"no container of {service}"
        return found.splitlines()[0]

    def kill(self, service: str) -> None:
        """As the kernel would, without a word."""
        docker("kill", "-s", "KILL", self.container(service))

    def start(self, service: str) -> None:
        """Again, on the same volume."""
        docker("start", self.container(service))

    # Programs of the test

    def program(
        self,
        name: str,
        script: str,
        *words: str,
        image: str = SERVICE,
        tag: str | None = None,
        networks: Sequence[str] = ("data",),
        options: Sequence[str] = (),
    ) -> str:
        """Run one of ``programs/`` in a container of its own; the container's name."""
        command = ["python", f"/programs/{script}", *words]
        return self.run(name, command, image=image, tag=tag, networks=networks, options=options)

    def run(
        self,
        name: str,
        command: Sequence[str],
        *,
        image: str = SERVICE,
        tag: str | None = None,
        networks: Sequence[str] = ("data",),
        options: Sequence[str] = (),
    ) -> str:
        """Start a container beside the services, of the project's tag or another; its name."""
        made = f"{self.name}_{name}"
        first, *others = networks
        docker(
            *("create", "--init", "--name", made, "--label", f"{LABEL}={self.name}"),
            *("--network", f"{self.name}_{first}", "--no-healthcheck"),
            *("--volume", f"{PROGRAMS}:/programs:ro", *options),
            *("--entrypoint", command[0], f"{image}:{tag or self.tag}", *command[1:]),
        )
        for other in others:
            docker("network", "connect", "--alias", name, f"{self.name}_{other}", made)
        docker("start", made)
        return made

    def spark_submit(self, name: str, script: str, *words: str, conf: Sequence[str] = ()) -> str:
        """Submit a job to the cluster; the driver, and only it, has the project's source."""
        given = [
            *("spark.driver.host=" + name, "spark.driver.bindAddress=0.0.0.0"),
            *("spark.executor.cores=1", "spark.executor.memory=512m", "spark.cores.max=2"),
            # Both workers are there before the first task, or one might do all the work.
            "spark.scheduler.minRegisteredResourcesRatio=1.0",
            *("spark.scheduler.maxRegisteredResourcesWaitingTime=120s", "spark.ui.enabled=false"),
            # Rows go on as they are made, or all puts of a task come together at its end.
            "spark.buffer.size=4096",
            *conf,
        ]
        mounts = [f"--volume={REPOSITORY / here}:{there}:ro" for here, there in DRIVER.items()]
        return self.run(
            name,
            [
                *("spark-submit", "--master", "spark://spark-master:7077"),
                *(word for one in given for word in ("--conf", one)),
                *(f"/programs/{script}", *words),
            ],
            image=SPARK,
            networks=("data", "spark"),
            options=[*mounts, "--env", "PYTHONPATH=/project:/opt/driver"],
        )

    def journal(self, container: str) -> Journal:
        """What a program has said so far."""
        return Journal.read(docker("logs", container))

    def until(self, container: str, what: str, seconds: float = SECONDS) -> Journal:
        """Wait until a program has said this kind of thing; a program that failed is an error."""

        def look() -> Journal | None:
            journal = self.journal(container)
            if journal.of(what):
                return journal
            if self.state(container)["Status"] == "exited":
                pytest.fail(f"{container} ended: {docker('logs', '--tail', '40', container)}")
            return None

        return eventually(look, f"{container} says {what!r}", seconds)

    def finished(self, container: str, seconds: float = SECONDS) -> Journal:
        """Wait for a program's end, which must be a good one."""
        code = docker("wait", container, seconds=seconds)
        assert code == "0", f"{container}: exit {code}: {docker('logs', '--tail', '60', container)}"
        return self.journal(container)

    def stop(self, container: str) -> Journal:
        """Ask a program to end, and wait for its last word."""
        docker("stop", "--time", "30", container, seconds=STOP_SECONDS)
        return self.finished(container)

    @staticmethod
    def state(container: str) -> dict[str, Any]:
        """What the engine knows about a container."""
        found: dict[str, Any] = json.loads(docker("inspect", "-f", "{{json .State}}", container))
        return found

    # The network

    def cut(self, network: str, *containers: str) -> None:
        """Take containers off a network."""
        for one in containers:
            docker("network", "disconnect", f"{self.name}_{network}", one)

    def mend(self, network: str, *containers: str) -> None:
        """Put them on it again."""
        for one in containers:
            docker("network", "connect", f"{self.name}_{network}", one)

    # The server, from outside

    @property
    def url(self) -> str:
        return f"grpc://127.0.0.1:{self.flight_port}"

    @contextmanager
    def client(self) -> Iterator[Client]:
        """The server as this machine sees it, through the mapped port."""
        with connect(self.url, wait=30) as client:
            yield client

    def page(self, path: str) -> str:
        """A page of its HTTP side, whatever its status."""
        with closing(HTTPConnection("127.0.0.1", self.http_port, timeout=5)) as connection:
            try:
                connection.request("GET", path)
                return connection.getresponse().read().decode()
            except HTTPException as error:
                raise ConnectionError(f"{path}: {error!r}") from None

    def status(self, stream: str) -> dict[str, Any]:
        """What the server says about a stream, once it is there."""
        streams: dict[str, dict[str, Any]] = json.loads(self.page("/status"))["streams"]
        assert stream in streams, f"there is no stream {stream}"
        return streams[stream]

    def metric(self, name: str, **labels: str) -> float:
        """One number; 0 for a series that has had no event."""
        wanted = {f'{key}="{value}"' for key, value in labels.items()}
        for line in self.page("/metrics").splitlines():
            found = re.fullmatch(rf"{name}(?:\{{(.*)\}})? (\S+)", line)
            if found and wanted <= set((found[1] or "").split(",")):
                return float(found[2])
        return 0.0

    def until_ready(self, seconds: float = SECONDS) -> None:
        """The server serves."""
        eventually(lambda: json.loads(self.page("/readyz"))["status"] == "ok", "ready", seconds)

    # The end

    def collect(self, where: Path) -> None:
        """Keep what could tell why: the logs and states of all containers, and the status."""
        where.mkdir(parents=True, exist_ok=True)
        for one in self._containers():
            name = docker("inspect", "-f", "{{.Name}}", one, check=False).lstrip("/")
            (where / f"{name}.log").write_text(docker("logs", one, check=False))
            (where / f"{name}.json").write_text(docker("inspect", one, check=False))
        try:
            (where / "status.json").write_text(self.page("/status"))
            (where / "metrics.txt").write_text(self.page("/metrics"))
        except OSError as error:
            (where / "status.json").write_text(f"the server doesn't answer: {error}\n")

    def down(self) -> None:
        """Everything goes: containers, networks, volumes."""
        found = self._containers()
        if found:
            docker("rm", "--force", "--volumes", *found, check=False)
        self.compose("down", "--volumes", "--remove-orphans", "--timeout", "1", check=False)
        self._overlay.unlink()
        if left := self.left():
            pytest.fail(f"{self.name} left behind: {left}")

    def left(self) -> list[str]:
        """Ids of everything that is still there."""
        return [
            *self._containers(),
            *docker("network", "ls", "-q", "--filter", f"name={self.name}").split(),
            *docker("volume", "ls", "-q", "--filter", f"name={self.name}").split(),
        ]

    def _containers(self) -> list[str]:
        labels = (f"{LABEL}={self.name}", f"com.docker.compose.project={self.name}")
        return [
            one
            for label in labels
            for one in docker("ps", "-aq", "--filter", f"label={label}").split()
        ]


def _merged(settings: Mapping[str, str], overlay: Mapping[str, Any]) -> dict[str, Any]:
    """An overlay of the compose file, in JSON, which is YAML."""
    made: dict[str, Any] = json.loads(json.dumps({"services": {}, **overlay}))
    quiver = made["services"].setdefault("quiver", {})
    variables = {
        f"QUIVER_{name.replace('.', '__').upper()}": str(value) for name, value in settings.items()
    }
    quiver["environment"] = {**variables, **quiver.get("environment", {})}
    return made
