"""The Spark job of docker-compose.yml: telemetry, put by the tasks themselves, round by round.

``STREAM_URL`` says where to, ``ROWS`` how many in a round, ``ROUNDS`` how many rounds (0: for
ever).  The project's source is on the driver only; what the tasks need travels to the workers.

A round that fails is run again under the same name: what it has put already is recognised by
its keys, and not put twice.
"""

from __future__ import annotations

import os
import secrets
import threading

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

from spark_client import PutFailed, write_bundles

TASKS = 4
BATCH_ROWS = 2_000
PAUSE_SECONDS = 1.0


def telemetry(spark: SparkSession, round_: int, rows: int) -> DataFrame:
    """Log records, the same for the same round."""
    numbers = spark.range(round_ * rows, (round_ + 1) * rows, 1, TASKS)
    level = f.element_at(f.array(*map(f.lit, ["DEBUG", "INFO", "WARN", "ERROR"])), f.col("pick"))
    return numbers.withColumn("pick", (f.hash("id") % 4 + 4) % 4 + 1).select(
        "id", level.alias("level"), f.concat(f.lit("request "), "id").alias("body")
    )


def main() -> None:
    url, rows, rounds = os.environ["STREAM_URL"], int(os.environ["ROWS"]), int(os.environ["ROUNDS"])
    spark = (
        SparkSession.builder.appName("telemetry")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", BATCH_ROWS)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    run, pause = secrets.token_hex(4), threading.Event()
    done = 0
    while not rounds or done < rounds:
        frame = telemetry(spark, done, rows)
        try:
            summary = write_bundles(frame, url, slot="Logs", job=f"{run}-{done}")
        except PutFailed as failure:
            print(f"round {done + 1} comes again: {failure}", flush=True)
        else:
            done += 1
            print(f"round {done}: {summary}", flush=True)
        pause.wait(PAUSE_SECONDS)
    spark.stop()


if __name__ == "__main__":
    main()
