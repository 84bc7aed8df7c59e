"""Batches cut to size: by their content alone, so that a repeat is cut the same way."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa


def pieces(batch: pa.RecordBatch, most_bytes: int) -> Iterator[pa.RecordBatch]:
    """A batch in halves of halves, until each is small enough or a single row.

    An empty one is none.
    """
    rows = batch.num_rows
    if rows > 1 and batch.nbytes > most_bytes:
        yield from pieces(batch.slice(0, rows // 2), most_bytes)
        yield from pieces(batch.slice(rows // 2), most_bytes)
    elif rows:
        yield batch
