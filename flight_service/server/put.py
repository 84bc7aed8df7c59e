"""DoPut: bundles in, receipts out.

Two threads work on a call: the handler's own reads messages and stages them in the store;
a *sender* waits until they are durable and sends the receipts, all that a group commit
finished in one message.  Between them lies a bounded queue, in order.  A client that
doesn't read its receipts fills that queue and then waits for itself: nobody else does.

The sender is joined before the handler returns: Flight's writer must not be in use by
another thread then (that takes the process down).
"""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa

from flight_service.protocol.errors import ServiceError
from flight_service.protocol.put import (
    ACCEPTED,
    DUP,
    DURABLE,
    MAX_RECEIPTS,
    NO_ENVELOPE,
    OK,
    REJECTED,
    RETRY,
    Envelope,
    PutCommand,
)
from flight_service.protocol.wrapper import check_schema, unwrap
from flight_service.server.edge import service_error
from flight_service.server.stream import Stream
from quiver import Receipt
from quiver.errors import Fault, QuiverError, StoreClosed

MAX_REASON: Final = 500
OUT_OF_TURN: Final = "out_of_turn"
OUT_OF_TURN_MS: Final = 50
DEFAULT_RETRY_MS: Final = 100


@dataclass(slots=True)
class _Answer:
    """The receipt of one message: known at once, or when ``receipt`` is done."""

    n: int
    fields: dict[str, Any] | None
    receipt: Receipt | None = None


class PutCall:
    """One DoPut."""

    def __init__(
        self,
        stream: Stream,
        command: PutCommand,
        reader: Any,
        writer: Any,
        *,
        window: int,
        put_wait: float,
        stopping: Callable[[], bool],
    ) -> None:
        self._store = stream.store
        self._command = command
        self._reader = reader
        self._writer = writer
        self._window = window
        self._put_wait = put_wait
        self._stopping = stopping
        self._changed = threading.Condition(threading.Lock())
        self._answers: deque[_Answer] = deque()
        self._ended = False
        self._client_gone = False
        self._waiting_for: int | None = None
        self._newest: Receipt | None = None

    def run(self) -> None:
        """Serve the call; returns when the client has sent everything and been answered."""
        if self._command.mode == "bundle":
            check_schema(self._reader.schema)
        sender = threading.Thread(target=self._send, name="quiver-receipts", daemon=True)
        sender.start()
        try:
            self._read()
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()
            sender.join()

    # The handler's thread: take bundles in

    def _read(self) -> None:
        n = 0
        while True:
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                return
            except (pa.ArrowException, OSError) as error:
                if self._client_gone:
                    return
                raise ServiceError("bad_request", f"message {n} can't be read: {error}") from None
            # Metadata without data is no bundle; old clients send it to keep a call alive.
            if chunk.data is not None:
                self._enqueue(self._take(n, chunk))
                n += 1

    def _enqueue(self, answer: _Answer) -> None:
        with self._changed:
            self._changed.wait_for(lambda: len(self._answers) < self._window or self._client_gone)
            self._answers.append(answer)
            if len(self._answers) == 1:
                self._changed.notify_all()

    def _take(self, n: int, chunk: Any) -> _Answer:
        envelope = NO_ENVELOPE
        try:
            envelope = _envelope(chunk.app_metadata)
            self._check_turn(envelope)
            receipt = self._put(envelope, chunk.data)
        except Exception as error:
            refused = self._refused(n, envelope.key, error)
            if _for_good(refused):
                self._closes_gap(envelope)  # nobody will send it again
            return refused
        self._closes_gap(envelope)
        self._newest = receipt
        return _Answer(n, None, receipt)

    def _closes_gap(self, envelope: Envelope) -> None:
        # The sender may have opened another gap since: only this one is closed.
        if envelope.resend is not None and envelope.resend == self._waiting_for:
            self._waiting_for = None

    def _check_turn(self, envelope: Envelope) -> None:
        """After a `retry` nothing is taken before that bundle: the order holds.

        Also when the sender has yet to find out that the newest could not be written.
        """
        if self._stopping():
            raise ServiceError("draining", "the server is stopping.")
        waiting_for = self._waiting_for
        if waiting_for is not None:
            if envelope.resend == waiting_for:
                return
            first = f"message {waiting_for}"
        elif self._newest is not None and self._newest.error is not None:
            self._newest, first = None, "what could not be written"
        else:
            return
        raise ServiceError(
            OUT_OF_TURN,
            f"{first} comes first: send it again, with resend.",
            retryable=True,
            details={"retry_after_ms": OUT_OF_TURN_MS},
        )

    def _put(self, envelope: Envelope, batch: pa.RecordBatch) -> Receipt:
        if self._command.mode == "slot":
            assert self._command.slot is not None
            return self._store.put(
                {self._command.slot: batch},
                key=envelope.key,
                attributes=envelope.attributes,
                content_hash=envelope.hash,
                event_time=envelope.event_time,
                timeout=self._put_wait,
            )
        rows = unwrap(batch)
        return self._store.put_ipc(
            {row.slot: row.ipc for row in rows},
            key=envelope.key,
            attributes=envelope.attributes,
            fingerprints={row.slot: row.fingerprint for row in rows if row.fingerprint},
            content_hash=envelope.hash,
            event_time=envelope.event_time,
            timeout=self._put_wait,
        )

    def _refused(self, n: int, key: str | None, error: Exception) -> _Answer:
        """A refusal is the bundle's answer; only a broken store ends the call."""
        if isinstance(error, StoreClosed):
            error = ServiceError("draining", str(error))
        if isinstance(error, QuiverError) and _broken(error):
            raise error
        said = service_error(error, "do_put")
        return _Answer(n, self._refusal(n, key, said))

    def _refusal(self, n: int, key: str | None, said: ServiceError) -> dict[str, Any]:
        fields: dict[str, Any] = {"n": n, "status": RETRY if said.retryable else REJECTED}
        if key is not None:
            fields["key"] = key
        fields["code"] = said.code
        fields["reason"] = said.message[:MAX_REASON]
        if said.retryable:
            if self._waiting_for is None and said.code != OUT_OF_TURN:
                self._waiting_for = n
            wait = said.retry_after_ms
            fields["retry_after_ms"] = DEFAULT_RETRY_MS if wait is None else wait
        return fields

    # The sender's thread: tell what became of them

    def _send(self) -> None:
        while (first := self._first()) is not None:
            self._settle(first)
            fields = self._finished()
            if not self._client_gone:
                try:
                    self._writer.write(_message(fields))
                except (pa.ArrowException, OSError):
                    with self._changed:
                        self._client_gone = True
                        self._changed.notify_all()

    def _first(self) -> _Answer | None:
        with self._changed:
            self._changed.wait_for(lambda: self._answers or self._ended)
            return self._answers[0] if self._answers else None

    def _settle(self, answer: _Answer) -> None:
        """Wait until the answer is known; with nobody to tell, there is no hurry either."""
        receipt = answer.receipt
        if receipt is None or self._command.durability == ACCEPTED or receipt.done:
            return
        try:
            receipt.wait()
        except QuiverError:
            pass  # told by the receipt itself
        except Exception as error:
            answer.fields = self._refusal(answer.n, receipt.key, service_error(error, "do_put"))

    def _finished(self) -> list[dict[str, Any]]:
        """All answers, from the first on, that are known by now."""
        accepted = self._command.durability == ACCEPTED
        found: list[dict[str, Any]] = []
        with self._changed:
            while self._answers and len(found) < MAX_RECEIPTS:
                answer = self._answers[0]
                receipt = answer.receipt
                if answer.fields is not None:
                    fields = answer.fields
                elif receipt is not None and (receipt.done or accepted):
                    fields = self._taken(answer.n, receipt)
                else:
                    break
                found.append(fields)
                self._answers.popleft()
            self._changed.notify_all()
        return found

    def _taken(self, n: int, receipt: Receipt) -> dict[str, Any]:
        if receipt.error is not None:
            return self._refusal(n, receipt.key, _lost(receipt.error))
        fields: dict[str, Any] = {
            "n": n,
            "status": DUP if receipt.duplicate else OK,
            "ref": list(receipt.ref),
            "sequence": receipt.sequence,
            "durability": DURABLE if receipt.durable else ACCEPTED,
        }
        if receipt.key is not None:
            fields["key"] = receipt.key
        return fields


def _for_good(answer: _Answer) -> bool:
    return answer.fields is not None and answer.fields["status"] == REJECTED


def _broken(error: QuiverError) -> bool:
    """Whether an error is about the store, and not about this bundle or this moment."""
    return not error.retryable and error.fault is not Fault.CALLER


def _lost(error: QuiverError) -> ServiceError:
    """A bundle that could not be written is none the worse: it may be sent again."""
    said = service_error(error, "do_put")
    return ServiceError(said.code, said.message, retryable=True, details=said.details)


def _envelope(metadata: Any) -> Envelope:
    if metadata is None or metadata.size == 0:
        return NO_ENVELOPE
    return Envelope.decode(metadata.to_pybytes())


def _message(receipts: list[dict[str, Any]]) -> bytes:
    body = {"v": 1, "receipts": receipts}
    return json.dumps(body, separators=(",", ":"), ensure_ascii=False).encode()
