"""Just enough of FlatBuffers to read Arrow's own metadata, with every access checked.

Arrow describes its messages in FlatBuffers.  Quiver needs to know what a message declares
(lengths, codecs, dictionary ids) *before* anybody acts on it, and pyarrow doesn't tell.
The layout is small: a table starts with a signed offset back to its vtable, the vtable
lists where each field is (0: absent, the default holds), and everything that isn't a
scalar is an unsigned offset forward.  Nothing here trusts a number it has read.
"""

from __future__ import annotations

import struct
from struct import Struct

_U16 = Struct("<H")
_I16 = Struct("<h")
_I32 = Struct("<i")
_U32 = Struct("<I")
_I64 = Struct("<q")


class FlatbufferError(ValueError):
    """The bytes are not the FlatBuffer they should be."""


class Table:
    """One table inside ``data``; fields are asked for by their number in the schema."""

    __slots__ = ("_data", "_position", "_vtable", "_vtable_size")

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position
        vtable = position - _at(_I32, data, position)
        self._vtable = vtable
        self._vtable_size = _at(_U16, data, vtable)
        if self._vtable_size < 4 or vtable + self._vtable_size > len(data):
            raise FlatbufferError("a vtable lies outside of its buffer")

    @classmethod
    def root(cls, data: bytes) -> Table:
        return cls(data, _at(_U32, data, 0))

    @property
    def position(self) -> int:
        """Where the table is in its buffer."""
        return self._position

    def _field(self, number: int) -> int:
        slot = 4 + 2 * number
        if slot + 2 > self._vtable_size:
            return 0
        offset = _at(_U16, self._data, self._vtable + slot)
        return self._position + offset if offset else 0

    def _scalar(self, layout: Struct, number: int, default: int) -> int:
        at = self._field(number)
        return _at(layout, self._data, at) if at else default

    def u8(self, number: int, default: int = 0) -> int:
        at = self._field(number)
        if at >= len(self._data):
            raise FlatbufferError("a field lies outside of its buffer")
        return self._data[at] if at else default

    def i16(self, number: int, default: int = 0) -> int:
        return self._scalar(_I16, number, default)

    def i32(self, number: int, default: int = 0) -> int:
        return self._scalar(_I32, number, default)

    def i64(self, number: int, default: int = 0) -> int:
        return self._scalar(_I64, number, default)

    def table(self, number: int) -> Table | None:
        at = self._field(number)
        return Table(self._data, at + _at(_U32, self._data, at)) if at else None

    def vector(self, number: int, item_size: int) -> tuple[int, int]:
        """Where a vector's items start and how many there are; all of them are inside."""
        at = self._field(number)
        if not at:
            return 0, 0
        start = at + _at(_U32, self._data, at)
        count = _at(_U32, self._data, start)
        if start + 4 + count * item_size > len(self._data):
            raise FlatbufferError("a vector is longer than its buffer")
        return start + 4, count

    def integers(self, number: int, item_format: str, per_item: int = 1) -> tuple[int, ...]:
        """A vector of integers, or of structs of ``per_item`` like integers."""
        size = Struct("<" + item_format).size * per_item
        start, count = self.vector(number, size)
        values: tuple[int, ...] = Struct(f"<{count * per_item}{item_format}").unpack_from(
            self._data, start
        )
        return values

    def tables(self, number: int) -> list[Table]:
        start, count = self.vector(number, 4)
        positions = range(start, start + 4 * count, 4)
        return [Table(self._data, at + _at(_U32, self._data, at)) for at in positions]

    def string(self, number: int) -> bytes:
        start, count = self.vector(number, 1)
        return self._data[start : start + count]


def _at(layout: Struct, data: bytes, position: int) -> int:
    if position < 0:
        raise FlatbufferError("an offset points before its buffer")
    try:
        value: int = layout.unpack_from(data, position)[0]
    except struct.error:
        raise FlatbufferError("an offset points behind its buffer") from None
    return value
