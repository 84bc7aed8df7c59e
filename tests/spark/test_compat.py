"""Streaming queries of a release go on: its checkpoints, its server's root, today's code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from pyspark.sql import DataFrame, SparkSession

from flight_service.client import Client, connect
from spark_client import register
from tests.compat import golden
from tests.wire.process import ServerProcess

WAIT: Final = 60
NEVER: Final = {"transactions.remember": "36500d", "transactions.stage_ttl": "36500d"}
"""The golden root gets older; what it knows must not be forgotten for that."""


class Restored:
    """What a release left, with a server of today on it."""

    def __init__(self, said: dict[str, Any], where: Path, server: ServerProcess) -> None:
        self.said = said
        self.where = where
        self.url = f"quiver://127.0.0.1:{server.port}"

    def read(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.format("quiver").option("slot", "Logs")
        return reader.option("maxBundlesPerTrigger", 2).load(f"{self.url}/in")


@pytest.fixture(params=golden.names("spark"))
def restored(request: Any, spark: SparkSession, tmp_path: Path) -> Iterator[Restored]:
    where = golden.unpacked("spark", request.param, tmp_path)
    register(spark)
    with ServerProcess(where / "root", NEVER) as server:
        yield Restored(golden.manifest("spark", request.param), where, server)


@pytest.fixture
def old_client(restored: Restored) -> Iterator[Client]:
    with connect(restored.url.replace("quiver:", "grpc:")) as client:
        yield client


def test_a_reading_query_goes_on_from_its_checkpoint(
    spark: SparkSession, restored: Restored, old_client: Client
) -> None:
    """Scenario: a query of the release failed in its third batch, more was put, its server
    was killed; it is started again with today's code on its checkpoint. Guarantee: the batch
    that failed comes again exactly as it was, then the rest; no row is missing or twice; its
    subscriber is the same one, and has finished everything."""
    said, batches = restored.said, {}

    def take(frame: DataFrame, number: int) -> None:
        batches[number] = sorted(row.n for row in frame.collect())

    writer = restored.read(spark).writeStream.foreachBatch(take).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(restored.where / "reader")).start()
    assert query.awaitTermination(WAIT)
    tried = {int(number): rows for number, rows in said["reader"]["tried"].items()}
    failed = said["reader"]["failed"]
    assert min(batches) == failed
    assert batches[failed] == tried[failed]
    everything = [n for rows in ({**tried, **batches}).values() for n in rows]
    assert sorted(everything) == said["numbers"]
    stream = old_client.stream("in")
    assert sorted(stream.status()["subscribers"]) == said["subscribers"]
    offset = (restored.where / "reader" / "offsets" / "0").read_text().splitlines()[-1]
    assert stream.lag(json.loads(offset)["subscriber"]).bundles == 0


def test_a_writing_query_goes_on_from_its_checkpoint(
    spark: SparkSession, restored: Restored, old_client: Client
) -> None:
    """Scenario: a query of the release writes to a stream; its last batch is committed there,
    and Spark's note of that is lost; more was put; it is started again with today's code.
    Guarantee: the batch is not written again, the rest is, under the same app."""
    said, out = restored.said, old_client.stream("out")

    def written() -> list[int]:
        found = (batch for one in out.read() for batch in dict(one).values())
        return sorted(n for batch in found for n in batch.column(0).to_pylist())

    app, committed = said["pipeline"]["app"], said["pipeline"]["committed"]
    assert written() == said["out"]
    assert out.begin(app, committed).committed
    writer = restored.read(spark).writeStream.format("quiver").trigger(availableNow=True)
    query = writer.options(
        url=f"{restored.url}/out", checkpointLocation=str(restored.where / "pipeline")
    ).start()
    assert query.awaitTermination(WAIT)
    assert app == f"spark/{query.id}"
    assert written() == said["numbers"]
    assert (out.begin(app, committed).last or 0) > committed
