"""The write path before the lock: check a bundle, encode it, hash it.

Everything that takes time happens here, in the thread of whoever puts, and nothing of it
is seen by others: the one thing shared is the slot table, where a new name gets its id.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import blake3
import pyarrow as pa

from quiver.bundle import (
    BySlot,
    SlotTable,
    check_attributes,
    check_bundle,
    check_key,
    check_schema,
    check_slots,
    validate,
)
from quiver.config import Config
from quiver.errors import InvalidBundle, LimitExceeded
from quiver.event_time import check_range, event_range, merge_ranges
from quiver.format.ipc import EncodedBatch, encode_batch, parse_stream
from quiver.format.record import FINGERPRINT_SIZE, NO_ATTRIBUTES, EncodedSlot
from quiver.format.wal_entry import BundleExtras, PreparedBody, prepare_bundle
from quiver.ids import slot_name

CONTENT_HASH_SIZE: Final = 32


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


class Preparation:
    """Turns what a producer sends into what can be staged, or refuses it.

    ``new_names`` are slot names that got an id here and are not in the log yet; they are
    changed under ``lock``, the ingest lock.
    """

    def __init__(self, config: Config, slots: SlotTable, lock: threading.Lock) -> None:
        self._config = config
        self._limits = config.limits
        self._lock = lock
        self.slots = slots
        self.new_names: dict[str, int] = {}

    def prepare(
        self,
        slots: BySlot[pa.RecordBatch],
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        fingerprints: BySlot[bytes] | None = None,
        content_hash: bytes | None = None,
        event_time: tuple[int, int] | None = None,
    ) -> Prepared:
        """Check and encode a bundle of record batches."""
        check_bundle(slots, self._limits, self._config.validation)
        batches = {slot: (encode_batch(batch), batch) for slot, batch in slots.items()}
        return self._prepared(batches, fingerprints, key, attributes, content_hash, event_time)

    def prepare_ipc(
        self,
        slots: BySlot[bytes | memoryview | pa.Buffer],
        *,
        key: str | None = None,
        attributes: Mapping[str, str] | None = None,
        fingerprints: BySlot[bytes] | None = None,
        content_hash: bytes | None = None,
        event_time: tuple[int, int] | None = None,
    ) -> Prepared:
        """Check a bundle whose slots are IPC streams already: they are kept as they came."""
        check_slots(slots)
        batches: dict[str | int, tuple[EncodedBatch, pa.RecordBatch]] = {}
        for slot, data in slots.items():
            encoded = parse_stream(data, max_bytes=self._limits.max_bundle)
            check_schema(encoded.schema.schema, self._limits)
            batch = encoded.decode()
            validate(slot, batch, self._config.validation)
            batches[slot] = (encoded, batch)
        return self._prepared(batches, fingerprints, key, attributes, content_hash, event_time)

    def _prepared(
        self,
        batches: Mapping[str | int, tuple[EncodedBatch, pa.RecordBatch]],
        fingerprints: BySlot[bytes] | None,
        key: str | None,
        attributes: Mapping[str, str] | None,
        content_hash: bytes | None,
        event_time: tuple[int, int] | None,
    ) -> Prepared:
        nbytes = sum(encoded.payload_len for encoded, _ in batches.values())
        self._check_sizes(nbytes, batches)
        given: dict[str | int, bytes] = dict((fingerprints or {}).items())
        _check_hashes(given, batches, content_hash)
        if key is not None:
            check_key(key, self._limits)
        if event_time is not None:
            check_range(event_time)
        kept = check_attributes(attributes, self._limits) if attributes else NO_ATTRIBUTES
        # Only now that nothing is wrong with it: a refused bundle must not use up slot ids.
        ids = self._slot_ids(batches)
        slots = sorted(
            (
                EncodedSlot(ids[slot], given.get(slot, encoded.schema.schema_hash), encoded)
                for slot, (encoded, _) in batches.items()
            ),
            key=lambda slot: slot.slot,
        )
        if key is not None and content_hash is None:
            content_hash = _content_hash(slots)
        extras = BundleExtras(
            key=key,
            content_hash=content_hash,
            attributes=kept,
            event_time=event_time
            or self._event_time({ids[slot]: one for slot, one in batches.items()}),
        )
        rows = sum(s.batch.rows for s in slots)
        return Prepared(slots, prepare_bundle(slots), extras, extras.encode(), rows, nbytes)

    def _check_sizes(
        self, nbytes: int, batches: Mapping[str | int, tuple[EncodedBatch, pa.RecordBatch]]
    ) -> None:
        limits = self._limits
        if nbytes > limits.max_bundle:
            raise LimitExceeded(
                "bundle bytes", nbytes, limits.max_bundle, advice="Send smaller batches."
            )
        for encoded, _ in batches.values():
            size = len(encoded.schema.message)
            if size > limits.max_schema_bytes:
                raise LimitExceeded("schema bytes", size, limits.max_schema_bytes)

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
                        self.new_names[name] = found
                    taken.append(found)
                    ids[slot] = found
        known = {slot: found for slot, found in ids.items() if found is not None}
        if len(set(known.values())) != len(known):
            raise InvalidBundle("a slot is named twice, by name and by number.")
        return known


def _check_hashes(
    fingerprints: Mapping[str | int, bytes],
    slots: Collection[str | int],
    content_hash: bytes | None,
) -> None:
    """What a producer hashed itself: kept as sent, if it has the right shape."""
    for slot, value in fingerprints.items():
        if slot not in slots:
            raise InvalidBundle(f"there is a fingerprint for slot {slot!r}, but no such slot.")
        if len(value) != FINGERPRINT_SIZE:
            raise InvalidBundle(f"a schema fingerprint has {FINGERPRINT_SIZE} bytes.")
    if content_hash is not None and len(content_hash) != CONTENT_HASH_SIZE:
        raise InvalidBundle(f"a content hash has {CONTENT_HASH_SIZE} bytes.")


def _content_hash(slots: Sequence[EncodedSlot]) -> bytes:
    """BLAKE3 over what the bundle holds: slot ids, schemas, dictionaries and batches."""
    digest = blake3.blake3()
    for slot in slots:
        digest.update(slot.slot.to_bytes(2, "little"))
        digest.update(slot.batch.schema.schema_hash)
        digest.update(slot.batch.dictionaries)
        digest.update(slot.batch.batch)
    return digest.digest()
