"""What was said about bundles and is not confirmed yet: a state machine without any I/O.

::

    say ──► open groups ──take──► sent ──confirm──► done
                │                  │  └─ refs the server no longer holds for us ─┐
                └── call_lost ─────┴───────────────────────────► late ──settled──► done

Outcomes of one kind travel together.  A call that breaks gives its claims back, so what
was not confirmed by then is *late*: it is said again by an action, which counts whoever
holds the bundle now.

What is confirmed need not be on the server's disk yet.  It is remembered until it is; if
the call breaks first, the server may have died and it is *doubtful*.  What an action could
not deliver, because the server refuses it, is doubtful too.  ``doubts`` makes all of it late
again.  ``mark`` asks for the disk: once the mark is confirmed, everything that its call had
confirmed before is there.  A mark whose call breaks is lost, and its caller starts over.
What is late goes to the disk at once: the server that answers an action need not be the one
that serves the next call.  A bundle that is in the user's hands again is no longer doubtful:
what was said about it is void.

A lease that ran out, or an action that overtook a call, can bring a second copy of a bundle
whose outcome is on its way.  :meth:`OutcomeQueue.is_finishing` tells which copies must not be
handed out: from the moment an ack or a reject is said until a call that was made after it, or
a message sent on the live call after it, shows that every copy has come.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from flight_service.client.bundle import ACKED, REJECTED
from flight_service.client.errors import ClientError
from flight_service.protocol.actions import Ack, Defer, Problem, Reject
from flight_service.protocol.exchange import ClientMessage
from flight_service.protocol.names import Ref

MAX_GROUP: Final = 4_096
"""Most refs that one message carries."""
MAX_REMEMBERED: Final = 1_024
"""Refs confirmed and not known to be on disk; beyond, the next message asks for that."""
MAX_DOUBTFUL: Final = 65_536
"""For callers who never ask for the disk: beyond, all of them are said again."""
FINISHED: Final = frozenset(("acked", "dropped", "deleted", "lost"))
"""What the server may answer about a bundle that it never delivers again.  ``deleted`` is the
usual answer to an ack that is said twice: the first one counted, and the bundle was deleted."""


@dataclass(slots=True, eq=False)
class OutcomeGroup:
    """Refs with the same outcome."""

    kind: str
    reason: str
    delay_ms: int | None
    durable: bool
    refs: list[Ref] = field(default_factory=list)
    """Those that the server has not taken yet, or, with an ``error``, refuses."""
    done: bool = False
    lost: bool = False
    """A mark whose call broke before it was confirmed."""
    overtaken: set[Ref] = field(default_factory=set)
    """Of a mark: what an action finished while the live call may have had copies on its way."""
    error: ClientError | None = None
    """Why an action could not deliver it."""

    @property
    def final(self) -> bool:
        """Whether its bundles are finished by it."""
        return self.kind in (ACKED, REJECTED)

    def over(self) -> bool:
        """Whether its callers need not wait any more."""
        return self.done or self.lost or self.error is not None

    def unfinished(self, problems: Iterable[Problem]) -> list[Ref]:
        """Of the bundles that an action did not finish, those that may be delivered again.

        None of a deferral: they are delivered again whether it counts or not.
        """
        if not self.final:
            return []
        return [problem.ref for problem in problems if problem.outcome not in FINISHED]

    def message(self, number: int) -> ClientMessage:
        """For the live call."""
        refs = tuple(self.refs)
        return ClientMessage(
            id=number,
            durable=self.durable,
            ack=refs if self.kind == ACKED else (),
            reject=refs if self.kind == REJECTED else (),
            defer=() if self.final else refs,
            delay_ms=self.delay_ms,
            reason=self.reason or None,
        )

    def request(self, stream: str, subscriber: str) -> tuple[str, Ack | Reject | Defer]:
        """The same as an action, which counts whether the bundle is claimed or not."""
        refs, reason = tuple(self.refs), self.reason
        if self.kind == ACKED:
            return "ack", Ack(stream=stream, subscriber=subscriber, refs=refs, durable=True)
        if self.kind == REJECTED:
            return "reject", Reject(
                stream=stream, subscriber=subscriber, refs=refs, reason=reason, durable=True
            )
        return "defer", Defer(
            stream=stream, subscriber=subscriber, refs=refs, delay_ms=self.delay_ms, reason=reason
        )


class OutcomeQueue:
    """The outcomes of one subscription on their way."""

    def __init__(self) -> None:
        self._open: dict[tuple[str, str, int | None, bool], OutcomeGroup] = {}
        self._sent: dict[int, OutcomeGroup] = {}
        self._full: list[OutcomeGroup] = []
        self._late: list[OutcomeGroup] = []
        self._saying: list[OutcomeGroup] = []
        self._marks: list[OutcomeGroup] = []
        self._remembered: dict[Ref, tuple[str, str]] = {}
        self._doubtful: dict[Ref, tuple[str, str]] = {}
        self._finishing: set[Ref] = set()
        self._overtaken: set[Ref] = set()
        self._next_id = 1
        self.urgent = False

    def __len__(self) -> int:
        """Groups that are not done."""
        return len(self.under_way())

    def under_way(self) -> list[OutcomeGroup]:
        """All of them."""
        waiting = [*self._full, *self._open.values(), *self._marks]
        return [*self._saying, *self._late, *self._sent.values(), *waiting]

    @property
    def unsent(self) -> bool:
        """Whether there is something to send on the live call."""
        return bool(self._open or self._full or self._marks)

    @property
    def unconfirmed(self) -> bool:
        """Whether the server has yet to answer something."""
        return bool(self._sent)

    @property
    def has_late(self) -> bool:
        """Whether there is something to say by an action."""
        return bool(self._late)

    def is_finishing(self, ref: Ref) -> bool:
        """Whether a copy of this bundle is one too many: its end is said, and on its way."""
        return ref in self._finishing

    def say(
        self, ref: Ref, kind: str, reason: str, delay_ms: int | None, durable: bool
    ) -> OutcomeGroup:
        """Note an outcome; the group it travels with."""
        key = (kind, reason, delay_ms, durable)
        group = self._open.get(key)
        if group is None:
            group = self._open[key] = OutcomeGroup(kind, reason, delay_ms, durable)
        group.refs.append(ref)
        if group.final:
            self._finishing.add(ref)
        if len(group.refs) >= MAX_GROUP:
            self._full.append(self._open.pop(key))
            self.urgent = True
        if durable:
            self.urgent = True
        return group

    def mark(self) -> OutcomeGroup:
        """Ask that everything the call confirms before it is on disk; done, or lost with the call.

        It says nothing about what is doubtful: see :meth:`doubts`.
        """
        group = OutcomeGroup(ACKED, "", None, True)
        group.overtaken, self._overtaken = self._overtaken, set()
        self._marks.append(group)
        self.urgent = True
        return group

    def doubts(self) -> set[Ref]:
        """Have everything doubtful said again; what that is."""
        found = set(self._doubtful)
        groups: dict[tuple[str, str], OutcomeGroup] = {}
        for ref, (kind, reason) in self._doubtful.items():
            group = groups.setdefault((kind, reason), OutcomeGroup(kind, reason, None, False))
            group.refs.append(ref)
            if len(group.refs) >= MAX_GROUP:
                self._late.append(groups.pop((kind, reason)))
        self._late += groups.values()
        self._doubtful.clear()
        self._finishing |= found
        return found

    def handed_out(self, ref: Ref) -> None:
        """A bundle is in the user's hands, again perhaps: what was said before is void."""
        self._remembered.pop(ref, None)
        self._doubtful.pop(ref, None)

    def next_id(self) -> int:
        """A number for a message that wants an answer."""
        number = self._next_id
        self._next_id += 1
        return number

    def take(self) -> list[ClientMessage]:
        """Everything that can be sent now."""
        messages: list[ClientMessage] = []
        waiting = [*self._full, *self._open.values(), *self._marks]
        if waiting and self._must_ask_for_the_disk():
            waiting[-1].durable = True
        for group in waiting:
            number = self.next_id()
            self._sent[number] = group
            messages.append(group.message(number))
        self._full.clear()
        self._open.clear()
        self._marks.clear()
        self.urgent = False
        return messages

    def _must_ask_for_the_disk(self) -> bool:
        """Whether too much is remembered, and nothing on its way asks for it already."""
        asked = any(group.durable for group in self._sent.values())
        return len(self._remembered) >= MAX_REMEMBERED and not asked

    def confirm(self, number: int, not_taken: Iterable[Ref]) -> None:
        """The server has answered a message; some refs may no longer be ours."""
        group = self._sent.pop(number, None)
        if group is None:
            return
        refused = set(not_taken)
        taken = [ref for ref in group.refs if ref not in refused]
        if group.durable:
            self._remembered.clear()  # the server writes all there is, not only this
        else:
            self._remember(group, taken)
        if group.final:
            self._finishing.difference_update(taken, group.overtaken)
        if refused:
            group.refs = [ref for ref in group.refs if ref in refused]
            self._late.append(group)
        else:
            group.done = True

    def settled(
        self, group: OutcomeGroup, refused: Collection[Ref] = (), error: ClientError | None = None
    ) -> None:
        """An action has delivered a late group, but for the refs that the server refused.

        A call that is live or being made may have copies on their way: a mark ends that.
        """
        self._saying.remove(group)
        group.error = error
        group.done = error is None
        if group.final:
            self._overtaken.update(set(group.refs).difference(refused))
            self._finishing.difference_update(refused)
            self._doubtful.update(dict.fromkeys(refused, (group.kind, group.reason)))
        if refused:
            group.refs = list(refused)

    def call_begins(self) -> None:
        """A call is about to be made: it brings no copies of what is settled by now."""
        self._finishing -= self._overtaken
        self._overtaken.clear()

    @property
    def needs_mark(self) -> bool:
        """Whether an action has finished something behind a call's back."""
        return bool(self._overtaken)

    def _remember(self, group: OutcomeGroup, refs: list[Ref]) -> None:
        if group.final:
            self._remembered.update(dict.fromkeys(refs, (group.kind, group.reason)))

    def call_lost(self) -> None:
        """The call is over: what is not confirmed is late, what may not be on disk doubtful."""
        known = [*self._sent.values(), *self._full, *self._open.values(), *self._marks]
        for group in known:
            group.lost = not group.refs
            self._overtaken |= group.overtaken  # the next call may be on its way already
        self._late += [group for group in known if group.refs]
        self._doubtful |= self._remembered
        if len(self._doubtful) > MAX_DOUBTFUL:
            self.doubts()
        self._remembered.clear()
        self._marks.clear()
        self._sent.clear()
        self._full.clear()
        self._open.clear()
        self.urgent = False

    def take_late(self) -> list[OutcomeGroup]:
        """What has to be said by an action; give it back with :meth:`still_late` if that fails."""
        late, self._late = self._late, []
        self._saying += late
        return list(late)

    def still_late(self, groups: Iterable[OutcomeGroup]) -> None:
        """Saying them failed for now."""
        back = list(groups)
        for group in back:
            self._saying.remove(group)
        self._late[:0] = back
