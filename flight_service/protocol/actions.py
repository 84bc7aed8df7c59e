"""Every action: its name, what it is asked with, what it answers, and what it does.

The body of an action is one JSON object, the answer one result with one JSON object.
:data:`ACTIONS` is the one table: ``ListActions``, the server's dispatch, the
authorisation table and the documentation are all made from it.

``ack`` also takes a position: all before it is finished, at the cost of a look.
``claim`` has the second name ``next``.  ``ack``, ``reject`` and ``defer`` take many refs
at once.  An outcome for a bundle whose lease has ended is not taken if the request names
the lease: such refs come back in ``problems`` with what became of them.  Without a lease
an outcome always counts: whoever dealt with a bundle may say so.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

from flight_service.protocol.exchange import DELAY_MS
from flight_service.protocol.get import (
    LEASE_ID,
    LEASE_MS,
    MAX_CLAIM_BUNDLES,
    MAX_CLAIM_BYTES,
    MAX_TICKET,
    ORDER,
    UUID,
    WAIT_MS,
    BundleInfo,
)
from flight_service.protocol.message import (
    BOOL,
    COUNT,
    OBJECT,
    REF,
    REFS,
    SLOTS,
    STREAM,
    SUBSCRIBER,
    TEXT,
    TIME_NS,
    Kind,
    Message,
    bad,
    choice,
    describe,
    listed,
    nested,
    of,
    text,
    whole,
)
from flight_service.protocol.names import Ref, read_ref
from flight_service.protocol.plan import Plan, Planned, Schemas, SchemasRequest
from flight_service.protocol.stage import (
    Abort,
    Aborted,
    Begin,
    Begun,
    CommitDone,
    CommitStages,
    FinishStage,
    StageFinished,
)

MAX_TIMEOUT_MS: Final = 3_600_000
TIMEOUT_MS: Final = whole(0, MAX_TIMEOUT_MS)

Start = str | Ref | int
"""``"earliest"``, ``"latest"``, a ref, or a time in ns since the epoch."""


def _read_start(value: Any, where: str) -> Start:
    if isinstance(value, str) and value in ("earliest", "latest"):
        return value
    if isinstance(value, list):
        return read_ref(value, where)
    if type(value) is int:
        time: int = TIME_NS.read(value, where)
        return time
    raise bad(f"{where} must be earliest, latest, a ref [segment, index] or a time in ns.")


START: Final = Kind(
    "earliest | latest | ref | time in ns",
    _read_start,
    lambda value: list(value) if isinstance(value, tuple) else value,
)


class StreamRequest(Message):
    """Actions on one stream."""

    stream: str = of(STREAM, doc="The stream.")


class OptionalStreamRequest(Message):
    """Actions on one stream, or on all that the caller may see."""

    stream: str | None = of(STREAM, default=None, doc="The stream; all if left out.")


class NoRequest(Message):
    """Actions that need nothing; an empty body will do."""


class Done(Message):
    """It was done."""


class SubscriberRequest(Message):
    """Actions on one subscriber."""

    stream: str = of(STREAM, doc="The stream.")
    subscriber: str = of(SUBSCRIBER, doc="The subscriber.")


class Register(Message):
    """Make a subscriber known, durably, and say how it is served.

    What is left out keeps its value for a known subscriber, and has the server's default
    for a new one.
    """

    stream: str = of(STREAM, doc="The stream.")
    subscriber: str = of(SUBSCRIBER, doc="The subscriber.")
    start: Start = of(START, default="earliest", doc="Where a new one begins; a known one resumes.")
    slots: tuple[str, ...] | None = of(
        SLOTS,
        default=None,
        doc="It needs only these: bundles without any of them are done at once.",
    )
    max_in_flight: int | None = of(
        whole(1, 65_536), default=None, doc="Most bundles claimed at a time."
    )
    max_in_flight_bytes: int | None = of(
        whole(1, MAX_CLAIM_BYTES), default=None, doc="Most bytes claimed at a time."
    )
    lease_ms: int | None = of(LEASE_MS, default=None, doc="How long a claim holds unless it says.")
    max_deliveries: int | None = of(
        whole(0, 1_000_000),
        default=None,
        doc="After so many without success it is poison; 0: never.",
    )
    poison: str | None = of(
        choice("dead_letter", "drop", "block"), default=None, doc="What to do with poison."
    )
    dead_letter_stream: str | None = of(
        STREAM, default=None, doc="Where dead letters go; else <stream>-dead."
    )
    backoff_ms: int | None = of(DELAY_MS, default=None, doc="Delay after the first failure.")
    backoff_max_ms: int | None = of(
        DELAY_MS, default=None, doc="Longest delay: it doubles each time."
    )


class Registered(Message):
    """The subscriber as it is served from now on."""

    status: str = of(TEXT, doc="registered, or active once the start-up is over.")
    created: bool = of(BOOL, doc="Whether it is new.")
    policy: Mapping[str, Any] = of(OBJECT, doc="All values of its policy.")
    position: Ref | None = of(
        REF, default=None, doc="The oldest bundle it has not finished, or the stream's end."
    )


class Dropped(Message):
    """How many bundles were given up."""

    dropped: int = of(COUNT, doc="Bundles that were not finished.")


class Orphans(Message):
    """Subscribers that hold data and have nobody to take it."""

    orphans: tuple[str, ...] = of(listed(TEXT, 100_000), doc="Their names.")


class Claim(Message):
    """Claim the next bundles for a subscriber."""

    stream: str = of(STREAM, doc="The stream.")
    subscriber: str = of(SUBSCRIBER, doc="For whom.")
    consumer: str | None = of(text(64), default=None, doc="Who of its consumers, for `status`.")
    max_bundles: int = of(whole(1, MAX_CLAIM_BUNDLES), default=256, doc="Most bundles.")
    max_bytes: int = of(
        whole(1, MAX_CLAIM_BYTES), default=64 << 20, doc="Most bytes, one bundle anyway."
    )
    wait_ms: int = of(WAIT_MS, default=0, doc="Wait so long for a first bundle.")
    lease_ms: int | None = of(LEASE_MS, default=None, doc="How long the claim holds.")
    order: str = of(ORDER, default="oldest", doc="Which bundles first.")


class Claimed(Message):
    """What was claimed; fetch it with a Ticket that names the lease."""

    body_limit: ClassVar[int] = 64 << 20

    lease: str | None = of(
        LEASE_ID, default=None, doc="Names the claim; none if nothing was there."
    )
    expires_ns: int | None = of(TIME_NS, default=None, doc="When it ends, by the server's clock.")
    bundles: tuple[BundleInfo, ...] = of(
        nested(BundleInfo, MAX_CLAIM_BUNDLES), doc="What was claimed, in order."
    )


class Ack(Message):
    """Bundles were dealt with."""

    body_limit: ClassVar[int] = MAX_TICKET

    stream: str = of(STREAM, doc="The stream.")
    subscriber: str = of(SUBSCRIBER, doc="By whom.")
    refs: tuple[Ref, ...] | None = of(REFS, default=None, doc="Which bundles.")
    lease: str | None = of(LEASE_ID, default=None, doc="Count only while this lease holds.")
    durable: bool = of(BOOL, default=False, doc="Answer once this is on disk.")
    before: Ref | None = of(
        REF, default=None, doc="All that can be read before this position, claimed or not."
    )
    uuid: str | None = of(
        UUID, default=None, doc="The stream's uuid: `expired` if it was made anew since."
    )

    def check(self) -> None:
        if self.before is None and self.refs is None:
            raise bad("Ack: refs is missing, or before.")
        if self.before is not None and self.lease is not None:
            raise bad("Ack: before counts whoever holds a claim; leave lease out.")


class Reject(Message):
    """Bundles can never be dealt with: they are dropped, on record."""

    body_limit: ClassVar[int] = MAX_TICKET

    stream: str = of(STREAM, doc="The stream.")
    subscriber: str = of(SUBSCRIBER, doc="By whom.")
    refs: tuple[Ref, ...] = of(REFS, doc="Which bundles.")
    reason: str = of(TEXT, default="", doc="Why, for the log.")
    lease: str | None = of(LEASE_ID, default=None, doc="Count only while this lease holds.")
    durable: bool = of(BOOL, default=False, doc="Answer once this is on disk.")
    uuid: str | None = of(
        UUID, default=None, doc="The stream's uuid: `expired` if it was made anew since."
    )


class Defer(Message):
    """Not now: deliver these again later (nack)."""

    body_limit: ClassVar[int] = MAX_TICKET

    stream: str = of(STREAM, doc="The stream.")
    subscriber: str = of(SUBSCRIBER, doc="By whom.")
    refs: tuple[Ref, ...] = of(REFS, doc="Which bundles.")
    delay_ms: int | None = of(DELAY_MS, default=None, doc="When at the earliest; else the backoff.")
    reason: str = of(TEXT, default="", doc="Why; comes with the next delivery.")
    lease: str | None = of(LEASE_ID, default=None, doc="Count only while this lease holds.")


class Problem(Message):
    """A ref whose outcome was not taken."""

    ref: Ref = of(REF, doc="Which bundle.")
    outcome: str = of(
        TEXT, doc="What is true of it: acked, dropped, pending, reclaimed, deleted, unknown."
    )


class Outcomes(Message):
    """What was taken, and what was not."""

    body_limit: ClassVar[int] = 64 << 20

    taken: int = of(COUNT, doc="Bundles whose outcome counts.")
    durable: bool = of(BOOL, default=False, doc="Whether it is on disk.")
    problems: tuple[Problem, ...] = of(
        nested(Problem, 65_536), default=(), doc="Those that were not."
    )


class Renew(Message):
    """Hold claims longer."""

    body_limit: ClassVar[int] = MAX_TICKET

    stream: str = of(STREAM, doc="The stream.")
    subscriber: str = of(SUBSCRIBER, doc="For whom.")
    lease: str = of(LEASE_ID, doc="The lease.")
    refs: tuple[Ref, ...] | None = of(REFS, default=None, doc="Only these; the others go back.")
    lease_ms: int | None = of(LEASE_MS, default=None, doc="How long from now.")


class Renewed(Message):
    """The lease as it stands."""

    held: int = of(COUNT, doc="Bundles still claimed under it.")
    expires_ns: int | None = of(TIME_NS, default=None, doc="When it ends, by the server's clock.")


class Seek(Message):
    """Go on from somewhere else: before it all is done, behind it comes again."""

    stream: str = of(STREAM, doc="The stream.")
    subscriber: str = of(SUBSCRIBER, doc="Who.")
    to: Start = of(START, doc="Where to.")


class Position(Message):
    """Where a subscriber goes on."""

    ref: Ref = of(REF, doc="The position.")


class Flushed(Message):
    """Segments written."""

    segments: int = of(COUNT, doc="How many.")


class WaitDurable(Message):
    """Wait until a bundle is on disk."""

    stream: str = of(STREAM, doc="The stream.")
    sequence: int = of(COUNT, doc="Of the bundle, from its receipt.")
    timeout_ms: int = of(TIMEOUT_MS, default=10_000, doc="Fail with `timeout` after this.")


class Maintained(Message):
    """What upkeep did."""

    work: Mapping[str, Any] = of(OBJECT, doc="Counts of what was done.")


class Drain(Message):
    """Take no more puts, write everything, wait until all subscribers are done."""

    stream: str = of(STREAM, doc="The stream.")
    timeout_ms: int = of(TIMEOUT_MS, default=10_000, doc="How long to wait for subscribers.")


class Drained(Message):
    """How a drain ended."""

    drained: bool = of(BOOL, doc="Whether all subscribers have finished everything.")


class StatusReport(Message):
    """The state of the server, its streams and their subscribers."""

    body_limit: ClassVar[int] = 64 << 20

    server: Mapping[str, Any] = of(OBJECT, doc="Version, uptime, health, limits in use.")
    streams: Mapping[str, Any] = of(OBJECT, doc="By name: counts, sizes, subscribers, claims.")


class LagRequest(Message):
    """How far subscribers are behind."""

    stream: str = of(STREAM, doc="The stream.")
    subscriber: str | None = of(SUBSCRIBER, default=None, doc="Only this one.")


class LagReport(Message):
    """Lag by subscriber: ``bundles``, ``rows``, ``nbytes``, ``age_seconds``."""

    body_limit: ClassVar[int] = 16 << 20

    subscribers: Mapping[str, Any] = of(OBJECT, doc="By name.")


class StreamList(Message):
    """Streams the caller may see."""

    body_limit: ClassVar[int] = 16 << 20

    streams: tuple[Mapping[str, Any], ...] = of(
        listed(OBJECT, 100_000), doc="Each with name and state."
    )


class CreateStream(Message):
    """Make a stream."""

    stream: str = of(STREAM, doc="Its name.")
    settings: Mapping[str, Any] | None = of(
        OBJECT, default=None, doc="Its settings, where they differ from the server's."
    )
    if_not_exists: bool = of(BOOL, default=False, doc="It is fine if it is there already.")


class Created(Message):
    """The stream is there, durably."""

    created: bool = of(BOOL, doc="Whether it is new.")


class DeleteStream(Message):
    """Delete a stream and all its data."""

    stream: str = of(STREAM, doc="Its name.")
    confirm: str = of(TEXT, doc="Its name once more: nothing is deleted by a slip.")
    force: bool = of(BOOL, default=False, doc="Even if subscribers have not finished.")


class Health(Message):
    """Whether the server can work."""

    status: str = of(choice("ok", "recovering", "degraded", "draining"), doc="The worst there is.")
    details: Mapping[str, Any] | None = of(OBJECT, default=None, doc="What is wrong, by stream.")


@dataclass(frozen=True, slots=True)
class Action:
    """One action of the protocol."""

    name: str
    request: type[Message]
    answer: type[Message]
    doc: str

    @property
    def description(self) -> str:
        """For ``ListActions``: what it does, what it takes, what it answers."""
        takes = describe(self.request.fields()) or "nothing"
        gives = describe(self.answer.fields()) or "nothing"
        return f"{self.doc} Takes: {takes}. Answers: {gives}."


ACTIONS: Final[Mapping[str, Action]] = {
    action.name: action
    for action in (
        Action("register", Register, Registered, "Make a subscriber known, durably."),
        Action(
            "unregister", SubscriberRequest, Dropped, "Remove a subscriber and what it had left."
        ),
        Action("activate", StreamRequest, Orphans, "End the start-up; who did not come is orphan."),
        Action("drop_orphan", SubscriberRequest, Dropped, "Remove an orphan, and only an orphan."),
        Action("claim", Claim, Claimed, "Claim the next bundles for a subscriber."),
        Action("next", Claim, Claimed, "The same as claim."),
        Action("ack", Ack, Outcomes, "Bundles were dealt with."),
        Action(
            "reject", Reject, Outcomes, "Drop bundles, on record: they can never be dealt with."
        ),
        Action("defer", Defer, Outcomes, "Not now: deliver bundles again later (nack)."),
        Action("renew", Renew, Renewed, "Hold claims longer."),
        Action("seek", Seek, Position, "Make a subscriber go on from somewhere else."),
        Action("plan", Plan, Planned, "Cut a range of bundles into parts, for many readers."),
        Action("schemas", SchemasRequest, Schemas, "Which schemas the slots have."),
        Action("flush", StreamRequest, Flushed, "Write everything in memory to segments."),
        Action("wait_durable", WaitDurable, Done, "Wait until a bundle is on disk."),
        Action("maintain", StreamRequest, Maintained, "Do all upkeep that is due."),
        Action("begin", Begin, Begun, "Ask whether a transaction is committed already."),
        Action(
            "finish_stage", FinishStage, StageFinished, "An attempt is complete: put it on disk."
        ),
        Action(
            "commit",
            CommitStages,
            CommitDone,
            "Publish the attempts of a transaction, all at once.",
        ),
        Action("abort", Abort, Aborted, "Remove what a transaction staged, if not committed."),
        Action("drain", Drain, Drained, "Stop puts to a stream, wait for its subscribers."),
        Action("status", OptionalStreamRequest, StatusReport, "The server and its streams."),
        Action("lag", LagRequest, LagReport, "How far subscribers are behind."),
        Action("list_streams", NoRequest, StreamList, "Streams the caller may see."),
        Action("create_stream", CreateStream, Created, "Make a stream."),
        Action("delete_stream", DeleteStream, Done, "Delete a stream and its data."),
        Action("health", NoRequest, Health, "Whether the server can work."),
    )
}
