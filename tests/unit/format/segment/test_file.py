"""Directory, manifest, footer, trailer: both ways, and in the hands of an enemy."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest

from quiver.errors import (
    SegmentBadMagic,
    SegmentDamage,
    SegmentInvalidIpc,
    SegmentTruncated,
    UnknownBundle,
    UnsupportedVersion,
)
from quiver.format.arrow.ipc_file import IpcFile
from quiver.format.arrow.schema import SchemaMessage
from quiver.format.record import BundleMeta
from quiver.format.segment.file import (
    DIRECTORY,
    MAX_FOOTER_SIZE,
    SUMMARY_KEY,
    Footer,
    SegmentSummary,
    StreamEntry,
    decode_directory,
    decode_footer,
    encode_directory,
    encode_table,
    stored_crc,
)
from quiver.format.segment.manifest import MANIFEST, Manifest, SlotRef, encode_manifest

ENTRIES = [
    StreamEntry(0, 3, b"a" * 32, 0, 100, 5, 2, "Logs", b"h" * 32),
    StreamEntry(1, 63, b"b" * 32, 128, 72, 0, 1, None, b"i" * 32),
]
SUMMARY = SegmentSummary(2, 5, 500, 10, 11, -5, 7)
FOOTER = Footer(2, 2, 200, 50, 250, 60)


def buffer(file: IpcFile) -> pa.Buffer:
    return pa.py_buffer(b"".join(bytes(part) for part in file.buffers))


def test_the_footer_and_trailer_are_laid_out_as_documented() -> None:
    """34 and 16 bytes, little-endian; the checksum covers all but its own four bytes."""
    before = b"streams, directory, manifest"
    tail = FOOTER.encode(zlib.crc32(before))
    assert len(tail) == 50
    assert struct.unpack("<HIIQIQI", tail[:34]) == (1, 2, 2, 200, 50, 250, 60)
    assert struct.unpack("<I8s", tail[34:46]) == (34, b"QUIVER\0S")
    assert stored_crc(tail) == zlib.crc32(before + tail[:-4])


def test_the_footer_comes_back() -> None:
    """From the file's tail, wherever in it the footer begins."""
    tail = FOOTER.encode(0)
    assert decode_footer(tail, 310 + 50) == FOOTER
    assert decode_footer(bytes(1000) + tail, 310 + 1000 + 50) == FOOTER


def test_too_short_is_truncated() -> None:
    """Fewer bytes than footer and trailer take can't be a segment."""
    for size in range(50):
        with pytest.raises(SegmentTruncated):
            decode_footer(FOOTER.encode(0)[-size:], size)


def test_another_magic_is_not_a_segment() -> None:
    """Some other file, or one whose end is missing."""
    tail = bytearray(FOOTER.encode(0))
    tail[38] ^= 1
    with pytest.raises(SegmentBadMagic):
        decode_footer(bytes(tail), 360)


def test_a_newer_version_is_refused_as_such() -> None:
    """A file of version 2 is not damaged: a newer Quiver reads it."""
    tail = bytearray(FOOTER.encode(0))
    tail[0] = 2
    with pytest.raises(UnsupportedVersion):
        decode_footer(bytes(tail), 360)


@pytest.mark.parametrize("size", [0, 33, 35, MAX_FOOTER_SIZE + 1, 2**32 - 1])
def test_a_footer_of_impossible_size(size: int) -> None:
    """The footer's own size is a number from the file, and trusted no more than others."""
    tail = FOOTER.encode(0)[:34] + struct.pack("<I8sI", size, b"QUIVER\0S", 0)
    with pytest.raises(SegmentTruncated):
        decode_footer(tail, 50)


@pytest.mark.parametrize(
    "footer",
    [
        Footer(2, 2, 2**64 - 1, 50, 250, 60),
        Footer(2, 2, 200, 2**32 - 1, 250, 60),
        Footer(2, 2, 200, 50, 2**63, 60),
        Footer(2, 2, 200, 50, 251, 60),
        Footer(2, 2, 200, 50, 250, 2**32 - 1),
    ],
)
def test_offsets_behind_the_end_are_a_truncation(footer: Footer) -> None:
    """A file shorter than its footer says has lost something."""
    with pytest.raises(SegmentTruncated):
        decode_footer(footer.encode(0), 360)


def test_a_claim_of_too_many_streams() -> None:
    """The count is limited before anything is made of it."""
    with pytest.raises(SegmentInvalidIpc):
        decode_footer(Footer(2**32 - 1, 2, 200, 50, 250, 60).encode(0), 360)


def test_the_directory_comes_back() -> None:
    """Streams and summary, with the names that have none."""
    data = buffer(encode_directory(ENTRIES, SUMMARY))
    assert decode_directory(data, FOOTER) == (ENTRIES, SUMMARY)


def test_a_directory_without_streams() -> None:
    """Bundles may have no slots at all."""
    data = buffer(encode_directory([], SUMMARY))
    assert decode_directory(data, Footer(0, 2, 0, 1, 1, 1)) == ([], SUMMARY)


def test_plain_arrow_reads_directory_and_summary() -> None:
    """One batch, the documented columns, a JSON text in the schema's metadata."""
    with pa.ipc.open_file(buffer(encode_directory(ENTRIES, SUMMARY))) as reader:
        assert reader.num_record_batches == 1
        assert reader.get_batch(0).schema.names == DIRECTORY.names
        summary = json.loads(reader.schema.metadata[SUMMARY_KEY])
    assert summary["v"] == 1
    assert summary["first_sequence"] == 10


def _directory(change: Callable[[dict[str, Any]], object], metadata: object = None) -> pa.Buffer:
    """A directory with something wrong in it."""
    columns: dict[str, Any] = {
        field.name: pa.array([getattr(entry, field.name) for entry in ENTRIES], field.type)
        for field in DIRECTORY
    }
    change(columns)
    batch = pa.record_batch(columns).replace_schema_metadata(metadata)
    return buffer(encode_table(batch, SchemaMessage.of(batch.schema)))


def test_columns_that_nobody_knows_are_passed_over() -> None:
    """A later writer may add columns, and the Rust crate writes fewer: both are read."""
    data = _directory(lambda columns: columns.update(new=pa.array(["x", "y"])))
    assert decode_directory(data, FOOTER) == (ENTRIES, None)
    foreign = _directory(lambda columns: (columns.pop("slot_name"), columns.pop("schema_hash")))
    entries, summary = decode_directory(foreign, FOOTER)
    assert [entry.slot_name for entry in entries] == [None, None]
    assert summary is None


@pytest.mark.parametrize("name", DIRECTORY.names[:7])
def test_a_directory_needs_its_columns(name: str) -> None:
    """Gone, of another type, or null where that means nothing: refused."""
    with pytest.raises(SegmentInvalidIpc):
        decode_directory(_directory(lambda columns: columns.pop(name)), FOOTER)
    with pytest.raises(SegmentInvalidIpc):
        decode_directory(
            _directory(lambda columns: columns.update({name: pa.array(["x", "y"])})), FOOTER
        )
    kind = DIRECTORY.field(name).type
    with pytest.raises(SegmentInvalidIpc):
        decode_directory(
            _directory(lambda columns: columns.update({name: pa.nulls(2, kind)})), FOOTER
        )


@pytest.mark.parametrize(
    ("name", "values", "error"),
    [
        ("byte_offset", [0, 2**64 - 1], SegmentTruncated),
        ("byte_length", [100, 2**64 - 1], SegmentTruncated),
        ("byte_length", [201, 72], SegmentTruncated),
        ("stream_id", [1, 1], SegmentInvalidIpc),
    ],
)
def test_streams_must_be_in_the_file(
    name: str, values: list[int], error: type[SegmentDamage]
) -> None:
    """Offsets and lengths are checked against the file before they are used."""
    kind = DIRECTORY.field(name).type
    data = _directory(lambda columns: columns.update({name: pa.array(values, kind)}))
    with pytest.raises(error):
        decode_directory(data, FOOTER)


def test_directory_and_footer_must_agree() -> None:
    """A count that is off by one means that one of them is wrong."""
    data = buffer(encode_directory(ENTRIES, SUMMARY))
    with pytest.raises(SegmentInvalidIpc):
        decode_directory(data, Footer(3, 2, 200, 50, 250, 60))


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", "[" * 100_000, '{"bundles": "2"}', '{"bundles": true}', "null"]
)
def test_a_summary_that_is_none(text: str) -> None:
    """JSON from a file is not trusted to be what it should."""
    data = _directory(lambda columns: None, {SUMMARY_KEY: text})
    with pytest.raises(SegmentInvalidIpc):
        decode_directory(data, FOOTER)


BUNDLES = [
    ([SlotRef(3, 0, 0), SlotRef(63, 1, 0)], BundleMeta(10, -5, rows=3, nbytes=200)),
    ([], BundleMeta(11, 7)),
    (
        [SlotRef(3, 0, 1)],
        BundleMeta(
            2**64 - 1,
            2**62,
            key="k\N{BOW AND ARROW}",
            content_hash=b"c" * 32,
            attributes={"a": "\u00fc", "": "x"},
            event_time=(-1, 2**60),
            rows=2,
            nbytes=300,
        ),
    ),
]


def test_the_manifest_comes_back() -> None:
    """Every field of every bundle, with and without the optional ones."""
    manifest = Manifest(buffer(encode_manifest(BUNDLES)), 3)
    assert len(manifest) == 3
    for index, (refs, meta) in enumerate(BUNDLES):
        assert manifest.refs(index) == refs
        assert manifest.meta(index) == meta


def test_an_empty_manifest() -> None:
    """No bundle at all is a manifest, too."""
    assert len(Manifest(buffer(encode_manifest([])), 0)) == 0


@pytest.mark.parametrize("index", [-1, 3, 2**40])
def test_a_bundle_that_was_never_there(index: int) -> None:
    """Asked for by a wrong number: the caller's error, not damage."""
    manifest = Manifest(buffer(encode_manifest(BUNDLES)), 3)
    with pytest.raises(UnknownBundle):
        manifest.refs(index)
    with pytest.raises(UnknownBundle):
        manifest.meta(index)


def _manifest(change: Callable[[dict[str, Any]], object]) -> pa.Buffer:
    with pa.ipc.open_file(buffer(encode_manifest(BUNDLES))) as reader:
        batch = reader.get_batch(0)
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    change(columns)
    batch = pa.record_batch(columns)
    return buffer(encode_table(batch, SchemaMessage.of(batch.schema)))


def test_rows_in_any_order() -> None:
    """The bundle's index counts, not the row it is in."""
    backwards = pa.array([2, 1, 0], pa.uint32())
    manifest = Manifest(_manifest(lambda columns: columns.update(bundle_index=backwards)), 3)
    assert manifest.refs(0) == BUNDLES[2][0]
    assert manifest.meta(2).sequence == 10


def test_the_rust_crates_manifest() -> None:
    """Only two columns are sure to be there; what a bundle holds in rows isn't recorded."""
    ours = set(MANIFEST.names) - {"bundle_index", "slot_refs"}
    manifest = Manifest(_manifest(lambda columns: [columns.pop(name, None) for name in ours]), 3)
    assert manifest.meta(2) == BundleMeta()
    assert not manifest.has_sizes
    assert manifest.refs(0) == BUNDLES[0][0]


@pytest.mark.parametrize(
    "change",
    [
        lambda columns: columns.pop("bundle_index"),
        lambda columns: columns.pop("slot_refs"),
        lambda columns: columns.update(bundle_index=pa.array([0, 0, 1], pa.uint32())),
        lambda columns: columns.update(bundle_index=pa.array([0, 1, 2**32 - 1], pa.uint32())),
        lambda columns: columns.update(slot_refs=pa.array([[1], [2], [3]])),
        lambda columns: columns.update(slot_refs=pa.nulls(3, MANIFEST.field("slot_refs").type)),
        lambda columns: columns.update(
            slot_refs=pa.array([[None], [], []], MANIFEST.field("slot_refs").type)
        ),
        lambda columns: columns.update(key=pa.array([b"x", b"y", b"z"])),
        lambda columns: columns.update(nbytes=pa.array(["x", "y", "z"])),
    ],
)
def test_a_manifest_that_is_not_one(change: Callable[[dict[str, Any]], object]) -> None:
    """Missing, doubled, null or wrongly typed: refused when it is opened."""
    with pytest.raises(SegmentInvalidIpc):
        Manifest(_manifest(change), 3)


@pytest.mark.parametrize("text", ["", "[1]", '{"a": 1}', "[" * 100_000])
def test_attributes_that_are_none(text: str) -> None:
    """A broken text spoils its own bundle only."""
    manifest = Manifest(
        _manifest(lambda columns: columns.update(attributes=pa.array([text] * 3))), 3
    )
    assert manifest.refs(0) == BUNDLES[0][0]
    with pytest.raises(SegmentInvalidIpc):
        manifest.meta(0)


def test_manifest_and_footer_must_agree() -> None:
    """A count that is off by one means that one of them is wrong."""
    with pytest.raises(SegmentInvalidIpc):
        Manifest(buffer(encode_manifest(BUNDLES)), 4)


@pytest.mark.parametrize("what", ["directory", "manifest"])
def test_a_flipped_byte_never_escapes(what: str) -> None:
    """Read without a checksum, any changed byte gives a typed error or other values."""
    whole = encode_directory(ENTRIES, SUMMARY) if what == "directory" else encode_manifest(BUNDLES)
    data = bytearray(buffer(whole))
    for position in range(len(data)):
        for flip in (0x01, 0xFF):
            data[position] ^= flip
            try:
                if what == "directory":
                    decode_directory(pa.py_buffer(bytes(data)), FOOTER)
                else:
                    manifest = Manifest(pa.py_buffer(bytes(data)), 3)
                    for index in range(3):
                        manifest.refs(index)
                        manifest.meta(index)
            except SegmentDamage:
                pass
            data[position] ^= flip
