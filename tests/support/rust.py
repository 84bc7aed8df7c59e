"""Directories as the Rust crate writes them, made by hand, byte by byte."""

from __future__ import annotations

import json
import struct
import zlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from quiver import Config, ManualClock, Store
from quiver.disk.disk import Disk
from quiver.offline.dump import Dump, dump
from tests.support.memory_disk import MemoryDisk

FIXTURES: Final = Path(__file__).parents[1] / "fixtures" / "rust"
NAMES: Final = sorted(path.name for path in FIXTURES.iterdir() if path.is_dir())
FINGERPRINT: Final = bytes(range(32))

Bundle = Mapping[int, pa.RecordBatch]
Image = dict[str, bytes]


def fixture(name: str) -> Image:
    """A directory the crate really wrote."""
    root = FIXTURES / name / "data"
    return {
        str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()
    }


def expected(name: str) -> dict[str, Any]:
    """What went into it."""
    document: dict[str, Any] = json.loads((FIXTURES / name / "EXPECTED.json").read_text())
    return document


def numbered(number: int, rows: int = 2) -> Bundle:
    """A bundle that can be told from others; :func:`number_of` tells."""
    values = pa.array([number * 100 + row for row in range(rows)], pa.int64())
    return {0: pa.record_batch({"n": values})}


def number_of(batch: pa.RecordBatch) -> int:
    return int(batch["n"][0].as_py()) // 100


def numbers(*values: int) -> list[Bundle]:
    return [numbered(value) for value in values]


# The log


def head(position: int = 0) -> bytes:
    return struct.pack("<10sHH16sQ", b"QUIVER\0WAL", 1, 38, b"QUIVER_SEGCFG\0\0\0", position)


def entry(sequence: int, bundle: Bundle, ts: int = 1_700_000_000_000_000_000) -> bytes:
    bitmap = sum(1 << slot for slot in bundle)
    body = struct.pack("<BqQQ", 0, ts + sequence, sequence, bitmap)
    for slot, batch in bundle.items():
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        payload = sink.getvalue().to_pybytes()
        body += struct.pack("<H32sII", slot, FINGERPRINT, batch.num_rows, len(payload)) + payload
    return struct.pack("<I", len(body)) + body + struct.pack("<I", zlib.crc32(body))


def log(bundles: Iterable[Bundle], *, position: int = 0, sequence: int = 0) -> bytes:
    """A log file; sequences rise from ``sequence``."""
    return head(position) + b"".join(entry(sequence + n, b) for n, b in enumerate(bundles))


def data_length(file: bytes) -> int:
    """Positions a log file takes."""
    return len(file) - 38


def cursor(position: int) -> bytes:
    body = struct.pack("<8sHHQ", b"QUIVER\0T", 1, 24, position)
    return body + struct.pack("<I", zlib.crc32(body))


# Segments


def segment(bundles: Sequence[Bundle]) -> bytes:
    """A segment file with the crate's columns and no others."""
    streams: dict[int, list[pa.RecordBatch]] = defaultdict(list)
    refs: list[list[dict[str, int]]] = []
    for bundle in bundles:
        refs.append([])
        for slot, batch in bundle.items():
            ids = {known: n for n, known in enumerate({**dict.fromkeys(streams), slot: None})}
            refs[-1].append(
                {"slot_id": slot, "stream_id": ids[slot], "chunk_index": len(streams[slot])}
            )
            streams[slot].append(batch)
    data = b""
    rows: dict[str, list[Any]] = defaultdict(list)
    for number, (slot, batches) in enumerate(streams.items()):
        data += bytes(-len(data) % 64)
        stream = _file(batches[0].schema, batches)
        for name, value in zip(
            _DIRECTORY.names,
            (
                number,
                slot,
                FINGERPRINT,
                len(data),
                len(stream),
                sum(b.num_rows for b in batches),
                len(batches),
            ),
            strict=True,
        ):
            rows[name].append(value)
        data += stream
    directory = _table(_DIRECTORY, [rows[name] for name in _DIRECTORY.names])
    manifest = _table(_MANIFEST, [list(range(len(bundles))), refs])
    footer = struct.pack(
        "<HIIQIQI",
        1,
        len(streams),
        len(bundles),
        len(data),
        len(directory),
        len(data) + len(directory),
        len(manifest),
    )
    whole = data + directory + manifest + footer + struct.pack("<I8s", len(footer), b"QUIVER\0S")
    return whole + struct.pack("<I", zlib.crc32(whole))


_DIRECTORY: Final = pa.schema(
    [
        pa.field("stream_id", pa.uint32(), nullable=False),
        pa.field("slot_id", pa.uint16(), nullable=False),
        pa.field("schema_fingerprint", pa.binary(32), nullable=False),
        pa.field("byte_offset", pa.uint64(), nullable=False),
        pa.field("byte_length", pa.uint64(), nullable=False),
        pa.field("row_count", pa.uint64(), nullable=False),
        pa.field("chunk_count", pa.uint32(), nullable=False),
    ]
)
_REF: Final = pa.struct(
    [
        pa.field("slot_id", pa.uint16(), nullable=False),
        pa.field("stream_id", pa.uint32(), nullable=False),
        pa.field("chunk_index", pa.uint32(), nullable=False),
    ]
)
_MANIFEST: Final = pa.schema(
    [
        pa.field("bundle_index", pa.uint32(), nullable=False),
        pa.field("slot_refs", pa.list_(pa.field("item", _REF)), nullable=False),
    ]
)


def _table(schema: pa.Schema, columns: Sequence[Sequence[Any]]) -> bytes:
    arrays = [pa.array(list(c), f.type) for c, f in zip(columns, schema, strict=True)]
    return _file(schema, [pa.record_batch(arrays, schema=schema)])


def _file(schema: pa.Schema, batches: Sequence[pa.RecordBatch]) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for batch in batches:
            writer.write_batch(batch)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def progress(entries: Mapping[int, tuple[int, int]], oldest: int = 0) -> bytes:
    """A progress file: per segment how many bundles it has and which are done."""
    body = struct.pack("<8sHHHQI6x", b"QUIVSUB\0", 1, 32, 0, oldest, len(entries))
    for seq, (count, done) in sorted(entries.items()):
        words = -(-count // 64)
        body += struct.pack("<QIH", seq, count, words) + done.to_bytes(words * 8, "little")
    return body + struct.pack("<I", zlib.crc32(body))


def directory(
    segments: Mapping[int, bytes] | None = None,
    logs: Sequence[bytes] = (),
    *,
    cursor_at: int | None = None,
    subscribers: Mapping[str, bytes] | None = None,
    first_number: int = 1,
) -> Image:
    """A whole directory; the last of ``logs`` is the active one."""
    image = {f"segments/{seq:016}.qseg": data for seq, data in (segments or {}).items()}
    for number, data in enumerate(logs[:-1], first_number):
        image[f"wal/quiver.wal.{number}"] = data
    if logs:
        image["wal/quiver.wal"] = logs[-1]
    if cursor_at is not None:
        image["wal/quiver.wal.cursor"] = cursor(cursor_at)
    for name, data in (subscribers or {}).items():
        image[f"quiver.sub.{name}"] = data
    return image


# What comes out


def disk_of(image: Image) -> Disk:
    return Disk(MemoryDisk.from_image(image))


def dumped(image: Image) -> tuple[Dump, Disk]:
    """A dump of an image, and the disk it went to; the image itself must not change."""
    raw = MemoryDisk.from_image(image)
    out = Disk(MemoryDisk())
    result = dump(Disk(raw), out)
    assert raw.image() == image, "a dump must not change anything"
    return result, out


def batches_of(saved: Any, out: Disk) -> dict[int, pa.RecordBatch]:
    """A saved bundle's batches, read with plain Arrow."""
    found = {}
    for slot in saved.slots:
        with pa.ipc.open_stream(out.read(slot.file)) as reader:
            found[slot.slot] = reader.read_next_batch()
        assert found[slot.slot].num_rows == slot.rows
    return found


def dumped_numbers(image: Image) -> tuple[dict[tuple[int, int], int], Dump]:
    """Which :func:`numbered` bundles a dump gives, by ref."""
    result, out = dumped(image)
    return {s.ref: number_of(batches_of(s, out)[0]) for s in result.saved}, result


def opened(image: Image, **settings: Any) -> Store:
    """A store on a copy of an image."""
    config = Config.load(env={}, reserve=0, **settings)
    return Store(disk_of(dict(image)), config, where="mem", clock=ManualClock())


def opened_numbers(image: Image, **settings: Any) -> tuple[dict[tuple[int, int], int], Store]:
    """Which :func:`numbered` bundles an open store delivers to a new subscriber, by ref."""
    store = opened(image, **settings)
    found: dict[tuple[int, int], int] = {}
    for bundle in store.subscribe("checker", follow=False):
        (name,) = list(bundle)
        found[bundle.ref] = number_of(bundle[name])
        bundle.ack()
    return found, store
