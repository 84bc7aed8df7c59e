"""The format as files, byte for byte: as 0.1.0 wrote it, and with block checksums."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from quiver.format.record import BundleMeta, EncodedSlot, ProducerStamp
from quiver.segment import OpenSegment, SegmentReader, segment_path, write_segment
from tests.support.batches import dictionary, same
from tests.support.segments import memory_disk, slots_of

FILES = Path(__file__).parents[2] / "golden" / "segment"
OLD = FILES / "v1.qseg"
GOLDEN = FILES / "v1-blocks.qseg"
LOGS = pa.record_batch(
    [pa.array([1, 2, None], pa.int64()), pa.array(["a", None, "c"])],
    schema=pa.schema(
        [
            pa.field("id", pa.int64(), metadata={"unit": "none"}),
            pa.field("text", pa.utf8()),
        ],
        metadata={"source": "golden"},
    ),
)
SPANS = [
    pa.record_batch({"name": dictionary([0, 0, None], pa.array([name]), pa.int8())})
    for name in ("get", "put")
]
BUNDLES: list[tuple[dict[int, pa.RecordBatch], BundleMeta]] = [
    ({1: LOGS, 2: SPANS[0]}, BundleMeta(10, 1_700_000_000_000_000_000, rows=6, nbytes=1000)),
    ({}, BundleMeta(11, 1_700_000_000_000_000_001)),
    (
        {2: SPANS[1]},
        BundleMeta(
            sequence=13,
            ingestion_ts_ns=1_700_000_000_000_000_002,
            key="a key",
            content_hash=b"h" * 32,
            attributes={"tenant": "t1", "region": "r1"},
            event_time=(5, 9),
            rows=3,
            nbytes=500,
            store_ts_ns=1_700_000_000_000_000_077,
            producer=ProducerStamp("p1", 2**64 - 1, 3),
        ),
    ),
    ({1: LOGS.slice(0, 0), 2: SPANS[0]}, BundleMeta(14, 1_700_000_000_000_000_003, rows=3)),
]


def segment() -> OpenSegment:
    made = OpenSegment(42)
    for bundle, meta in BUNDLES:
        made.append(slots_of(bundle), meta)
    sent = EncodedSlot(1, b"as the producer sent it".ljust(32), slots_of({1: LOGS})[0].batch)
    made.append([sent], BundleMeta(15, 1_700_000_000_000_000_004, rows=3, nbytes=100))
    return made


def test_the_writer_still_writes_these_bytes() -> None:
    """The same bundles give the same bytes as they did when the file was made.

    If a new Arrow release encodes its own messages otherwise, this fails and the reading
    test below doesn't: then look at the difference, and only then make the file anew.
    """
    disk = memory_disk()
    write_segment(disk, segment(), {1: "Logs", 2: "Spans"})
    assert disk.read(segment_path(42)) == GOLDEN.read_bytes()


@pytest.mark.parametrize("always", [True, False])
@pytest.mark.parametrize("file", [OLD, GOLDEN], ids=lambda file: file.stem)
def test_the_reader_still_reads_them(file: Path, always: bool) -> None:
    """Whatever becomes of the writer, files of version 1 are read, to the last field; those
    of 0.1.0 have no block checksums, no store time and no producer."""
    disk = memory_disk({segment_path(42): file.read_bytes()})
    reader = SegmentReader.open(disk, 42, always=always)
    assert reader.verifies is always
    assert bool(reader.held_bytes) is (always and file == OLD)
    for index, (bundle, meta) in enumerate(BUNDLES):
        if file == OLD:
            meta = meta._replace(store_ts_ns=None, producer=None)
        found = reader.read(index)
        assert found.keys() == bundle.keys()
        for slot, batch in bundle.items():
            same(found[slot], batch)
        assert reader.meta(index) == meta
    assert [(entry.slot_name, entry.chunk_count) for entry in reader.streams] == [
        ("Logs", 2),
        ("Spans", 2),
        ("Spans", 1),
        ("Logs", 1),
    ]
    assert reader.encoded(4)[0].fingerprint == b"as the producer sent it".ljust(32)
    assert (reader.info.first_sequence, reader.info.last_sequence) == (10, 15)
    assert reader.info.last_store_ts == (None if file == OLD else 1_700_000_000_000_000_077)
