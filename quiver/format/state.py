"""``quiver.state``: what must outlive the log files and segments it was learnt from.

The file is replaced as a whole, so it is a snapshot, never a log::

    0   magic            8   b"QUIVER\\0C"
    8   version          u16 2; 1 is read
    10  header_size      u16 40
    12  flags            u16 0
    14  zero             u16
    16  through          u64 every entry below this sequence is accounted for here
    24  last_ts          i64 newest ingestion time seen, ns
    32  json_len         u32
    36  window_len       u32 0; in version 1 the length of the idempotency window
    40  json             see :class:`Checkpoint`
    …   window           version 1 only: Arrow IPC stream of the keys, oldest first
    -4  crc32            u32 over all bytes before it

It stays small whatever the store holds: idempotency keys are in files of their own
(:mod:`quiver.format.keys`), which it lists.

What a later version adds needs no new number: members that a reader doesn't know are ignored,
unless ``needs`` names them; a reader that doesn't know one of those names refuses the file.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple, TypeVar

import pyarrow as pa

from quiver.errors import StateCorrupt, UnsupportedVersion, check_memory
from quiver.format.crc import crc32
from quiver.format.keys import KeyRecord, KeyRun, decode_keys

STATE_NAME: Final = "quiver.state"
UUID_SIZE: Final = 16
_MAGIC: Final = b"QUIVER\0C"
_HEADER: Final = struct.Struct("<8sHHHHQqII")
assert _HEADER.size == 40
_CRC: Final = struct.Struct("<I")
_VERSION: Final = 2
_FIRST_VERSION: Final = 1
MAX_COUNTS: Final = 10_000
"""Segments whose number of bundles is kept: the newest. It bounds the size of the file."""
_UNDERSTOOD: Final[frozenset[str]] = frozenset()
"""Names that ``needs`` may hold. Version 2 began with none."""
_UNREADABLE: Final = (
    ValueError,
    KeyError,
    TypeError,
    IndexError,
    AttributeError,
    OverflowError,
    RecursionError,
    OSError,
    pa.ArrowException,
)
"""What JSON and Arrow raise for bytes that no writer of ours wrote."""

T = TypeVar("T")


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
    slots: tuple[str, ...] = ()
    """The slots that the commit wrote; none: all, which is what commits of version 1 mean."""
    versions: tuple[int, ...] = ()
    """Older versions that are known to be committed."""


class Ground(StrEnum):
    """Why a policy deletes a segment: the reason in the ledger, and of the eviction counter."""

    TIME = "time"
    STEADY = "steady"
    SIZE = "size"


REJECTED: Final = "rejected"
"""The reason of a row for bundles that a subscriber refused."""


@dataclass(frozen=True, slots=True)
class Loss:
    """One row of the ledger: bundles that a subscriber did not get, or refused.

    Deleted or damaged while it needed them, or rejected by it.  Several rows may exist for one
    segment.
    """

    segment_seq: int
    bundles: int
    """Bundles that some subscriber still needed, each counted once."""
    nbytes: int
    reason: str
    at_ns: int
    subscribers: Mapping[str, int]
    """What each subscriber had not finished."""
    indexes: tuple[tuple[int, int], ...] | None = None
    """Which bundles of the segment, as half-open ranges of indexes; None: all of them.
    Empty: nothing tells which ones, and not all."""
    exact: bool = True
    """False: ``bundles`` is an upper bound."""
    sequence: int | None = None
    """Where nothing tells which bundles: the first sequence of the log's damaged stretch."""

    @property
    def is_reject(self) -> bool:
        """Whether a subscriber refused the bundles: it was given them, so they are not lost."""
        return self.reason == REJECTED


class LostRefs(NamedTuple):
    """Bundles that damage took and that no row of the ledger names any more: these indexes of
    each of these segments. Both ranges are half open."""

    segments: tuple[int, int]
    indexes: tuple[int, int]


def index_ranges(bits: int) -> tuple[tuple[int, int], ...]:
    """The bundles in a bitmap, bundle 0 in the lowest bit, as half-open ranges of indexes."""
    ranges: list[tuple[int, int]] = []
    end = 0
    while bits:
        gap = (bits & -bits).bit_length() - 1
        bits >>= gap
        count = (bits ^ (bits + 1)).bit_length() - 1
        bits >>= count
        ranges.append((end + gap, end + gap + count))
        end += gap + count
    return tuple(ranges)


@dataclass(frozen=True, slots=True)
class Adoption:
    """A log written by the Rust crate on its way into segments: the refs are decided.

    Written before the first such segment and removed after the last, so that a crash
    in between goes on with the same refs instead of deciding again.
    """

    first_segment: int
    counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Gap:
    """Numbers that were never given out: a restore begins behind those its source may have used.

    Both ranges are half open.  Nothing in them is missing, and nothing will be in them.
    """

    sequences: tuple[int, int]
    segments: tuple[int, int]
    reason: str


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The contents of ``quiver.state``."""

    through: int = 0
    last_ts: int = 0
    uuid: str = ""
    """Names the store for life; empty only in version 1."""
    store_time: Mapping[str, int] = field(default_factory=dict)
    slots: Mapping[str, int] = field(default_factory=dict)
    subscribers: tuple[str, ...] = ()
    losses: tuple[Loss, ...] = ()
    loss_totals: Mapping[str, int] = field(default_factory=dict)
    older_losses: tuple[LostRefs, ...] = ()
    adoption: Adoption | None = None
    transactions: tuple[AppRecord, ...] = ()
    keys: tuple[KeyRun, ...] = ()
    """The key runs, oldest first."""
    producers: tuple[Mapping[str, Any], ...] = ()
    gaps: tuple[Gap, ...] = ()
    bundle_counts: Mapping[int, int] = field(default_factory=dict)
    """How many bundles each segment has that has a file: should the file be lost, nothing else
    may know. At most :data:`MAX_COUNTS`."""
    window: tuple[KeyRecord, ...] = ()
    """Version 1 only: the keys themselves."""


def encode_state(state: Checkpoint) -> bytes:
    """The file's bytes. Keys must be in runs by now."""
    assert not state.window, "the keys of version 1 are written as runs first"
    document: dict[str, Any] = {
        "needs": [],
        "uuid": state.uuid,
        "store_time": dict(state.store_time),
        "slots": dict(state.slots),
        "subscribers": list(state.subscribers),
        "losses": [_loss_row(loss) for loss in state.losses],
        "loss_totals": dict(state.loss_totals),
        "older_losses": [one._asdict() for one in state.older_losses],
        "adoption": None if state.adoption is None else asdict(state.adoption),
        "transactions": [asdict(record) for record in state.transactions],
        "keys": [{"run": run.name, "count": run.count} for run in state.keys],
        "producers": [dict(producer) for producer in state.producers],
        "gaps": [asdict(gap) for gap in state.gaps],
        "bundle_counts": _count_rows(state.bundle_counts),
    }
    text = json.dumps(document, separators=(",", ":"), sort_keys=True).encode()
    header = _HEADER.pack(
        _MAGIC, _VERSION, _HEADER.size, 0, 0, state.through, state.last_ts, len(text), 0
    )
    body = header + text
    return body + _CRC.pack(crc32(body))


def _count_rows(counts: Mapping[int, int]) -> list[dict[str, Any]]:
    """Segments whose numbers follow each other share a row: its first number, and their counts."""
    rows: list[dict[str, Any]] = []
    end = None
    for seq in sorted(counts):
        if seq != end:
            rows.append({"first": seq, "counts": []})
        rows[-1]["counts"].append(counts[seq])
        end = seq + 1
    return rows


def _loss_row(loss: Loss) -> dict[str, Any]:
    row = {
        "segment": loss.segment_seq,
        "bundles": loss.indexes,
        "count": loss.bundles,
        "exact": loss.exact,
        "nbytes": loss.nbytes,
        "reason": loss.reason,
        "at_ns": loss.at_ns,
        "subscribers": dict(loss.subscribers),
    }
    return row if loss.sequence is None else {**row, "sequence": loss.sequence}


def decode_state(data: bytes) -> Checkpoint:
    """The values back, or :class:`StateCorrupt`: a checkpoint is never half believed."""
    if len(data) < _HEADER.size + _CRC.size:
        raise _damaged("it is cut short")
    fields = _HEADER.unpack_from(data)
    magic, version, header_size, flags, _, through, last_ts, json_len, window_len = fields
    if magic != _MAGIC:
        raise _damaged("it does not begin with its magic bytes")
    (stored,) = _CRC.unpack_from(data, len(data) - _CRC.size)
    if crc32(memoryview(data)[: -_CRC.size]) != stored:
        raise _damaged("its checksum disagrees")
    if not _FIRST_VERSION <= version <= _VERSION:
        raise _newer(f"has version {version}; this Quiver reads {_FIRST_VERSION} to {_VERSION}")
    if flags:
        raise _newer(f"has flags {flags:#06x}, and only a newer Quiver knows what they mean")
    if header_size < _HEADER.size or header_size + json_len + window_len + 4 != len(data):
        raise _damaged("its lengths disagree")
    text = data[header_size : header_size + json_len]
    window = data[header_size + json_len : header_size + json_len + window_len]
    try:
        document = _of(dict, json.loads(text))
        if version == _FIRST_VERSION:
            return _first_version(document, through, last_ts, decode_keys(window))
        unknown = sorted(set(_list(str, document["needs"])) - _UNDERSTOOD)
        if not unknown:
            return _checkpoint(document, through, last_ts)
    except _UNREADABLE as error:
        check_memory(error)
        raise _damaged(f"a part has a good checksum but can't be read ({error})") from None
    raise _newer(f"needs {', '.join(map(repr, unknown))}, which this Quiver doesn't know")


def _checkpoint(document: dict[str, Any], through: int, last_ts: int) -> Checkpoint:
    adoption = document["adoption"]
    return Checkpoint(
        through=through,
        last_ts=last_ts,
        uuid=_uuid(document["uuid"]),
        store_time=_counts(document["store_time"]),
        slots=_counts(document["slots"]),
        subscribers=_list(str, document["subscribers"]),
        losses=tuple(_loss(_of(dict, row)) for row in document["losses"]),
        loss_totals=_counts(document["loss_totals"]),
        older_losses=tuple(
            LostRefs(_range(row["segments"]), _range(row["indexes"]))
            for row in _list(dict, document["older_losses"])
        ),
        adoption=None
        if adoption is None
        else Adoption(_of(int, adoption["first_segment"]), _list(int, adoption["counts"])),
        transactions=tuple(_transaction(_of(dict, row)) for row in document["transactions"]),
        keys=tuple(
            KeyRun.listed(_of(str, row["run"]), _of(int, row["count"])) for row in document["keys"]
        ),
        producers=_list(dict, document["producers"]),
        gaps=tuple(
            Gap(_range(row["sequences"]), _range(row["segments"]), _of(str, row["reason"]))
            for row in document["gaps"]
        ),
        bundle_counts={
            seq: count
            for row in _list(dict, document["bundle_counts"])
            for seq, count in enumerate(_list(int, row["counts"]), _of(int, row["first"]))
        },
    )


def _loss(row: dict[str, Any]) -> Loss:
    bundles = row["bundles"]
    return Loss(
        segment_seq=_of(int, row["segment"]),
        bundles=_of(int, row["count"]),
        nbytes=_of(int, row["nbytes"]),
        reason=_of(str, row["reason"]),
        at_ns=_of(int, row["at_ns"]),
        subscribers=_counts(row["subscribers"]),
        indexes=None if bundles is None else tuple(_range(pair) for pair in _of(list, bundles)),
        exact=_of(bool, row["exact"]),
        sequence=_of(int, row["sequence"]) if "sequence" in row else None,
    )


def _transaction(row: dict[str, Any]) -> AppRecord:
    return AppRecord(
        app=_of(str, row["app"]),
        version=_of(int, row["version"]),
        first_segment=_of(int, row["first_segment"]),
        segments=_of(int, row["segments"]),
        bundles=_of(int, row["bundles"]),
        rows=_of(int, row["rows"]),
        sequence=_of(int, row["sequence"]),
        ts_ns=_of(int, row["ts_ns"]),
        slots=_list(str, row["slots"]),
        versions=_list(int, row["versions"]),
    )


def _first_version(
    document: dict[str, Any], through: int, last_ts: int, window: tuple[KeyRecord, ...]
) -> Checkpoint:
    """Version 1: rows are lists, and the counts of its losses are upper bounds."""
    adoption = document["adoption"]
    return Checkpoint(
        through=through,
        last_ts=last_ts,
        slots=_counts(document["slots"]),
        subscribers=_list(str, document["subscribers"]),
        losses=tuple(
            _loss({**dict(zip(_LOSS_ROW, row, strict=True)), "bundles": None, "exact": False})
            for row in document["losses"]
        ),
        loss_totals=_counts(document["loss_totals"]),
        adoption=None
        if adoption is None
        else Adoption(_of(int, adoption[0]), _list(int, adoption[1])),
        transactions=tuple(
            _transaction({**dict(zip(_APP_ROW, row, strict=True)), "slots": [], "versions": []})
            for row in document.get("transactions", ())
        ),
        window=window,
    )


_LOSS_ROW: Final = ("segment", "count", "nbytes", "reason", "at_ns", "subscribers")
_APP_ROW: Final = (
    "app",
    "version",
    "first_segment",
    "segments",
    "bundles",
    "rows",
    "sequence",
    "ts_ns",
)


def _uuid(value: object) -> str:
    text = _of(str, value)
    if text and len(bytes.fromhex(text)) != UUID_SIZE:
        raise ValueError(f"{text!r:.80} is not a uuid")
    return text


def _of(kind: type[T], value: object) -> T:
    """A value of exactly this kind: JSON's ``true`` is no number."""
    if type(value) is not kind:
        raise TypeError(f"{value!r:.80} is not of type {kind.__name__}")
    return value


def _list(kind: type[T], value: object) -> tuple[T, ...]:
    return tuple(_of(kind, one) for one in _of(list, value))


def _counts(value: object) -> dict[str, int]:
    return {name: _of(int, number) for name, number in _of(dict, value).items()}


def _range(value: object) -> tuple[int, int]:
    first, end = _list(int, value)
    if not 0 <= first <= end:
        raise ValueError(f"[{first}, {end}) is not a range")
    return first, end


def _newer(what: str) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"{STATE_NAME} {what}. Nothing was changed.",
        advice="Open the store with the Quiver that wrote it, or a newer one.",
        file=STATE_NAME,
    )


def _damaged(what: str) -> StateCorrupt:
    return StateCorrupt(
        f"the checkpoint {STATE_NAME} is damaged: {what}. Nothing was changed.",
        advice="See what is left: quiver verify …; go on without it: quiver repair …",
        file=STATE_NAME,
    )
