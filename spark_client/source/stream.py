"""The reader behind ``spark.readStream``.

Spark's order of things, as measured on 4.3: ``latestOffset(start)``, then the offset is in the
checkpoint, then ``commit`` of the batch before, then ``partitions``, the sink, and the commit
log.  So everything before the ``start`` of a ``latestOffset`` is safe, and is acked there: a
``commit`` alone comes one batch late and never for the last one.  (With Spark's asynchronous
progress tracking that would not hold; it must be off.)
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxFiles,
    SupportsTriggerAvailableNow,
)

from flight_service.protocol.names import Ref
from flight_service.protocol.plan import MAX_PART_BUNDLES, MAX_PART_BYTES
from spark_client.options import Values
from spark_client.shipping import Travels
from spark_client.source import shares
from spark_client.source.fetch import read_share
from spark_client.source.link import Link
from spark_client.source.offsets import Offset
from spark_client.source.progress import QueryProgress
from spark_client.source.request import Request

IDLE: Final = 0.05
"""Seconds before an answer that nothing is new: Spark asks again at once."""


class StreamReader(Travels, DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads what comes; Spark's checkpoint says how far."""

    def __init__(
        self, link: Link, request: Request, schema: pa.Schema, inferred: bool, values: Values
    ) -> None:
        self._link = link
        self._request = request
        self._schema = schema
        self._inferred = inferred
        self._explicit = bool({"startingOffsets", "startingTimestamp"} & values.given)
        self._most_bundles: int | None = values["maxBundlesPerTrigger"]
        self._most_bytes: int | None = values["maxBytesPerTrigger"]
        self._progress = QueryProgress(link, values["subscriber"], fail=request.fail_on_loss)
        self._until: Ref | None = None
        self._latest: Offset | None = None

    # Spark's names and Spark's order

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where a new query begins."""
        return self._progress.begin(self._request.span, explicit=self._explicit).write()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """What the options allow; a bundle counts as what Spark calls a file."""
        if self._most_bundles is not None:
            return ReadMaxFiles(self._most_bundles)
        if self._most_bytes is not None:
            return ReadMaxBytes(self._most_bytes)
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """What is there now is all there will be."""
        self._until = self._link.ask(lambda stream: stream.plan(max_parts=0)).latest

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """How far the next batch goes; what lies before it is acked.

        The first batch is run even if it is empty: then the checkpoint knows the subscriber.
        """
        offset = Offset.read(start)
        if offset.begin is not None:
            self._progress.ack(offset)
        name = self._progress.name_of(offset)
        free = isinstance(limit, ReadAllAvailable)
        planned = self._link.ask(
            lambda stream: stream.plan(
                offset.position,
                self._until,
                max_bundles=(None if free else self._most_bundles) or MAX_PART_BUNDLES,
                max_bytes=(None if free else self._most_bytes) or MAX_PART_BYTES,
                max_parts=1,
                subscriber=name,
            )
        )
        self._progress.check(offset.position, planned.latest, planned.lost)
        self._latest = offset.reached(planned.latest)
        if not planned.parts and offset.begin is not None and self._until is None:
            threading.Event().wait(IDLE)
        position = planned.parts[-1].end if planned.parts else offset.position
        return offset.reached(position).write()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """Where the stream ended when it was last looked at."""
        return None if self._latest is None else self._latest.write()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        """A batch, shared out; the same bundles whenever it is asked for."""
        first, last = Offset.read(start), Offset.read(end)
        # A first position that was asked for anew need not be the one the batch began at.
        fresh = first.begin is None
        position = last.begin if fresh and last.begin is not None else first.position
        name = self._progress.name_of(last)
        self._progress.hold(name, position, fresh=fresh)
        if position >= last.position:
            return []
        planned = shares.plan(self._link, self._request, position, last.position, name)
        self._progress.check(last.position, planned.latest, planned.lost)
        return shares.partitions(planned)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """A share; on an executor."""
        return read_share(self._link, self._request, self._schema, self._inferred, partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        """A batch is done, and the checkpoint says so."""
        self._progress.ack(Offset.read(end))

    def stop(self) -> None:
        """The query ends; its subscriber stays, and holds what comes."""
        self._link.close()
