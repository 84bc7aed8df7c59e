"""The reader behind ``spark.read``."""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition

from flight_service.protocol.names import Ref
from flight_service.protocol.plan import Planned
from spark_client.shipping import Travels
from spark_client.source import shares
from spark_client.source.fetch import read_share
from spark_client.source.link import Link
from spark_client.source.problems import data_loss
from spark_client.source.progress import may_miss, report_losses
from spark_client.source.request import Request, check_batch


class BatchReader(Travels, DataSourceReader):
    """Reads a range of bundles, pinned when the first action is planned."""

    def __init__(self, link: Link, request: Request, schema: pa.Schema, inferred: bool) -> None:
        check_batch(request.span)
        self._link = link
        self._request = request
        self._schema = schema
        self._inferred = inferred

    def partitions(self) -> list[InputPartition]:
        """Which bundles, shared out; on the driver, once for each frame."""
        link, span = self._link.impatient(), self._request.span
        try:
            planned = shares.plan(link, self._request, span.first, span.last)
            report_losses(link.target, planned.lost, fail=self._request.fail_on_loss)
            if span.first is not None and self._request.fail_on_loss:
                self._check_start(link, span.first, planned)
        finally:
            link.close()
        return shares.partitions(planned)

    def _check_start(self, link: Link, start: Ref, planned: Planned) -> None:
        oldest = link.ask(lambda stream: stream.plan(max_parts=0)).start
        if may_miss(start, oldest):
            raise data_loss(
                link.target, f"startingOffsets is {start}, and what is left begins at {oldest}."
            )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A share; on an executor."""
        return read_share(self._link, self._request, self._schema, self._inferred, partition.value)
