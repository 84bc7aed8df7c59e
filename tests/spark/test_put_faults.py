"""Putting from Spark while things go wrong: killed servers, repeated tasks, wrong everything."""

from __future__ import annotations

import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from flight_service.client import Client, Ref, connect
from spark_client import RECEIPTS, PutFailed, put_slot, write_bundles
from tests.spark.conftest import MakeServer
from tests.wire.process import ServerProcess, free_port

MILLION = 1_000_000


def url(server: ServerProcess, stream: str = "logs") -> str:
    return f"quiver://127.0.0.1:{server.port}/{stream}"


def ids(client: Client) -> Counter[int]:
    """How often each id is in the stream."""
    found: Counter[int] = Counter()
    for batch in client.stream("logs").batches("Logs", ["id"]):
        found.update(batch.column("id").to_pylist())
    return found


@pytest.mark.slow
@pytest.mark.kill
@pytest.mark.timeout(240)
def test_a_million_rows_while_the_server_is_killed(
    spark: SparkSession, make_server: MakeServer
) -> None:
    """Scenario: eight tasks put a million rows; in the middle the server is killed with -9, and
    started again after a while. Guarantee: the job doesn't fail, and every row is there once."""
    server = make_server()
    frame = spark.range(MILLION, numPartitions=8).select(
        "id",
        f.timestamp_millis(f.col("id")).alias("time"),
        f.format_string("request %d took %d ms", f.col("id"), f.col("id") % 900).alias("body"),
    )
    outcome: list[Any] = []

    def job() -> None:
        # Small bundles and a small window: the job must not be over before the server is.
        outcome.append(
            write_bundles(
                frame,
                url(server),
                slot="Logs",
                job="million",
                window_bundles=4,
                bundle_bytes="64KiB",
            )
        )

    thread = threading.Thread(target=job)
    thread.start()
    killed_at = _wait_for_rows(server, MILLION // 10)
    server.kill()
    assert thread.is_alive(), "the job was over before the server was killed"
    server.start()
    thread.join(200)
    assert not thread.is_alive()
    (done,) = outcome
    assert done.rows == MILLION
    assert killed_at < MILLION
    with connect(server.url) as client:
        found = ids(client)
    assert len(found) == MILLION
    assert set(found.values()) == {1}
    assert (min(found), max(found)) == (0, MILLION - 1)


def _wait_for_rows(server: ServerProcess, wanted: int) -> int:
    """Until the stream has so many rows; how many it had."""
    limit = time.monotonic() + 60
    with connect(server.url) as client:
        while time.monotonic() < limit:
            streams = [one["name"] for one in client.streams()]
            if "logs" in streams:
                rows = sum(bundle.rows for bundle in client.stream("logs").read())
                if rows >= wanted:
                    return rows
            client.pause(0.05)
    raise AssertionError("the job did not get going")


def failing_once(frame: DataFrame, marks: Path) -> DataFrame:
    """Receipts handed on, and then, in the first attempt of each task, a failure."""
    where = str(marks)

    def fail(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        from pyspark import TaskContext

        yield from batches
        task = TaskContext.get()
        if task is not None and task.attemptNumber() == 0:
            (Path(where) / str(task.partitionId())).touch()
            raise RuntimeError("after sending, before Spark knew")

    return frame.mapInArrow(fail, RECEIPTS)


def test_a_task_that_fails_after_sending(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Scenario: every task sends everything, then fails, and Spark runs it again. Guarantee:
    the second attempt is answered with what is there; every row is there once."""
    frame = spark.range(4_000, numPartitions=2)
    put = put_slot(url(server), slot="Logs", bundle_bytes="4KiB")
    receipts = failing_once(frame.mapInArrow(put, RECEIPTS), tmp_path).collect()
    assert {path.name for path in tmp_path.iterdir()} >= {"0", "1"}
    assert {row.status for row in receipts} == {"dup"}
    found = ids(client)
    assert len(found) == 4_000
    assert set(found.values()) == {1}


def test_a_repeat_with_other_rows_is_refused(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Scenario: a task whose rows are different each time fails after sending and is run again.
    Guarantee: the job fails, the message says why and points to the sink; nothing is doubled."""

    def random(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import secrets

        for batch in batches:
            yield pa.record_batch({"id": [secrets.randbits(60) for _ in range(batch.num_rows)]})

    frame = spark.range(100, numPartitions=1).mapInArrow(random, "id long")
    put = put_slot(url(server), slot="Logs", job="dice")
    with pytest.raises(PySparkException) as failed:
        failing_once(frame.mapInArrow(put, RECEIPTS), tmp_path).collect()
    said = str(failed.value)
    assert "key_conflict" in said
    assert 'df.write.format("quiver")' in said
    assert sum(ids(client).values()) == 100


@pytest.mark.slow
def test_a_server_without_room_is_waited_for(spark: SparkSession, make_server: MakeServer) -> None:
    """Scenario: a stream whose disk budget is reached in the middle of a job, until a subscriber
    finishes what is there. Guarantee: the job waits, then ends well, nothing lost or doubled."""
    server = make_server(
        {
            "retention.size_cap": "12MiB",
            "wal.max_size": "4MiB",
            "wal.rotation_target": "1MiB",
            "segment.target_size": "1MiB",
            "limits.max_bundle": "1MiB",
        }
    )
    with connect(server.url) as client:
        stream = client.create_stream("logs")
        stream.register("slow")
        kept: dict[Ref, list[int]] = {}  # by ref: a delivery may come twice, a bundle may not
        done = threading.Event()

        def drain() -> None:
            while not (done.is_set() and stream.lag("slow").bundles == 0):
                for bundle in stream.subscribe("slow", follow=False):
                    if "Logs" in bundle:
                        kept[bundle.ref] = bundle["Logs"].column("id").to_pylist()
                    bundle.ack()
                client.pause(0.2)

        frame = spark.range(40_000, numPartitions=2).withColumn(
            "body", f.repeat(f.sha2(f.col("id").cast("string"), 512), 4)
        )
        thread = threading.Thread(target=drain)
        # Nobody drains until the budget has been reached once.
        job: list[Any] = []
        putting = threading.Thread(
            target=lambda: job.append(
                write_bundles(frame, url(server), slot="Logs", bundle_bytes="256KiB")
            )
        )
        putting.start()
        _wait_for_refusals(client)
        thread.start()
        putting.join(90)
        done.set()
        thread.join(60)
    (summary,) = job
    assert summary.rows == 40_000
    seen = Counter(row for rows in kept.values() for row in rows)
    assert len(seen) == 40_000
    assert set(seen.values()) == {1}


def _wait_for_refusals(client: Client) -> None:
    """Until a put of our own is refused for now; it goes through later, with the others."""
    probe = client.stream("logs").writer()
    limit = time.monotonic() + 60
    while time.monotonic() < limit:
        pending = probe.put({"Probe": pa.record_batch({"x": [1]})})
        while not pending.done:
            if probe.waiting_for is not None:
                assert probe.waiting_for.code == "backpressure"
                return
            client.pause(0.02)
    raise AssertionError("the budget was never reached")


# What goes wrong, told at the driver


def failure(frame: DataFrame, where: str, **options: Any) -> tuple[str, float]:
    """What the helper says, and after how long."""
    began = time.monotonic()
    with pytest.raises(PutFailed) as failed:
        write_bundles(frame, where, slot="Logs", **options)
    return str(failed.value), time.monotonic() - began


def test_no_server(spark: SparkSession) -> None:
    """Scenario: nobody listens there. Guarantee: the helper says so within seconds, before any
    job; mapInArrow by hand says the same when its tasks give up."""
    where = f"quiver://127.0.0.1:{free_port()}/logs"
    said, seconds = failure(spark.range(10), where, connect_timeout="1s")
    assert "no Quiver server answers" in said
    assert "Start the server, or correct the url" in said
    assert seconds < 10
    put = put_slot(where, slot="Logs", connect_timeout="500ms")
    with pytest.raises(PySparkException, match="no Quiver server answers"):
        spark.range(10, numPartitions=1).mapInArrow(put, RECEIPTS).collect()


def test_a_server_that_goes_and_does_not_come_back(
    spark: SparkSession, make_server: MakeServer
) -> None:
    """Scenario: the server is killed in the middle and stays away. Guarantee: the job ends with
    a message that says so, after the time it was told to wait."""
    server = make_server()
    pid = server.pid

    def killing(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import contextlib
        import os
        import signal

        for number, batch in enumerate(batches):
            if number == 3:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            yield batch

    frame = spark.range(100_000, numPartitions=1).mapInArrow(killing, "id long")
    said, seconds = failure(frame, url(server), retry_timeout="2s", connect_timeout="2s")
    assert "put into quiver://127.0.0.1" in said
    assert "The job can be run again" in said
    assert seconds < 40


def test_no_stream(spark: SparkSession, make_server: MakeServer) -> None:
    """Scenario: a server that makes no streams by itself. Guarantee: says which and what to do."""
    server = make_server({"server.auto_create": "false"})
    said, _ = failure(spark.range(10), url(server))
    assert "unknown_stream" in said
    assert "Create it first" in said


def test_values_that_do_not_fit(spark: SparkSession, server: ServerProcess) -> None:
    """Scenario: a declared type that can't hold the values, a column that isn't there. Guarantee:
    the message names the column and what is wrong."""
    narrow = pa.schema([("id", pa.uint8())])
    said, _ = failure(spark.range(1_000), url(server), schema=narrow)
    assert "column id: a value of type int64 doesn't fit uint8" in said
    said, _ = failure(spark.range(1_000), url(server), schema=pa.schema([("x", pa.int8())]))
    assert "the frame lacks x and has id besides" in said
    said, _ = failure(spark.range(1_000), url(server), event_time="when")
    assert "there is no column when" in said


def test_a_type_that_arrow_can_not_give(spark: SparkSession, server: ServerProcess) -> None:
    """Scenario: a year-month interval, which Spark can't hand to Python. Guarantee: refused at
    the driver by name, with what to do instead."""
    frame = spark.range(1).select(f.expr("interval '1' month").alias("age"))
    said, _ = failure(frame, url(server))
    assert re.search(r"column age.*interval.*cast", said)
