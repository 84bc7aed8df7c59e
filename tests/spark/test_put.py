"""Putting from Spark: what arrives, and what is said about it."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from flight_service.client import BadRequest, Client
from spark_client import (
    RECEIPTS,
    Nested,
    put_bundles,
    put_cogroups,
    put_slot,
    write_bundles,
)
from tests.wire.process import ServerProcess


def url(server: ServerProcess, stream: str = "logs") -> str:
    return f"quiver://127.0.0.1:{server.port}/{stream}"


def frame(spark: SparkSession, rows: int = 1_000, partitions: int = 4) -> DataFrame:
    """Rows that can be told apart."""
    return spark.range(rows, numPartitions=partitions).select(
        "id", f.concat(f.lit("line "), f.col("id")).alias("body")
    )


def rows_in(client: Client) -> int:
    """Rows of all slots, counted by reading them."""
    return sum(bundle.rows for bundle in client.stream("logs").read())


def test_every_row_arrives_and_has_a_receipt(
    spark: SparkSession, server: ServerProcess, client: Client
) -> None:
    """Scenario: a frame of four partitions, put by mapInArrow. Guarantee: every row is in the
    stream once; a receipt per bundle says where, and its ref leads there."""
    put = put_slot(url(server), slot="Logs", job="first", bundle_bytes="4KiB")
    receipts = frame(spark).mapInArrow(put, RECEIPTS).collect()

    stream = client.stream("logs")
    table = pa.Table.from_batches(stream.batches("Logs"))
    assert sorted(table["id"].to_pylist()) == list(range(1_000))
    assert table.schema.types == [pa.int64(), pa.string()]
    assert sum(one.rows for one in receipts) == 1_000
    assert {one.status for one in receipts} == {"ok"}
    assert {one.partition for one in receipts} == {0, 1, 2, 3}
    for one in receipts:
        segment, bundle = one.ref.split(".")
        (found,) = stream.get((int(segment), int(bundle)))
        assert found["Logs"].num_rows == one.rows
        assert found["Logs"].nbytes == one.bytes
        assert (found.key, found.sequence) == (one.key, one.sequence)
    keys = sorted(one.key for one in receipts if one.partition == 2)
    assert keys == sorted(f"first/2/{ordinal}" for ordinal in range(len(keys)))
    assert len(keys) > 1


def test_a_second_action_puts_nothing(
    spark: SparkSession, server: ServerProcess, client: Client
) -> None:
    """Scenario: mapInArrow is lazy, and two actions run it twice. Guarantee: the second finds
    all of it there, says so, and nothing is doubled."""
    receipts = frame(spark).mapInArrow(put_slot(url(server), slot="Logs"), RECEIPTS)
    assert {row.status for row in receipts.collect()} == {"ok"}
    assert {row.status for row in receipts.collect()} == {"dup"}
    assert rows_in(client) == 1_000


def test_write_bundles_runs_once_and_sums_up(
    spark: SparkSession, server: ServerProcess, client: Client
) -> None:
    """Scenario: the helper, then again with the same job after a supposed failure. Guarantee:
    one run each, the summary adds up, the second finds everything there."""
    done = write_bundles(frame(spark), url(server), slot="Logs", job="nightly")
    assert (done.rows, done.partitions, done.duplicates) == (1_000, 4, 0)
    assert (done.bundles, done.job) == (4, "nightly")
    again = write_bundles(frame(spark), url(server), slot="Logs", job="nightly")
    assert (again.bundles, again.duplicates) == (4, 4)
    other = write_bundles(frame(spark, 10, 1), url(server), slot="Logs")
    assert (other.bundles, other.duplicates) == (1, 0)
    assert rows_in(client) == 1_010
    assert str(again).endswith("(4 were there already)")


def test_an_empty_frame_is_nothing(spark: SparkSession, server: ServerProcess) -> None:
    """Scenario: no rows at all, and partitions without rows. Guarantee: no bundles for them."""
    assert write_bundles(frame(spark, 0, 3), url(server), slot="Logs").bundles == 0
    assert write_bundles(frame(spark, 2, 8), url(server), slot="Logs").bundles == 2


def test_several_slots_from_one_frame(
    spark: SparkSession, server: ServerProcess, client: Client
) -> None:
    """Scenario: logs whose attributes lie in a column of arrays of structs. Guarantee: each
    bundle holds its logs and exactly their attributes, with the parent's id."""
    logs = spark.range(100, numPartitions=2).select(
        f.col("id"),
        f.concat(f.lit("line "), f.col("id")).alias("body"),
        f.expr(
            "transform(sequence(1, cast(id % 3 as int), 1),"
            " n -> named_struct('key', concat('k', n), 'value', id * n))"
        ).alias("attributes"),
    )
    logs = logs.withColumn("attributes", f.when(f.col("id") % 3 > 0, f.col("attributes")))
    slots: dict[str, Sequence[str] | Nested] = {
        "Logs": ["id", "body"],
        "LogAttrs": Nested("attributes", keys={"id": "parent_id"}),
    }
    receipts = logs.mapInArrow(put_bundles(url(server), slots), RECEIPTS).collect()
    assert sum(row.rows for row in receipts) == 100 + 99

    attributes = []
    for bundle in client.stream("logs").read():
        ids = set(bundle["Logs"].column("id").to_pylist())
        assert set(bundle["LogAttrs"].column("parent_id").to_pylist()) <= ids
        assert bundle["Logs"].schema.names == ["id", "body"]
        attributes += bundle["LogAttrs"].to_pylist()
    assert sorted(tuple(one.values()) for one in attributes) == sorted(
        (id_, f"k{n}", id_ * n) for id_ in range(100) for n in range(1, id_ % 3 + 1)
    )


def test_parents_and_children_from_two_frames(
    spark: SparkSession, server: ServerProcess, client: Client
) -> None:
    """Scenario: two frames, co-grouped, one group with parents alone and one with children
    alone. Guarantee: a bundle per group, both tables together in it."""
    logs = spark.range(40).select("id", (f.col("id") % 4).alias("batch"))
    attributes = spark.range(80).select(
        (f.col("id") % 40).alias("parent_id"),
        (f.col("id") % 4 + f.lit(1)).alias("batch"),
        f.col("id").alias("value"),
    )
    done = write_bundles(
        {"Logs": logs, "LogAttrs": attributes}, url(server), by="batch", job="pairs"
    )
    assert (done.bundles, done.rows) == (5, 120)

    seen = {}
    for bundle in client.stream("logs").read():
        batches = {one for slot in bundle for one in bundle[slot].column("batch").to_pylist()}
        (batch,) = batches
        seen[batch] = {slot: bundle[slot].num_rows for slot in bundle}
    both = {"Logs": 10, "LogAttrs": 20}
    assert seen == {0: {"Logs": 10}, 1: both, 2: both, 3: both, 4: {"LogAttrs": 20}}
    again = write_bundles(
        {"Logs": logs.sort("id"), "LogAttrs": attributes}, url(server), by="batch", job="other"
    )
    assert again.duplicates == 0


def test_groups_keep_their_names_in_other_tasks(
    spark: SparkSession, server: ServerProcess, client: Client
) -> None:
    """Scenario: the same groups worked on by another number of tasks. Guarantee: the same
    keys, so nothing is doubled."""
    put = put_cogroups(url(server), "A", "B", job="groups")

    def run(partitions: int) -> list[str]:
        spark.conf.set("spark.sql.shuffle.partitions", partitions)
        frame = spark.range(6, numPartitions=1).withColumn("g", f.col("id") % 3)
        # One row of each side per group and order: their order is no question.
        left, right = frame.where("id < 3"), frame.where("id >= 3")
        both = left.groupBy("g").cogroup(right.groupBy("g"))
        return [row.status for row in both.applyInArrow(put, RECEIPTS).collect()]

    try:
        assert run(2) == ["ok"] * 3
        assert run(3) == ["dup"] * 3
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", 2)
    assert rows_in(client) == 6


def test_a_declared_schema_is_what_the_stream_holds(
    spark: SparkSession, server: ServerProcess, client: Client
) -> None:
    """Scenario: OTAP's types, declared: unsigned, dictionaries, nanoseconds, fixed-size binary.
    Guarantee: the stream holds those, and the same values; attributes and times are kept."""
    schema = pa.schema(
        [
            ("id", pa.uint16()),
            ("time", pa.timestamp("ns")),
            ("severity", pa.dictionary(pa.uint8(), pa.string())),
            ("trace", pa.binary(4)),
        ]
    )
    logs = spark.range(3, numPartitions=1).select(
        f.col("id"),
        f.timestamp_seconds(f.col("id")).cast("timestamp_ntz").alias("time"),
        f.lit("WARN").alias("severity"),
        f.unhex(f.lit("00c0ffee")).alias("trace"),
    )
    write_bundles(
        logs,
        url(server),
        slot="Logs",
        schema=schema,
        attributes={"source": "spark"},
        event_time="time",
    )
    (bundle,) = client.stream("logs").read()
    assert bundle["Logs"].schema == schema
    assert bundle.attributes == {"source": "spark"}
    assert bundle.info.event_time == (0, 2_000_000_000)
    assert bundle["Logs"].to_pylist()[2] == {
        "id": 2,
        "time": dt.datetime(1970, 1, 1, 0, 0, 2),  # noqa: DTZ001 - it has no zone
        "severity": "WARN",
        "trace": b"\x00\xc0\xff\xee",
    }


def test_a_streaming_batch_is_put_once(
    spark: SparkSession, server: ServerProcess, client: Client, tmp_path: Path
) -> None:
    """Scenario: foreachBatch puts, then the query's log loses the commit of its last batch, as
    a driver that dies at that moment leaves it, and starts again. Guarantee: the batch is sent
    again under the same keys, and nothing is doubled."""
    source, checkpoint = tmp_path / "in", tmp_path / "checkpoint"
    frame(spark, 100, 2).write.parquet(str(source))
    where = url(server)
    statuses: list[set[str]] = []
    repeats: list[float] = []

    def put(batch: DataFrame, number: int) -> None:
        receipts = batch.mapInArrow(put_slot(where, slot="Logs"), RECEIPTS)
        statuses.append({row.status for row in receipts.collect()})
        again = write_bundles(batch, where, slot="Copy")
        repeats.append(again.duplicates / again.bundles)

    def run() -> None:
        lines = spark.readStream.schema("id long, body string").parquet(str(source))
        query = lines.writeStream.foreachBatch(put).option("checkpointLocation", str(checkpoint))
        query.trigger(availableNow=True).start().awaitTermination()

    run()
    for name in ("0", ".0.crc"):
        (checkpoint / "commits" / name).unlink()
    run()
    assert statuses == [{"ok"}, {"dup"}]
    assert repeats == [0.0, 1.0]
    assert rows_in(client) == 200
    keys = [bundle.key or "" for bundle in client.stream("logs").read()]
    assert len({key.partition("/")[0] for key in keys}) == 1  # the query's id
    assert {key.partition("/")[2] for key in keys} == {
        f"0/{slot}/{partition}/0" for slot in ("Logs", "Copy") for partition in (0, 1)
    }


def test_memory_of_a_task_is_bounded(spark: SparkSession, server: ServerProcess) -> None:
    """Scenario: 200 MB put by one task with a small window. Guarantee: its process never grows
    by half of that."""
    put = put_slot(url(server), slot="Big", window_bytes="4MiB")

    def measured(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from pathlib import Path

        def peak() -> int:
            lines = Path("/proc/self/status").read_text().splitlines()
            return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM"))

        def made() -> Iterator[pa.RecordBatch]:
            for _ in batches:
                for number in range(200):
                    blob = number.to_bytes(4, "little") * (1 << 18)
                    yield pa.record_batch({"blob": pa.array([blob])})

        Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        before = peak()
        *_, one = put(made())
        grown = peak() - before
        field = one.schema.field("rows")
        yield one.slice(0, 1).set_column(4, field, pa.array([grown], pa.int64()))

    (row,) = spark.range(1, numPartitions=1).mapInArrow(measured, RECEIPTS).collect()
    assert row.rows < 100 << 10  # KiB


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"retry_timout": "1m"}, "Did you mean retryTimeout"),
        ({"window_bundles": 0}, "windowBundles takes a whole number from 1"),
        ({"retry_timeout": 30}, "retryTimeout takes a time with its unit"),
        ({"timestamp_mode": "us"}, "timestampMode means nothing for put"),
        ({"job": " "}, "job is empty"),
        ({"token_file": "/nowhere/token"}, "tokenFile: /nowhere/token can't be read"),
    ],
)
def test_wrong_options_are_told_before_anything_runs(
    arguments: dict[str, object], says: str
) -> None:
    """Scenario: slips in the arguments. Guarantee: refused at once, naming the right way."""
    with pytest.raises(BadRequest, match=says):
        put_slot("quiver://127.0.0.1/logs", "Logs", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("place", "says"),
    [
        ("127.0.0.1:8815/logs", "write quiver://host:port/stream"),
        ("http://127.0.0.1:8815/logs", "write quiver://host:port/stream"),
        ("quiver://127.0.0.1:8815", "names no stream"),
        ("quiver://127.0.0.1:8815/logs/Logs", "a slot is an option of its own"),
        ("quiver://127.0.0.1:88150/logs", "no valid port"),
        ("quiver://host/lo gs", "not a valid stream name"),
    ],
)
def test_wrong_places_are_told(place: str, says: str) -> None:
    """Scenario: slips in the url. Guarantee: refused at once, saying how it is written."""
    with pytest.raises(BadRequest, match=says):
        put_slot(place, "Logs")


def test_a_url_with_a_secret_is_refused_and_not_repeated() -> None:
    """Scenario: a token in the url. Guarantee: refused, since urls are shown; the message
    doesn't hold it."""
    for place in ("quiver://hunter2@host/logs", "quiver://host/logs?token=hunter2"):
        with pytest.raises(BadRequest, match="QUIVER_TOKEN") as refused:
            put_slot(place, "Logs")
        assert "hunter2" not in str(refused.value)


def test_frames_and_slots_must_fit_together(spark: SparkSession) -> None:
    """Scenario: helper calls that can't mean anything. Guarantee: refused, saying what to do."""
    here = "quiver://127.0.0.1:1/logs"
    logs = frame(spark, 1)
    for call, says in (
        (lambda: write_bundles(logs, here), "slot=… or slots"),
        (lambda: write_bundles({"A": logs}, here, by="id"), "give two"),
        (lambda: write_bundles({"A": logs, "B": logs}, here), "by=…"),
        (lambda: put_bundles(here, {}), "no slots"),
        (lambda: put_bundles(here, {"A": ["id"]}, schemas={"B": pa.schema([])}), "none of the"),
        (lambda: put_cogroups(here, "A", "A"), "name two"),
    ):
        with pytest.raises(BadRequest, match=says):
            call()
