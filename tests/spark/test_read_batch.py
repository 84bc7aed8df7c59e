"""``spark.read.format("quiver")``: everything that was put, on workers that have none of this."""

from __future__ import annotations

import re
import urllib.request
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession

from flight_service.client import Client
from spark_client.source import register
from tests.wire.process import ServerProcess

ROW = pa.struct([("code", pa.uint16()), ("tags", pa.list_(pa.string()))])
FIRST = pa.record_batch(
    {
        "n": pa.array([1, 2], pa.int32()),
        "level": pa.array(["info", None]).dictionary_encode(),
        "at": pa.array([1_000, 2_000], pa.timestamp("ms", "UTC")),
        "inner": pa.array([{"code": 7, "tags": ["a", "b"]}, None], ROW),
    }
)
SECOND = pa.record_batch(
    {
        "at": pa.array([3_000_000_000, None], pa.timestamp("ns", "Europe/Berlin")),
        "n": pa.array([2**40, -1], pa.int64()),
        "inner": pa.array(
            [{"tags": ["c"], "extra": {"k": 1.5}}, {"tags": None, "extra": None}],
            pa.struct(
                [
                    ("tags", pa.large_list(pa.large_string())),
                    ("extra", pa.map_(pa.string(), pa.float32())),
                ]
            ),
        ),
        "price": pa.array([Decimal("1.50"), None], pa.decimal128(10, 2)),
    }
)
ATTRS = pa.record_batch({"id": pa.array([1, 2, 3], pa.uint64()), "key": ["host"] * 3})


def at(seconds: float) -> datetime:
    """As Spark gives instants to a session in UTC."""
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


ROWS = [
    (1, "info", at(1), (7, ["a", "b"], None), None),
    (2, None, at(2), None, None),
    (2**40, None, at(3), (None, ["c"], {"k": 1.5}), Decimal("1.50")),
    (-1, None, None, (None, None, None), None),
]


@pytest.fixture
def url(server: ServerProcess, spark: SparkSession) -> str:
    register(spark)
    return f"quiver://127.0.0.1:{server.port}/telemetry"


def read(spark: SparkSession, url: str, **options: Any) -> DataFrame:
    reader = spark.read.format("quiver").option("url", url)
    for name, value in options.items():
        reader = reader.option(name, value)
    return reader.load()


def plain(frame: DataFrame) -> list[tuple[Any, ...]]:
    """Rows as plain values: structs as tuples."""

    def value(one: Any) -> Any:
        return tuple(value(part) for part in one) if isinstance(one, tuple) else one

    return [tuple(value(one) for one in row) for row in frame.collect()]


def test_a_drifting_nested_stream_of_several_slots(
    spark: SparkSession, client: Client, url: str
) -> None:
    """Scenario: columns come, go and widen from bundle to bundle, some are nested or encoded,
    some bundles lack the slot; part is in files, part in memory. Guarantee: every row once, in
    order, equal to what was put; the schema is the union, with the widest types; other slots
    are read on their own; and the frame gives the same again."""
    stream = client.stream("telemetry")
    stream.put({"Logs": FIRST, "Attrs": ATTRS})
    stream.put({"Attrs": ATTRS.slice(0, 1)})
    stream.flush()
    stream.put({"Logs": SECOND})
    frame = read(spark, url, slot="Logs")
    assert dict(frame.dtypes) == {
        "n": "bigint",
        "level": "string",
        "at": "timestamp",
        "inner": "struct<code:int,tags:array<string>,extra:map<string,float>>",
        "price": "decimal(10,2)",
    }
    assert plain(frame) == ROWS
    assert plain(frame) == ROWS
    attrs = read(spark, url, slot="Attrs")
    assert attrs.count() == 4
    assert {tuple(row) for row in attrs.collect()} == {(Decimal(n), "host") for n in (1, 2, 3)}
    with_filters = frame.where("n > 0").union(frame.where("n <= 0"))
    assert with_filters.count() == 4
    assert frame.count() == 4


def test_metadata_projection_and_many_tasks(
    spark: SparkSession, client: Client, server: ServerProcess, url: str
) -> None:
    """Scenario: wide bundles; one narrow column is read, with metadata, by several tasks.
    Guarantee: the rows are right, each knows its bundle, and the server's own counter shows
    that it sent far less than for the whole."""
    stream = client.stream("telemetry")
    wide = pa.record_batch({"n": [1, 2], "blob": [bytes(20_000), bytes(20_000)]})
    put = [stream.put({"Logs": wide}) for _ in range(12)]

    def sent() -> int:
        page = urllib.request.urlopen(f"http://127.0.0.1:{server.http_port}/metrics").read()
        found = re.findall(rb'quiver_sent_bytes_total{stream="telemetry"} (\S+)', page)
        return int(float(found[0])) if found else 0

    whole = read(spark, url)
    assert whole.count() == 24
    all_of_it = sent()
    assert all_of_it > 12 * 40_000
    frame = read(spark, url, columns="n", includeMetadata="true", minPartitions="4")
    rows = frame.collect()
    assert sent() - all_of_it < all_of_it / 50
    assert frame.columns == ["n", "_ref", "_sequence", "_ingested_at", "_slot"]
    assert [tuple(row._ref) for row in rows[::2]] == [one.ref for one in put]
    assert [row._sequence for row in rows[::2]] == [one.sequence for one in put]
    assert {row._slot for row in rows} == {"Logs"}
    taken = stream.get(put[0].ref)[0].ingestion_ts_ns
    assert taken is not None
    assert rows[0]._ingested_at == at(taken // 1000 / 1e6)
    assert frame.rdd.getNumPartitions() >= 4
    by_schema = spark.read.format("quiver").schema("n long, other string").option("slot", "Logs")
    start = sent()
    assert plain(by_schema.load(url).limit(1)) == [(1, None)]
    assert sent() - start < all_of_it / 50


def test_ranges(spark: SparkSession, client: Client, url: str) -> None:
    """Scenario: parts of a stream, by position and by time, and none at all. Guarantee: the
    start is in, the end is out; an empty range is an empty frame."""
    stream = client.stream("telemetry")
    put = []
    for n in range(6):
        put.append(stream.put({"Logs": pa.record_batch({"n": [n]})}))
        stream.flush()
    times = [one.ingestion_ts_ns or 0 for one in stream.get(*[one.ref for one in put])]

    def numbers(**options: Any) -> list[int]:
        return [row.n for row in read(spark, url, **options).collect()]

    first, last = str(put[2].ref), f"[{put[4].ref.segment}, {put[4].ref.bundle}]"
    assert numbers(startingOffsets=first, endingOffsets=last) == [2, 3]
    assert numbers(startingOffsets="earliest", endingOffsets="latest") == list(range(6))
    # Times are in milliseconds: the range may begin within one.
    since, until = -(-times[1] // 1_000_000), -(-times[4] // 1_000_000)
    expected = [n for n in range(6) if since * 1_000_000 <= times[n] < until * 1_000_000]
    assert numbers(startingTimestamp=str(since), endingTimestamp=str(until)) == expected
    later = datetime.fromtimestamp(times[5] / 1e9 + 3600, UTC).isoformat()
    assert numbers(startingTimestamp=later) == []
    assert numbers(endingOffsets="0.0") == []


def test_whole_bundles(spark: SparkSession, client: Client, url: str) -> None:
    """Scenario: bundle mode, with types that Spark has none for. Guarantee: every slot of every
    bundle, byte for byte what Arrow needs to give the batch back, with all that is known."""
    stream = client.stream("telemetry")
    union = pa.UnionArray.from_sparse(
        pa.array([0, 1], pa.int8()), [pa.array([1, 2]), pa.array(["a", "b"])]
    )
    odd = pa.RecordBatch.from_arrays(
        [union, pa.array([b"12", b"34"], pa.binary(2))],
        schema=pa.schema([("u", union.type), ("f", pa.binary(2))], {"who": "me"}),
    )
    receipt = stream.put(
        {"Odd": odd, "Attrs": ATTRS}, key="k", attributes={"a": "b"}, event_time=(1, 2)
    )
    rows = read(spark, url, mode="bundle").collect()
    assert [row.slot for row in rows] == ["Odd", "Attrs"]
    batches = [pa.ipc.open_stream(bytes(row.ipc)).read_next_batch() for row in rows]
    assert batches[0].equals(odd, check_metadata=True)
    assert batches[1].equals(ATTRS)
    assert {(tuple(row.ref), row.sequence, row.key) for row in rows} == {
        (receipt.ref, receipt.sequence, "k")
    }
    assert rows[0].attributes == {"a": "b"}
    assert tuple(rows[0].event_time) == (1, 2)
    assert [row.slot for row in read(spark, url, mode="bundle", slot="Attrs").collect()] == [
        "Attrs"
    ]


def test_a_frame_pins_its_bundles(spark: SparkSession, client: Client, url: str) -> None:
    """Scenario: a frame was used once; then more is put, and later part of it is deleted.
    Guarantee: it stays the same; once its bundles are gone it fails and says what to do, or
    skips them if told to."""
    stream = client.stream("telemetry")
    refs = [stream.put({"Logs": FIRST}).ref for _ in range(2)]
    stream.flush()
    frame = read(spark, url)
    lenient = read(spark, url, failOnDataLoss="false")
    assert (frame.count(), lenient.count()) == (4, 4)
    stream.put({"Logs": FIRST})
    assert (frame.count(), read(spark, url).count()) == (4, 6)
    stream.register("other")
    stream.ack("other", refs, durable=True)
    stream.maintain()
    with pytest.raises(Exception, match=r"not here any more.*load it again"):
        frame.count()
    assert (lenient.count(), read(spark, url).count()) == (0, 2)
    with pytest.raises(Exception, match=r"startingOffsets is 0\.0, and what is left begins at"):
        read(spark, url, startingOffsets="0.0").count()


def test_a_column_that_is_new(spark: SparkSession, client: Client, url: str) -> None:
    """Scenario: a frame is loaded, then a bundle brings columns it doesn't know, on top and
    inside a struct. Guarantee: an error that names them; or they are left out if told to."""
    stream = client.stream("telemetry")
    stream.put({"Logs": pa.record_batch({"s": [{"a": 1}]})})
    strict, lenient = read(spark, url), read(spark, url, newColumns="ignore")
    stream.put({"Logs": pa.record_batch({"s": [{"a": 2, "b": 3}], "t": ["x"]})})
    with pytest.raises(Exception, match=r"bundle 0\.1, slot Logs: s\.b, t: new since"):
        strict.collect()
    assert plain(lenient) == [((1,),), ((2,),)]
    assert plain(read(spark, url)) == [((1, None), None), ((2, 3), "x")]
