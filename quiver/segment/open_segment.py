"""The open segment: bundles in memory, as the bytes that will be its file.

The engine appends under its own lock; anyone may read bundles that are there, since a
bundle never changes and lists only grow at their end.  Only a failed group takes the
newest bundles away again, before anybody was told of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import pyarrow as pa

from quiver.errors import SlotNotInBundle, UnknownBundle
from quiver.format.arrow.ipc import EncodedBatch, project
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.format.segment.manifest import SlotRef

_StreamKey = tuple[int, bytes, bytes, bytes]


@dataclass(slots=True)
class SchemaStream:
    """Batches that can share one Arrow file: same slot, schema and dictionaries."""

    slot: int
    fingerprint: bytes
    key: _StreamKey
    batches: list[EncodedBatch] = field(default_factory=list)


class SegmentBundle(NamedTuple):
    """One bundle: its slots, where they went, and its metadata."""

    slots: tuple[EncodedSlot, ...]
    refs: tuple[SlotRef, ...]
    meta: BundleMeta
    nbytes: int


class OpenSegment:
    """Gathers bundles until it is written. ``opened_at`` is the owner's to use."""

    def __init__(self, seq: int, opened_at: float = 0.0) -> None:
        self.seq = seq
        self.opened_at = opened_at
        self.nbytes = 0
        self.visible = 0
        """How many bundles may be shown: the owner counts them when they are durable."""
        self._bundles: list[SegmentBundle] = []
        self._streams: list[SchemaStream] = []
        self._ids: dict[_StreamKey, int] = {}
        self._schemas: dict[tuple[int, bytes], int] = {}

    @property
    def bundle_count(self) -> int:
        return len(self._bundles)

    @property
    def last_sequence(self) -> int:
        """The sequence of the newest bundle; -1 without one."""
        return (self._bundles[-1].meta.sequence or 0) if self._bundles else -1

    @property
    def stream_count(self) -> int:
        """Distinct (slot, schema) pairs: what a producer's variety costs."""
        return len(self._schemas)

    @property
    def variant_count(self) -> int:
        """Streams in the file: one more per set of dictionaries or fingerprint."""
        return len(self._streams)

    @property
    def bundles(self) -> Sequence[SegmentBundle]:
        """All bundles, in order: for the writer."""
        return self._bundles

    @property
    def streams(self) -> Sequence[SchemaStream]:
        """All streams, by id: for the writer."""
        return self._streams

    def append(self, slots: Sequence[EncodedSlot], meta: BundleMeta) -> int:
        """Take a bundle; the index it has from now on."""
        refs = []
        nbytes = 0
        for slot in slots:
            batch = slot.batch
            stream_id = self._stream_of(slot)
            batches = self._streams[stream_id].batches
            refs.append(SlotRef(slot.slot, stream_id, len(batches)))
            batches.append(batch)
            nbytes += batch.payload_len
        self._bundles.append(SegmentBundle(tuple(slots), tuple(refs), meta, nbytes))
        self.nbytes += nbytes
        return len(self._bundles) - 1

    def _stream_of(self, slot: EncodedSlot) -> int:
        batch = slot.batch
        message = batch.schema.message
        key = (slot.slot, slot.fingerprint, message, batch.dictionary_digest)
        found = self._ids.get(key)
        if found is not None:
            return found
        self._ids[key] = len(self._streams)
        self._streams.append(SchemaStream(slot.slot, slot.fingerprint, key))
        pair = (slot.slot, message)
        self._schemas[pair] = self._schemas.get(pair, 0) + 1
        return len(self._streams) - 1

    def truncate(self, count: int) -> None:
        """Undo the newest bundles, down to ``count``: their group was never written."""
        while len(self._bundles) > count:
            bundle = self._bundles.pop()
            self.nbytes -= bundle.nbytes
            for ref in bundle.refs:
                self._streams[ref.stream_id].batches.pop()
        while self._streams and not self._streams[-1].batches:
            self._forget(self._streams.pop())

    def _forget(self, stream: SchemaStream) -> None:
        del self._ids[stream.key]
        pair = (stream.slot, stream.key[2])
        self._schemas[pair] -= 1
        if not self._schemas[pair]:
            del self._schemas[pair]

    def meta(self, index: int) -> BundleMeta:
        return self._bundle(index).meta

    def slot_ids(self, index: int) -> list[int]:
        return sorted(slot.slot for slot in self._bundle(index).slots)

    def encoded(self, index: int, slots: Collection[int] | None = None) -> list[EncodedSlot]:
        """A bundle as it came in; of ``slots``, those that it has."""
        return [one for one in self._bundle(index).slots if slots is None or one.slot in slots]

    def check(self, index: int) -> None:
        """What is in memory is as it was put."""

    def schemas(self) -> Iterator[tuple[int, bytes, pa.Schema]]:
        """Slot, schema hash and schema of each stream."""
        for stream in tuple(self._streams):
            for batch in stream.batches[:1]:
                yield stream.slot, batch.schema.schema_hash, batch.schema.schema

    def read(
        self,
        index: int,
        slots: Collection[int] | None = None,
        columns: Mapping[int, Sequence[str]] | None = None,
    ) -> dict[int, pa.RecordBatch]:
        """A bundle's batches by slot; of ``slots``, those that it has."""
        return {
            slot.slot: project(slot.batch.decode(), (columns or {}).get(slot.slot))
            for slot in self._bundle(index).slots
            if slots is None or slot.slot in slots
        }

    def read_slot(
        self, index: int, slot: int, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """One batch of a bundle that must be there."""
        for found in self._bundle(index).slots:
            if found.slot == slot:
                return project(found.batch.decode(), columns)
        raise SlotNotInBundle(
            f"bundle {self.seq}.{index} has no slot {slot}.", segment=self.seq, slot=slot
        )

    def _bundle(self, index: int) -> SegmentBundle:
        if not 0 <= index < len(self._bundles):
            raise UnknownBundle(
                f"segment {self.seq} has {len(self._bundles)} bundles, none is {index}."
            )
        return self._bundles[index]
