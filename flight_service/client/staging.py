"""Staged writes: a producer's share of a transaction, written in parts.

The server promises a stage when it is finished, and not before: an attempt whose call
broke has to be written again.  So that this costs little, and so that what must be kept
for it is bounded, a writer's share is cut into *parts* of some megabytes.  Each part is
an attempt of its own: one DoPut, then ``finish_stage``, from when on it is safe and
forgotten here.  If the connection breaks, or the server restarts, the part at hand goes
again under another name; commit names only those that were finished.

Everything happens in the caller's thread; only receipts come on another one.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Final

import pyarrow as pa

from flight_service.client.connection import Connection
from flight_service.client.errors import (
    BadRequest,
    ClientError,
    Closed,
    Rejected,
    Rejection,
    by_code,
    lost,
    typed,
)
from flight_service.client.forking import guard
from flight_service.client.outbox import Entry, Outbox
from flight_service.client.pending import Data, as_batch
from flight_service.client.put_stream import PutStream
from flight_service.client.retry import Backoff, Retry
from flight_service.protocol.names import check_name
from flight_service.protocol.put import REJECTED, RETRY, About, PutCommand, PutReceipt, said_of
from flight_service.protocol.stage import Abort, Aborted, FinishStage, StageFinished, StageName
from flight_service.protocol.wrapper import BY_NAME, wrap

PART_BYTES: Final = 32 << 20
PART_BUNDLES: Final = 4_096
"""A part ends when it has so much: what is kept to be sent again is bounded by it."""
END_TIMEOUT: Final = 10.0
MAX_MESSAGE: Final = 1_900 << 20
"""Flight messages end at 2 GiB; some of that is ours."""
GONE_CODES: Final = frozenset({"stage_not_found", "stage_incomplete"})
"""The server knows nothing of the part, or not all of it: it was restarted in between."""


@dataclass(frozen=True, slots=True)
class Staged:
    """A producer's share, finished: name ``attempts`` in the commit."""

    app: str
    version: int
    attempts: tuple[str, ...]
    bundles: int
    rows: int
    nbytes: int


class _StageCall:
    """One DoPut into one stage: a window of bundles in flight, sent again after ``retry``."""

    def __init__(
        self, connection: Connection, command: PutCommand, window: int, window_bytes: int
    ) -> None:
        self._window = window
        self._window_bytes = window_bytes
        self._changed = threading.Condition(threading.Lock())
        self._box: Outbox[None] = Outbox()
        self.refusal: ClientError | None = None
        self._error: ClientError | None = None
        self._outcome: ClientError | None = None
        self._ended = self._closed = False
        self.taken = 0
        self._put_stream = PutStream(connection, command, BY_NAME, self)
        self._put_stream.start()

    # The sending side

    def send(self, entry: Entry[None], backoff: Backoff) -> None:
        """Send a bundle once there is room for it."""
        while not self._has_room(entry.nbytes):
            self._step(backoff)
        with self._changed:
            self._box.add(entry)
        self._pump()

    def settle(self, backoff: Backoff) -> None:
        """Wait until every bundle is in the stage."""
        while len(self._box):
            self._step(backoff)

    def _has_room(self, nbytes: int) -> bool:
        with self._changed:
            count, held = len(self._box), self._box.nbytes
        return count == 0 or (count < self._window and held + nbytes <= self._window_bytes)

    def _step(self, backoff: Backoff) -> None:
        """Wait for an answer; after a refusal for now, wait as told and send again."""
        with self._changed:
            before = len(self._box)
            self._changed.wait_for(
                lambda: len(self._box) < before or self._box.must_resume or self._over
            )
            self._check()
            if self._box.must_resume:
                refusal = self.refusal or by_code("busy", "the server is busy.")
                until = time.monotonic() + backoff.after(refusal)
                while not self._over and (wait := until - time.monotonic()) > 0:
                    self._changed.wait(wait)
                self._check()
                self.refusal = None
                self._box.resume()
            else:
                backoff.reset()
        self._pump()

    def _pump(self) -> None:
        while True:
            with self._changed:
                self._check()
                if not self._box.can_take:
                    return
                (entry,), envelope = self._box.take()
            wrapped = _wrapped(entry.slots)
            try:
                self._put_stream.send(wrapped, envelope)
            except Exception as error:
                # The server's own word, if it said one, comes out at the end.
                raise self.end() or typed(error) from None

    @property
    def _over(self) -> bool:
        return self._ended or self._error is not None

    def _check(self) -> None:
        if self._error is not None:
            raise self._error
        if self._ended:
            self._changed.release()  # the call's reader must be able to finish
            try:
                error = self.end()
            finally:
                self._changed.acquire()
            raise error or lost("the server ended the call.")

    def end(self) -> ClientError | None:
        """End the call; how it ended, if not well."""
        if not self._closed:
            self._closed = True
            self._outcome = self._put_stream.end(END_TIMEOUT)
        return self._outcome

    # What comes back, on the call's thread

    def on_receipts(self, put_stream: PutStream, receipts: tuple[PutReceipt, ...]) -> None:
        with self._changed:
            for receipt in receipts:
                self._answer(receipt)
            self._changed.notify_all()

    def _answer(self, receipt: PutReceipt) -> None:
        entry = self._box.answer(receipt)
        if entry is not None:
            self.taken += 1
        code, reason = receipt.code or receipt.status, receipt.reason or "no reason given"
        if receipt.status == REJECTED:
            self._error = Rejected([Rejection(None, code, reason)])
        elif receipt.status == RETRY and code == "draining":
            self._error = lost(reason)  # its successor knows nothing of this stage
        elif receipt.status == RETRY and self.refusal is None and code != "out_of_turn":
            details = {"retry_after_ms": receipt.retry_after_ms or 0}
            self.refusal = by_code(code, reason, retryable=True, details=details)

    def on_end(self, put_stream: PutStream) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()


def _wrapped(slots: Mapping[str, pa.RecordBatch]) -> pa.RecordBatch:
    try:
        return wrap(slots)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise Rejected([Rejection(None, "invalid_bundle", str(error))]) from None


class StageWriter:
    """Writes a share of a transaction; see :meth:`flight_service.client.stream.Stream.stage`.

    For one thread.  Leaving the block finishes it; with an exception, everything that was
    written is given up.
    """

    def __init__(
        self,
        connection: Connection,
        stream: str,
        app: str,
        version: int,
        attempt: str | None,
        *,
        window: int,
        window_bytes: int,
        part_bytes: int = PART_BYTES,
        retry: Retry,
    ) -> None:
        self._connection = connection
        self._stream = stream
        self._app = app
        self._version = version
        self._attempt = attempt or os.urandom(8).hex()
        self._window = window
        self._window_bytes = window_bytes
        self._part_bytes = part_bytes
        self._retry = retry
        self._backoff = Backoff(retry)
        self._numbers = 0
        self._name = ""
        self._call: _StageCall | None = None
        self._trouble: ClientError | None = None
        self._part: list[Entry[None]] = []
        self._sent = 0
        self._nbytes = 0
        self._finished: list[str] = []
        self._bundles = self._rows = self._staged_bytes = 0
        self._result: Staged | None = None
        self._closed = False
        guard(self)

    def put(
        self,
        bundle: Mapping[str, Data],
        *,
        attributes: Mapping[str, str] | None = None,
        event_time: tuple[int, int] | None = None,
    ) -> None:
        """Write a bundle; waits while the window is full or the server has no room."""
        if self._closed:
            raise Closed("the stage")
        slots = {check_name("slot", slot): as_batch(data) for slot, data in bundle.items()}
        nbytes = sum(batch.nbytes for batch in slots.values())
        if nbytes > MAX_MESSAGE:
            raise BadRequest(
                "limit_exceeded",
                f"the bundle has {nbytes:,} bytes, a message holds {MAX_MESSAGE:,}: split it.",
            )
        said = said_of(About(attributes=attributes, event_time=event_time))
        self._part.append(Entry(slots, said, nbytes, None))
        self._nbytes += nbytes
        full = self._nbytes >= self._part_bytes or len(self._part) >= PART_BUNDLES
        self._persist(finish=full)

    def flush(self) -> None:
        """Wait until every bundle so far is in its stage; it is not safe before ``finish``."""
        if self._part:
            self._persist(settle=True)

    @property
    def waiting_for(self) -> ClientError | None:
        """Why nothing moves just now: the refusal or lost connection that is being waited out."""
        return self._trouble or (None if self._call is None else self._call.refusal)

    def finish(self) -> Staged:
        """Everything is on the server's disk when this returns; asked again, the same."""
        if self._result is None:
            if self._closed:
                raise Closed("the stage")
            if self._part:
                self._persist(finish=True)
            self._closed = True
            self._result = Staged(
                self._app,
                self._version,
                tuple(self._finished),
                self._bundles,
                self._rows,
                self._staged_bytes,
            )
        return self._result

    def discard(self) -> None:
        """Give everything up; what can't be removed now is removed by the commit, or in time."""
        self._closed = True
        self._drop_call()
        names = (*self._finished, *([self._name] if self._name else []))
        if names and self._result is None:
            request = Abort(
                stream=self._stream, app=self._app, version=self._version, attempts=names
            )
            with contextlib.suppress(ClientError):
                self._connection.action("abort", request, Aborted, retry=None)

    def __enter__(self) -> StageWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self.finish()
        finally:
            self.discard()

    # The part at hand

    def _persist(self, *, finish: bool = False, settle: bool = False) -> None:
        """Send what is not sent yet; whatever breaks, the part goes again as a whole."""
        while True:
            try:
                self._send()
                if finish or settle:
                    self._current.settle(self._backoff)
                if finish:
                    self._finish_part()
                self._trouble = None
                return
            except Exception as error:
                self._drop_call()
                self._trouble = _again(typed(error))
                self._connection.pause(self._backoff.after(self._trouble))

    @property
    def _current(self) -> _StageCall:
        assert self._call is not None
        return self._call

    def _send(self) -> None:
        if self._call is None:
            self._name = f"{self._attempt}.{self._numbers}"
            self._numbers += 1
            self._sent = 0
            stage = StageName(app=self._app, version=self._version, attempt=self._name)
            self._call = _StageCall(
                self._connection,
                PutCommand(stream=self._stream, stage=stage),
                self._window,
                self._window_bytes,
            )
        while self._sent < len(self._part):
            self._call.send(self._part[self._sent], self._backoff)
            self._sent += 1

    def _finish_part(self) -> None:
        call = self._current
        error = call.end()
        if error is not None:
            raise error
        request = FinishStage(
            stream=self._stream,
            app=self._app,
            version=self._version,
            attempt=self._name,
            bundles=call.taken,
        )
        done = self._connection.action("finish_stage", request, StageFinished, retry=self._retry)
        self._backoff.reset()
        self._call = None
        self._finished.append(self._name)
        self._bundles += done.bundles
        self._rows += done.rows
        self._staged_bytes += done.nbytes
        self._part, self._nbytes = [], 0

    def _drop_call(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.end()


def _again(error: ClientError) -> ClientError:
    """A part the server no longer has is as good as a lost connection."""
    return lost(error.message) if error.code in GONE_CODES else error
