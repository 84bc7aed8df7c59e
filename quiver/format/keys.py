"""Key runs: idempotency keys in immutable files ``keys/{first:020}-{last:020}``.

A run holds the keys of a range of sequences, named by the first and the last::

    0   magic        8   b"QUIVER\\0K"
    8   version      u16 1
    10  header_size  u16 16
    12  count        u32 keys in the run
    16  stream       Arrow IPC stream, zstd: see :data:`_SCHEMA`; unknown columns are ignored
    -4  crc32        u32 over all bytes before it

A run is durable under its name before a checkpoint lists it, and is deleted after a checkpoint
no longer does.  Checkpoints of version 1 hold the same stream, without head and compression,
as their ``window``.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final, NamedTuple

import pyarrow as pa

from quiver.errors import StateCorrupt, UnsupportedVersion, check_memory
from quiver.format.crc import crc32
from quiver.ids import BundleRef

KEYS: Final = "keys"
"""The directory of the runs."""

MAGIC: Final = b"QUIVER\0K"
VERSION: Final = 1
_HEADER: Final = struct.Struct("<8sHHI")
assert _HEADER.size == 16
_CRC: Final = struct.Struct("<I")
_NAME: Final = re.compile(r"([0-9]{20})-([0-9]{20})")
_SCHEMA: Final = pa.schema(
    [
        pa.field("key", pa.string(), nullable=False),
        pa.field("hash", pa.binary(32), nullable=False),
        pa.field("segment_seq", pa.uint64(), nullable=False),
        pa.field("bundle_index", pa.uint32(), nullable=False),
        pa.field("sequence", pa.uint64(), nullable=False),
        pa.field("ts", pa.int64(), nullable=False),
    ]
)
_OPTIONS: Final = pa.ipc.IpcWriteOptions(compression="zstd")


class KeyRecord(NamedTuple):
    """One remembered idempotency key."""

    key: str
    content_hash: bytes
    ref: BundleRef
    sequence: int
    ts_ns: int


sequence_of: Final = attrgetter("sequence")


@dataclass(frozen=True, slots=True)
class KeyRun:
    """A run as the checkpoint lists it: the sequences of its first and last key."""

    first: int
    last: int
    count: int

    @property
    def name(self) -> str:
        return f"{self.first:020}-{self.last:020}"

    @property
    def path(self) -> str:
        return f"{KEYS}/{self.name}"

    @classmethod
    def of(cls, records: Sequence[KeyRecord]) -> KeyRun:
        """The run of these keys, which are in the order of their sequences."""
        return cls(records[0].sequence, records[-1].sequence, len(records))

    @classmethod
    def listed(cls, name: str, count: int) -> KeyRun:
        """A run by its file name; ``ValueError`` for any other name."""
        found = _NAME.fullmatch(name)
        if found is None or int(found[1]) > int(found[2]):
            raise ValueError(f"{name!r} is not the name of a key run")
        return cls(int(found[1]), int(found[2]), count)


def encode_run(records: Sequence[KeyRecord]) -> bytes:
    """The bytes of a run; ``records`` are in the order of their sequences."""
    columns = [
        pa.array([one.key for one in records], pa.string()),
        pa.array([one.content_hash for one in records], pa.binary(32)),
        pa.array([one.ref[0] for one in records], pa.uint64()),
        pa.array([one.ref[1] for one in records], pa.uint32()),
        pa.array([one.sequence for one in records], pa.uint64()),
        pa.array([one.ts_ns for one in records], pa.int64()),
    ]
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, _SCHEMA, options=_OPTIONS) as writer:
        writer.write_batch(pa.record_batch(columns, schema=_SCHEMA))
    header = _HEADER.pack(MAGIC, VERSION, _HEADER.size, len(records))
    body = header + bytes(sink.getvalue())
    return body + _CRC.pack(crc32(body))


def decode_run(data: bytes, run: KeyRun) -> tuple[KeyRecord, ...]:
    """The keys of a run that the checkpoint lists, or :class:`StateCorrupt`."""
    if len(data) < _HEADER.size + _CRC.size or not data.startswith(MAGIC):
        raise damaged_run(run, "is cut short or does not begin with its magic bytes")
    (stored,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    if crc32(memoryview(data)[: -_CRC.size]) != stored:
        raise damaged_run(run, "does not match its checksum")
    _, version, header_size, count = _HEADER.unpack_from(data)
    if version != VERSION:
        raise UnsupportedVersion(
            f"the key run {run.path} has version {version}; this Quiver reads {VERSION}.",
            advice="Open the store with the Quiver that wrote it, or a newer one.",
            file=run.path,
        )
    try:
        records = decode_keys(data[header_size : -_CRC.size])
    except (ValueError, OSError, pa.ArrowException) as error:
        check_memory(error)
        raise damaged_run(run, f"has a good checksum but can't be read ({error})") from None
    if not records or KeyRun.of(records) != run or count != run.count:
        raise damaged_run(run, "holds other keys than its name and the checkpoint say")
    return records


def decode_named_run(data: bytes, name: str) -> tuple[KeyRecord, ...]:
    """The keys of a run that nothing lists; ``ValueError`` if that is no name of a run."""
    run = KeyRun.listed(name, 0)
    if len(data) < _HEADER.size:
        raise damaged_run(run, "is cut short")
    *_, count = _HEADER.unpack_from(data)
    return decode_run(data, replace(run, count=count))


def decode_keys(data: bytes) -> tuple[KeyRecord, ...]:
    """The keys of an Arrow stream; raises what Arrow raises, or ``ValueError``."""
    if not data:
        return ()
    table = pa.ipc.open_stream(data).read_all()
    if not set(_SCHEMA.names) <= set(table.schema.names):
        raise ValueError("a column is missing")
    table = table.select(_SCHEMA.names)
    if table.schema != _SCHEMA or any(column.null_count for column in table.columns):
        raise ValueError("a column is of another type")
    table.validate(full=True)  # Arrow would follow an offset wherever it leads
    columns = [table.column(name).to_pylist() for name in _SCHEMA.names]
    return tuple(
        KeyRecord(key, digest, BundleRef(segment, index), sequence, ts)
        for key, digest, segment, index, sequence, ts in zip(*columns, strict=True)
    )


def damaged_run(run: KeyRun, what: str) -> StateCorrupt:
    """The error for a run that the checkpoint lists and that can't be used."""
    return StateCorrupt(
        f"the key run {run.path} {what}. Nothing was changed.",
        advice="See what is left: quiver verify DIR. Go on without its keys: quiver repair DIR",
        file=run.path,
    )
