"""What every part of a write needs to know, read from options once, on the driver.

Whatever is wrong with a job and can be known before it runs is refused here.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    CalendarIntervalType,
    DataType,
    MapType,
    StringType,
    StructType,
    YearMonthIntervalType,
)

from flight_service.client.errors import BadRequest
from flight_service.client.retry import Retry
from flight_service.client.stream import Stream
from flight_service.protocol.errors import ServiceError
from flight_service.protocol.names import check_name
from spark_client import options as table
from spark_client.credentials import Credentials
from spark_client.failures import explained
from spark_client.options import WRITE, WRITE_STREAM, Values
from spark_client.url import Target

LABEL: Final = "spark"
DEFAULT_SLOT: Final = "Rows"
ABORT_PATIENCE: Final = 10.0
NO_ARROW: Final = (YearMonthIntervalType, CalendarIntervalType)
"""Types Spark can't hand over; it would fail in every task, in words of its own."""


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """One job's way to its stream; travels to every task and back to the driver."""

    target: Target
    credentials: Credentials
    patience: float
    connect_timeout: float
    slot: str
    slot_column: str | None
    bundle_bytes: int
    window: int
    window_bytes: int
    app: str | None
    """As given, or made for this job; a streaming query's is completed by its query's id."""
    version: int | None

    @property
    def retry(self) -> Retry:
        """How long a server is waited for."""
        return Retry(give_up_after=self.patience)

    @contextlib.contextmanager
    def stream(self, *, wait: float | None = None) -> Iterator[Stream]:
        """The stream, over a connection of its own; errors in words for the driver."""
        wait = self.connect_timeout if wait is None else wait
        try:
            with self.credentials.connect(self.target, retry=self.retry, wait=wait) as client:
                yield client.stream(self.target.stream)
        except ServiceError as error:
            raise explained(error, self.target) from None

    def batch_transaction(self) -> tuple[str, int]:
        """The transaction of a batch job."""
        assert self.app is not None
        return self.app, self.version or 0

    def query_transaction(self, query: str | None, batch: str | None) -> tuple[str, int]:
        """The transaction of a micro-batch, from what its task knows about itself."""
        if not query or not batch:
            raise BadRequest(
                "bad_request",
                "Spark doesn't say which query and batch this task is for; without them"
                " nothing can be written exactly once.",
            )
        return f"{self.app or LABEL}/{query}", int(batch)


def batch_plan(given: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkPlan:
    """For ``df.write``; the server is asked whether it is there and lets us in."""
    if overwrite:
        raise _bad('a stream can only be added to: say .mode("append").')
    values = table.read(given, WRITE)
    app, version = values["app"], values["version"]
    if version is not None and app is None:
        raise _bad("version counts the writes of an app: say which, with the option app.")
    name = app if version is not None else f"{app or LABEL}/{uuid.uuid4().hex}"
    plan = _plan(values, schema, name, version)
    with plan.stream() as stream:
        stream.begin(*plan.batch_transaction())
    return plan


def query_plan(given: Mapping[str, str], schema: StructType, overwrite: bool) -> SinkPlan:
    """For ``df.writeStream``."""
    if overwrite:
        raise _bad(
            'a stream can only be added to: say .outputMode("append"); for aggregates with a'
            " watermark, or with foreachBatch and df.write."
        )
    values = table.read(given, WRITE_STREAM)
    return _plan(values, schema, values["app"], None)


def _plan(values: Values, schema: StructType, app: str | None, version: int | None) -> SinkPlan:
    slot, column = values["slot"], values["slotColumn"]
    if slot is not None and column is not None:
        raise _bad("slot and slotColumn are both given: a row goes to one slot.")
    _check_schema(schema, column)
    return SinkPlan(
        target=values.target(),
        credentials=values.credentials(),
        patience=values["retryTimeout"],
        connect_timeout=values["connectTimeout"],
        slot=_slot(slot or DEFAULT_SLOT),
        slot_column=column,
        bundle_bytes=values["bundleBytes"],
        window=values["windowBundles"],
        window_bytes=values["windowBytes"],
        app=app,
        version=version,
    )


def _slot(name: str) -> str:
    try:
        return check_name("slot", name)
    except ServiceError as error:
        raise _bad(error.message) from None


def _check_schema(schema: StructType, slot_column: str | None) -> None:
    names = [field.name for field in schema.fields]
    if slot_column is not None:
        if slot_column not in names:
            raise _bad(f"slotColumn {slot_column!r} is none of the columns: {', '.join(names)}.")
        if not isinstance(schema[slot_column].dataType, StringType):
            raise _bad(f"slotColumn {slot_column!r} must hold text, the names of slots.")
    if len(names) - (slot_column is not None) < 1:
        raise _bad("there are no columns to write.")
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _bad(f"column {', '.join(twice)} comes twice: a stream's columns have one name each.")
    for field in schema.fields:
        _check_type(field.name, field.dataType)


def _check_type(where: str, kind: DataType) -> None:
    if isinstance(kind, StructType):
        for field in kind.fields:
            _check_type(f"{where}.{field.name}", field.dataType)
    elif isinstance(kind, ArrayType):
        _check_type(f"{where}[]", kind.elementType)
    elif isinstance(kind, MapType):
        _check_type(f"{where}.key", kind.keyType)
        _check_type(f"{where}.value", kind.valueType)
    else:
        try:
            supported = not isinstance(kind, NO_ARROW) and bool(to_arrow_type(kind, timezone="UTC"))
        except (PySparkException, KeyError, TypeError):
            supported = False
        if not supported:
            raise _bad(
                f"column {where} is {kind.simpleString()}, which Spark can't hand over as Arrow:"
                " cast it first."
            )


def _bad(message: str) -> BadRequest:
    return BadRequest("bad_request", message)
