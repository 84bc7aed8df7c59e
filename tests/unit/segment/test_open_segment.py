"""The open segment: bundles sorted into streams, readable at once, undone if need be."""

from __future__ import annotations

import pyarrow as pa
import pytest

from quiver.errors import SlotNotInBundle, UnknownBundle
from quiver.format.arrow.ipc import encode_batch
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.segment.open_segment import OpenSegment
from tests.support.batches import dictionary, same, zoo
from tests.support.segments import meta_of, open_segment, slots_of

NUMBERS = pa.record_batch({"n": [1, 2, 3]})
TEXTS = pa.record_batch({"t": ["a", "b"]})


def keyed(*values: str) -> pa.RecordBatch:
    return pa.record_batch({"d": dictionary([0, None], pa.array(values), pa.int8())})


def test_bundles_come_back_before_anything_is_written() -> None:
    """Each kind of batch is read from memory just as it came, with its metadata."""
    bundles = [{3: batch, 40: NUMBERS} for batch in zoo().values()]
    segment = open_segment(bundles)
    assert segment.bundle_count == len(bundles)
    for index, bundle in enumerate(bundles):
        found = segment.read(index)
        assert list(found) == [3, 40]
        same(found[3], bundle[3])
        assert segment.meta(index).sequence == 100 + index
        assert [slot.slot for slot in segment.encoded(index)] == [3, 40]


def test_slots_and_columns_are_chosen() -> None:
    """Only what is asked for; a slot that the bundle lacks is left out, or is an error."""
    segment = open_segment([{1: NUMBERS, 2: TEXTS, 3: NUMBERS}])
    found = segment.read(0, [2, 9], {2: ["t", "no such"]})
    assert list(found) == [2]
    same(found[2], TEXTS)
    assert segment.read(0, None, {1: []})[1].num_columns == 0
    assert segment.read_slot(0, 3).equals(NUMBERS)
    with pytest.raises(SlotNotInBundle):
        segment.read_slot(0, 9)
    for index in (-1, 1):
        with pytest.raises(UnknownBundle):
            segment.read(index)


def test_what_makes_a_stream() -> None:
    """Slot, schema, fingerprint as sent and dictionaries; schemas are counted apart."""
    segment = OpenSegment(0)

    def put(slot: int, fingerprint: bytes, batch: pa.RecordBatch) -> tuple[int, int]:
        slots = [EncodedSlot(slot, fingerprint, encode_batch(batch))]
        segment.append(slots, BundleMeta())
        return segment.stream_count, segment.variant_count

    assert put(1, b"f" * 32, NUMBERS) == (1, 1)
    assert put(1, b"f" * 32, NUMBERS.slice(1)) == (1, 1)
    assert put(2, b"f" * 32, NUMBERS) == (2, 2)
    assert put(1, b"g" * 32, NUMBERS) == (2, 3)
    assert put(1, b"f" * 32, TEXTS) == (3, 4)
    assert put(1, b"f" * 32, NUMBERS.replace_schema_metadata({"k": "v"})) == (4, 5)
    assert put(1, b"f" * 32, keyed("x")) == (5, 6)
    assert put(1, b"f" * 32, keyed("y")) == (5, 7)
    assert put(1, b"f" * 32, keyed("x").slice(1)) == (5, 7)


def test_a_failed_group_is_undone() -> None:
    """Taking back the newest bundles leaves the segment as if they had never come."""
    bundles = [{1: NUMBERS}, {1: keyed("x")}, {1: keyed("y"), 2: TEXTS}, {1: NUMBERS}, {}]
    for keep in range(len(bundles) + 1):
        segment, wanted = open_segment(bundles), open_segment(bundles[:keep])
        segment.truncate(keep)
        again = open_segment(bundles[:keep])
        for number, bundle in enumerate(bundles[keep:], keep):
            slots = slots_of(bundle)
            segment.append(slots, meta_of(slots, 100 + number))
            again.append(slots, meta_of(slots, 100 + number))
        segment.truncate(keep)
        assert segment.nbytes == wanted.nbytes
        assert segment.bundle_count == wanted.bundle_count
        assert (segment.stream_count, segment.variant_count) == (
            wanted.stream_count,
            wanted.variant_count,
        )
        assert [stream.key for stream in segment.streams] == [s.key for s in wanted.streams]
        assert [len(s.batches) for s in segment.streams] == [len(s.batches) for s in wanted.streams]


def test_bytes_are_those_of_the_log() -> None:
    """The size that triggers a finalize is what the log holds for it."""
    segment = open_segment([{1: NUMBERS, 2: keyed("x")}, {}])
    assert segment.nbytes == sum(
        sum(len(part) for part in slot.batch.buffers()) for slot in segment.encoded(0)
    )
