"""The conductor: one store, its parts, and the words people use for it.

::

    put ──► ingest ──► wal ──(durable)──► memory ─(full, old, flush)──► segment file
                                           │                               │
                                           └──────────► delivery ◄─────────┘

The parts do the work and don't know each other; what has to happen across them happens
here and in :mod:`quiver.upkeep.upkeep`.  No thread is started unless asked for: see
:mod:`quiver.upkeep.background`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final

import pyarrow as pa

from quiver import metrics as m
from quiver.bundle.slots import BySlot
from quiver.clock import Clock, SystemClock
from quiver.config import Config
from quiver.disk.disk import Disk
from quiver.disk.lock import StoreLock
from quiver.errors import (
    Forked,
    InvalidInput,
    Poisoned,
    QuiverError,
    SlotNotInBundle,
    StorageFull,
    StoreClosed,
    WaitTimeout,
)
from quiver.events import (
    STORE_CLOSED,
    STORE_OPENED,
    STORE_POISONED,
    WAL_WRITE_FAILED,
    get_logger,
)
from quiver.forking import guard
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.format.state import Loss
from quiver.ids import BundleRef
from quiver.ingest.disk_budget import DiskBudget
from quiver.ingest.memory_budget import MemoryBudget
from quiver.ingest.receipt import Receipt
from quiver.metrics import Metrics
from quiver.recovery.progress import RecoveryWatch
from quiver.recovery.recover import Report, Watch, recover
from quiver.segment.closing import Trigger
from quiver.segment.info import SegmentInfo
from quiver.segment.segments import Segments
from quiver.segment.stage_table import Staged, StageInfo
from quiver.store.assembly import Hooks, assemble
from quiver.store.membership import Membership
from quiver.store.puts import Puts
from quiver.store.schemas import SchemaIndex
from quiver.store.status import StoreStatus, take_status
from quiver.subscriber.delivery import Start
from quiver.subscriber.lag import Lag
from quiver.subscriber.state import Order
from quiver.subscriber.subscriber import Status
from quiver.subscriber.subscription import Subscription
from quiver.transaction.commit import Committed, Committing
from quiver.transaction.stage import Stage
from quiver.upkeep.background import Background
from quiver.upkeep.sweeping import Maintenance

POLL_SECONDS: Final = 0.05


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
        memory: MemoryBudget | None = None,
        watch: Watch | None = None,
        first_segment: int = 0,
    ) -> None:
        self.config = config
        guard(self)
        self.where = where
        self.metrics = Metrics()
        self._disk = disk
        self._clock = clock = clock or SystemClock()
        self._logger = get_logger(store=where)
        self._closed: StoreClosed | None = None
        self._background: Background | None = None
        self.flush_queued = self.flush_wanted = self.work_queued = self.watched = False
        disk.mkdir("")
        self._file_lock = StoreLock.acquire(disk, clock, where=where)
        try:
            began = clock.monotonic()
            recovered = recover(
                disk,
                config,
                clock,
                watch=RecoveryWatch(clock, self._logger, watch),
                first_segment=first_segment,
            )
            self.report: Report = recovered.report
            self._uuid = recovered.state.uuid
            assembly = assemble(
                disk,
                config,
                clock,
                recovered,
                where=where,
                metrics=self.metrics,
                log=self._logger,
                hooks=Hooks(self._on_durable, self._on_rollback, self.flush, self._check_writable),
                budget=budget,
                memory=memory,
            )
        except BaseException:
            self._file_lock.release()
            raise
        self._assembly = assembly
        self._parts = parts = assembly.parts
        self._lock = parts.lock
        self._wal, self._commits = parts.wal, assembly.commits
        self._segments, self._ingest = parts.segments, parts.ingest
        self._registry = parts.registry
        self._upkeep, self._delivery = assembly.upkeep, assembly.delivery
        self._schemas = SchemaIndex(disk, parts.segments, parts.slots)
        self._puts = Puts(parts, self._upkeep, self._commits, assembly.seal_wait, self)
        self._members = Membership(parts, self._upkeep, self._delivery)
        self._staging = assembly.staging
        self._staging.admit = self._puts.admit
        self._committing = Committing(parts, self._upkeep, self._staging)
        self._durable_bytes = self.metrics.counter(m.INGEST_DURABLE_BYTES)
        disk.poison.on_trip = self._on_poison
        try:
            self._upkeep.begin(recovered.report, has_log=recovered.floor.has_log)
        except BaseException:
            self._let_go()
            raise
        self.metrics.gauge(m.RECOVERY_SECONDS).set(clock.monotonic() - began)
        self._logger.info(STORE_OPENED, replayed=recovered.report.bundles_replayed)
        self._own_background = background is True
        try:
            self._drive(Background(1, 1) if background is True else background or None)
        except BaseException:
            self.close()
            raise

    @property
    def uuid(self) -> str:
        """Names this store for life, in hex: a store made anew in its place has another."""
        return self._uuid

    def _drive(self, background: Background | None) -> None:
        if background is not None:
            background.attach(self)
        self._background = self._puts.background = background
        if self._commits is not None:
            self._commits.gather = background is not None and self.config.wal.flush == "interval"
        self._assembly.seal_wait.patient = background is not None
        self._delivery.on_outcome = self._watch
        if background is not None:
            background.work_soon(self)

    def _watch(self) -> None:
        """Something has happened that is due on disk by time."""
        if self._background is not None:
            self._background.watch(self)

    # Putting

    def put(
        self,
        slots: BySlot[pa.RecordBatch],
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        fingerprints: BySlot[bytes] | None = None,
        content_hash: bytes | None = None,
        event_time: tuple[int, int] | None = None,
        timeout: float = 0.0,
        awaited: bool = False,
        after: Receipt | None = None,
    ) -> Receipt:
        """Take a bundle in. Returns at once with its ref; ``receipt.wait()`` until durable.

        A repeat of ``key`` returns the first bundle's ref instead.  ``event_time`` is the
        lowest and highest in the bundle, in ns, where no column is declared for it.  When the
        store can't take more right now it raises :class:`~quiver.errors.Backpressure` at
        once, or after waiting for room for ``timeout`` seconds.  ``awaited`` promises that
        another thread waits for receipts all the time: then it does the log's work.

        ``after`` is the receipt of the bundle that this one follows, for who puts without
        waiting: if that one could not be written, this one is not taken before it comes again
        (:class:`~quiver.errors.OutOfTurn`).
        """
        return self._puts.put(
            lambda: self._assembly.preparation.prepare(
                slots,
                key=key,
                attributes=attributes,
                fingerprints=fingerprints,
                content_hash=content_hash,
                event_time=event_time,
            ),
            timeout,
            awaited=awaited,
            after=after,
        )

    def put_ipc(
        self,
        slots: BySlot[bytes | memoryview | pa.Buffer],
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        fingerprints: BySlot[bytes] | None = None,
        content_hash: bytes | None = None,
        event_time: tuple[int, int] | None = None,
        timeout: float = 0.0,
        awaited: bool = False,
        after: Receipt | None = None,
    ) -> Receipt:
        """As :meth:`put`, for slots that are Arrow IPC streams already: kept as they came."""
        return self._puts.put(
            lambda: self._assembly.preparation.prepare_ipc(
                slots,
                key=key,
                attributes=attributes,
                fingerprints=fingerprints,
                content_hash=content_hash,
                event_time=event_time,
            ),
            timeout,
            awaited=awaited,
            after=after,
        )

    # Transactions: bundles that are seen together, or not at all

    def stage(self, app: str, version: int, attempt: str) -> Stage:
        """Begin to write a part of a transaction: put into it, then ``finish()`` it.

        ``attempt`` is new each time that the part is tried; the commit names those that
        count.  Nothing of it is seen before that.
        """
        self._check_open()
        return self._staging.begin(app, version, attempt)

    def staged(self, app: str, version: int, attempt: str) -> Staged:
        """What an attempt holds that was finished, also before a restart."""
        self._check_open()
        return self._committing.staged(app, version, attempt)

    def stages(self) -> list[StageInfo]:
        """All stages that are neither committed nor aborted."""
        return self._committing.stages()

    def committed(self, app: str) -> int | None:
        """The last version that an app has committed; ``None`` if it has none."""
        self._check_open()
        return self._committing.committed(app)

    def commit(self, app: str, version: int, attempts: Sequence[str]) -> Committed:
        """Make what these attempts have staged seen, all of it at once and once only.

        Versions of an app only rise: one that was committed before, or that lies before the
        last one, is answered with ``repeated`` and changes nothing.  Stages of the
        transaction that are not named go.
        """
        self._check_open()
        return self._committing.commit(app, version, attempts)

    def abort(self, app: str, version: int, attempts: Sequence[str] | None = None) -> int:
        """Remove a transaction's stages, or these attempts of it; how many.

        One that is committed stays as it is.
        """
        self._check_open()
        return self._committing.abort(app, version, attempts)

    def _on_durable(self, before: int) -> None:
        """A group is on disk: its bundles may be delivered. Called with the lock held."""
        self._ingest.settle(before)
        known = self._segments.durable_bytes
        self._registry.show(lambda: self._segments.durable(before))
        self._durable_bytes.add(self._segments.durable_bytes - known)

    def _on_rollback(self, first: int, error: QuiverError) -> None:
        """A group could not be written: take it back. Called with the lock held.

        After a failed fsync nothing is taken back: nobody knows what the disk holds, and
        nothing will be written any more.
        """
        if isinstance(error, Poisoned):
            return
        if isinstance(error, StorageFull):
            self._upkeep.records.note_full()
        self._logger.warning(WAL_WRITE_FAILED, first_sequence=first, error=str(error))
        self._ingest.rollback(first)
        self._segments.rolled_back(first)

    def _on_poison(self, error: Poisoned) -> None:
        self._logger.error(STORE_POISONED, error=str(error))
        self._assembly.seal_wait.tell()

    # Subscribers

    def register(
        self, name: str, start: Start = "earliest", *, order: str = "oldest", follow: bool = True
    ) -> Subscription:
        """Make a subscriber known, durably: from here on its data is held for it.

        A new one begins at ``start``: ``"earliest"``, ``"latest"``, a time, or a ref.  A
        known one resumes where it was, whatever ``start`` says.
        """
        self._check_open()
        chosen = _order(order)
        subscriber = self._members.register(name, start)
        return Subscription(
            self._delivery,
            subscriber,
            clock=self._clock,
            flush=self.flush_progress,
            nudge=self._nudge,
            order=chosen,
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
        return self._members.activate()

    def unregister(self, name: str) -> int:
        """Remove a subscriber for good; what it had left is dropped. How many bundles."""
        self._check_open()
        given_up = self._members.leave(name, self._registry.unregister)
        self._watch()
        return given_up

    def drop_orphan(self, name: str) -> int:
        """Remove an orphan, and only an orphan; how many bundles it gave up."""
        self._check_open()
        given_up = self._members.leave(name, self._registry.drop_orphan)
        self._watch()
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
        return self._members.lag(self._registry.get(name))

    def all_subscribers_drained(self) -> bool:
        """Whether everybody, orphans too, has finished all that is durable, shown or not yet."""
        return self._registry.all_drained()

    def flush_progress(self, names: tuple[str, ...] | None = None) -> int:
        """Make acks durable, of all subscribers or of some; how many files were written."""
        self._check_open()
        return self._upkeep.records.flush_progress(names)

    # Reading without a subscriber

    def read(
        self,
        ref: BundleRef | tuple[int, int],
        slots: Collection[str | int] | None = None,
        columns: BySlot[Sequence[str]] | None = None,
    ) -> dict[str, pa.RecordBatch]:
        """A bundle's batches by slot name: all of it, or the slots and columns named."""
        self._check_open()
        table = self._parts.slots
        ids, chosen = None, None
        if slots is not None:
            ids = {i for s in slots if (i := table.find(s)) is not None}
        if columns:
            chosen = {i: c for s, c in columns.items() if (i := table.find(s)) is not None}
        where = ref if isinstance(ref, BundleRef) else BundleRef(*ref)
        with self._segments.pin(where.segment_seq) as view:
            found = view.read(where.bundle_index, ids, chosen or None)
        if len(found) > 1:
            found = dict(sorted(found.items()))
        return {table.name_of(slot): batch for slot, batch in found.items()}

    def read_slot(
        self,
        refs: Iterable[BundleRef],
        slot: str | int,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch | None]:
        """One slot of many bundles, in their order; ``None`` where one doesn't have it."""
        self._check_open()
        number = self._parts.slots.find(slot)
        # A slot nobody has heard of: the refs are looked at all the same.
        return _one_slot(self._segments, refs, -1 if number is None else number, columns)

    def encoded(
        self, ref: BundleRef | tuple[int, int], slots: Collection[str | int] | None = None
    ) -> dict[str, EncodedSlot]:
        """A bundle as Arrow IPC messages by slot name: to be sent on without decoding."""
        self._check_open()
        table = self._parts.slots
        ids = None if slots is None else {i for s in slots if (i := table.find(s)) is not None}
        segment_seq, index = ref
        with self._segments.pin(segment_seq) as view:
            found = view.encoded(index, ids)
        return {table.name_of(one.slot): one for one in sorted(found, key=lambda one: one.slot)}

    def bundles(
        self, refs: Iterable[BundleRef], slots: Collection[str | int] | None = None
    ) -> Iterator[tuple[BundleMeta, dict[str, EncodedSlot]]]:
        """Many bundles as :meth:`encoded` has them, in their order, and their metadata."""
        self._check_open()
        table = self._parts.slots
        ids = None if slots is None else {i for s in slots if (i := table.find(s)) is not None}
        for ref, view in self._segments.pinned(refs):
            meta, found = view.meta(ref.bundle_index), view.encoded(ref.bundle_index, ids)
            if len(found) > 1:
                found.sort(key=lambda one: one.slot)
            yield meta, {table.name_of(one.slot): one for one in found}

    def meta(self, ref: BundleRef | tuple[int, int]) -> BundleMeta:
        """Sequence, time, key, attributes and size of a bundle."""
        self._check_open()
        return self._segments.meta(BundleRef(*ref))

    def metas(self, refs: Iterable[BundleRef]) -> Iterator[BundleMeta]:
        """Many bundles' metadata, in their order."""
        self._check_open()
        return (view.meta(ref.bundle_index) for ref, view in self._segments.pinned(refs))

    def segment_sequences(self) -> list[int]:
        """Numbers of all segments with bundles to read, oldest first."""
        return [seq for seq, _ in self.segments()]

    def segments(self) -> list[tuple[int, int]]:
        """All segments with how many bundles of each can be read, oldest first."""
        return self._registry.visible()

    @property
    def next_segment(self) -> int:
        """The number that the next segment gets: every one below is used up."""
        with self._lock:
            return self._segments.next_segment

    @property
    def end(self) -> BundleRef:
        """The position behind all that can be read: nothing appears before it any more."""
        return self._registry.end

    def position_at(self, since_ns: int) -> BundleRef:
        """The position of the first bundle taken in at this time or later, in ns since the
        epoch; the end if there is none. Bundles that were lost are stepped over."""
        self._check_open()
        return self._delivery.position_at(since_ns, self.end)

    def segment_info(self, seq: int) -> SegmentInfo | None:
        """A written segment in a few numbers; ``None`` for one that is still in memory."""
        return self._segments.info(seq)

    @property
    def losses(self) -> tuple[Loss, ...]:
        """What went before everyone had finished it, and what subscribers refused, as far as the
        ledger tells it one by one."""
        return self._parts.ledger.losses

    def schemas(self, first_segment: int = 0) -> dict[str, list[pa.Schema]]:
        """Every schema of each slot, by name, learnt without reading any data."""
        self._check_open()
        return self._schemas.by_slot(self.segment_sequences(), first_segment)

    def status(self) -> StoreStatus:
        """How the store is doing: print it, or ``as_dict()`` for JSON."""
        return take_status(self.where, self._parts, self._upkeep, self._members, self.report)

    # Upkeep

    def sync(self) -> None:
        """Make everything put so far durable."""
        self._check_open()
        if self._wal is None or self._commits is None:
            self.flush()
            return
        known = self._wal.last_failure
        self._commits.flush()
        self._disk.poison.check()
        failure = self._wal.last_failure
        if failure is not None and failure is not known:
            raise failure

    def wait_durable(self, sequence: int, timeout: float | None = None) -> None:
        """Return once the entry with this sequence is durable."""
        deadline = None if timeout is None else self._clock.monotonic() + timeout
        while self._ingest.durable_before <= sequence:
            self.sync()
            if self._ingest.durable_before > sequence:
                return
            if deadline is None or self._clock.monotonic() >= deadline:
                raise WaitTimeout(f"sequence {sequence:,} is not durable yet.")
            self._pause()

    def flush(self) -> int:
        """Close the open segment and write all that is in memory; how many segments."""
        self._check_open()
        with self._lock:
            self._segments.closed(Trigger.FLUSH)
        return self._upkeep.sealing.seal_all()

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
            self._pause()
        self.maintain()
        return True

    def _pause(self) -> None:
        """Before looking again at what others have to do; ends at once when they can't."""
        if self._puts.stopping.wait(POLL_SECONDS):
            self._check_open()

    # Driven by the background, if there is one

    def flush_staged(self) -> None:
        """Commit until nothing is staged."""
        if self._commits is not None:
            self._commits.flush()

    def work(self) -> None:
        """One round of upkeep."""
        if self._closed is None:
            self._upkeep.run(patient=True)

    @property
    def goes_by_the_clock(self) -> bool:
        """Whether data goes, or is tried again, though nobody does anything."""
        return self._upkeep.goes_by_the_clock

    def look(self, background: Background) -> bool:
        """Ask for what has become due by time; whether more will be soon."""
        if self._closed is not None:
            return False
        commits = self._commits
        # Without `interval` too: who promised to wait may be held up by a slow client.
        if commits is not None and (commits.due() if commits.gather else commits.left_over()):
            background.flush_soon(self)
        self._upkeep.admission.measure()
        if self._upkeep.is_due():
            background.work_soon(self)
        return self._upkeep.will_be_due

    def left_alone(self) -> None:
        """The background has ended: go on without. Who waited for it does the work now."""
        self._drive(None)
        if self._commits is not None:
            self._commits.tell()
        self._assembly.seal_wait.tell()

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
        try:
            self._end_background()
            if self._disk.poison.cause is None:
                self._upkeep.finish()
        finally:
            self._let_go()
            self._logger.info(STORE_CLOSED)

    def _end_background(self) -> None:
        background = self._background
        if background is not None:
            background.detach(self)
            if self._own_background:
                background.close()

    def _let_go(self) -> None:
        """Stop who comes late, tell everyone who waits, and give back what is shared."""
        closed = self._closed or StoreClosed(f"the store {self.where} could not be opened.")
        with ExitStack() as last:
            last.callback(self._file_lock.release)  # when nobody writes any more
            last.callback(self._assembly.close)
            last.callback(self._assembly.seal_wait.tell)
            self._delivery.closed = closed
            self._puts.stopping.set()
            self._staging.shut(closed)
            self._upkeep.shut(closed)
            self._registry.shut(closed)
            # After a failed sync nobody knows whether it is durable, and the answer must say so.
            unknown = self._disk.poison.cause
            self._ingest.give_up(
                unknown or StoreClosed("the store was closed before this was durable.")
            )

    def _check_open(self) -> None:
        if self._closed is not None:
            raise self._closed

    def _check_writable(self) -> None:
        self._disk.poison.check()
        self._check_open()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Forked:
            if kind is None:  # an error on its way out says more
                raise


def _one_slot(
    segments: Segments, refs: Iterable[BundleRef], slot: int, columns: Sequence[str] | None
) -> Iterator[pa.RecordBatch | None]:
    for ref, view in segments.pinned(refs):
        try:
            batch = view.read_slot(ref.bundle_index, slot, columns)
        except SlotNotInBundle:
            batch = None
        yield batch


def _order(order: str) -> Order:
    try:
        return Order(order)
    except ValueError:
        choices = " or ".join(f"{one.value!r}" for one in Order)
        raise InvalidInput(f"there is no order {order!r}.", advice=f"Use {choices}.") from None
