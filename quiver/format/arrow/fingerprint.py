"""Schema fingerprints: BLAKE3-256 over a canonical encoding of an Arrow schema.

Two schemas have the same fingerprint exactly if they have the same fields in the same
order: names, nullability, types with all their parameters, dictionary index types and
order flags, and metadata as a set of pairs.  It is taken from Arrow's own description of
a schema (the IPC schema message), whose numbers the Arrow specification fixes, and not
from pyarrow's printing or hashing, so it doesn't move with a release.  Extension types
appear there as storage type plus metadata, so registering one changes nothing.

The encoding, integers little-endian::

    schema     = "QVS1" list(field) metadata
    list(x)    = count u32, x …
    bytes      = length u32, the bytes
    metadata   = list(bytes key, bytes value), sorted by key, then value
    field      = bytes name, nullable u8, type, dictionary, list(field) children, metadata
    type       = number u8 of Arrow's Type union, then its parameters in the order below
    dictionary = 0 u8, or: 1 u8, index bit width i64, index signed i64, ordered i64

Parameters are i64 each, except a time zone, which is ``bytes``, and union type ids, which
are a ``list(i64)``.  Absent ones count as the default that Arrow's schema gives them, and
absent union type ids as 0, 1, 2 …
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import Final

import pyarrow as pa
from blake3 import blake3

from quiver.format.arrow.flatbuf import FlatbufferError, Table

FINGERPRINT_SIZE: Final = 32
MAX_FIELDS: Final = 100_000
MAX_DEPTH: Final = 64

_MAGIC: Final = b"QVS1"
_PREFIX_SIZE: Final = 8
_UNION: Final = 14

_TYPE_ID: Final = Struct("<i")
_U32 = Struct("<I").pack
_I64 = Struct("<q").pack

_Parameter = Callable[[Table], bytes]


def _number(read: Callable[..., int], field: int, default: int = 0) -> _Parameter:
    return lambda table: _I64(read(table, field, default))


def _u8(field: int, default: int = 0) -> _Parameter:
    return _number(Table.u8, field, default)


def _i16(field: int, default: int = 0) -> _Parameter:
    return _number(Table.i16, field, default)


def _i32(field: int, default: int = 0) -> _Parameter:
    return _number(Table.i32, field, default)


_PARAMETERS: Final[dict[int, tuple[_Parameter, ...]]] = {
    1: (),  # Null
    2: (_i32(0), _u8(1)),  # Int: bit width, signed
    3: (_i16(0),),  # FloatingPoint: precision
    4: (),  # Binary
    5: (),  # Utf8
    6: (),  # Bool
    7: (_i32(0), _i32(1), _i32(2, 128)),  # Decimal: precision, scale, bit width
    8: (_i16(0, 1),),  # Date: unit
    9: (_i16(0, 1), _i32(1, 32)),  # Time: unit, bit width
    10: (_i16(0), lambda table: _bytes(table.string(1))),  # Timestamp: unit, time zone
    11: (_i16(0),),  # Interval: unit
    12: (),  # List
    13: (),  # Struct
    _UNION: (_i16(0),),  # mode; the type ids follow
    15: (_i32(0),),  # FixedSizeBinary: width
    16: (_i32(0),),  # FixedSizeList: length
    17: (_u8(0),),  # Map: keys sorted
    18: (_i16(0, 1),),  # Duration: unit
    19: (),  # LargeBinary
    20: (),  # LargeUtf8
    21: (),  # LargeList
    22: (),  # RunEndEncoded
    23: (),  # BinaryView
    24: (),  # Utf8View
    25: (),  # ListView
    26: (),  # LargeListView
}


def schema_fingerprint(schema: pa.Schema) -> bytes:
    """The fingerprint of a schema, 32 bytes."""
    return message_fingerprint(schema.serialize().to_pybytes())


def message_fingerprint(message: bytes) -> bytes:
    """The same, of an encapsulated IPC schema message."""
    return blake3(canonical(message)).digest()


def canonical(message: bytes) -> bytes:
    """The canonical encoding of the schema in an encapsulated IPC message."""
    schema = Table.root(message[_PREFIX_SIZE:]).table(2)
    if schema is None:
        raise FlatbufferError("a message holds no schema")
    return _Encoder().schema(schema)


def dictionary_ids(message: bytes) -> frozenset[int]:
    """The ids of all dictionaries that the fields, at any depth, need."""
    schema = Table.root(message[_PREFIX_SIZE:]).table(2)
    pending = schema.tables(1) if schema else []
    ids: set[int] = set()
    seen = 0
    while pending:
        field = pending.pop()
        seen += 1
        if seen > MAX_FIELDS:
            raise FlatbufferError(f"a schema has more than {MAX_FIELDS:,} fields")
        encoding = field.table(4)
        if encoding is not None:
            ids.add(encoding.i64(0))
        pending.extend(field.tables(5))
    return frozenset(ids)


class _Encoder:
    """One walk over a schema; counts fields, since a hostile one may share them."""

    def __init__(self) -> None:
        self._fields = 0

    def schema(self, table: Table) -> bytes:
        fields = b"".join(self.field(child, 1) for child in table.tables(1))
        return _MAGIC + _U32(self._count(table, 1)) + fields + _metadata(table, 2)

    def field(self, table: Table, depth: int) -> bytes:
        self._fields += 1
        if self._fields > MAX_FIELDS or depth > MAX_DEPTH:
            raise FlatbufferError(
                f"a schema has more than {MAX_FIELDS:,} fields or {MAX_DEPTH} levels"
            )
        children = table.tables(5)
        return b"".join(
            (
                _bytes(table.string(0)),
                bytes((table.u8(1) != 0,)),
                _type(table, len(children)),
                _dictionary(table.table(4)),
                _U32(len(children)),
                *(self.field(child, depth + 1) for child in children),
                _metadata(table, 6),
            )
        )

    @staticmethod
    def _count(table: Table, number: int) -> int:
        return table.vector(number, 4)[1]


def _type(field: Table, children: int) -> bytes:
    number, kind = field.u8(2), field.table(3)
    if kind is None or number not in _PARAMETERS:
        raise FlatbufferError(f"a field has a type this version doesn't know ({number})")
    encoded = bytes((number,)) + b"".join(read(kind) for read in _PARAMETERS[number])
    if number != _UNION:
        return encoded
    ids = [number for (number,) in kind.structs(1, _TYPE_ID)] or list(range(children))
    return encoded + _U32(len(ids)) + b"".join(map(_I64, ids))


def _dictionary(encoding: Table | None) -> bytes:
    if encoding is None:
        return b"\0"
    index = encoding.table(1)
    width, signed = (32, 1) if index is None else (index.i32(0), index.u8(1))
    return b"\1" + _I64(width) + _I64(signed) + _I64(encoding.u8(2))


def _metadata(table: Table, number: int) -> bytes:
    pairs = sorted((pair.string(0), pair.string(1)) for pair in table.tables(number))
    return _U32(len(pairs)) + b"".join(_bytes(key) + _bytes(value) for key, value in pairs)


def _bytes(value: bytes) -> bytes:
    return _U32(len(value)) + value
