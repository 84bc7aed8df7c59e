"""Just enough of FlatBuffers to read Arrow's own metadata, with every access checked.

Arrow describes its messages in FlatBuffers.  Quiver needs to know what a message declares
(lengths, codecs, dictionary ids) *before* anybody acts on it, and pyarrow doesn't tell.
The layout is small: a table starts with a signed offset back to its vtable, the vtable
lists where each field is (0: absent, the default holds), and everything that isn't a
scalar is an unsigned offset forward.  Nothing here trusts a number it has read: positions
only grow, except for the step to a vtable, which is checked, and ``struct`` refuses to
read behind the end.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import lru_cache
from struct import Struct

_u16 = Struct("<H").unpack_from
_i16 = Struct("<h").unpack_from
_i32 = Struct("<i").unpack_from
_u32 = Struct("<I").unpack_from
_i64 = Struct("<q").unpack_from


class FlatbufferError(struct.error):
    """The bytes are not the FlatBuffer they should be.

    Of ``struct``'s own kind: reading behind the end raises that, and callers catch both.
    """


@lru_cache(maxsize=256)
def _layout(text: str) -> Struct:
    return Struct(text)


class Table:
    """One table inside ``data``; fields are asked for by their number in the schema."""

    __slots__ = ("_data", "_fields", "position")

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self.position = position
        vtable = position - _i32(data, position)[0]
        if vtable < 0:
            raise FlatbufferError("a vtable lies before its buffer")
        size = _u16(data, vtable)[0]
        if size < 4:
            raise FlatbufferError("a vtable is shorter than its own head")
        self._fields: tuple[int, ...] = _layout(f"<{size // 2 - 2}H").unpack_from(data, vtable + 4)

    @classmethod
    def root(cls, data: bytes) -> Table:
        return cls(data, _u32(data, 0)[0])

    def _field(self, number: int) -> int:
        fields = self._fields
        if number >= len(fields) or not fields[number]:
            return 0
        return self.position + fields[number]

    def u8(self, number: int, default: int = 0) -> int:
        at = self._field(number)
        if at >= len(self._data):
            raise FlatbufferError("a field lies behind its buffer")
        return self._data[at] if at else default

    def i16(self, number: int, default: int = 0) -> int:
        at = self._field(number)
        return _i16(self._data, at)[0] if at else default

    def i32(self, number: int, default: int = 0) -> int:
        at = self._field(number)
        return _i32(self._data, at)[0] if at else default

    def i64(self, number: int, default: int = 0) -> int:
        at = self._field(number)
        return _i64(self._data, at)[0] if at else default

    def table(self, number: int) -> Table | None:
        at = self._field(number)
        return Table(self._data, at + _u32(self._data, at)[0]) if at else None

    def vector(self, number: int, item_size: int) -> tuple[int, int]:
        """Where a vector's items start and how many there are; all of them are inside."""
        at = self._field(number)
        if not at:
            return 0, 0
        start = at + _u32(self._data, at)[0]
        count = _u32(self._data, start)[0]
        if start + 4 + count * item_size > len(self._data):
            raise FlatbufferError("a vector is longer than its buffer")
        return start + 4, count

    def structs(self, number: int, layout: Struct) -> Iterator[tuple[int, ...]]:
        """The items of a vector of fixed-size structs."""
        start, count = self.vector(number, layout.size)
        return layout.iter_unpack(self._data[start : start + count * layout.size])

    def tables(self, number: int) -> list[Table]:
        start, count = self.vector(number, 4)
        positions = range(start, start + 4 * count, 4)
        return [Table(self._data, at + _u32(self._data, at)[0]) for at in positions]

    def string(self, number: int) -> bytes:
        start, count = self.vector(number, 1)
        return self._data[start : start + count]
