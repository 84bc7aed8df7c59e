"""Arrow files put together by hand: plain Arrow reads them, and broken ones are noticed."""

from __future__ import annotations

import struct
import zlib

import pyarrow as pa
import pytest

from quiver.format.arrow.flatbuf import Table
from quiver.format.arrow.ipc import EncodedBatch, encode_batch, parse_stream
from quiver.format.arrow.ipc_file import FileBuilder, check_file
from tests.support.batches import dictionary, same, zoo

ZOO = zoo()


def file_of(*encoded: EncodedBatch) -> bytes:
    builder = FileBuilder(encoded[0].schema)
    if encoded[0].dictionaries.size:
        builder.add_dictionaries(encoded[0].dictionaries)
    for batch in encoded:
        builder.add_batch(batch)
    file = builder.finish()
    data = b"".join(bytes(part) for part in file.buffers)
    assert (len(data), zlib.crc32(data)) == (file.size, file.crc)
    assert file.rows == sum(batch.rows for batch in encoded)
    return data


@pytest.mark.parametrize("name", ZOO)
def test_plain_arrow_reads_it(name: str) -> None:
    """Each kind of batch, several times in a file, zero-row ones included: all come back."""
    batch = ZOO[name]
    data = file_of(*[encode_batch(part) for part in (batch, batch.slice(0, 0), batch.slice(1, 2))])
    check_file(pa.py_buffer(data))
    with pa.ipc.open_file(data) as reader:
        assert reader.num_record_batches == 3
        same(reader.get_batch(0), batch)
        same(reader.get_batch(1), batch.slice(0, 0))
        same(reader.get_batch(2), batch.slice(1, 2))


@pytest.mark.parametrize("name", ["int64", "everything", "described", "no_columns"])
def test_it_is_what_arrow_itself_would_write_up_to_the_footer(name: str) -> None:
    """Magic, messages and end marker are the same bytes as Arrow's own file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, ZOO[name].schema) as writer:
        writer.write_batch(ZOO[name])
    arrows = sink.getvalue().to_pybytes()
    footer_size = struct.unpack_from("<i", arrows, len(arrows) - 10)[0]
    end = len(arrows) - 10 - footer_size
    assert file_of(encode_batch(ZOO[name]))[:end] == arrows[:end]


def test_a_file_without_batches() -> None:
    """Just a schema is a file, too."""
    with pa.ipc.open_file(
        b"".join(map(bytes, FileBuilder(encode_batch(ZOO["utf8"]).schema).finish().buffers))
    ) as reader:
        assert reader.num_record_batches == 0
        assert reader.schema.equals(ZOO["utf8"].schema, check_metadata=True)


def test_dictionary_ids_are_the_producers_own() -> None:
    """Ids other than those pyarrow would give hold in messages and footer alike."""
    batch = pa.record_batch(
        {
            "d": dictionary([0], pa.array(["x"]), pa.int8()),
            "e": dictionary([0], pa.array(["y"]), pa.int8()),
        }
    )
    encoded = encode_batch(batch)
    schema, dictionaries = bytearray(encoded.schema.message), bytearray(encoded.dictionaries)
    second = Table.root(bytes(schema[8:])).table(2).tables(1)[1].table(4)  # type: ignore[union-attr]
    assert second is not None
    assert second.i64(0) == 1
    struct.pack_into("<q", schema, 8 + second._field(0), 77)
    at = dictionaries.index(b"\xff\xff\xff\xff", 8)
    message = Table.root(bytes(dictionaries[at + 8 :])).table(2)
    assert message is not None
    assert message.i64(0) == 1
    struct.pack_into("<q", dictionaries, at + 8 + message._field(0), 77)
    stream = bytes(schema) + bytes(dictionaries) + bytes(encoded.batch)
    parsed = parse_stream(stream, max_bytes=1 << 20)
    with pa.ipc.open_file(file_of(parsed, parsed)) as reader:
        same(reader.get_batch(1), batch)


def test_messages_and_footer_keep_their_alignment() -> None:
    """Every block starts on 8 bytes, so that arrays are aligned wherever the file is mapped."""
    data = file_of(*[encode_batch(ZOO["everything"])] * 3)
    footer_size = struct.unpack_from("<i", data, len(data) - 10)[0]
    start = len(data) - 10 - footer_size
    assert start % 8 == footer_size % 8 == 0
    footer = Table.root(data[start : start + footer_size])
    blocks = [
        *footer.structs(2, struct.Struct("<qi4xq")),
        *footer.structs(3, struct.Struct("<qi4xq")),
    ]
    assert len(blocks) > 3
    for offset, metadata, body in blocks:
        assert offset % 8 == metadata % 8 == body % 8 == 0


def test_a_check_finds_every_truncation() -> None:
    """A file cut at any byte is not taken for one."""
    data = file_of(encode_batch(ZOO["dictionary_int8"]))
    for length in range(len(data)):
        with pytest.raises(struct.error):
            check_file(pa.py_buffer(data[:length]))


def test_a_check_keeps_flips_from_reading_elsewhere() -> None:
    """With any byte changed, a file is refused or opens within its own memory."""
    data = bytearray(file_of(encode_batch(ZOO["utf8"]), encode_batch(ZOO["utf8"])))
    for position in range(len(data)):
        for flip in (0x01, 0x80, 0xFF):
            data[position] ^= flip
            try:
                check_file(pa.py_buffer(bytes(data)))
                with pa.ipc.open_file(bytes(data)) as reader:
                    for number in range(reader.num_record_batches):
                        reader.get_batch(number).validate(full=True)
            except (struct.error, pa.ArrowException, OSError, KeyError, UnicodeDecodeError):
                pass
            data[position] ^= flip


def test_a_check_refuses_compression() -> None:
    """A directory is never compressed: nobody needs to trust a declared size."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(sink, ZOO["utf8"].schema, options=options) as writer:
        writer.write_batch(ZOO["utf8"])
    with pytest.raises(struct.error):
        check_file(sink.getvalue())
