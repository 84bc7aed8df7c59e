"""Bundles out of a sealed file.

The file is checked once, when it is opened; from then on a read is a look into the
manifest and one call to Arrow per slot.  Batches lie in the mapping: nothing is copied.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Container, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final, Literal, TypeAlias

import pyarrow as pa

from quiver.disk.disk import Disk
from quiver.errors import (
    Damage,
    SegmentChecksum,
    SegmentInvalidIpc,
    SegmentTruncated,
    SlotNotInBundle,
    StreamNotFound,
)
from quiver.format.ipc import EncodedBatch, column_indices, encode_batch
from quiver.format.ipc_file import FileMessages, IpcFile
from quiver.format.manifest import Manifest, SlotRef, stamp_manifest
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.format.schema import SchemaMessage
from quiver.format.segment import (
    CRC_SIZE,
    MIN_SIZE,
    TAIL_SIZE,
    Footer,
    StreamEntry,
    Summary,
    check_magic,
    decode_directory,
    decode_footer,
    stored_crc,
)
from quiver.format.stage import StageLabel
from quiver.segment.info import SegmentInfo, segment_path
from quiver.segment.source import FileReader, MappedSource, ReadSource, Source

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
    """What a start needs to know: reads footer and directory, checks no checksum."""
    path = segment_path(seq)
    with _located(path, seq):
        _check_size(disk, path)
        return _Tail(ReadSource(disk, path)).info(seq)


def stream_schemas(
    disk: Disk, seq: int, known: Container[bytes]
) -> Iterator[tuple[int, bytes, pa.Schema | None]]:
    """The slot, schema hash and schema of each stream; no schema where the hash is ``known``.

    Reads footers only, and checks no checksum: good for a look, not for data.
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
                schema = source.open_file(entry.byte_offset, entry.byte_length, _ALL).schema
            except _ARROW_ERRORS as error:
                raise SegmentInvalidIpc(
                    f"Arrow can't read stream {entry.stream_id}: {error}."
                ) from error
            yield entry.slot_id, digest or SchemaMessage.of(schema).schema_hash, schema


class SegmentReader:
    """One sealed segment. Reads may run in any number of threads."""

    def __init__(self, source: Source, seq: int, path: str, *, staged: bool = False) -> None:
        """Use :meth:`open`."""
        tail = _Tail(source)
        footer = tail.footer
        manifest = source.bytes(footer.manifest_offset, footer.manifest_length)
        self.seq: Final = seq
        self.path: Final = path
        self.info: Final = tail.info(seq, staged=staged)
        self.label: Final = tail.label
        self.crc: Final = tail.crc
        self.streams: Final = tail.streams
        self._manifest_at = (footer.manifest_offset, footer.manifest_length)
        self.source: Final = source
        self._entries = {entry.stream_id: entry for entry in tail.streams}
        self._manifest = Manifest(manifest, footer.bundle_count)
        self.bundle_count: Final = footer.bundle_count
        self._lock = threading.Lock()
        self._readers: dict[int, FileReader] = {}
        self._getters: dict[int, Callable[[int], pa.RecordBatch]] = {}
        self._messages: dict[int, FileMessages | None] = {}
        self._projected: dict[tuple[int, tuple[int, ...]], FileReader] = {}

    @classmethod
    def open(
        cls, disk: Disk, seq: int, *, mode: ReadMode = "mmap", verify: bool = True
    ) -> SegmentReader:
        """Open a segment; every way it can be damaged is an error of its own."""
        path = segment_path(seq)
        with _located(path, seq):
            _check_size(disk, path)
            source: Source = (MappedSource if mode == "mmap" else ReadSource)(disk, path)
            if verify:
                _verify(source)
            return cls(source, seq, path)

    @classmethod
    def open_staged(
        cls,
        disk: Disk,
        path: str,
        length: int | None = None,
        *,
        seq: int = 0,
        mode: ReadMode = "pread",
        verify: bool = True,
    ) -> SegmentReader:
        """Open a staged file: all of it, or what was there before its end was appended.

        ``seq`` is the number that it will have as a segment, if that is known.
        """
        with _located(path, seq):
            _check_size(disk, path)
            source: Source = (MappedSource if mode == "mmap" else ReadSource)(disk, path, length)
            if length is not None and source.size < length:
                raise SegmentTruncated(f"it has {source.size:,} bytes, and should have {length:,}.")
            if verify:
                _verify(source)
            return cls(source, seq, path, staged=True)

    def stamped_manifest(self, sequence: int, ts: int) -> IpcFile:
        """A staged file's manifest, as the segment that it becomes will have it."""
        with _located(self.path, self.seq):
            data = self.source.bytes(*self._manifest_at)
            return stamp_manifest(data, len(self), sequence, ts)

    def close(self) -> None:
        """Let go of a file that is not mapped; nothing is read from it any more."""
        self.source.close()

    def __enter__(self) -> SegmentReader:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return self.bundle_count

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
                stream, chunk = manifest.streams[at], manifest.chunks[at]
                if columns is None:
                    found[slot] = self._batch(stream, chunk)
                else:
                    found[slot] = self._some_columns(stream, chunk, columns.get(slot))
        return found

    def read_slot(
        self, index: int, slot: int, columns: Sequence[str] | None = None
    ) -> pa.RecordBatch:
        """One batch of a bundle that must be there."""
        manifest = self._manifest
        for at in manifest.places(index):
            if manifest.slots[at] == slot:
                return self._some_columns(manifest.streams[at], manifest.chunks[at], columns)
        raise SlotNotInBundle(
            f"bundle {self.seq}.{index} has no slot {slot}.",
            file=self.path,
            segment=self.seq,
            slot=slot,
        )

    def encoded(self, index: int, slots: Collection[int] | None = None) -> list[EncodedSlot]:
        """A bundle as it would come in again: to send it on, repair a store, or adopt one."""
        manifest = self._manifest
        slot_of, stream_of, chunk_of = manifest.slots, manifest.streams, manifest.chunks
        return [
            EncodedSlot(
                slot_of[at],
                self._entry(stream_of[at]).schema_fingerprint,
                self._encoded_batch(stream_of[at], chunk_of[at]),
            )
            for at in manifest.places(index)
            if slots is None or slot_of[at] in slots
        ]

    def _encoded_batch(self, stream_id: int, chunk: int) -> EncodedBatch:
        """A batch's message, as the file has it where that can be."""
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

    def stream_reader(self, stream_id: int) -> FileReader:
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
            get = self._getters[stream_id] = self.stream_reader(stream_id).get_batch
        try:
            return get(chunk)
        except _ARROW_ERRORS as error:
            raise self._unreadable(stream_id, chunk, error) from error

    def _some_columns(
        self, stream_id: int, chunk: int, columns: Sequence[str] | None
    ) -> pa.RecordBatch:
        if columns is None:
            return self._batch(stream_id, chunk)
        wanted = column_indices(self.stream_reader(stream_id).schema, columns)
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
            raise self._invalid(f"Arrow can't read stream {stream_id}: {error}.") from error
        return reader

    def _unreadable(self, stream_id: int, chunk: int, error: Exception) -> SegmentInvalidIpc:
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
        self.footer: Final[Footer] = decode_footer(tail, source.size)
        if self.footer.directory_length > MAX_DIRECTORY_BYTES:
            raise SegmentInvalidIpc(
                f"a directory of {self.footer.directory_length:,} bytes is not read."
            )
        directory = source.bytes(self.footer.directory_offset, self.footer.directory_length)
        self.streams: list[StreamEntry]
        self._summary: Summary | None
        self.streams, self._summary = decode_directory(directory, self.footer)
        self.crc = stored_crc(tail)

    @property
    def label(self) -> StageLabel | None:
        return None if self._summary is None else self._summary.stage

    def info(self, seq: int, *, staged: bool = False) -> SegmentInfo:
        return SegmentInfo.read(
            seq, self._size, self.footer, self.streams, self._summary, staged=staged
        )


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
    except Damage as error:
        error.message = f"{path}: {error.message}"
        error.details.update(file=path, segment=seq)
        raise
