"""What of a damaged segment file is intact: found by its block checksums.

A flipped byte costs the bundles whose messages it is in, and nothing else:

==========================  =============================================================
damage in                   costs
==========================  =============================================================
a record batch              the bundle it belongs to
a stream's dictionaries     the bundles of that stream
a stream's schema           nothing: the stream's own footer repeats it (both: that stream)
a stream's footer           nothing: the manifest has the places of all batches
directory, manifest         nothing, if it is in one place: see :mod:`quiver.format.segment.guard`
guard, footer, trailer      nothing: each is there twice, or can be told from the others
between streams             nothing
==========================  =============================================================

A file without block checksums (written before there were any, or by the Rust crate) has one
checksum for all of it.  If that doesn't hold, no byte of it is known to be right, and
nothing is salvaged: a batch that Arrow can still decode may hold other values than were put.
Only a damaged trailer is told from the rest, since all of it but the checksum is known.

A staged file that is committed and no segment yet is looked through in the same way
(:func:`salvage_staged`), as far as it was committed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import pyarrow as pa

from quiver.disk.disk import Disk
from quiver.errors import Damage, NotFound, check_memory
from quiver.format.arrow.flatbuf import FlatbufferError
from quiver.format.arrow.ipc import EncodedBatch
from quiver.format.arrow.ipc_file import HEAD, schema_in_footer
from quiver.format.arrow.schema import SchemaMessage
from quiver.format.crc import crc32
from quiver.format.record import LOST_ATTRIBUTE, BundleMeta, EncodedSlot
from quiver.format.segment.blocks import Chunk, Piece, block_count
from quiver.format.segment.file import (
    CRC_SIZE,
    MIN_SIZE,
    TRAILER_SIZE,
    StreamEntry,
    decode_directory,
    encode_trailer,
    stored_crc,
)
from quiver.format.segment.guard import MAGIC, SEAL_SIZE, Seal, damaged_blocks, decode_seal, mend
from quiver.format.segment.manifest import Manifest
from quiver.format.segment.stage import StageLabel
from quiver.format.wal.commit import Commit, CommittedFile
from quiver.segment.info import SegmentInfo
from quiver.segment.open_segment import OpenSegment
from quiver.segment.reader import SegmentReader, sealed_footer
from quiver.segment.source import MemorySource, ReadSource
from quiver.segment.verified import count_rows, head_pieces, is_intact, parse_head

LOST_REASON: Final = "damaged"
_SCAN: Final = 1 << 20
_ERRORS: Final = (pa.ArrowException, ValueError, KeyError, IndexError, OverflowError, OSError)


@dataclass(frozen=True, slots=True)
class Salvaged:
    """A damaged segment, as far as it is intact, to be written anew.

    Every bundle has its old index; those ``lost`` are rows without slots that keep the place
    (and what is known about the bundle), with the attribute ``quiver:lost``.

    ``info`` is what the file said of itself: the transaction that committed it and the names of
    its slots may be recorded nowhere else.
    """

    segment: OpenSegment
    lost: tuple[int, ...]
    info: SegmentInfo


def salvage(disk: Disk, path: str, seq: int) -> Salvaged | None:
    """Read what is intact of a segment file, wherever it lies now.

    ``None``: nothing of it can be located.  ``FileNotFoundError`` if there is no such file;
    an ``IoFault`` is the disk's and says nothing about the file.
    """
    source = ReadSource(disk, path)
    try:
        return _Salvage(source, seq).run()
    finally:
        source.close()


def salvage_staged(disk: Disk, commit: Commit, seq: int, file: CommittedFile) -> Salvaged | None:
    """Read what is intact of a committed file, as the segment that it was to become.

    ``None`` also if the file may be another than the one that was committed.
    """
    source = ReadSource(disk, file.path, file.length)
    try:
        found = _Salvage(source, seq, staged=file).run() if _is_committed(source, file) else None
    finally:
        source.close()
    if found is None or found.segment.bundle_count != file.bundles:
        return None
    segment = OpenSegment(seq)
    for bundle in found.segment.bundles:
        stamped = bundle.meta._replace(
            sequence=commit.sequence, ingestion_ts_ns=commit.ts, store_ts_ns=commit.store_ts
        )
        segment.append(bundle.slots, stamped)
    return Salvaged(segment, found.lost, replace(found.info, transaction=commit.transaction))


def _is_committed(source: ReadSource, file: CommittedFile) -> bool:
    """Whether a damaged staged file is the one that was committed, by the checksum it ends with.

    That may be what is damaged.  Then all before it sums up to it; or the file was cut, and its
    label has to tell.
    """
    if source.size < file.length:
        return True
    end = file.length - CRC_SIZE
    if stored_crc(source.bytes(end, CRC_SIZE).to_pybytes()) == file.crc:
        return True
    trailer = encode_trailer(file.crc)[:-CRC_SIZE]
    return crc32(trailer, source.crc(file.length - TRAILER_SIZE)) == file.crc


class _Salvage:
    """One damaged file."""

    def __init__(
        self, source: ReadSource, seq: int, *, staged: CommittedFile | None = None
    ) -> None:
        self._source = source
        self._seq = seq
        self._committed = staged
        self._staged = staged is not None
        self._heads: dict[int, tuple[SchemaMessage, pa.Buffer] | None] = {}

    def run(self) -> Salvaged | None:
        tables = self._tables()
        if tables is not None:
            entries, manifest, info = tables
            if manifest.has_sums:
                return self._bundles(entries, manifest, info)
        return self._as_a_whole()

    # The tables

    def _tables(self) -> tuple[dict[int, StreamEntry], Manifest, SegmentInfo] | None:
        """Directory and manifest, mended if need be, of the segment that the file should be."""
        for seal, sums in self._seals():
            data = self._mended(seal, sums)
            if data is None:
                continue
            footer = sealed_footer(seal)
            buffer = pa.py_buffer(data)
            try:
                entries, summary = decode_directory(buffer.slice(0, seal.directory_length), footer)
                manifest = Manifest(
                    pa.py_buffer(data[seal.directory_length :][: seal.manifest_length]),
                    seal.bundle_count,
                )
                size, staged = self._source.size, self._staged
                info = SegmentInfo.read(self._seq, size, footer, entries, summary, staged=staged)
            except Damage:
                continue  # another segment's, or the staged part of this one
            if not self._is_of(None if summary is None else summary.stage):
                continue
            return {entry.stream_id: entry for entry in entries}, manifest, info
        return None

    def _is_of(self, label: StageLabel | None) -> bool:
        """Whether a staged file's label is that of the file which was committed."""
        file = self._committed
        if file is None:
            return True
        return label is not None and (label.key.id, label.number) == (file.stage_id, file.number)

    def _seals(self) -> list[tuple[Seal, bytes]]:
        """Seals that are sound, with their sums; the one at the file's end first."""
        place = self._source.size - MIN_SIZE - SEAL_SIZE
        at_the_end = self._seal_at(place) if place >= 0 else None
        if at_the_end is not None:
            return [at_the_end]
        # Last first: of a staged file that became a segment, the segment's is behind.
        found = [self._seal_at(place) for place in reversed(self._search(MAGIC))]
        return [one for one in found if one is not None]

    def _seal_at(self, place: int) -> tuple[Seal, bytes] | None:
        """A seal, if one is there, in either of its two places, with either of its sums."""
        seal = decode_seal(self._source.bytes(place, SEAL_SIZE).to_pybytes())
        if seal is None:
            return None
        places = [seal.front_offset, seal.back_offset]
        if place - seal.sums_length not in places:
            return None  # a copy of another file's, inside of this one's data
        for offset in places:
            if offset >= 0:
                sums = self._source.bytes(offset, seal.sums_length).to_pybytes()
                if crc32(sums) == seal.sums_crc and len(sums) == seal.sums_length:
                    return seal, sums
        return None

    def _search(self, wanted: bytes) -> list[int]:
        found = []
        overlap = len(wanted) - 1
        for start in range(0, self._source.size, _SCAN):
            data = self._source.bytes(start, _SCAN + overlap).to_pybytes()
            at = data.find(wanted)
            while at >= 0:
                found.append(start + at)
                at = data.find(wanted, at + 1)
        return found

    def _mended(self, seal: Seal, sums: bytes) -> bytes | None:
        tables: bytes = self._source.bytes(seal.directory_offset, seal.tables_length).to_pybytes()
        tables = tables.ljust(seal.tables_length, b"\0")  # where the file was cut
        damaged = damaged_blocks(tables, sums)
        if not damaged:
            return tables
        mended = mend(tables, damaged)
        return None if mended is None or damaged_blocks(mended, sums) else mended

    # The bundles

    def _bundles(
        self, entries: Mapping[int, StreamEntry], manifest: Manifest, info: SegmentInfo
    ) -> Salvaged:
        segment = OpenSegment(self._seq)
        lost = []
        for index in range(len(manifest)):
            meta = manifest.meta(index)
            slots = self._slots(index, entries, manifest)
            if slots is not None:
                segment.append(slots, meta)
                continue
            lost.append(index)
            segment.append((), _placeholder(meta))
        return Salvaged(segment, tuple(lost), info)

    def _slots(
        self, index: int, entries: Mapping[int, StreamEntry], manifest: Manifest
    ) -> list[EncodedSlot] | None:
        found = []
        for at in manifest.places(index):
            entry = entries.get(manifest.streams[at])
            head = None if entry is None else self._head(entry)
            data = self._intact(manifest.chunk(index, at))
            if entry is None or head is None or data is None:
                return None
            schema, dictionaries = head
            try:
                batch = EncodedBatch(schema, data, count_rows(data), dictionaries)
            except (*_ERRORS, FlatbufferError) as error:
                check_memory(error)
                return None
            found.append(EncodedSlot(manifest.slots[at], entry.schema_fingerprint, batch))
        return found

    def _intact(self, piece: Chunk | Piece) -> pa.Buffer | None:
        """The bytes of a message, if every one is as it was written."""
        data = self._source.bytes(piece.offset, piece.length)
        return data if is_intact(data, piece) else None

    def _head(self, entry: StreamEntry) -> tuple[SchemaMessage, pa.Buffer] | None:
        if entry.stream_id not in self._heads:
            try:
                self._heads[entry.stream_id] = self._read_head(entry)
            except (*_ERRORS, FlatbufferError) as error:
                check_memory(error)
                self._heads[entry.stream_id] = None
        return self._heads[entry.stream_id]

    def _read_head(self, entry: StreamEntry) -> tuple[SchemaMessage, pa.Buffer] | None:
        first, *rest = head_pieces(entry)
        head = self._intact(first)
        schema = self._schema_from_tail(entry) if head is None else parse_head(head)
        found = [self._intact(piece) for piece in rest]
        dictionaries = [part.to_pybytes() for part in found if part is not None]
        if schema is None or len(dictionaries) < len(found):
            return None
        return schema, pa.py_buffer(b"".join(dictionaries))

    def _schema_from_tail(self, entry: StreamEntry) -> SchemaMessage | None:
        length, sums = entry.tail_length, entry.tail_sums
        if not length or sums is None or len(sums) != block_count(length):
            return None
        start = entry.byte_offset + entry.byte_length - length
        tail = self._intact(Piece(start, length, sums))
        if tail is None or not entry.head_lengths:
            return None
        return SchemaMessage.parse(schema_in_footer(tail, entry.head_lengths[0] - len(HEAD)))

    # Files without block checksums

    def _as_a_whole(self) -> Salvaged | None:
        """All of it, if nothing but the trailer is damaged."""
        size = self._source.size
        if size < MIN_SIZE:
            return None
        data = self._source.bytes(0, size - TRAILER_SIZE).to_pybytes()
        crc = stored_crc(self._source.bytes(size - CRC_SIZE, CRC_SIZE).to_pybytes())
        trailer = encode_trailer(crc)
        if crc32(trailer[:-CRC_SIZE], crc32(data)) != crc:
            return None
        try:
            whole = MemorySource(pa.py_buffer(data + trailer))
            reader = SegmentReader(whole, self._seq, "", staged=self._staged)
            if not self._is_of(reader.label):
                return None
            segment = OpenSegment(self._seq)
            for index in range(len(reader)):
                segment.append(reader.encoded(index), reader.meta(index))
        except (Damage, NotFound):
            return None
        return Salvaged(segment, (), reader.info)


def _placeholder(meta: BundleMeta) -> BundleMeta:
    """Keeps a lost bundle's place, and its numbers; its key may be given to another."""
    return BundleMeta(
        sequence=meta.sequence,
        ingestion_ts_ns=meta.ingestion_ts_ns,
        attributes={LOST_ATTRIBUTE: LOST_REASON},
        store_ts_ns=meta.store_ts_ns,
    )
