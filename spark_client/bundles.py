"""Putting frames into a stream: functions for ``mapInArrow`` and its kin, and one that runs it.

``mapInArrow`` is lazy, and every action runs it again.  :func:`write_bundles` runs it once and
says what was put; whoever uses :func:`put_slot` by hand should end with one action that reads
all receipts.  Running twice is harmless where partitions are deterministic: the keys are the
same, and the server keeps one of each.

Exactly once holds for deterministic partitions only: tasks that, run again, give the same rows
in the same order.  A repeat that brings other rows is refused and fails the job; use
``df.write.format("quiver")`` for such frames.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame
from pyspark.sql.types import CalendarIntervalType, YearMonthIntervalType

from flight_service.client.errors import BadRequest, Disconnected
from flight_service.protocol.errors import ServiceError
from flight_service.protocol.names import check_name
from spark_client import options as table
from spark_client.failures import explained, from_spark
from spark_client.groups import Groups
from spark_client.keys import Keys
from spark_client.layout import Columns, Layout, whole_frame
from spark_client.options import PUT
from spark_client.producer import Extras, Producer, Route
from spark_client.receipts import RECEIPTS, Summary, summed
from spark_client.shipping import ship, ship_grouped
from spark_client.url import Target

Batches = Iterator[pa.RecordBatch]
Mapped = Callable[[Batches], Batches]
Grouped = Callable[[Any, pa.Table, pa.Table], pa.Table]
Schemas = Mapping[str, pa.Schema]
FIRST_CONTACT = 5.0
"""How long the driver waits for the server before it starts a job."""


def put_slot(
    url: str,
    slot: str,
    *,
    job: str | None = None,
    schema: pa.Schema | None = None,
    attributes: Mapping[str, str] | None = None,
    event_time: str | None = None,
    **options: object,
) -> Mapped:
    """Every batch a bundle with one slot::

        df.mapInArrow(put_slot("quiver://host:8815/telemetry", slot="Logs"), RECEIPTS)

    ``job`` names the job in the idempotency keys: give the same one to a job that is run again
    after a failure, and what it has put already is not put twice.  ``schema`` declares what the
    stream is to hold, where that isn't Spark's own types.  ``attributes`` are kept with each
    bundle; ``event_time`` names the column that tells when rows happened.  Other options are
    those of the table in ``docs/spark.md`` (``token_file=…``, ``retry_timeout="1m"``).
    """
    layout = whole_frame(slot, schema)
    return _mapped("put_slot", url, layout, slot, job, Extras(attributes, event_time), options)


def put_bundles(
    url: str,
    slots: Mapping[str, Columns],
    *,
    job: str | None = None,
    schemas: Schemas | None = None,
    attributes: Mapping[str, str] | None = None,
    event_time: str | None = None,
    **options: object,
) -> Mapped:
    """Every batch a bundle with several slots, each with its columns::

        put_bundles(url, {"Logs": ["id", "body"],
                          "LogAttrs": Nested("attributes", keys={"id": "parent_id"})})

    A child table may lie in a column of arrays of structs: see :class:`Nested`.
    """
    layout = Layout.of(slots, schemas)
    sink = "+".join(slots)
    return _mapped("put_bundles", url, layout, sink, job, Extras(attributes, event_time), options)


def put_cogroups(
    url: str,
    left: str,
    right: str,
    *,
    job: str | None = None,
    schemas: Schemas | None = None,
    attributes: Mapping[str, str] | None = None,
    event_time: str | None = None,
    **options: object,
) -> Grouped:
    """Every group of two co-grouped frames a bundle, parents and children together::

        logs.groupBy("batch").cogroup(attrs.groupBy("batch")).applyInArrow(
            put_cogroups(url, "Logs", "LogAttrs"), RECEIPTS)

    A bundle is named by its group's key, so it doesn't matter which task makes it; what comes
    out of a shuffle has no order, so sort inside groups if tasks may be run again.
    """
    if left == right:
        raise BadRequest("bad_request", f"both frames are for slot {left}: name two.")
    for slot in (left, right):
        check_name("slot", slot)
    keys = _keys(job, f"{left}+{right}")
    groups = Groups(
        _route(url, options),
        (left, right),
        dict(schemas or {}),
        keys,
        Extras(attributes, event_time),
    )
    return ship_grouped(groups, "put_cogroups")


def write_bundles(
    frame: DataFrame | Mapping[str, DataFrame],
    url: str,
    *,
    slot: str | None = None,
    slots: Mapping[str, Columns] | None = None,
    by: str | Sequence[str] | None = None,
    job: str | None = None,
    **rest: Any,
) -> Summary:
    """Put a frame, now and once, and say what was put::

        write_bundles(df, url, slot="Logs")
        write_bundles(df, url, slots={"Logs": ["id", "body"], "Tags": Nested("tags")})
        write_bundles({"Logs": logs, "LogAttrs": attrs}, url, by="batch")

    The last form puts two frames together: all rows that agree in ``by`` are one bundle.  The
    server is asked first, so a wrong address or token is told at once; a failure in a task
    comes as :class:`~spark_client.failures.PutFailed` with the reason alone.
    """
    for one in frame.values() if isinstance(frame, Mapping) else [frame]:
        _check_types(one, url)
    if isinstance(frame, Mapping):
        receipts = _grouped(frame, url, slot or slots, by, job, rest)
    elif (slot is None) == (slots is None) or by is not None:
        raise BadRequest(
            "bad_request", "say slot=… or slots={…}, one of them; by is for two frames."
        )
    elif slot is not None:
        receipts = frame.mapInArrow(put_slot(url, slot, job=job, **rest), RECEIPTS)
    else:
        assert slots is not None
        receipts = frame.mapInArrow(put_bundles(url, slots, job=job, **rest), RECEIPTS)
    _first_contact(url, rest)
    try:
        return summed(receipts, job)
    except PySparkException as error:
        mine = from_spark(error)
        if mine is None:
            raise
        raise mine from None


def _check_types(frame: DataFrame, url: str) -> None:
    """Spark fails in a task, with a bare number, for types that it can't hand to Python."""
    for field in frame.schema.fields:
        if isinstance(field.dataType, YearMonthIntervalType | CalendarIntervalType):
            kind = field.dataType.simpleString()
            error = BadRequest(
                "unsupported_type",
                f"column {field.name}: Spark has no way to hand {kind} to Python; cast it, for"
                " example to a number of months",
            )
            raise explained(error, Target.parse(url))


def _grouped(
    frames: Mapping[str, DataFrame],
    url: str,
    slots: object,
    by: str | Sequence[str] | None,
    job: str | None,
    rest: dict[str, Any],
) -> DataFrame:
    if slots is not None or by is None or len(frames) != 2:
        raise BadRequest(
            "bad_request",
            "several frames: give two, as {slot: frame}, and by=… with the columns that say which"
            " rows belong together. For more, make arrays of structs and use slots with Nested.",
        )
    names = [by] if isinstance(by, str) else list(by)
    (left, parents), (right, children) = frames.items()
    both = parents.groupBy(*names).cogroup(children.groupBy(*names))
    return both.applyInArrow(put_cogroups(url, left, right, job=job, **rest), RECEIPTS)


def _mapped(
    name: str,
    url: str,
    layout: Layout,
    sink: str,
    job: str | None,
    extras: Extras,
    options: Mapping[str, object],
) -> Mapped:
    return ship(Producer(_route(url, options), layout, _keys(job, sink), extras), name)


def _keys(job: str | None, sink: str) -> Keys:
    if job is not None and not job.strip():
        raise BadRequest("bad_request", "job is empty: give it a name, or leave it out.")
    return Keys(job or secrets.token_hex(8), job or sink)


def _route(url: str, options: Mapping[str, object]) -> Route:
    # Python's names for what Spark calls otherwise: retry_timeout is retryTimeout.
    said = {name.replace("_", ""): str(value) for name, value in options.items()}
    values = table.read({"url": url, **said}, PUT)
    return Route(
        target=values.target(),
        credentials=values.credentials(),
        retry=values.retry(),
        connect_timeout=values["connectTimeout"],
        window=values["windowBundles"],
        window_bytes=values["windowBytes"],
        bundle_bytes=values["bundleBytes"],
    )


def _first_contact(url: str, rest: Mapping[str, Any]) -> None:
    """Ask the server from the driver: what can't work is told before a job starts.

    Whoever may put need not be allowed to look, so only what is certain counts.
    """
    named = ("schema", "schemas", "attributes", "event_time")
    route = _route(url, {name: one for name, one in rest.items() if name not in named})
    wait = min(FIRST_CONTACT, route.connect_timeout)
    try:
        with route.credentials.connect(route.target, retry=route.retry, wait=wait) as client:
            client.stream(route.target.stream).status()
    except ServiceError as error:
        certain = error.code == "unauthenticated" or isinstance(error, Disconnected)
        if certain or error.details.get("auto_create") is False:
            raise explained(error, route.target) from None
