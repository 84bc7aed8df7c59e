"""The part of a put of co-grouped frames that runs in tasks: each group is one bundle.

A group comes by itself, and the next one only after its receipt, so the connection is kept
between groups, and between tasks of one worker process.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from types import TracebackType

import pyarrow as pa

from flight_service.client.pending import as_batch as one_batch
from flight_service.client.session import Client
from flight_service.client.writer import Writer
from flight_service.protocol.errors import ServiceError
from spark_client.casting import cast_from_spark
from spark_client.failures import explained
from spark_client.keys import Keys, partition
from spark_client.producer import Extras, Route
from spark_client.receipts import ARROW, Put, as_batch


class Groups:
    """A function for ``cogroup(…).applyInArrow``: two tables, one slot each."""

    def __init__(
        self,
        route: Route,
        slots: tuple[str, str],
        schemas: Mapping[str, pa.Schema],
        keys: Keys,
        extras: Extras,
    ) -> None:
        self._route = route
        self._slots = slots
        self._schemas = schemas
        self._keys = keys
        self._extras = extras

    def __call__(self, key: Sequence[pa.Scalar], left: pa.Table, right: pa.Table) -> pa.Table:
        """Put a group; a slot without rows is left out."""
        try:
            bundle = {}
            for slot, table in zip(self._slots, (left, right), strict=True):
                if table.num_rows:
                    batch = one_batch(table)
                    bundle[slot] = cast_from_spark(batch, self._schemas.get(slot))
            extras = self._extras.of(one_batch(left if left.num_rows else right))
            with _Line(self._route) as writer:
                receipt = writer.put(bundle, key=self._keys.of_group(key), **extras).result()
        except ServiceError as error:
            raise explained(error, self._route.target) from None
        rows = sum(batch.num_rows for batch in bundle.values())
        nbytes = sum(batch.nbytes for batch in bundle.values())
        put = as_batch(partition(), [Put(receipt, rows, nbytes)])
        return pa.Table.from_batches([put], schema=ARROW)


class _Line:
    """The one writer this process keeps open; another route, or a failure, ends it."""

    _lock = threading.Lock()
    _kept: tuple[Route, Client, Writer] | None = None

    def __init__(self, route: Route) -> None:
        self._route = route

    def __enter__(self) -> Writer:
        with self._lock:
            if _Line._kept is None or _Line._kept[0] != self._route:
                self._hang_up()
                client = self._route.client()
                stream = client.stream(self._route.target.stream)
                # A refusal is raised by result(); nobody leaves the writer to be told again.
                writer = stream.writer(window=self._route.window, on_reject=lambda rejection: None)
                _Line._kept = (self._route, client, writer)
            return _Line._kept[2]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            with self._lock:
                self._hang_up()

    def _hang_up(self) -> None:
        if _Line._kept is not None:
            _, client, writer = _Line._kept
            _Line._kept = None
            writer.abort(0.0)
            client.close()
