"""Decoding batches that share dictionaries, without decoding those each time.

Arrow keeps dictionaries in the reader of a stream, and has no other place for them.  So a
stream is made for it that begins with them and never ends: each batch that is to be
decoded is its next message.
"""

from __future__ import annotations

import threading

import pyarrow as pa


class MessageFeed:
    """One stream of batches, in whatever order they are asked for."""

    def __init__(self, schema: bytes, dictionaries: pa.Buffer) -> None:
        self._lock = threading.Lock()
        self._head = (schema, dictionaries)
        self._pipe = _Pipe()
        self._reader: pa.ipc.RecordBatchStreamReader | None = None

    def batch(self, message: pa.Buffer) -> pa.RecordBatch:
        """The batch that a message holds; it lies in the message's memory."""
        with self._lock:
            try:
                return self._next(message)
            except BaseException:
                # Where the reader stands is not known any more.
                self._reader, self._pipe = None, _Pipe()
                raise

    def _next(self, message: pa.Buffer) -> pa.RecordBatch:
        if self._reader is None:
            for part in (*self._head, message):
                self._pipe.put(part)
            self._reader = pa.ipc.open_stream(pa.PythonFile(self._pipe, mode="r"))
        else:
            self._pipe.put(message)
        return self._reader.read_next_batch()


class _Pipe:
    """What was put in comes out again, once: a file as far as Arrow's stream reader goes."""

    closed = False

    def __init__(self) -> None:
        self._parts: list[memoryview] = []

    def put(self, data: bytes | pa.Buffer) -> None:
        if len(data):
            self._parts.append(memoryview(data).cast("B"))

    def readable(self) -> bool:
        return True

    def read(self, size: int) -> memoryview | bytes:
        """Up to ``size`` bytes. Arrow never asks for those of two messages at once."""
        if not self._parts:
            return b""
        part = self._parts[0]
        found, rest = part[:size], part[size:]
        if len(rest):
            self._parts[0] = rest
        else:
            del self._parts[0]
        return found

    def close(self) -> None:
        """Nothing is held but memory."""
