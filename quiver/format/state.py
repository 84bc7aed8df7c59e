"""``quiver.state``: what must outlive the log files and segments it was learnt from.

The file is replaced as a whole, so it is a snapshot, never a log::

    0   magic            8   b"QUIVER\\0C"
    8   version          u16 1
    10  header_size      u16 40
    12  flags            u16 0
    14  zero             u16
    16  through          u64 every entry below this sequence is accounted for here
    24  last_ts          i64 newest ingestion time seen, ns
    32  json_len         u32
    36  window_len       u32
    40  json             what is small and seldom changes (see :class:`Checkpoint`)
    …   window           Arrow IPC stream: the idempotency window, oldest first
    -4  crc32            u32 over all bytes before it

The window (:mod:`quiver.format.keys`) is Arrow because it may hold 65,536 keys and is
written each time a log file goes; the rest is JSON because people read it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import astuple, dataclass, field
from typing import Any, Final

import pyarrow as pa

from quiver.errors import StateCorrupt, UnsupportedVersion
from quiver.format.crc import crc32
from quiver.format.keys import KeyRecord, WindowEncoder, decode_window

STATE_NAME: Final = "quiver.state"
_MAGIC: Final = b"QUIVER\0C"
_HEADER: Final = struct.Struct("<8sHHHHQqII")
assert _HEADER.size == 40
_CRC: Final = struct.Struct("<I")
_VERSION: Final = 1
MAX_STATE_BYTES: Final = 1 << 28
_UNREADABLE: Final = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    OverflowError,
    RecursionError,
    OSError,
    pa.ArrowException,
)
"""What JSON and Arrow raise for bytes that no writer of ours wrote."""


@dataclass(frozen=True, slots=True)
class AppRecord:
    """The last transaction that an app committed, and where it went."""

    app: str
    version: int
    first_segment: int
    segments: int
    bundles: int
    rows: int
    sequence: int
    ts_ns: int


@dataclass(frozen=True, slots=True)
class Loss:
    """One entry of the ledger: data that went before everyone had finished it."""

    segment_seq: int
    bundles: int
    nbytes: int
    reason: str
    at_ns: int
    subscribers: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Adoption:
    """A log written by the Rust crate on its way into segments: the refs are decided.

    Written before the first such segment and removed after the last, so that a crash
    in between goes on with the same refs instead of deciding again.
    """

    first_segment: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The contents of ``quiver.state``."""

    through: int = 0
    last_ts: int = 0
    slots: Mapping[str, int] = field(default_factory=dict)
    subscribers: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()
    loss_totals: Mapping[str, int] = field(default_factory=dict)
    adoption: Adoption | None = None
    window: tuple[KeyRecord, ...] = ()
    transactions: tuple[AppRecord, ...] = ()


def encode_state(state: Checkpoint, windows: WindowEncoder | None = None) -> bytes:
    """The file's bytes; whoever writes many in a row keeps ``windows`` for them."""
    document: dict[str, Any] = {
        "slots": dict(state.slots),
        "subscribers": list(state.subscribers),
        "losses": [
            [x.segment_seq, x.bundles, x.nbytes, x.reason, x.at_ns, dict(x.subscribers)]
            for x in state.losses
        ],
        "loss_totals": dict(state.loss_totals),
        "adoption": None
        if state.adoption is None
        else [state.adoption.first_segment, list(state.adoption.counts)],
    }
    if state.transactions:
        document["transactions"] = [list(astuple(record)) for record in state.transactions]
    text = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    window = (windows or WindowEncoder()).encode(state.window)
    header = _HEADER.pack(
        _MAGIC,
        _VERSION,
        _HEADER.size,
        0,
        0,
        state.through,
        state.last_ts,
        len(text),
        len(window),
    )
    body = header + text + window
    return body + _CRC.pack(crc32(body))


def decode_state(data: bytes) -> Checkpoint:
    """The values back, or :class:`StateCorrupt`: a checkpoint is never half believed."""
    if len(data) < _HEADER.size + _CRC.size:
        raise _damaged("it is cut short")
    magic, version, header_size, _, _, through, last_ts, json_len, window_len = _HEADER.unpack_from(
        data
    )
    if magic != _MAGIC:
        raise _damaged("it does not begin with its magic bytes")
    (stored,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    if crc32(memoryview(data)[: -_CRC.size]) != stored:
        raise _damaged("its checksum disagrees")
    if version != _VERSION:
        raise UnsupportedVersion(
            f"{STATE_NAME} has version {version}; this Quiver reads {_VERSION}.",
            advice="Open it with the Quiver that wrote it.",
            file=STATE_NAME,
        )
    if header_size < _HEADER.size or header_size + json_len + window_len + 4 != len(data):
        raise _damaged("its lengths disagree")
    text = data[header_size : header_size + json_len]
    window = data[header_size + json_len : header_size + json_len + window_len]
    try:
        document: dict[str, Any] = json.loads(text)
        if not _is_sound(document):
            raise ValueError("a value is not of its kind")
        adoption = document["adoption"]
        return Checkpoint(
            through=through,
            last_ts=last_ts,
            slots=document["slots"],
            subscribers=tuple(document["subscribers"]),
            losses=tuple(Loss(*row) for row in document["losses"]),
            loss_totals=document["loss_totals"],
            adoption=None if adoption is None else Adoption(adoption[0], tuple(adoption[1])),
            window=decode_window(window),
            transactions=tuple(AppRecord(*row) for row in document.get("transactions", ())),
        )
    except _UNREADABLE as error:
        raise _damaged(f"a part has a good checksum but can't be read ({error})") from None


def _is_sound(document: dict[str, Any]) -> bool:
    """Whether every value is of the kind that the rest of the store takes it for."""
    adoption = document["adoption"]
    return (
        _is_counts(document["slots"])
        and _is_counts(document["loss_totals"])
        and all(type(name) is str for name in document["subscribers"])
        and all(
            [type(value) for value in row[:5]] == [int, int, int, str, int] and _is_counts(row[5])
            for row in document["losses"]
        )
        and all(
            [type(value) for value in row] == [str, *[int] * 7]
            for row in document.get("transactions", ())
        )
        and (
            adoption is None
            or (type(adoption[0]) is int and all(type(count) is int for count in adoption[1]))
        )
    )


def _is_counts(value: object) -> bool:
    return isinstance(value, dict) and all(type(number) is int for number in value.values())


def _damaged(what: str) -> StateCorrupt:
    return StateCorrupt(
        f"the checkpoint {STATE_NAME} is damaged: {what}. Nothing was changed.",
        advice="See what is left: quiver verify …; go on without it: quiver repair …",
        file=STATE_NAME,
    )
