"""Which bundles of a writer are where: a state machine without any I/O.

::

    add ──► queued ──take──► sent ──receipt ok, dup, rejected──► gone
              ▲               │
              │               └─receipt retry──► again
              └──── resume (all answered) ─────────┘
              └──── lane_lost (the call broke): again, then sent ──┘

Order holds: after a ``retry`` nothing is taken until every message on the way is
answered (the server refuses what comes behind the gap), then all of them go again, in
their order, the first one saying which message of this call the server waits for: the
first it refused, however often that one was sent since.  After a lost call everything
unanswered goes again on a new one; keys make that safe.

Small bundles go together in one message, which costs both sides about as much as one of
them alone.  None waits for a clock: with nothing on the way the next one goes at once, and
while something is, what comes gathers until it fills a message, until all is answered, or
until somebody waits for it.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import pyarrow as pa

from flight_service.client.errors import ServerFault
from flight_service.protocol.put import (
    MAX_ENVELOPE,
    RETRY,
    PutReceipt,
    envelope_alone,
    envelope_together,
)

MESSAGE_BYTES: Final = 1 << 20
"""Bundles gather up to this size, of what they hold; a larger one goes alone, and at once."""
_PUNCTUATION: Final = 32
"""More than what stands around a bundle's part of an envelope."""

Waiter = TypeVar("Waiter")


@dataclass(slots=True, eq=False)
class Entry(Generic[Waiter]):
    """A bundle on its way, and who waits for it.

    The wrapped form is a copy: it is made when it is sent and not kept.  If the bundle has
    to go again it is made again, byte for byte the same.
    """

    slots: Mapping[str, pa.RecordBatch]
    said: bytes
    """What the producer says about it: see :func:`~flight_service.protocol.put.said_of`."""
    nbytes: int
    waiter: Waiter
    number: int = field(default=-1)


class Outbox(Generic[Waiter]):
    """The bundles of one writer that are not settled yet, in order."""

    def __init__(self, together: int = 1) -> None:
        self._together = together
        self._hurry = False
        self._queued_bytes = 0
        self._queued: deque[Entry[Waiter]] = deque()
        self._sent: deque[Entry[Waiter]] = deque()
        self._again: deque[Entry[Waiter]] = deque()
        self._next_number = 0
        self._gap: int | None = None
        self._filler: Entry[Waiter] | None = None
        self.nbytes = 0

    def __len__(self) -> int:
        return len(self._queued) + len(self._sent) + len(self._again)

    @property
    def must_resume(self) -> bool:
        """Whether something was refused for now and all the rest is answered."""
        return bool(self._again) and not self._sent

    @property
    def can_take(self) -> bool:
        """Whether there is something to send, and no reason to let it gather."""
        if not self._queued or self._again:
            return False
        return not self._sent or self._hurry or self._fills_a_message()

    def _fills_a_message(self) -> bool:
        return len(self._queued) >= self._together or self._queued_bytes >= MESSAGE_BYTES

    def hurry(self) -> None:
        """Somebody waits: what is queued by now does not wait for company."""
        self._hurry = bool(self._queued)

    def add(self, entry: Entry[Waiter]) -> None:
        """A new bundle, behind all others."""
        self._queued.append(entry)
        self._queued_bytes += entry.nbytes
        self.nbytes += entry.nbytes

    def next(self) -> list[Entry[Waiter]]:
        """The bundles for the next message."""
        found = [self._queued[0]]
        if self._gap is not None and self._filler is None:
            return found  # it says which gap it fills: alone
        size, told = found[0].nbytes, len(found[0].said)
        for entry in itertools.islice(self._queued, 1, self._together):
            size += entry.nbytes
            told += len(entry.said) + _PUNCTUATION
            if size > MESSAGE_BYTES or told > MAX_ENVELOPE - _PUNCTUATION:
                break
            found.append(entry)
        return found

    def drop_first(self) -> None:
        """It can't be sent at all."""
        entry = self._unqueue()
        self.nbytes -= entry.nbytes

    def take(self, count: int = 1) -> tuple[list[Entry[Waiter]], bytes]:
        """The next bundles as sent, in one message, and its metadata for the wire."""
        taken = [self._number(self._unqueue()) for _ in range(count)]
        if count > 1:
            return taken, envelope_together((len(one.slots), one.said) for one in taken)
        resend = None
        if self._gap is not None and self._filler is None:
            self._filler, resend = taken[0], self._gap
        return taken, envelope_alone(taken[0].said, resend)

    def _unqueue(self) -> Entry[Waiter]:
        entry = self._queued.popleft()
        self._queued_bytes -= entry.nbytes
        self._hurry = self._hurry and bool(self._queued)
        return entry

    def _number(self, entry: Entry[Waiter]) -> Entry[Waiter]:
        entry.number = self._next_number
        self._next_number += 1
        self._sent.append(entry)
        return entry

    def _requeue(self, entries: deque[Entry[Waiter]]) -> int:
        """Before everything that is queued; how many."""
        count = len(entries)
        self._queued_bytes += sum(entry.nbytes for entry in entries)
        self._queued.extendleft(reversed(entries))
        entries.clear()
        return count

    def answer(self, receipt: PutReceipt) -> Entry[Waiter] | None:
        """Note a receipt; the entry it settles, or ``None`` if that one has to go again."""
        if not self._sent or self._sent[0].number != receipt.n:
            expected = self._sent[0].number if self._sent else "none"
            raise ServerFault(
                "internal",
                f"a receipt came for message {receipt.n}, {expected} was next.",
                retryable=True,
            )
        entry = self._sent.popleft()
        if receipt.status == RETRY:
            self._again.append(entry)
            if self._gap is None:
                self._gap = receipt.n
            return None
        if entry is self._filler:
            self._gap = self._filler = None
        self.nbytes -= entry.nbytes
        return entry

    def resume(self) -> int:
        """What was refused for now goes again, before everything else; how many."""
        self._filler = None
        return self._requeue(self._again)

    def lane_lost(self) -> int:
        """The call broke: all that is not answered goes again on the next; how many."""
        count = self._requeue(self._sent) + self._requeue(self._again)
        self._next_number = 0
        self._gap = self._filler = None
        return count

    def clear(self) -> list[Entry[Waiter]]:
        """Give everything up, in order."""
        self.lane_lost()
        given_up = list(self._queued)
        self._queued.clear()
        self.nbytes = self._queued_bytes = 0
        return given_up
