"""The content hash: what makes a repeat under an idempotency key the same bundle.

It is taken over values, not over buffers.  Arrow lets the same rows lie in memory in many ways: as
a slice of something longer, with anything at all under a null, in a bitmap whose last byte has
bits to spare, with a dictionary in another order.  A producer that builds its retry anew may send
any of them, and so may another client library.

Each column adds, depth first, what a reader could see of it:

===============  ==========================================================================
type             what is hashed
===============  ==========================================================================
any with nulls   which rows are null, then the column without them
fixed width      the values' bytes; booleans as bits
string, binary   offsets from 0 on, then the bytes between the first and the last
lists, maps      offsets from 0 on, then the elements
struct           each field
dictionary       the values in the order of their first use, each once; then which one each
                 row has.  They are never expanded: a row costs a byte and may stand for a
                 megabyte
union, view,     their IPC encoding: for these rare types the layout counts
run-end-encoded
===============  ==========================================================================

Types, names and metadata of columns are in the schema hash.  A slot stands for itself by its name:
its id may be another one after a repair that found the name nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from struct import Struct
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc
from blake3 import blake3
from pyarrow import types

from quiver.errors import (
    InvalidBundle,
    check_memory,
)
from quiver.format.crc import Bytes
from quiver.format.record import EncodedSlot

CONTENT_HASH_SIZE: Final = 32
_NAME: Final = b"quiver content 2"
_LONG: Final = 32_768
_COUNTED: Final = 1024
_ID: Final = Struct("<H")
_NAMED: Final = Struct("<HH")
_ROWS: Final = Struct("<Q")
_BY_NAME: Final = 0xFFFF
"""Stands where an unnamed slot has its id."""
_NO_NULLS: Final = b"\0"
_NULLS: Final = b"\1"
_OFFSET: Final = {4: Struct("<i"), 8: Struct("<q")}
_OFFSET_TYPE: Final = {4: pa.int32(), 8: pa.int64()}
_ARROW_ERRORS: Final = (pa.ArrowException, IndexError, ValueError, OverflowError)

Update = Callable[[Bytes], None]


def hash_content(
    slots: Iterable[tuple[EncodedSlot, pa.RecordBatch]], names: Mapping[int, str]
) -> bytes:
    """BLAKE3 over what the bundle holds: slots by ``names``, or by id where they have none,
    schemas and rows.

    The batches must have been validated in full, or come from a producer that is trusted.
    """
    parts: list[Bytes] = [_NAME]

    def update(data: Bytes) -> None:
        # BLAKE3 is fastest in one go: what is short is joined, what is long stands for itself.
        parts.append(blake3(data).digest() if memoryview(data).nbytes >= _LONG else data)

    try:
        for slot, batch in sorted(slots, key=lambda one: _order(one[0].slot, names)):
            update(_label(slot.slot, names))
            update(slot.batch.schema.schema_hash)
            update(_ROWS.pack(batch.num_rows))
            for column in batch.columns:
                _add(update, column)
    except _ARROW_ERRORS as error:
        check_memory(error)
        raise InvalidBundle(f"a column is not valid Arrow data: {error}") from None
    return blake3(b"".join(parts)).digest()


def _order(slot: int, names: Mapping[int, str]) -> tuple[str, int]:
    """Unnamed slots by id, then the others by name."""
    return names.get(slot, ""), slot


def _label(slot: int, names: Mapping[int, str]) -> bytes:
    name = names.get(slot, "").encode()
    return _NAMED.pack(_BY_NAME, len(name)) + name if name else _ID.pack(slot)


def content_hash_0_1(slots: Sequence[EncodedSlot]) -> bytes:
    """What version 0.1.0 remembered: BLAKE3 over the IPC messages as they were sent."""
    digest = blake3()
    for slot in slots:
        digest.update(slot.slot.to_bytes(2, "little"))
        digest.update(slot.batch.schema.schema_hash)
        digest.update(slot.batch.dictionaries)
        digest.update(slot.batch.batch)
    return digest.digest()


def _add(update: Update, array: pa.Array) -> None:
    """Add a column, or a part of one."""
    try:
        _add_values(update, array)
    except pa.ArrowNotImplementedError:  # of a rare type, or something in it is
        update(pa.record_batch([array], [""]).serialize())


def _add_values(update: Update, array: pa.Array) -> None:
    if isinstance(array, pa.ExtensionArray):
        array = array.storage
    kind = array.type
    if types.is_dictionary(kind):
        _add_dictionary(update, array)
        return
    if types.is_null(kind):
        return  # a length is all it has, and that is known
    add = _ADD.get(kind.id)
    if add is None:
        if not (
            types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind)
        ):
            raise pa.ArrowNotImplementedError(str(kind))
        add = _add_fixed
    if array.null_count:
        array = _add_nulls(update, array)
    else:
        update(_NO_NULLS)
    add(update, array)


def _add_nulls(update: Update, array: pa.Array) -> pa.Array:
    """Add which rows are null; the array without them."""
    update(_NULLS)
    update(_bits(array.buffers()[0], array.offset, len(array)))
    return array.drop_null()


def _bits(buffer: pa.Buffer, offset: int, count: int) -> bytes:
    """``count`` bits from ``offset`` on, moved to the front, zeros behind them."""
    first, shift = divmod(offset, 8)
    data = bytes(memoryview(buffer)[first : first + (shift + count + 7) // 8])
    if not shift and not count % 8:
        return data
    number = (int.from_bytes(data, "little") >> shift) & ((1 << count) - 1)
    return number.to_bytes((count + 7) // 8, "little")


def _add_fixed(update: Update, array: pa.Array) -> None:
    width, offset = array.type.bit_width // 8, array.offset
    buffer = array.buffers()[1]
    if buffer is not None:
        update(memoryview(buffer)[offset * width : (offset + len(array)) * width])


def _add_bool(update: Update, array: pa.Array) -> None:
    if len(array):
        update(_bits(array.buffers()[1], array.offset, len(array)))


def _add_offsets(update: Update, array: pa.Array, width: int) -> tuple[int, int]:
    """Add the offsets, counted from the first; the first and the last."""
    buffer, count = array.buffers()[1], len(array)
    if buffer is None or not count:
        return 0, 0
    view = memoryview(buffer)[array.offset * width : (array.offset + count + 1) * width]
    (first,), (last,) = _OFFSET[width].unpack_from(view), _OFFSET[width].unpack_from(view, -width)
    if not 0 <= first <= last:
        raise ValueError("its offsets are not ascending")
    if first:
        kind = _OFFSET_TYPE[width]
        offsets = pa.Array.from_buffers(kind, count + 1, [None, buffer], offset=array.offset)
        moved = pc.subtract(offsets, pa.scalar(first, kind))
        view = memoryview(moved.buffers()[1])[: len(view)]
    update(view)
    return first, last


def _add_bytes(width: int) -> Callable[[Update, pa.Array], None]:
    def add(update: Update, array: pa.Array) -> None:
        first, last = _add_offsets(update, array, width)
        data = array.buffers()[2]
        if last > first and data is not None:
            update(memoryview(data)[first:last])

    return add


def _add_list(width: int) -> Callable[[Update, pa.Array], None]:
    def add(update: Update, array: pa.Array) -> None:
        first, last = _add_offsets(update, array, width)
        _add(update, array.values.slice(first, last - first))

    return add


def _add_fixed_list(update: Update, array: pa.Array) -> None:
    size = array.type.list_size
    _add(update, array.values.slice(array.offset * size, len(array) * size))


def _add_struct(update: Update, array: pa.Array) -> None:
    for index in range(array.type.num_fields):
        _add(update, array.field(index))


def _add_dictionary(update: Update, array: pa.Array) -> None:
    indices, values = array.indices, array.dictionary
    if values.null_count:  # a row may be null by its index, or by the value that it leads to
        there = pc.fill_null(values.is_valid().take(indices), False)
        indices = pc.if_else(there, indices, None)
    if indices.null_count:
        indices = _add_nulls(update, indices)
    else:
        update(_NO_NULLS)
    used = indices.unique()
    if len(used) <= _COUNTED and used.equals(_counting(len(used), used.type)):
        values = values.slice(0, len(used))  # in the order of their first use: the usual case
    else:
        coded = indices.dictionary_encode()
        indices, values = coded.indices.cast(indices.type), values.take(coded.dictionary)
    try:
        distinct = len(values.unique())
    except pa.ArrowNotImplementedError:  # nested values can't be told apart: taken as different
        distinct = len(values)
    if distinct < len(values):
        coded = values.dictionary_encode()
        indices, values = coded.indices.cast(indices.type).take(indices), coded.dictionary
    _add_fixed(update, indices)
    _add(update, values)


@lru_cache(maxsize=256)
def _counting(count: int, kind: pa.DataType) -> pa.Array:
    return pa.array(range(count), kind)


_ADD: Final[dict[int, Callable[[Update, pa.Array], None]]] = {
    pa.bool_().id: _add_bool,
    pa.string().id: _add_bytes(4),
    pa.binary().id: _add_bytes(4),
    pa.large_string().id: _add_bytes(8),
    pa.large_binary().id: _add_bytes(8),
    pa.list_(pa.null()).id: _add_list(4),
    pa.map_(pa.int8(), pa.int8()).id: _add_list(4),
    pa.large_list(pa.null()).id: _add_list(8),
    pa.list_(pa.int8(), 1).id: _add_fixed_list,
    pa.struct([]).id: _add_struct,
}
