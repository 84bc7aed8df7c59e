"""Record batches as messages: what comes out is what went in, and nothing hostile gets far."""

from __future__ import annotations

import gc
import struct
import zlib

import pyarrow as pa
import pytest
from hypothesis import given

from quiver.errors import InvalidBundle, InvalidInput, LimitExceeded
from quiver.format.arrow import ipc
from quiver.format.arrow import schema as schemas
from quiver.format.arrow.fingerprint import MAX_DEPTH
from quiver.format.arrow.ipc import EncodedBatch, encode_batch, parse_stream, project
from quiver.format.arrow.schema import SchemaMessage
from tests.support.batches import Celsius, batches, dictionary, same, zoo

ZOO = zoo()
LIMIT = 1 << 20


def joined(encoded: EncodedBatch) -> bytes:
    return b"".join(bytes(part) for part in encoded.buffers())


def stream_of(*written: pa.RecordBatch, **options: object) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, written[0].schema, options=pa.ipc.IpcWriteOptions(**options)
    ) as writer:
        for batch in written:
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def plain() -> pa.RecordBatch:
    return pa.record_batch({"a": [1, 2, 3], "b": ["x", "yy", None]})


def keyed() -> pa.RecordBatch:
    return pa.record_batch(
        {
            "d": dictionary([0, 1, 0], pa.array(["x", "y"]), pa.int8()),
            "e": dictionary([1, 1, 0], pa.array([7, 8]), pa.int16()),
        }
    )


@pytest.mark.parametrize("name", ZOO)
def test_every_kind_of_batch_comes_back(name: str) -> None:
    """Each of Arrow's types, whole, sliced, empty: decoded, it equals what was encoded."""
    batch = ZOO[name]
    encoded = encode_batch(batch)
    same(encoded.decode(), batch)
    assert encoded.rows == batch.num_rows


@pytest.mark.parametrize("name", ZOO)
def test_the_pieces_are_an_ipc_stream(name: str) -> None:
    """Joined, the pieces are a stream that plain Arrow reads, with the length and sum told."""
    encoded = encode_batch(ZOO[name])
    data = joined(encoded)
    assert len(data) == encoded.payload_len
    assert zlib.crc32(encoded.batch) == encoded.batch_crc
    with pa.ipc.open_stream(data) as reader:
        same(reader.read_next_batch(), ZOO[name])


@pytest.mark.parametrize("name", ZOO)
def test_a_stream_is_taken_as_it_is(name: str) -> None:
    """What Arrow writes is kept byte for byte: the log gives back what a producer sent."""
    sent = stream_of(ZOO[name])
    parsed = parse_stream(sent, max_bytes=LIMIT)
    assert joined(parsed) == sent
    same(parsed.decode(), ZOO[name])


@given(batches())
def test_any_batch_comes_back(batch: pa.RecordBatch) -> None:
    """Any mixture of nesting, nulls, dictionaries, metadata and slicing survives."""
    encoded = encode_batch(batch)
    same(encoded.decode(), batch)
    same(parse_stream(joined(encoded), max_bytes=LIMIT).decode(), batch)


def test_not_a_number_keeps_its_bits() -> None:
    """NaN payloads and negative zero are bytes like others."""
    bits = pa.py_buffer(struct.pack("<3Q", 0x7FF8000000000001, 0xFFF0000000000002, 1 << 63))
    batch = pa.RecordBatch.from_arrays([pa.Array.from_buffers(pa.float64(), 3, [None, bits])], "f")
    assert encode_batch(batch).decode().column(0).buffers()[1][:24] == bits


def test_decoding_copies_nothing() -> None:
    """Arrays lie in the memory of the message; only unaligned memory is copied first."""
    batch = pa.record_batch({"a": list(range(1000))})
    encoded = encode_batch(batch)
    start, end = encoded.batch.address, encoded.batch.address + encoded.batch.size
    assert start <= encoded.decode().column(0).buffers()[1].address < end


@pytest.mark.parametrize("make", [plain, keyed])
@pytest.mark.parametrize("shift", range(8))
def test_unaligned_memory_is_decoded_aligned(make: object, shift: int) -> None:
    """A payload anywhere in a log file decodes into arrays aligned as Arrow wants them."""
    batch = plain() if make is plain else keyed()
    data = pa.py_buffer(b"-" * shift + stream_of(batch)).slice(shift)
    found = parse_stream(data, max_bytes=LIMIT).decode()
    same(found, batch)
    for column in found.columns:
        assert all(part.address % 8 == 0 for part in column.buffers() if part is not None)


def test_memory_lives_as_long_as_a_batch() -> None:
    """A decoded batch stays readable after the bytes it came from were let go."""
    found = parse_stream(stream_of(keyed()), max_bytes=LIMIT).decode()
    gc.collect()
    same(found, keyed())


def test_lz4_is_undone_and_zstd_kept() -> None:
    """The Rust crate's reader knows zstd but not lz4, and must be able to read segments."""
    batch = pa.record_batch({"a": [1] * 1000, "b": ["text"] * 1000})
    squeezed = stream_of(batch, compression="lz4")
    parsed = parse_stream(squeezed, max_bytes=LIMIT)
    assert joined(parsed) == joined(encode_batch(batch))
    squeezed = stream_of(batch, compression="zstd")
    parsed = parse_stream(squeezed, max_bytes=LIMIT)
    assert joined(parsed) == squeezed
    same(parsed.decode(), batch)


def test_old_metadata_is_brought_up_to_date() -> None:
    """A file must be of one version, so messages of version 4 are encoded anew."""
    parsed = parse_stream(
        stream_of(plain(), metadata_version=pa.ipc.MetadataVersion.V4), max_bytes=LIMIT
    )
    assert joined(parsed) == joined(encode_batch(plain()))


def test_a_replaced_dictionary_is_settled() -> None:
    """Replacing a dictionary can't be said in a file: what holds at the batch is kept."""
    old = pa.record_batch({"d": dictionary([0], pa.array(["old"]), pa.int8())})
    new = pa.record_batch({"d": dictionary([0], pa.array(["new"]), pa.int8())})
    first, second = encode_batch(old), encode_batch(new)
    parts = (first.schema.message, first.dictionaries, second.dictionaries, second.batch)
    parsed = parse_stream(b"".join(map(bytes, parts)), max_bytes=LIMIT)
    same(parsed.decode(), new)
    assert parsed.dictionaries.equals(second.dictionaries)


def test_a_delta_dictionary_is_settled() -> None:
    """A dictionary sent in two parts becomes one, since readers differ on deltas."""
    short = pa.record_batch({"d": dictionary([0], pa.array(["a"]), pa.int8())})
    longer = pa.record_batch({"d": dictionary([1], pa.array(["a", "b"]), pa.int8())})
    sent = stream_of(short, longer, emit_dictionary_deltas=True)
    encoded = encode_batch(short)
    without_first_batch = sent.replace(bytes(encoded.batch), b"", 1)
    assert len(without_first_batch) < len(sent)
    parsed = parse_stream(without_first_batch, max_bytes=LIMIT)
    same(parsed.decode(), longer)
    assert joined(parsed) == joined(encode_batch(longer))


def test_a_delta_to_nothing_is_not_kept() -> None:
    """A dictionary that extends one that was never sent is refused, or settled as one."""
    short = pa.record_batch({"d": dictionary([0], pa.array(["a"]), pa.int8())})
    longer = pa.record_batch({"d": dictionary([1], pa.array(["a", "b"]), pa.int8())})
    sent = stream_of(short, longer, emit_dictionary_deltas=True)
    for part in (encode_batch(short).batch, encode_batch(short).dictionaries):
        assert bytes(part) in sent
        sent = sent.replace(bytes(part), b"", 1)
    try:
        parsed = parse_stream(sent, max_bytes=LIMIT)
    except InvalidBundle:
        return
    assert joined(parsed) == joined(encode_batch(parsed.decode()))


@pytest.mark.parametrize("value", [-1, 1 << 20, 2**63 - 1])
@pytest.mark.parametrize("which", [0, 1])
def test_a_buffer_outside_of_its_message_is_refused(value: int, which: int) -> None:
    """Before anything is decoded: an offset is a pointer in the making."""
    encoded = encode_batch(pa.record_batch({"a": list(range(100))}))
    message = bytearray(encoded.batch)
    at = message.index(struct.pack("<qq", 0, 800))
    struct.pack_into("<q", message, at + 8 * which, value)
    with pytest.raises(InvalidBundle, match="buffer"):
        parse_stream(encoded.schema.message + bytes(message), max_bytes=LIMIT)


def test_a_missing_end_marker_is_fine() -> None:
    """Closing the stream is an end too, says Arrow."""
    sent = stream_of(plain())
    assert joined(parse_stream(sent[:-8], max_bytes=LIMIT)) == sent


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xff\xff\xff\0\0\0\0",
        b"no arrow at all, just some text",
        stream_of(plain(), plain()),
        stream_of(plain()) + b"more",
        stream_of(plain()) + stream_of(plain()),
        bytes(plain().schema.serialize()),
        bytes(encode_batch(plain()).batch),
        bytes(encode_batch(keyed()).schema.message) + bytes(encode_batch(keyed()).batch),
        bytes(encode_batch(plain()).schema.message)
        + bytes(encode_batch(keyed()).dictionaries)
        + bytes(encode_batch(plain()).batch),
        stream_of(plain(), use_legacy_format=True),
    ],
)
def test_what_is_not_one_batch_is_refused(data: bytes) -> None:
    """None, two, or something else: the caller's fault, said as such."""
    with pytest.raises(InvalidBundle):
        parse_stream(data, max_bytes=LIMIT)


@pytest.mark.parametrize("make", [plain, keyed])
def test_every_truncation_is_refused(make: object) -> None:
    """A stream cut anywhere is refused, but for the end marker, which may be missing."""
    sent = stream_of(plain() if make is plain else keyed())
    for length in range(len(sent) - 8):
        with pytest.raises(InvalidBundle):
            parse_stream(sent[:length], max_bytes=LIMIT)


@pytest.mark.parametrize("options", [{}, {"compression": "zstd"}, {"compression": "lz4"}])
def test_no_flipped_byte_does_harm(options: dict[str, str]) -> None:
    """Any byte changed: a typed refusal, or a batch that Arrow's full check has the word on."""
    sent = bytearray(stream_of(pa.record_batch([*plain().columns, *keyed().columns], list("abcd")),
                               **options))  # fmt: skip
    for position in range(len(sent)):
        for flip in (0x01, 0x80, 0xFF):
            sent[position] ^= flip
            try:
                found = parse_stream(bytes(sent), max_bytes=LIMIT).decode()
                found.validate(full=True)
            except (InvalidInput, pa.ArrowInvalid, pa.ArrowIndexError, UnicodeDecodeError):
                pass
            sent[position] ^= flip


def test_a_bomb_is_refused_before_it_is_lit() -> None:
    """A compressed body that declares more than the limit is never given the memory."""
    batch = pa.record_batch({"a": [0] * LIMIT})
    sent = stream_of(batch, compression="zstd")
    assert len(sent) < LIMIT // 10
    with pytest.raises(LimitExceeded):
        parse_stream(sent, max_bytes=LIMIT)
    declared = struct.pack("<q", 8 * LIMIT)
    lying = sent.replace(declared, struct.pack("<q", 1 << 60))
    assert lying != sent
    with pytest.raises(LimitExceeded):
        parse_stream(lying, max_bytes=1 << 40)


def test_sizes_are_limited() -> None:
    """Bytes and rows have limits with names."""
    sent = stream_of(plain())
    with pytest.raises(LimitExceeded):
        parse_stream(sent, max_bytes=len(sent) - 1)
    nothing = pa.Array.from_buffers(pa.null(), ipc.MAX_ROWS + 1, [None])
    with pytest.raises(LimitExceeded):
        encode_batch(pa.RecordBatch.from_arrays([nothing], ["n"]))
    sent = stream_of(pa.RecordBatch.from_arrays([nothing.slice(1)], ["n"]))
    lying = sent.replace(struct.pack("<q", ipc.MAX_ROWS), struct.pack("<q", ipc.MAX_ROWS + 1))
    with pytest.raises(LimitExceeded):
        parse_stream(lying, max_bytes=LIMIT)


def test_schemas_are_shared_and_the_cache_is_bounded() -> None:
    """Equal schemas are one object, whichever way they came; many don't fill the memory."""
    one = encode_batch(plain())
    assert encode_batch(plain()).schema is one.schema
    assert parse_stream(stream_of(plain()), max_bytes=LIMIT).schema is one.schema
    for number in range(schemas.MAX_CACHED_SCHEMAS + 10):
        SchemaMessage.of(pa.schema([pa.field(f"c{number}", pa.int8())]))
    assert schemas._cached_schema.cache_info().currsize <= schemas.MAX_CACHED_SCHEMAS
    huge = pa.schema([pa.field("c", pa.int8(), metadata={"k": "v" * (1 << 17)})])
    before = schemas._cached_schema.cache_info().currsize
    assert SchemaMessage.parse(bytes(huge.serialize())).schema.equals(huge, check_metadata=True)
    assert schemas._cached_schema.cache_info().currsize == before


def test_schemas_that_differ_in_a_detail_are_not_mixed_up() -> None:
    """Metadata and names of list items don't count as equal, although Arrow's ``==`` says so."""
    described = plain().replace_schema_metadata({"a": "1"})
    items = [
        pa.record_batch([pa.array([[1]], pa.list_(pa.field(name, pa.int8())))], names=["l"])
        for name in ("item", "element")
    ]
    for batch in (plain(), described, *items, plain(), described, *items):
        same(encode_batch(batch).decode(), batch)


def test_an_extension_type_registered_late_is_honoured() -> None:
    """The same bytes mean more once a type is registered; what is encoded comes back."""
    array = pa.ExtensionArray.from_storage(Celsius(10), pa.array([1, 2], pa.int32()))
    batch = pa.RecordBatch.from_arrays([array], ["t"])
    sent = stream_of(batch)
    unknown = parse_stream(sent, max_bytes=LIMIT).decode()
    assert unknown.schema.field("t").type == pa.int32()
    pa.register_extension_type(Celsius())
    try:
        same(encode_batch(batch).decode(), batch)
    finally:
        pa.unregister_extension_type("quiver.test.celsius")


def test_an_extension_type_that_nobody_registered_is_carried() -> None:
    """Its storage and its metadata go through; the type itself is for the reader to know."""
    keys = dictionary([0, 0], pa.array(["a"]), pa.int8())
    lists = pa.ListArray.from_arrays([0, 1, 2], keys)
    array = pa.ExtensionArray.from_storage(Celsius(10), pa.array([1, 2], pa.int32()))
    batch = pa.RecordBatch.from_arrays(
        [pa.StructArray.from_arrays([array, lists], ["t", "l"])], "s"
    )
    encoded = encode_batch(batch)
    same(encoded.decode().cast(batch.schema), batch)
    assert b"quiver.test.celsius" in encoded.schema.message


def test_a_dictionary_of_dictionaries_is_refused() -> None:
    """Arrow's messages can't say it and would silently turn it into something else."""
    inner = dictionary([0], pa.array(["a"]), pa.int8())
    twice = dictionary([0, None], inner, pa.int8())
    for array in (twice, pa.ListArray.from_arrays([0, 1, 2], twice)):
        with pytest.raises(InvalidBundle):
            encode_batch(pa.RecordBatch.from_arrays([array], ["d"]))


def test_a_schema_too_deep_is_refused() -> None:
    """Nesting beyond the limit of the fingerprint is the caller's fault, said as such."""
    array = pa.array([1])
    for _ in range(MAX_DEPTH):
        array = pa.ListArray.from_arrays([0, 1], array)
    with pytest.raises(InvalidBundle):
        encode_batch(pa.RecordBatch.from_arrays([array], ["deep"]))


def test_the_digest_names_the_dictionaries() -> None:
    """The same dictionaries give one digest, others another, none the empty one."""
    other = pa.record_batch({"d": dictionary([0, 1, 0], pa.array(["x", "z"]), pa.int8())})
    first = encode_batch(keyed()).dictionary_digest
    assert first == encode_batch(keyed().slice(1, 1)).dictionary_digest
    assert first != encode_batch(other).dictionary_digest
    assert encode_batch(plain()).dictionary_digest == b""


def test_columns_are_chosen_by_name() -> None:
    """In the order asked for; a name that isn't there is left out, a double one comes twice."""
    batch = pa.RecordBatch.from_arrays([pa.array([1]), pa.array(["x"]), pa.array([2])], list("aba"))
    assert project(batch, None) is batch
    found = project(batch, ["b", "zz", "a"])
    assert found.schema.names == ["b", "a", "a"]
    assert found.column(2).to_pylist() == [2]
    assert project(batch, []).num_rows == 1
