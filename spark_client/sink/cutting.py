"""Spark's record batches as bundles: not too large, rows in the slots they are for."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
import pyarrow.compute as pc

from flight_service.client.errors import BadRequest
from flight_service.protocol.errors import ServiceError
from flight_service.protocol.names import MAX_SLOTS, check_name
from spark_client.casting import cast_from_spark
from spark_client.pieces import pieces


def bundles(
    batch: pa.RecordBatch, slot: str, slot_column: str | None, bundle_bytes: int
) -> Iterator[dict[str, pa.RecordBatch]]:
    """A batch as one bundle, or as several if it is large; an empty one is none."""
    for piece in pieces(cast_from_spark(batch), bundle_bytes):
        yield {slot: piece} if slot_column is None else by_slot(piece, slot_column)


def by_slot(batch: pa.RecordBatch, column: str) -> dict[str, pa.RecordBatch]:
    """Rows by the slot that a column names; the column itself is left out."""
    names = batch.column(column)
    rest = batch.drop_columns([column])
    found = pc.unique(names).to_pylist()
    if len(found) > MAX_SLOTS:
        raise BadRequest(
            "limit_exceeded",
            f"column {column} names {len(found):,} slots, a bundle has at most {MAX_SLOTS}.",
        )
    return {_slot(name, column): rest.filter(pc.equal(names, name)) for name in found}


def _slot(name: str | None, column: str) -> str:
    if name is None:
        raise BadRequest("bad_request", f"column {column} is null: no slot for that row.")
    try:
        return check_name("slot", name)
    except ServiceError as error:
        raise BadRequest("bad_request", f"column {column}: {error.message}") from None
