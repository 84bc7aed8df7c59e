"""Batches to measure with: numbers and text, the same on every machine."""

from __future__ import annotations

import random
from functools import lru_cache

import pyarrow as pa


@lru_cache
def telemetry(nbytes: int) -> pa.RecordBatch:
    """A batch of about ``nbytes``: ids, values and short texts, as logs have them."""
    rng = random.Random(7)
    rows = max(1, nbytes // 64)
    words = [f"{rng.randrange(16**32):032x}" for _ in range(64)]
    return pa.record_batch(
        {
            "id": pa.array(range(rows), pa.int64()),
            "time": pa.array([rng.randrange(2**60) for _ in range(rows)], pa.timestamp("ns")),
            "value": pa.array([rng.random() for _ in range(rows)], pa.float64()),
            "body": pa.array([words[rng.randrange(64)] for _ in range(rows)], pa.string()),
        }
    )
