"""One schema for a slot whose schemas drift.

Every schema the stream has for the slot counts: their columns together, in the order they
came; a column that differs gets the widest of its types; what a bundle lacks is null.  Types
widen where every value survives, or is refused by name: whole numbers among themselves and
into decimals and floats, decimals, times of different units, structs by their fields, lists
and maps by what is in them.  Others don't mix.  Schemas of bundles that are gone count too, as
far as the server remembers them.
"""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import pyarrow as pa
import pyarrow.types as kinds
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import StructType

from flight_service.client.errors import BadRequest
from spark_client.types import is_extension, is_list, spark_type, to_spark

REF: Final = pa.struct([("segment", pa.int64()), ("bundle", pa.int64())])
INSTANT: Final = pa.timestamp("us", "UTC")
METADATA: Final = pa.schema(
    [("_ref", REF), ("_sequence", pa.int64()), ("_ingested_at", INSTANT), ("_slot", pa.string())]
)
"""Columns that ``includeMetadata`` adds, behind those of the data."""
BUNDLES: Final = pa.schema(
    [
        ("ref", REF),
        ("sequence", pa.int64()),
        ("ingested_at", INSTANT),
        ("key", pa.string()),
        ("attributes", pa.map_(pa.string(), pa.string())),
        ("event_time", pa.struct([("lowest_ns", pa.int64()), ("highest_ns", pa.int64())])),
        ("slot", pa.string()),
        ("schema_fp", pa.binary()),
        ("ipc", pa.binary()),
    ]
)
"""``mode=bundle``: a row is one slot of one bundle, its data an Arrow IPC stream."""
UNITS: Final = ("s", "ms", "us", "ns")
DIGITS: Final = {pa.int8(): 3, pa.int16(): 5, pa.int32(): 10, pa.int64(): 19}
MAX_PRECISION: Final = 38


def spark_schema(arrow: pa.Schema) -> StructType:
    """As Spark names it."""
    return from_arrow_schema(arrow)


def arrow_schema(schema: StructType) -> pa.Schema:
    """What Spark wants its batches to be."""
    return to_arrow_schema(schema, timezone="UTC")


def slot_schema(
    schemas: Sequence[pa.Schema],
    earlier: Sequence[pa.Schema] = (),
    *,
    columns: Sequence[str] | None,
    metadata: bool,
    timestamp_mode: str,
) -> pa.Schema:
    """The Arrow schema Spark gets for a slot."""
    fields = union(schemas, earlier, columns)
    found = to_spark(pa.schema(list(fields.items())), timestamp_mode)
    if not metadata:
        return found
    taken = [name for name in METADATA.names if name in found.names]
    if taken:
        raise _bad(
            f"the stream has a column {taken[0]} of its own: leave includeMetadata out, or leave"
            " that column out with the option columns."
        )
    return pa.schema([*found, *METADATA])


def pick_slot(schemas: Mapping[str, Sequence[pa.Schema]], slot: str | None) -> str:
    """The slot to read: the one named, or the only one there is."""
    if slot is not None and slot in schemas:
        return slot
    if not schemas:
        raise _bad(
            "the stream has no bundles, so nobody knows its schema yet: put one first, or say"
            " which schema with .schema(…)."
        )
    known = ", ".join(schemas)
    if slot is not None:
        raise _bad(f"no bundle of the stream has the slot {slot!r}; there are {known}.")
    if len(schemas) > 1:
        raise _bad(
            f'the stream has several slots: {known}. Say which with .option("slot", …), or read'
            " them all with mode=bundle."
        )
    return next(iter(schemas))


def union(
    schemas: Sequence[pa.Schema],
    earlier: Sequence[pa.Schema] = (),
    columns: Sequence[str] | None = None,
) -> dict[str, pa.DataType]:
    """All columns, or those named in that order, each with its widest type.

    ``earlier`` ones belong to bundles that are gone: they add columns and widen types, so that
    a query that is started again finds what it knew, but they don't stand in the way.
    """
    found: dict[str, pa.DataType] = {}
    for schema in schemas:
        check_names(schema)
        for field in _chosen(schema, columns):
            _widen(found, field)
    for schema in earlier:
        for field in _chosen(schema, columns):
            with contextlib.suppress(BadRequest):
                _widen(found, field)
    if columns is None:
        return found
    for name in columns:
        if name not in found:
            raise _unknown(name, [*schemas, *earlier])
    return {name: found[name] for name in columns}


def _chosen(schema: pa.Schema, columns: Sequence[str] | None) -> list[pa.Field]:
    return [field for field in schema if columns is None or field.name in columns]


def _widen(found: dict[str, pa.DataType], field: pa.Field) -> None:
    kind = settled(field.type, field.name)
    known = found.get(field.name)
    found[field.name] = kind if known is None else widest(known, kind, field.name)


def check_names(schema: pa.Schema) -> None:
    """A name that comes twice can't be asked for."""
    if len(set(schema.names)) != len(schema.names):
        twice = next(name for name in schema.names if schema.names.count(name) > 1)
        raise _bad(f"column {twice!r} comes twice in a bundle: read it with mode=bundle.")


def settled(kind: pa.DataType, column: str) -> pa.DataType:
    """A type as Spark's rules have it, except that times keep their units for now."""
    if is_extension(kind):
        return settled(kind.storage_type, column)
    if kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind):
        return settled(kind.value_type, column)
    if is_list(kind):
        return pa.list_(pa.field("element", settled(kind.value_type, f"{column}[]")))
    if kinds.is_map(kind):
        return pa.map_(
            settled(kind.key_type, f"{column}.key"), settled(kind.item_type, f"{column}.value")
        )
    if kinds.is_struct(kind):
        return pa.struct([(one.name, settled(one.type, f"{column}.{one.name}")) for one in kind])
    if kinds.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC" if kind.tz else None)
    if kinds.is_time(kind) or kinds.is_duration(kind):
        return kind
    return spark_type(kind, "us", column)


def widest(one: pa.DataType, other: pa.DataType, column: str) -> pa.DataType:
    """The type that holds what either holds; both are :func:`settled`."""
    if one == other or kinds.is_null(other):
        return one
    if kinds.is_null(one):
        return other
    for rule in (_number, _time, _nested):
        found = rule(one, other, column)
        if found is not None:
            return found
    raise _bad(
        f"column {column} is {one} in some bundles and {other} in others, which nothing holds both"
        " of: leave it out with the option columns, say one type with .schema(…), or read with"
        " mode=bundle.",
        code="schema_conflict",
    )


def _number(one: pa.DataType, other: pa.DataType, column: str) -> pa.DataType | None:
    if one in DIGITS and other in DIGITS:
        return max(one, other, key=lambda kind: DIGITS[kind])
    floats = [kind for kind in (one, other) if kinds.is_floating(kind)]
    if floats and all(kinds.is_floating(kind) or kind in DIGITS for kind in (one, other)):
        # A whole number that a float can't tell from its neighbour is refused when cast.
        narrow = {*floats, one, other} <= {pa.float32(), pa.int8(), pa.int16()}
        return pa.float32() if narrow else pa.float64()
    if all(kinds.is_decimal(kind) or kind in DIGITS for kind in (one, other)):
        return _decimal(one, other)
    return None


def _decimal(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    whole, scale = 0, 0
    for kind in (one, other):
        precision, after = (DIGITS[kind], 0) if kind in DIGITS else (kind.precision, kind.scale)
        whole, scale = max(whole, precision - after), max(scale, after)
    return pa.decimal128(whole + scale, scale) if whole + scale <= MAX_PRECISION else None


def _time(one: pa.DataType, other: pa.DataType, column: str) -> pa.DataType | None:
    if not all(
        kinds.is_timestamp(kind) or kinds.is_time(kind) or kinds.is_duration(kind)
        for kind in (one, other)
    ):
        return None
    finer = max(one.unit, other.unit, key=UNITS.index)
    if kinds.is_timestamp(one) and kinds.is_timestamp(other) and one.tz == other.tz:
        return pa.timestamp(finer, one.tz)
    if kinds.is_duration(one) and kinds.is_duration(other):
        return pa.duration(finer)
    if kinds.is_time(one) and kinds.is_time(other):
        return pa.time64(finer) if finer in ("us", "ns") else pa.time32(finer)
    return None


def _nested(one: pa.DataType, other: pa.DataType, column: str) -> pa.DataType | None:
    if kinds.is_list(one) and kinds.is_list(other):
        inner = widest(one.value_type, other.value_type, f"{column}[]")
        return pa.list_(pa.field("element", inner))
    if kinds.is_map(one) and kinds.is_map(other):
        return pa.map_(
            widest(one.key_type, other.key_type, f"{column}.key"),
            widest(one.item_type, other.item_type, f"{column}.value"),
        )
    if kinds.is_struct(one) and kinds.is_struct(other):
        fields = {field.name: field.type for field in one}
        for field in other:
            known = fields.get(field.name)
            path = f"{column}.{field.name}"
            fields[field.name] = field.type if known is None else widest(known, field.type, path)
        return pa.struct(list(fields.items()))
    return None


def newcomers(schema: pa.Schema, known: pa.Schema) -> list[str]:
    """Columns, and fields of structs, that a bundle has and Spark's schema has not."""
    return [
        path
        for field in schema
        for path in (
            [field.name]
            if known.get_field_index(field.name) < 0
            else _new_fields(field.type, known.field(field.name).type, field.name)
        )
    ]


def _new_fields(kind: pa.DataType, known: pa.DataType, path: str) -> Iterator[str]:
    if is_extension(kind):
        yield from _new_fields(kind.storage_type, known, path)
    elif kinds.is_dictionary(kind) or kinds.is_run_end_encoded(kind):
        yield from _new_fields(kind.value_type, known, path)
    elif is_list(kind) and kinds.is_list(known):
        yield from _new_fields(kind.value_type, known.value_type, f"{path}[]")
    elif kinds.is_map(kind) and kinds.is_map(known):
        yield from _new_fields(kind.item_type, known.item_type, f"{path}.value")
    elif kinds.is_struct(kind) and kinds.is_struct(known):
        for field in kind:
            inside = f"{path}.{field.name}"
            if known.get_field_index(field.name) < 0:
                yield inside
            else:
                yield from _new_fields(field.type, known.field(field.name).type, inside)


def _unknown(name: str, schemas: Iterable[pa.Schema]) -> BadRequest:
    known = list(dict.fromkeys(one for schema in schemas for one in schema.names))
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" Did you mean {near[0]!r}?" if near else ""
    return _bad(f"no bundle has a column {name!r}.{hint} There are {', '.join(known)[:500]}.")


def _bad(message: str, code: str = "bad_request") -> BadRequest:
    return BadRequest(code, message)
