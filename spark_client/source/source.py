"""The data source as Spark knows it: ``format("quiver")``."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from flight_service.client.errors import BadRequest
from spark_client.options import READ, READ_STREAM
from spark_client.shipping import Travels, door
from spark_client.sink import batch_writer, stream_writer
from spark_client.sink.writer import BatchWriter, StreamWriter
from spark_client.source.batch import BatchReader
from spark_client.source.problems import ReadError
from spark_client.source.request import BUNDLE, Request, link_of, request_of, values_of
from spark_client.source.schema import (
    BUNDLES,
    arrow_schema,
    pick_slot,
    slot_schema,
    spark_schema,
)
from spark_client.source.stream import StreamReader


class QuiverDataSource(Travels, DataSource):
    """Streams of a Quiver server, read and written.

    >>> register(spark)
    >>> spark.read.format("quiver").load("quiver://127.0.0.1:8815/telemetry")  # doctest: +SKIP
    """

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = dict(options)
        self._slot: str | None = None
        self._inferred = False

    @classmethod
    def name(cls) -> str:
        """What ``format`` takes."""
        return "quiver"

    def schema(self) -> StructType:
        """From the service: all that the slot's bundles have; asked when nobody says."""
        values = values_of(self.options, None)
        request = request_of(values)
        self._inferred = True
        if request.mode == BUNDLE:
            return spark_schema(BUNDLES)
        link = link_of(values).impatient()
        try:
            schemas = link.ask(lambda stream: stream.schemas())
            earlier = link.ask(lambda stream: stream.schemas(earlier=True))
        finally:
            link.close()
        try:
            slot = self._slot = pick_slot({**schemas, **earlier}, request.slot)
            found = slot_schema(
                schemas.get(slot, []),
                earlier.get(slot, []),
                columns=request.columns,
                metadata=request.metadata,
                timestamp_mode=request.timestamp_mode,
            )
        except BadRequest as error:
            raise ReadError(error.code, f"{link.target}: {error.message}") from None
        return spark_schema(found)

    def reader(self, schema: StructType) -> BatchReader:
        """For ``spark.read``."""
        values = values_of(self.options, READ)
        request = self._complete(request_of(values))
        return BatchReader(link_of(values), request, self._wanted(schema), self._inferred)

    def streamReader(self, schema: StructType) -> StreamReader:  # noqa: N802 - Spark's name
        """For ``spark.readStream``."""
        values = values_of(self.options, READ_STREAM)
        request = self._complete(request_of(values))
        return StreamReader(link_of(values), request, self._wanted(schema), self._inferred, values)

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:
        """For ``df.write``."""
        return batch_writer(self.options, schema, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: N802
        """For ``df.writeStream``."""
        return stream_writer(self.options, schema, overwrite)

    def _complete(self, request: Request) -> Request:
        if request.mode == BUNDLE or request.slot is not None:
            return request
        if self._slot is None:
            raise BadRequest(
                "bad_request", 'with .schema(…) the slot must be named: .option("slot", …).'
            )
        return request.of_slot(self._slot)

    def _wanted(self, schema: StructType) -> pa.Schema:
        return arrow_schema(schema)


def register(spark: SparkSession) -> None:
    """Make ``format("quiver")`` known to a session: once, for reading and writing."""
    spark.dataSource.register(door(QuiverDataSource))
