"""The write path under the lock: is it a repeat, is there room, which sequence and ref.

Everything that takes time was done before (:mod:`quiver.bundle.preparing`).  What is staged here
becomes durable by group commit, which never holds the lock over I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile

from quiver import metrics as m
from quiver.bundle.preparing import Preparation, Prepared
from quiver.clock import Clock, StoreTimes
from quiver.config import Config
from quiver.errors import Backpressure, IoFault, QuiverError, Reason
from quiver.format.keys import KeyRecord
from quiver.format.record import BundleMeta
from quiver.format.wal.commit import Commit, CommittedFile, encode_commit
from quiver.format.wal.entry import (
    COMMIT,
    SLOT_NAME,
    control_size,
    encode_control,
    encode_slot_name,
    seal_bundle,
)
from quiver.ids import BundleRef
from quiver.ingest.receipt import DuplicateReceipt, Receipt, Waiter
from quiver.metrics import Metrics
from quiver.record.app_versions import Transactions, record_of
from quiver.record.key_window import KeyWindow
from quiver.record.ledger import Ledger
from quiver.segment.closing import Trigger
from quiver.segment.segments import Segments
from quiver.wal.capacity import Completable
from quiver.wal.writer import WalWriter


class Ingest:
    """Takes bundles in, one at a time per lock, durable or not at all."""

    def __init__(
        self,
        config: Config,
        *,
        lock: threading.Lock,
        clock: Clock,
        times: StoreTimes,
        preparation: Preparation,
        window: KeyWindow,
        transactions: Transactions,
        ledger: Ledger,
        segments: Segments,
        wal: WalWriter | None,
        waiter: Waiter,
        next_sequence: int,
        metrics: Metrics,
        refuse: Callable[[int], Backpressure | None],
    ) -> None:
        self._config = config
        self._lock = lock
        self._clock = clock
        self.times = times
        self.window = window
        self.transactions = transactions
        self._ledger = ledger
        self._segments = segments
        self._wal = wal
        self._waiter = waiter
        self._sequence = next_sequence
        self._sealed_before = next_sequence
        self._duplicates = metrics.counter(m.INGEST_DUPLICATES)
        self._resent = metrics.counter(m.INGEST_RESENT)
        self._bundles = metrics.counter(m.INGEST_BUNDLES)
        self._rows = metrics.counter(m.INGEST_ROWS)
        self._bytes = metrics.counter(m.INGEST_BYTES)
        self._refuse_by_budget = refuse
        self._unlogged_names = preparation.new_names
        self._staged_names: list[tuple[int, str, int]] = []
        self._inflight: dict[str, Receipt] = {}
        self._durable_seconds = metrics.histogram(m.INGEST_DURABLE_SECONDS)
        self._oldest: tuple[int, float] | None = None  # first put since the last settling
        self.unsealed: dict[int, list[Receipt]] = {}
        self.closed: QuiverError | None = None
        self.last_put = clock.monotonic()

    @property
    def last_ts(self) -> int:
        """The newest ingestion time given out."""
        return self.times.last_ns

    @property
    def next_sequence(self) -> int:
        """The sequence the next entry gets."""
        return self._sequence if self._wal is None else self._wal.next_sequence

    @property
    def durable_before(self) -> int:
        """Every sequence below is on disk."""
        return self._sealed_before if self._wal is None else self._wal.durable_before

    # Under the lock: what must be in order

    def stage(self, prepared: Prepared) -> Receipt | Backpressure:
        """Give a bundle its place, or say why not now. The caller holds the lock."""
        if self.closed is not None:
            raise self.closed
        record = self._known(prepared)
        lost: BundleRef | None = None
        if record is not None:
            if not self._ledger.has_lost(record.ref):
                self._duplicates.add()
                return DuplicateReceipt(self._first(record))
            lost = record.ref  # the producer brings back what was lost: a new bundle
        refusal = self._refusal(prepared)
        if refusal is not None:
            return refusal
        try:
            if self._unlogged_names:
                self._log_names()
            receipt = self._place(prepared)
        except QuiverError:
            raise
        except BaseException as exc:
            self._cut_short("a put", exc)
            raise
        if lost is not None:
            receipt.replaces = lost
            self._resent.add()
        return receipt

    def _cut_short(self, what: str, exc: BaseException) -> None:
        """An interrupt: the log may have an entry that memory lacks, and the next bundle would
        get its ref.  What was staged before is as good as ever."""
        self.closed = IoFault(
            f"{what} was interrupted half way: {exc!r}.",
            advice="Close the store and open it again; nothing that was durable is lost.",
        )

    @contextmanager
    def _whole(self, what: str) -> Iterator[None]:
        """The log and memory take something in together, or no more is taken in at all."""
        try:
            yield
        except QuiverError:
            raise
        except BaseException as exc:
            self._cut_short(what, exc)
            raise

    def _known(self, prepared: Prepared) -> KeyRecord | None:
        """The bundle that was put under the same key, if there is one."""
        extras = prepared.extras
        if extras.key is None:
            return None
        content_hash = extras.content_hash or b""
        now, other_hashes = self.times.now_ns(), prepared.other_hashes
        return self.window.find(extras.key, content_hash, now, other_hashes)

    def _first(self, record: KeyRecord) -> Receipt:
        """The receipt of the first bundle with a key, or one like it."""
        key = record.key
        first = self._inflight.get(key)
        if first is None or first.sequence != record.sequence:
            first = Receipt(
                record.ref,
                record.sequence,
                record.ts_ns,
                rows=0,
                nbytes=0,
                key=key,
                waiter=self._waiter,
            )
            first.complete()
        return first

    def _refusal(self, prepared: Prepared) -> Backpressure | None:
        size = prepared.entry_size
        wal, segments, config = self._wal, self._segments, self._config
        if wal is not None:
            staged = wal.staged_bytes
            if staged and staged + size > config.limits.max_unsynced:
                return Backpressure(
                    Reason.ADMISSION,
                    f"{staged:,} bytes are accepted and not yet durable",
                    retry_after_ms=5,
                )
            names = self._names_size() if self._unlogged_names else 0
            refusal = self._no_log_room(size + names)
            if refusal is not None:
                return refusal
        most = config.segment.max_unfinalized
        if segments.open is None and (waiting := segments.never_written) >= most:
            return Backpressure(
                Reason.ROLLOVER,
                f"{waiting} segments wait to be written",
                retry_after_ms=20,
            )
        return self._refuse_by_budget(size)

    def _no_log_room(self, size: int) -> Backpressure | None:
        limits = self._config.wal
        if self._wal is None or self._wal.room_for(size):
            return None
        return Backpressure(
            Reason.WAL_FULL,
            f"the log is at its cap of {limits.max_size:,} bytes or"
            f" {limits.max_rotated_files} files",
            retry_after_ms=50,
        )

    def _names_size(self) -> int:
        return sum(control_size(encode_slot_name(i, n)) for n, i in self._unlogged_names.items())

    def _log_names(self) -> None:
        if self._wal is None:
            self._unlogged_names.clear()  # the segment's directory and the checkpoint carry them
            return
        for name, slot in self._unlogged_names.items():
            sequence = self._wal.stage_control(SLOT_NAME, encode_slot_name(slot, name))
            self._staged_names.append((sequence, name, slot))
        self._unlogged_names.clear()

    def _place(self, prepared: Prepared) -> Receipt:
        ref = self._segments.next_ref()
        sequence = self.next_sequence
        ts, store_ts = self.times.stamp(), self.times.now_ns()
        extras, wal = prepared.extras, self._wal
        receipt = Receipt(
            ref,
            sequence,
            ts,
            rows=prepared.rows,
            nbytes=prepared.nbytes,
            key=extras.key,
            waiter=self._waiter,
        )
        if wal is not None:
            size = prepared.entry_size
            entry = seal_bundle(
                prepared.body,
                sequence,
                wal.durable_before,
                ref,
                ts,
                prepared.ext,
                store_ts=store_ts,
                seed=wal.seed_for(size),
            )
            wal.stage(entry, size, sequence, ref.segment_seq, receipt)
        else:
            self.unsealed.setdefault(ref.segment_seq, []).append(receipt)
            self._sequence = sequence + 1
        meta = BundleMeta(
            sequence,
            ts,
            extras.key,
            extras.content_hash,
            extras.attributes,
            extras.event_time,
            prepared.rows,
            prepared.nbytes,
            store_ts,
            extras.producer,
        )
        self.last_put = self._clock.monotonic()
        if self._oldest is None:
            self._oldest = sequence, self.last_put
        self._segments.append(prepared.slots, meta, self.last_put)
        if extras.key is not None and extras.content_hash is not None:
            record = KeyRecord(extras.key, extras.content_hash, ref, sequence, store_ts)
            self.window.add(record)
            self._inflight[extras.key] = receipt
        self._bundles.add()
        self._rows.add(prepared.rows)
        self._bytes.add(prepared.nbytes)
        return receipt

    # Transactions: the caller holds the lock

    def stage_names(self) -> bool | Backpressure:
        """See to it that every slot name given out is in the log; whether some still are to be.

        A staged file outlives the process, so an id in it must never get another name.
        """
        if self.closed is not None:
            raise self.closed
        if self._unlogged_names:
            refusal = self._no_log_room(self._names_size())
            if refusal is not None:
                return refusal
            with self._whole("staging"):
                self._log_names()
        return bool(self._staged_names)

    def stage_commit(
        self,
        app: str,
        version: int,
        files: Sequence[CommittedFile],
        receipt: Completable,
    ) -> Commit | Backpressure:
        """Give a transaction its place in the log and its segments their numbers.

        The open segment is closed before: numbers rise as sequences do.
        """
        if self.closed is not None:
            raise self.closed
        wal, segments = self._wal, self._segments
        assert wal is not None, "only a store with a log has transactions"
        payload = encode_commit(app, version, segments.next_segment, files)
        size = control_size(payload)
        refusal = self._no_log_room(size)
        if refusal is not None:
            return refusal
        with self._whole("a commit"):
            ts, store_ts = self.times.stamp(), self.times.now_ns()
            sequence = wal.next_sequence
            entry = encode_control(
                COMMIT,
                payload,
                sequence=sequence,
                synced_before=wal.durable_before,
                ts=ts,
                store_ts=store_ts,
                seed=wal.seed_for(size),
            )
            segments.closed(Trigger.COMMIT)
            commit = Commit(
                app, version, sequence, ts, segments.next_segment, tuple(files), store_ts=store_ts
            )
            wal.stage([entry], size, sequence, commit.end_segment - 1, receipt)
            segments.reserved(commit)
            self.transactions.stage(record_of(commit))
            return commit

    def rollback(self, sequence: int) -> None:
        """Undo everything from ``sequence`` on: it was never written. Lock held."""
        self.window.forget_from(sequence)
        self.transactions.rollback(sequence)
        self._oldest = None
        for key, receipt in list(self._inflight.items()):
            if receipt.sequence >= sequence:
                del self._inflight[key]
        while self._staged_names and self._staged_names[-1][0] >= sequence:
            _, name, slot = self._staged_names.pop()
            self._unlogged_names[name] = slot

    def settle(self, before: int) -> None:
        """Everything below ``before`` is durable: repeats need not wait for it. Lock held."""
        self.transactions.settle(before)
        if self._inflight:
            durable = takewhile(lambda one: one[1].sequence < before, self._inflight.items())
            for key, _ in list(durable):
                del self._inflight[key]
        while self._staged_names and self._staged_names[0][0] < before:
            self._staged_names.pop(0)
        if self._oldest is not None and self._oldest[0] < before:
            # One of each group is enough, and the one that waited longest says most.
            self._durable_seconds.observe(self._clock.monotonic() - self._oldest[1])
            self._oldest = None

    def give_up(self, error: QuiverError) -> None:
        """Without a log: what is in no segment file yet will not become durable."""
        with self._lock:
            receipts = [one for receipts in self.unsealed.values() for one in receipts]
            self.unsealed.clear()
        for receipt in receipts:
            receipt.complete(error)

    def settle_sealed(self, receipts: Sequence[Receipt]) -> None:
        """Without a log: the bundles of a segment became durable with its file. Lock held."""
        if self._wal is None and receipts:
            self._sealed_before = max(self._sealed_before, receipts[-1].sequence + 1)
            self.settle(self._sealed_before)
