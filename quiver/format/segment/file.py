"""A segment file: streams, directory, manifest, footer, trailer.

::

    stream 0 (Arrow IPC file, starts on a 64-byte boundary) · stream 1 · …
    guard      (ours: see :mod:`quiver.format.segment.guard`)
    directory  (Arrow IPC file, one batch: a row per stream)
    manifest   (Arrow IPC file, one batch: a row per bundle)
    guard      (ours)
    footer     34 B   version u16 = 1 · stream_count u32 · bundle_count u32
                      · directory offset u64, length u32 · manifest offset u64, length u32
    trailer    16 B   footer_size u32 · magic "QUIVER\\0S" · crc32 u32 of all bytes before it

Little-endian.  Zeros fill up to a stream's boundary.  A reader looks columns up by name and
passes over those it doesn't know, and over gaps, so what Quiver records beyond the Rust
crate is in columns, in the directory's metadata and in gaps, never in footer or trailer.
The tables of columns are :data:`DIRECTORY` and
:data:`~quiver.format.segment.manifest.MANIFEST`; the directory's schema metadata holds under
``quiver`` a JSON :class:`SegmentSummary`, so that a start needn't read manifests.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from struct import Struct
from typing import Any, Final

import pyarrow as pa

from quiver.errors import (
    SegmentBadMagic,
    SegmentInvalidIpc,
    SegmentTruncated,
    UnsupportedVersion,
    check_memory,
)
from quiver.format.arrow.ipc import EncodedBatch
from quiver.format.arrow.ipc_file import FileBuilder, IpcFile, check_file
from quiver.format.arrow.schema import SchemaMessage
from quiver.format.crc import crc32
from quiver.format.segment.stage import StageLabel, Transaction, read_label, read_transaction

VERSION: Final = 1
MAGIC: Final = b"QUIVER\0S"
STREAM_ALIGNMENT: Final = 64
MAX_STREAMS: Final = 100_000
MAX_FOOTER_SIZE: Final = 4096
MAX_VERSION: Final = 255
"""A higher version is damage, if the file's checksum does not hold."""
SUMMARY_KEY: Final = b"quiver"
SUMMARY_VERSION: Final = 1
WRITER: Final = "quiver"

_FOOTER = Struct("<HIIQIQI")
_TRAILER = Struct("<I8sI")
_CRC = Struct("<I")
FOOTER_SIZE: Final = 34
TRAILER_SIZE: Final = 16
CRC_SIZE: Final = 4
assert (_FOOTER.size, _TRAILER.size) == (FOOTER_SIZE, TRAILER_SIZE)
MIN_SIZE: Final = FOOTER_SIZE + TRAILER_SIZE
TAIL_SIZE: Final = MAX_FOOTER_SIZE + TRAILER_SIZE

HASH: Final = pa.binary(32)
DIRECTORY: Final = pa.schema(
    [
        pa.field("stream_id", pa.uint32(), nullable=False),
        pa.field("slot_id", pa.uint16(), nullable=False),
        pa.field("schema_fingerprint", HASH, nullable=False),
        pa.field("byte_offset", pa.uint64(), nullable=False),
        pa.field("byte_length", pa.uint64(), nullable=False),
        pa.field("row_count", pa.uint64(), nullable=False),
        pa.field("chunk_count", pa.uint32(), nullable=False),
        # Ours:
        pa.field("slot_name", pa.utf8()),
        pa.field("schema_hash", HASH),
        pa.field("head_lengths", pa.list_(pa.uint32())),
        pa.field("head_sums", pa.list_(pa.uint32())),
        pa.field("tail_length", pa.uint32()),
        pa.field("tail_sums", pa.list_(pa.uint32())),
    ]
)
_FOREIGN_COLUMNS: Final = 7
_ONLY_STAGED: Final = ("stage", "transaction")
"""Parts of a summary that most segments don't have."""


@dataclass(frozen=True, slots=True)
class StreamEntry:
    """One stream: where it is, what it holds. From ``slot_name`` on: ours only.

    ``head_lengths`` are those of the messages before the first batch, schema and
    dictionaries; the tail is what follows the last one.  Their blocks' sums are ``None``
    in files of before there were any.
    """

    stream_id: int
    slot_id: int
    schema_fingerprint: bytes
    byte_offset: int
    byte_length: int
    row_count: int
    chunk_count: int
    slot_name: str | None = None
    schema_hash: bytes | None = None
    head_lengths: Sequence[int] | None = None
    head_sums: Sequence[int] | None = None
    tail_length: int | None = None
    tail_sums: Sequence[int] | None = None


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """A segment's bundles in a few numbers.

    ``segment`` is the segment's own number, so that a file under another's name is noticed;
    a file that is only staged has a ``stage`` instead.  ``transaction`` is the one that a
    segment was committed with.
    """

    bundles: int
    rows: int
    nbytes: int
    first_sequence: int | None = None
    last_sequence: int | None = None
    first_ts: int | None = None
    last_ts: int | None = None
    last_store_ts: int | None = None
    segment: int | None = None
    stage: StageLabel | None = None
    transaction: Transaction | None = None


@dataclass(frozen=True, slots=True)
class Footer:
    """Where directory and manifest are."""

    stream_count: int
    bundle_count: int
    directory_offset: int
    directory_length: int
    manifest_offset: int
    manifest_length: int

    def encode(self, crc_before: int) -> bytes:
        """Footer and trailer, given the checksum of everything before them."""
        body = _FOOTER.pack(
            VERSION,
            self.stream_count,
            self.bundle_count,
            self.directory_offset,
            self.directory_length,
            self.manifest_offset,
            self.manifest_length,
        )
        body += encode_trailer(0)[:-CRC_SIZE]
        return body + _CRC.pack(crc32(body, crc_before))


def encode_trailer(crc: int) -> bytes:
    """A trailer, with the checksum of everything before it and of its own first part."""
    return _TRAILER.pack(FOOTER_SIZE, MAGIC, crc)


def check_magic(tail: bytes, file_size: int) -> None:
    """Refuse what is too short for a segment or doesn't end like one."""
    if file_size < MIN_SIZE or len(tail) < TRAILER_SIZE:
        raise SegmentTruncated(f"{file_size} bytes are too few for a segment.")
    if _TRAILER.unpack(tail[-TRAILER_SIZE:])[1] != MAGIC:
        raise SegmentBadMagic("the file doesn't end like a segment: cut off, or something else.")


def stored_crc(tail: bytes) -> int:
    """The checksum in the trailer."""
    crc: int = _CRC.unpack(tail[-CRC_SIZE:])[0]
    return crc


def decode_footer(tail: bytes, file_size: int) -> Footer:
    """The footer from a file's last :data:`TAIL_SIZE` bytes (or all, if it has fewer)."""
    check_magic(tail, file_size)
    size = _TRAILER.unpack(tail[-TRAILER_SIZE:])[0]
    if size < FOOTER_SIZE or size > MAX_FOOTER_SIZE or size > file_size - TRAILER_SIZE:
        raise SegmentTruncated(f"a footer of {size} bytes can't be in {file_size} bytes.")
    start = len(tail) - TRAILER_SIZE - size
    version, *fields = _FOOTER.unpack_from(tail, start)
    if version != VERSION:
        raise UnsupportedVersion(
            f"the segment has version {version}, this Quiver reads version {VERSION}.",
            advice="Open it with a newer Quiver.",
        )
    footer = Footer(*fields)
    _check_bounds(footer, file_size - TRAILER_SIZE - size)
    return footer


@dataclass(frozen=True, slots=True)
class RawFooter:
    """What stands where the footer is, whatever its version says."""

    version: int
    footer: Footer | None
    """``None`` if it has another length than ours."""
    in_bounds: bool

    @property
    def may_be_newer(self) -> bool:
        """Whether a version of Quiver can have written it; versions are small numbers."""
        return VERSION < self.version <= MAX_VERSION and self.in_bounds


def raw_footer(tail: bytes, file_size: int) -> RawFooter:
    """What a footer says, of a file whose last bytes :func:`check_magic` has passed."""
    size = _TRAILER.unpack(tail[-TRAILER_SIZE:])[0]
    version, *fields = _FOOTER.unpack_from(tail, len(tail) - TRAILER_SIZE - size)
    if size != FOOTER_SIZE:
        return RawFooter(version, None, in_bounds=True)
    footer = Footer(*fields)
    start, end = footer.manifest_offset, footer.manifest_offset + footer.manifest_length
    tables = min(footer.directory_length, footer.manifest_length) > 0
    ordered = footer.directory_offset + footer.directory_length <= start
    in_bounds = tables and ordered and end <= file_size - MIN_SIZE
    return RawFooter(version, footer, in_bounds and footer.stream_count <= MAX_STREAMS)


def _check_bounds(footer: Footer, end: int) -> None:
    for what, offset, length in (
        ("directory", footer.directory_offset, footer.directory_length),
        ("manifest", footer.manifest_offset, footer.manifest_length),
    ):
        if offset + length > end:
            raise SegmentTruncated(
                f"the {what} should end at {offset + length:,}, the file has {end:,} bytes for it."
            )
    if footer.stream_count > MAX_STREAMS:
        raise SegmentInvalidIpc(f"the segment claims {footer.stream_count:,} streams.")


def encode_table(table: pa.RecordBatch, schema: SchemaMessage) -> IpcFile:
    """A file with the one batch of a directory or a manifest."""
    builder = FileBuilder(schema)
    builder.add_batch(EncodedBatch(schema, table.serialize(), table.num_rows))
    return builder.finish()


def decode_table(data: pa.Buffer, what: str) -> pa.RecordBatch:
    """The one batch of such a file, checked through and through."""
    try:
        check_file(data)
        with pa.ipc.open_file(data) as reader:
            if reader.num_record_batches != 1:
                raise SegmentInvalidIpc(f"the {what} has {reader.num_record_batches} batches.")
            batch = reader.get_batch(0)
        batch.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, struct.error) as error:
        check_memory(error)
        raise SegmentInvalidIpc(f"Arrow can't read the {what}: {error}.") from error
    return batch


def column(batch: pa.RecordBatch, field: pa.Field, what: str) -> pa.Array | None:
    """A column by name, if it is there: of the type it must have, nulls only if allowed."""
    indices = batch.schema.get_all_field_indices(field.name)
    if not indices:
        return None
    found = batch.column(indices[0])
    if found.type != field.type or (found.null_count and not field.nullable):
        raise SegmentInvalidIpc(f"the {what}'s column {field.name!r} is not what it should be.")
    return found


def encode_directory(entries: Sequence[StreamEntry], summary: SegmentSummary) -> IpcFile:
    """The directory, with its summary."""
    values = asdict(summary)
    for name in _ONLY_STAGED:
        if values[name] is None:
            del values[name]
    text = json.dumps({"v": SUMMARY_VERSION, "writer": WRITER, **values})
    columns = [
        pa.array([getattr(entry, field.name) for entry in entries], field.type)
        for field in DIRECTORY
    ]
    schema = DIRECTORY.with_metadata({SUMMARY_KEY: text.encode()})
    # Not by way of the cache: the schema holds the summary, so no two are alike.
    message = SchemaMessage(schema.serialize().to_pybytes(), schema)
    return encode_table(pa.record_batch(columns, schema=schema), message)


def decode_directory(
    data: pa.Buffer, footer: Footer
) -> tuple[list[StreamEntry], SegmentSummary | None]:
    """The streams, all of them inside the file; the summary if Quiver wrote it."""
    batch = decode_table(data, "directory")
    if batch.num_rows != footer.stream_count:
        raise SegmentInvalidIpc(
            f"the directory lists {batch.num_rows} streams, the footer {footer.stream_count}."
        )
    columns = [column(batch, field, "directory") for field in DIRECTORY]
    if any(found is None for found in columns[:_FOREIGN_COLUMNS]):
        raise SegmentInvalidIpc("the directory lacks a column.")
    nothing: list[Any] = [None] * batch.num_rows
    values = [nothing if found is None else found.to_pylist() for found in columns]
    entries = [StreamEntry(*row) for row in zip(*values, strict=True)]
    _check_streams(entries, footer)
    return entries, _summary(batch.schema.metadata)


def _check_streams(entries: Sequence[StreamEntry], footer: Footer) -> None:
    for entry in entries:
        if entry.byte_offset + entry.byte_length > footer.directory_offset:
            raise SegmentTruncated(
                f"stream {entry.stream_id} should end at"
                f" {entry.byte_offset + entry.byte_length:,}, the directory starts at"
                f" {footer.directory_offset:,}."
            )
    if len({entry.stream_id for entry in entries}) != len(entries):
        raise SegmentInvalidIpc("the directory lists a stream twice.")


def _summary(metadata: dict[bytes, bytes] | None) -> SegmentSummary | None:
    text = (metadata or {}).get(SUMMARY_KEY)
    if text is None:
        return None
    try:
        values = json.loads(text)
        known = {name: values.get(name) for name in SegmentSummary.__slots__}
        label = read_label(known.pop("stage"))
        transaction = read_transaction(known.pop("transaction"))
    except (ValueError, AttributeError, RecursionError):
        raise SegmentInvalidIpc("the directory's summary can't be read.") from None
    for name, value in known.items():
        optional = name.startswith(("first", "last", "segment"))
        if not (type(value) is int or (value is None and optional)):
            raise SegmentInvalidIpc(f"the directory's summary has no sound {name!r}.")
    return SegmentSummary(**known, stage=label, transaction=transaction)
