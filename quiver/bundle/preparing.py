"""The write path before the lock: check a bundle, encode it, hash it.

Everything that takes time happens here, in the thread of whoever puts, and nothing of it
is seen by others: the one thing shared is the slot table, where a new name gets its id.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import pyarrow as pa

from quiver.bundle.content_hash import CONTENT_HASH_SIZE, content_hash_0_1, hash_content
from quiver.bundle.event_time import check_range, event_range, merge_ranges
from quiver.bundle.slots import (
    BySlot,
    SlotTable,
    check_attributes,
    check_key,
    check_schema,
    check_slots,
    not_a_batch,
    validate,
)
from quiver.errors import InvalidBundle, LimitExceeded
from quiver.format.arrow.ipc import EncodedBatch, encode_batch, parse_stream, schema_message
from quiver.format.arrow.schema import SchemaMessage
from quiver.format.record import FINGERPRINT_SIZE, NO_ATTRIBUTES, EncodedSlot
from quiver.format.wal.entry import (
    NO_EXTRAS,
    BundleExtras,
    PreparedBody,
    encode_slot_names,
    prepare_bundle,
)
from quiver.ids import MAX_SLOTS, slot_name

if TYPE_CHECKING:
    from quiver.config import Config


class _Checked(NamedTuple):
    """A batch that is sound."""

    encoded: EncodedBatch
    rows: pa.RecordBatch
    """To look at, not to keep: if it came as bytes it lies over them, aligned or not."""
    came_as_rows: bool


class Prepared(NamedTuple):
    """A bundle that is ready to be given its place."""

    slots: Sequence[EncodedSlot]
    body: PreparedBody
    extras: BundleExtras
    ext: bytes
    rows: int
    nbytes: int
    hashed_here: bool
    """Whether the content hash was taken here, not given by the producer."""
    entry_size: int
    """Bytes it takes in the log."""
    other_hashes: tuple[bytes, ...] = ()
    """Its content hash taken otherwise, once it has to be compared."""

    def with_other_hashes(self) -> Prepared | None:
        """To compare it with a hash that 0.1.0 remembered, or that of a put by number whose slots
        have names by now; ``None`` if that can't tell more.

        A hash that the producer gave is compared as it is.
        """
        if self.other_hashes or not self.hashed_here:
            return None
        rows = ((slot, slot.batch.decode(to_check=True)) for slot in self.slots)
        other_hashes = (hash_content(rows, {}), content_hash_0_1(self.slots))
        return self._replace(other_hashes=other_hashes)


class Preparation:
    """Turns what a producer sends into what can be staged, or refuses it.

    ``new_names`` are slot names that got an id here and are not in the log yet; they are
    changed under ``lock``, the ingest lock.
    """

    def __init__(self, config: Config, slots: SlotTable, lock: threading.Lock) -> None:
        self._config = config
        self._limits = config.limits
        self._declared = config.event_time
        self._lock = lock
        self._schemas: dict[str | int, SchemaMessage] = {}
        self._named: dict[tuple[int, ...], bytes] = {}
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
        batches: dict[str | int, _Checked] = {}
        level = self._config.validation
        for slot, batch in check_slots(slots).items():
            schema = self._schema_of(slot, batch)
            validate(slot, batch, level)
            batches[slot] = _Checked(encode_batch(batch, schema), batch, True)
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
        batches: dict[str | int, _Checked] = {}
        for slot, data in slots.items():
            known = self._schemas.get(slot)
            encoded = parse_stream(data, max_bytes=self._limits.max_bundle, known=known)
            if encoded.schema is not known:
                self._take_schema(slot, encoded.schema)
            rows = encoded.decode(to_check=True)
            validate(slot, rows, self._config.validation)
            batches[slot] = _Checked(encoded, rows, False)
        return self._prepared(batches, fingerprints, key, attributes, content_hash, event_time)

    def _schema_of(self, slot: str | int, batch: object) -> SchemaMessage:
        """The schema of what should be a record batch; looked at once, not with every batch."""
        if not isinstance(batch, pa.RecordBatch):
            raise not_a_batch(slot, batch)
        last = self._schemas.get(slot)
        if last is not None and last.schema.equals(batch.schema, check_metadata=True):
            return last
        check_schema(batch.schema, self._limits)  # before Arrow is asked to encode it
        return self._take_schema(slot, schema_message(batch))

    def _take_schema(self, slot: str | int, schema: SchemaMessage) -> SchemaMessage:
        """Check a schema and remember it: the next batch of this slot most likely has it too."""
        check_schema(schema.schema, self._limits)
        size = len(schema.message)
        if size > self._limits.max_schema_bytes:
            raise LimitExceeded("schema bytes", size, self._limits.max_schema_bytes)
        if len(self._schemas) > MAX_SLOTS:  # names that nobody keeps: start over
            self._schemas.clear()
        self._schemas[slot] = schema
        return schema

    def _prepared(
        self,
        batches: Mapping[str | int, _Checked],
        fingerprints: BySlot[bytes] | None,
        key: str | None,
        attributes: Mapping[str, str] | None,
        content_hash: bytes | None,
        event_time: tuple[int, int] | None,
    ) -> Prepared:
        nbytes, rows = self._check_sizes(batches)
        given: dict[str | int, bytes] = {}
        if fingerprints or content_hash is not None:
            given = dict((fingerprints or {}).items())
            _check_hashes(given, batches, content_hash)
        if key is not None:
            check_key(key, self._limits)
        if event_time is not None:
            check_range(event_time)
        kept = check_attributes(attributes, self._limits) if attributes else NO_ATTRIBUTES
        # Only now that nothing is wrong with it: a refused bundle must not use up slot ids.
        ids = self._slot_ids(batches)
        slots = [
            EncodedSlot(ids[slot], given.get(slot, one.encoded.schema.schema_hash), one.encoded)
            for slot, one in batches.items()
        ]
        if len(slots) > 1:
            slots.sort(key=_by_slot)
        hashed_here = key is not None and content_hash is None
        if hashed_here:
            content_hash = self._hash(slots, {ids[slot]: one.rows for slot, one in batches.items()})
        if event_time is None and self._declared:
            event_time = self._event_time({ids[slot]: one for slot, one in batches.items()})
        extras, ext = NO_EXTRAS, b""
        if key is not None or content_hash is not None or kept or event_time is not None:
            extras = BundleExtras(key, content_hash, kept, event_time)
            ext = extras.encode()
        ext += self._names(tuple(slot.slot for slot in slots))
        body = prepare_bundle(slots)
        size = body.entry_size(ext)
        return Prepared(slots, body, extras, ext, rows, nbytes, hashed_here, size)

    def _names(self, slots: tuple[int, ...]) -> bytes:
        """What the log is told of the slots' names; a declared table is in every configuration."""
        if self.slots.declared:
            return b""
        found = self._named.get(slots)
        if found is None:
            if len(self._named) >= MAX_SLOTS:  # bundles of ever other slots: start over
                self._named.clear()
            found = self._named[slots] = encode_slot_names(self.slots.names_of(slots))
        return found

    def _hash(self, slots: Sequence[EncodedSlot], rows: Mapping[int, pa.RecordBatch]) -> bytes:
        if self._config.validation == "basic":  # hashing follows offsets, which it left out
            for slot in slots:
                validate(self.slots.name_of(slot.slot), rows[slot.slot], "full")
        pairs = ((slot, rows[slot.slot]) for slot in slots)
        return hash_content(pairs, self.slots.names_of(rows))

    def _check_sizes(self, batches: Mapping[str | int, _Checked]) -> tuple[int, int]:
        """Bytes and rows of a bundle that keeps within the limits."""
        limits = self._limits
        nbytes = rows = 0
        for one in batches.values():
            nbytes += one.encoded.payload_len
            rows += one.encoded.rows
        if nbytes > limits.max_bundle:
            raise LimitExceeded(
                "bundle bytes", nbytes, limits.max_bundle, advice="Send smaller batches."
            )
        return nbytes, rows

    def _event_time(self, batches: Mapping[int, _Checked]) -> tuple[int, int] | None:
        declared = self._declared
        columns = {self.slots.find(name): column for name, column in declared.items()}
        return merge_ranges(
            event_range(one.rows if one.came_as_rows else one.encoded.decode(), columns[slot])
            for slot, one in batches.items()
            if slot in columns
        )

    def _slot_ids(self, slots: Iterable[str | int]) -> dict[str | int, int]:
        """Ids for the slots given; a new name gets one, and its log entry with the bundle."""
        ids = {slot: self.slots.id_of(slot) for slot in slots}
        if None in ids.values():
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
        if len(ids) > 1 and len(set(ids.values())) != len(ids):
            raise InvalidBundle("a slot is named twice, by name and by number.")
        return cast(dict[str | int, int], ids)


def _by_slot(slot: EncodedSlot) -> int:
    return slot.slot


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
