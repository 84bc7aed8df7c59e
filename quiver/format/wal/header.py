"""The head of a log file.

Written, 64 bytes, little-endian::

    0   magic            10  b"QUIVER\\0WAL"
    10  version          u16 2
    12  header_size      u16 64; a reader skips what it doesn't know
    14  layout_hash      16  the layout contract (see :func:`layout_hash`)
    30  position_start   u64 data bytes in all files before this one, heads excluded
    38  first_sequence   u64 sequence of the first entry of this file
    46  flags            u16 0; a file with any other is refused
    48  salt             u32 random for every file, also for a recycled one
    52  created_ns       i64 when the file was begun
    60  header_crc       u32 CRC-32 of the 60 bytes before it

Version 1 is read and no longer written: it has four zero bytes for the salt.  What the
version and the salt mean for the entries is in :mod:`quiver.format.wal.entry`.

The Rust crate writes only the first 38 bytes, with a constant for the hash.  That
constant is how its files are told from ours: ours always carry the checksum, so a flipped
bit can't turn one of ours into one of theirs.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from blake3 import blake3

from quiver.errors import LayoutMismatch, UnsupportedVersion, WalCorrupt
from quiver.format.crc import Bytes, crc32, crc32_before
from quiver.format.wal.entry import FOREIGN_FRAMING, V1_FRAMING, Framing

MAGIC: Final = b"QUIVER\0WAL"
VERSION: Final = 2
OLD_VERSION: Final = 1
FOREIGN_VERSION: Final = 1
HEADER_SIZE: Final = 64
FOREIGN_HEADER_SIZE: Final = 38

HASH_SIZE: Final = 16
FOREIGN_LAYOUT: Final = b"QUIVER_SEGCFG\0\0\0"
"""What the Rust crate puts where our hash is: read as "no slot table declared"."""

_PREFIX = struct.Struct("<10sHH16sQ")
_OWN = struct.Struct("<10sHH16sQQHIqI")
_U16 = struct.Struct("<H")
_U32 = struct.Struct("<I")
_VERSION_AT: Final = 10
_SALT_AT: Final = 48
assert _PREFIX.size == FOREIGN_HEADER_SIZE
assert _OWN.size == HEADER_SIZE

_CONTRACT: Final = b"quiver layout 1; slots ascending; crc32\n"


def layout_hash(slots: Mapping[str, int] | None) -> bytes:
    """Name the layout contract: what must agree for two configurations to share a log.

    With a declared slot table that is the table; slots named on the fly all hash to one
    marker, because a new name must never change the hash.  Tuning is not part of it.
    """
    if slots is None:
        return blake3(_CONTRACT + b"slots named on the fly").digest()[:HASH_SIZE]
    table = "".join(f"{slot} {name}\n" for name, slot in sorted(slots.items()))
    return blake3(_CONTRACT + table.encode()).digest()[:HASH_SIZE]


def seed_of(salt: int) -> int:
    """What the checksums of a file with this salt go on from."""
    return crc32(_U32.pack(salt))


def salt_of(seed: int) -> int:
    """The salt with this seed: there is exactly one."""
    return crc32_before(seed, crc32(bytes(_U32.size)), _U32.size)


@dataclass(frozen=True, slots=True)
class WalHeader:
    """A log file's head. ``first_sequence`` is ``None`` in files of the Rust crate."""

    layout_hash: bytes
    position_start: int
    first_sequence: int | None
    framing: Framing
    created_ns: int = 0
    size: int = HEADER_SIZE

    @property
    def foreign(self) -> bool:
        """Whether the Rust crate wrote it: such a file is read, never written to."""
        return self.layout_hash == FOREIGN_LAYOUT


def encode_header(
    layout: bytes, *, position_start: int, first_sequence: int, salt: int, created_ns: int
) -> bytes:
    """The 64 bytes a new file begins with."""
    if len(layout) != HASH_SIZE or layout == FOREIGN_LAYOUT:
        raise ValueError("not a layout hash of ours")
    body = _OWN.pack(
        MAGIC, VERSION, HEADER_SIZE, layout, position_start, first_sequence, 0, salt, created_ns, 0
    )[:-4]
    return body + _U32.pack(crc32(body))


def decode_header(data: Bytes) -> WalHeader:
    """Read a head from the first bytes of a file; an error names what is wrong with it."""
    if len(data) < FOREIGN_HEADER_SIZE:
        raise WalCorrupt("the file is too short to be a log file.", offset=0)
    magic, version, size, layout, position = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise WalCorrupt("the file does not begin as a log file does.", offset=0)
    if layout == FOREIGN_LAYOUT:
        if version != FOREIGN_VERSION:
            raise _newer(f"version {version}", version=version)
        if size < FOREIGN_HEADER_SIZE:
            raise WalCorrupt(f"the head says it is {size} bytes long.", offset=0)
        return WalHeader(layout, position, None, FOREIGN_FRAMING, size=size)
    if version not in (OLD_VERSION, VERSION):
        if any(_is_sound(_with_version(data, known)) for known in (OLD_VERSION, VERSION)):
            raise WalCorrupt("the version in the head fails the checksum.", offset=0)
        raise _newer(f"version {version}", version=version)
    return _decode_own(data, size)


def _newer(what: str, **details: object) -> UnsupportedVersion:
    return UnsupportedVersion(
        f"the log file has {what} in its head; this Quiver reads {OLD_VERSION} and {VERSION},"
        " without flags.",
        advice="Open it with the Quiver that wrote it, or a newer one. Nothing was changed.",
        **details,
    )


def _decode_own(data: Bytes, size: int) -> WalHeader:
    if size < HEADER_SIZE or len(data) < HEADER_SIZE:
        raise WalCorrupt(f"the head says it is {size} bytes long.", offset=0)
    if not _is_sound(data):
        raise WalCorrupt("the head fails its checksum.", offset=0)
    fields = _OWN.unpack_from(data)
    _, version, _, layout, position, first_sequence, flags, salt, created_ns, _ = fields
    if flags:
        raise _newer(f"flags {flags:#06x}", flags=flags)
    framing = V1_FRAMING if version == OLD_VERSION else Framing(VERSION, seed_of(salt))
    return WalHeader(layout, position, first_sequence, framing, created_ns, size)


def _is_sound(data: Bytes) -> bool:
    if len(data) < HEADER_SIZE:
        return False
    stored: int = _U32.unpack_from(data, HEADER_SIZE - 4)[0]
    return crc32(memoryview(data)[: HEADER_SIZE - 4]) == stored


def _with_version(data: Bytes, version: int) -> bytes:
    """A head with another version, to see whether its checksum was made for that one."""
    head = bytearray(memoryview(data)[:HEADER_SIZE])
    _U16.pack_into(head, _VERSION_AT, version)
    return bytes(head)


def fits_head(data: Bytes, framing: Framing) -> bool:
    """Whether a head's checksum was made for this version and salt, whatever it says now."""
    if len(data) < HEADER_SIZE:
        return False
    head = bytearray(_with_version(data, framing.version))
    _U32.pack_into(head, _SALT_AT, salt_of(framing.seed))
    return _is_sound(head)


def salt_in(data: Bytes) -> int | None:
    """The salt that a damaged head has; it may be damaged itself."""
    if len(data) < _SALT_AT + _U32.size:
        return None
    salt: int = _U32.unpack_from(data, _SALT_AT)[0]
    return salt


def check_layout(header: WalHeader, expected: bytes) -> None:
    """Refuse a log made for another slot table; the Rust crate's has none and passes."""
    if header.layout_hash not in (expected, FOREIGN_LAYOUT):
        raise LayoutMismatch(
            "the log was written with another slot table than the one configured.",
            advice=(
                "Open it with the slots it was made with and drain it, "
                "or save it with quiver dump and put it into a new store."
            ),
            found=header.layout_hash.hex(),
            expected=expected.hex(),
        )
