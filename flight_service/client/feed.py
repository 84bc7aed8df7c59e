"""The machine behind a subscription: a reader, a messenger, and what they share.

The *reader* thread holds the live call, buffers what comes and reconnects when it breaks.
The *messenger* thread is the only one that sends: outcomes together, credit, and a sign
of life well within the lease.  The user's threads only touch the shared state.

When a call breaks, the server takes all claims of it back and delivers again.  Bundles in
the buffer are forgotten; bundles in the user's hands are not handed out a second time when
they come again; outcomes that were not confirmed are said again before the next call.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

from flight_service.client.bundle import DEFERRED, Delivered
from flight_service.client.call import Arrived, Call
from flight_service.client.connection import Connection
from flight_service.client.errors import (
    MAX_SHOWN,
    ClientError,
    Closed,
    Timeout,
    by_code,
    lost,
    typed,
)
from flight_service.client.forking import guard
from flight_service.client.outcomes import OutcomeGroup, OutcomeQueue
from flight_service.client.retry import Backoff, Retry
from flight_service.protocol.actions import Outcomes as Taken
from flight_service.protocol.exchange import ClientMessage, ServerMessage, SubscribeCommand
from flight_service.protocol.get import BundleInfo
from flight_service.protocol.names import Ref
from flight_service.protocol.wrapper import Row

LINGER: Final = 0.02
"""How long an outcome waits for company.  If somebody waits for a bundle it goes at once,
or as soon as the server has answered the ones before."""
DRAIN_PING: Final = 0.05
"""Between two questions whether everything has come."""
DEFAULT_LEASE: Final = 10.0
"""Assumed until the server says."""
HEARTBEATS: Final = 3
"""Signs of life within a lease."""
LATE_PAUSE: Final = 0.5
"""Before late outcomes are tried again."""
END_TIMEOUT: Final = 10.0


class Feed:
    """One subscription's state and threads."""

    def __init__(self, connection: Connection, command: SubscribeCommand, retry: Retry) -> None:
        self._connection = connection
        self._command = command
        self._backoff = Backoff(retry)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # for the user's threads
        self._work = threading.Condition(self._lock)  # for the messenger
        self._stopping = threading.Event()
        self._call: Call | None = None
        self._failed: ClientError | None = None
        self._closing = False
        self._buffer: deque[Arrived] = deque()
        self._held: set[Ref] = set()
        self._abandoned: deque[Ref] = deque()
        self._outcomes = OutcomeQueue()
        self._credit = self._credit_bytes = 0
        self._lease = DEFAULT_LEASE
        self._send_at: float | None = None
        self._beat_at = 0.0
        self._late_at = 0.0
        self._waiting = self._draining = 0
        self._ping_at = 0.0
        self._ping: int | None = None
        self._idle = False
        self._leaving = False  # the server is going: end the call when nothing is in hand
        self.reconnects = 0
        guard(self)
        self._threads = [
            threading.Thread(target=self._read, name="quiver-feed", daemon=True),
            threading.Thread(target=self._send, name="quiver-messenger", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    # For the user's threads

    def next(self, timeout: float | None, *, drain: bool) -> Delivered | None:
        """The next bundle; ``None`` when time is up, all is drained or the feed closed."""
        with self._lock:
            if self._buffer and not self._closing:
                return self._hand_out(*self._buffer.popleft())
            self._waiting += 1
            self._draining += drain
            if drain or self._must_send():
                self._work.notify()
            try:
                self._changed.wait_for(
                    lambda: bool(
                        self._buffer or self._failed or self._closing or (drain and self._idle)
                    ),
                    timeout,
                )
            finally:
                self._waiting -= 1
                self._draining -= drain
            if self._buffer and not self._closing:
                return self._hand_out(*self._buffer.popleft())
            if self._failed is not None:
                raise self._failed
            return None

    def _hand_out(self, info: BundleInfo, rows: Sequence[Row]) -> Delivered:
        self._idle = False
        self._held.add(info.ref)
        self._outcomes.handed_out(info.ref)
        self._grant(info)
        return Delivered(info, rows, self)

    def _grant(self, info: BundleInfo) -> None:
        """Room for what was taken: told at once when half of it is used, else by and by."""
        self._credit += 1
        self._credit_bytes += info.nbytes
        half = self._credit * 2 >= self._command.credit
        if half or self._credit_bytes * 2 >= self._command.credit_bytes:
            self._work.notify()

    def finish(
        self, ref: Ref, kind: str, *, reason: str, delay: float | None, durable: bool
    ) -> None:
        """An outcome for a bundle in the user's hands."""
        delay_ms = None if delay is None else max(0, round(delay * 1000))
        with self._lock:
            group = self._decide(ref, kind, reason, delay_ms, durable)
            if self._send_at is None:
                self._send_at = time.monotonic() + LINGER
                self._work.notify()
            elif self._must_send():
                self._work.notify()
            over = self._stopping.is_set()
        if durable and not over:
            self._await_group(group)
        if self._stopping.is_set() and not group.done:
            if durable:
                self._settle_all([group], None, None)
            else:
                self._settle_late()
        if durable and not group.done and ref in group.refs:
            raise group.error or self._failed or Closed("the subscription")

    def _await_group(self, group: OutcomeGroup) -> None:
        """Wait until it is confirmed, or until the live call is none any more."""
        with self._lock:
            self._changed.wait_for(lambda: group.over() or self._stopping.is_set())

    def abandon(self, ref: Ref) -> None:
        """From ``__del__``: no lock, a deque's append is atomic; the messenger looks at it."""
        self._abandoned.append(ref)

    def flush(self, timeout: float | None, *, durable: bool) -> None:
        """Wait until every outcome said so far has arrived (and is on disk).

        A call that breaks meanwhile is made again like any other, and what may not have
        reached the disk of a server that died is said again.  Outcomes that the server
        refuses are raised when all others have arrived, and said again by the next flush that
        asks for the disk.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._stopping.is_set():
            with self._lock:
                if durable:
                    self._forget(self._outcomes.doubts())
                    self._outcomes.mark()
                groups = self._outcomes.under_way()
                self._outcomes.urgent = True
                self._work.notify()
                self._await_all(groups, self._stopping.is_set, timeout, deadline)
            if all(group.over() and not group.lost for group in groups):
                _raise_error_of(groups)
                return
        with self._lock:
            if self._failed is not None:
                raise self._failed
            self._outcomes.call_lost()  # closed: there is no call to ask by
            if durable:
                self._outcomes.doubts()
            groups = self._outcomes.under_way()
        self._settle_all(groups, timeout, deadline)
        _raise_error_of(groups)

    def _await_all(
        self,
        groups: Sequence[OutcomeGroup],
        until: Callable[[], bool],
        timeout: float | None,
        deadline: float | None,
    ) -> None:
        """Wait for the threads that send them; the lock is held."""
        left = None if deadline is None else max(0.0, deadline - time.monotonic())
        if not self._changed.wait_for(lambda: _all_over(groups) or until(), left):
            raise Timeout("timeout", f"outcomes are not confirmed after {timeout:g} s.")

    # The reader

    def _read(self) -> None:
        while not self._stopping.is_set():
            self._end(self._serve() or lost("the server ended the call."))
        with self._lock:
            self._closing = True
            self._changed.notify_all()

    def _serve(self) -> ClientError | None:
        """Hold one call for as long as it lasts; how it ended."""
        call: Call | None = None
        try:
            self._settle_late()
            with self._lock:
                self._outcomes.call_begins()
            call = Call(self._connection, self._command)
            self._begin(call)
            for message in call.incoming():
                self._take(message)
        except ClientError as said:
            if call is not None:
                call.cancel()
                call.finish()
            return said
        # Arrow turns some ends of a call into a KeyboardInterrupt, also on this thread.
        except BaseException as caught:
            error = typed(caught) if isinstance(caught, Exception) else lost(str(caught))
            return error if call is None else call.finish() or error
        return call.finish()

    def _begin(self, call: Call) -> None:
        with self._lock:
            self._call = call
            if self._outcomes.needs_mark:
                self._outcomes.mark()  # the messenger has settled something while it was made
            self._credit = self._credit_bytes = 0
            self._beat_at = time.monotonic() + self._lease / HEARTBEATS
            self._ping, self._leaving = None, False
            if self._stopping.is_set():
                call.cancel()
            self._work.notify()

    def _end(self, error: ClientError) -> None:
        """The call is over: claims went back; try again after a while, or give up."""
        with self._lock:
            self.reconnects += self._call is not None and not self._stopping.is_set()
            self._call = None
            self._buffer.clear()
            self._ping, self._idle = None, False
            if self._stopping.is_set():
                return
            try:
                wait = self._backoff.after(error)
            except ClientError as final:
                self._failed = final
                self._stopping.set()
                self._changed.notify_all()
                self._work.notify()
                return
        self._stopping.wait(wait)

    def _take(self, message: ServerMessage | list[Arrived]) -> None:
        self._backoff.reset()
        with self._lock:
            if isinstance(message, ServerMessage):
                self._note(message)
            else:
                for info, rows in message:
                    self._arrive(info, rows)
            self._changed.notify_all()

    def _arrive(self, info: BundleInfo, rows: Sequence[Row]) -> None:
        self._idle = False
        if info.ref in self._held or self._outcomes.is_finishing(info.ref):
            self._grant(info)  # this claim is for the handle that is, or was, in the user's hands
        else:
            self._buffer.append((info, rows))

    def _note(self, message: ServerMessage) -> None:
        if message.type == "ready" and message.lease_ms is not None:
            self._lease = message.lease_ms / 1000
            self._beat_at = min(self._beat_at, time.monotonic() + self._lease / HEARTBEATS)
            self._work.notify()
        elif message.type == "done" and message.id is not None:
            self._outcomes.confirm(message.id, message.refs)
            self._work.notify()
        elif message.type == "error":
            raise by_code(message.code or "internal", message.reason or "the server failed.")
        elif message.type == "draining":
            self._leaving = True
            self._work.notify()
        elif message.type == "pong" and message.id == self._ping:
            self._ping = None
            self._idle = message.idle and not self._buffer
        elif message.type == "expired":
            self._forget(set(message.refs))

    def _forget(self, refs: set[Ref]) -> None:
        """What is not ours to hand out any more: claims that went back, or what is finished."""
        kept = deque(one for one in self._buffer if one[0].ref not in refs)
        for info, _ in self._buffer:
            if info.ref in refs:
                self._grant(info)
        self._buffer = kept

    # The messenger

    def _send(self) -> None:
        while True:
            with self._lock:
                while (wait := self._rest()) > 0:
                    self._work.wait(wait)
                if self._stopping.is_set():
                    return
                self._sweep()
                late = self._outcomes.has_late
                call = self._call
                messages = self._compose() if call is not None else []
                leave = self._can_leave()
                if leave:
                    self._leaving = False
            if late:
                self._try_late()
            if call is not None:
                for message in messages:
                    call.send(message)
                if leave:
                    call.done_sending()

    def _can_leave(self) -> bool:
        """Whether the server is going and nothing of it is in our hands."""
        return self._leaving and not (self._buffer or self._held or len(self._outcomes))

    def _rest(self) -> float:
        """Seconds until there is something to do; 0 if there is now."""
        if self._stopping.is_set():
            return 0.0
        now = time.monotonic()
        if self._outcomes.has_late and self._call is not None:
            return max(0.0, self._late_at - now)
        if self._call is None:
            return LATE_PAUSE
        if self._must_send() or self._can_leave():
            return 0.0
        due = [self._beat_at, now + 1.0]
        if self._outcomes.unsent and self._send_at is not None:
            due.append(self._send_at)
        if self._draining and self._ping is None and not self._idle:
            due.append(self._ping_at)
        if self._abandoned:
            return 0.0
        return max(0.0, min(due) - now)

    def _must_send(self) -> bool:
        """Whether something should not wait for company."""
        outcomes = self._outcomes
        if outcomes.unsent and (
            outcomes.urgent or self._closing or (self._waiting and not outcomes.unconfirmed)
        ):
            return True
        command = self._command
        return bool(self._credit) and (
            self._credit * 2 >= command.credit or self._credit_bytes * 2 >= command.credit_bytes
        )

    def _sweep(self) -> None:
        """Handles that disappeared without an outcome are given back."""
        while self._abandoned:
            ref = self._abandoned.popleft()
            if ref in self._held:
                self._decide(ref, DEFERRED, "dropped by the client", None, False)

    def _decide(
        self, ref: Ref, kind: str, reason: str, delay_ms: int | None, durable: bool
    ) -> OutcomeGroup:
        self._held.discard(ref)
        if kind == DEFERRED:
            # It comes again: what was asked before, answered or not, no longer tells whether
            # everything has come.
            self._ping, self._idle = None, False
        return self._outcomes.say(ref, kind, reason, delay_ms, durable)

    def _compose(self) -> list[ClientMessage]:
        """All there is to say, in one go; the last one carries credit and sign of life."""
        now = time.monotonic()
        messages = self._outcomes.take()
        self._send_at = None
        ask = self._draining > 0 and self._ping is None and not self._idle and now >= self._ping_at
        beat = now >= self._beat_at
        if ask:
            self._ping = self._outcomes.next_id()
            self._ping_at = now + DRAIN_PING
        if ask or (not messages and (beat or self._credit)):
            messages.append(ClientMessage(ping=ask or beat, id=self._ping if ask else None))
        if messages and self._credit:
            messages[-1] = messages[-1].changed(
                credit=self._credit, credit_bytes=self._credit_bytes
            )
            self._credit = self._credit_bytes = 0
        if messages:
            self._beat_at = now + self._lease / HEARTBEATS
        return messages

    # Late outcomes

    def _try_late(self) -> None:
        try:
            self._settle_late()
        except ClientError:
            with self._lock:
                self._late_at = time.monotonic() + LATE_PAUSE

    def _settle_late(self) -> None:
        """Say by actions what the live call could not bring home: all of it, if there is none."""
        with self._lock:
            if self._call is None or self._stopping.is_set():
                self._outcomes.call_lost()
                self._changed.notify_all()
            groups = self._outcomes.take_late()
        try:
            while groups:
                refused, error = self._try_to_say(groups[0])
                with self._lock:
                    self._outcomes.settled(groups.pop(0), refused, error)
                    if self._call is not None and self._outcomes.needs_mark:
                        self._outcomes.mark()
                    self._changed.notify_all()
        finally:
            with self._lock:
                self._outcomes.still_late(groups)
                self._changed.notify_all()

    def _try_to_say(self, group: OutcomeGroup) -> tuple[Sequence[Ref], ClientError | None]:
        """What the server refuses of it, and why; raises what may go better the next time."""
        try:
            refused = group.unfinished(self._say(group).problems)
        except ClientError as error:
            if error.retryable:
                raise
            return group.refs, error
        return refused, self._unknown(refused) if refused else None

    def _unknown(self, refs: Sequence[Ref]) -> ClientError:
        shown = ", ".join(str(ref) for ref in refs[:MAX_SHOWN])
        more = f" and {len(refs) - MAX_SHOWN:,} more" if len(refs) > MAX_SHOWN else ""
        return by_code(
            "unknown_bundle",
            f"{self._command.stream} has no bundle {shown}{more} to deliver to"
            f" {self._command.subscriber}: what was said about it does not count.",
            details={"refs": [list(ref) for ref in refs]},
        )

    def _settle_all(
        self, groups: Sequence[OutcomeGroup], timeout: float | None, deadline: float | None
    ) -> None:
        """The feed is closed: this thread says what is left, or waits for the one that does."""
        while not _all_over(groups):
            self._settle_late()
            with self._lock:
                self._await_all(groups, lambda: self._outcomes.has_late, timeout, deadline)

    def _say(self, group: OutcomeGroup) -> Taken:
        name, request = group.request(self._command.stream, self._command.subscriber)
        return self._connection.action(name, request, Taken, retry=None)

    # The end

    def close(self, timeout: float) -> None:
        """Bring outcomes home, end the call, give back what is held.  Fine to call twice.

        What nobody has looked at goes back as unread: it does not count as delivered.
        """
        deadline = time.monotonic() + timeout
        with self._lock:
            already, self._closing = self._closing, True
            self._work.notify()
            self._changed.notify_all()
            if not already:
                self._changed.wait_for(
                    lambda: not len(self._outcomes) or self._failed is not None, timeout
                )
            call = self._call
        if call is not None and not already:
            self._give_back_unread(call, deadline)
        self._stopping.set()
        with self._lock:
            self._work.notify()
            self._changed.notify_all()
        if call is not None:
            call.done_sending()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(max(0.0, deadline - time.monotonic()))
        if call is not None and self._threads[0].is_alive():
            call.cancel()

    def _give_back_unread(self, call: Call, deadline: float) -> None:
        """Have no more sent, wait for what is on its way, and give it back uncounted."""
        with self._lock:
            number = self._ping = self._outcomes.next_id()
        if not call.send(ClientMessage(pause=True, id=number)):
            return
        with self._lock:
            self._changed.wait_for(
                lambda: self._ping != number or self._call is not call,
                max(0.0, deadline - time.monotonic()),
            )
            unread = tuple(info.ref for info, _ in self._buffer)
            self._buffer.clear()
        if unread:
            call.send(ClientMessage(unread=unread))

    def stop(self) -> None:
        """End at once and wait for nobody: the subscription was dropped."""
        self._stopping.set()
        call = self._call
        if call is not None:
            call.cancel()


def _all_over(groups: Sequence[OutcomeGroup]) -> bool:
    return all(group.over() for group in groups)


def _raise_error_of(groups: Sequence[OutcomeGroup]) -> None:
    """What the server refused, if it did."""
    for group in groups:
        if group.error is not None:
            raise group.error
