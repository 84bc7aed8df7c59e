"""``df.writeStream.format("quiver")``: every micro-batch once, also when it is run twice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from flight_service.client import Client
from spark_client import register
from tests.spark.sink import (
    SECONDS,
    holding,
    rows,
    shuffling,
    staged,
    url,
    wait_for,
)
from tests.wire.process import ServerProcess

FILES = 3
PER_FILE = 100


class Input:
    """A directory of files; a query takes one in each batch."""

    def __init__(self, where: Path) -> None:
        self.where = where
        self.count = 0
        where.mkdir()

    def add(self, files: int = FILES) -> None:
        for _ in range(files):
            first = self.count * PER_FILE
            table = pa.table({"id": pa.array(range(first, first + PER_FILE), pa.int64())})
            hidden = self.where / f".{self.count}"
            pq.write_table(table, hidden)
            hidden.rename(self.where / f"{self.count:05}.parquet")
            self.count += 1

    @property
    def expected(self) -> list[int]:
        return list(range(self.count * PER_FILE))

    def frame(self, spark: SparkSession) -> DataFrame:
        reader = spark.readStream.schema("id long").option("maxFilesPerTrigger", 1)
        return reader.parquet(str(self.where)).repartition(2)


@pytest.fixture
def given(spark: SparkSession, tmp_path: Path) -> Input:
    register(spark)
    found = Input(tmp_path / "in")
    found.add()
    return found


def sinking(frame: DataFrame, server: ServerProcess, ck: Path, **options: str) -> DataStreamWriter:
    defaults = {"url": url(server), "retryTimeout": "60s", "connectTimeout": "20s"}
    defaults["checkpointLocation"] = str(ck)
    return frame.writeStream.format("quiver").options(**{**defaults, **options})


def drain(frame: DataFrame, server: ServerProcess, ck: Path, **options: str) -> StreamingQuery:
    """Run a query until it has taken all there is."""
    query = sinking(frame, server, ck, **options).trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(int(SECONDS))
    finally:
        query.stop()
    return query


def test_every_batch_once_across_restarts(
    spark: SparkSession, server: ServerProcess, client: Client, given: Input, tmp_path: Path
) -> None:
    """Scenario: a query that drains its input, started again with more, then again after a
    crash between our commit and Spark's own note of it, of which only the note is missing.
    Guarantee: each row once; the batch that is run again writes nothing."""
    ck = tmp_path / "ck"
    query = drain(given.frame(spark), server, ck)
    assert rows(client) == given.expected
    given.add(1)
    drain(given.frame(spark), server, ck)
    assert rows(client) == given.expected
    app = f"spark/{query.id}"
    assert client.stream("out").begin(app, 3).last == 3
    for note in (ck / "commits").glob("*3*"):
        note.unlink()
    again = drain(given.frame(spark).mapInArrow(shuffling(fail=False), "id long"), server, ck)
    assert again.id == query.id
    assert (ck / "commits" / "3").exists()
    assert rows(client) == given.expected
    assert staged(client) == 0


def test_tasks_that_fail_after_sending(
    spark: SparkSession, server: ServerProcess, client: Client, given: Input, tmp_path: Path
) -> None:
    """Scenario: every task of every batch fails once after it has sent all its rows, and
    repeats them in another order. Guarantee: each row once, nothing left."""
    frame = given.frame(spark).mapInArrow(shuffling(), "id long")
    drain(frame, server, tmp_path / "ck")
    assert rows(client) == given.expected
    assert staged(client) == 0


def test_a_batch_that_fails_for_good_is_run_again(
    spark: SparkSession, server: ServerProcess, client: Client, given: Input, tmp_path: Path
) -> None:
    """Scenario: one task of the second batch fails for good, the other has sent its rows;
    the query is started again without the defect. Guarantee: the failed batch left nothing
    that is seen; afterwards each row is there once."""
    broken = str(tmp_path / "broken")
    Path(broken).touch()

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import os

        from pyspark import TaskContext

        yield from batches
        task = TaskContext.get()
        where = task and (task.getLocalProperty("streaming.sql.batchId"), task.partitionId())
        if where == ("1", 0) and os.path.exists(broken):
            raise RuntimeError("a defect")

    frame = given.frame(spark).mapInArrow(failing, "id long")
    with pytest.raises(StreamingQueryException, match="a defect"):
        drain(frame, server, tmp_path / "ck")
    assert len(rows(client)) == PER_FILE
    wait_for(lambda: staged(client) == 0, "the stages to be removed")
    Path(broken).unlink()
    drain(frame, server, tmp_path / "ck")
    assert rows(client) == given.expected


@pytest.mark.timeout(300)
def test_a_server_killed_in_the_middle(
    spark: SparkSession, server: ServerProcess, client: Client, given: Input, tmp_path: Path
) -> None:
    """Scenario: kill -9 of the server while a micro-batch is written; it comes back.
    Guarantee: the query doesn't notice, and each row is there once."""
    frame = given.frame(spark).mapInArrow(holding(tmp_path), "id long")

    def crash() -> None:
        wait_for((tmp_path / "reached").exists, "a task to write")
        server.kill()
        (tmp_path / "go").touch()
        server.start()

    with ThreadPoolExecutor(1) as pool:
        crashed = pool.submit(crash)
        drain(frame, server, tmp_path / "ck")
        crashed.result(10)
    assert rows(client) == given.expected


def test_batches_without_rows_and_another_checkpoint(
    spark: SparkSession, server: ServerProcess, client: Client, given: Input, tmp_path: Path
) -> None:
    """Scenario: a query whose filter lets nothing through; one with a new checkpoint beside
    an older one. Guarantee: the first writes nothing at all; the second is another query,
    whose batches aren't taken for those of the first."""
    drain(given.frame(spark).where("id < 0"), server, tmp_path / "empty")
    assert client.streams() == []
    first = drain(given.frame(spark), server, tmp_path / "ck1", app="rates")
    second = drain(given.frame(spark), server, tmp_path / "ck2", app="rates")
    assert first.id != second.id
    assert client.stream("out").begin(f"rates/{second.id}", 0).committed
    assert rows(client) == sorted(given.expected * 2)


def test_what_is_wrong_ends_the_query(
    spark: SparkSession, server: ServerProcess, given: Input, tmp_path: Path
) -> None:
    """Scenario: a wrong option; a server that isn't there. Guarantee: the query ends, and
    its error says what is wrong."""
    with pytest.raises(StreamingQueryException, match="no option 'windowbundels'"):
        drain(given.frame(spark), server, tmp_path / "ck1", windowBundels="1")
    nobody = {"url": "quiver://127.0.0.1:9/out", "connectTimeout": "200ms"}
    with pytest.raises(StreamingQueryException, match="no Quiver server answers at"):
        drain(given.frame(spark), server, tmp_path / "ck2", **nobody)
