"""``df.write.format("quiver")``: exactly once, whatever happens to tasks and servers."""

from __future__ import annotations

import datetime
import decimal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import yaml
from pyspark.errors import AnalysisException, PySparkException
from pyspark.sql import Row, SparkSession
from pyspark.sql import functions as f
from pyspark.sql.types import (
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)

from flight_service.client import BadRequest, Client
from flight_service.server.auth import hash_token
from spark_client import register
from spark_client.sink.cutting import bundles, by_slot
from spark_client.sink.plan import batch_plan, query_plan
from tests.spark.conftest import MakeServer
from tests.spark.sink import holding, rows, shuffling, staged, url, wait_for, writing
from tests.wire.process import ServerProcess

SCHEMA = StructType([StructField("id", LongType())])


@pytest.fixture(autouse=True)
def _registered(spark: SparkSession) -> None:
    register(spark)


def test_all_rows_once_and_empty_partitions(
    spark: SparkSession, server: ServerProcess, client: Client
) -> None:
    """Scenario: partitions with and without rows, a frame without rows, one without
    partitions. Guarantee: the rows are there, and nothing is left behind."""
    frame = spark.range(500, numPartitions=4)
    writing(frame.where("id >= 250"), server).save()
    writing(frame.where("id < 0"), server).save()
    writing(spark.createDataFrame(spark.sparkContext.emptyRDD(), SCHEMA), server).save()
    assert rows(client) == list(range(250, 500))
    assert staged(client) == 0


def test_tasks_that_fail_after_sending_and_order_that_changes(
    spark: SparkSession, server: ServerProcess, client: Client
) -> None:
    """Scenario: every task fails once after all its rows were sent, and its retry has them
    in another order and in other batches. Guarantee: each row once."""
    frame = spark.range(1_000, numPartitions=3).mapInArrow(shuffling(), "id long")
    writing(frame, server, windowBundles=4).save()
    assert rows(client) == list(range(1_000))
    assert staged(client) == 0


def test_a_job_that_fails_leaves_nothing(
    spark: SparkSession, server: ServerProcess, client: Client
) -> None:
    """Scenario: one partition succeeds, one fails for good after sending. Guarantee: the
    job fails, no row is seen, no stage is left."""

    def failing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pyspark import TaskContext

        yield from batches
        task = TaskContext.get()
        if task is not None and task.partitionId() == 1:
            raise RuntimeError("never works")

    frame = spark.range(100, numPartitions=2).mapInArrow(failing, "id long")
    with pytest.raises(PySparkException, match="never works"):
        writing(frame, server).save()
    assert rows(client) == []
    wait_for(lambda: staged(client) == 0, "the stages to be removed")


def test_a_named_write_happens_once(
    spark: SparkSession, server: ServerProcess, client: Client
) -> None:
    """Scenario: a write with app and version, run twice, then the next version. Guarantee:
    the second run writes nothing, though its rows differ; the third is new."""
    for first, version in ((0, 1), (1_000, 1), (100, 2)):
        frame = spark.range(first, first + 10, numPartitions=2)
        writing(frame, server, app="nightly", version=version).save()
    assert rows(client) == [*range(10), *range(100, 110)]
    assert client.stream("out").begin("nightly", 2).committed


@pytest.mark.timeout(300)
def test_a_server_killed_in_the_middle(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Scenario: kill -9 while tasks are writing; the server comes back. Guarantee: the job
    goes on, without a failed task being needed, and each row is there once."""
    frame = spark.range(60_000, numPartitions=2).mapInArrow(holding(tmp_path), "id long")

    def crash() -> None:
        wait_for((tmp_path / "reached").exists, "a task to write")
        server.kill()
        (tmp_path / "go").touch()
        server.start()

    with ThreadPoolExecutor(1) as pool:
        crashed = pool.submit(crash)
        writing(frame, server, bundleBytes="16KiB").save()
        crashed.result(10)
    assert rows(client) == list(range(60_000))
    assert staged(client) == 0


def test_types_and_slots(spark: SparkSession, server: ServerProcess, client: Client) -> None:
    """Scenario: rows of many types, sorted into slots by a column. Guarantee: each slot has
    its rows, values unchanged; the column is not kept."""
    when = datetime.datetime(2026, 1, 2, 3, 4, 5, 678_901, datetime.UTC)
    given = {
        "n": 7,
        "x": 1.5,
        "text": "ä",
        "raw": bytearray(b"\x00\xff"),
        "day": datetime.date(2026, 1, 2),
        "money": decimal.Decimal("12345.678900"),
        "many": [1, None, 3],
        "inner": Row(a=1, b="b"),
        "map": {"k": 2},
        "nothing": None,
    }
    typed = (
        "n int, x double, text string, raw binary, day date, money decimal(20,6),"
        " many array<long>, inner struct<a: long, b: string>, map map<string, int>,"
        " nothing string"
    )
    frame = (
        spark.createDataFrame([Row(**given)] * 3, typed)
        .withColumn("at", f.lit(when))
        .withColumn("where", f.element_at(f.array(f.lit("A"), f.lit("B")), f.lit(2)))
    )
    writing(frame, server, slotColumn="where").save()
    writing(frame.withColumn("where", f.lit("A")), server, slotColumn="where").save()
    found: Counter[str] = Counter()
    for bundle in client.stream("out").read():
        for slot, batch in bundle.items():
            found[slot] += batch.num_rows
            assert "where" not in batch.schema.names
            expected = {**given, "raw": b"\x00\xff", "inner": {"a": 1, "b": "b"}}
            expected |= {"map": [("k", 2)], "at": when}
            assert batch.to_pylist() == [expected] * batch.num_rows
    assert found == {"A": 3, "B": 3}


def test_bundles_are_cut_to_size(
    spark: SparkSession, server: ServerProcess, client: Client
) -> None:
    """Scenario: a batch larger than bundleBytes. Guarantee: several bundles, in order."""
    writing(spark.range(4_000, numPartitions=1), server, bundleBytes="8KiB").save()
    sizes = [one["Rows"].num_rows for one in client.stream("out").read()]
    assert len(sizes) == 4
    assert [n for one in client.stream("out").read() for n in one["Rows"]["id"].to_pylist()] == [
        *range(4_000)
    ]


# What goes wrong, said at the driver


def test_only_append(spark: SparkSession) -> None:
    """Scenario: every other save mode. Guarantee: refused, with the one that works, before
    a server is asked."""
    for mode in ("overwrite", "errorifexists", "ignore"):
        frame = spark.range(1).write.format("quiver").mode(mode)
        with pytest.raises(AnalysisException, match=r"(?i)append"):
            frame.save("quiver://127.0.0.1:9/out")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"slott": "x"}, "no option 'slott'. Did you mean slot"),
        ({"slot": "a/b"}, "not a valid slot name"),
        ({"slot": "a", "slotColumn": "id"}, "both given"),
        ({"slotColumn": "nope"}, "none of the columns: id"),
        ({"slotColumn": "id"}, "must hold text"),
        ({"version": "1"}, "say which, with the option app"),
        ({"version": "-1", "app": "a"}, "version takes a whole number"),
        ({"windowBytes": "lots"}, "windowBytes takes a size"),
        ({"subscriber": "s"}, "subscriber"),
        ({"url": "http://h/s"}, "not the place of a stream"),
        ({"url": ""}, "url takes text"),
    ],
)
def test_wrong_options(options: dict[str, str], said: str) -> None:
    """Scenario: options that are wrong, or mean nothing for a write. Guarantee: refused
    before anything is asked of a server, in words that help."""
    given = {"url": "quiver://127.0.0.1:1/out", "connectTimeout": "100ms", **options}
    with pytest.raises(BadRequest) as caught:
        batch_plan(given, SCHEMA, False)
    assert said in caught.value.message


def test_streams_are_only_added_to_and_have_no_version() -> None:
    """Scenario: complete mode, and a version for a query. Guarantee: refused."""
    with pytest.raises(BadRequest, match="append"):
        query_plan({"url": "quiver://h/s"}, SCHEMA, True)
    with pytest.raises(BadRequest, match="version means nothing for writeStream"):
        query_plan({"url": "quiver://h/s", "app": "a", "version": "1"}, SCHEMA, False)


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        (StructType([StructField("i", YearMonthIntervalType())]), "column i is interval"),
        (
            StructType([StructField("s", StructType([StructField("i", YearMonthIntervalType())]))]),
            "column s.i is interval",
        ),
        (StructType([]), "no columns"),
        (
            StructType([StructField("a", IntegerType()), StructField("a", StringType())]),
            "column a comes twice",
        ),
    ],
)
def test_schemas_that_can_not_be_written(schema: StructType, said: str) -> None:
    """Scenario: types Spark can't hand over, no columns, one name twice. Guarantee: refused
    with the column's name, before the job."""
    with pytest.raises(BadRequest, match=said):
        query_plan({"url": "quiver://h/s"}, schema, False)


def test_rows_by_slot() -> None:
    """Scenario: slots from a column: some null, some no names. Guarantee: rows where they
    belong; bad ones refused with the column's name."""
    batch = pa.record_batch({"s": ["a", "b", "a"], "n": [1, 2, 3]})
    found = by_slot(batch, "s")
    assert {slot: one["n"].to_pylist() for slot, one in found.items()} == {"a": [1, 3], "b": [2]}
    for bad in (None, "a/b", ""):
        with pytest.raises(BadRequest, match="column s"):
            by_slot(pa.record_batch({"s": pa.array([bad], pa.string()), "n": [1]}), "s")
    assert list(bundles(batch.slice(0, 0), "Rows", None, 100)) == []


def test_a_server_that_is_not_there(spark: SparkSession) -> None:
    """Scenario: nobody listens. Guarantee: the driver says so, soon, and no task runs."""
    frame = spark.range(1).write.format("quiver").mode("append")
    with pytest.raises(PySparkException, match="no Quiver server answers at"):
        frame.option("connectTimeout", "500ms").save("quiver://127.0.0.1:9/out")


def test_a_stream_that_is_not_there_and_a_wrong_token(
    spark: SparkSession, make_server: MakeServer, tmp_path: Path
) -> None:
    """Scenario: streams aren't made on demand; a token nobody knows, one without the right,
    a right one. Guarantee: each refusal in words at the driver; the right one works."""
    grants: dict[str, Any] = {
        "writer": ["put", "admin", "read"],
        "reader": ["read"],
    }
    book = {
        "principals": {
            name: {
                "token": hash_token(f"{name}-" + "x" * 40),
                "grants": [{"verbs": verbs, "streams": ["*"]}],
            }
            for name, verbs in grants.items()
        }
    }
    (tmp_path / "auth.yaml").write_text(yaml.safe_dump(book))
    server = make_server({"server.auto_create": "false", "auth.file": str(tmp_path / "auth.yaml")})
    for token, said in (
        ("nobody-" + "x" * 40, "unauthenticated"),
        ("reader-" + "x" * 40, "forbidden"),
        ("writer-" + "x" * 40, "unknown_stream"),
    ):
        with pytest.raises(PySparkException) as caught:
            writing(spark.range(1), server, token=token).save()
        assert said in str(caught.value)
        assert token not in str(caught.value)
    from flight_service.client import connect

    with connect(server.url, token="writer-" + "x" * 40) as client:
        client.create_stream("out")
        writing(spark.range(3), server, token="writer-" + "x" * 40).save()
        assert rows(client) == [0, 1, 2]
    assert url(server).endswith("/out")
