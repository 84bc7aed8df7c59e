"""The producer: a Spark job that puts rows into a stream, as one of yours would.

``python -m examples.demo.spark_job quiver://host:port/telemetry 1000000``
"""

from __future__ import annotations

import json
import os
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as f

from examples.demo.rows import LEVELS, ROWS_PER_BUNDLE, SLOT, TASKS
from spark_client import write_bundles


def main(url: str, rows: int) -> None:
    """Put that many rows; what was put, as JSON."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", ROWS_PER_BUNDLE)
        .getOrCreate()
    )
    levels = f.array(*(f.lit(level) for level in LEVELS))
    logs = spark.range(rows, numPartitions=TASKS).select(
        "id",
        levels[(f.col("id") % len(LEVELS)).cast("int")].alias("level"),
        f.format_string("request %d took %d ms", f.col("id"), f.col("id") % 900).alias("body"),
    )
    began = time.monotonic()
    done = write_bundles(logs, url, slot=SLOT, window_bundles=16)
    seconds = time.monotonic() - began
    print(json.dumps({"rows": done.rows, "nbytes": done.nbytes, "seconds": seconds}))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
