"""Putting many bundles: a window of them in flight, receipts as they become durable.

``put`` sends the bundle in the caller's own thread, where its bytes are still in the
processor's cache.  A thread beside it (the courier) opens calls, and sends again what a
server refused for now or what was on the way when a connection broke.  Every
bundle has an idempotency key, one of its own if the caller gives none, so sending again
never makes two of one.  Memory is bounded by the window: ``put`` waits when it is full.

A bundle the server refuses for good ends nothing: its :class:`Pending` tells, and leaving
the ``with`` block raises :class:`~flight_service.client.errors.Rejected` unless an
``on_reject`` was given.

A writer for one slot sends each batch as it is, in the call's own schema.  Bundles of several
slots have to be wrapped first, which copies them twice; small ones share a message, if
others are on the way anyway (see :mod:`~flight_service.client.outbox`).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
import time
from collections.abc import Callable, Mapping
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
    Timeout,
    by_code,
    lost,
    typed,
)
from flight_service.client.forking import guard
from flight_service.client.outbox import Entry, Outbox
from flight_service.client.pending import Data, Pending, Receipt, WriterStats, as_batch
from flight_service.client.put_stream import PutStream
from flight_service.client.retry import Backoff, Retry
from flight_service.protocol.names import check_name
from flight_service.protocol.put import (
    DUP,
    MAX_TOGETHER,
    REJECTED,
    RETRY,
    About,
    PutCommand,
    PutReceipt,
    said_of,
)
from flight_service.protocol.wrapper import BY_NAME, wrap

MAX_WINDOW: Final = 65_536
MAX_MESSAGE: Final = 1_900 << 20
"""Flight messages end at 2 GiB; some of that is ours."""
MAX_REMEMBERED: Final = 100
"""Rejections kept for the error; beyond that they are counted."""
END_TIMEOUT: Final = 10.0
"""How long a call that is over is waited for."""
IDLE: Final = 2.0
"""A call without bundles is ended after so long: it would only hold the server up."""
ABORT_TIMEOUT: Final = 5.0
"""How long a block left by an exception waits for what is in flight."""


class Writer:
    """Puts bundles into one stream; see :meth:`flight_service.client.stream.Stream.writer`."""

    def __init__(
        self,
        connection: Connection,
        command: PutCommand,
        *,
        window: int,
        window_bytes: int,
        together: int,
        retry: Retry,
        on_reject: Callable[[Rejection], None] | None = None,
    ) -> None:
        if not 1 <= window <= MAX_WINDOW or window_bytes < 1:
            raise BadRequest("bad_request", f"window must be from 1 to {MAX_WINDOW:,}.")
        if not 1 <= together <= MAX_TOGETHER:
            raise BadRequest("bad_request", f"together must be from 1 to {MAX_TOGETHER}.")
        self._connection = connection
        self._command = command
        self._schema = BY_NAME if command.slot is None else None
        self._window = window
        self._window_bytes = window_bytes
        self._backoff = Backoff(retry)
        self._on_reject = on_reject
        self._prefix = os.urandom(8).hex()
        # Under a key of our own we never send anything else: no need to hash it to be sure.
        self._vouched = os.urandom(32)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # for those who wait for room, receipts
        self._work = threading.Condition(self._lock)  # for the courier
        # A quarter of the window at most: the next message is made while others are on the way.
        lone = command.slot is not None
        self._box: Outbox[Pending] = Outbox(1 if lone else min(together, max(1, window // 4)))
        self._put_stream: PutStream | None = None
        self._lane_ended = False
        self._fault: ClientError | None = None
        self._sending = False
        self._rest_until = 0.0
        self._idle_since = 0.0
        self._refusal: ClientError | None = None
        self._failed: ClientError | None = None
        self._closing = self._aborting = False
        self._numbers = itertools.count()
        self._bundles = self._nbytes = self._duplicates = 0
        self._rejected = self._retries = self._reconnects = 0
        self._rejections: list[Rejection] = []
        self._unraised = 0
        self._courier: threading.Thread | None = None
        guard(self)

    # For the caller

    def put(
        self,
        bundle: Mapping[str, Data],
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        event_time: tuple[int, int] | None = None,
        timeout: float | None = None,
    ) -> Pending:
        """Hand over a bundle: slot names with a batch or table each.

        Waits for room in the window, and raises ``Timeout`` if there is none within
        ``timeout`` seconds.  Nothing is promised before ``result()`` or ``flush()``.
        """
        slots = {check_name("slot", slot): as_batch(data) for slot, data in bundle.items()}
        nbytes = sum([batch.nbytes for batch in slots.values()])
        if nbytes > MAX_MESSAGE:
            raise BadRequest(
                "limit_exceeded",
                f"the bundle has {nbytes:,} bytes, a message holds {MAX_MESSAGE:,}: split it.",
            )
        vouched = None
        if key is None:
            key, vouched = f"{self._prefix}-{next(self._numbers)}", self._vouched
        about = About(key=key, hash=vouched, attributes=attributes, event_time=event_time)
        said, pending = said_of(about), Pending(self, key, nbytes)
        with self._lock:
            if self._command.slot is not None:
                self._check_lone(slots, self._command.slot)
            self._await(lambda: self._has_room(nbytes), timeout, "room in the window")
            self._check()
            self._box.add(Entry(slots, said, nbytes, pending))
            self._start()
            mine = self._may_send()
            if not mine and self._box.can_take:
                self._work.notify()
        if mine:
            self._send()
        return pending

    def _check_lone(self, slots: Mapping[str, pa.RecordBatch], slot: str) -> None:
        """A writer for one slot takes that one, in the first batch's schema; the lock is held."""
        if tuple(slots) != (slot,):
            raise BadRequest(
                "bad_request", f"this writer is for bundles with slot {slot} and no other."
            )
        schema = slots[slot].schema
        if self._schema is None:
            self._schema = schema
        elif not self._schema.equals(schema, check_metadata=True):
            raise BadRequest(
                "schema_mismatch",
                f"this writer is for slot {slot} in one schema, that of the first batch: take"
                " another writer for another one.",
            )

    def flush(self, timeout: float | None = None) -> None:
        """Wait until every bundle is answered; raises ``Rejected`` if some were refused."""
        with self._lock:
            self._hurry()
            self._await(lambda: not len(self._box), timeout, "all receipts")
            if self._failed is not None:
                raise self._failed
            self._raise_rejections()

    def close(self, timeout: float | None = None) -> None:
        """Flush, then end the call.  Fine to call twice."""
        try:
            if not self._closing:
                self.flush(timeout)
        finally:
            self._stop()

    def abort(self, timeout: float = ABORT_TIMEOUT) -> None:
        """End without complaint: what is in flight has a moment to arrive."""
        with contextlib.suppress(ClientError):
            self.close(timeout)

    @property
    def stats(self) -> WriterStats:
        """Counts so far."""
        with self._lock:
            return WriterStats(
                bundles=self._bundles,
                nbytes=self._nbytes,
                duplicates=self._duplicates,
                rejected=self._rejected,
                retries=self._retries,
                reconnects=self._reconnects,
            )

    @property
    def waiting_for(self) -> ClientError | None:
        """Why nothing moves just now: the refusal or lost connection that is being waited out."""
        return self._refusal

    def wait_for(self, ready: Callable[[], bool], timeout: float | None, what: str) -> None:
        """For :class:`Pending`."""
        if not ready():
            with self._lock:
                self._hurry()
                self._await(ready, timeout, what)

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()

    # Waiting and failing; the lock is held

    def _has_room(self, nbytes: int) -> bool:
        count = len(self._box)
        fits = count < self._window and self._box.nbytes + nbytes <= self._window_bytes
        return fits or count == 0

    def _hurry(self) -> None:
        """Somebody waits for receipts: no bundle waits for company."""
        self._box.hurry()
        self._work.notify()

    def _await(self, ready: Callable[[], bool], timeout: float | None, what: str) -> None:
        over = self._changed.wait_for(
            lambda: ready() or self._failed is not None or self._aborting, timeout
        )
        if not over:
            why = f" ({self._refusal.message})" if self._refusal is not None else ""
            raise Timeout("timeout", f"waited {timeout:g} s for {what}{why}.", retryable=True)

    def _check(self) -> None:
        if self._failed is not None:
            raise self._failed
        if self._closing:
            raise Closed("the writer")

    def _raise_rejections(self) -> None:
        if self._unraised and self._on_reject is None:
            rejections, count = self._rejections, self._unraised
            self._rejections, self._unraised = [], 0
            raise Rejected(rejections, count)

    def _fail(self, error: ClientError) -> None:
        self._failed = error
        for entry in self._box.clear():
            entry.waiter.settle(None, error)
        self._changed.notify_all()

    def _stop(self) -> None:
        with self._lock:
            self._closing = True
            if len(self._box):
                self._aborting = True
                self._fail(Closed("the writer"))
            self._work.notify()
            courier = self._courier
        if courier is not None and courier is not threading.current_thread():
            courier.join(END_TIMEOUT)

    # Sending: by one thread at a time, the caller's own or the courier

    def _may_send(self) -> bool:
        """Take the call if it is free, open and has something to carry; the lock is held."""
        if (
            self._sending
            or self._put_stream is None
            or self._lane_ended
            or self._failed is not None
        ):
            return False
        self._sending = self._box.can_take and self._nap() is None
        return self._sending

    def _send(self) -> None:
        """Send everything that is queued; the lock is only held to take the next."""
        put_stream = self._put_stream
        assert put_stream is not None
        try:
            while entries := self._next():
                wrapped = self._wrapped(entries)
                if wrapped is not None and (envelope := self._taken(len(entries))) is not None:
                    put_stream.send(wrapped, envelope)
        except BaseException as error:
            # Interrupted or refused, nobody knows how much of it went out: a new call.
            with self._lock:
                self._sending, self._lane_ended = False, True
                self._fault = typed(error) if isinstance(error, Exception) else None
                self._work.notify()
            if not isinstance(error, Exception):
                raise

    def _next(self) -> list[Entry[Pending]]:
        """The next to send, in one message; without any the call is free again."""
        with self._lock:
            if self._can_go():
                return self._box.next()
            self._sending = False
            if self._lane_ended or self._closing or self._box.must_resume:
                self._work.notify()
            return []

    def _can_go(self) -> bool:
        return self._box.can_take and not self._lane_ended and self._failed is None

    def _wrapped(self, entries: list[Entry[Pending]]) -> pa.RecordBatch | None:
        """A message for the wire; a bundle that can't be written is rejected here."""
        entry = entries[0]
        if self._command.slot is not None:
            return entry.slots[self._command.slot]
        try:
            return wrap(*[one.slots for one in entries])
        except (pa.ArrowException, TypeError, ValueError) as error:
            if len(entries) > 1:  # one of them: each for itself
                del entries[1:]
                return self._wrapped(entries)
            rejection = Rejection(entry.waiter.key, "invalid_bundle", str(error))
        with self._lock:
            if self._can_go():
                self._box.drop_first()
                self._reject(entry, rejection)
                self._changed.notify_all()
        if self._on_reject is not None:
            self._on_reject(rejection)
        return None

    def _taken(self, count: int) -> bytes | None:
        """Note that the first ones are on their way; their metadata."""
        with self._lock:
            return self._box.take(count)[1] if self._can_go() else None

    # The courier: opens calls, and does what nobody waits for

    def _start(self) -> None:
        if self._courier is None:
            self._courier = threading.Thread(target=self._run, name="quiver-courier", daemon=True)
            self._courier.start()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._due():
                    self._work.wait(self._nap() or self._rest_of_idling() or IDLE)
                ended = self._lane_ended
                resting = not ended and self._rest_of_idling() == 0.0
                if not (ended or resting) and not self._can_go():
                    break
                self._sending = not ended
            if ended:
                self._recover()
            elif resting:
                self._hang_up()
            elif self._put_stream is not None or self._open():
                self._send()
        if self._put_stream is not None:
            self._put_stream.end(END_TIMEOUT)

    def _nap(self) -> float | None:
        wait = self._rest_until - time.monotonic()
        return wait if wait > 0 else None

    def _rest_of_idling(self) -> float | None:
        """Seconds until a call that carries nothing is ended; ``None`` if there is none."""
        if self._put_stream is None or len(self._box) or self._closing:
            return None
        return max(0.0, self._idle_since + IDLE - time.monotonic())

    def _hang_up(self) -> None:
        """End a call that carries nothing; the next bundle begins another."""
        put_stream = self._put_stream
        assert put_stream is not None
        put_stream.end(END_TIMEOUT)
        with self._lock:
            self._put_stream, self._lane_ended, self._sending = None, False, False
            self._box.lane_lost()

    def _due(self) -> bool:
        """Whether the courier has something to do, or has to go."""
        if self._sending:
            return False
        if self._lane_ended or self._failed is not None:
            return True
        if self._rest_of_idling() == 0.0:
            return True
        if self._nap() is not None:
            return self._has_closed()
        if self._box.must_resume:
            self._retries += self._box.resume()
        return self._box.can_take or self._has_closed()

    def _has_closed(self) -> bool:
        return self._closing and not len(self._box)

    def _open(self) -> bool:
        """Begin a call; whether that worked."""
        try:
            assert self._schema is not None  # set by whoever put the first bundle
            self._put_stream = PutStream(self._connection, self._command, self._schema, self)
            self._put_stream.start()
        except Exception as error:
            with self._lock:
                self._sending, self._lane_ended = False, True
                self._fault = typed(error)
            return False
        return True

    def _recover(self) -> None:
        """The call is over: find out why, then go on after a while or give up."""
        put_stream = self._put_stream
        error = None if put_stream is None else put_stream.end(END_TIMEOUT)
        with self._lock:
            error = error or self._fault or lost("the server ended the call.")
            self._put_stream, self._lane_ended, self._fault = None, False, None
            self._box.lane_lost()
            if self._failed is None:
                self._reconnects += put_stream is not None
                self._rest(error)

    def _rest(self, error: ClientError) -> None:
        """Wait a while before the next try; the lock is held."""
        try:
            self._rest_until = time.monotonic() + self._backoff.after(error)
            self._refusal = error
        except ClientError as final:
            self._fail(final)

    # What comes back, on the call's thread

    def on_receipts(self, put_stream: PutStream, receipts: tuple[PutReceipt, ...]) -> None:
        """Settle what the server has answered."""
        rejections: list[Rejection] = []
        with self._lock:
            if put_stream is not self._put_stream:
                return
            for receipt in receipts:
                entry = self._box.answer(receipt)
                if entry is None:
                    self._refused(receipt)
                    continue
                self._settle(entry, receipt, rejections)
            self._changed.notify_all()
            if not len(self._box):
                self._idle_since = time.monotonic()
            if self._box.must_resume or self._box.can_take or self._has_closed():
                self._work.notify()
        if self._on_reject is not None:
            for rejection in rejections:
                self._on_reject(rejection)

    def _refused(self, receipt: PutReceipt) -> None:
        """Only the first refusal of a run says why; the others are merely out of turn."""
        if receipt.status == RETRY and receipt.code != "out_of_turn":
            if receipt.code == "draining":
                self._lane_ended = True  # it waits for us: end the call, go to its successor
                self._work.notify()
            details = {"retry_after_ms": receipt.retry_after_ms or 0}
            code, reason = receipt.code or "busy", receipt.reason or "the server is busy."
            self._rest(by_code(code, reason, retryable=True, details=details))

    def _settle(
        self, entry: Entry[Pending], receipt: PutReceipt, rejections: list[Rejection]
    ) -> None:
        self._backoff.reset()
        self._refusal = None
        if receipt.status == REJECTED or receipt.ref is None:
            rejection = Rejection(
                entry.waiter.key, receipt.code or "rejected", receipt.reason or "no reason given"
            )
            rejections.append(rejection)
            self._reject(entry, rejection)
            return
        self._bundles += 1
        self._nbytes += entry.nbytes
        self._duplicates += receipt.status == DUP
        entry.waiter.settle(
            Receipt(
                receipt.ref,
                receipt.sequence,
                receipt.durability,
                receipt.status == DUP,
                entry.waiter.key,
            ),
            None,
        )

    def _reject(self, entry: Entry[Pending], rejection: Rejection) -> None:
        self._rejected += 1
        self._unraised += 1
        if len(self._rejections) < MAX_REMEMBERED:
            self._rejections.append(rejection)
        entry.waiter.settle(None, Rejected([rejection]))

    def on_end(self, put_stream: PutStream) -> None:
        """No more receipts come."""
        with self._lock:
            if put_stream is self._put_stream:
                self._lane_ended = True
                self._work.notify()
