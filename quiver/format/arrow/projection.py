"""Which bytes of a record batch message hold which columns, so that the others needn't be read."""

from __future__ import annotations

from struct import Struct
from typing import Final

import pyarrow as pa

from quiver.format.arrow.flatbuf import Table

_BUFFER: Final = Struct("<qq")


def buffers_by_field(metadata: bytes, schema: pa.Schema) -> list[list[tuple[int, int]]] | None:
    """Offset and length, in the message's body, of the buffers of each column.

    ``None`` if a column is of a type whose buffers aren't counted here, or if there are not
    as many buffers as the schema has: then all have to be read.
    """
    header = Table.root(metadata).table(2)
    counts = [buffer_count(field.type) for field in schema]
    if header is None or None in counts:
        return None
    buffers = list(header.structs(2, _BUFFER))
    if sum(count or 0 for count in counts) != len(buffers):
        return None
    found, at = [], 0
    for count in counts:
        end = at + (count or 0)
        found.append([(offset, length) for offset, length in buffers[at:end]])
        at = end
    return found


def buffer_count(kind: pa.DataType) -> int | None:
    """How many buffers a column of this type has in a message; ``None`` if that isn't known."""
    types = pa.types
    if isinstance(kind, pa.BaseExtensionType):
        return buffer_count(kind.storage_type)
    if types.is_null(kind):
        return 0
    if types.is_dictionary(kind) or types.is_primitive(kind) or types.is_fixed_size_binary(kind):
        return 2
    if types.is_decimal(kind):
        return 2
    if any(is_it(kind) for is_it in _WITH_OFFSETS):
        return 3
    if types.is_list(kind) or types.is_large_list(kind):
        return _with_children(2, kind)
    if types.is_fixed_size_list(kind) or types.is_struct(kind):
        return _with_children(1, kind)
    return None


_WITH_OFFSETS: Final = (
    pa.types.is_string,
    pa.types.is_large_string,
    pa.types.is_binary,
    pa.types.is_large_binary,
)


def _with_children(own: int, kind: pa.DataType) -> int | None:
    total = own
    for number in range(kind.num_fields):
        count = buffer_count(kind.field(number).type)
        if count is None:
            return None
        total += count
    return total
