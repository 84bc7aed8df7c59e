"""The write path: check, encode, stage.

``put`` does everything that takes time (checks, encoding, checksums, hashing) before it
takes the ingest lock; under the lock it only decides: is it a repeat, is there room,
which sequence and ref.  What it stages becomes durable by group commit, which never
holds that lock over I/O.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import blake3
import pyarrow as pa

from quiver import metrics as m
from quiver.bundle import (
    SlotTable,
    check_attributes,
    check_bundle,
    check_key,
    check_schema,
    validate,
)
from quiver.clock import Clock, IngestionClock
from quiver.config import Config
from quiver.errors import Backpressure, InvalidBundle, LimitExceeded, QuiverError, Reason
from quiver.event_time import event_range, merge_ranges
from quiver.format.ipc import EncodedBatch, encode_batch, parse_stream
from quiver.format.record import FINGERPRINT_SIZE, NO_ATTRIBUTES, BundleMeta, EncodedSlot
from quiver.format.state import KeyRecord
from quiver.format.wal_entry import (
    SLOT_NAME,
    BundleExtras,
    PreparedBody,
    control_size,
    encode_slot_name,
    prepare_bundle,
    seal_bundle,
)
from quiver.ids import MAX_SLOTS, slot_name
from quiver.metrics import Metrics
from quiver.receipt import DuplicateReceipt, Receipt, Waiter
from quiver.tail import Tail
from quiver.wal.writer import WalWriter
from quiver.window import KeyWindow


@dataclass(frozen=True, slots=True)
class Prepared:
    """A bundle that is ready to be given its place."""

    slots: Sequence[EncodedSlot]
    body: PreparedBody
    extras: BundleExtras
    ext: bytes
    rows: int
    nbytes: int

    @property
    def entry_size(self) -> int:
        """Bytes it takes in the log."""
        return self.body.entry_size(self.ext)


class Ingest:
    """Takes bundles in, one at a time per lock, durable or not at all."""

    def __init__(
        self,
        config: Config,
        *,
        lock: threading.Lock,
        clock: Clock,
        last_ts: int,
        slots: SlotTable,
        window: KeyWindow,
        tail: Tail,
        wal: WalWriter | None,
        waiter: Waiter,
        next_sequence: int,
        metrics: Metrics,
        refuse: Callable[[int], Backpressure | None],
    ) -> None:
        self._config = config
        self._limits = config.limits
        self._lock = lock
        self._clock = clock
        self._times = IngestionClock(clock, last_ts)
        self.slots = slots
        self.window = window
        self._tail = tail
        self._wal = wal
        self._waiter = waiter
        self._sequence = next_sequence
        self._sealed_before = next_sequence
        self._duplicates = metrics.counter(m.INGEST_DUPLICATES)
        self._bundles = metrics.counter(m.INGEST_BUNDLES)
        self._rows = metrics.counter(m.INGEST_ROWS)
        self._bytes = metrics.counter(m.INGEST_BYTES)
        self._refuse_by_budget = refuse
        self._unlogged_names: dict[str, int] = {}
        self._staged_names: list[tuple[int, str, int]] = []
        self._inflight: dict[str, Receipt] = {}
        self.unsealed: dict[int, list[Receipt]] = {}
        self.closed: QuiverError | None = None
        self.last_put = clock.monotonic()

    @property
    def last_ts(self) -> int:
        """The newest ingestion time given out."""
        return self._times.last_ns

    @property
    def next_sequence(self) -> int:
        """The sequence the next entry gets."""
        return self._sequence if self._wal is None else self._wal.next_sequence

    @property
    def durable_before(self) -> int:
        """Every sequence below is on disk."""
        return self._sealed_before if self._wal is None else self._wal.durable_before

    # Before the lock: what takes time

    def prepare(
        self,
        slots: Mapping[str | int, pa.RecordBatch],
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        fingerprints: Mapping[str | int, bytes] | None = None,
        content_hash: bytes | None = None,
    ) -> Prepared:
        """Check and encode a bundle of record batches."""
        check_bundle(slots, self._limits, self._config.validation)
        ids = self._slot_ids(slots)
        batches = {ids[slot]: (encode_batch(batch), batch) for slot, batch in slots.items()}
        given = {ids[slot]: value for slot, value in (fingerprints or {}).items()}
        return self._prepared(batches, given, key, attributes, content_hash)

    def prepare_ipc(
        self,
        slots: Mapping[str | int, bytes | memoryview | pa.Buffer],
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        fingerprints: Mapping[str | int, bytes] | None = None,
        content_hash: bytes | None = None,
    ) -> Prepared:
        """Check a bundle whose slots are IPC streams already: they are kept as they came."""
        if len(slots) > MAX_SLOTS:
            raise LimitExceeded("slots in a bundle", len(slots), MAX_SLOTS)
        ids = self._slot_ids(slots)
        batches: dict[int, tuple[EncodedBatch, pa.RecordBatch]] = {}
        for slot, data in slots.items():
            encoded = parse_stream(data, max_bytes=self._limits.max_bundle)
            check_schema(encoded.schema.schema, self._limits)
            batch = encoded.decode()
            validate(slot, batch, self._config.validation)
            batches[ids[slot]] = (encoded, batch)
        given = {ids[slot]: value for slot, value in (fingerprints or {}).items()}
        return self._prepared(batches, given, key, attributes, content_hash)

    def _prepared(
        self,
        batches: Mapping[int, tuple[EncodedBatch, pa.RecordBatch]],
        fingerprints: Mapping[int, bytes],
        key: str | None,
        attributes: Mapping[str, str] | None,
        content_hash: bytes | None,
    ) -> Prepared:
        slots = [
            EncodedSlot(slot, _fingerprint(fingerprints.get(slot), encoded), encoded)
            for slot, (encoded, _) in sorted(batches.items())
        ]
        nbytes = sum(s.batch.payload_len for s in slots)
        if nbytes > self._limits.max_bundle:
            raise LimitExceeded(
                "bundle bytes", nbytes, self._limits.max_bundle, advice="Send smaller batches."
            )
        for slot in slots:
            size = len(slot.batch.schema.message)
            if size > self._limits.max_schema_bytes:
                raise LimitExceeded("schema bytes", size, self._limits.max_schema_bytes)
        if key is not None:
            check_key(key, self._limits)
            content_hash = _content_hash(slots) if content_hash is None else content_hash
            if len(content_hash) != 32:
                raise InvalidBundle("a content hash has 32 bytes.")
        extras = BundleExtras(
            key=key,
            content_hash=content_hash,
            attributes=check_attributes(attributes, self._limits) if attributes else NO_ATTRIBUTES,
            event_time=self._event_time(batches),
        )
        rows = sum(s.batch.rows for s in slots)
        return Prepared(slots, prepare_bundle(slots), extras, extras.encode(), rows, nbytes)

    def _event_time(
        self, batches: Mapping[int, tuple[EncodedBatch, pa.RecordBatch]]
    ) -> tuple[int, int] | None:
        declared = self._config.event_time
        if not declared:
            return None
        columns = {self.slots.find(name): column for name, column in declared.items()}
        return merge_ranges(
            event_range(batch, columns[slot])
            for slot, (_, batch) in batches.items()
            if slot in columns
        )

    def _slot_ids(self, slots: Iterable[str | int]) -> dict[str | int, int]:
        """Ids for the slots given; a new name gets one, and its log entry with the bundle."""
        ids = {slot: self.slots.id_of(slot) for slot in slots}
        if any(found is None for found in ids.values()):
            with self._lock:
                taken = [found for found in ids.values() if found is not None]
                for slot in [name for name, found in ids.items() if found is None]:
                    name = slot_name(slot)
                    found = self.slots.id_of(name)  # somebody may have been faster
                    if found is None:
                        found = self.slots.free_id(taken)
                        self.slots.learn(name, found)
                        self._unlogged_names[name] = found
                    taken.append(found)
                    ids[slot] = found
        known = {slot: found for slot, found in ids.items() if found is not None}
        if len(set(known.values())) != len(known):
            raise InvalidBundle("a slot is named twice, by name and by number.")
        return known

    # Under the lock: what must be in order

    def stage(self, prepared: Prepared) -> Receipt | Backpressure:
        """Give a bundle its place, or say why not now. The caller holds the lock."""
        if self.closed is not None:
            raise self.closed
        extras = prepared.extras
        if extras.key is not None:
            first = self._repeat(extras.key, extras.content_hash or b"")
            if first is not None:
                self._duplicates.add()
                return DuplicateReceipt(first)
        refusal = self._refusal(prepared)
        if refusal is not None:
            return refusal
        self._log_names()
        return self._place(prepared)

    def _repeat(self, key: str, content_hash: bytes) -> Receipt | None:
        record = self.window.find(key, content_hash, self._clock.now_ns())
        if record is None:
            return None
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
        wal, tail, config = self._wal, self._tail, self._config
        if wal is not None:
            staged = wal.staged_bytes
            if staged and staged + size > config.limits.max_unsynced:
                return Backpressure(
                    Reason.ADMISSION,
                    f"{staged:,} bytes are accepted and not yet durable",
                    retry_after_ms=5,
                )
            if not wal.room_for(size + self._names_size()):
                return Backpressure(
                    Reason.WAL_FULL,
                    f"the log is at its cap of {config.wal.max_size:,} bytes or"
                    f" {config.wal.max_rotated_files} files",
                    retry_after_ms=50,
                )
        if tail.open is None and tail.segment_count >= config.segment.max_unfinalized:
            return Backpressure(
                Reason.ROLLOVER,
                f"{tail.segment_count} segments wait to be written",
                retry_after_ms=20,
            )
        return self._refuse_by_budget(size)

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
        ref = self._tail.next_ref()
        sequence = self.next_sequence
        ts = self._times.next_ns()
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
            ext = prepared.ext
            entry = seal_bundle(prepared.body, sequence, wal.durable_before, ref, ts, ext)
            wal.stage(entry, prepared.entry_size, sequence, ref.segment_seq, receipt)
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
        )
        self.last_put = self._clock.monotonic()
        self._tail.append(prepared.slots, meta, self.last_put)
        if extras.key is not None and extras.content_hash is not None:
            record = KeyRecord(extras.key, extras.content_hash, ref, sequence, ts)
            self.window.add(record)
            self._inflight[extras.key] = receipt
        self._bundles.add()
        self._rows.add(prepared.rows)
        self._bytes.add(prepared.nbytes)
        return receipt

    def rollback(self, sequence: int) -> None:
        """Undo everything from ``sequence`` on: it was never written. Lock held."""
        self.window.forget_from(sequence)
        for key, receipt in list(self._inflight.items()):
            if receipt.sequence >= sequence:
                del self._inflight[key]
        while self._staged_names and self._staged_names[-1][0] >= sequence:
            _, name, slot = self._staged_names.pop()
            self._unlogged_names[name] = slot

    def settle(self, before: int) -> None:
        """Everything below ``before`` is durable: repeats need not wait for it. Lock held."""
        if self._inflight:
            for key, receipt in list(self._inflight.items()):
                if receipt.sequence >= before:
                    break
                del self._inflight[key]
        while self._staged_names and self._staged_names[0][0] < before:
            self._staged_names.pop(0)

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


def _fingerprint(given: bytes | None, encoded: EncodedBatch) -> bytes:
    if given is None:
        return encoded.schema.schema_hash
    if len(given) != FINGERPRINT_SIZE:
        raise InvalidBundle("a schema fingerprint has 32 bytes.")
    return given


def _content_hash(slots: Sequence[EncodedSlot]) -> bytes:
    """BLAKE3 over what the bundle holds: slot ids, schemas, dictionaries and batches."""
    digest = blake3.blake3()
    for slot in slots:
        digest.update(slot.slot.to_bytes(2, "little"))
        digest.update(slot.batch.schema.schema_hash)
        digest.update(slot.batch.dictionaries)
        digest.update(slot.batch.batch)
    return digest.digest()
