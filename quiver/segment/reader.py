"""Bundles out of a sealed file.

There are two ways to read them:

* *always verified*: each batch is read into memory, verified by the checksums of its blocks
  and then handed out (:mod:`quiver.segment.verified`).  A file without block checksums, one
  of before there were any or of the Rust crate, is read into memory as a whole and summed,
  each time it is opened;
* *verified once*: the file is summed when it is opened.  From then on a read is a look into
  the manifest and one call to Arrow per slot, and batches lie in the mapping, if it is
  mapped: nothing is copied, and bytes that rot later are not noticed.

Directory and manifest are verified at every open, if the file has a guard for them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

import pyarrow as pa

from quiver.disk.disk import Disk
from quiver.errors import (
    BundleGone,
    Damage,
    QuiverError,
    SegmentChecksum,
    SegmentInvalidIpc,
    SegmentTruncated,
    SlotNotInBundle,
    StreamNotFound,
    UnsupportedVersion,
    check_memory,
)
from quiver.format.arrow.ipc import EncodedBatch, column_indices, encode_batch
from quiver.format.arrow.ipc_file import FileMessages, IpcFile
from quiver.format.arrow.schema import SchemaMessage
from quiver.format.crc import crc32
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.format.segment.blocks import find_mismatch
from quiver.format.segment.file import (
    CRC_SIZE,
    MIN_SIZE,
    TAIL_SIZE,
    TRAILER_SIZE,
    Footer,
    SegmentSummary,
    StreamEntry,
    check_magic,
    decode_directory,
    decode_footer,
    encode_trailer,
    raw_footer,
    stored_crc,
)
from quiver.format.segment.guard import SEAL_SIZE, Seal, decode_seal
from quiver.format.segment.manifest import Manifest, SlotRef, stamp_manifest
from quiver.format.segment.stage import StageLabel
from quiver.segment.info import SegmentInfo, segment_path
from quiver.segment.source import FileReader, MappedSource, MemorySource, ReadSource, Source
from quiver.segment.verified import VerifiedChunks, head_pieces, parse_head

ReadMode: TypeAlias = Literal["mmap", "pread"]

MAX_DIRECTORY_BYTES: Final = 64 << 20
MAX_PROJECTIONS: Final = 64

_ALL: Final[tuple[int, ...]] = ()
_ARROW_ERRORS: Final = (
    pa.ArrowException,
    OSError,
    ValueError,
    KeyError,
    IndexError,
    OverflowError,
    MemoryError,
)


def load_info(disk: Disk, seq: int) -> SegmentInfo:
    """What a start needs to know: reads footer and directory, and sums only those."""
    path = segment_path(seq)
    with _located(path, seq):
        _check_size(disk, path)
        return _Tail(ReadSource(disk, path)).info(seq)


def stream_schemas(
    disk: Disk, seq: int, known: Container[bytes]
) -> Iterator[tuple[int, bytes, pa.Schema | None]]:
    """The slot, schema hash and schema of each stream; no schema where the hash is ``known``.

    Reads no batches.  Where a stream has no checksums of its own, what is read is good for
    a look only.
    """
    path = segment_path(seq)
    with _located(path, seq):
        _check_size(disk, path)
        source = ReadSource(disk, path)
        for entry in _Tail(source).streams:
            digest = entry.schema_hash
            if digest is not None and digest in known:
                yield entry.slot_id, digest, None
                continue
            try:
                schema = _schema_of(source, entry)
            except _ARROW_ERRORS as error:
                check_memory(error)
                raise SegmentInvalidIpc(
                    f"Arrow can't read stream {entry.stream_id}: {error}."
                ) from error
            yield entry.slot_id, digest or SchemaMessage.of(schema).schema_hash, schema


def _schema_of(source: ReadSource, entry: StreamEntry) -> pa.Schema:
    if entry.head_sums is None:
        return source.open_file(entry.byte_offset, entry.byte_length, _ALL).schema
    piece = head_pieces(entry)[0]
    data = source.bytes(piece.offset, piece.length)
    if find_mismatch(data, piece.sums) is not None:
        raise SegmentChecksum(
            f"stream {entry.stream_id}: its schema at byte {piece.offset:,} is damaged.",
            offset=piece.offset,
        )
    return parse_head(data).schema


class SegmentReader:
    """One sealed segment. Reads may run in any number of threads."""

    def __init__(
        self, source: Source, seq: int, path: str, *, staged: bool = False, always: bool = False
    ) -> None:
        """Use :meth:`open`."""
        tail = _Tail(source)
        footer = tail.footer
        manifest = tail.manifest(source)
        self.seq: Final = seq
        self.path: Final = path
        self.info: Final = tail.info(seq, staged=staged)
        self.label: Final = tail.label
        self.crc: Final = tail.crc
        self.streams: Final = tail.streams
        self._manifest_data = manifest
        self._entries = {entry.stream_id: entry for entry in tail.streams}
        self._manifest = Manifest(manifest, footer.bundle_count)
        self._verified: VerifiedChunks | None = None
        if always and isinstance(source, ReadSource) and self._manifest.has_sums and tail.sealed:
            self._verified = VerifiedChunks(source, self._manifest, self._entries)
        self.source: Final = source
        self.bundle_count: Final = footer.bundle_count
        self._lock = threading.Lock()
        self._readers: dict[int, FileReader] = {}
        self._getters: dict[int, Callable[[int], pa.RecordBatch]] = {}
        self._messages: dict[int, FileMessages | None] = {}
        self._projected: dict[tuple[int, tuple[int, ...]], FileReader] = {}

    @classmethod
    def open(
        cls,
        disk: Disk,
        seq: int,
        *,
        mode: ReadMode = "pread",
        verify: bool = True,
        always: bool = False,
    ) -> SegmentReader:
        """Open a segment; every way it can be damaged is an error of its own.

        ``verify``: sum up the whole file first.  ``always``: verify each read instead; a
        file that has no checksums for that is read into memory.
        """
        path = segment_path(seq)
        with _located(path, seq):
            if always:
                return cls._open_verified(disk, seq, path)
            return cls(_source(disk, path, mode, verify=verify), seq, path)

    @classmethod
    def _open_verified(
        cls, disk: Disk, seq: int, path: str, length: int | None = None, *, staged: bool = False
    ) -> SegmentReader:
        _check_size(disk, path)
        source = ReadSource(disk, path, length)
        _check_length(source, length)
        reader = cls(source, seq, path, staged=staged, always=True)
        if reader._verified is not None:
            return reader
        memory = source.whole()
        source.close()
        _verify(memory)
        return cls(memory, seq, path, staged=staged)

    @classmethod
    def open_staged(
        cls,
        disk: Disk,
        path: str,
        length: int | None = None,
        *,
        seq: int = 0,
        verify: bool = True,
        always: bool = False,
    ) -> SegmentReader:
        """Open a staged file: all of it, or what was there before its end was appended.

        ``seq`` is the number that it will have as a segment, if that is known.  ``verify``
        and ``always`` as for a segment.
        """
        with _located(path, seq):
            if always:
                return cls._open_verified(disk, seq, path, length, staged=True)
            return cls(_source(disk, path, "pread", length, verify=verify), seq, path, staged=True)

    def stamped_manifest(self, sequence: int, ts: int) -> IpcFile:
        """A staged file's manifest, as the segment that it becomes will have it."""
        with _located(self.path, self.seq):
            return stamp_manifest(self._manifest_data, len(self), sequence, ts)

    def close(self) -> None:
        """Let go of a file that is not mapped; nothing is read from it any more."""
        self.source.close()

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.bundle_count

    @property
    def held_bytes(self) -> int:
        """Bytes of the file that are kept in memory, not counting a mapping."""
        return self.source.size if type(self.source) is MemorySource else 0

    @property
    def verifies(self) -> bool:
        """Whether each read is verified, or comes from memory that was."""
        return self._verified is not None or self.held_bytes > 0

    @property
    def visible(self) -> int:
        """All of them: what is in a file is durable."""
        return self.bundle_count

    def slot_ids(self, index: int) -> list[int]:
        """Which slots a bundle has, ascending."""
        return sorted(ref.slot_id for ref in self._manifest.refs(index))

    def schemas(self) -> Iterator[tuple[int, bytes, pa.Schema]]:
        """Slot, schema hash and schema of each stream."""
        for entry in self.streams:
            schema = self.stream_schema(entry.stream_id)
            yield entry.slot_id, SchemaMessage.of(schema).schema_hash, schema

    def slot_refs(self, index: int) -> list[SlotRef]:
        """Which slots a bundle has, and where they are."""
        return self._manifest.refs(index)

    def meta(self, index: int) -> BundleMeta:
        """A bundle's metadata; sizes that the Rust crate doesn't record are counted."""
        try:
            meta = self._manifest.meta(index)
        except Damage:
            with _located(self.path, self.seq):
                raise
        if self._manifest.has_sizes:
            return meta
        batches = self.read(index).values()
        return meta._replace(
            rows=sum(batch.num_rows for batch in batches),
            nbytes=sum(batch.nbytes for batch in batches),
        )

    def read(
        self,
        index: int,
        slots: Collection[int] | None = None,
        columns: Mapping[int, Sequence[str]] | None = None,
    ) -> dict[int, pa.RecordBatch]:
        """A bundle's batches by slot; of ``slots``, those that it has."""
        found = {}
        manifest = self._manifest
        for at in manifest.places(index):
            slot = manifest.slots[at]
            if slots is None or slot in slots:
                wanted = None if columns is None else columns.get(slot)
                found[slot] = self._some_columns(index, at, wanted)
        return found

    def read_slot(
        self, index: int, slot: int, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """One batch of a bundle that must be there."""
        manifest = self._manifest
        for at in manifest.places(index):
            if manifest.slots[at] == slot:
                return self._some_columns(index, at, columns)
        raise SlotNotInBundle(
            f"bundle {self.seq}.{index} has no slot {slot}.",
            file=self.path,
            segment=self.seq,
            slot=slot,
        )

    def encoded(self, index: int, slots: Collection[int] | None = None) -> list[EncodedSlot]:
        """A bundle as it would come in again: to send it on, repair a store, or adopt one."""
        manifest = self._manifest
        slot_of, stream_of = manifest.slots, manifest.streams
        return [
            EncodedSlot(
                slot_of[at],
                self._entry(stream_of[at]).schema_fingerprint,
                self._encoded_batch(index, at),
            )
            for at in manifest.places(index)
            if slots is None or slot_of[at] in slots
        ]

    def check(self, index: int) -> None:
        """Raise if a bundle's bytes are not as they were written; does nothing where reads
        aren't verified."""
        verified, manifest = self._verified, self._manifest
        if verified is None:
            return
        for at in manifest.places(index):
            try:
                verified.check(index, at)
            except Damage as damage:
                raise locate(damage, self.path, self.seq) from None
            except _ARROW_ERRORS as error:
                raise self._unreadable(manifest.streams[at], manifest.chunks[at], error) from error

    def _encoded_batch(self, index: int, at: int) -> EncodedBatch:
        """A batch's message, as the file has it where that can be."""
        stream_id, chunk = self._manifest.streams[at], self._manifest.chunks[at]
        if self._verified is not None:
            try:
                return self._verified.encoded(index, at)
            except Damage as damage:
                raise locate(damage, self.path, self.seq) from None
            except _ARROW_ERRORS as error:
                raise self._unreadable(stream_id, chunk, error) from error
        found = None
        try:
            messages = self._messages.get(stream_id)
            if messages is None and stream_id not in self._messages:
                entry = self._entry(stream_id)
                data = self.source.view(entry.byte_offset, entry.byte_length)
                messages = None if data is None else FileMessages.of(data)
                self._messages[stream_id] = messages
            if messages is not None:
                found = messages.batch(chunk)
        except (*_ARROW_ERRORS, IndexError) as error:
            raise self._unreadable(stream_id, chunk, error) from error
        return encode_batch(self._batch(stream_id, chunk)) if found is None else found

    def stream_schema(self, stream_id: int) -> pa.Schema:
        """The schema of a stream's batches."""
        if self._verified is None:
            return self._stream_reader(stream_id).schema
        try:
            self._entry(stream_id)
            return self._verified.schema(stream_id)
        except Damage as damage:
            raise locate(damage, self.path, self.seq) from None

    def _stream_reader(self, stream_id: int) -> FileReader:
        """A whole stream as an Arrow file reader; kept, since opening costs more than reading."""
        found = self._readers.get(stream_id)
        if found is not None:
            return found
        with self._lock:
            if stream_id not in self._readers:
                self._readers[stream_id] = self._open(stream_id, _ALL)
            return self._readers[stream_id]

    def _batch(self, stream_id: int, chunk: int) -> pa.RecordBatch:
        get = self._getters.get(stream_id)
        if get is None:
            get = self._getters[stream_id] = self._stream_reader(stream_id).get_batch
        try:
            return get(chunk)
        except _ARROW_ERRORS as error:
            raise self._unreadable(stream_id, chunk, error) from error

    def _some_columns(self, index: int, at: int, columns: Sequence[str] | None) -> pa.RecordBatch:
        verified = self._verified
        stream_id, chunk = self._manifest.streams[at], self._manifest.chunks[at]
        if verified is not None:
            try:
                if columns is None:
                    return verified.batch(index, at, stream_id)
                return verified.columns(index, at, columns)
            except Damage as damage:
                raise locate(damage, self.path, self.seq) from None
            except _ARROW_ERRORS as error:
                self._entry(stream_id)
                raise self._unreadable(stream_id, chunk, error) from error
        if columns is None:
            return self._batch(stream_id, chunk)
        wanted = column_indices(self._stream_reader(stream_id).schema, columns)
        if not wanted:
            return self._batch(stream_id, chunk).select([])
        fields = tuple(sorted(set(wanted)))
        try:
            batch = self._projection(stream_id, fields).get_batch(chunk)
        except _ARROW_ERRORS as error:
            raise self._unreadable(stream_id, chunk, error) from error
        order = [fields.index(index) for index in wanted]
        return batch if order == list(range(len(fields))) else batch.select(order)

    def _projection(self, stream_id: int, fields: tuple[int, ...]) -> FileReader:
        with self._lock:
            found = self._projected.get((stream_id, fields))
            if found is None:
                if len(self._projected) >= MAX_PROJECTIONS:
                    del self._projected[next(iter(self._projected))]
                found = self._projected[stream_id, fields] = self._open(stream_id, fields)
            return found

    def _open(self, stream_id: int, fields: tuple[int, ...]) -> FileReader:
        entry = self._entry(stream_id)
        try:
            reader = self.source.open_file(entry.byte_offset, entry.byte_length, fields)
            if reader.num_record_batches != entry.chunk_count:
                raise ValueError(
                    f"it has {reader.num_record_batches} batches, not {entry.chunk_count}"
                )
            # Arrow loads dictionaries with the first batch, and not safely from two threads.
            if entry.chunk_count and SchemaMessage.of(reader.schema).has_dictionaries:
                reader.get_batch(0)
        except _ARROW_ERRORS as error:
            check_memory(error)
            raise self._invalid(f"Arrow can't read stream {stream_id}: {error}.") from error
        return reader

    def _unreadable(self, stream_id: int, chunk: int, error: Exception) -> QuiverError:
        check_memory(error)
        if isinstance(error, FileNotFoundError):
            return BundleGone(
                f"{self.path} was deleted while it was read.", outcome="deleted", segment=self.seq
            )
        return self._invalid(f"Arrow can't read batch {chunk} of stream {stream_id}: {error}.")

    def _entry(self, stream_id: int) -> StreamEntry:
        entry = self._entries.get(stream_id)
        if entry is None:
            raise StreamNotFound(
                f"{self.path}: the manifest names stream {stream_id}, which isn't there.",
                file=self.path,
                segment=self.seq,
                stream=stream_id,
            )
        return entry

    def _invalid(self, message: str) -> SegmentInvalidIpc:
        return SegmentInvalidIpc(f"{self.path}: {message}", file=self.path, segment=self.seq)


class _Tail:
    """Footer and directory: the parts that say where everything else is."""

    def __init__(self, source: Source) -> None:
        self._size = source.size
        length = min(source.size, TAIL_SIZE)
        tail = source.bytes(source.size - length, length).to_pybytes()
        self.seal: Final = _seal_in(tail)
        self.footer: Final[Footer] = _footer_in(tail, source, self.seal)
        if self.footer.directory_length > MAX_DIRECTORY_BYTES:
            raise SegmentInvalidIpc(
                f"a directory of {self.footer.directory_length:,} bytes is not read."
            )
        directory = source.bytes(self.footer.directory_offset, self.footer.directory_length)
        if self.seal is not None:
            start, crc = self.footer.directory_offset, self.seal.directory_crc
            _check_table("directory", directory, start, crc)
        self.streams: list[StreamEntry]
        self._summary: SegmentSummary | None
        self.streams, self._summary = decode_directory(directory, self.footer)
        self.crc = stored_crc(tail)

    @property
    def sealed(self) -> bool:
        """Whether the tables were verified, or will be."""
        return self.seal is not None

    def manifest(self, source: Source) -> pa.Buffer:
        data = source.bytes(self.footer.manifest_offset, self.footer.manifest_length)
        if self.seal is not None:
            _check_table("manifest", data, self.footer.manifest_offset, self.seal.manifest_crc)
        return data

    @property
    def label(self) -> StageLabel | None:
        return None if self._summary is None else self._summary.stage

    def info(self, seq: int, *, staged: bool = False) -> SegmentInfo:
        return SegmentInfo.read(
            seq, self._size, self.footer, self.streams, self._summary, staged=staged
        )


def _seal_in(tail: bytes) -> Seal | None:
    """The seal before the footer; ``None`` in a file without a guard, or if it is damaged."""
    end = len(tail) - MIN_SIZE
    return decode_seal(tail[max(end - SEAL_SIZE, 0) : end])


def _footer_in(tail: bytes, source: Source, seal: Seal | None) -> Footer:
    """The footer, which agrees with the seal; or that its version is not ours."""
    try:
        footer = decode_footer(tail, source.size)
    except UnsupportedVersion:
        if _version_has_rotted(tail, source, seal):
            raise _footer_damaged(source) from None
        raise
    if seal is not None and footer != sealed_footer(seal):
        raise _footer_damaged(source)
    return footer


def _version_has_rotted(tail: bytes, source: Source, seal: Seal | None) -> bool:
    """Whether a version other than ours is damage, and not that of a newer Quiver.

    The file's checksum tells: it holds as the file is, or it would hold with the footer that
    this version writes.  If neither is so, other bytes have rotted too.  Then the version counts
    as newer if the footer makes sense: what a newer version wrote must not be taken for damage.
    """
    end, stored = source.size - MIN_SIZE, stored_crc(tail)
    if stored == source.crc(source.size - CRC_SIZE):
        return False
    raw = raw_footer(tail, source.size)
    if not raw.may_be_newer:
        return True
    if seal is not None and raw.footer != sealed_footer(seal):
        return True
    if raw.footer is None:  # longer than ours: or its length has rotted
        ours = raw_footer(tail[:-TRAILER_SIZE] + encode_trailer(stored), source.size)
        before = source.crc(end)
        return ours.footer is not None and stored_crc(ours.footer.encode(before)) == stored
    return stored_crc(raw.footer.encode(source.crc(end))) == stored


def sealed_footer(seal: Seal) -> Footer:
    """The footer of the file that a seal is of."""
    return Footer(
        stream_count=seal.stream_count,
        bundle_count=seal.bundle_count,
        directory_offset=seal.directory_offset,
        directory_length=seal.directory_length,
        manifest_offset=seal.directory_offset + seal.directory_length,
        manifest_length=seal.manifest_length,
    )


def _footer_damaged(source: Source) -> SegmentChecksum:
    offset = source.size - MIN_SIZE
    return SegmentChecksum(
        f"the footer at byte {offset:,} doesn't agree with the rest of the file.", offset=offset
    )


def _check_table(what: str, data: pa.Buffer, offset: int, stored: int) -> None:
    found = crc32(data)
    if found != stored:
        raise SegmentChecksum(
            f"the {what} at byte {offset:,} sums to {found:08x}, it should be {stored:08x}.",
            offset=offset,
            stored=stored,
            found=found,
        )


def _source(
    disk: Disk, path: str, mode: ReadMode, length: int | None = None, *, verify: bool
) -> Source:
    """The file's bytes, summed first if that is wanted: nothing is mapped before that."""
    _check_size(disk, path)
    source = ReadSource(disk, path, length)
    _check_length(source, length)
    if verify:
        _verify(source)
    if mode == "pread":
        return source
    source.close()
    return MappedSource(disk, path, length)


def _check_length(source: Source, length: int | None) -> None:
    if length is not None and source.size < length:
        raise SegmentTruncated(f"it has {source.size:,} bytes, and should have {length:,}.")


def _check_size(disk: Disk, path: str) -> None:
    """Before mapping: an empty file can't be mapped at all."""
    size = disk.stat_size(path)
    if size is None:
        raise FileNotFoundError(path)
    if size < MIN_SIZE:
        raise SegmentTruncated(f"{size} bytes are too few for a segment.")


def _verify(source: Source) -> None:
    tail = source.bytes(source.size - MIN_SIZE, MIN_SIZE).to_pybytes()
    check_magic(tail, source.size)
    stored, found = stored_crc(tail), source.crc(source.size - CRC_SIZE)
    if stored != found:
        raise SegmentChecksum(
            f"its bytes sum to {found:08x}, it should be {stored:08x}.", stored=stored, found=found
        )


@contextmanager
def _located(path: str, seq: int) -> Iterator[None]:
    """Say in each error which file it is about; the codecs below know no files."""
    try:
        yield
    except (Damage, UnsupportedVersion) as error:
        locate(error, path, seq)
        raise


def locate(error: QuiverError, path: str, seq: int) -> QuiverError:
    """The error, with the file it is about."""
    error.message = f"{path}: {error.message}"
    error.details.update(file=path, segment=seq)
    return error
