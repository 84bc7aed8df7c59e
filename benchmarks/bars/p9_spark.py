"""P9: a Spark job that writes durably, against the same job with a writer that discards."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.bar import Bar, Pair, Scale
from benchmarks.flight.processes import quiver_server

ROWS = 8_000_000
ROWS_PER_BATCH = 10_000


def _session(directory: Path) -> Any:
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    return (
        SparkSession.builder.master("local[2]")
        .appName("quiver-bench")
        .config("spark.driver.memory", "1g")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.local.dir", str(directory / "spark"))
        .config("spark.sql.warehouse.dir", str(directory / "warehouse"))
        .config("spark.sql.execution.arrow.maxRecordsPerBatch", str(ROWS_PER_BATCH))
        .config("spark.log.level", "ERROR")
        .getOrCreate()
    )


@contextlib.contextmanager
def prepare(directory: Path, scale: Scale) -> Iterator[Pair]:
    from spark_client import RECEIPTS, put_slot

    def discard(batches: Iterator[Any]) -> Iterator[Any]:
        """Reads every row and says how many there were, in the shape of receipts."""
        import pyarrow as pa

        rows = sum(batch.num_rows for batch in batches)
        yield pa.record_batch({"rows": pa.array([rows], pa.int64())})

    rows = 40_000 if scale.is_quick else ROWS
    session = _session(directory)
    try:
        with quiver_server(directory / "root", calls__put_wait=30) as server:
            frame = session.range(rows, numPartitions=2).selectExpr(
                "id",
                "id * 1000 as time",
                "cast(id as double) / 7 as value",
                "concat('message number ', cast(id as string)) as body",
            )
            url = f"quiver://127.0.0.1:{server.port}/spark"

            def timed(job: Callable[[], Any]) -> float:
                began = time.perf_counter()
                job()
                return rows / (time.perf_counter() - began)

            def durable() -> float:
                put = put_slot(url, slot="Logs")
                return timed(lambda: frame.mapInArrow(put, RECEIPTS).count())

            def discarded() -> float:
                return timed(lambda: frame.mapInArrow(discard, "rows long").count())

            discarded()  # workers started, plans compiled
            yield Pair(durable, discarded)
    finally:
        session.stop()


P9 = Bar(
    name="P9",
    what="Spark mapInArrow job that writes durably",
    unit="rows/s",
    reference_name="the same job with a writer that discards",
    prepare=prepare,
    mark=0.8,
    goal=0.95,
    repetitions=9,
    needs="pyspark",
)
