"""Subscribers that come and go: where they start, that they are known, what shows them.

A subscriber's name is durable before it is told that it is registered, and forgotten
before its file goes; what was left of it is given up on record.
"""

from __future__ import annotations

from collections.abc import Callable

from quiver import metrics as m
from quiver.events import SUBSCRIBER_ORPHANED, SUBSCRIBER_REGISTERED, SUBSCRIBER_UNREGISTERED
from quiver.ingest.parts import Parts
from quiver.subscriber.delivery import Delivery, Start
from quiver.subscriber.lag import Lag, measure_lag
from quiver.subscriber.subscriber import Subscriber
from quiver.upkeep.upkeep import Upkeep

_GAUGES = (m.SUBSCRIBER_LAG_BUNDLES, m.SUBSCRIBER_LAG_BYTES, m.SUBSCRIBER_LAG_SECONDS)


class Membership:
    """Who is known to a store."""

    def __init__(self, parts: Parts, upkeep: Upkeep, delivery: Delivery) -> None:
        self._parts = parts
        self._upkeep = upkeep
        self._delivery = delivery
        for subscriber in parts.registry.subscribers():
            self._show(subscriber)

    def register(self, name: str, start: Start) -> Subscriber:
        """Make a subscriber known, durably, or find a known one where it was."""
        parts, records = self._parts, self._upkeep.records
        position = self._delivery.start_ref(start, parts.segments.latest)
        known = any(one.name == name for one in parts.registry.subscribers())
        subscriber = records.guarded(lambda: parts.registry.register(name, position))
        if not records.names(name):
            records.checkpoint()
        if not known:
            self._show(subscriber)
            parts.log.info(SUBSCRIBER_REGISTERED, subscriber=name, start=str(position))
        return subscriber

    def activate(self) -> list[str]:
        """The start-up is over; who was not registered by now is an orphan."""
        orphans = self._parts.registry.activate()
        for name in orphans:
            self._parts.log.warning(SUBSCRIBER_ORPHANED, subscriber=name)
        return orphans

    def leave(self, name: str, remove: Callable[[str], int]) -> int:
        """Let a subscriber go; how many bundles it gave up."""
        given_up = self._upkeep.leave(name, remove)
        for metric in _GAUGES:
            self._parts.metrics.forget(metric, subscriber=name)
        self._parts.ledger.forget_subscriber(name)
        self._parts.log.info(SUBSCRIBER_UNREGISTERED, subscriber=name, dropped=given_up)
        return given_up

    def lag(self, subscriber: Subscriber) -> Lag:
        """How far it is behind."""
        parts = self._parts
        return measure_lag(subscriber, parts.registry, parts.segments, parts.clock)

    def _show(self, subscriber: Subscriber) -> None:
        """Have the metrics show a subscriber: its lag, and what it has lost."""
        self._parts.ledger.show_subscriber(subscriber.name)
        gauge, name = self._parts.metrics.gauge, subscriber.name
        bundles, nbytes, seconds = (gauge(metric, subscriber=name) for metric in _GAUGES)
        bundles.watch(lambda: self._parts.registry.behind(subscriber))
        nbytes.watch(lambda: self.lag(subscriber).nbytes)
        seconds.watch(lambda: self.lag(subscriber).age_seconds)
