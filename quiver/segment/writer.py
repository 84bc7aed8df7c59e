"""From open to sealed: lay a segment out, write it, and only then give it its name.

The batches are on hand as messages with their checksums, so laying out is bookkeeping:
nothing is encoded again, and only messages of more than one block are summed once more,
block by block.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from quiver.disk.disk import Disk
from quiver.errors import LimitExceeded, QuiverError
from quiver.format.arrow.ipc_file import FileBuilder, IpcFile
from quiver.format.crc import crc32, crc32_combine
from quiver.format.record import BundleMeta
from quiver.format.segment.blocks import Chunk
from quiver.format.segment.file import (
    STREAM_ALIGNMENT,
    Footer,
    SegmentSummary,
    StreamEntry,
    encode_directory,
)
from quiver.format.segment.guard import Seal, add_parity, encode_sums, front_length
from quiver.format.segment.manifest import encode_manifest
from quiver.format.segment.stage import StageLabel, Transaction
from quiver.segment.info import SEGMENTS, TMP_SUFFIX, SegmentInfo, segment_path
from quiver.segment.open_segment import OpenSegment, SchemaStream

SEALED_MODE: Final = 0o440
MAX_TABLE_BYTES: Final = 2**32 - 1
"""Directory and manifest lengths are u32 in the footer."""

_ZEROS: Final = bytes(STREAM_ALIGNMENT)


@dataclass(frozen=True, slots=True)
class FileLayout:
    """A segment file, not yet written: its bytes in pieces, and their sum."""

    buffers: Sequence[bytes | pa.Buffer]
    size: int
    summary: SegmentSummary
    streams: Sequence[StreamEntry]


class Pieces:
    """Buffers laid end to end, with the length and checksum of what is there so far.

    ``size`` and ``crc`` are those of what they are to be laid behind.
    """

    def __init__(self, size: int = 0, crc: int = 0) -> None:
        self.buffers: list[bytes | pa.Buffer] = []
        self.size = size
        self.crc = crc

    def align(self, boundary: int) -> None:
        self.add_bytes(_ZEROS[: -self.size % boundary])

    def add_bytes(self, data: bytes) -> None:
        self.buffers.append(data)
        self.size += len(data)
        self.crc = crc32(data, self.crc)

    def add_file(self, file: IpcFile) -> None:
        self.buffers.extend(file.buffers)
        self.size += file.size
        self.crc = crc32_combine(self.crc, file.crc, file.size)


def write_segment(
    disk: Disk,
    segment: OpenSegment,
    slot_names: Mapping[int, str],
    transaction: Transaction | None = None,
) -> SegmentInfo:
    """Write a segment so that after a crash it is there whole, or not at all.

    ``transaction`` is the one it was committed with, if it is written a second time.
    """
    layout = lay_out(segment, slot_names, transaction=transaction)
    path = segment_path(segment.seq)
    write_whole(disk, path, layout.buffers)
    disk.fsync_dir(SEGMENTS)
    disk.chmod(path, SEALED_MODE)
    return SegmentInfo.of(segment.seq, layout.size, layout.summary, layout.streams)


def write_whole(disk: Disk, path: str, buffers: Sequence[bytes | pa.Buffer]) -> None:
    """Write and sync a file before it gets its name; the name is the caller's to sync."""
    tmp = path + TMP_SUFFIX
    disk.unlink(tmp, missing_ok=True)  # left over from a crash
    disk.check_room(path, sum(map(len, buffers)))
    try:
        with disk.create(tmp, bulk=True) as file:
            file.write_all(buffers, 0)
            file.fsync()
        disk.rename(tmp, path)
    except BaseException:
        with suppress(QuiverError):
            disk.unlink(tmp, missing_ok=True)
        raise


def lay_out(
    segment: OpenSegment,
    slot_names: Mapping[int, str],
    label: StageLabel | None = None,
    transaction: Transaction | None = None,
) -> FileLayout:
    """The file's bytes. The same bundles always give the same file.

    With a ``label`` it is one that is only staged, and has no number yet.
    """
    pieces = Pieces()
    entries = []
    chunks: list[list[Chunk]] = []
    for stream_id, stream in enumerate(segment.streams):
        pieces.align(STREAM_ALIGNMENT)
        file = _stream_file(stream)
        entries.append(
            StreamEntry(
                stream_id=stream_id,
                slot_id=stream.slot,
                schema_fingerprint=stream.fingerprint,
                byte_offset=pieces.size,
                byte_length=file.size,
                row_count=file.rows,
                chunk_count=len(stream.batches),
                slot_name=slot_names.get(stream.slot),
                schema_hash=stream.batches[0].schema.schema_hash,
                head_lengths=file.head_lengths,
                head_sums=file.head_sums,
                tail_length=file.tail_length,
                tail_sums=file.tail_sums,
            )
        )
        start = pieces.size
        chunks.append([chunk._replace(offset=start + chunk.offset) for chunk in file.chunks])
        pieces.add_file(file)
    summary = _summarize(segment.seq, [bundle.meta for bundle in segment.bundles])
    if label is not None:
        summary = replace(summary, segment=None, stage=label)
    elif transaction is not None:
        summary = replace(summary, transaction=transaction)
    bundles = segment.bundles
    placed = [[chunks[ref.stream_id][ref.chunk_index] for ref in one.refs] for one in bundles]
    manifest = encode_manifest([(one.refs, one.meta) for one in bundles], placed)
    add_tail(pieces, entries, summary, manifest)
    return FileLayout(pieces.buffers, pieces.size, summary, entries)


def add_tail(
    pieces: Pieces, entries: Sequence[StreamEntry], summary: SegmentSummary, manifest: IpcFile
) -> None:
    """What makes the streams before it a file: the tables with their guard, footer, trailer."""
    directory = encode_directory(entries, summary)
    start = pieces.size + front_length(directory.size + manifest.size)
    footer = Footer(
        stream_count=len(entries),
        bundle_count=summary.bundles,
        directory_offset=start,
        directory_length=_bounded("segment directory bytes", directory.size),
        manifest_offset=start + directory.size,
        manifest_length=_bounded("segment manifest bytes", manifest.size),
    )
    data = b"".join(bytes(part) for part in (*directory.buffers, *manifest.buffers))
    tables = add_parity(data)
    sums = encode_sums(tables)
    seal = Seal(
        stream_count=footer.stream_count,
        bundle_count=footer.bundle_count,
        directory_offset=start,
        directory_length=directory.size,
        manifest_length=manifest.size,
        directory_crc=directory.crc,
        manifest_crc=manifest.crc,
        sums_crc=crc32(sums),
    )
    guard = sums + seal.encode()
    pieces.add_bytes(guard)
    pieces.add_file(directory)
    pieces.add_file(manifest)
    pieces.add_bytes(tables[len(data) :] + guard)
    pieces.add_bytes(footer.encode(pieces.crc))


def _stream_file(stream: SchemaStream) -> IpcFile:
    first = stream.batches[0]
    builder = FileBuilder(first.schema)
    if first.dictionaries.size:
        builder.add_dictionaries(first.dictionaries)
    for batch in stream.batches:
        builder.add_batch(batch)
    return builder.finish()


def _summarize(seq: int, metas: Sequence[BundleMeta]) -> SegmentSummary:
    sequences = [meta.sequence for meta in metas if meta.sequence is not None]
    times = [meta.ingestion_ts_ns for meta in metas if meta.ingestion_ts_ns is not None]
    store_times = [meta.store_ts_ns for meta in metas if meta.store_ts_ns is not None]
    return SegmentSummary(
        bundles=len(metas),
        rows=sum(meta.rows for meta in metas),
        nbytes=sum(meta.nbytes for meta in metas),
        first_sequence=min(sequences, default=None),
        last_sequence=max(sequences, default=None),
        first_ts=min(times, default=None),
        last_ts=max(times, default=None),
        last_store_ts=max(store_times, default=None),
        segment=seq,
    )


def _bounded(what: str, size: int) -> int:
    if size > MAX_TABLE_BYTES:
        raise LimitExceeded(what, size, MAX_TABLE_BYTES)
    return size
