"""One DoExchange call: bundles and answers come down, outcomes and credit go up.

One thread reads and one writes.  The writer is closed by the reading thread, after its
last read, and never while somebody is inside ``send``.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pyarrow as pa

from flight_service.client.connection import Connection
from flight_service.client.errors import ClientError, typed
from flight_service.protocol.exchange import ClientMessage, ServerMessage, SubscribeCommand
from flight_service.protocol.get import BundleInfo


class Call:
    """A live subscription on one connection."""

    def __init__(self, connection: Connection, command: SubscribeCommand) -> None:
        self._sending = threading.Lock()
        self._over = False
        self._writer, self._reader = connection.client.do_exchange(
            command.descriptor(), connection.options()
        )

    def incoming(self) -> Iterator[ServerMessage | tuple[BundleInfo, pa.RecordBatch]]:
        """What the server sends, until the call ends or breaks."""
        while True:
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                return
            metadata = chunk.app_metadata.to_pybytes()
            if chunk.data is None:
                yield ServerMessage.decode(metadata)
            else:
                yield BundleInfo.decode(metadata), chunk.data

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
