"""One DoPut call: bundles go up, receipts come down on a thread of their own.

Receipts are read all the time: a client that leaves them unread ends up with both sides
waiting for each other.  When the server refuses, ``read`` returns ``None`` like at a
normal end, and the reason only comes out of the writer's ``close``.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import pyarrow as pa

from flight_service.client.connection import Connection
from flight_service.client.errors import ClientError, lost, typed
from flight_service.protocol.put import PutCommand, PutReceipt, PutReceipts


class Listener(Protocol):
    """Who is told what comes back; called on the call's thread."""

    def on_receipts(self, put_stream: PutStream, receipts: tuple[PutReceipt, ...]) -> None: ...

    def on_end(self, put_stream: PutStream) -> None: ...


class PutStream:
    """A call that is open from its making until :meth:`end`; :meth:`start` comes first."""

    def __init__(
        self, connection: Connection, command: PutCommand, schema: pa.Schema, listener: Listener
    ) -> None:
        self._listener = listener
        self._fault: ClientError | None = None
        self._writer, self._receipts = connection.client.do_put(
            command.descriptor(), schema, connection.options()
        )
        self._reader = threading.Thread(target=self._read, name="quiver-receipts", daemon=True)

    def start(self) -> None:
        """Begin to listen: not before the listener knows this call as its own."""
        self._reader.start()

    def send(self, batch: pa.RecordBatch, envelope: bytes) -> None:
        """Send a bundle; any error means that this call is lost."""
        self._writer.write_with_metadata(batch, envelope)

    def _read(self) -> None:
        try:
            while (message := self._receipts.read()) is not None:
                receipts = PutReceipts.decode(message.to_pybytes())
                self._listener.on_receipts(self, receipts.receipts)
        # Whatever it is, it ends the call, and `end` tells.
        except BaseException as error:
            self._fault = typed(error)
        finally:
            self._listener.on_end(self)

    def end(self, timeout: float) -> ClientError | None:
        """Say that no more comes, take the last receipts, and tell how the call ended.

        Only for the thread that sends.  The reader is waited for: nobody may be inside
        ``read`` while the writer is closed.
        """
        error = _refusal(self._writer.done_writing)
        self._reader.join(timeout)
        if self._reader.is_alive():
            return lost("the server did not end the call in time.")
        return self._fault or _refusal(self._writer.close) or error


def _refusal(step: Callable[[], None]) -> ClientError | None:
    try:
        step()
    except Exception as error:
        return typed(error)
    return None
