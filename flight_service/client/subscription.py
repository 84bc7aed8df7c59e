"""Receiving bundles: iterate, then say what became of each.

::

    with telemetry.subscribe("exporter") as bundles:
        for bundle in bundles:
            ship(bundle["Logs"])
            bundle.ack()

Bundles are pushed as soon as they are durable, up to the prefetch.  Outcomes travel
together and in the background; ``ack(durable=True)`` and ``flush(durable=True)`` wait for
the server's disk.  A lost connection is made again, and nothing that is still in your
hands comes twice because of it.  Several threads may iterate over one subscription, and
several processes may subscribe under one name: each bundle goes to one of them.

A subscription that is dropped without ``close`` ends by itself: no thread keeps it alive.
"""

from __future__ import annotations

import atexit
import contextlib
import weakref
from collections.abc import Iterator
from types import TracebackType
from typing import Final

from flight_service.client.bundle import Delivered
from flight_service.client.connection import Connection
from flight_service.client.errors import Closed, Forked
from flight_service.client.feed import END_TIMEOUT, Feed
from flight_service.client.forking import guard
from flight_service.client.retry import Retry
from flight_service.protocol.exchange import SubscribeCommand

EXIT_TIMEOUT: Final = 1.0
_open: Final[weakref.WeakSet[Feed]] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    # Threads that are inside gRPC when the interpreter goes away take it down.
    for feed in list(_open):
        with contextlib.suppress(Forked):
            feed.close(EXIT_TIMEOUT)


def _stop(feed: Feed) -> None:
    with contextlib.suppress(Forked):
        feed.stop()


class Subscription:
    """An iterator of bundles; see :meth:`flight_service.client.stream.Stream.subscribe`."""

    def __init__(
        self, connection: Connection, command: SubscribeCommand, *, follow: bool, retry: Retry
    ) -> None:
        self._command = command
        self._follow = follow
        self._closed = False
        guard(self)
        self._feed = Feed(connection, command, retry)
        _open.add(self._feed)
        self._drop = weakref.finalize(self, _stop, self._feed)

    @property
    def name(self) -> str:
        """The subscriber's name."""
        return self._command.subscriber

    @property
    def reconnects(self) -> int:
        """How often the connection was lost."""
        return self._feed.reconnects

    def next_bundle(self, timeout: float | None = None) -> Delivered | None:
        """The next bundle; ``None`` if none comes in time, or if all is drained or closed."""
        if self._closed:
            raise Closed("the subscription")
        return self._feed.next(timeout, drain=not self._follow)

    def __iter__(self) -> Iterator[Delivered]:
        return self

    def __next__(self) -> Delivered:
        bundle = None if self._closed else self._feed.next(None, drain=not self._follow)
        if bundle is None:
            raise StopIteration
        return bundle

    def flush(self, timeout: float | None = None, *, durable: bool = False) -> None:
        """Wait until all outcomes so far have arrived, and with ``durable`` are on disk.

        Raises what the server refused, when all the rest has arrived.
        """
        self._feed.flush(timeout, durable=durable)

    def close(self, timeout: float = END_TIMEOUT) -> None:
        """Send what was said, give back what is in hand.  Fine to call twice."""
        self._closed = True
        self._drop.detach()
        self._feed.close(timeout)

    def __enter__(self) -> Subscription:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Subscription {self.name} of {self._command.stream}>"
