"""The conductor: one store, its parts, and the words people use for it.

::

    put ──► ingest ──► wal ──(durable)──► tail ──(full, old, flush)──► segment file
                                           │                               │
                                           └──────────► delivery ◄─────────┘

The parts do the work and don't know each other; what has to happen across them happens
here and in :mod:`quiver.upkeep`.  No thread is started unless asked for: see
:mod:`quiver.background`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from types import TracebackType
from typing import Final

import pyarrow as pa

from quiver import metrics as m
from quiver.background import Background
from quiver.budget import DiskBudget
from quiver.clock import Clock, SystemClock
from quiver.config import Config
from quiver.delivery import Delivery, Lag, Reader, Start
from quiver.disk.disk import Disk
from quiver.disk.lock import StoreLock
from quiver.disk.reserve import Reserve
from quiver.errors import (
    Backpressure,
    Poisoned,
    QuiverError,
    Reason,
    StoreClosed,
    WaitTimeout,
)
from quiver.events import (
    INGEST_THROTTLED,
    STORE_CLOSED,
    STORE_OPENED,
    STORE_POISONED,
    SUBSCRIBER_REGISTERED,
    SUBSCRIBER_UNREGISTERED,
    get_logger,
)
from quiver.format.record import BundleMeta
from quiver.format.wal_header import layout_hash
from quiver.ids import BundleRef
from quiver.ingest import Ingest, Prepared
from quiver.metrics import Metrics
from quiver.receipt import Receipt
from quiver.recovery import Recovered, Report, Watch, recover
from quiver.replay import Replay
from quiver.segment.accumulator import OpenSegment
from quiver.subscriber.state import Order
from quiver.subscriber.subscriber import Status, Subscriber
from quiver.subscription import Subscription
from quiver.tail import Tail
from quiver.upkeep import Maintenance, Upkeep
from quiver.waiting import SealWait
from quiver.wal.group import Commits
from quiver.wal.reader import read_log
from quiver.wal.writer import WalWriter

DRAIN_POLL_SECONDS: Final = 0.05
ASSIST_ROUNDS: Final = 4


class Store:
    """A durable buffer of bundles in one directory. Use :func:`quiver.open` to get one."""

    def __init__(
        self,
        disk: Disk,
        config: Config,
        *,
        where: str,
        clock: Clock | None = None,
        background: Background | bool = False,
        budget: DiskBudget | None = None,
        watch: Watch | None = None,
    ) -> None:
        self.config = config
        self.where = where
        self.metrics = Metrics()
        self._disk = disk
        self._clock = clock or SystemClock()
        self._logger = get_logger(store=where)
        disk.mkdir("")
        self._file_lock = StoreLock.acquire(disk, self._clock, where=where)
        try:
            began = self._clock.monotonic()
            recovered = recover(disk, config, self._clock, watch=watch)
            self._build(recovered, budget)
            self._begin(recovered)
        except BaseException:
            self._file_lock.release()
            raise
        self.report: Report = recovered.report
        self.metrics.gauge(m.RECOVERY_SECONDS).set(self._clock.monotonic() - began)
        self.metrics.gauge(m.RECOVERY_BUNDLES).set(recovered.report.bundles_replayed)
        self._logger.info(STORE_OPENED, replayed=recovered.report.bundles_replayed)
        self.flush_queued = self.work_queued = False
        self._own_background = background is True
        self._background = Background(1, 1) if background is True else background or None
        if self._background is not None:
            self._seal_wait.patient = True
            if self._commits is not None:
                self._commits.gather = config.wal.flush == "interval"
            self._background.attach(self)
            self._background.work_soon(self)

    # Putting it together

    def _build(self, recovered: Recovered, budget: DiskBudget | None) -> None:
        config, clock, metrics = self.config, self._clock, self.metrics
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._closed: StoreClosed | None = None
        self._slots = recovered.slots
        self._registry = recovered.registry
        self._catalog = recovered.catalog
        self._tail = Tail(config.segment, recovered.next_segment)
        self._tail.adopt(recovered.segments)
        self._share = (budget or DiskBudget(config.retention.size_cap)).register(self.where, config)
        self._wal: WalWriter | None = None
        if config.durability == "wal":
            self._wal = WalWriter(
                self._disk,
                config.wal,
                layout_hash=layout_hash(config.slots),
                lock=self._lock,
                start=recovered.log,
                clock=clock,
                on_durable=self._on_durable,
                on_rollback=self._on_rollback,
            )
        self._commits = None if self._wal is None else Commits(self._wal, config.wal, clock)
        self._seal_wait = SealWait(self.flush, clock)
        self._ingest = Ingest(
            config,
            lock=self._lock,
            clock=clock,
            last_ts=recovered.last_ts,
            slots=recovered.slots,
            window=recovered.window,
            tail=self._tail,
            wal=self._wal,
            waiter=self._commits or self._seal_wait,
            next_sequence=recovered.next_sequence,
            metrics=metrics,
            refuse=lambda size: self._upkeep.refusal(size),
        )
        self._reserve = Reserve(self._disk, config.reserve)
        self._upkeep = Upkeep(
            self._disk,
            config,
            clock,
            ingest_lock=self._lock,
            ingest=self._ingest,
            tail=self._tail,
            wal=self._wal,
            catalog=recovered.catalog,
            registry=recovered.registry,
            slots=recovered.slots,
            ledger=recovered.ledger,
            floor=recovered.floor,
            state=recovered.state,
            reserve=self._reserve,
            share=self._share,
            metrics=metrics,
            rebuild=self._from_log,
            on_sealed=self._seal_wait.tell,
        )
        self._reader = Reader(self._tail, recovered.catalog, recovered.slots, self._upkeep.lose)
        self._delivery = Delivery(recovered.registry, self._reader, recovered.slots, clock, metrics)
        self._watch_gauges()

    def _begin(self, recovered: Recovered) -> None:
        """What must be on disk before the first put: the log's file, losses on record."""
        if self._wal is not None and not recovered.floor.has_log:
            self._wal.begin()
            self._upkeep.mark_log_begun()
        if recovered.report.lost or recovered.report.progress_problems:
            self._upkeep.record_recovery(recovered.report)
        self._reserve.restore()

    def _watch_gauges(self) -> None:
        """Gauges are read when somebody looks: nothing to keep up to date on the way."""
        gauge = self.metrics.gauge
        gauge(m.SEGMENT_OPEN_BYTES).watch(lambda: self._tail.nbytes)
        gauge(m.SEGMENT_COUNT).watch(lambda: len(self._catalog))
        gauge(m.SEGMENT_DISK_BYTES).watch(lambda: self._upkeep.usage().segments)
        gauge(m.WAL_BYTES).watch(lambda: self._upkeep.usage().log)
        gauge(m.POISONED).watch(lambda: self._disk.poison.cause is not None)
        gauge(m.CORE_BYTES, core_id=self.where).watch(lambda: self._upkeep.usage().on_disk)
        gauge(m.CORE_CAP_FRACTION, core_id=self.where).watch(
            lambda: self._upkeep.usage().on_disk / cap if (cap := self._share.cap) else 0.0
        )

    # Putting

    def put(
        self,
        slots: Mapping[str | int, pa.RecordBatch],
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        fingerprints: Mapping[str | int, bytes] | None = None,
        content_hash: bytes | None = None,
        timeout: float = 0.0,
    ) -> Receipt:
        """Take a bundle in. Returns at once with its ref; ``receipt.wait()`` until durable.

        A repeat of ``key`` returns the first bundle's ref instead.  When the store can't
        take more right now it raises :class:`~quiver.errors.Backpressure` at once, or
        after waiting for room for ``timeout`` seconds.
        """
        prepared = self._checked(
            lambda: self._ingest.prepare(
                slots,
                key=key,
                attributes=attributes,
                fingerprints=fingerprints,
                content_hash=content_hash,
            )
        )
        return self._admit(prepared, timeout)

    def put_ipc(
        self,
        slots: Mapping[str | int, bytes | memoryview | pa.Buffer],
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        fingerprints: Mapping[str | int, bytes] | None = None,
        content_hash: bytes | None = None,
        timeout: float = 0.0,
    ) -> Receipt:
        """As :meth:`put`, for slots that are Arrow IPC streams already: kept as they came."""
        prepared = self._checked(
            lambda: self._ingest.prepare_ipc(
                slots,
                key=key,
                attributes=attributes,
                fingerprints=fingerprints,
                content_hash=content_hash,
            )
        )
        return self._admit(prepared, timeout)

    def _checked(self, prepare: Callable[[], Prepared]) -> Prepared:
        try:
            return prepare()
        except QuiverError as error:
            self.metrics.counter(m.INGEST_REFUSED, code=error.code).add()
            raise

    def _admit(self, prepared: Prepared, timeout: float) -> Receipt:
        deadline = self._clock.monotonic() + timeout if timeout > 0 else None
        rounds = 0
        while True:
            with self._lock:
                self._disk.poison.check()
                answer = self._ingest.stage(prepared)
                full = self._tail.is_full()
                if full:
                    self._tail.close()
            if isinstance(answer, Receipt):
                self._after_put(answer, full)
                return answer
            rounds += 1
            if not self._make_room(answer, rounds, deadline):
                self.metrics.counter(m.INGEST_THROTTLE, reason=str(answer.reason)).add()
                self._logger.debug(INGEST_THROTTLED, reason=str(answer.reason))
                raise answer

    def _after_put(self, receipt: Receipt, full: bool) -> None:
        if self._background is not None:
            if self._commits is not None and not self._commits.gather:
                self._background.flush_soon(self)
            if full:
                self._background.work_soon(self)
        elif full:
            self._upkeep.seal_all()
        if self._commits is not None and self.config.wal.flush == "every" and not receipt.done:
            self._commits.wait(receipt)

    def _make_room(self, refusal: Backpressure, rounds: int, deadline: float | None) -> bool:
        """Try to get a refused put in: do the work here, or wait for those who do it."""
        if refusal.reason is Reason.WAL_FULL:
            with self._lock:
                self._tail.close()
        if self._background is None:
            return rounds <= ASSIST_ROUNDS and self._upkeep.relieve(refusal)
        self._background.flush_soon(self)
        self._background.work_soon(self)
        if deadline is None or self._clock.monotonic() >= deadline:
            return False
        self._stopping.wait(refusal.retry_after_ms / 1000)
        return True

    def _on_durable(self, before: int) -> None:
        """A group is on disk: its bundles may be delivered. Called with the lock held."""
        self._ingest.settle(before)
        grown = self._tail.mark_durable(before)
        if self.config.deliver == "durable":
            for seq, count in grown:
                self._registry.observe(seq, count)
            self._registry.advance_open(self._tail.growing)

    def _on_rollback(self, first: int, error: QuiverError) -> None:
        """A group could not be written: take it back. Called with the lock held.

        After a failed fsync nothing is taken back: nobody knows what the disk holds, and
        nothing will be written any more.
        """
        if isinstance(error, Poisoned):
            self._logger.error(STORE_POISONED, error=str(error))
            return
        self._ingest.rollback(first)
        self._tail.rollback(first)

    # Subscribers

    def register(
        self, name: str, start: Start = "earliest", *, order: str = "oldest", follow: bool = True
    ) -> Subscription:
        """Make a subscriber known, durably: from here on its data is held for it.

        A new one begins at ``start``: ``"earliest"``, ``"latest"``, a time, or a ref.  A
        known one resumes where it was, whatever ``start`` says.
        """
        self._check_open()
        with self._lock:
            growing = self._tail.growing
            visible = self._tail.durable_count(growing)
        latest = BundleRef(growing, visible)
        position = self._delivery.start_ref(start, latest, self._catalog.infos)
        known = any(one.name == name for one in self._registry.subscribers())
        subscriber = self._registry.register(name, position)
        if not known:
            self._upkeep.checkpoint()
            self._logger.info(SUBSCRIBER_REGISTERED, subscriber=name, start=str(position))
        return self._subscription(name, order, follow, subscriber)

    def _subscription(
        self, name: str, order: str, follow: bool, subscriber: Subscriber
    ) -> Subscription:
        return Subscription(
            self._delivery,
            subscriber,
            flush=self.flush_progress,
            nudge=self._nudge,
            order=Order(order),
            follow=follow,
        )

    def subscribe(
        self, name: str, start: Start = "earliest", *, order: str = "oldest", follow: bool = True
    ) -> Subscription:
        """Register and take bundles at once: iterate over what this returns."""
        subscription = self.register(name, start, order=order, follow=follow)
        if subscription.status is Status.REGISTERED:
            self.activate()
        return subscription

    def activate(self) -> list[str]:
        """End the start-up: who is known and was not registered is an orphan (returned)."""
        self._check_open()
        return self._registry.activate()

    def unregister(self, name: str) -> int:
        """Remove a subscriber for good; what it had left is dropped. How many bundles."""
        return self._leave(name, self._registry.unregister)

    def drop_orphan(self, name: str) -> int:
        """Remove an orphan, and only an orphan; how many bundles it gave up."""
        return self._leave(name, self._registry.drop_orphan)

    def _leave(self, name: str, leave: Callable[[str], int]) -> int:
        self._check_open()
        self._registry.get(name)
        self._upkeep.checkpoint(leaving=name)
        given_up = leave(name)
        self._logger.info(SUBSCRIBER_UNREGISTERED, subscriber=name, dropped=given_up)
        return given_up

    @property
    def orphans(self) -> list[str]:
        """Subscribers that hold data and have nobody to take it."""
        return self._registry.orphans()

    @property
    def subscribers(self) -> dict[str, Status]:
        """Every known subscriber and where it stands."""
        return {one.name: one.status for one in self._registry.subscribers()}

    def lag(self, name: str) -> Lag:
        """How far a subscriber is behind."""
        return self._delivery.lag(self._registry.get(name))

    def all_subscribers_drained(self) -> bool:
        """Whether everybody, orphans too, has finished all there is."""
        return self._registry.all_drained()

    def flush_progress(self, names: tuple[str, ...] | None = None) -> int:
        """Make acks durable, of all subscribers or of some; how many files were written."""
        self._check_open()
        return self._upkeep.flush_progress(names)

    # Reading without a subscriber

    def read(
        self,
        ref: BundleRef | tuple[int, int],
        slots: Collection[str | int] | None = None,
        columns: Mapping[str | int, Sequence[str]] | None = None,
    ) -> dict[str, pa.RecordBatch]:
        """A bundle's batches by slot name: all of it, or the slots and columns named."""
        self._check_open()
        table = self._slots
        ids = None if slots is None else {i for s in slots if (i := table.find(s)) is not None}
        chosen = {
            i: names for s, names in (columns or {}).items() if (i := table.find(s)) is not None
        }
        found = self._reader.read(BundleRef(*ref), ids, chosen or None)
        return {table.name_of(slot): batch for slot, batch in sorted(found.items())}

    def meta(self, ref: BundleRef | tuple[int, int]) -> BundleMeta:
        """Sequence, time, key, attributes and size of a bundle."""
        self._check_open()
        return self._reader.meta(BundleRef(*ref))

    def segment_sequences(self) -> list[int]:
        """Numbers of all segments with bundles to read, oldest first."""
        return [seq for seq, _ in self.segments()]

    def segments(self) -> list[tuple[int, int]]:
        """All segments with how many bundles of each can be read, oldest first."""
        return self._registry.visible()

    # Upkeep

    def sync(self) -> None:
        """Make everything put so far durable."""
        self._check_open()
        if self._commits is None:
            self.flush()
            return
        self._commits.flush()
        self._disk.poison.check()

    def wait_durable(self, sequence: int, timeout: float | None = None) -> None:
        """Return once the entry with this sequence is durable."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while self._ingest.durable_before <= sequence:
            self.sync()
            if self._ingest.durable_before > sequence:
                return
            if deadline is None or self._clock.monotonic() >= deadline:
                raise WaitTimeout(f"sequence {sequence:,} is not durable yet.")

    def flush(self) -> int:
        """Close the open segment and write all that is in memory; how many segments."""
        self._check_open()
        with self._lock:
            self._tail.close()
        return self._upkeep.seal_all()

    def maintain(self) -> Maintenance:
        """Do all upkeep that is due: the one call for those who run no background."""
        self._check_open()
        if self._commits is not None:
            self._commits.flush()
        return self._upkeep.run()

    def drain(self, timeout: float) -> bool:
        """Stop taking puts, write everything, wait until all subscribers have finished.

        ``True`` if they have; ``False`` when time is up first.  The store stays open.
        """
        with self._lock:
            self._ingest.closed = StoreClosed("the store is being drained: it takes no more puts.")
        self.flush()
        deadline = self._clock.monotonic() + timeout
        while not self.all_subscribers_drained():
            if self._clock.monotonic() >= deadline:
                return False
            self._stopping.wait(DRAIN_POLL_SECONDS)
        self.maintain()
        return True

    def _from_log(self, seq: int) -> OpenSegment | None:
        """A segment put together again from the log, if that still has all of it."""
        if self._wal is None:
            return None
        replay = Replay(lambda number: number != seq, self._ingest.next_sequence)
        read_log(self._disk, layout_hash=None, visit=replay, salvage=True)
        return next((segment for segment in replay.segments if segment.seq == seq), None)

    # Driven by the background, if there is one

    def flush_staged(self) -> None:
        """Commit until nothing is staged."""
        if self._commits is not None:
            self._commits.flush()

    def work(self) -> None:
        """One round of upkeep."""
        if self._closed is None:
            self._upkeep.run()

    def look(self, background: Background) -> None:
        """Ask for what has become due by time."""
        commits = self._commits
        if commits is not None and commits.gather and commits.due():
            background.flush_soon(self)
        if self._upkeep.is_due():
            background.work_soon(self)

    def _nudge(self) -> bool:
        """Without a background, whoever looks for bundles makes the staged ones durable."""
        if self._background is not None or self._wal is None or not self._wal.staged_bytes:
            return False
        self.flush_staged()
        return self._disk.poison.cause is None

    # The end

    def close(self) -> None:
        """Write everything, say so in the log, let go of the directory. Fine to call twice."""
        with self._lock:
            if self._closed is not None:
                return
            self._closed = StoreClosed(f"the store {self.where} has been closed.")
            self._ingest.closed = self._closed
            self._tail.close()
        if self._background is not None:
            self._background.detach(self)
            if self._own_background:
                self._background.close()
        try:
            if self._disk.poison.cause is None:
                self._upkeep.finish()
        finally:
            self._delivery.closed = self._closed
            self._registry.wake_all()
            self._stopping.set()
            if self._wal is not None:
                self._wal.close()
            self._share.close()
            self._file_lock.release()
            self._logger.info(STORE_CLOSED)

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
