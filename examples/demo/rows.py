"""The rows of the demo: each has a number, and everything else follows from it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

STREAM = "telemetry"
SLOT = "Logs"
TASKS = 8
ROWS_PER_BUNDLE = 1_000
LEVELS = ["DEBUG", "INFO", "WARN", "ERROR"]


def expected(ids: pa.Array) -> pa.RecordBatch:
    """The rows with these numbers."""
    milliseconds = _remainder(ids, 900)
    body = pc.binary_join_element_wise(
        "request ", ids.cast(pa.string()), " took ", milliseconds.cast(pa.string()), " ms", ""
    )
    levels = pa.array(LEVELS).take(_remainder(ids, len(LEVELS)))
    return pa.RecordBatch.from_arrays([ids, levels, body], ["id", "level", "body"])


def _remainder(ids: pa.Array, by: int) -> pa.Array:
    return pc.subtract(ids, pc.multiply(pc.divide(ids, by), by))
