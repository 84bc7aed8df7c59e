"""The part of a put that runs in tasks: batches in, bundles to the server, receipts out.

A task has a window of bundles in flight and reads no further while it is full, so its memory
is bounded by ``windowBytes`` and one batch of Spark's.  A server that restarts, or that has no
room for now, is waited for; what was sent is sent again under the same keys.  Receipts are
handed on as they come.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from flight_service.client.errors import BadRequest
from flight_service.client.pending import Pending
from flight_service.client.retry import Retry
from flight_service.client.session import Client
from flight_service.client.writer import Writer
from flight_service.protocol.errors import ServiceError
from spark_client.credentials import Credentials
from spark_client.failures import explained
from spark_client.keys import Keys, partition
from spark_client.layout import Layout
from spark_client.pieces import pieces
from spark_client.receipts import Put, as_batch
from spark_client.url import Target

RECEIPTS_AT_ONCE: Final = 256


@dataclass(frozen=True, slots=True)
class Route:
    """Where bundles go, as whom, and how patiently."""

    target: Target
    credentials: Credentials
    retry: Retry
    connect_timeout: float
    window: int
    window_bytes: int
    bundle_bytes: int

    @contextlib.contextmanager
    def writer(self, slot: str | None = None) -> Iterator[Writer]:
        """A writer to the stream, or to one slot; errors are told as the driver needs them."""
        try:
            with self.client() as client:
                stream = client.stream(self.target.stream)
                with stream.writer(
                    window=self.window, window_bytes=self.window_bytes, slot=slot
                ) as writer:
                    yield writer
        except ServiceError as error:
            raise explained(error, self.target) from None

    def client(self) -> Client:
        """A connection, as soon as the server answers."""
        return self.credentials.connect(self.target, retry=self.retry, wait=self.connect_timeout)


@dataclass(frozen=True, slots=True)
class Sent:
    """A bundle on its way."""

    pending: Pending
    rows: int

    def put(self) -> Put:
        """Once it is there."""
        return Put(self.pending.result(), self.rows, self.pending.nbytes)


@dataclass(frozen=True, slots=True)
class Extras:
    """What is said of every bundle."""

    attributes: Mapping[str, str] | None
    event_time: str | None
    """A column of the frame that tells when its rows happened."""

    def of(self, batch: pa.RecordBatch) -> dict[str, Any]:
        """For ``Writer.put``."""
        return {"attributes": self.attributes, "event_time": self._range(batch)}

    def _range(self, batch: pa.RecordBatch) -> tuple[int, int] | None:
        if self.event_time is None:
            return None
        if self.event_time not in batch.schema.names:
            raise BadRequest("schema_mismatch", f"there is no column {self.event_time}.")
        column = batch.column(self.event_time)
        if not pa.types.is_timestamp(column.type):
            raise BadRequest(
                "schema_mismatch", f"event_time: column {self.event_time} is no timestamp."
            )
        ends = pc.min_max(column.cast(pa.timestamp("ns", column.type.tz)).cast(pa.int64()))
        low, high = ends["min"].as_py(), ends["max"].as_py()
        return None if low is None or low < 0 else (low, high)


class Producer:
    """A function for ``mapInArrow``."""

    def __init__(self, route: Route, layout: Layout, keys: Keys, extras: Extras) -> None:
        self._route = route
        self._layout = layout
        self._keys = keys
        self._extras = extras

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Put a partition's batches; rows of :data:`~spark_client.receipts.RECEIPTS`."""
        me, prefix = partition(), self._keys.of_task()
        sent: deque[Sent] = deque()
        first = next(batches, None)
        if first is None:
            return
        with self._route.writer(self._layout.lone_slot) as writer:
            for ordinal, piece in enumerate(self._cut(first, batches)):
                sent.append(self._send(writer, piece, f"{prefix}/{ordinal}"))
                if len(sent) >= RECEIPTS_AT_ONCE and sent[RECEIPTS_AT_ONCE - 1].pending.done:
                    yield as_batch(me, [sent.popleft().put() for _ in range(RECEIPTS_AT_ONCE)])
            while sent:
                some = [sent.popleft().put() for _ in range(min(len(sent), RECEIPTS_AT_ONCE))]
                yield as_batch(me, some)

    def _cut(
        self, first: pa.RecordBatch, rest: Iterator[pa.RecordBatch]
    ) -> Iterator[pa.RecordBatch]:
        yield from pieces(first, self._route.bundle_bytes)
        for batch in rest:
            yield from pieces(batch, self._route.bundle_bytes)

    def _send(self, writer: Writer, piece: pa.RecordBatch, key: str) -> Sent:
        bundle = self._layout.bundle(piece)
        pending = writer.put(bundle, key=key, **self._extras.of(piece))
        return Sent(pending, sum(batch.num_rows for batch in bundle.values()))
