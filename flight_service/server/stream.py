"""One open stream: its store, its subscribers' desks, and what is kept about them.

``service.json`` beside the store holds what only the service knows: the settings the
stream was made with, how each subscriber is served, how often which bundle came back, and
which schemas its slots had.
It is replaced as a whole, atomically; losing its newest second costs nothing but some
delivery counts.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flight_service.protocol.actions import Register
from flight_service.server.claims import Bury, Failure
from flight_service.server.leases import Desk
from flight_service.server.policy import Policy
from flight_service.server.schemas import KnownSchemas
from flight_service.server.settings import DeliverySection
from flight_service.server.stages import Stages
from quiver import BundleRef, Store
from quiver.clock import Clock
from quiver.disk.disk import Disk
from quiver.errors import LimitExceeded, QuiverError, StateCorrupt, UnknownSubscriber
from quiver.ids import subscriber_id

SERVICE_FILE: Final = "service.json"
SAVE_SECONDS: Final = 1.0
MAX_SUBSCRIBERS: Final = 10_000
MAX_RECORD: Final = 64 << 20


@dataclass(slots=True)
class Record:
    """What ``service.json`` says."""

    settings: dict[str, Any] = field(default_factory=dict)
    subscribers: dict[str, Any] = field(default_factory=dict)
    schemas: dict[str, list[str]] = field(default_factory=dict)


def read_record(disk: Disk, place: str) -> Record:
    """The record of a stream; a stream without one has the server's settings."""
    path = f"{place}/{SERVICE_FILE}"
    try:
        data = disk.read(path)
    except FileNotFoundError:
        return Record()
    try:
        body = json.loads(data)
        if body["v"] != 1:
            raise ValueError(f"version {body['v']!r}")
        parts = [body.get(name, {}) for name in ("settings", "subscribers", "schemas")]
        if not all(isinstance(part, dict) for part in parts):
            raise TypeError("not objects")
    except (ValueError, TypeError, KeyError) as error:
        raise StateCorrupt(
            f"{path} can't be read: {error}.",
            advice="Restore it, or remove it to go on with the server's settings.",
            file=path,
        ) from None
    return Record(*parts)


def write_record(disk: Disk, place: str, kept: Mapping[str, Any]) -> None:
    """Keep a record, durably."""
    disk.replace(f"{place}/{SERVICE_FILE}", json.dumps({"v": 1, **kept}).encode())


class Stream:
    """A stream that is open."""

    def __init__(
        self,
        name: str,
        store: Store,
        record: Record,
        *,
        delivery: DeliverySection,
        clock: Clock,
        bury: Bury,
        save: Callable[[Mapping[str, Any]], None],
    ) -> None:
        self.name = name
        self.store = store
        self.stages = Stages(store, clock)
        self.schemas = KnownSchemas(store, record.schemas)
        self._settings = record.settings
        self._saved = record.subscribers
        self._default = Policy.default(delivery)
        self._clock = clock
        self._bury = bury
        self._save = save
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._desks: dict[str, Desk] = {}
        self._next_save = 0.0
        self._stale = False

    @property
    def settings(self) -> Mapping[str, Any]:
        """What it was made with."""
        return self._settings

    # Subscribers

    def desk(self, name: str, *, create: bool = False) -> Desk:
        """Where a subscriber is served; ``create`` makes one that isn't known yet."""
        with self._lock:
            found = self._desks.get(name)
            if found is not None:
                return found
        subscriber_id(name)
        known = self.store.subscribers
        if name not in known:
            if not create:
                raise UnknownSubscriber(
                    f"{self.name} has no subscriber {name!r}.", advice="Register it.", name=name
                )
            if len(known) >= MAX_SUBSCRIBERS:
                raise LimitExceeded("subscribers of a stream", len(known) + 1, MAX_SUBSCRIBERS)
        with self._lock:
            return self._desks.setdefault(name, self._new_desk(name))

    def _new_desk(self, name: str) -> Desk:
        saved = self._saved.get(name, {})
        policy = Policy.read(saved.get("policy", {}), self._default)
        desk = Desk(self.store, self.name, name, policy, self._clock, self._bury)
        for segment, index, count, reason in saved.get("failures", []):
            desk.failures[BundleRef(segment, index)] = Failure(count, reason)
        return desk

    def register(self, request: Register, start: Any) -> tuple[Desk, bool, BundleRef]:
        """Make a subscriber known and set its policy, durably; whether it is new, and where."""
        created = request.subscriber not in self.store.subscribers
        position = self.store.register(request.subscriber, start).position
        desk = self.desk(request.subscriber)
        policy = desk.policy.changed_by(request)
        if policy != desk.policy:
            desk.policy = policy
            self.save()
        return desk, created, position

    def forget(self, name: str, leave: Callable[[str], int]) -> int:
        """Remove a subscriber; how many bundles it gave up."""
        given_up = leave(name)
        with self._lock:
            self._desks.pop(name, None)
            self._saved.pop(name, None)
        self.save()
        return given_up

    # What is kept

    def save(self) -> None:
        """Write settings, policies, failures and schemas down, durably."""
        with self._saving:
            with self._lock:
                desks = list(self._desks.values())
                for desk in desks:
                    desk.changed = False
                    self._saved[desk.name] = {
                        "policy": desk.policy.write(),
                        "failures": [
                            [*ref, failure.count, failure.reason]
                            for ref, failure in desk.failures.copy().items()
                        ],
                    }
                kept = {
                    "settings": self._settings,
                    "subscribers": dict(self._saved),
                    "schemas": self.schemas.write(),
                }
            try:
                self._save(kept)
            except BaseException:
                self._stale = True
                raise
            self._stale = False

    def tick(self, now: float) -> None:
        """End leases and stages whose time is over; write what changed down, once a second."""
        self.stages.tick(now)
        self.schemas.look()
        with self._lock:
            desks = list(self._desks.values())
        for desk in desks:
            desk.expire(now)
        if now >= self._next_save and self._is_unsaved:
            self._next_save = now + SAVE_SECONDS
            self.save()

    @property
    def _is_unsaved(self) -> bool:
        changed = self.schemas.changed or any(desk.changed for desk in self.desks().values())
        return changed or self._stale

    @property
    def is_at_rest(self) -> bool:
        """Whether a tick has nothing to do before somebody uses it again."""
        return not (self.busy or self._is_unsaved)

    @property
    def busy(self) -> bool:
        """Whether a bundle is in somebody's hands, or a stage is being written."""
        with self._lock:
            return self.stages.busy or any(desk.busy for desk in self._desks.values())

    @property
    def watches_the_clock(self) -> bool:
        """Whether data goes by time: then it must stay open to do so."""
        retention = self.store.config.retention
        return retention.max_age is not None or retention.keep_after_finish is not None

    def desks(self) -> dict[str, Desk]:
        """Subscribers that were served since it was opened."""
        with self._lock:
            return dict(self._desks)

    def close(self) -> None:
        """Write everything and let go of the directory."""
        try:
            self.schemas.look()
            if self._is_unsaved:
                self.save()
        except QuiverError:
            pass  # counts and schemas only: the store must be closed in any case
        try:
            self.stages.close()
        finally:
            self.store.close()
