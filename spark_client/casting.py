"""Values from one type to another, by the rules of :mod:`spark_client.types`, both ways.

Nothing is rounded, cut or wrapped in silence: a value that the target can't hold is an error
that names the column, and never the value.  The one exception is float to half float, which
rounds to the nearest.

Most of it is Arrow's own ``cast``, at any depth.  What that can't do is done here: run-end
encoding, list views (its result is not valid in pyarrow 26), month-day-nanosecond intervals,
dictionaries of other things than strings, and times as numbers of nanoseconds.
"""

from __future__ import annotations

import functools
import struct
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from flight_service.client.errors import BadRequest
from spark_client.types import (
    INTERVAL,
    from_spark,
    is_extension,
    is_interval,
    is_list,
    is_list_view,
    refused,
)


def cast_to_spark(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """A stream's batch as Spark wants it; ``schema`` comes from :func:`types.to_spark`.

    Columns are found by their names; what the batch lacks is null, what the schema lacks is
    left out.
    """
    columns = []
    for field in schema:
        found = batch.schema.get_field_index(field.name)
        if found < 0:
            columns.append(pa.nulls(batch.num_rows, field.type))
        else:
            columns.append(convert(batch.column(found), field.type, field.name))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def cast_from_spark(batch: pa.RecordBatch, schema: pa.Schema | None = None) -> pa.RecordBatch:
    """A frame's batch as the stream is to hold it: as declared, or in Spark's own types.

    A declared schema must name the frame's columns, all of them and no others; their order is
    the schema's.
    """
    as_it_is = _Plain.of(batch.schema, schema)
    if as_it_is is not None:
        return pa.RecordBatch.from_arrays(batch.columns, schema=as_it_is)
    wanted = from_spark(batch.schema) if schema is None else schema
    missing = [one for one in wanted.names if one not in batch.schema.names]
    extra = [one for one in batch.schema.names if one not in wanted.names]
    if missing or extra:
        what = [f"lacks {', '.join(missing)}"] if missing else []
        what += [f"has {', '.join(extra)} besides"] if extra else []
        raise BadRequest(
            "schema_mismatch",
            f"the frame {' and '.join(what)}: select the columns of the declared schema.",
        )
    columns = []
    for field in wanted:
        column = convert(batch.column(field.name), field.type, field.name)
        if column.null_count and not field.nullable:
            raise BadRequest(
                "schema_mismatch",
                f"column {field.name} holds nulls and is declared without: filter them, or"
                " declare it nullable.",
            )
        columns.append(column)
    _Plain.note(batch.schema, schema, wanted)
    return pa.RecordBatch.from_arrays(columns, schema=wanted)


class _Plain(NamedTuple):
    """The last schema whose columns are kept as they come: a task's batches all have the same.

    To find that out again for each of them takes longer than anything else that is done to one
    before it is sent.  Replaced as a whole, so that no lock is needed.
    """

    source: pa.Schema
    declared: pa.Schema | None
    wanted: pa.Schema

    @classmethod
    def of(cls, source: pa.Schema, declared: pa.Schema | None) -> pa.Schema | None:
        """What a batch of this schema only has to be called; ``None`` if nobody knows."""
        last = _Last.plain
        if last is None or last.declared is not declared or not last.source.equals(source):
            return None
        return last.wanted

    @classmethod
    def note(cls, source: pa.Schema, declared: pa.Schema | None, wanted: pa.Schema) -> None:
        """Remember it if there is nothing to convert, to move or to check for nulls."""
        if all(
            one.name == given.name and one.nullable and _same(given.type, one.type)
            for one, given in zip(wanted, source, strict=True)
        ):
            _Last.plain = cls(source, declared, wanted)


class _Last:
    plain: _Plain | None = None


def convert(array: pa.Array, target: pa.DataType, column: str) -> pa.Array:
    """An array as another type."""
    if _same(array.type, target):
        return array
    try:
        return _convert(array, target)
    except pa.ArrowNotImplementedError:
        if array.type.num_fields == 0 and target.num_fields == 0:
            raise _no_way(column, array.type, target) from None
        raise refused(column, array.type) from None
    except (pa.ArrowException, OverflowError):
        raise _value_refused(column, array.type, target) from None


def _no_way(column: str, source: pa.DataType, target: pa.DataType) -> BadRequest:
    return BadRequest(
        "unsupported_type", f"column {column}: there is no way from {source} to {target}."
    )


def _value_refused(column: str, source: pa.DataType, target: pa.DataType) -> BadRequest:
    advice = ""
    if kinds.is_temporal(source) and kinds.is_temporal(target):
        advice = " timestampMode=long_ns gives times in whole nanoseconds."
    return BadRequest(
        "value_refused",
        f"column {column}: a value of type {str(source)[:120]} doesn't fit {str(target)[:120]}, and"
        f" is not cut to fit.{advice}",
    )


def _convert(array: pa.Array, target: pa.DataType) -> pa.Array:
    source = array.type
    if _same(source, target):
        return array
    if not _special(source, target):
        return array.cast(target)
    if is_extension(source):
        return _convert(array.storage, target)
    if is_extension(target):
        return pa.ExtensionArray.from_storage(target, _convert(array, target.storage_type))
    if kinds.is_run_end_encoded(source):
        return _convert(pc.run_end_decode(array), target)
    if kinds.is_run_end_encoded(target):
        return pc.run_end_encode(_convert(array, target.value_type), target.run_end_type)
    if kinds.is_dictionary(source):
        return _convert(array.dictionary_decode(), target)
    if kinds.is_dictionary(target):
        return _convert(array, target.value_type).dictionary_encode().cast(target)
    return _leaf(array, target) if target.num_fields == 0 else _nested(array, target)


def _leaf(array: pa.Array, target: pa.DataType) -> pa.Array:
    source = array.type
    if is_interval(target):
        return _to_interval(array)
    if target == pa.float16():
        return _to_half(array)
    if kinds.is_int64(target):
        return _in_ns(array).cast(target)
    if kinds.is_int64(source):
        return _from_ns(array, target)
    # time64[ns] is how Spark takes a time, but it holds microseconds.
    return array.cast(pa.time64("us")).cast(target)


def _nested(array: pa.Array, target: pa.DataType) -> pa.Array:
    source = array.type
    if is_interval(source) and target == INTERVAL:
        return _from_interval(array)
    if kinds.is_map(source) and kinds.is_map(target):
        return _as_map(array, target)
    if is_list(source) and is_list(target):
        return _as_list(array, target)
    if kinds.is_struct(source) and kinds.is_struct(target):
        return _as_struct(array, target)
    return array.cast(target)


@functools.lru_cache(maxsize=1024)
def _special(source: pa.DataType, target: pa.DataType) -> bool:
    """Whether somewhere inside is what ``cast`` can't do, or doesn't do right."""
    if _odd(source) or _odd(target) or _time_and_number(source, target):
        return True
    if target == pa.float16():
        return True
    if kinds.is_dictionary(target):
        return bool(source != target.value_type or not kinds.is_string(target.value_type))
    if kinds.is_dictionary(source):
        return _special(source.value_type, target)
    if kinds.is_map(source) and kinds.is_map(target):
        return _special(source.key_type, target.key_type) or _special(
            source.item_type, target.item_type
        )
    if is_list(source) and is_list(target):
        return _special(source.value_type, target.value_type)
    if kinds.is_struct(source) and kinds.is_struct(target):
        return any(
            _special(source.field(one.name).type, one.type)
            for one in target
            if source.get_field_index(one.name) >= 0
        )
    return False


@functools.lru_cache(maxsize=1024)
def _same(source: pa.DataType, target: pa.DataType) -> bool:
    """Nothing to do.  ``time64[ns]`` is looked at all the same: Spark's has microseconds."""
    return bool(source == target and str(pa.time64("ns")) not in str(source))


def _odd(kind: pa.DataType) -> bool:
    return bool(
        is_extension(kind)
        or is_interval(kind)
        or is_list_view(kind)
        or kinds.is_run_end_encoded(kind)
    )


def _time_and_number(source: pa.DataType, target: pa.DataType) -> bool:
    def has_unit(kind: pa.DataType) -> bool:
        return bool(kinds.is_timestamp(kind) or kinds.is_time(kind) or kinds.is_duration(kind))

    if has_unit(source) and has_unit(target):
        return bool(source == pa.time64("ns") or target == pa.time64("ns"))
    return (has_unit(source) and kinds.is_int64(target)) or (
        kinds.is_int64(source) and has_unit(target)
    )


# Times as numbers of nanoseconds


def _fine(kind: pa.DataType) -> pa.DataType:
    """The same kind of time, in nanoseconds."""
    if kinds.is_timestamp(kind):
        return pa.timestamp("ns", kind.tz)
    return pa.time64("ns") if kinds.is_time(kind) else pa.duration("ns")


def _in_ns(array: pa.Array) -> pa.Array:
    return array.cast(_fine(array.type))


def _from_ns(array: pa.Array, target: pa.DataType) -> pa.Array:
    return array.cast(_fine(target)).cast(target)


# Half floats


def _to_half(array: pa.Array) -> pa.Array:
    halves = array.cast(pa.float16())
    back = halves.cast(pa.float64())
    if pc.sum(pc.is_inf(back)).as_py() != pc.sum(pc.is_inf(array.cast(pa.float64()))).as_py():
        raise OverflowError
    return halves


# Month-day-nanosecond intervals: 16 bytes each, 4 of months, 4 of days, 8 of nanoseconds

_WIDTH: Final = 16


def _from_interval(array: pa.Array) -> pa.Array:
    rows = range(array.offset, array.offset + len(array))
    data = array.buffers()[1]
    words = pa.Array.from_buffers(pa.int32(), data.size // 4, [None, data])
    longs = pa.Array.from_buffers(pa.int64(), data.size // 8, [None, data])
    parts = [
        words.take(pa.array([4 * row for row in rows], pa.int64())),
        words.take(pa.array([4 * row + 1 for row in rows], pa.int64())),
        longs.take(pa.array([2 * row + 1 for row in rows], pa.int64())),
    ]
    return pa.StructArray.from_arrays(parts, fields=list(INTERVAL), mask=array.is_null())


def _to_interval(array: pa.Array) -> pa.Array:
    if not kinds.is_struct(array.type):
        return array.cast(pa.month_day_nano_interval())
    rows = array.cast(INTERVAL).to_pylist()
    if any(row is not None and None in row.values() for row in rows):
        raise OverflowError  # an interval has all its parts, or is null as a whole
    data = b"".join(
        bytes(_WIDTH) if row is None else struct.pack("<iiq", *row.values()) for row in rows
    )
    valid = None
    if array.null_count:
        valid = pa.array([row is not None for row in rows]).buffers()[1]
    buffers = [valid, pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.month_day_nano_interval(), len(rows), buffers)


# Nested types, part by part


def _as_list(array: pa.Array, target: pa.DataType) -> pa.Array:
    values = _convert(array.flatten(), target.value_type)
    offsets, mask = _offsets(array), _mask(array)
    if is_list_view(target):
        large = kinds.is_large_list_view(target)
        make, width = (
            (pa.LargeListViewArray, pa.int64()) if large else (pa.ListViewArray, pa.int32())
        )
        sizes = pc.subtract(offsets[1:], offsets[:-1])
        starts = offsets[:-1].cast(width)
        return make.from_arrays(starts, sizes.cast(width), values, type=target, mask=mask)
    plain = pa.list_(target.value_field)
    lists = pa.ListArray.from_arrays(offsets, values, type=plain, mask=mask)
    return lists if plain == target else lists.cast(target)


def _as_map(array: pa.Array, target: pa.DataType) -> pa.Array:
    # As lists of entries: keys and items of a map take no notice of a slice.
    entry = pa.struct([array.type.key_field, array.type.item_field])
    lists = array.cast(pa.list_(pa.field("entries", entry, nullable=False)))
    entries = lists.flatten()
    return pa.MapArray.from_arrays(
        _offsets(lists),
        _convert(entries.field(0), target.key_type),
        _convert(entries.field(1), target.item_type),
        type=target,
        mask=_mask(lists),
    )


def _as_struct(array: pa.Array, target: pa.DataType) -> pa.Array:
    parts = []
    for one in target:
        found = array.type.get_field_index(one.name)
        if found < 0:
            parts.append(pa.nulls(len(array), one.type))
        else:
            parts.append(_convert(array.field(found), one.type))
    return pa.StructArray.from_arrays(parts, fields=list(target), mask=_mask(array))


def _mask(array: pa.Array) -> pa.Array | None:
    return array.is_null() if array.null_count else None


def _offsets(lists: pa.Array) -> pa.Array:
    """Where each list begins in what ``flatten`` gives: that leaves out what nulls hide."""
    lengths = pc.fill_null(pc.list_value_length(lists), 0).cast(pa.int32())
    ends = pc.cumulative_sum_checked(lengths)
    return pa.concat_arrays([pa.array([0], pa.int32()), ends])
