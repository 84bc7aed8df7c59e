"""What comes back of a put: a row for each bundle, or the sum of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as f
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from flight_service.client.pending import Receipt

RECEIPTS: Final = StructType(
    [
        StructField("partition", IntegerType(), False),
        StructField("key", StringType(), False),
        StructField("ref", StringType(), False),
        StructField("sequence", LongType()),
        StructField("rows", LongType(), False),
        StructField("bytes", LongType(), False),
        StructField("status", StringType(), False),
    ]
)
"""One row per bundle: its task's partition, its key, where it is in the stream, its size, and
``ok``, or ``dup`` if it was there already from an earlier attempt.

The schema to give to ``mapInArrow`` beside :func:`~spark_client.put_slot`.
"""

ARROW: Final = pa.schema(
    [
        pa.field("partition", pa.int32(), nullable=False),
        pa.field("key", pa.string(), nullable=False),
        pa.field("ref", pa.string(), nullable=False),
        pa.field("sequence", pa.int64()),
        pa.field("rows", pa.int64(), nullable=False),
        pa.field("bytes", pa.int64(), nullable=False),
        pa.field("status", pa.string(), nullable=False),
    ]
)


@dataclass(frozen=True, slots=True)
class Put:
    """A bundle the server has."""

    receipt: Receipt
    rows: int
    nbytes: int


def as_batch(partition: int, puts: Sequence[Put]) -> pa.RecordBatch:
    """Rows of :data:`RECEIPTS`."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "partition": partition,
                "key": one.receipt.key,
                "ref": str(one.receipt.ref),
                "sequence": one.receipt.sequence,
                "rows": one.rows,
                "bytes": one.nbytes,
                "status": "dup" if one.receipt.duplicate else "ok",
            }
            for one in puts
        ],
        schema=ARROW,
    )


@dataclass(frozen=True, slots=True)
class Summary:
    """What a whole job put."""

    bundles: int
    rows: int
    nbytes: int
    duplicates: int
    """Bundles that were there already, from attempts before; they are counted above too."""
    partitions: int
    job: str | None
    """The name it was given."""

    def __str__(self) -> str:
        again = f" ({self.duplicates:,} were there already)" if self.duplicates else ""
        return (
            f"{self.rows:,} rows in {self.bundles:,} bundles, {self.nbytes / 1e6:,.1f} MB,"
            f" from {self.partitions:,} partitions{again}"
        )


def summed(receipts: DataFrame, job: str | None) -> Summary:
    """Run the job, once, and add up its receipts."""
    dup = f.sum(f.when(f.col("status") == "dup", 1).otherwise(0))
    (row,) = receipts.agg(
        f.count("*").alias("bundles"),
        f.sum("rows").alias("rows"),
        f.sum("bytes").alias("bytes"),
        dup.alias("dup"),
        f.count_distinct("partition").alias("partitions"),
    ).collect()
    return Summary(
        bundles=row["bundles"],
        rows=row["rows"] or 0,
        nbytes=row["bytes"] or 0,
        duplicates=row["dup"] or 0,
        partitions=row["partitions"],
        job=job,
    )
