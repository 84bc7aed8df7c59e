"""A query's subscriber: registered so that data is held, acked so that it is let go.

A subscriber of the query's own is registered when its name is in the checkpoint, which is when
the first batch is planned: a query that is stopped before that leaves nothing behind that
would hold data for ever.  Everything before a position that the checkpoint has made safe is
acked.  What a query should have got and can't any more (dropped by a policy, lost to damage, or
deleted while its subscriber was unknown) stops it, unless ``failOnDataLoss=false``: then it is
logged.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable

from flight_service.protocol.actions import Registered
from flight_service.protocol.names import Ref
from flight_service.protocol.plan import Lost
from spark_client.source.link import Link
from spark_client.source.offsets import LATEST, Offset, Span
from spark_client.source.problems import ReadError, data_loss
from spark_client.url import Target

_log = logging.getLogger("quiver.spark")


class QueryProgress:
    """The subscriber of one query, as its driver sees it."""

    def __init__(self, link: Link, subscriber: str | None, *, fail: bool) -> None:
        self._link = link
        self._subscriber = subscriber
        self._fail = fail
        self._first: Offset | None = None
        self._held = False
        self._acked: Ref | None = None
        self._told: set[int] = set()

    def begin(self, span: Span, *, explicit: bool) -> Offset:
        """Where a new query begins; asked more than once, and always the same.

        A subscriber that is known resumes, unless the options say where to start.
        """
        if self._first is None:
            name = self._subscriber or f"spark-{uuid.uuid4().hex[:24]}"
            self._first = Offset(self._start(span, explicit=explicit), name)
        return self._first

    def _start(self, span: Span, *, explicit: bool) -> Ref:
        if self._subscriber is not None:
            registered = self._register(
                self._subscriber, span.start if span.since_ns is None else span.since_ns
            )
            if registered.position is not None and not (explicit and not registered.created):
                return self._checked(span, registered.position)
        planned = self._link.ask(
            lambda stream: stream.plan(span.first, since=span.since_ns, max_parts=0)
        )
        if span.start == LATEST and span.since_ns is None:
            return planned.latest
        if span.first is not None:
            oldest = self._link.ask(lambda stream: stream.plan(max_parts=0)).start
            self._checked(span, oldest)
        return planned.start

    def _checked(self, span: Span, position: Ref) -> Ref:
        """Whether a start that was asked for is still there."""
        if span.first is not None and may_miss(span.first, position):
            self._miss(f"startingOffsets is {span.first}, and what is left begins at {position}.")
        return position

    def hold(self, name: str, position: Ref, *, fresh: bool) -> None:
        """From here on data is held from ``position`` on; ``fresh``: for the first time."""
        if self._held:
            return
        known = self._register(name, position)
        if known.created and not fresh:
            oldest = self._link.ask(lambda stream: stream.plan(max_parts=0)).start
            if may_miss(position, oldest):
                self._miss(
                    f"the subscriber {name} was not known any more, so nothing was held for it:"
                    f" the checkpoint is at {position}, and what is left begins at {oldest}."
                )

    def _register(self, name: str, start: str | int | Ref) -> Registered:
        registered = self._link.ask(lambda stream: stream.register(name, start))
        self._held = True
        return registered

    def ack(self, offset: Offset) -> None:
        """Everything before this is safe in the checkpoint."""
        name = self.name_of(offset)
        self.hold(name, offset.position, fresh=False)
        if self._acked is None or self._acked < offset.position:
            self._link.ask(lambda stream: stream.ack_before(name, offset.position))
            self._acked = offset.position

    def name_of(self, offset: Offset) -> str:
        """The subscriber: as the options say, or as the checkpoint does."""
        return self._subscriber or offset.subscriber

    def check(self, position: Ref, latest: Ref, lost: Iterable[Lost]) -> None:
        """Whether the stream still has what a query is about to read."""
        if position > latest:
            raise ReadError(
                "data_loss",
                f"{self._link.target}: the stream ends at {latest}, before the checkpoint's"
                f" {position}: it was deleted and made anew, or restored from an older copy. Start"
                " the query with a new checkpointLocation.",
            )
        fresh = [one for one in lost if one.segment not in self._told]
        report_losses(self._link.target, fresh, fail=self._fail)
        self._told.update(one.segment for one in fresh)

    def _miss(self, what: str) -> None:
        if self._fail:
            raise data_loss(self._link.target, what)
        _log.warning("quiver: %s: %s", self._link.target, what)


def may_miss(wanted: Ref, oldest: Ref) -> bool:
    """Whether bundles between a position and the oldest that is left may be gone.

    A position inside a segment may have been at its end: that alone is no sign.
    """
    first_whole = wanted.segment + (1 if wanted.bundle else 0)
    return oldest.segment > first_whole


def report_losses(target: Target, lost: Iterable[Lost], *, fail: bool) -> None:
    """What went before its time, by the server's own record."""
    gone = list(lost)
    if not gone:
        return
    reasons = ", ".join(sorted({one.reason for one in gone}))
    bundles = sum(one.bundles for one in gone)
    what = f"{bundles:,} bundles in {len(gone):,} segments went before they were read ({reasons})."
    if fail:
        raise data_loss(target, what)
    _log.warning("quiver: %s: %s", target, what)
