"""Quiver → Spark → Quiver, as a pipeline runs: stopped and started again and again."""

from __future__ import annotations

import random
import threading
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from flight_service.client import Client
from spark_client import register
from tests.wire.process import ServerProcess

ROUNDS = 10
SEED = 20_240_517


@pytest.mark.timeout(300)
def test_ten_restarts(
    spark: SparkSession, client: Client, server: ServerProcess, tmp_path: Path
) -> None:
    """Scenario: a query reads a stream, transforms it and writes another one; bundles keep
    coming; it is stopped at ten random moments and started again, the server is killed and
    started under it twice. Guarantee: the rows that come out are those that went in,
    transformed, each once; everything is acked, and both streams' segments are freed once
    their readers are done."""
    register(spark)
    chance = random.Random(SEED)
    base = f"quiver://127.0.0.1:{server.port}"
    client.create_stream("in")
    source, put = client.stream("in"), 0

    def produce() -> None:
        nonlocal put
        for _ in range(chance.randint(1, 6)):
            rows = chance.randint(1, 50)
            numbers = pa.array(range(put, put + rows), pa.int64())
            source.put({"Logs": pa.record_batch({"n": numbers})}, key=f"k{put}")
            put += rows

    def start(*, last: bool = False) -> StreamingQuery:
        reader = spark.readStream.format("quiver").options(maxBundlesPerTrigger=2, minPartitions=2)
        frame = reader.load(f"{base}/in").where("n % 5 != 0").selectExpr("n * 2 as twice")
        writer = frame.writeStream.format("quiver").option("url", f"{base}/out")
        writer = writer.option("checkpointLocation", str(tmp_path / "checkpoint"))
        return (writer.trigger(availableNow=True) if last else writer).start()

    produce()
    pause = threading.Event()
    for number in range(ROUNDS):
        query = start()
        produce()
        pause.wait(chance.uniform(0.2, 2.5))
        if number in (3, 7):
            server.kill()
            server.start()
            produce()
        query.stop()
        # A query that is stopped while Spark starts its Python may say so.
        assert "connect back" in str(query.exception() or "connect back")
    source.flush()
    query = start(last=True)
    assert query.awaitTermination(120)

    found = sorted(row.twice for row in spark.read.format("quiver").load(f"{base}/out").collect())
    assert found == [2 * n for n in range(put) if n % 5]
    (subscriber,) = source.status()["subscribers"]
    assert source.lag(subscriber).bundles == 0
    source.maintain()
    assert source.status()["bundles"] == 0
    sink = client.stream("out")
    sink.register("reader")
    sink.ack_before("reader", sink.end(), durable=True)
    sink.maintain()
    assert sink.status()["bundles"] == 0
