"""The head of a log file.

Written, 64 bytes, little-endian::

    0   magic            10  b"QUIVER\\0WAL"
    10  version          u16 1
    12  header_size      u16 64; a reader skips what it doesn't know
    14  layout_hash      16  the layout contract (see :func:`layout_hash`)
    30  position_start   u64 data bytes in all files before this one, heads excluded
    38  first_sequence   u64 sequence of the first entry of this file
    46  flags            u16 0
    48  zero             4
    52  created_ns       i64 when the file was begun
    60  header_crc       u32 CRC-32 of the 60 bytes before it

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
from quiver.format.crc import Bytes, crc32

MAGIC: Final = b"QUIVER\0WAL"
VERSION: Final = 1
HEADER_SIZE: Final = 64
FOREIGN_HEADER_SIZE: Final = 38
MAX_HEADER_SIZE: Final = 0xFFFF

HASH_SIZE: Final = 16
FOREIGN_LAYOUT: Final = b"QUIVER_SEGCFG\0\0\0"
"""What the Rust crate puts where our hash is: read as "no slot table declared"."""

_PREFIX = struct.Struct("<10sHH16sQ")
_OWN = struct.Struct("<10sHH16sQQH4xqI")
_CRC = struct.Struct("<I")
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


@dataclass(frozen=True, slots=True)
class WalHeader:
    """A log file's head. ``first_sequence`` is ``None`` in files of the Rust crate."""

    layout_hash: bytes
    position_start: int
    first_sequence: int | None
    created_ns: int = 0
    size: int = HEADER_SIZE

    @property
    def foreign(self) -> bool:
        """Whether the Rust crate wrote it: such a file is read, never written to."""
        return self.layout_hash == FOREIGN_LAYOUT


def encode_header(
    layout: bytes, *, position_start: int, first_sequence: int, created_ns: int
) -> bytes:
    """The 64 bytes a new file begins with."""
    if len(layout) != HASH_SIZE or layout == FOREIGN_LAYOUT:
        raise ValueError("not a layout hash of ours")
    body = _OWN.pack(
        MAGIC, VERSION, HEADER_SIZE, layout, position_start, first_sequence, 0, created_ns, 0
    )[:-4]
    return body + _CRC.pack(crc32(body))


def decode_header(data: Bytes) -> WalHeader:
    """Read a head from the first bytes of a file; an error names what is wrong with it."""
    if len(data) < FOREIGN_HEADER_SIZE:
        raise WalCorrupt("the file is too short to be a log file.", offset=0)
    magic, version, size, layout, position = _PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise WalCorrupt("the file does not begin as a log file does.", offset=0)
    if version != VERSION:
        raise UnsupportedVersion(
            f"the log file has format version {version}, this is version {VERSION}.",
            advice="Open it with the Quiver that wrote it, or a newer one.",
            version=version,
        )
    if layout == FOREIGN_LAYOUT:
        if size < FOREIGN_HEADER_SIZE:
            raise WalCorrupt(f"the head says it is {size} bytes long.", offset=0)
        return WalHeader(layout, position, None, size=size)
    return _decode_own(data, size)


def _decode_own(data: Bytes, size: int) -> WalHeader:
    if size < HEADER_SIZE or len(data) < HEADER_SIZE:
        raise WalCorrupt(f"the head says it is {size} bytes long.", offset=0)
    fields = _OWN.unpack_from(data)
    if crc32(memoryview(data)[: HEADER_SIZE - 4]) != fields[-1]:
        raise WalCorrupt("the head fails its checksum.", offset=0)
    _, _, _, layout, position, first_sequence, _, created_ns, _ = fields
    return WalHeader(layout, position, first_sequence, created_ns, size)


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
