"""What was said about bundles and is not confirmed yet: a state machine without any I/O.

::

    say ──► open groups ──take──► sent ──confirm──► done
                │                  │  └─ refs the server no longer holds for us ─┐
                └── call_lost ─────┴───────────────────────────► late ──settled──► done

Outcomes of one kind travel together.  A call that breaks gives its claims back, so what
was not confirmed by then is *late*: it is said again by an action, which counts whoever
holds the bundle now.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from flight_service.client.bundle import ACKED, REJECTED
from flight_service.client.errors import ClientError
from flight_service.protocol.actions import Ack, Defer, Reject
from flight_service.protocol.exchange import ClientMessage
from flight_service.protocol.names import Ref

MAX_GROUP: Final = 4_096
"""Most refs that one message carries."""


@dataclass(slots=True, eq=False)
class Group:
    """Refs with the same outcome."""

    kind: str
    reason: str
    delay_ms: int | None
    durable: bool
    refs: list[Ref] = field(default_factory=list)
    done: bool = False
    error: ClientError | None = None

    def message(self, number: int) -> ClientMessage:
        """For the live call."""
        refs = tuple(self.refs)
        return ClientMessage(
            id=number,
            durable=self.durable,
            ack=refs if self.kind == ACKED else (),
            reject=refs if self.kind == REJECTED else (),
            defer=refs if self.kind not in (ACKED, REJECTED) else (),
            delay_ms=self.delay_ms,
            reason=self.reason or None,
        )

    def request(self, stream: str, subscriber: str) -> tuple[str, Ack | Reject | Defer]:
        """The same as an action, which counts whether the bundle is claimed or not."""
        refs, reason, durable = tuple(self.refs), self.reason, self.durable
        if self.kind == ACKED:
            return "ack", Ack(stream=stream, subscriber=subscriber, refs=refs, durable=durable)
        if self.kind == REJECTED:
            return "reject", Reject(
                stream=stream, subscriber=subscriber, refs=refs, reason=reason, durable=durable
            )
        return "defer", Defer(
            stream=stream, subscriber=subscriber, refs=refs, delay_ms=self.delay_ms, reason=reason
        )


class Outcomes:
    """The outcomes of one subscription on their way."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, int | None, bool], Group] = {}
        self._sent: dict[int, Group] = {}
        self._full: list[Group] = []
        self._late: list[Group] = []
        self._next_id = 1
        self.urgent = False

    def __len__(self) -> int:
        """Groups that are not done."""
        return len(self._open) + len(self._full) + len(self._sent) + len(self._late)

    @property
    def unsent(self) -> bool:
        """Whether there is something to send on the live call."""
        return bool(self._open or self._full)

    @property
    def has_late(self) -> bool:
        """Whether there is something to say by an action."""
        return bool(self._late)

    def say(self, ref: Ref, kind: str, reason: str, delay_ms: int | None, durable: bool) -> Group:
        """Note an outcome; the group it travels with."""
        key = (kind, reason, delay_ms, durable)
        group = self._open.get(key)
        if group is None:
            group = self._open[key] = Group(kind, reason, delay_ms, durable)
        group.refs.append(ref)
        if len(group.refs) >= MAX_GROUP:
            self._full.append(self._open.pop(key))
            self.urgent = True
        if durable:
            self.urgent = True
        return group

    def next_id(self) -> int:
        """A number for a message that wants an answer."""
        number = self._next_id
        self._next_id += 1
        return number

    def take(self) -> list[ClientMessage]:
        """Everything that can be sent now."""
        messages: list[ClientMessage] = []
        for group in (*self._full, *self._open.values()):
            number = self.next_id()
            self._sent[number] = group
            messages.append(group.message(number))
        self._full.clear()
        self._open.clear()
        self.urgent = False
        return messages

    def confirm(self, number: int, not_taken: Iterable[Ref]) -> None:
        """The server has answered a message; some refs may no longer be ours."""
        group = self._sent.pop(number, None)
        if group is None:
            return
        refused = set(not_taken)
        if refused:
            group.refs = [ref for ref in group.refs if ref in refused]
            self._late.append(group)
        else:
            group.done = True

    def call_lost(self) -> None:
        """The call is over: all that is not confirmed is late."""
        self._late += [*self._sent.values(), *self._full, *self._open.values()]
        self._sent.clear()
        self._full.clear()
        self._open.clear()
        self.urgent = False

    def take_late(self) -> list[Group]:
        """What has to be said by an action; give it back with :meth:`still_late` if that fails."""
        late, self._late = self._late, []
        return late

    def still_late(self, groups: Iterable[Group]) -> None:
        """Saying it failed for now."""
        self._late[:0] = groups
