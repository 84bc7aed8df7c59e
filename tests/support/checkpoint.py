"""Checkpoints as 0.1.0 wrote them: version 1, rows as lists, the keys inside."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from quiver.format.crc import crc32
from quiver.format.keys import KeyRecord


def first_version(
    keys: Sequence[KeyRecord] = (), *, through: int = 0, last_ts: int = 0, **members: Any
) -> bytes:
    """The bytes of a ``quiver.state`` of version 1."""
    document = {
        "slots": {},
        "subscribers": ["a"],
        "losses": [],
        "loss_totals": {},
        "adoption": None,
    } | members
    text = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    window = _window(keys) if keys else b""
    header = struct.pack(
        "<8sHHHHQqII", b"QUIVER\0C", 1, 40, 0, 0, through, last_ts, len(text), len(window)
    )
    body = header + text + window
    return body + crc32(body).to_bytes(4, "little")


def _window(keys: Sequence[KeyRecord]) -> bytes:
    columns: dict[str, tuple[pa.DataType, list[Any]]] = {
        "key": (pa.string(), [one.key for one in keys]),
        "hash": (pa.binary(32), [one.content_hash for one in keys]),
        "segment_seq": (pa.uint64(), [one.ref[0] for one in keys]),
        "bundle_index": (pa.uint32(), [one.ref[1] for one in keys]),
        "sequence": (pa.uint64(), [one.sequence for one in keys]),
        "ts": (pa.int64(), [one.ts_ns for one in keys]),
    }
    schema = pa.schema(
        [pa.field(name, kind, nullable=False) for name, (kind, _) in columns.items()]
    )
    rows = pa.record_batch([pa.array(v, k) for k, v in columns.values()], schema=schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        writer.write_batch(rows)
    return bytes(sink.getvalue())
