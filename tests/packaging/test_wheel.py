"""The wheel: what is in it, and what each way to install it can do."""

from __future__ import annotations

import json
from email.parser import Parser
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.packaging.venvs import Environment

FILL = """
import sys
import pyarrow as pa
import quiver

with quiver.open(sys.argv[1], reserve=0) as store:
    store.put({"Logs": pa.record_batch({"id": [1, 2, 3]})}).wait()
"""

ROUND_TRIP = """
import sys
import pyarrow as pa
from flight_service.client import connect

with connect(sys.argv[1]) as q:
    stream = q.stream(sys.argv[2])
    assert stream.put({"Logs": pa.record_batch({"id": [1, 2, 3]})}).durability == "durable"
    for bundle in stream.subscribe("s", follow=False):
        print(bundle["Logs"].num_rows)
        bundle.ack()
"""

SPARK = """
import sys
from spark_client import RECEIPTS, QuiverDataSource, put_slot, register

assert callable(put_slot("quiver://127.0.0.1:8815/t", slot="Logs"))
assert QuiverDataSource.name() == "quiver"
for module in ("quiver", "flight_service.server", "prometheus_client", "typer"):
    assert module not in sys.modules, module
"""


@pytest.fixture
def store(base: Environment, tmp_path: Path) -> Path:
    """A store that the installed library has written."""
    base.python(FILL, tmp_path / "store")
    return tmp_path / "store"


def test_what_the_wheel_says_of_itself(wheel: Path) -> None:
    """Scenario: a package index or a type checker looks at the wheel. Guarantee: the licence with
    its text, the versions that are tested, and type information of all three packages."""
    with ZipFile(wheel) as file:
        names = set(file.namelist())
        (metadata,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        about = Parser().parsestr(file.read(metadata).decode())
    assert about["License-Expression"] == "Apache-2.0"
    assert about.get_all("License-File") == ["LICENSE"]
    assert metadata.replace("METADATA", "licenses/LICENSE") in names
    assert "Programming Language :: Python :: 3.11" in about.get_all("Classifier", [])
    for package in ("quiver", "flight_service", "spark_client"):
        assert f"{package}/py.typed" in names
    assert {name.split("/")[0] for name in names if ".dist-info" not in name} == {
        "quiver",
        "flight_service",
        "spark_client",
    }


def test_base_has_the_offline_commands(base: Environment, store: Path, tmp_path: Path) -> None:
    """Scenario: base dependencies alone. Guarantee: the library and the four commands for a
    directory work; none of the packages of extras is there."""
    for module in ("prometheus_client", "pyspark", "pandas", "numpy", "pytest"):
        assert not base.has(module), module
    assert json.loads(base.quiver("inspect", store, "--json").stdout)["bundles"] == 1
    assert "sound" in base.quiver("verify", store).stdout
    assert "nothing to repair" in base.quiver("repair", store).stdout
    base.quiver("dump", store, "--out", tmp_path / "saved")
    assert (tmp_path / "saved" / "manifest.json").is_file()
    assert not (tmp_path / "saved" / "lost.json").exists()


def test_base_says_what_else_could_be_installed(base: Environment) -> None:
    """Scenario: base dependencies alone. Guarantee: help and version work, and a command that
    needs more says what to install."""
    shown = base.quiver("--help").stdout
    for command in ("inspect", "verify", "dump", "repair", "serve", "put"):
        assert command in shown
        base.quiver(command, "--help")
    assert base.quiver("--version").stdout.startswith("quiver ")
    refused = base.quiver("serve", "--port", "0", expect=1).stderr
    assert "prometheus_client" in refused
    assert "pip install 'quiver-buffer[server]'" in refused


def test_base_puts_and_gets(base: Environment, url: str, tmp_path: Path) -> None:
    """Scenario: base dependencies alone, and a server elsewhere. Guarantee: put and get work."""
    _put_and_get(base, url, tmp_path, "from-base")


def test_server_alone(server: Environment, url: str, tmp_path: Path) -> None:
    """Scenario: the extra `server` alone. Guarantee: the server starts, put and get work against
    it, and Spark is not there."""
    for module in ("pyspark", "pandas", "numpy"):
        assert not server.has(module), module
    _put_and_get(server, url, tmp_path, "from-server")


def test_spark_alone(spark: Environment, url: str) -> None:
    """Scenario: the extra `spark` alone. Guarantee: pipelines can be made without the server's
    packages, and `quiver serve` says what to install."""
    assert not spark.has("prometheus_client")
    spark.python(SPARK)
    assert spark.python(ROUND_TRIP, url, "from-spark").split() == ["3"]
    assert "quiver-buffer[server]" in spark.quiver("serve", expect=1).stderr


def test_all_extras(everything: Environment, url: str, tmp_path: Path) -> None:
    """Scenario: both extras. Guarantee: they don't get into each other's way."""
    everything.python(SPARK)
    assert "--root" in everything.quiver("serve", "--help").stdout
    _put_and_get(everything, url, tmp_path, "from-all")


def test_client_needs_pyarrow_and_nothing_else(client: Environment, url: str) -> None:
    """Scenario: pyarrow, and the wheel without its dependencies. Guarantee: the client puts and
    subscribes."""
    for module in ("pydantic", "structlog", "typer", "rich", "blake3", "numpy"):
        assert not client.has(module), module
    assert client.python(ROUND_TRIP, url, "from-client").split() == ["3"]


def _put_and_get(environment: Environment, url: str, tmp_path: Path, stream: str) -> None:
    given, taken = tmp_path / "given.csv", tmp_path / "taken.parquet"
    given.write_text("id,text\n1,one\n2,two\n")
    environment.quiver("put", stream, given, "--slot", "Logs", "--server", url)
    done = environment.quiver(
        "get", stream, "--slot", "Logs", "--to", taken, "--json", "--server", url
    )
    assert json.loads(done.stdout)["rows"] == 2
