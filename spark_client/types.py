"""Arrow types and Spark's, both ways: one rule for each type, and no value changed in silence.

A stream holds any Arrow type; Spark has fewer.  Reading, each type becomes the one that holds
all its values (:func:`to_spark`); where none does, some values or the whole type are refused
by name.  Writing, Spark's own types are kept as they are (:func:`from_spark`), or turned back
into a schema that the caller declares (:func:`spark_client.casting.cast_from_spark`), which
undoes every rule below.  :data:`RULES` is the table of ``docs/spark.md``.

The schemas that :func:`to_spark` gives are exactly those that Spark asks of a data source:
``to_arrow_schema(from_arrow_schema(schema), timezone="UTC")``, all columns nullable.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pyarrow as pa
import pyarrow.types as kinds
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

from flight_service.client.errors import BadRequest

US: Final = "us"
LONG_NS: Final = "long_ns"
MAX_PRECISION: Final = 38

INTERVAL: Final = pa.struct(
    [("months", pa.int32()), ("days", pa.int32()), ("nanoseconds", pa.int64())]
)
"""What a month-day-nanosecond interval is in Spark."""

RULES: Final[tuple[tuple[str, str, str], ...]] = (
    ("bool, int8 to int64, float32, float64", "the same", "as it is"),
    ("uint8, uint16, uint32", "smallint, int, bigint", "negative or too large: refused"),
    ("uint64", "decimal(20,0)", "negative or too large: refused"),
    ("float16", "float", "rounded to the nearest; too large: refused"),
    (
        "decimal32, 64, 128, 256 up to 38 digits",
        "decimal(p,s)",
        "into 256 as well; more than 38 digits: type refused",
    ),
    ("string, large_string, string_view", "string", "as it is"),
    ("binary, large_binary, binary_view", "binary", "as it is"),
    ("fixed_size_binary(n)", "binary", "another length: refused"),
    ("date32, date64", "date", "as it is"),
    (
        "timestamp in s, ms, us; with a zone",
        "timestamp (the instant; UTC)",
        "the zone is the declared one's",
    ),
    ("timestamp in s, ms, us; no zone", "timestamp_ntz", "as it is"),
    (
        "timestamp in ns",
        "`us`: timestamp, finer values refused; `long_ns`: bigint, ns since 1970",
        "outside 1677 to 2262: refused",
    ),
    ("time32, time64", "time(6); finer values refused, bigint with `long_ns`", "as it is"),
    (
        "duration",
        "interval day to second; finer values refused, bigint with `long_ns`",
        "as it is",
    ),
    (
        "month_day_nano_interval",
        "struct(months int, days int, nanoseconds bigint)",
        "from that struct",
    ),
    ("list, large_list, list_view", "array", "as it is"),
    ("fixed_size_list(n)", "array", "another length: refused"),
    ("struct, map", "struct, map", "field by field, as these rules say"),
    ("dictionary, run-end encoded", "as their values", "encoded again"),
    ("extension types", "as their storage", "the declared type again"),
    ("null", "void", "as it is"),
    ("union", "refused: read it in `bundle` mode", "refused"),
)
"""Arrow, in Spark, and back into a declared schema."""

Mode = str


def to_spark(schema: pa.Schema, timestamp_mode: Mode = US) -> pa.Schema:
    """The Arrow schema that Spark gets for a stream's; ``timestamp_mode`` is us or long_ns."""
    return pa.schema(
        [pa.field(one.name, spark_type(one.type, timestamp_mode, one.name)) for one in schema]
    )


def struct_type(schema: pa.Schema, timestamp_mode: Mode = US) -> StructType:
    """The Spark schema for a stream's."""
    return from_arrow_schema(to_spark(schema, timestamp_mode))


def from_spark(schema: pa.Schema) -> pa.Schema:
    """What is kept of a frame unless another schema is declared.

    Spark's own types, except that times are in UTC whatever the session's zone is, and that
    the plain kinds stand for the large ones: the same rows give the same bytes.
    """
    return pa.schema([pa.field(one.name, _kept(one.type)) for one in schema])


def spark_type(kind: pa.DataType, mode: Mode, column: str) -> pa.DataType:
    """One type's rule; ``column`` is for the message if there is none."""
    for applies, rule in _NESTED:
        if applies(kind):
            return rule(kind, mode, column)
    for applies, known in _PLAIN:
        if applies(kind):
            return known
    if kinds.is_timestamp(kind):
        fine = kind.unit == "ns" and mode == LONG_NS
        return pa.int64() if fine else pa.timestamp("us", "UTC" if kind.tz else None)
    if kinds.is_time(kind):
        return pa.int64() if kind.unit == "ns" and mode == LONG_NS else pa.time64("ns")
    if kinds.is_duration(kind):
        return pa.int64() if kind.unit == "ns" and mode == LONG_NS else pa.duration("us")
    if kinds.is_decimal(kind):
        return _decimal(kind, column)
    raise refused(column, kind)


def refused(column: str, kind: pa.DataType) -> BadRequest:
    """A type that has no place in Spark."""
    return BadRequest(
        "unsupported_type",
        f"column {column}: Spark has no type for {str(kind)[:200]}. Leave the column out with the"
        " option columns, or read whole bundles with mode=bundle, which carries everything.",
    )


def _decimal(kind: pa.DataType, column: str) -> pa.DataType:
    # A negative scale stands for zeros at the end, and Spark has none.
    precision, scale = kind.precision, kind.scale
    if scale < 0:
        precision, scale = precision - scale, 0
    if precision > MAX_PRECISION or scale > precision:
        raise refused(column, kind)
    return pa.decimal128(precision, scale)


def _list(kind: pa.DataType, mode: Mode, column: str) -> pa.DataType:
    return pa.list_(pa.field("element", spark_type(kind.value_type, mode, f"{column}[]")))


def _map(kind: pa.DataType, mode: Mode, column: str) -> pa.DataType:
    return pa.map_(
        spark_type(kind.key_type, mode, f"{column}.key"),
        spark_type(kind.item_type, mode, f"{column}.value"),
    )


def _struct(kind: pa.DataType, mode: Mode, column: str) -> pa.DataType:
    return pa.struct(
        [pa.field(one.name, spark_type(one.type, mode, f"{column}.{one.name}")) for one in kind]
    )


def _value(kind: pa.DataType, mode: Mode, column: str) -> pa.DataType:
    return spark_type(kind.value_type, mode, column)


def _storage(kind: pa.DataType, mode: Mode, column: str) -> pa.DataType:
    return spark_type(kind.storage_type, mode, column)


def is_list(kind: pa.DataType) -> bool:
    """Any of the five kinds of list."""
    return bool(
        kinds.is_list(kind)
        or kinds.is_large_list(kind)
        or kinds.is_fixed_size_list(kind)
        or is_list_view(kind)
    )


def is_list_view(kind: pa.DataType) -> bool:
    """A list whose entries may lie anywhere."""
    return bool(kinds.is_list_view(kind) or kinds.is_large_list_view(kind))


def is_extension(kind: pa.DataType) -> bool:
    """A type with another one inside."""
    return isinstance(kind, pa.BaseExtensionType)


def is_interval(kind: pa.DataType) -> bool:
    """Months, days and nanoseconds."""
    return bool(kind == pa.month_day_nano_interval())


_Rule = Callable[[pa.DataType, Mode, str], pa.DataType]

_NESTED: Final[tuple[tuple[Callable[[pa.DataType], bool], _Rule], ...]] = (
    (is_extension, _storage),
    (kinds.is_dictionary, _value),
    (kinds.is_run_end_encoded, _value),
    (is_list, _list),
    (kinds.is_map, _map),
    (kinds.is_struct, _struct),
)


def _one_of(*types: pa.DataType) -> Callable[[pa.DataType], bool]:
    return frozenset(types).__contains__


_SAME: Final = (
    *(pa.null(), pa.bool_(), pa.int8(), pa.int16(), pa.int32(), pa.int64()),
    *(pa.float32(), pa.float64()),
)
_PLAIN: Final[tuple[tuple[Callable[[pa.DataType], bool], pa.DataType], ...]] = (
    *((_one_of(kind), kind) for kind in _SAME),
    (_one_of(pa.uint8()), pa.int16()),
    (_one_of(pa.uint16()), pa.int32()),
    (_one_of(pa.uint32()), pa.int64()),
    (_one_of(pa.uint64()), pa.decimal128(20, 0)),
    (_one_of(pa.float16()), pa.float32()),
    (_one_of(pa.string(), pa.large_string(), pa.string_view()), pa.string()),
    (_one_of(pa.binary(), pa.large_binary(), pa.binary_view()), pa.binary()),
    (kinds.is_fixed_size_binary, pa.binary()),
    (_one_of(pa.date32(), pa.date64()), pa.date32()),
    (is_interval, INTERVAL),
)


def _kept(kind: pa.DataType) -> pa.DataType:
    if kinds.is_timestamp(kind):
        return pa.timestamp(kind.unit, "UTC" if kind.tz else None)
    if is_list(kind):
        return pa.list_(pa.field("element", _kept(kind.value_type)))
    if kinds.is_map(kind):
        return pa.map_(_kept(kind.key_type), _kept(kind.item_type))
    if kinds.is_struct(kind):
        return pa.struct([pa.field(one.name, _kept(one.type)) for one in kind])
    if kind in (pa.large_string(), pa.string_view()):
        return pa.string()
    return pa.binary() if kind in (pa.large_binary(), pa.binary_view()) else kind


def described() -> str:
    """The table of ``docs/spark.md``."""
    rows = ["| Arrow, in the stream | in Spark | back into a declared schema |", "|---|---|---|"]
    rows += [f"| {arrow} | {spark} | {back} |" for arrow, spark, back in RULES]
    return "\n".join(rows)
