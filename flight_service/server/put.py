"""DoPut: bundles in, receipts out.

Two threads work on a call: the handler's own reads messages and stages them in the store;
a *sender* waits until they are durable and sends the receipts, all that a group commit
finished in one message.  Between them lies a bounded queue, in order.  A client that
doesn't read its receipts fills that queue and then waits for itself: nobody else does.

With a stage in the command the bundles go there instead.  They are answered at once: what
is promised is promised when the stage is finished (see ``stages.py``).

The sender is joined before the handler returns: Flight's writer must not be in use by
another thread then (that takes the process down).
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Final

import pyarrow as pa

from flight_service.protocol.errors import ServiceError
from flight_service.protocol.names import MAX_SLOTS
from flight_service.protocol.put import (
    ACCEPTED,
    DUP,
    DURABLE,
    MAX_RECEIPTS,
    MAX_TOGETHER,
    NO_ENVELOPE,
    OK,
    REJECTED,
    RETRY,
    About,
    Envelope,
    Member,
    PutCommand,
)
from flight_service.protocol.stage import STAGED
from flight_service.protocol.wrapper import (
    Row,
    SlotStream,
    check_rows,
    check_schema,
    rows_of,
    unwrap,
)
from flight_service.server.edge import service_error
from flight_service.server.pacing import Pacing
from flight_service.server.stages import STAGE_ENDED, OpenStage
from flight_service.server.stream import ServedStream
from quiver import Receipt
from quiver.errors import Fault, QuiverError, StoreClosed

MAX_REASON: Final = 500
OUT_OF_TURN: Final = "out_of_turn"
OUT_OF_TURN_MS: Final = 50
DEFAULT_RETRY_MS: Final = 100


@dataclass(slots=True)
class _PutAnswer:
    """The receipt of one message: known at once, or when ``receipt`` is done."""

    n: int
    fields: dict[str, Any] | None
    receipt: Receipt | None = None
    repeats: int | None = None
    """The message this one was sent again for: what its own repeat will name, too."""


class TurnGap:
    """The oldest message that was answered `retry` and has not come again.

    Nothing is taken before it.  Both threads of a call open it: the reading one when a bundle
    is refused, the sender when one could not be written, which may be an older one.  A client
    says `resend` for the first `retry` it reads, and receipts come in order: the lowest number
    counts, whichever thread was first.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._filled_by = 0
        self.first: int | None = None
        """Read without the lock."""

    def open(self, n: int, repeats: int | None) -> None:
        """Message ``n``, which repeats another or none, has to come again."""
        with self._lock:
            if n < self._filled_by:
                return  # the client knew of a gap then, and sends all behind it again
            number = n if repeats is None else repeats
            self.first = number if self.first is None else min(self.first, number)

    def fill(self, resend: int | None, n: int) -> None:
        """Message ``n`` was taken, or nobody will send it again; it may close the gap."""
        if resend is None:
            return
        with self._lock:
            if resend == self.first:
                self.first = None
                self._filled_by = n


class PutCall:
    """One DoPut."""

    def __init__(
        self,
        stream: ServedStream,
        command: PutCommand,
        reader: Any,
        writer: Any,
        *,
        window: int,
        put_wait: float,
        stopping: Callable[[], bool],
    ) -> None:
        self._stream = stream
        self._store = stream.store
        self._stage: OpenStage | None = None
        self._command = command
        self._reader = reader
        self._writer = writer
        self._window = window
        self._put_wait = put_wait
        self._awaited = command.durability != ACCEPTED  # by the sender
        self._stopping = stopping
        self._changed = threading.Condition(threading.Lock())
        self._answers: deque[_PutAnswer] = deque()
        self._sender_sleeps = False
        self._held_up = False
        self._ended = False
        self._client_gone = False
        self._gap = TurnGap()
        self._newest: _PutAnswer | None = None

    def run(self) -> None:
        """Serve the call; returns when the client has sent everything and been answered."""
        if self._command.mode == "bundle":
            check_schema(self._reader.schema)
        if self._command.stage is None:
            self._serve()
            return
        stage = self._stage = self._stream.stages.open(self._command.stage)
        broken = True
        try:
            self._serve()
            broken = self._client_gone
        finally:
            self._stream.stages.call_over(stage, broken=broken)

    def _serve(self) -> None:
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
                n += self._take_all(n, chunk)

    def _take_all(self, n: int, chunk: Any) -> int:
        """Take the bundles of a message; how many. They are answered together, once."""
        answers: list[_PutAnswer] = []
        try:
            answers.extend(self._answers_to(n, chunk))
        finally:  # what was taken is answered, also if the call ends with the next one
            self._enqueue(answers)
        return len(answers)

    def _enqueue(self, answers: list[_PutAnswer]) -> None:
        # Without the lock as long as nobody sleeps: one appends, one takes.  Each says that it
        # is going to sleep before it looks a last time, so the other either sees that or was
        # in time.
        if len(self._answers) >= self._window:
            with self._changed:
                self._held_up = True
                self._changed.wait_for(
                    lambda: len(self._answers) < self._window or self._client_gone
                )
                self._held_up = False
        self._answers.extend(answers)
        if self._sender_sleeps:
            with self._changed:
                self._changed.notify_all()

    def _answers_to(self, n: int, chunk: Any) -> Iterator[_PutAnswer]:
        """Take the bundles of a message, one after the other; mostly it is one."""
        try:
            envelope = _envelope(chunk.app_metadata)
        except ServiceError as error:
            yield self._refused(n, None, error)
            return
        if not envelope.bundles:
            yield self._take(n, envelope, chunk.data)
            return
        try:
            bundles = self._cut(chunk.data, envelope.bundles)
        except ServiceError as error:
            for number, member in enumerate(envelope.bundles, n):
                yield self._refused(number, member.key, error)
            return
        for number, (member, rows) in enumerate(bundles, n):
            yield self._take(number, member, rows)

    def _cut(
        self, batch: pa.RecordBatch, members: Sequence[Member]
    ) -> list[tuple[Member, Sequence[Row]]]:
        """The rows of each bundle of a message with several."""
        if self._command.mode == "slot":
            raise ServiceError("bad_request", "in slot mode a message is one bundle.")
        rows = rows_of(batch, MAX_SLOTS * MAX_TOGETHER)
        ends = list(itertools.accumulate([one.slots for one in members], initial=0))
        if ends[-1] != len(rows):
            raise ServiceError(
                "bad_request", f"the bundles have {ends[-1]:,} slots, the message {len(rows):,}."
            )
        cuts = itertools.pairwise(ends)
        return [(one, rows[start:end]) for one, (start, end) in zip(members, cuts, strict=True)]

    def _take(self, n: int, about: About, bundle: pa.RecordBatch | Sequence[Row]) -> _PutAnswer:
        resend = about.resend if isinstance(about, Envelope) else None
        try:
            self._check_turn(resend)
            if self._stage is not None:
                answer = self._put_into(self._stage, n, about, bundle)
            else:
                answer = _PutAnswer(n, None, self._put(about, bundle))
        except Exception as error:
            refused = self._refused(n, about.key, error)
            if _for_good(refused):
                self._gap.fill(resend, n)  # nobody will send it again
            return refused
        self._gap.fill(resend, n)
        answer.repeats = resend
        if self._awaited:  # what was only accepted is answered already, and never sent again
            self._newest = answer
        return answer

    def _check_turn(self, resend: int | None) -> None:
        """After a `retry` nothing is taken before that bundle: the order holds.

        Also when the sender has yet to find out that the newest could not be written.  What
        fails after this look, the store sees when it takes the next (``after``).
        """
        if self._stopping():
            raise ServiceError("draining", "the server is stopping.")
        newest = self._newest
        if newest is not None and newest.receipt is not None and newest.receipt.error is not None:
            self._newest = None
            self._gap.open(newest.n, newest.repeats)
        first = self._gap.first
        if first is None or resend == first:
            return
        raise ServiceError(
            OUT_OF_TURN,
            f"message {first} comes first: send it again, with resend.",
            details={"retry_after_ms": OUT_OF_TURN_MS},
        )

    def _put(self, about: About, bundle: pa.RecordBatch | Sequence[Row]) -> Receipt:
        after = None if self._newest is None else self._newest.receipt
        if self._command.mode == "slot":
            assert self._command.slot is not None
            return self._store.put(
                {self._command.slot: bundle},
                key=about.key,
                attributes=about.attributes,
                content_hash=about.hash,
                event_time=about.event_time,
                timeout=self._put_wait,
                awaited=self._awaited,
                after=after,
            )
        rows = _checked(bundle)
        return self._store.put_ipc(
            {row.slot: row.ipc for row in rows},
            key=about.key,
            attributes=about.attributes,
            fingerprints={row.slot: row.fingerprint for row in rows if row.fingerprint},
            content_hash=about.hash,
            event_time=about.event_time,
            timeout=self._put_wait,
            awaited=self._awaited,
            after=after,
        )

    def _put_into(
        self, stage: OpenStage, n: int, about: About, bundle: pa.RecordBatch | Sequence[Row]
    ) -> _PutAnswer:
        if about.key is not None or about.hash is not None:
            raise ServiceError(
                "bad_request", "a staged bundle has no key and no hash: its transaction is unique."
            )
        options: dict[str, Any] = {
            "attributes": about.attributes,
            "event_time": about.event_time,
            "timeout": self._put_wait,
        }
        if self._command.mode == "slot":
            assert self._command.slot is not None
            stage.put({self._command.slot: bundle}, **options)
        else:
            rows = _checked(bundle)
            prints = {row.slot: row.fingerprint for row in rows if row.fingerprint}
            stage.put_ipc({row.slot: row.ipc for row in rows}, fingerprints=prints, **options)
        return _PutAnswer(n, {"n": n, "status": OK, "durability": STAGED})

    def _refused(self, n: int, key: str | None, error: Exception) -> _PutAnswer:
        """A refusal is the bundle's answer; a broken store or an ended stage ends the call."""
        if isinstance(error, StoreClosed):
            error = ServiceError("draining", str(error))
        if isinstance(error, QuiverError) and _broken(error):
            raise error
        if isinstance(error, ServiceError) and error.code == STAGE_ENDED:
            raise error
        said = service_error(error, "do_put")
        return _PutAnswer(n, self._refusal(n, key, said))

    def _refusal(
        self, n: int, key: str | None, said: ServiceError, repeats: int | None = None
    ) -> dict[str, Any]:
        fields: dict[str, Any] = {"n": n, "status": RETRY if said.retryable else REJECTED}
        if key is not None:
            fields["key"] = key
        fields["code"] = said.code
        fields["reason"] = said.message[:MAX_REASON]
        if said.retryable:
            if said.code != OUT_OF_TURN:  # that one is sent again behind the gap anyway
                self._gap.open(n, repeats)
            wait = said.retry_after_ms
            fields["retry_after_ms"] = DEFAULT_RETRY_MS if wait is None else wait
        return fields

    # The sender's thread: tell what became of them

    def _send(self) -> None:
        pacing = Pacing(time.sleep)
        while (first := self._first()) is not None:
            if self._is_open(first):
                pacing.pause(self._answers.__len__)
                self._settle(first)
            receipts = self._finished()
            if not self._client_gone:
                try:
                    self._writer.write(_message(receipts))
                except (pa.ArrowException, OSError):
                    with self._changed:
                        self._client_gone = True
                        self._changed.notify_all()

    def _first(self) -> _PutAnswer | None:
        if not self._answers:
            with self._changed:
                self._sender_sleeps = True
                self._changed.wait_for(lambda: self._answers or self._ended)
                self._sender_sleeps = False
        return self._answers[0] if self._answers else None

    def _is_open(self, answer: _PutAnswer) -> bool:
        """Whether the answer still depends on the disk."""
        return self._awaited and answer.receipt is not None and not answer.receipt.done

    def _settle(self, answer: _PutAnswer) -> None:
        """Wait until the answer is known; with nobody to tell, there is no hurry either."""
        receipt = answer.receipt
        assert receipt is not None
        try:
            receipt.wait()
        except QuiverError:
            pass  # told by the receipt itself
        except Exception as error:
            said = service_error(error, "do_put")
            answer.fields = self._refusal(answer.n, receipt.key, said, answer.repeats)

    def _finished(self) -> list[str]:
        """All answers, from the first on, that are known by now; each as JSON."""
        accepted = self._command.durability == ACCEPTED
        answers = self._answers
        found: list[str] = []
        while answers and len(found) < MAX_RECEIPTS:
            answer = answers[0]
            receipt = answer.receipt
            if answer.fields is not None:
                said = _json(answer.fields)
            elif receipt is not None and (receipt.done or accepted):
                said = self._taken(answer.n, receipt, answer.repeats)
            else:
                break
            found.append(said)
            answers.popleft()
        if self._held_up:
            with self._changed:
                self._changed.notify_all()
        return found

    def _taken(self, n: int, receipt: Receipt, repeats: int | None) -> str:
        if receipt.error is not None:
            return _json(self._refusal(n, receipt.key, _lost(receipt.error), repeats))
        # Put together by hand: there is one for every bundle, and the encoder takes ten times
        # as long.
        segment, index = receipt.ref
        status = DUP if receipt.duplicate else OK
        durability = DURABLE if receipt.durable else ACCEPTED
        key = "" if receipt.key is None else f',"key":{encode_basestring(receipt.key)}'
        return (
            f'{{"n":{n},"status":"{status}","ref":[{segment},{index}],'
            f'"sequence":{receipt.sequence},"durability":"{durability}"{key}}}'
        )


def _checked(bundle: pa.RecordBatch | Sequence[Row]) -> list[SlotStream]:
    return unwrap(bundle) if isinstance(bundle, pa.RecordBatch) else check_rows(bundle)


def _for_good(answer: _PutAnswer) -> bool:
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


def _json(fields: dict[str, Any]) -> str:
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False)


def _message(receipts: list[str]) -> bytes:
    return f'{{"v":1,"receipts":[{",".join(receipts)}]}}'.encode()
