"""A pipeline: logs come into Quiver, Spark counts errors by the minute, the rates go back.

``make example``, or with a server of yours: ``python examples/telemetry.py --server
quiver://127.0.0.1:8815``.

::

    collector ──▶ stream otap ──▶ Spark, streaming ──▶ stream rates ──▶ Spark, batch ──▶ Parquet
     OTAP logs     Logs, LogAttrs   error rate per       exactly once                     a file
                                    minute and scope

The query runs twice, as if it had been stopped in between and started again: it goes on from
its checkpoint.  At the end every log must have been counted, once.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import signal
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f
from rich.console import Console

from examples.demo.server import ServerProcess
from flight_service.client import Client, connect
from spark_client import register

START_NS = 1_760_000_040 * 10**9
"""A minute begins here."""
MINUTES = 10
BUNDLES = 60
LOGS = 500
SCOPES = ["checkout", "search", "login"]

# The types of OTAP (OpenTelemetry Arrow): unsigned, dictionaries, nanoseconds.
NAME = pa.dictionary(pa.uint8(), pa.string())
LOG_SCHEMA = pa.schema(
    [
        ("id", pa.uint16()),
        ("time_unix_nano", pa.timestamp("ns")),
        ("severity_number", pa.int32()),
        ("scope", pa.struct([("name", pa.string())])),
        ("body", pa.string()),
    ]
)
ATTR_SCHEMA = pa.schema([("parent_id", pa.uint16()), ("key", NAME), ("str", NAME)])


def otap_bundle(number: int, minute: float) -> dict[str, pa.RecordBatch]:
    """Logs of half a minute, and their attributes, as a collector would send them."""
    rng = random.Random(number)
    ids = pa.array(range(LOGS), pa.uint16())
    began = START_NS + round(minute * 60) * 10**9
    micros = sorted(rng.randrange(10_000_000) for _ in range(LOGS))
    logs = [
        ids,
        pa.array([began + 1_000 * one for one in micros], pa.timestamp("ns")),
        pa.array([17 if rng.random() < 0.05 else 9 for _ in range(LOGS)], pa.int32()),
        pa.array([{"name": rng.choice(SCOPES)} for _ in range(LOGS)], LOG_SCHEMA.field(3).type),
        pa.array([f"request {number}/{one}" for one in range(LOGS)]),
    ]
    hosts = [
        ids,
        pa.array(["host"] * LOGS).dictionary_encode().cast(NAME),
        pa.array([f"node-{one % 4}" for one in range(LOGS)]).dictionary_encode().cast(NAME),
    ]
    return {
        "Logs": pa.RecordBatch.from_arrays(logs, schema=LOG_SCHEMA),
        "LogAttrs": pa.RecordBatch.from_arrays(hosts, schema=ATTR_SCHEMA),
    }


def collect(client: Client, stream: str, numbers: range) -> int:
    """Put bundles, as a collector would; how many logs."""
    with client.stream(stream).writer() as writer:
        for number in numbers:
            bundle = otap_bundle(number, MINUTES * number / BUNDLES)
            writer.put(bundle, key=f"collector/{number}")
    return len(numbers) * LOGS


def close_the_last_minute(client: Client, stream: str) -> None:
    """A window is written once something later has come: here, one log of ten minutes after."""
    late = otap_bundle(BUNDLES, MINUTES + 10)["Logs"].slice(0, 1)
    client.stream(stream).put({"Logs": late}, key="collector/late")


def error_rates(logs: DataFrame) -> DataFrame:
    """Logs and errors, by minute and scope."""
    error = f.when(f.col("severity_number") >= 17, 1).otherwise(0)
    return (
        logs.withColumn("time", f.col("time_unix_nano").cast("timestamp"))
        .withWatermark("time", "1 minute")
        .groupBy(f.window("time", "1 minute"), f.col("scope.name").alias("scope"))
        .agg(f.count("*").alias("logs"), f.sum(error).alias("errors"))
        .select(f.col("window.start").alias("minute"), "scope", "logs", "errors")
        .withColumn("error_rate", f.col("errors") / f.col("logs"))
    )


def run_query(spark: SparkSession, source: str, sink: str, checkpoint: str) -> None:
    """Everything that is there now, exactly once; from the checkpoint if there is one."""
    logs = (
        spark.readStream.format("quiver")
        .option("url", source)
        .option("slot", "Logs")
        .option("columns", "time_unix_nano,severity_number,scope")
        .load()
    )
    query = (
        error_rates(logs)
        .writeStream.format("quiver")
        .option("url", sink)
        .option("slot", "Rates")
        .option("checkpointLocation", checkpoint)
        .outputMode("append")
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()


def to_parquet(spark: SparkSession, stream: str, where: str) -> DataFrame:
    """The rates as a table, and as files for everybody else."""
    rates = spark.read.format("quiver").option("slot", "Rates").load(stream)
    rates.coalesce(1).write.mode("overwrite").parquet(where)
    return spark.read.parquet(where)


def start_spark() -> SparkSession:
    """Spark on this machine, quiet, in UTC."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    return (
        SparkSession.builder.master("local[2]")
        .appName("quiver-telemetry")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


@contextlib.contextmanager
def a_server(given: str | None) -> Iterator[str]:
    """The server named, or one of our own for as long as this runs."""
    if given is not None:
        yield given.rstrip("/")
        return
    with tempfile.TemporaryDirectory(prefix="quiver-telemetry-") as root:
        server = ServerProcess(Path(root) / "data")
        server.start()
        try:
            yield f"quiver://127.0.0.1:{server.port}"
        finally:
            server.end(signal.SIGTERM)


def run(given: str | None, out: Path) -> int:
    """The whole pipeline; 0 if every log was counted once."""
    console = Console()
    with a_server(given) as server, connect(server) as client:
        console.print(f"A server at {server}; Spark is starting …")
        spark = start_spark()
        register(spark)
        tag = os.urandom(3).hex()
        otap, rates = f"otap-{tag}", f"rates-{tag}"
        checkpoint = str(out / f"checkpoint-{tag}")

        put = collect(client, otap, range(BUNDLES // 2))
        console.print(f"{put:,} logs are in stream {otap}; the query counts them, and stops")
        run_query(spark, f"{server}/{otap}", f"{server}/{rates}", checkpoint)

        put += collect(client, otap, range(BUNDLES // 2, BUNDLES))
        close_the_last_minute(client, otap)
        console.print(f"{put:,} by now; the query goes on from its checkpoint")
        run_query(spark, f"{server}/{otap}", f"{server}/{rates}", checkpoint)

        parquet = str(out / "rates.parquet")
        table = to_parquet(spark, f"{server}/{rates}", parquet)
        console.print(f"Stream {rates} as Parquet, in {parquet}:")
        table.orderBy("minute", "scope").show(6)
        (total,) = table.agg(f.sum("logs").alias("logs"), f.count("*").alias("rows")).collect()
        twice = table.groupBy("minute", "scope").count().where("count > 1").count()
        spark.stop()
    console.print(f"{put:,} logs put, {total['logs']:,} counted, {twice} rates twice")
    return 0 if total["logs"] == put and not twice else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--server", help="such as quiver://127.0.0.1:8815; else one is started")
    parser.add_argument("--out", type=Path, default=Path("build/telemetry"), help="for the files")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    sys.exit(run(arguments.server, arguments.out))
