"""Many named streams under one root, each a store of its own.

::

    root/LOCK                          one server per root
    root/streams/<name>/store/         the store (see quiver.engine)
    root/streams/<name>/service.json   its settings and its subscribers' policies
    root/streams/<name>/failures.log   failed deliveries of its bundles
    root/trash/<name>.<random>/        being made, or deleted and being removed
    root/deleted.json                  where the numbers of a stream made again begin
    root/deleted.kept                  says that there is such a file

A stream is opened when somebody needs it and closed when nobody has for a while, or when
another needs its place: any number of streams cost a bounded number of threads, files
and bytes of memory.  All open ones share the threads of one
:class:`~quiver.upkeep.background.Background` and one
:class:`~quiver.ingest.disk_budget.DiskBudget`.

A new stream is made in ``trash/`` and renamed to its place: after a crash it is there with its
``service.json``, or not at all.

A stream that can't be opened (a damaged log, files of a newer Quiver, or settings that this server
doesn't take) is marked and answers with the reason; the others never notice.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from flight_service.protocol.errors import ServiceError
from flight_service.server.claims import DeadLetterSink
from flight_service.server.deleted import DeletedStreams
from flight_service.server.events import (
    FAILURES_DAMAGED,
    STREAM_CLOSE_FAILED,
    STREAM_CLOSED,
    STREAM_CREATED,
    STREAM_DAMAGED,
    STREAM_DELETED,
    STREAM_LEFT_OVER,
    STREAM_OPENED,
    STREAM_REFUSED,
    TICK_FAILED,
    get_logger,
)
from flight_service.server.failures import FailureLog
from flight_service.server.settings import Settings
from flight_service.server.stream import (
    Record,
    ServedStream,
    keep_as_version_1,
    read_record,
    write_record,
)
from quiver.clock import Clock
from quiver.config import Config
from quiver.disk.disk import TMP_SUFFIX, Disk
from quiver.disk.lock import StoreLock
from quiver.disk.posix import PosixDisk
from quiver.errors import ConfigError, Damage, QuiverError, StorageFault, UnsupportedVersion
from quiver.ids import stream_name
from quiver.ingest.disk_budget import DiskBudget
from quiver.ingest.memory_budget import MemoryBudget
from quiver.offline.beside import FAILURES_FILE, STORE
from quiver.segment.unused import NUMBERS_SKIPPED, unused_segment
from quiver.store.store import Store
from quiver.upkeep.background import Background

STREAMS: Final = "streams"
TRASH: Final = "trash"
TICK_SECONDS: Final = 0.1
"""Between two ticks while a stream is in use, or in somebody's hands."""
IDLE_TICK_SECONDS: Final = 2.0
"""Most time between two ticks when none is: only idle streams are left to be closed."""
NEWER: Final = "unsupported_version"
REFUSED: Final = "invalid_config"
_STATES: Final = {NEWER: "newer", REFUSED: "refused"}
DAMAGE_SECONDS: Final = 5.0
"""A damaged stream is not looked at again more often than this."""

_log = get_logger()


class _ListedStream:
    """A stream that exists, open or not."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.lock = threading.RLock()  # held while it is opened or closed
        self.stream: ServedStream | None = None
        self.users = 0
        self.last_used = 0.0
        self.damage: ServiceError | None = None
        self.damaged_at = 0.0
        self.deleted = False


class Streams:
    """All streams of a server."""

    def __init__(self, settings: Settings, clock: Clock, dead_letters: DeadLetterSink) -> None:
        self.settings = settings
        self.root = os.path.abspath(settings.server.root)
        self._clock = clock
        self._dead_letters = dead_letters
        self._lock = threading.Lock()
        self._disk = Disk(PosixDisk(self.root))
        self._disk.mkdir("")
        self._file_lock = StoreLock.acquire(self._disk, clock, where=self.root)
        try:
            self._disk.mkdir(STREAMS)
            self._disk.mkdir(TRASH)
            self._disk.fsync_dir("")
            self._remove_unmade()
            self._entries = {name: _ListedStream(name) for name in self._found()}
            self._deleted = DeletedStreams(self._disk, clock)
            self._empty_trash()
        except BaseException:
            self._file_lock.release()
            raise
        self._background = Background(settings.server.flushers, settings.server.workers)
        self._budget = DiskBudget(settings.server.disk_budget)
        self._memory = MemoryBudget(settings.server.memory)
        self._active: dict[_ListedStream, None] = {}
        self.stirred = threading.Event()
        """Set when there is something to tick for again."""
        self.replayed = 0
        """Log entries read while opening streams: how far a recovery has come."""
        self.closing = False

    def _found(self) -> list[str]:
        found = []
        for name in sorted(self._disk.listdir(STREAMS)):
            with contextlib.suppress(QuiverError):
                found.append(str(stream_name(name)))
        return found

    def _remove_unmade(self) -> None:
        """Remove directories that never became a stream: 0.1.0 made the directory first."""
        for name in self._found():
            if _is_unmade(os.path.join(self.root, STREAMS, name)):
                shutil.rmtree(os.path.join(self.root, STREAMS, name), ignore_errors=True)
                _log.warning(STREAM_LEFT_OVER, stream=name)

    def _empty_trash(self) -> None:
        for name in self._disk.listdir(TRASH):
            shutil.rmtree(os.path.join(self.root, TRASH, name), ignore_errors=True)

    # Using

    @contextmanager
    def use(self, name: str, *, create: bool = False) -> Iterator[ServedStream]:
        """The stream, open as long as the block lasts; made if it may be."""
        entry = self._enter(name, create)
        try:
            yield self._opened(entry)
        finally:
            with self._lock:
                entry.users -= 1
                entry.last_used = self._clock.monotonic()

    def _enter(self, name: str, create: bool) -> _ListedStream:
        with self._lock:
            if self.closing:
                raise ServiceError("draining", "the server is stopping.")
            entry = self._entries.get(name)
            if entry is not None:
                entry.users += 1
                if entry not in self._active:
                    self._active[entry] = None
                    self.stirred.set()
                return entry
        if not (create and self.settings.server.auto_create):
            raise ServiceError(
                "unknown_stream",
                f"there is no stream {name!r}.",
                details={"stream": name, "auto_create": self.settings.server.auto_create},
            )
        self.create(name, None, if_not_exists=True)
        return self._enter(name, False)

    def _opened(self, entry: _ListedStream) -> ServedStream:
        with entry.lock:
            if entry.deleted:
                raise ServiceError("unknown_stream", f"there is no stream {entry.name!r}.")
            if entry.stream is not None:
                return entry.stream
            now = self._clock.monotonic()
            if (
                entry.damage is not None
                and entry.damage.code != REFUSED
                and now - entry.damaged_at < DAMAGE_SECONDS
            ):
                raise entry.damage
            self._make_place(entry)
            try:
                entry.stream = self._open(entry.name)
            except (Damage, StorageFault, UnsupportedVersion) as error:
                entry.damage = _refused(entry.name, error)
                entry.damaged_at = now
                _log.error(STREAM_DAMAGED, stream=entry.name, code=error.code, error=str(error))
                raise entry.damage from None
            except ConfigError as error:
                entry.damage = _refused(entry.name, error)
                _log.error(STREAM_REFUSED, stream=entry.name, error=str(error))
                raise entry.damage from None
            entry.damage = None
            return entry.stream

    def _open(self, name: str) -> ServedStream:
        place = f"{STREAMS}/{name}"
        record = read_record(self._disk, place)
        config = self.settings.store_config(record.settings)
        # All that may refuse the stream is read before its store is opened, which changes it.
        failure_log = FailureLog(self._disk, f"{place}/{FAILURES_FILE}")
        failures, damaged = failure_log.load()
        if damaged:
            _log.error(FAILURES_DAMAGED, stream=name, lines=damaged)
        if record.missing:
            keep_as_version_1(self._disk, place)
        where = os.path.join(self.root, place, STORE)
        store = Store(
            Disk(PosixDisk(where)),
            config,
            where=where,
            clock=self._clock,
            background=self._background,
            budget=self._budget,
            memory=self._memory,
            watch=self._count_replayed,
            first_segment=record.first_segment,
        )
        try:
            stream = ServedStream(
                name,
                store,
                record,
                disk=self._disk,
                place=place,
                failure_log=failure_log,
                failures=failures,
                delivery=self.settings.delivery,
                clock=self._clock,
                dead_letters=self._dead_letters,
            )
        except BaseException:
            store.close()
            raise
        _log.info(STREAM_OPENED, stream=name, replayed=store.report.bundles_replayed)
        return stream

    def _count_replayed(self, entry: object) -> None:
        self.replayed += 1

    def _make_place(self, entry: _ListedStream) -> None:
        """Close the stream that was not used for longest, if all places are taken."""
        while True:
            with self._lock:
                opened = [one for one in self._entries.values() if one.stream is not None]
                if len(opened) < self.settings.server.max_open_streams:
                    return
                idle = sorted(
                    (one for one in opened if one.users == 0 and one is not entry),
                    key=lambda one: one.last_used,
                )
            if not any(self._close_idle(one) for one in idle):
                raise ServiceError(
                    "busy",
                    f"all {len(opened):,} streams that may be open are in use.",
                    details={"limit": "server.max_open_streams", "retry_after_ms": 1000},
                )

    def _close_idle(self, entry: _ListedStream) -> bool:
        """Close a stream that nobody uses; ``False`` if somebody does after all."""
        if not entry.lock.acquire(blocking=False):
            return False
        try:
            with self._lock:
                if entry.users or entry.stream is None or entry.stream.busy:
                    return False
                stream, entry.stream = entry.stream, None
            try:
                stream.close()
                _log.info(STREAM_CLOSED, stream=entry.name)
            except QuiverError as error:  # its place is free all the same
                _log.error(STREAM_CLOSE_FAILED, stream=entry.name, error=str(error))
            return True
        finally:
            entry.lock.release()

    # Coming and going

    def create(self, name: str, settings: Mapping[str, Any] | None, *, if_not_exists: bool) -> bool:
        """Make a stream, durably; ``False`` if it was there."""
        self._check_settings(settings)
        with self._lock:
            if name in self._entries:
                if if_not_exists:
                    return False
                raise ServiceError("stream_exists", f"the stream {name!r} is there already.")
            if any(known.lower() == name.lower() for known in self._entries):
                raise ServiceError(
                    "invalid_name", f"a stream like {name!r}, but for its case, is there already."
                )
            if len(self._entries) >= self.settings.server.max_streams:
                raise ServiceError(
                    "limit_exceeded",
                    f"there are {len(self._entries):,} streams, the limit.",
                    details={"limit": "server.max_streams"},
                )
            first = self._deleted.first_segment(name)
            self._make(name, Record(settings=dict(settings or {}), first_segment=first))
            self._entries[name] = _ListedStream(name)
        _log.info(STREAM_CREATED, stream=name)
        return True

    def _make(self, name: str, record: Record) -> None:
        """Make a stream's directory with its record, whole or not at all."""
        place, made = f"{STREAMS}/{name}", f"{TRASH}/{name}.{secrets.token_hex(8)}"
        try:
            self._disk.mkdir(made)
            write_record(self._disk, made, record)
            self._disk.rename(made, place)
            made = place
            self._disk.fsync_dir(STREAMS)
        except BaseException:
            shutil.rmtree(os.path.join(self.root, made), ignore_errors=True)
            raise

    def _check_settings(self, settings: Mapping[str, Any] | None) -> Config:
        return self.settings.store_config(settings)

    def delete(self, name: str, *, force: bool) -> None:
        """Delete a stream: its numbers are noted, then one rename, and it is gone, durably.

        Until then its name stays taken: nobody makes a stream that the rename would take away.
        """
        entry = self._enter(name, False)
        try:
            with entry.lock:
                stream = None if entry.damage is not None and force else self._opened(entry)
                if stream is not None and not force and not stream.store.all_subscribers_drained():
                    raise ServiceError(
                        "not_drained",
                        f"subscribers of {name!r} have not finished; use force to delete anyway.",
                    )
                with self._lock:
                    if entry.users > 1:
                        raise ServiceError(
                            "busy", f"{entry.users - 1} calls use the stream {name!r}."
                        )
                    entry.deleted = True
                try:
                    aside = self._move_to_trash(entry, stream)
                except BaseException:
                    entry.deleted = False
                    raise
                with self._lock:
                    del self._entries[name]
        finally:
            with self._lock:
                entry.users -= 1
        shutil.rmtree(os.path.join(self.root, aside), ignore_errors=True)
        _log.info(STREAM_DELETED, stream=name)

    def _move_to_trash(self, entry: _ListedStream, stream: ServedStream | None) -> str:
        place = f"{STREAMS}/{entry.name}"
        first = self._deleted.first_segment(entry.name)  # refuses, if the list can't be written
        if stream is not None:
            entry.stream = None
            with contextlib.suppress(QuiverError):  # nothing of it is to be kept
                stream.close()
            following = stream.store.next_segment
        else:
            unused = unused_segment(Disk(PosixDisk(os.path.join(self.root, place, STORE))))
            following = max(unused, first + NUMBERS_SKIPPED)
        with self._lock:
            self._deleted.add(entry.name, following)
        aside = f"{TRASH}/{entry.name}.{secrets.token_hex(8)}"
        self._disk.rename(place, aside)
        self._disk.fsync_dir(TRASH)
        self._disk.fsync_dir(STREAMS)
        return aside

    # All of them

    def names(self) -> list[str]:
        """Every stream there is."""
        with self._lock:
            return sorted(self._entries)

    def state(self, name: str) -> str:
        """``open``, ``closed``, ``damaged``, ``newer`` (written by a newer Quiver) or ``refused``
        (its settings)."""
        entry = self._entries.get(name)
        if entry is None:
            return "unknown"
        if entry.damage is not None:
            return _STATES.get(entry.damage.code, "damaged")
        return "closed" if entry.stream is None else "open"

    def damage(self) -> dict[str, str]:
        """Streams that can't be opened, and why."""
        with self._lock:
            entries = list(self._entries.values())
        return {one.name: one.damage.message for one in entries if one.damage is not None}

    @property
    def problem(self) -> str | None:
        """Why no stream can be created or deleted now."""
        return self._deleted.problem

    def opened(self) -> list[ServedStream]:
        """Streams that are open now."""
        with self._lock:
            return [one.stream for one in self._entries.values() if one.stream is not None]

    def tick(self, now: float) -> float:
        """What has become due: leases that end, failures to write down, idle streams.

        Seconds until the next one; or until somebody comes, see :attr:`stirred`.
        """
        with self._lock:
            active = [(one, one.stream, one.users) for one in self._active]
        for entry, stream, users in active:
            if stream is not None:
                self._tick(stream, now)
            if not users:
                self._let_rest(entry)
        self._close_unused(now)
        patience = min(IDLE_TICK_SECONDS, self.settings.server.idle_close)
        return TICK_SECONDS if self._active else max(TICK_SECONDS, patience)

    def _tick(self, stream: ServedStream, now: float) -> None:
        try:
            stream.tick(now)
        except Exception as error:  # one stream's trouble is no other's
            _log.error(TICK_FAILED, stream=stream.name, error=str(error), exc_info=error)

    def _let_rest(self, entry: _ListedStream) -> None:
        """Tick no more for a stream that nobody uses and that has nothing to write down."""
        with self._lock:
            stream = entry.stream
            if not entry.users and (stream is None or stream.is_at_rest):
                self._active.pop(entry, None)

    def _close_unused(self, now: float) -> None:
        limit = self.settings.server.idle_close
        with self._lock:
            idle = [
                one
                for one in self._entries.values()
                if one.stream is not None
                and not one.users
                and now - one.last_used > limit
                and not one.stream.watches_the_clock
            ]
        for entry in idle:
            self._close_idle(entry)

    def stop(self) -> None:
        """Take no new users."""
        with self._lock:
            self.closing = True

    def close(self) -> None:
        """Close every stream, as clean as it can be; the first error is raised at the end."""
        self.stop()
        first: BaseException | None = None
        for entry in list(self._entries.values()):
            with entry.lock:
                stream, entry.stream = entry.stream, None
                if stream is not None:
                    try:
                        stream.close()
                    except Exception as error:
                        first = first or error
        self._background.close()
        self._file_lock.release()
        if first is not None:
            raise first


def _refused(name: str, error: QuiverError) -> ServiceError:
    """Files of a newer Quiver and settings are no damage, and keep their own codes."""
    damaged = not isinstance(error, UnsupportedVersion | ConfigError)
    return ServiceError(
        "stream_damaged" if damaged else error.code,
        f"the stream {name!r} can't be opened: {error}",
        details={"stream": name, "cause": error.code},
    )


def _is_unmade(directory: str) -> bool:
    """Whether nothing was ever kept in a stream's directory: locks and half files don't count."""
    return not any(
        name != "LOCK" and not name.endswith(TMP_SUFFIX)
        for _, _, files in os.walk(directory)
        for name in files
    )


__all__ = ["STREAMS", "Streams"]
