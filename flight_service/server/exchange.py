"""DoExchange: the live subscription.

Two threads work on a call: the handler's own reads what the client says and answers it; a
*pusher* claims bundles and sends them.  Both write, one at a time.  A client that doesn't
read stops its own pusher and nobody else's.

The pusher is joined before the handler returns, and only the handler reads: Flight takes
the process down otherwise.  What the call had claimed goes back first, at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, Final

import pyarrow as pa

from flight_service.protocol.errors import ServiceError
from flight_service.protocol.exchange import ClientMessage, ServerMessage, SubscribeCommand
from flight_service.protocol.names import Ref
from flight_service.protocol.wrapper import BY_NUMBER
from flight_service.server.bundles import AT_ONCE, View, Wrapped, ready_next
from flight_service.server.claims import DeliveredBundle
from flight_service.server.edge import service_error
from flight_service.server.stream import ServedStream
from quiver import BundleRef
from quiver.errors import NotFound, QuiverError

PUSH_WAIT: Final = 0.5
"""The pusher looks up this often: is the server stopping, has the lease ended?"""
BURIAL_WAIT: Final = 2.0
"""Whoever asks whether everything was sent hears so when what was poison is a dead letter,
so that it can be looked at; a stream of the dead that has no room delays it by this much."""


class ExchangeCall:
    """One live subscription."""

    def __init__(
        self,
        stream: ServedStream,
        command: SubscribeCommand,
        reader: Any,
        writer: Any,
        *,
        stopping: Callable[[], bool],
    ) -> None:
        self._store = stream.store
        self._flush = stream.store.flush_progress
        self._group = stream.group(command.subscriber, create=True)
        self._command = command
        self._reader = reader
        self._writer = writer
        self._stopping = stopping
        self._view = View(command.slots, command.projection)
        self._lease = self._group.lease(command.consumer, command.lease_ms, bound=True)
        self._writing = threading.Lock()
        self._changed = threading.Condition(threading.Lock())
        self._credit = command.credit
        self._credit_bytes = command.credit_bytes
        self._ended = False
        self._questions: list[int] = []
        self._resting = False
        """The client has taken its credit back: what is claimed just now is not for it."""
        self._broken: ServiceError | None = None

    def run(self) -> None:
        """Serve the call until the client ends it, or is gone."""
        pusher = threading.Thread(target=self._push, name="quiver-push", daemon=True)
        try:
            self._writer.begin(BY_NUMBER)
            self._tell(ServerMessage(type="ready", lease_ms=int(self._lease.seconds * 1000)))
            pusher.start()
            self._listen()
        finally:
            self._end()
            try:
                self._group.release(self._lease)
            finally:
                if pusher.ident is not None:
                    pusher.join()  # whatever happened: it writes into memory that Flight frees
                    self._group.release(self._lease)
        if self._broken is not None:
            raise self._broken

    def _end(self) -> None:
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    # The handler's thread: what the client says

    def _listen(self) -> None:
        while not self._ended:
            try:
                chunk = self._reader.read_chunk()
            except StopIteration:
                return
            except (pa.ArrowException, OSError):
                return  # gone: the claims go back, there is nobody to tell
            self._group.heard(self._lease)
            if chunk.app_metadata is not None:
                try:
                    answer = self._answer(chunk.app_metadata.to_pybytes())
                except (ServiceError, QuiverError) as error:
                    said = service_error(error)
                    answer = ServerMessage(type="error", code=said.code, reason=said.message[:500])
                if answer is not None and not self._tell(answer):
                    return

    def _answer(self, data: bytes) -> ServerMessage | None:
        said = ClientMessage.decode(data)
        refused = self._outcomes(said)
        if said.pause:
            with self._changed:
                self._credit = self._credit_bytes = 0
                self._resting = True
        if said.credit or said.credit_bytes:
            with self._changed:
                self._credit += said.credit
                self._credit_bytes += said.credit_bytes
                self._resting = False
                self._changed.notify_all()
        if said.ack or said.reject or said.defer or said.durable:
            if said.durable:
                self._flush((self._group.name,))
            return ServerMessage(type="done", id=said.id, durable=said.durable, refs=refused)
        if said.id is not None:
            # Only the pusher knows whether everything was sent: it answers in its turn.
            with self._changed:
                self._questions.append(said.id)
                self._changed.notify_all()
            return None
        return ServerMessage(type="pong") if said.ping else None

    def _outcomes(self, said: ClientMessage) -> tuple[Ref, ...]:
        group, lease, reason = self._group, self._lease.id, said.reason or ""
        delay = None if said.delay_ms is None else said.delay_ms / 1000
        problems = []
        if said.ack:
            problems += group.ack(said.ack, lease)[1]
        if said.reject:
            problems += group.reject(said.reject, reason, lease)[1]
        if said.defer:
            problems += group.defer(said.defer, delay, reason, lease)[1]
        if said.unread:
            group.put_back(said.unread, lease)
        return tuple(ref for ref, _ in problems)

    def _tell(self, message: ServerMessage) -> bool:
        """Send a message without data; ``False`` if there is nobody any more."""
        try:
            with self._writing:
                self._writer.write_metadata(message.encode())
        except (pa.ArrowException, OSError):
            self._end()
            return False
        return True

    # The pusher's thread: bundles

    def _push(self) -> None:
        try:
            while self._may_push():
                asked = self._asked()
                claimed = self._claim(0.0 if asked else PUSH_WAIT)
                # First: a client forgets what it is told here, and what is claimed may be the same.
                self._tell_expired()
                if claimed and not self._send(claimed):
                    return
                idle = claimed == []
                if asked and idle:
                    self._group.await_burials(BURIAL_WAIT)
                for number in asked:
                    self._tell(ServerMessage(type="pong", id=number, idle=idle))
        except (ServiceError, QuiverError) as error:
            self._fail(service_error(error))
        except Exception as error:
            self._fail(service_error(error, "do_exchange"))

    def _may_push(self) -> bool:
        """Wait for credit; ``False`` when the call has ended or nothing more is to come."""
        if self._stopping():
            self._tell(ServerMessage(type="draining"))
            return False
        with self._changed:
            self._changed.wait_for(self._ready, PUSH_WAIT)
        return not self._ended

    def _ready(self) -> bool:
        return self._ended or bool(self._questions) or self._has_credit()

    def _has_credit(self) -> bool:
        return self._credit > 0 and self._credit_bytes > 0

    def _asked(self) -> list[int]:
        """Questions of the client that came before what is claimed next."""
        with self._changed:
            asked, self._questions = self._questions, []
            return asked

    def _claim(self, wait: float) -> list[DeliveredBundle] | None:
        """The next bundles; ``None`` if the client has no room for any."""
        with self._changed:
            if self._ended or not self._has_credit():
                return None
            bundles, nbytes = min(self._credit, AT_ONCE), self._credit_bytes
        claimed = self._group.claim(
            self._lease,
            max_bundles=bundles,
            max_bytes=nbytes,
            wait=wait,
            order=self._command.order,
            gone=lambda: (
                self._ended
                or self._stopping()
                or bool(self._questions)
                or bool(self._lease.expired)
            ),
        )
        with self._changed:
            if not self._resting:
                self._credit -= len(claimed)
                self._credit_bytes -= sum(one.handle.meta.nbytes for one in claimed)
                return claimed
        self._group.put_back([Ref(*one.handle.ref) for one in claimed], self._lease.id)
        return None

    def _send(self, claimed: list[DeliveredBundle]) -> bool:
        """Send bundles, made ready a few at a time; ``False`` if there is nobody any more."""
        delivered = {one.handle.ref: one for one in claimed}
        refs = list(delivered)
        together = self._command.together
        most = AT_ONCE if together == 1 else together
        while refs:
            try:
                ready = ready_next(self._store, refs[:most], self._view, delivered)
            except NotFound:
                # Dropped by retention or lost to damage in the meantime: there is nothing to send.
                gone = refs.pop(0)
                self._group.put_back([Ref(*gone)], self._lease.id)
                self._give_credit_back([delivered[gone]])
                continue
            some = refs[: len(ready.rows)]
            del refs[: len(some)]
            if together == 1:
                messages = zip([[ref] for ref in some], ready.each(), strict=True)
            else:
                messages = zip([some], [ready.together()], strict=True)
            for asked, message in messages:
                lost = self._write(message, asked)
                if self._ended:
                    return False
                if lost:
                    self._give_credit_back([delivered[ref] for ref in lost])
                    refs[:0] = [ref for ref in asked if ref not in lost]
        return True

    def _write(self, message: Wrapped, refs: list[BundleRef]) -> set[BundleRef]:
        """Send these bundles if all of them are still claimed here; else, which are not.

        A claim can end between being made and being sent: the lease ran out, or an ack of an
        earlier delivery came in.  Looked at under the lock that answers are written under, so
        whoever hears that its ack was taken has had every copy that will come.
        """
        try:
            with self._writing:
                lost = self._group.no_longer_held(self._lease, refs)
                if not lost:
                    self._writer.write_with_metadata(*message)
                return lost
        except (pa.ArrowException, OSError):
            self._end()
            return set()

    def _give_credit_back(self, unsent: list[DeliveredBundle]) -> None:
        """The client has room for what was claimed for it and not sent."""
        with self._changed:
            if not self._resting:
                self._credit += len(unsent)
                self._credit_bytes += sum(one.handle.meta.nbytes for one in unsent)

    def _tell_expired(self) -> None:
        expired = self._group.take_expired(self._lease)
        if expired:
            self._tell(ServerMessage(type="expired", refs=tuple(Ref(*ref) for ref in expired)))

    def _fail(self, error: ServiceError) -> None:
        """Tell why no more comes; the client ends the call, since a server can't."""
        self._broken = error
        self._tell(ServerMessage(type="error", code=error.code, reason=error.message[:500]))
