"""One DoExchange call: bundles and answers come down, outcomes and credit go up.

One thread reads and one writes.  The writer is closed by the reading thread, after its
last read, and never while somebody is inside ``send``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import pyarrow as pa

from flight_service.client.connection import Connection
from flight_service.client.errors import ClientError, ServerFault, typed
from flight_service.protocol.exchange import (
    BundleInfos,
    ClientMessage,
    ServerMessage,
    SubscribeCommand,
)
from flight_service.protocol.get import BundleInfo
from flight_service.protocol.names import MAX_SLOTS
from flight_service.protocol.put import MAX_TOGETHER
from flight_service.protocol.wrapper import Row, rows_of

Arrived: TypeAlias = tuple[BundleInfo, Sequence[Row]]
"""What is told about a bundle, and its rows of the wrapper."""


class Call:
    """A live subscription on one connection."""

    def __init__(self, connection: Connection, command: SubscribeCommand) -> None:
        self._sending = threading.Lock()
        self._over = False
        self._writer, self._reader = connection.client.do_exchange(
            command.descriptor(), connection.options()
        )

    def incoming(self) -> Iterator[ServerMessage | list[Arrived]]:
        """What the server sends, until the call ends or breaks: its words, or bundles."""
        while True:
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                return
            metadata = chunk.app_metadata.to_pybytes()
            if chunk.data is None:
                yield ServerMessage.decode(metadata)
            else:
                yield _taken_apart(BundleInfos.decode(metadata).bundles, chunk.data)

    def send(self, message: ClientMessage) -> bool:
        """Whether it could be sent; if not, the reading side finds out why."""
        with self._sending:
            if self._over:
                return False
            try:
                self._writer.write_metadata(message.encode())
            except Exception:
                self._over = True
            return not self._over

    def done_sending(self) -> None:
        """Nothing more is to be said: the server ends the call."""
        with self._sending:
            if not self._over:
                self._over = True
                try:
                    self._writer.done_writing()
                except Exception:
                    self._reader.cancel()

    def cancel(self) -> None:
        """End the call at once, from any thread."""
        self._reader.cancel()

    def finish(self) -> ClientError | None:
        """How it ended; for the reading thread, when it reads no more."""
        with self._sending:
            self._over = True
            try:
                self._writer.close()
            except Exception as error:
                return typed(error)
        return None


def _taken_apart(infos: Sequence[BundleInfo], batch: pa.RecordBatch) -> list[Arrived]:
    """Bundles that came together, each with its own rows."""
    rows = rows_of(batch, MAX_SLOTS * MAX_TOGETHER)
    found: list[Arrived] = []
    start = 0
    for info in infos:
        end = start + len(info.slots)
        found.append((info, rows[start:end]))
        start = end
    if start != len(rows):
        raise ServerFault(
            "internal", f"bundles with {start} slots came in {len(rows)} rows.", retryable=True
        )
    return found
