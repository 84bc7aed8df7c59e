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
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa

from flight_service.client.errors import ServerFault
from flight_service.protocol.put import RETRY, Envelope, PutReceipt

Waiter = TypeVar("Waiter")


@dataclass(slots=True, eq=False)
class Entry(Generic[Waiter]):
    """A bundle on its way, and who waits for it.

    The wrapped form is a copy: it is made when it is sent and not kept.  If the bundle has
    to go again it is made again, byte for byte the same.
    """

    slots: Mapping[str, pa.RecordBatch]
    envelope: Envelope
    nbytes: int
    waiter: Waiter
    number: int = field(default=-1)


class Outbox(Generic[Waiter]):
    """The bundles of one writer that are not settled yet, in order."""

    def __init__(self) -> None:
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
    def on_the_way(self) -> int:
        """Messages of this call that are not answered yet."""
        return len(self._sent)

    @property
    def must_resume(self) -> bool:
        """Whether something was refused for now and all the rest is answered."""
        return bool(self._again) and not self._sent

    @property
    def can_take(self) -> bool:
        """Whether there is something to send."""
        return bool(self._queued) and not self._again

    def add(self, entry: Entry[Waiter]) -> None:
        """A new bundle, behind all others."""
        self._queued.append(entry)
        self.nbytes += entry.nbytes

    def first(self) -> Entry[Waiter]:
        """The next bundle to send."""
        return self._queued[0]

    def drop_first(self) -> None:
        """It can't be sent at all."""
        self.nbytes -= self._queued.popleft().nbytes

    def take(self) -> tuple[Entry[Waiter], bytes]:
        """The next bundle as sent, and its metadata for the wire."""
        entry = self._queued.popleft()
        entry.number = self._next_number
        self._next_number += 1
        self._sent.append(entry)
        envelope = entry.envelope
        if self._gap is not None and self._filler is None:
            self._filler = entry
            envelope = dataclasses.replace(envelope, resend=self._gap)
        return entry, envelope.encode()

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
        count = len(self._again)
        self._queued.extendleft(reversed(self._again))
        self._again.clear()
        self._filler = None
        return count

    def lane_lost(self) -> int:
        """The call broke: all that is not answered goes again on the next; how many."""
        count = len(self._again) + len(self._sent)
        self._queued.extendleft(reversed(self._sent))
        self._queued.extendleft(reversed(self._again))
        self._sent.clear()
        self._again.clear()
        self._next_number = 0
        self._gap = self._filler = None
        return count

    def clear(self) -> list[Entry[Waiter]]:
        """Give everything up, in order."""
        self.lane_lost()
        given_up = list(self._queued)
        self._queued.clear()
        self.nbytes = 0
        return given_up
