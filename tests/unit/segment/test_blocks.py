"""Block checksums: the layout, and that it covers every byte of every stream."""

from __future__ import annotations

import zlib

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from quiver.disk.disk import Disk
from quiver.format.arrow import message as msg
from quiver.format.arrow.ipc_file import HEAD
from quiver.format.record import BundleMeta
from quiver.format.segment.blocks import (
    BLOCK_SIZE,
    Chunk,
    Piece,
    block_count,
    block_sums,
    find_mismatch,
)
from quiver.format.segment.guard import STRIPE, add_parity, damaged_blocks, encode_sums, mend
from quiver.format.segment.stage import STAGES, StageLabel
from quiver.format.wal.commit import Commit
from quiver.segment import SegmentReader, segment_path, write_segment
from quiver.segment.info import SEGMENTS
from quiver.segment.open_segment import OpenSegment
from quiver.segment.staged_file import publish_stage, write_stage
from quiver.segment.verified import head_pieces
from tests.support.batches import dictionary
from tests.support.memory_disk import MemoryDisk
from tests.support.segments import memory_disk, open_segment, slots_of


def numbers(rows: int) -> pa.RecordBatch:
    return pa.record_batch({"n": list(range(rows))})


def colors(rows: int, values: int) -> pa.RecordBatch:
    names = pa.array([f"{number:08}" for number in range(values)])
    return pa.record_batch({"d": dictionary([0] * rows, names, pa.int32())})


BUNDLES = st.lists(
    st.dictionaries(
        st.sampled_from([1, 2, 9]),
        st.one_of(
            st.builds(numbers, st.sampled_from([0, 1, 500, 2_000, 2_040, 2_048, 5_000, 9_000])),
            st.builds(colors, st.sampled_from([1, 10_000]), st.sampled_from([1, 5_000])),
        ),
        max_size=3,
    ),
    max_size=6,
)


def blocks_of(chunk: Chunk | Piece) -> list[tuple[int, int, int]]:
    """Start, end and sum of each block."""
    assert len(chunk.sums) == block_count(chunk.length)
    end = chunk.offset + chunk.length
    return [
        (start, min(start + BLOCK_SIZE, end), crc)
        for start, crc in zip(range(chunk.offset, end, BLOCK_SIZE), chunk.sums, strict=True)
    ]


def check_blocks(reader: SegmentReader, data: bytes) -> None:
    """Every byte of every stream is in one block, which sums to what is recorded; no block is
    longer than 16 KiB or holds bytes of two messages."""
    blocks = []
    manifest = reader._manifest
    messages = []
    for entry in reader.streams:
        pieces = head_pieces(entry)
        assert entry.tail_length is not None
        assert entry.tail_sums is not None
        end = entry.byte_offset + entry.byte_length
        pieces.append(Piece(end - entry.tail_length, entry.tail_length, entry.tail_sums))
        for piece in pieces:
            blocks += blocks_of(piece)
        buffer = pa.py_buffer(data[entry.byte_offset : end])
        at = len(HEAD)
        while (found := msg.read_message(buffer, at)) is not None:
            messages.append((entry.byte_offset + found.start, entry.byte_offset + found.end))
            at = found.end
    for index in range(len(reader)):
        for at in manifest.places(index):
            chunk = manifest.chunk(index, at)
            assert (chunk.offset, chunk.offset + chunk.length) in messages
            assert zlib.crc32(data[chunk.offset :][: chunk.length]) == chunk.crc
            blocks += blocks_of(chunk)
    blocks.sort()
    for start, end, crc in blocks:
        assert 0 < end - start <= BLOCK_SIZE
        assert zlib.crc32(data[start:end]) == crc
        touched = [one for one in messages if one[0] < end and start < one[1]]
        assert len(touched) <= 1
    for entry in reader.streams:
        at = entry.byte_offset
        for start, end, _ in blocks:
            if entry.byte_offset <= start < entry.byte_offset + entry.byte_length:
                assert start == at
                at = end
        assert at == entry.byte_offset + entry.byte_length


@settings(max_examples=60, deadline=None)
@given(BUNDLES)
def test_blocks_cover_every_byte_of_every_stream(
    bundles: list[dict[int, pa.RecordBatch]],
) -> None:
    """Scenario: bundles of any slots and sizes around a block, with and without dictionaries.
    Guarantee: see :func:`check_blocks`; and every bundle is read by them."""
    disk = memory_disk()
    write_segment(disk, open_segment(bundles), {})
    reader = SegmentReader.open(disk, 7, always=True)
    check_blocks(reader, disk.read(segment_path(7)))
    for index, bundle in enumerate(bundles):
        assert reader.read(index) == bundle


@settings(max_examples=30, deadline=None)
@given(BUNDLES)
def test_a_staged_file_keeps_its_sums(bundles: list[dict[int, pa.RecordBatch]]) -> None:
    """Scenario: a staged file, and the segment that it becomes. Guarantee: both have good block
    checksums for the same bytes, and both are read by them."""
    disk = Disk(MemoryDisk())
    for directory in (STAGES, SEGMENTS):
        disk.mkdir(directory)
    segment = OpenSegment(0)
    for bundle in bundles:
        segment.append(slots_of(bundle), BundleMeta())
    file = write_stage(disk, segment, StageLabel("app", 7, "a", 0, True, 99), {})
    staged = SegmentReader.open_staged(disk, file.path, always=True)
    assert staged.verifies
    assert not staged.held_bytes
    check_blocks(staged, disk.read(file.path))
    commit = Commit("app", 7, 41, 1_000, 5, (file.committed(),))
    publish_stage(disk, commit, 5, commit.files[0])
    reader = SegmentReader.open(disk, 5, always=True)
    assert reader.verifies
    assert not reader.held_bytes
    check_blocks(reader, disk.read(segment_path(5)))
    SegmentReader.open(disk, 5, verify=True)
    for index, bundle in enumerate(bundles):
        assert staged.read(index) == reader.read(index) == bundle
        assert reader.meta(index).sequence == 41


@given(st.binary(max_size=3 * BLOCK_SIZE + 5), st.data())
def test_sums_find_what_changed(data: bytes, drawn: st.DataObject) -> None:
    """Scenario: any bytes, one of them changed. Guarantee: its block is found, and no other."""
    sums = block_sums(data)
    assert find_mismatch(data, sums) is None
    if data:
        at = drawn.draw(st.integers(0, len(data) - 1))
        changed = data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]
        found = find_mismatch(changed, sums)
        assert found is not None
        assert found.offset == at - at % BLOCK_SIZE


@given(st.binary(min_size=1, max_size=4 * STRIPE), st.data())
def test_tables_are_mended(data: bytes, drawn: st.DataObject) -> None:
    """Scenario: up to 4 KiB in a row of the tables, parity included, are changed. Guarantee: their
    blocks are found and mended, to the byte."""
    tables = add_parity(data)
    assert len(tables) == len(data) + STRIPE
    start = drawn.draw(st.integers(0, len(tables) - 1))
    end = min(len(tables), start + drawn.draw(st.integers(1, 4096)))
    sums = encode_sums(tables)
    changed = tables[:start] + bytes(byte ^ 0x5A for byte in tables[start:end]) + tables[end:]
    assert mend(changed, damaged_blocks(changed, sums)) == tables
