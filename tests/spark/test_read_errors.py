"""What can go wrong when reading: a clear message at the driver, soon, and the job ends."""

from __future__ import annotations

import io
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from flight_service.client import Client, connect
from flight_service.server.auth import hash_token
from spark_client import register
from tests.spark.conftest import MakeServer
from tests.wire.process import ServerProcess, free_port

SECRET = "s3cret-token-of-mine-0123456789-0123"


def reading(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    register(spark)
    return spark.read.format("quiver").options(connectTimeout="1s", **options).load(url)


def told(spark: SparkSession, url: str, **options: Any) -> str:
    """What a read that fails says."""
    with pytest.raises(Exception, match=r"quiver|option|takes") as caught:
        reading(spark, url, **options).count()
    said = str(caught.value)
    assert SECRET not in said
    return said


def test_mistakes_are_named(spark: SparkSession, client: Client, server: ServerProcess) -> None:
    """Scenario: options, slots, streams and types that are wrong, and a server that isn't
    there. Guarantee: each says what it is, and what to do."""
    url = f"quiver://127.0.0.1:{server.port}/telemetry"
    union = pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
    )
    client.stream("telemetry").put({"Logs": pa.record_batch({"n": [1, 2], "u": union})})
    client.stream("telemetry").put({"Attrs": pa.record_batch({"n": [1]})})
    for options, said in (
        ({"slto": "Logs"}, "there is no option 'slto'. Did you mean slot?"),
        ({}, "the stream has several slots: Logs, Attrs. Say which"),
        ({"slot": "Logs"}, "column u: Spark has no type for sparse_union"),
        ({"slot": "Attrs", "subscriber": "s"}, "subscriber means nothing for read"),
    ):
        assert said in told(spark, url, **options)
    assert reading(spark, url, slot="Logs", columns="n").count() == 2
    missing = told(spark, f"{url[:-9]}missing")
    assert "there is no stream 'missing'" in missing
    assert "Is the url right?" in missing
    gone = told(spark, f"quiver://127.0.0.1:{free_port()}/telemetry")
    assert "no Quiver server answers" in gone
    assert "Is the server running" in gone


def test_a_server_that_goes_away(
    spark: SparkSession, client: Client, server: ServerProcess, tmp_path: Path
) -> None:
    """Scenario: the server is killed after a frame was planned, and under a running query.
    Guarantee: both end by themselves within their patience, and say so."""
    url = f"quiver://127.0.0.1:{server.port}/telemetry"
    client.stream("telemetry").put({"Logs": pa.record_batch({"n": [1]})})
    frame = reading(spark, url, retryTimeout="1s")
    assert frame.count() == 1
    reader = spark.readStream.format("quiver").options(retryTimeout="1s")
    query = (
        reader.load(url)
        .writeStream.format("noop")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    server.kill()
    with pytest.raises(Exception, match="Is the server running"):
        query.awaitTermination(60)
    assert not query.isActive
    with pytest.raises(Exception, match="Is the server running"):
        frame.count()


def test_tokens(spark: SparkSession, make_server: MakeServer, tmp_path: Path) -> None:
    """Scenario: no token, a wrong one, one without the right verb, and the right one.
    Guarantee: told what to do; with the right one the read works, on workers that don't have
    it, and no plan shows it."""
    grants = tmp_path / "auth.yaml"
    grants.write_text(
        "principals:\n"
        f"  spark:\n    token: '{hash_token(SECRET)}'\n"
        "    grants:\n      - {verbs: [put, read], streams: ['*']}\n"
        f"  putter:\n    token: '{hash_token('putter-token-of-mine-0123456789-0123')}'\n"
        "    grants:\n      - {verbs: [put], streams: ['*']}\n"
    )
    server = make_server({"auth.file": str(grants)})
    with connect(server.url, token=SECRET) as client:
        client.stream("telemetry").put({"Logs": pa.record_batch({"n": [1]})})
    url = f"quiver://127.0.0.1:{server.port}/telemetry"
    for options in ({}, {"token": "wrong-token-of-nobody-0123456789-0123"}):
        assert "Give the right token with the option token" in told(spark, url, **options)
    said = told(spark, url, token="putter-token-of-mine-0123456789-0123")
    assert "may not read" in said
    assert "needs the verb read" in said
    frame = reading(spark, url, token=SECRET)
    shown = io.StringIO()
    with redirect_stdout(shown):
        for mode in ("simple", "extended", "codegen", "cost", "formatted"):
            frame.explain(mode=mode)
    assert frame.count() == 1
    assert SECRET not in shown.getvalue() + repr(frame)
