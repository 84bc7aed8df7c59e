"""A Spark job whose tasks put rows straight into Quiver.

Every row carries its number, so that a lost or doubled one is seen.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from spark_client import write_bundles

BATCH_ROWS = 500


def looked_at(pace: float, look: bool) -> Any:
    """For ``mapInArrow``: take some time, and say where this runs and what is installed there.

    Only if asked to: rows that name their host are others when a task runs again elsewhere.
    """

    def pass_on(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import importlib.util
        import socket
        import threading

        ours = ("quiver", "flight_service", "spark_client", "pydantic", "structlog", "pandas")
        found = ",".join(name for name in ours if importlib.util.find_spec(name) is not None)
        seen = (socket.gethostname(), found) if look else ("", "")
        work = threading.Event()
        for batch in batches:
            work.wait(pace)
            columns = [batch.column(0), *(pa.array([one] * batch.num_rows) for one in seen)]
            yield pa.RecordBatch.from_arrays(columns, names=["id", "host", "found"])

    return pass_on


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("url")
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--tasks", type=int, default=8)
    parser.add_argument("--pace", type=float, default=0.0, help="seconds per batch")
    parser.add_argument("--look", action="store_true", help="note hosts and what is there")
    given = parser.parse_args()
    spark = (
        SparkSession.builder.appName("integration")
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", BATCH_ROWS)
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("WARN")
    numbers = spark.range(0, given.rows, 1, given.tasks)
    columns = "id long, host string, found string"
    rows = numbers.mapInArrow(looked_at(given.pace, given.look), columns)
    summary = write_bundles(rows, given.url, slot="Logs", retry_timeout="2m")
    said = {"done": summary.rows, "bundles": summary.bundles}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    spark.stop()


if __name__ == "__main__":
    main()
