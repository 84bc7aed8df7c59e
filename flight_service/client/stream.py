"""One stream of a server: put into it, read it, subscribe to it, look after it."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import pyarrow as pa

from flight_service.client.bundle import Bundle
from flight_service.client.connection import Connection
from flight_service.client.errors import Rejection
from flight_service.client.forking import guard
from flight_service.client.parts import SlotBatch, TicketParts
from flight_service.client.pending import Data, Receipt
from flight_service.client.reading import Range, Reading, When, Where, to_start
from flight_service.client.retry import Retry
from flight_service.client.staging import PART_BYTES, StageWriter
from flight_service.client.subscription import Subscription
from flight_service.client.writer import Writer
from flight_service.protocol.actions import (
    Ack,
    Defer,
    Done,
    Drain,
    Drained,
    Dropped,
    Flushed,
    LagReport,
    LagRequest,
    Maintained,
    OptionalStreamRequest,
    Outcomes,
    Position,
    Register,
    Registered,
    Reject,
    Seek,
    StatusReport,
    StreamRequest,
    SubscriberRequest,
    WaitDurable,
)
from flight_service.protocol.exchange import SubscribeCommand
from flight_service.protocol.names import Ref, check_name
from flight_service.protocol.plan import (
    MAX_PART_BUNDLES,
    MAX_PARTS,
    PART_SIZE,
    Plan,
    Planned,
    Run,
    Schemas,
    SchemasRequest,
)
from flight_service.protocol.put import MAX_TOGETHER, PutCommand
from flight_service.protocol.stage import Abort, Aborted, Begin, Begun, CommitDone, CommitStages

WINDOW: Final = 256
WINDOW_BYTES: Final = 64 << 20
PREFETCH: Final = 64
PREFETCH_BYTES: Final = 64 << 20
MAX_CONSUMER: Final = 64

Durability = Literal["accepted", "durable"]


@dataclass(frozen=True, slots=True)
class Lag:
    """How far a subscriber is behind."""

    bundles: int
    rows: int
    nbytes: int
    age_seconds: float

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Lag:
        """Out of a lag report."""
        return cls(
            bundles=int(report.get("bundles", 0)),
            rows=int(report.get("rows", 0)),
            nbytes=int(report.get("nbytes", 0)),
            age_seconds=float(report.get("age_seconds") or 0.0),
        )


class Stream:
    """A stream by its name; asking for one costs nothing and checks nothing yet."""

    def __init__(self, connection: Connection, name: str, retry: Retry) -> None:
        self.name = check_name("stream", name)
        self._connection = connection
        self._retry = retry
        self._reading = Reading(connection, name, retry)
        self._parts = TicketParts(connection, name, retry)
        self._lock = threading.Lock()
        self._shared: Writer | None = None
        guard(self)

    # Putting

    def put(
        self,
        bundle: Mapping[str, Data],
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        event_time: tuple[int, int] | None = None,
        timeout: float | None = None,
    ) -> Receipt:
        """Put one bundle and wait until it is durable.

        >>> receipt = telemetry.put({"Logs": logs, "LogAttrs": attrs}, key="job-1/0")
        >>> receipt.durability, receipt.duplicate
        ('durable', False)
        >>> telemetry.put({"Logs": logs, "LogAttrs": attrs}, key="job-1/0").duplicate
        True
        """
        with self._lock:
            if self._shared is None:
                self._shared = self.writer(on_reject=lambda rejection: None)
            writer = self._shared
        pending = writer.put(
            bundle, key=key, attributes=attributes, event_time=event_time, timeout=timeout
        )
        return pending.result(timeout)

    def writer(
        self,
        *,
        window: int = WINDOW,
        window_bytes: int = WINDOW_BYTES,
        together: int = MAX_TOGETHER,
        durability: Durability = "durable",
        retry: Retry | None = None,
        on_reject: Callable[[Rejection], None] | None = None,
        slot: str | None = None,
    ) -> Writer:
        """Put many bundles, up to ``window`` of them in flight.

        Leaving the block waits for all receipts.  A server that restarts in the middle
        costs time and nothing else, as long as it comes back before ``retry`` gives up
        (``durability="accepted"`` is the exception: a crash may lose what was only that).
        With ``slot``, bundles hold that one only, all in the same schema; large ones cost
        less so.  Small bundles share messages while others are on the way, up to ``together``
        of them; 1 sends each in its own, at once.

        >>> with telemetry.writer(window=64) as w:
        ...     for number in range(100):
        ...         pending = w.put({"Logs": logs}, key=f"job-2/{number}")
        >>> pending.result().durability
        'durable'
        >>> w.stats.bundles
        100
        """
        return Writer(
            self._connection,
            PutCommand(
                stream=self.name,
                durability=durability,
                mode="bundle" if slot is None else "slot",
                slot=slot,
            ),
            window=window,
            window_bytes=window_bytes,
            together=together,
            retry=retry or self._retry,
            on_reject=on_reject,
        )

    # Staged writes: many producers, all at once or not at all

    def begin(self, app: str, version: int) -> Begun:
        """Whether a transaction is committed already: then there is nothing left to write.

        >>> telemetry.begin("job-7", 0).committed
        False
        """
        request = Begin(stream=self.name, app=app, version=version)
        return self._connection.action("begin", request, Begun, retry=self._retry)

    def stage(
        self,
        app: str,
        version: int,
        attempt: str | None = None,
        *,
        window: int = WINDOW,
        window_bytes: int = WINDOW_BYTES,
        part_bytes: int = PART_BYTES,
        retry: Retry | None = None,
    ) -> StageWriter:
        """Write a share of a transaction; nobody sees it before it is committed.

        ``attempt`` is a name of this share that nobody else uses; chance makes one.  A
        server that restarts in the middle costs time and nothing else: up to ``part_bytes``
        are kept here, to be sent again.

        >>> with telemetry.stage("job-7", 0) as share:
        ...     share.put({"Logs": logs})
        >>> done = telemetry.commit("job-7", 0, share.finish().attempts)
        >>> done.bundles, done.repeated
        (1, False)
        >>> telemetry.commit("job-7", 0, share.finish().attempts).repeated
        True
        """
        return StageWriter(
            self._connection,
            self.name,
            app,
            version,
            attempt,
            window=window,
            window_bytes=window_bytes,
            part_bytes=part_bytes,
            retry=retry or self._retry,
        )

    def commit(self, app: str, version: int, attempts: Iterable[str]) -> CommitDone:
        """Publish finished attempts in this order, all at once; all others are removed.

        Asked again until it is answered: a repeat changes nothing and says ``repeated``.
        """
        request = CommitStages(stream=self.name, app=app, version=version, attempts=tuple(attempts))
        return self._connection.action("commit", request, CommitDone, retry=self._retry)

    def abort(self, app: str, version: int, attempts: Iterable[str] | None = None) -> int:
        """Remove what a transaction staged, or these attempts; changes nothing committed.

        >>> telemetry.abort("job-8", 0)
        0
        """
        only = None if attempts is None else tuple(attempts)
        request = Abort(stream=self.name, app=app, version=version, attempts=only)
        return self._connection.action("abort", request, Aborted, retry=self._retry).attempts

    # Receiving

    def subscribe(
        self,
        subscriber: str,
        start: Where = "earliest",
        *,
        follow: bool = True,
        slots: Sequence[str] | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        order: Literal["oldest", "newest"] = "oldest",
        prefetch: int = PREFETCH,
        prefetch_bytes: int = PREFETCH_BYTES,
        lease: float | None = None,
        consumer: str | None = None,
        retry: Retry | None = None,
    ) -> Subscription:
        """Receive what the subscriber has not finished, and with ``follow`` what comes.

        A new subscriber begins at ``start``, a known one goes on where it was.  ``slots``
        and ``columns`` (by slot) narrow what is sent; it is still the whole bundle that is
        acked.

        >>> rows = 0
        >>> with telemetry.subscribe("exporter", follow=False) as bundles:
        ...     for bundle in bundles:
        ...         rows += bundle["Logs"].num_rows
        ...         bundle.ack()
        >>> rows > 0, telemetry.lag("exporter").bundles
        (True, 0)
        """
        self.register(subscriber, start)
        command = SubscribeCommand(
            stream=self.name,
            subscriber=subscriber,
            consumer=(consumer or _whoami())[:MAX_CONSUMER],
            slots=None if slots is None else tuple(slots),
            projection=None
            if columns is None
            else {slot: tuple(names) for slot, names in columns.items()},
            order=order,
            credit=prefetch,
            credit_bytes=prefetch_bytes,
            lease_ms=None if lease is None else round(lease * 1000),
            together=MAX_TOGETHER,
        )
        return Subscription(self._connection, command, follow=follow, retry=retry or self._retry)

    # Looking

    def read(
        self,
        start: Ref | tuple[int, int] | None = None,
        end: Ref | tuple[int, int] | None = None,
        *,
        since: When | None = None,
        until: When | None = None,
        slots: Sequence[str] | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
    ) -> Iterator[Bundle]:
        """Bundles of a range, without a subscriber and without claiming anything.

        >>> first = next(telemetry.read(slots=["Logs"]))
        >>> list(first)
        ['Logs']
        """
        return self._reading.bundles(_range(start, end, since, until), slots, columns)

    def get(self, *refs: Ref | tuple[int, int]) -> list[Bundle]:
        """These bundles.

        >>> [bundle.ref == receipt.ref for bundle in telemetry.get(receipt.ref)]
        [True]
        """
        return list(self._reading.by_ref(refs))

    def batches(
        self,
        slot: str,
        columns: Sequence[str] | None = None,
        *,
        start: Ref | tuple[int, int] | None = None,
        end: Ref | tuple[int, int] | None = None,
        since: When | None = None,
        until: When | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """One slot's batches, in order: the fastest way to read.

        >>> table = pa.Table.from_batches(telemetry.batches("Logs", ["body"]))
        >>> table.column_names
        ['body']
        """
        return self._reading.batches(_range(start, end, since, until), slot, columns)

    def slot_part(
        self,
        runs: Iterable[Run],
        slot: str,
        columns: Sequence[str] | None = None,
        *,
        on_gone: Callable[[list[Ref]], None] | None = None,
    ) -> Iterator[SlotBatch]:
        """One slot of a plan's part, bundle by bundle, with its ref, place and time.

        A lost connection costs time and nothing else.  A bundle that is gone is an
        :class:`Expired` error, unless ``on_gone`` takes note of it.

        >>> (part,) = telemetry.plan().parts
        >>> [one.batch.num_rows for one in telemetry.slot_part(part.runs, "Logs")]
        [2]
        """
        return self._parts.slot(runs, slot, columns, on_gone)

    def bundle_part(
        self,
        runs: Iterable[Run],
        slots: Sequence[str] | None = None,
        columns: Mapping[str, Sequence[str]] | None = None,
        *,
        on_gone: Callable[[list[Ref]], None] | None = None,
    ) -> Iterator[Bundle]:
        """A plan's part as whole bundles, likewise.

        >>> (part,) = telemetry.plan().parts
        >>> [bundle.key for bundle in telemetry.bundle_part(part.runs)]
        ['job-1/0']
        """
        return self._parts.bundles(runs, slots, columns, on_gone)

    def tail(
        self, start: Ref | tuple[int, int] | None = None, *, slots: Sequence[str] | None = None
    ) -> Iterator[Bundle]:
        """What comes from now on (or from ``start`` on), for ever, leaving no trace.

        >>> live = telemetry.tail(receipt.ref)
        >>> next(live).key
        'job-1/0'
        """
        first = self.end() if start is None else Ref(*start)
        return self._reading.follow(Range(start=first), slots)

    def end(self) -> Ref:
        """Where the next bundle will be, or later: everything durable is before it."""
        report = self.status()
        return Ref(*report["end"])

    def schemas(self, *, earlier: bool = False) -> dict[str, list[pa.Schema]]:
        """Every schema of each slot, oldest first; no data is read for it.

        ``earlier``: those instead that bundles had which are gone by now.

        >>> [schema.names for schema in telemetry.schemas()["Logs"]]
        [['body', 'level']]
        """
        found = self._connection.action("schemas", SchemasRequest(stream=self.name), Schemas)
        chosen = {one.slot: one.earlier if earlier else one.schemas for one in found.slots}
        return {
            slot: [pa.ipc.read_schema(pa.py_buffer(one)) for one in messages]
            for slot, messages in chosen.items()
            if messages
        }

    def plan(
        self,
        start: Ref | tuple[int, int] | None = None,
        end: Ref | tuple[int, int] | None = None,
        *,
        since: When | None = None,
        until: When | None = None,
        max_bundles: int = MAX_PART_BUNDLES,
        max_bytes: int = PART_SIZE,
        max_parts: int = MAX_PARTS,
        subscriber: str | None = None,
    ) -> Planned:
        """A range cut into parts of at most ``max_bundles`` and ``max_bytes``, to share out.

        >>> planned = telemetry.plan(receipt.ref, max_bundles=1, max_parts=1)
        >>> planned.parts[0].bundles, planned.parts[0].end <= planned.latest
        (1, True)
        """
        request = Plan(
            stream=self.name,
            max_bundles=max_bundles,
            max_bytes=max_bytes,
            max_parts=max_parts,
            subscriber=subscriber,
            **_range(start, end, since, until).fields(),
        )
        return self._connection.action("plan", request, Planned)

    # Subscribers

    def register(self, subscriber: str, start: Where = "earliest", **policy: Any) -> Registered:
        """Make a subscriber known, durably: from here on its data is held for it.

        ``policy`` may set ``slots``, ``max_in_flight``, ``max_in_flight_bytes``,
        ``lease_ms``, ``max_deliveries``, ``poison``, ``dead_letter_stream``,
        ``backoff_ms`` and ``backoff_max_ms``.

        >>> telemetry.register("archive", start="latest", max_deliveries=5).created
        True
        """
        request = Register(stream=self.name, subscriber=subscriber, start=to_start(start), **policy)
        return self._connection.action("register", request, Registered)

    def unregister(self, subscriber: str) -> int:
        """Remove a subscriber for good; how many bundles it had not finished.

        >>> telemetry.unregister("archive")
        0
        """
        request = SubscriberRequest(stream=self.name, subscriber=subscriber)
        return self._connection.action("unregister", request, Dropped, retry=None).dropped

    def lag(self, subscriber: str) -> Lag:
        """How far a subscriber is behind."""
        return self.lags(subscriber)[subscriber]

    def lags(self, subscriber: str | None = None) -> dict[str, Lag]:
        """Lag of all subscribers, or of one."""
        request = LagRequest(stream=self.name, subscriber=subscriber)
        report = self._connection.action("lag", request, LagReport)
        return {name: Lag.of(one) for name, one in report.subscribers.items()}

    def seek(self, subscriber: str, to: Where) -> Ref:
        """Go on from somewhere else: before it all is done, behind it comes again.

        >>> position = telemetry.seek("exporter", "earliest")
        >>> telemetry.lag("exporter").bundles > 0
        True
        """
        request = Seek(stream=self.name, subscriber=subscriber, to=to_start(to))
        return self._connection.action("seek", request, Position).ref

    def ack(
        self, subscriber: str, refs: Iterable[Ref | tuple[int, int]], *, durable: bool = False
    ) -> Outcomes:
        """Finish bundles by their refs, claimed or not.

        >>> telemetry.ack("exporter", [receipt.ref], durable=True).taken
        1
        """
        request = Ack(stream=self.name, subscriber=subscriber, refs=_refs(refs), durable=durable)
        return self._connection.action("ack", request, Outcomes)

    def ack_before(
        self, subscriber: str, position: Ref | tuple[int, int], *, durable: bool = False
    ) -> int:
        """Finish all that can be read before a position, claimed or not; how many are new.

        >>> telemetry.ack_before("exporter", receipt.ref)
        0
        """
        request = Ack(
            stream=self.name, subscriber=subscriber, before=Ref(*position), durable=durable
        )
        return self._connection.action("ack", request, Outcomes).taken

    def reject(
        self, subscriber: str, refs: Iterable[Ref | tuple[int, int]], reason: str = ""
    ) -> Outcomes:
        """Give bundles up by their refs: dropped, on record."""
        request = Reject(stream=self.name, subscriber=subscriber, refs=_refs(refs), reason=reason)
        return self._connection.action("reject", request, Outcomes)

    def defer(
        self,
        subscriber: str,
        refs: Iterable[Ref | tuple[int, int]],
        delay: float | None = None,
        reason: str = "",
    ) -> Outcomes:
        """Have bundles delivered again later, by their refs."""
        request = Defer(
            stream=self.name,
            subscriber=subscriber,
            refs=_refs(refs),
            delay_ms=None if delay is None else round(delay * 1000),
            reason=reason,
        )
        return self._connection.action("defer", request, Outcomes)

    # Looking after it

    def status(self) -> dict[str, Any]:
        """Counts, sizes, subscribers and claims."""
        request = OptionalStreamRequest(stream=self.name)
        report = self._connection.action("status", request, StatusReport)
        return dict(report.streams[self.name])

    def flush(self) -> int:
        """Write everything in memory to segments; how many."""
        return self._connection.action("flush", StreamRequest(stream=self.name), Flushed).segments

    def maintain(self) -> dict[str, Any]:
        """Do all upkeep that is due; what was done."""
        request = StreamRequest(stream=self.name)
        return dict(self._connection.action("maintain", request, Maintained).work)

    def wait_durable(self, sequence: int, timeout: float = 10.0) -> None:
        """Return once the bundle with this sequence is on disk."""
        request = WaitDurable(stream=self.name, sequence=sequence, timeout_ms=round(timeout * 1000))
        self._connection.action("wait_durable", request, Done, waits=timeout)

    def drain(self, timeout: float = 10.0) -> bool:
        """Stop puts, write everything, wait for the subscribers; whether all are done."""
        request = Drain(stream=self.name, timeout_ms=round(timeout * 1000))
        return self._connection.action("drain", request, Drained, waits=timeout).drained

    def close(self) -> None:
        """Let go of what :meth:`put` keeps open."""
        with self._lock:
            writer, self._shared = self._shared, None
        if writer is not None:
            writer.abort()

    def __repr__(self) -> str:
        return f"<Stream {self.name}>"


def _range(
    start: tuple[int, int] | None,
    end: tuple[int, int] | None,
    since: When | None,
    until: When | None,
) -> Range:
    return Range(
        start=None if start is None else Ref(*start),
        end=None if end is None else Ref(*end),
        since=since,
        until=until,
    )


def _refs(refs: Iterable[tuple[int, int]]) -> tuple[Ref, ...]:
    return tuple(Ref(*ref) for ref in refs)


def _whoami() -> str:
    return f"{socket.gethostname()[:40]}:{os.getpid()}"
