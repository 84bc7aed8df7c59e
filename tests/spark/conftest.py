"""Real Spark and a real server, shared by all tests here.

``spark``      one session, ``local[2,2]``, for the whole run of a test process.  Its Python
               workers have pyspark and pyarrow and nothing else (:mod:`tests.spark.bare`), so
               every test here also shows that the code travels.  Functions that a test hands
               to Spark are therefore defined inside the test.
``server``     ``ServerProcess``: a server of its own per test; ``kill()``, ``start()``.
``cluster``    master, two workers and drivers as separate processes, for what one process
               can't show: several hosts, speculation, executors and drivers killed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from flight_service.client import Client, connect
from tests.spark.bare import bare_python
from tests.spark.cluster import Cluster
from tests.wire.process import ServerProcess

MakeServer = Callable[..., ServerProcess]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """One cluster is enough: with several test processes, one of them has all its tests."""
    for item in items:
        if "cluster" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("cluster"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Spark in this process, its workers bare."""
    where = tmp_path_factory.mktemp("spark")
    os.environ["PYSPARK_PYTHON"] = str(bare_python())
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    session = (
        SparkSession.builder.master("local[2,2]")  # a task may fail once
        .appName("quiver-tests")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.extraJavaOptions", "-XX:+UseSerialGC -XX:TieredStopAtLevel=1")
        # A worker started from the repository's root would find the project there.
        .config("spark.executorEnv.PYTHONSAFEPATH", "1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(where / "warehouse"))
        .config("spark.local.dir", str(where / "local"))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )
    yield session
    session.stop()


@pytest.fixture
def make_server(tmp_path: Path) -> Iterator[MakeServer]:
    """Start servers as processes, with settings such as ``{"limits.max_rows": 10}``."""
    servers: list[ServerProcess] = []

    def make(settings: dict[str, Any] | None = None) -> ServerProcess:
        root = tmp_path / f"server-{len(servers)}" / "data"
        root.parent.mkdir()
        server = ServerProcess(root, settings)
        servers.append(server)
        server.start()
        return server

    yield make
    for server in servers:
        server.kill()


@pytest.fixture
def server(make_server: MakeServer) -> ServerProcess:
    """A server that has nothing yet."""
    return make_server()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    """A client of :func:`server`."""
    with connect(server.url) as client:
        yield client


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster; it takes some ten seconds to start."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
