"""Small stores and segments for tests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from quiver.disk.disk import Disk
from quiver.format.arrow.fingerprint import schema_fingerprint
from quiver.format.arrow.ipc import encode_batch
from quiver.format.record import NO_ATTRIBUTES, BundleMeta, EncodedSlot
from quiver.segment.open_segment import OpenSegment
from quiver.segment.reader import SegmentReader
from tests.support.memory_disk import MemoryDisk


def memory_disk(image: Mapping[str, bytes] | None = None) -> Disk:
    """A store's disk in memory, with the directory that segments need."""
    disk = Disk(MemoryDisk.from_image(image or {}))
    disk.mkdir("segments")
    return disk


def slots_of(bundle: Mapping[int, pa.RecordBatch]) -> list[EncodedSlot]:
    """A bundle as the engine encodes it."""
    return [
        EncodedSlot(slot, schema_fingerprint(batch.schema), encode_batch(batch))
        for slot, batch in bundle.items()
    ]


def meta_of(
    slots: Sequence[EncodedSlot],
    sequence: int,
    *,
    key: str | None = None,
    attributes: Mapping[str, str] = NO_ATTRIBUTES,
    event_time: tuple[int, int] | None = None,
) -> BundleMeta:
    """A bundle's metadata as the engine makes it."""
    return BundleMeta(
        sequence=sequence,
        ingestion_ts_ns=1_700_000_000_000_000_000 + sequence,
        key=key,
        content_hash=None if key is None else key.encode().ljust(32, b"."),
        attributes=attributes,
        event_time=event_time,
        rows=sum(slot.batch.rows for slot in slots),
        nbytes=sum(slot.batch.payload_len for slot in slots),
    )


def open_segment(
    bundles: Sequence[Mapping[int, pa.RecordBatch]], seq: int = 7, first_sequence: int = 100
) -> OpenSegment:
    """An open segment with these bundles."""
    segment = OpenSegment(seq)
    for number, bundle in enumerate(bundles):
        slots = slots_of(bundle)
        segment.append(slots, meta_of(slots, first_sequence + number))
    return segment


def rot(disk: Disk, path: str, position: int, flip: int = 0xFF) -> None:
    """Change one byte of a file in memory behind everybody's back, open or not."""
    raw = disk.raw
    assert isinstance(raw, MemoryDisk)
    folder, _, name = path.rpartition("/")
    with raw.mutex:
        inode = raw._names[folder][name]
        assert inode is not None
        inode.thawed()[position] ^= flip


def data_of(disk: Disk, seq: int, index: int) -> int:
    """The place of a byte in the data of a bundle with one slot."""
    reader = SegmentReader.open(disk, seq)
    (at,) = reader._manifest.places(index)
    chunk = reader._manifest.chunk(index, at)
    return chunk.offset + chunk.length - 20
