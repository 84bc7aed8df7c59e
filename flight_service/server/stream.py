"""One open stream: its store, its consumer groups, and what is kept about them.

Two files beside the store hold what only the service knows:

- ``service.json``: the settings the stream was made with, how each subscriber is served,
  which schemas its slots had.  Checked, and replaced as a whole when something changes.
- ``failures.log``: how often which bundle came back; see
  :mod:`flight_service.server.failures`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from flight_service.protocol.actions import Register
from flight_service.server.claims import DeadLetterSink, Failure
from flight_service.server.failures import (
    FailureLog,
    Table,
    encode_change,
    encode_leave,
)
from flight_service.server.leases import ConsumerGroup
from flight_service.server.policy import Policy
from flight_service.server.schemas import KnownSchemas, are_schemas
from flight_service.server.settings import DeliverySection
from flight_service.server.stages import OpenStages
from quiver import BundleRef, Store
from quiver.clock import Clock
from quiver.disk.disk import Disk
from quiver.errors import LimitExceeded, QuiverError, StateCorrupt, UnknownSubscriber
from quiver.format.checked_json import decode_checked, encode_checked
from quiver.ids import subscriber_id
from quiver.offline.beside import SERVICE_FILE, SERVICE_VERSION_1, STORE, is_of_version_1

SAVE_SECONDS: Final = 1.0
MAX_SUBSCRIBERS: Final = 10_000


@dataclass(slots=True)
class Record:
    """What ``service.json`` says."""

    settings: dict[str, Any] = field(default_factory=dict)
    subscribers: dict[str, Any] = field(default_factory=dict)
    schemas: dict[str, list[str]] = field(default_factory=dict)
    first_segment: int = 0
    """The store's first segment number: behind those of a deleted stream of this name."""
    missing: bool = False
    """There is none on disk: a stream of 0.1.0 that did without."""
    unsaved: bool = False
    """There is none on disk, or one without a checksum: to be written down at once."""

    def encode(self) -> bytes:
        """The file's bytes."""
        return encode_checked(
            {
                "settings": self.settings,
                "subscribers": self.subscribers,
                "schemas": self.schemas,
                "first_segment": self.first_segment,
            }
        )


def read_record(disk: Disk, place: str) -> Record:
    """The record of a stream: it is written before the store is made, so a store without
    one has lost it, and with it settings and policies that nobody could guess."""
    path = f"{place}/{SERVICE_FILE}"
    try:
        data = disk.read(path)
    except FileNotFoundError:
        if is_of_version_1(disk, f"{place}/{STORE}"):
            return Record(missing=True, unsaved=True)  # 0.1.0 then took the server's settings
        raise StateCorrupt(
            f"{path} is missing: settings and subscribers' policies of the stream are not known."
            " Nothing was changed.",
            advice="Put it back from a backup. To go on with the server's settings and default"
            " policies: quiver repair ROOT --yes.",
            file=path,
        ) from None
    body = decode_checked(data, path, version_1=SERVICE_VERSION_1)
    unsaved = "first_segment" not in body
    first = body.get("first_segment", 0)
    settings, subscribers, schemas = (body.get(name, {}) for name in SERVICE_VERSION_1)
    if not (
        isinstance(settings, dict)
        and _are_subscribers(subscribers)
        and are_schemas(schemas)
        and type(first) is int
    ):
        raise StateCorrupt(
            f"{path} holds values of the wrong kind. Nothing was changed.", file=path
        )
    return Record(settings, subscribers, schemas, first, unsaved=unsaved)


def _are_subscribers(found: object) -> bool:
    """Whether these can be used: a file of 0.1.0 has no checksum that would say so."""
    return isinstance(found, dict) and all(
        isinstance(saved, dict)
        and Policy.can_read(saved.get("policy", {}))
        and _are_failures(saved.get("failures", []))
        for saved in found.values()
    )


def _are_failures(found: object) -> bool:
    return isinstance(found, list) and all(
        isinstance(one, list) and [type(value) for value in one] == [int, int, int, str]
        for one in found
    )


def keep_as_version_1(disk: Disk, place: str) -> None:
    """Give a stream of 0.1.0 the file it lacks, durably, before its store is written to.

    A store of this version without one is refused, and a crash may come at any time.  In the
    form of 0.1.0: should the store be refused, that version can still read everything.
    """
    empty = {"v": 1, **{name: {} for name in SERVICE_VERSION_1}}
    disk.replace(f"{place}/{SERVICE_FILE}", json.dumps(empty).encode())


def write_record(disk: Disk, place: str, record: Record) -> None:
    """Keep a record, durably."""
    disk.replace(f"{place}/{SERVICE_FILE}", record.encode())


class ServedStream:
    """A stream that is open."""

    def __init__(
        self,
        name: str,
        store: Store,
        record: Record,
        *,
        disk: Disk,
        place: str,
        failure_log: FailureLog,
        failures: Table,
        delivery: DeliverySection,
        clock: Clock,
        dead_letters: DeadLetterSink,
    ) -> None:
        self.name = name
        self.store = store
        self.stages = OpenStages(store, clock)
        self.schemas = KnownSchemas(store, record.schemas)
        self._disk = disk
        self._place = place
        self._record = record
        self._failure_log = failure_log
        self._failures = failures
        self._default = Policy.default(delivery)
        self._clock = clock
        self._dead_letters = dead_letters
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._groups: dict[str, ConsumerGroup] = {}
        self._left: list[str] = []
        self._next_save = 0.0
        self._stale = False
        if record.unsaved:
            self._move_failures()
            self.save()

    def _move_failures(self) -> None:
        """Version 1 kept failed deliveries in ``service.json``."""
        for name, saved in self._record.subscribers.items():
            of_subscriber = self._failures.setdefault(name, {})
            for segment, index, count, reason in saved.pop("failures", ()):
                of_subscriber.setdefault(BundleRef(segment, index), Failure(count, reason))
        self._failure_log.rewrite(self._failures)

    @property
    def settings(self) -> Mapping[str, Any]:
        """What it was made with."""
        return self._record.settings

    # Subscribers

    def group(self, name: str, *, create: bool = False) -> ConsumerGroup:
        """Where a subscriber is served; ``create`` makes one that isn't known yet."""
        with self._lock:
            found = self._groups.get(name)
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
            return self._groups.setdefault(name, self._new_desk(name))

    def _new_desk(self, name: str) -> ConsumerGroup:
        saved = self._record.subscribers.get(name, {})
        policy = Policy.read(saved.get("policy", {}), self._default)
        failures = self._failures.setdefault(name, {})
        return ConsumerGroup(
            self.store, self.name, name, policy, self._clock, self._dead_letters, failures
        )

    def register(self, request: Register, start: Any) -> tuple[ConsumerGroup, bool, BundleRef]:
        """Make a subscriber known and set its policy, durably; whether it is new, and where."""
        created = request.subscriber not in self.store.subscribers
        position = self.store.register(request.subscriber, start).position
        group = self.group(request.subscriber)
        policy = group.policy.changed_by(request)
        if policy != group.policy:
            group.policy = policy
            self.save()
        return group, created, position

    def forget(self, name: str, leave: Callable[[str], int]) -> int:
        """Remove a subscriber; how many bundles it gave up."""
        given_up = leave(name)
        with self._lock:
            self._groups.pop(name, None)
            self._record.subscribers.pop(name, None)
            if self._failures.pop(name, None):
                self._left.append(name)
        self.save()
        return given_up

    # What is kept

    def save(self) -> None:
        """Write settings, policies and schemas down, durably."""
        with self._saving:
            with self._lock:
                for group in self._groups.values():
                    self._record.subscribers[group.name] = {"policy": group.policy.write()}
                self._record.schemas = self.schemas.write()
                data = self._record.encode()
            try:
                self._disk.replace(f"{self._place}/{SERVICE_FILE}", data)
            except BaseException:
                self._stale = True
                raise
            self._stale = False

    def save_failures(self) -> None:
        """Write down which failed deliveries have changed, durably."""
        with self._saving:
            with self._lock:
                groups = list(self._groups.values())
                left, self._left = self._left, []
            changes = [(group, group.take_unsaved()) for group in groups]
            with self._lock:  # behind the changes: a rewrite must not miss one of them
                live = {name: one.copy() for name, one in self._failures.items()}
            lines = [encode_leave(name) for name in left]
            lines += [
                encode_change(group.name, ref, failure)
                for group, changed in changes
                for ref, failure in changed
            ]
            try:
                self._failure_log.save(lines, live)
            except BaseException:
                for group, changed in changes:
                    group.put_unsaved(ref for ref, _ in changed)
                with self._lock:
                    self._left = left + self._left
                raise

    def tick(self, now: float) -> None:
        """End leases and stages whose time is over; write what changed down, once a second."""
        self.stages.tick(now)
        self.schemas.look()
        with self._lock:
            groups = list(self._groups.values())
        for group in groups:
            group.expire(now)
        if now >= self._next_save and self._is_unsaved:
            self._next_save = now + SAVE_SECONDS
            self._save_changes()

    def _save_changes(self) -> None:
        if self._has_unsaved_failures:
            self.save_failures()
        if self.schemas.changed or self._stale:
            self.save()

    @property
    def _has_unsaved_failures(self) -> bool:
        return bool(self._left) or any(one.has_unsaved_failures for one in self.groups().values())

    @property
    def _is_unsaved(self) -> bool:
        return self.schemas.changed or self._stale or self._has_unsaved_failures

    @property
    def is_at_rest(self) -> bool:
        """Whether a tick has nothing to do before somebody uses it again."""
        return not (self.busy or self._is_unsaved)

    @property
    def busy(self) -> bool:
        """Whether a bundle is in somebody's hands, or a stage is being written."""
        with self._lock:
            return self.stages.busy or any(group.busy for group in self._groups.values())

    @property
    def watches_the_clock(self) -> bool:
        """Whether data goes by time: then it must stay open to do so."""
        retention = self.store.config.retention
        return retention.max_age is not None or retention.keep_after_finish is not None

    def redelivering(self) -> dict[str, int]:
        """By subscriber, served or not: bundles that came back and have no outcome yet."""
        return {name: len(self._failures.get(name, ())) for name in self.store.subscribers}

    def groups(self) -> dict[str, ConsumerGroup]:
        """Subscribers that were served since it was opened."""
        with self._lock:
            return dict(self._groups)

    def close(self) -> None:
        """Write everything and let go of the directory."""
        try:
            self.schemas.look()
            self._save_changes()
        except QuiverError:
            pass  # counts and schemas only: the store must be closed in any case
        try:
            self.stages.close()
        finally:
            self.store.close()
