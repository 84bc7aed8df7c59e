"""The log entry that commits a transaction (type 68), behind the usual 45 bytes::

    end_segment  u64   behind the last segment: they are [end - count, end)
    count        u32   segments; 0 for a transaction without a bundle
    version      u64
    app_len      u16
    app                UTF-8
    slots_len    u16
    slots              JSON list of strings, sorted: the slots it is about; empty: all
    count times:
      stage_id   16    the staged file that becomes this segment …
      number     u32   … is ``stages/<stage_id in hex>-<number>.qstage``
      length     u64   its bytes, without what is appended when it becomes a segment
      crc32      u32   the checksum in its trailer
      bundles    u32
      rows       u64
      nbytes     u64   payload

Once it is durable, so is the transaction.  All its bundles have this entry's sequence and
time.  ``end_segment`` stands where a bundle's entry has its segment, so reading a log finds
out at a glance which segments its files are still needed for.

A log of version 1 has no ``slots``: its transactions are about all of them.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from quiver.errors import LimitExceeded, WalCorrupt
from quiver.format.segment.stage import ID_SIZE, Transaction, stage_path
from quiver.format.wal.entry import Framing

MAX_SEGMENTS: Final = 1_000_000
"""Of one transaction: what its entry can hold, with room to spare."""
MAX_SLOTS_BYTES: Final = 0xFFFF

_PREFIX = struct.Struct("<xqQ")
_HEAD = struct.Struct("<QIQH")
_LENGTH = struct.Struct("<H")
_SEGMENT = struct.Struct("<16sIQIIQQ")
assert ID_SIZE == 16


@dataclass(frozen=True, slots=True)
class CommittedFile:
    """A staged file that becomes a segment."""

    stage_id: bytes
    number: int
    length: int
    crc: int
    bundles: int
    rows: int
    nbytes: int

    @property
    def path(self) -> str:
        """Where it lies until then."""
        return stage_path(self.stage_id, self.number)


@dataclass(frozen=True, slots=True)
class Commit:
    """A transaction that was committed, or is about to be."""

    app: str
    version: int
    sequence: int
    ts: int
    first_segment: int
    files: tuple[CommittedFile, ...]
    slots: tuple[str, ...] = ()
    """The slots it is about, sorted; none named: all of them."""
    store_ts: int | None = None
    """Store time; ``None`` in logs that don't record it."""

    @property
    def aged_from_ns(self) -> int:
        """What its age counts from: store time, or where none was recorded ingestion time."""
        return self.ts if self.store_ts is None else self.store_ts

    @property
    def transaction(self) -> Transaction:
        return Transaction(self.app, self.version)

    @property
    def end_segment(self) -> int:
        return self.first_segment + len(self.files)

    @property
    def segments(self) -> list[tuple[int, CommittedFile]]:
        """Each segment's number, with the file it is made from."""
        return list(enumerate(self.files, start=self.first_segment))

    @property
    def bundles(self) -> int:
        return sum(file.bundles for file in self.files)

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


def encode_commit(
    app: str,
    version: int,
    first: int,
    files: Sequence[CommittedFile],
    slots: Sequence[str] = (),
) -> bytes:
    """What the entry carries."""
    if len(files) > MAX_SEGMENTS:
        raise LimitExceeded("segments of a transaction", len(files), MAX_SEGMENTS)
    name = app.encode()
    named = json.dumps(sorted(slots), ensure_ascii=False, separators=(",", ":")).encode()
    if len(named) > MAX_SLOTS_BYTES:
        raise LimitExceeded("bytes of a transaction's slots", len(named), MAX_SLOTS_BYTES)
    head = _HEAD.pack(first + len(files), len(files), version, len(name))
    return (
        head
        + name
        + _LENGTH.pack(len(named))
        + named
        + b"".join(
            _SEGMENT.pack(f.stage_id, f.number, f.length, f.crc, f.bundles, f.rows, f.nbytes)
            for f in files
        )
    )


def decode_commit(body: memoryview, framing: Framing) -> Commit:
    """A commit from the body of its entry, whose checksum has been checked."""
    try:
        ts, sequence = _PREFIX.unpack_from(body)
        end, count, version, length = _HEAD.unpack_from(body, framing.prefix_size)
        start = framing.prefix_size + _HEAD.size
        app = bytes(body[start : start + length]).decode()
        slots: tuple[str, ...] = ()
        rest = body[start + length :]
        if framing.version > 1:
            slots, rest = _slots(rest)
        if len(rest) != count * _SEGMENT.size or end < count:
            raise ValueError("its lengths disagree")
        files = tuple(CommittedFile(*fields) for fields in _SEGMENT.iter_unpack(rest))
    except (struct.error, ValueError):
        sequence = int.from_bytes(body[9:17], "little")
        raise WalCorrupt(
            f"a commit with sequence {sequence:,} passes its checksum and makes no sense.",
            advice="It was not written by Quiver as it is: see quiver verify.",
            sequence=sequence,
        ) from None
    return Commit(app, version, sequence, ts, end - count, files, slots, framing.store_ts(body))


def _slots(data: memoryview) -> tuple[tuple[str, ...], memoryview]:
    """The slots a commit names, and what follows them."""
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + length
    if end > len(data):
        raise ValueError("its slots run past the end")
    found = json.loads(bytes(data[_LENGTH.size : end]))
    if not isinstance(found, list) or not all(isinstance(slot, str) for slot in found):
        raise ValueError("its slots are not a list of names")
    return tuple(found), data[end:]
