"""Finding a bundle by its ref, wherever it lies now: in memory, or in a segment's file.

Only what is durable is found.  A bundle that was accepted and is not synced yet may still
be taken back, and nobody must have seen it then.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

import pyarrow as pa

from quiver.errors import BundleGone, NotFound, SegmentDamage, SlotNotInBundle, UnknownBundle
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.ids import BundleRef
from quiver.segment.accumulator import OpenSegment
from quiver.segment.catalog import Catalog
from quiver.segment.info import SegmentInfo
from quiver.segment.reader import SegmentReader
from quiver.tail import Tail


class Reader:
    """Reads bundles; a segment found damaged is handed to ``on_damage``."""

    def __init__(
        self,
        tail: Tail,
        catalog: Catalog,
        on_damage: Callable[[SegmentInfo, SegmentDamage], None],
    ) -> None:
        self._tail = tail
        self._catalog = catalog
        self._on_damage = on_damage

    def info(self, seq: int) -> SegmentInfo | None:
        """What is known about a written segment without reading it."""
        return self._catalog.info(seq)

    def find(self, seq: int) -> tuple[OpenSegment | SegmentReader, int]:
        """The segment and how many bundles of it are durable.

        It is in the catalog before it leaves memory, so looking in this order finds it.
        """
        found = self._tail.find(seq)
        if found is not None:
            return found
        info = self._catalog.info(seq)
        try:
            reader = self._catalog.reader(seq)
            return reader, reader.bundle_count
        except SegmentDamage as damage:
            self._damaged(info, damage)
        except NotFound:
            if info is None:
                raise
        found = self._tail.find(seq)  # it may have been rebuilt from the log
        if found is not None:
            return found
        try:
            reader = self._catalog.reader(seq)  # or written again since
            return reader, reader.bundle_count
        except NotFound:
            raise BundleGone(
                f"segment {seq} was damaged and has been set aside.",
                advice="What was lost is in the loss ledger, the file in quarantine/.",
                segment=seq,
                outcome="lost",
            ) from None

    def _damaged(self, info: SegmentInfo | None, damage: SegmentDamage) -> None:
        """``info`` is what was known before the read: it says which file was read."""
        if info is not None:
            self._on_damage(info, damage)

    def _segment_of(self, ref: BundleRef) -> OpenSegment | SegmentReader:
        segment, count = self.find(ref.segment_seq)
        if not 0 <= ref.bundle_index < count:
            raise UnknownBundle(f"there is no bundle {ref}, or it is not durable yet.", ref=ref)
        return segment

    def meta(self, ref: BundleRef) -> BundleMeta:
        """What is known about a bundle."""
        meta = self._segment_of(ref).meta(ref.bundle_index)
        if meta.lost:
            raise BundleGone(f"bundle {ref} was lost to damage.", ref=ref, outcome="lost")
        return meta

    def slot_ids(self, ref: BundleRef) -> list[int]:
        """The slots a bundle has, in ascending order."""
        segment = self._segment_of(ref)
        if isinstance(segment, OpenSegment):
            return sorted(slot.slot for slot in segment.slots(ref.bundle_index))
        return sorted(found.slot_id for found in segment.slot_refs(ref.bundle_index))

    def encoded(self, ref: BundleRef, slots: Collection[int] | None = None) -> list[EncodedSlot]:
        """A bundle as messages, to be sent on; its slots in ascending order."""
        info = self._catalog.info(ref.segment_seq)
        segment = self._segment_of(ref)
        try:
            return _messages(segment, ref.bundle_index, slots)
        except SegmentDamage as damage:
            self._damaged(info, damage)
            raise

    def metas(self, refs: Iterable[BundleRef]) -> Iterator[BundleMeta]:
        """What is known about many bundles, in their order."""
        for ref, segment in self._found(refs):
            meta = None if segment is None else segment.meta(ref.bundle_index)
            yield self.meta(ref) if meta is None or meta.lost else meta

    def bundles(
        self, refs: Iterable[BundleRef], slots: Collection[int] | None = None
    ) -> Iterator[tuple[BundleMeta, list[EncodedSlot]]]:
        """Many bundles as messages, in their order, each with what is known about it.

        Whatever isn't plain is left to :meth:`meta` and :meth:`encoded`, which know what
        to say about it.
        """
        for ref, segment in self._found(refs):
            meta, found = None, None
            if segment is not None:
                try:
                    meta = segment.meta(ref.bundle_index)
                    found = _messages(segment, ref.bundle_index, slots)
                except SegmentDamage:
                    found = None
            if meta is None or found is None or meta.lost:
                meta, found = self.meta(ref), self.encoded(ref, slots)
            yield meta, found

    def _found(
        self, refs: Iterable[BundleRef]
    ) -> Iterator[tuple[BundleRef, OpenSegment | SegmentReader | None]]:
        """Each ref with its segment, or ``None`` if that doesn't show such a bundle.

        Neighbours share a look, which is most of what a look at a bundle costs.
        """
        seq, segment, count = -1, None, 0
        for ref in refs:
            if segment is None or ref.segment_seq != seq:
                segment, count = self.find(ref.segment_seq)
                seq = ref.segment_seq
            yield ref, segment if 0 <= ref.bundle_index < count else None

    def read(
        self,
        ref: BundleRef,
        slots: Collection[int] | None = None,
        columns: Mapping[int, Sequence[str]] | None = None,
    ) -> dict[int, pa.RecordBatch]:
        """The batches of a bundle by slot id: all, or only the slots and columns named."""
        info = self._catalog.info(ref.segment_seq)
        segment = self._segment_of(ref)
        try:
            found = segment.read(ref.bundle_index, slots, columns)
            if not found:
                self.meta(ref)  # has nothing to be read, or was lost?
            return found
        except SlotNotInBundle:  # the caller's mistake, not the file's
            raise
        except SegmentDamage as damage:
            self._damaged(info, damage)
        return self._segment_of(ref).read(ref.bundle_index, slots, columns)

    def read_slot(
        self, refs: Iterable[BundleRef], slot: int, columns: Sequence[str] | None = None
    ) -> Iterator[pa.RecordBatch | None]:
        """One slot of many bundles, in their order; ``None`` where a bundle doesn't have it.

        Whatever isn't plain is left to :meth:`read`, which knows what to say about it.
        """
        for ref, segment in self._found(refs):
            batch = None
            if segment is not None:
                try:
                    batch = segment.read_slot(ref.bundle_index, slot, columns)
                except SegmentDamage:  # also where it has no such slot
                    batch = None
            if batch is None:
                chosen = None if columns is None else {slot: columns}
                batch = self.read(ref, {slot}, chosen).get(slot)
            yield batch


def _messages(
    segment: OpenSegment | SegmentReader, index: int, slots: Collection[int] | None
) -> list[EncodedSlot]:
    if isinstance(segment, OpenSegment):
        return [one for one in segment.slots(index) if slots is None or one.slot in slots]
    return segment.encoded(index, slots)
