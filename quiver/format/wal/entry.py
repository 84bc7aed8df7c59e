"""The entries of a log file.

Every entry is framed the same way, little-endian::

    entry_len  u32   length of the body, at most 256 MiB
    body
    crc32      u32   CRC-32 of the file's salt (4 bytes) and the body

and the bodies we write all begin alike::

    0   type           u8
    1   ingestion_ts   i64  ns since the epoch
    9   sequence       u64  contiguous over all entries, in and across files
    17  slot_bitmap    u64  bit n set: slot n is there
    25  marker         4    b"\\xb5QV1": finds entries again behind damage
    29  synced_before  u64  all entries below it were on disk when this one was made
    37  store_ts       i64  store time, ns

Version 1, which is read and no longer written, has no ``store_ts``, and its checksum is
that of the body alone.  The salt is in the file's head (:mod:`quiver.format.wal.header`):
it is new with every file, so bytes that were an entry once, or that a producer laid out
like one, are not taken for an entry of this file.

``synced_before`` is what tells damage from a torn tail: once an entry says that sequence
7 was synced, a bad entry 7 can't be blamed on a crash.  It costs nothing, since every
entry carries it anyway.

====  ==========  ==================================================================
type  name        what follows the 45 bytes
====  ==========  ==================================================================
64    bundle      ``segment_seq u64, bundle_index u32, ext_len u32``, ext, slot blocks
65    slot name   ``slot_id u16, name_len u16``, name
66    watermark   nothing: it is there for its ``synced_before``
67    seal        nothing: the log was closed cleanly
68    commit      a transaction: see :mod:`quiver.format.wal.commit`
====  ==========  ==================================================================

A slot block is ``slot_id u16, fingerprint 32, row_count u32, payload_len u32``, then one
Arrow IPC stream.  We write them by ascending slot.  *ext* is a list of ``tag u8, len u32,
bytes``: 1 key (UTF-8), 2 content hash (32), 3 attributes (JSON object of strings), 4
event-time range (two i64), 5 producer (``seq u64, epoch u64``, name in UTF-8), 128 the names of
its slots, each as in a slot-name entry.  An unknown tag below 128 changes what the bundle means,
so the log is refused; others are ignored.

A slot's name is in an entry of its own before the first bundle that uses it, and again in every
bundle: damage to that one entry must not cost the others their names.

Type 0 is the Rust crate's bundle: the first 25 bytes, then slot blocks in any order.
A log with an entry of any other type is refused: a newer version wrote it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa

from quiver.errors import InvalidBundle, LimitExceeded, UnsupportedVersion, WalCorrupt
from quiver.format.arrow.message import END_OF_STREAM
from quiver.format.crc import Bytes, crc32, crc32_combine
from quiver.format.record import (
    FINGERPRINT_SIZE,
    NO_ATTRIBUTES,
    EncodedSlot,
    ProducerStamp,
)
from quiver.ids import MAX_SLOTS, BundleRef

FOREIGN_BUNDLE: Final = 0
BUNDLE: Final = 64
SLOT_NAME: Final = 65
WATERMARK: Final = 66
SEAL: Final = 67
COMMIT: Final = 68
OWN_KINDS: Final = frozenset({BUNDLE, SLOT_NAME, WATERMARK, SEAL, COMMIT})

MARKER: Final = b"\xb5QV1"
MAX_BODY: Final = 256 * 1024 * 1024
MAX_SLOT_NAME: Final = 1024
MAX_PRODUCER_NAME: Final = 128
SMALL_PIECE: Final = 4096
"""Pieces below this are joined before they are written: a copy is cheaper than an iovec."""

FOREIGN_PREFIX_SIZE: Final = 25
PREFIX_SIZE: Final = 45
V1_PREFIX_SIZE: Final = 37
FRAME: Final = 8
"""Bytes of an entry besides its body."""

_FOREIGN_PREFIX = struct.Struct("<BqQQ")
_PREFIX = struct.Struct("<BqQQ4sQq")
_V1_PREFIX = struct.Struct("<BqQQ4sQ")
_BUNDLE_HEAD = struct.Struct("<BqQQ4sQqQII")
_BUNDLE_TAIL = struct.Struct("<QII")
_SLOT = struct.Struct("<H32sII")
_EXT = struct.Struct("<BI")
_NAME = struct.Struct("<HH")
_RANGE = struct.Struct("<qq")
_U32 = struct.Struct("<I")
assert _FOREIGN_PREFIX.size == FOREIGN_PREFIX_SIZE
assert _PREFIX.size == PREFIX_SIZE
assert _V1_PREFIX.size == V1_PREFIX_SIZE
assert _BUNDLE_HEAD.size == PREFIX_SIZE + _BUNDLE_TAIL.size
SLOT_HEAD_SIZE: Final = _SLOT.size

_KEY, _HASH, _ATTRIBUTES, _EVENT_TIME, _PRODUCER = 1, 2, 3, 4, 5
_TAGS: Final = frozenset({_KEY, _HASH, _ATTRIBUTES, _EVENT_TIME, _PRODUCER})
OPTIONAL_TAGS: Final = 128
"""From here on a tag may be ignored by who doesn't know it."""
_SLOT_NAMES: Final = 128
_STAMP = struct.Struct("<QQ")


class Framing(NamedTuple):
    """How the entries of one file are laid out and summed, as its head says.

    ``version`` is 0 for a file of the Rust crate.  ``seed`` is the CRC-32 of the salt, which
    every entry's checksum goes on from; 0 where there is no salt.
    """

    version: int
    seed: int = 0

    @property
    def foreign(self) -> bool:
        return self.version == 0

    @property
    def prefix_size(self) -> int:
        """What every body begins with."""
        return (FOREIGN_PREFIX_SIZE, V1_PREFIX_SIZE, PREFIX_SIZE)[self.version]

    def store_ts(self, body: memoryview) -> int | None:
        """The store time of an entry; ``None`` where it was not recorded yet."""
        if self.version < 2:
            return None
        return int.from_bytes(body[V1_PREFIX_SIZE:PREFIX_SIZE], "little", signed=True)


FOREIGN_FRAMING: Final = Framing(0)
V1_FRAMING: Final = Framing(1)


class BundleExtras(NamedTuple):
    """What a producer may say about a bundle besides its rows."""

    key: str | None = None
    content_hash: bytes | None = None
    attributes: Mapping[str, str] = NO_ATTRIBUTES
    event_time: tuple[int, int] | None = None
    producer: ProducerStamp | None = None

    def encode(self) -> bytes:
        """The bytes of *ext*; none at all for a bundle that says nothing."""
        parts: list[bytes] = []
        if self.key is not None:
            parts.append(_tagged(_KEY, self.key.encode()))
        if self.content_hash is not None:
            parts.append(_tagged(_HASH, self.content_hash))
        if self.attributes:
            parts.append(_tagged(_ATTRIBUTES, _json(self.attributes)))
        if self.event_time is not None:
            parts.append(_tagged(_EVENT_TIME, _RANGE.pack(*self.event_time)))
        if self.producer is not None:
            parts.append(_tagged(_PRODUCER, _stamp(self.producer)))
        return b"".join(parts)


NO_EXTRAS: Final = BundleExtras()


_to_json: Final = json.JSONEncoder(ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode


def _tagged(tag: int, data: bytes) -> bytes:
    return _EXT.pack(tag, len(data)) + data


def _stamp(producer: ProducerStamp) -> bytes:
    name, seq, epoch = producer
    if not 1 <= len(name) <= MAX_PRODUCER_NAME:
        raise LimitExceeded("characters of a producer's name", len(name), MAX_PRODUCER_NAME)
    return _STAMP.pack(seq, epoch) + name.encode()


def _json(attributes: Mapping[str, str]) -> bytes:
    return _to_json(dict(attributes)).encode()


class SlotBlock(NamedTuple):
    """One slot as the log has it; ``payload`` is a slice of the entry, not a copy."""

    slot: int
    fingerprint: bytes
    rows: int
    payload: memoryview


class BundleEntry(NamedTuple):
    """A decoded bundle. ``ref`` and ``synced_before`` are ``None`` in the Rust crate's, and
    ``store_ts_ns`` in version 1 too."""

    kind: int
    ingestion_ts_ns: int
    sequence: int
    synced_before: int | None
    ref: BundleRef | None
    extras: BundleExtras
    slots: tuple[SlotBlock, ...]
    store_ts_ns: int | None


class Large(NamedTuple):
    """A piece that is written from where it lies; its checksum was taken before any lock."""

    data: Bytes
    crc: int
    length: int


class PreparedBody:
    """The slot blocks of a bundle: all that needs no sequence yet.

    ``small`` and ``large`` pieces take turns, beginning and ending with a small one.
    """

    __slots__ = ("bitmap", "large", "length", "small")

    def __init__(self, small: list[bytes], large: list[Large], length: int, bitmap: int) -> None:
        self.small = small
        self.large = large
        self.length = length
        self.bitmap = bitmap

    def entry_size(self, ext: bytes = b"") -> int:
        """Bytes the whole entry takes in the file."""
        return FRAME + _BUNDLE_HEAD.size + len(ext) + self.length


def prepare_bundle(slots: Sequence[EncodedSlot]) -> PreparedBody:
    """Lay out the slot blocks and sum what is large, before any lock is held."""
    if len(slots) > MAX_SLOTS:
        raise LimitExceeded("slots in a bundle", len(slots), MAX_SLOTS)
    if len(slots) > 1:
        slots = sorted(slots, key=lambda slot: slot.slot)
    small: list[bytes] = []
    large: list[Large] = []
    between = b""
    length = bitmap = 0
    for number, fingerprint, batch in slots:
        payload_len = batch.payload_len
        _check_slot(number, fingerprint, bitmap)
        bitmap |= 1 << number
        length += SLOT_HEAD_SIZE + payload_len
        if length > MAX_BODY - _BUNDLE_HEAD.size:
            raise LimitExceeded("bytes of a bundle in the log", length, MAX_BODY)
        between += _SLOT.pack(number, fingerprint, batch.rows, payload_len) + batch.schema.message
        if batch.dictionaries.size:
            between = _lay(batch.dictionaries, crc32(batch.dictionaries), between, small, large)
        between = _lay(batch.batch, batch.batch_crc, between, small, large) + END_OF_STREAM
    small.append(between)
    return PreparedBody(small, large, length, bitmap)


def _lay(
    data: pa.Buffer, crc: int, between: bytes, small: list[bytes], large: list[Large]
) -> bytes:
    """Put a piece behind ``between``; what the next small piece begins with."""
    size = data.size
    if size < SMALL_PIECE:
        return between + bytes(data)
    small.append(between)
    large.append(Large(data, crc, size))
    return b""


def _check_slot(number: int, fingerprint: bytes, bitmap: int) -> None:
    if not 0 <= number < MAX_SLOTS:
        raise LimitExceeded("slot id", number, MAX_SLOTS - 1)
    if bitmap >> number & 1:
        raise InvalidBundle(f"slot {number} is in the bundle twice.", slot=number)
    if len(fingerprint) != FINGERPRINT_SIZE:
        raise InvalidBundle(f"the fingerprint of slot {number} is not 32 bytes long.", slot=number)


def seal_bundle(
    prepared: PreparedBody,
    sequence: int,
    synced_before: int,
    ref: BundleRef,
    ts: int,
    ext: bytes = b"",
    *,
    store_ts: int,
    seed: int,
) -> list[Bytes]:
    """The whole entry in pieces, in order; :meth:`PreparedBody.entry_size` is their length.

    Called under the ingest lock, so it only packs: what is large was summed before.  ``seed``
    is the CRC-32 of the salt of the file that the entry goes to.
    """
    body_len = _BUNDLE_HEAD.size + len(ext) + prepared.length
    if body_len > MAX_BODY:
        raise LimitExceeded("bytes of a bundle in the log", body_len, MAX_BODY)
    segment, index = ref
    small = prepared.small
    last = _BUNDLE_HEAD.pack(
        BUNDLE,
        ts,
        sequence,
        prepared.bitmap,
        MARKER,
        synced_before,
        store_ts,
        segment,
        index,
        len(ext),
    )
    last += ext + small[0]
    crc = crc32(last, seed)
    last = _U32.pack(body_len) + last
    pieces: list[Bytes] = []
    for at, (data, data_crc, length) in enumerate(prepared.large, 1):
        pieces += (last, data)
        last = small[at]
        crc = crc32(last, crc32_combine(crc, data_crc, length))
    pieces.append(last + _U32.pack(crc))
    return pieces


def encode_control(
    kind: int,
    payload: bytes,
    *,
    sequence: int,
    synced_before: int,
    ts: int,
    store_ts: int,
    seed: int,
) -> bytes:
    """A whole entry of one of the small kinds."""
    body = _PREFIX.pack(kind, ts, sequence, 0, MARKER, synced_before, store_ts) + payload
    return _U32.pack(len(body)) + body + _U32.pack(crc32(body, seed))


def control_size(payload: bytes = b"") -> int:
    """Bytes such an entry takes in the file."""
    return FRAME + PREFIX_SIZE + len(payload)


def encode_slot_name(slot: int, name: str) -> bytes:
    """What a slot-name entry carries."""
    data = name.encode()
    if not 0 <= slot < MAX_SLOTS:
        raise LimitExceeded("slot id", slot, MAX_SLOTS - 1)
    if len(data) > MAX_SLOT_NAME:
        raise LimitExceeded("bytes of a slot name", len(data), MAX_SLOT_NAME)
    return _NAME.pack(slot, len(data)) + data


def encode_slot_names(names: Mapping[int, str]) -> bytes:
    """What *ext* says of the slots' names; nothing for slots that have none."""
    parts = [encode_slot_name(slot, name) for slot, name in sorted(names.items())]
    return _tagged(_SLOT_NAMES, b"".join(parts)) if parts else b""


# Reading.  The frame and its checksum have been checked; the structure has not.


def decode_slot_name(body: memoryview, framing: Framing) -> tuple[int, str]:
    """Slot id and name from the body of a slot-name entry."""
    try:
        slot, length = _NAME.unpack_from(body, framing.prefix_size)
        data = bytes(body[framing.prefix_size + _NAME.size :])
        if len(data) != length or slot >= MAX_SLOTS:
            raise _malformed("a slot name", body)
        return slot, data.decode()
    except (struct.error, UnicodeDecodeError):
        raise _malformed("a slot name", body) from None


def slot_bitmap(body: memoryview) -> int:
    """Which slots a bundle has."""
    return int.from_bytes(body[17:25], "little")


def decode_slot_names(body: memoryview, framing: Framing) -> dict[int, str]:
    """The names of a bundle's slots, as far as they have some and it carries them."""
    try:
        return dict(_slot_names(_ext(body, framing)))
    except (struct.error, ValueError):
        raise _malformed("a bundle", body) from None


def _ext(body: memoryview, framing: Framing) -> memoryview:
    at = framing.prefix_size + _BUNDLE_TAIL.size
    (ext_len,) = _U32.unpack_from(body, at - _U32.size)
    return body[at : at + ext_len]


def _slot_names(ext: memoryview) -> Iterator[tuple[int, str]]:
    for tag, data in _tags(ext):
        offset = 0
        while tag == _SLOT_NAMES and offset < len(data):
            slot, length = _NAME.unpack_from(data, offset)
            offset += _NAME.size + length
            if offset > len(data) or slot >= MAX_SLOTS:
                raise ValueError("a slot name runs past the end")
            yield slot, data[offset - length : offset].decode()


def decode_bundle(body: memoryview, framing: Framing) -> BundleEntry:
    """A bundle of ours or of the Rust crate; the payloads are slices of ``body``."""
    try:
        if framing.foreign:
            kind, ts, sequence, bitmap = _FOREIGN_PREFIX.unpack_from(body)
            slots = _decode_slots(body, FOREIGN_PREFIX_SIZE, bitmap)
            return BundleEntry(kind, ts, sequence, None, None, NO_EXTRAS, slots, None)
        kind, ts, sequence, bitmap, _, synced = _V1_PREFIX.unpack_from(body)
        segment, index, ext_len = _BUNDLE_TAIL.unpack_from(body, framing.prefix_size)
        start = framing.prefix_size + _BUNDLE_TAIL.size
        extras = decode_extras(body[start : start + ext_len]) if ext_len else NO_EXTRAS
        slots = _decode_slots(body, start + ext_len, bitmap)
    except (struct.error, ValueError):
        raise _malformed("a bundle", body) from None
    ref, store_ts = BundleRef(segment, index), framing.store_ts(body)
    return BundleEntry(kind, ts, sequence, synced, ref, extras, slots, store_ts)


def _decode_slots(body: memoryview, offset: int, bitmap: int) -> tuple[SlotBlock, ...]:
    slots: list[SlotBlock] = []
    seen = 0
    for _ in range(bitmap.bit_count()):
        slot, fingerprint, rows, length = _SLOT.unpack_from(body, offset)
        start = offset + SLOT_HEAD_SIZE
        offset = start + length
        if slot >= MAX_SLOTS or seen >> slot & 1 or offset > len(body):
            raise ValueError("a slot block is out of bounds")
        seen |= 1 << slot
        slots.append(SlotBlock(slot, fingerprint, rows, body[start:offset]))
    if offset != len(body):
        raise ValueError("bytes behind the last slot block")
    return tuple(slots)


def unknown_tag(body: memoryview, framing: Framing) -> int | None:
    """The first tag of a bundle of ours that must be known and isn't; ``None`` without one."""
    try:
        for tag, _ in _tags(_ext(body, framing)):
            if tag not in _TAGS and tag < OPTIONAL_TAGS:
                return tag
    except (struct.error, ValueError):
        pass  # malformed: decoding says so
    return None


def _tags(data: memoryview) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset < len(data):
        tag, length = _EXT.unpack_from(data, offset)
        start = offset + _EXT.size
        offset = start + length
        if offset > len(data):
            raise ValueError("a tag runs past the end")
        yield tag, bytes(data[start:offset])


def decode_extras(data: memoryview) -> BundleExtras:
    """Read *ext*; ``ValueError`` if it is not one."""
    found: dict[str, Any] = {}
    for tag, value in _tags(data):
        if tag == _KEY:
            found["key"] = value.decode()
        elif tag == _HASH:
            found["content_hash"] = value
        elif tag == _ATTRIBUTES:
            found["attributes"] = _attributes(value)
        elif tag == _EVENT_TIME:
            found["event_time"] = _RANGE.unpack(value)
        elif tag == _PRODUCER:
            found["producer"] = _producer(value)
        elif tag < OPTIONAL_TAGS:
            raise UnsupportedVersion(f"tag {tag} of a bundle is of a newer version.", tag=tag)
    return BundleExtras(**found)


def _producer(data: bytes) -> ProducerStamp:
    seq, epoch = _STAMP.unpack_from(data)
    name = data[_STAMP.size :].decode()
    if not 1 <= len(name) <= MAX_PRODUCER_NAME:
        raise ValueError("a producer's name is too short or too long")
    return ProducerStamp(name, seq, epoch)


def _attributes(data: bytes) -> dict[str, str]:
    value = json.loads(data)
    if not isinstance(value, dict) or not all(isinstance(v, str) for v in value.values()):
        raise ValueError("attributes are not an object of strings")
    return value


def _malformed(what: str, body: memoryview) -> WalCorrupt:
    sequence = int.from_bytes(body[9:17], "little")
    return WalCorrupt(
        f"{what} with sequence {sequence:,} passes its checksum and makes no sense.",
        advice="It was not written by Quiver as it is: see quiver verify.",
        sequence=sequence,
    )
