"""Tokens and TLS from Spark: they work on bare workers, and nobody sees them."""

from __future__ import annotations

import io
import subprocess
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

from flight_service.server.auth import hash_token
from spark_client import RECEIPTS, PutFailed, put_slot, register, write_bundles
from tests.spark.conftest import MakeServer
from tests.wire.process import ServerProcess

SECRET = "hunter2-" * 8
MODES = ("simple", "extended", "codegen", "cost", "formatted")


@pytest.fixture
def guarded(make_server: MakeServer, tmp_path: Path) -> ServerProcess:
    """A server that asks for a token."""
    grants = tmp_path / "auth.yaml"
    grants.write_text(
        f"principals:\n  pipeline:\n    token: '{hash_token(SECRET)}'\n"
        "    grants:\n      - {verbs: [put, read, observe], streams: ['*']}\n"
    )
    return make_server({"auth.file": str(grants)})


def url(server: ServerProcess) -> str:
    return f"quiver://127.0.0.1:{server.port}/logs"


def test_a_wrong_token(spark: SparkSession, guarded: ServerProcess) -> None:
    """Scenario: no token, a wrong one, and the right one. Guarantee: the first two are told at
    the driver, with where a token comes from; the right one works."""
    wrong: list[dict[str, Any]] = [{}, {"token": "wrong"}]
    for options in wrong:
        with pytest.raises(PutFailed, match=r"unauthenticated.*QUIVER_TOKEN"):
            write_bundles(spark.range(10), url(guarded), slot="Logs", **options)
    assert write_bundles(spark.range(10), url(guarded), slot="Logs", token=SECRET).rows == 10


def test_a_token_from_a_file_and_from_the_environment(
    spark: SparkSession, guarded: ServerProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scenario: tokens where they belong, on the driver only. Guarantee: both reach workers that
    have neither."""
    file = tmp_path / "token"
    file.write_text(f"{SECRET}\n")
    where = url(guarded)
    put = put_slot(where, slot="Logs", token_file=file)
    file.unlink()
    assert spark.range(10).mapInArrow(put, RECEIPTS).count() > 0
    monkeypatch.setenv("QUIVER_TOKEN", SECRET)
    assert write_bundles(spark.range(10), where, slot="Logs").rows == 10


def plans(*frames: DataFrame) -> str:
    """Everything that explain shows of frames."""
    shown = io.StringIO()
    with redirect_stdout(shown):
        for frame in frames:
            for mode in MODES:
                frame.explain(mode=mode)
    return shown.getvalue()


def test_a_token_is_never_shown(spark: SparkSession, guarded: ServerProcess) -> None:
    """Scenario: a put and a read with a token, their plans, a failure of each, and the server's
    log. Guarantee: the token is in none of what people see."""
    put = put_slot(url(guarded), slot="Logs", token=SECRET)
    receipts = spark.range(10, numPartitions=1).mapInArrow(put, RECEIPTS)
    assert receipts.count() == 1
    register(spark)
    reader = spark.read.format("quiver").option("token", SECRET).option("slot", "Logs")
    logs = reader.load(url(guarded))
    assert logs.count() == 10

    shown = plans(receipts, logs)
    assert "put_slot" in shown
    assert SECRET not in shown
    assert SECRET not in repr(put) + repr(logs) + str(receipts.schema)

    narrow = put_slot(
        url(guarded), slot="Logs", token=SECRET, schema=pa.schema([("id", pa.uint8())])
    )
    jobs: list[Callable[[], Any]] = [
        lambda: spark.range(1_000).mapInArrow(narrow, RECEIPTS).collect(),
        lambda: reader.option("slot", "NoSuchSlot").load(url(guarded)).collect(),
        lambda: reader.option("tokens", SECRET).load(url(guarded)).collect(),
    ]
    for job in jobs:
        with pytest.raises(PySparkException) as failed:
            job()
        assert SECRET not in str(failed.value)
    assert SECRET not in (guarded.root.parent / "server.log").read_text()


@pytest.fixture(scope="session")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, and a server and a client it has signed."""
    where = tmp_path_factory.mktemp("tls")

    def openssl(line: str) -> None:
        subprocess.run(["openssl", *line.split()], cwd=where, check=True, capture_output=True)

    (where / "ext").write_text("subjectAltName=DNS:localhost,DNS:pipeline\n")
    openssl("req -x509 -newkey rsa:2048 -nodes -keyout ca.key -out ca.pem -days 2 -subj /CN=ca")
    for name in ("server", "client"):
        openssl(f"req -newkey rsa:2048 -nodes -keyout {name}.key -out {name}.csr -subj /CN={name}")
        openssl(
            f"x509 -req -in {name}.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2"
            f" -out {name}.pem -extfile ext"
        )
    return where


def test_tls_by_option_and_by_environment(
    spark: SparkSession,
    make_server: MakeServer,
    certificates: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Scenario: a server that shows a certificate and asks for one; ours by option and then by
    environment, for a put and for a read. Guarantee: both work from workers that have no such
    files to look for; without ours, the driver is told."""
    server = make_server(
        {
            "tls.cert": certificates / "server.pem",
            "tls.key": certificates / "server.key",
            "tls.client_ca": certificates / "ca.pem",
        }
    )
    where = f"quiver+tls://localhost:{server.port}/logs"
    ours = {"tls_ca": "ca.pem", "tls_cert": "client.pem", "tls_key": "client.key"}
    options: dict[str, Any] = {name: certificates / file for name, file in ours.items()}
    assert write_bundles(spark.range(10), where, slot="Logs", **options).rows == 10

    with pytest.raises(PutFailed, match="no Quiver server answers"):
        write_bundles(
            spark.range(10), where, slot="Logs", tls_ca=options["tls_ca"], connect_timeout="1s"
        )
    for name, file in (("CA", "ca.pem"), ("CERT", "client.pem"), ("KEY", "client.key")):
        monkeypatch.setenv(f"QUIVER_{name}", str(certificates / file))
    assert write_bundles(spark.range(10), where, slot="Logs").rows == 10
    register(spark)
    reader = spark.read.format("quiver").option("slot", "Logs")
    for name, file in (("tlsCa", "ca.pem"), ("tlsCert", "client.pem"), ("tlsKey", "client.key")):
        reader = reader.option(name, str(certificates / file))
    assert reader.load(where).count() == 20
