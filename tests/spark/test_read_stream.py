"""``spark.readStream.format("quiver")``: each bundle once, however often the query restarts."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from flight_service.client import Backpressure, Client, Ref
from flight_service.client.stream import Stream
from spark_client import register
from tests.wire.process import ServerProcess

WAIT = 60


@pytest.fixture
def url(server: ServerProcess, spark: SparkSession) -> str:
    register(spark)
    return f"quiver://127.0.0.1:{server.port}/telemetry"


@pytest.fixture
def stream(client: Client) -> Stream:
    client.create_stream("telemetry")
    return client.stream("telemetry")


def put(stream: Stream, *numbers: int) -> list[Ref]:
    """A bundle for each number, all in one segment."""
    found = [stream.put({"Logs": pa.record_batch({"n": [n]})}).ref for n in numbers]
    stream.flush()
    return found


class Seen:
    """A sink that keeps batches by their number, as an idempotent one would."""

    def __init__(self) -> None:
        self.batches: dict[int, list[int]] = {}

    def take(self, frame: DataFrame, number: int) -> None:
        self.batches[number] = sorted(row.n for row in frame.collect())

    @property
    def numbers(self) -> list[int]:
        return sorted(n for batch in self.batches.values() for n in batch)


def run(
    spark: SparkSession,
    url: str,
    where: Path,
    take: Callable[[DataFrame, int], None],
    **options: Any,
) -> StreamingQuery:
    """Everything there is now, then the end."""
    reader = spark.readStream.format("quiver").option("slot", "Logs")
    for name, value in options.items():
        reader = reader.option(name, value)
    writer = reader.load(url).writeStream.foreachBatch(take).trigger(availableNow=True)
    query = writer.option("checkpointLocation", str(where)).start()
    assert query.awaitTermination(WAIT)
    return query


def test_a_query_goes_on_where_its_checkpoint_says(
    spark: SparkSession, stream: Stream, url: str, tmp_path: Path
) -> None:
    """Scenario: a query drains what is there in small batches and ends; more comes; it is
    started again; and once more with nothing new. Guarantee: each bundle once, no batch
    larger than asked, everything is acked after the last one too, and segments are freed."""
    seen, where = Seen(), tmp_path / "checkpoint"
    put(stream, 0, 1, 2)
    put(stream, 3, 4)
    query = run(spark, url, where, seen.take, maxBundlesPerTrigger=2)
    assert [len(batch) for batch in seen.batches.values()] == [2, 2, 1]
    assert seen.numbers == [0, 1, 2, 3, 4]
    (subscriber,) = stream.status()["subscribers"]
    assert subscriber.startswith("spark-")
    assert stream.lag(subscriber).bundles == 0
    progress = json.loads(query.recentProgress[-1].json)["sources"][0]
    assert progress["endOffset"]["subscriber"] == subscriber
    assert progress["latestOffset"] == {**progress["endOffset"], **_end(stream)}
    put(stream, 5, 6)
    assert stream.lag(subscriber).bundles == 2
    run(spark, url, where, seen.take)
    assert seen.numbers == [0, 1, 2, 3, 4, 5, 6]
    count = len(seen.batches)
    stream.maintain()
    assert stream.status()["segments"] == 0
    run(spark, url, where, seen.take)
    assert len(seen.batches) == count
    assert list(stream.status()["subscribers"]) == [subscriber]
    assert stream.lag(subscriber).bundles == 0


def _end(stream: Stream) -> dict[str, int]:
    segment, bundle = stream.end()
    return {"segment": segment, "bundle": bundle}


def test_a_batch_that_failed_is_read_again_whole(
    spark: SparkSession, stream: Stream, url: str, tmp_path: Path
) -> None:
    """Scenario: the sink fails in the second batch, and more comes before the query is
    started again, with other limits. Guarantee: what failed is not acked, comes again exactly
    as it was, and then the rest."""
    seen, where = Seen(), tmp_path / "checkpoint"
    put(stream, *range(6))
    tried: list[list[int]] = []

    def fails(frame: DataFrame, number: int) -> None:
        if number == 1:
            tried.append(sorted(row.n for row in frame.collect()))
            raise RuntimeError("the sink is down")
        seen.take(frame, number)

    with pytest.raises(Exception, match="the sink is down"):
        run(spark, url, where, fails, maxBundlesPerTrigger=2, subscriber="mine")
    assert stream.lag("mine").bundles == 4
    put(stream, 6)
    run(spark, url, where, seen.take, maxBundlesPerTrigger=4, subscriber="mine")
    assert tried == [seen.batches[1]] == [[2, 3]]
    assert seen.numbers == list(range(7))
    assert stream.lag("mine").bundles == 0


def test_a_first_batch_cut_short(
    spark: SparkSession, stream: Stream, url: str, tmp_path: Path
) -> None:
    """Scenario: a new query starts at the end of the stream, where it waits; its sink fails in
    the first batch that has rows; more comes; it is started again with the same checkpoint.
    And one whose very first batch fails, from the beginning. Guarantee: nothing is skipped,
    although Spark asks anew where the query began; one subscriber is left of each."""
    stream.register("keeper")
    put(stream, 0, 1)

    def fails(frame: DataFrame, number: int) -> None:
        raise RuntimeError("the sink is down")

    late, where = Seen(), tmp_path / "latest"
    run(spark, url, where, late.take, startingOffsets="latest")
    assert late.numbers == []
    early = Seen()
    with pytest.raises(Exception, match="the sink is down"):
        run(spark, url, tmp_path / "earliest", fails, maxBundlesPerTrigger=1)
    put(stream, 2, 3)
    assert len(stream.status()["subscribers"]) == 3
    run(spark, url, where, late.take, startingOffsets="latest")
    run(spark, url, tmp_path / "earliest", early.take, startingOffsets="latest")
    assert (late.numbers, early.numbers) == ([2, 3], [0, 1, 2, 3])
    assert len(stream.status()["subscribers"]) == 3


def test_where_a_query_begins(
    spark: SparkSession, stream: Stream, url: str, tmp_path: Path
) -> None:
    """Scenario: new queries that start at a position, at the end, at a time, and one whose
    subscriber is known. Guarantee: each begins where it says, a known one resumes unless told
    otherwise, and bytes limit a batch as well."""
    stream.register("keeper")
    refs = put(stream, *range(6))
    taken = stream.get(refs[3])[0].ingestion_ts_ns or 0

    def numbers(name: str, **options: Any) -> list[int]:
        seen = Seen()
        run(spark, url, tmp_path / name, seen.take, **options)
        return seen.numbers

    assert numbers("position", startingOffsets=str(refs[4])) == [4, 5]
    assert numbers("end", startingOffsets="latest") == []
    since = -(-taken // 1_000_000)
    later = [
        n
        for n, one in enumerate(stream.get(*refs))
        if (one.ingestion_ts_ns or 0) >= since * 1_000_000
    ]
    assert numbers("time", startingTimestamp=str(since)) == later
    stream.register("known")
    stream.ack("known", refs[:2])
    assert numbers("known", subscriber="known") == [2, 3, 4, 5]
    assert numbers("told", subscriber="known", startingOffsets="earliest") == list(range(6))
    seen = Seen()
    run(spark, url, tmp_path / "bytes", seen.take, maxBytesPerTrigger="1b", minPartitions=3)
    assert [len(batch) for batch in seen.batches.values()] == [1] * 6


def delete(client: Client, name: str) -> None:
    """As soon as the last call of the query that failed is over."""
    for _ in range(100):
        try:
            return client.delete_stream(name, force=True)
        except Backpressure:
            client.pause(0.1)
    raise AssertionError(f"{name} is in use for ever")


def test_a_query_that_lost_data_says_so(
    spark: SparkSession, client: Client, server: ServerProcess, tmp_path: Path
) -> None:
    """Scenario: while a query is down a policy drops what it had not read; or its subscriber
    is removed and the rest finished by others; or its stream is made anew. Guarantee: it
    stops and says what happened; told to, it goes on without what is gone."""
    register(spark)
    url = f"quiver://127.0.0.1:{server.port}/small"
    client.create_stream(
        "small",
        {
            "segment": {"target_size": "64KiB"},
            "limits": {"max_bundle": "64KiB", "max_unsynced": "64KiB"},
            "wal": {"rotation_target": "64KiB", "max_size": "256KiB"},
            "retention": {"size_cap": "512KiB", "size_cap_policy": "drop_oldest"},
            "reserve": 0,
        },
    )
    stream = client.stream("small")
    seen, where = Seen(), tmp_path / "checkpoint"
    put(stream, 0)
    run(spark, url, where, seen.take, subscriber="s")
    assert seen.numbers == [0]
    large = pa.record_batch({"n": pa.array([7] * 4000, pa.int64())})
    while not stream.plan((0, 0), subscriber="s").lost:
        stream.put({"Logs": large}, timeout=20)
    with pytest.raises(Exception, match=r"went before they were read \(size.*failOnDataLoss"):
        run(spark, url, where, seen.take, subscriber="s")
    stream.maintain()
    left = stream.plan()  # before the query: what it finishes goes
    run(spark, url, where, seen.take, subscriber="s", failOnDataLoss="false")
    assert seen.numbers.count(7) == sum(part.rows for part in left.parts)
    assert stream.lag("s").bundles == 0

    stream.unregister("s")
    stream.register("other")
    put(stream, 8)
    put(stream, 9)
    stream.ack_before("other", stream.end(), durable=True)
    stream.maintain()
    with pytest.raises(Exception, match=r"the subscriber s was not known any more"):
        run(spark, url, where, seen.take, subscriber="s")

    delete(client, "small")
    client.create_stream("small")
    put(client.stream("small"), 10)
    # Its numbers go on behind those of the old one: what the checkpoint names is deleted.
    with pytest.raises(Exception, match=r"the checkpoint is at .* what is left begins at"):
        run(spark, url, where, seen.take, subscriber="s")
