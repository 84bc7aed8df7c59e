"""On an executor: the bundles of a share, as the batches Spark wants."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Any, Final

import pyarrow as pa

from flight_service.client.bundle import Bundle
from flight_service.client.errors import ClientError
from flight_service.client.parts import SlotBatch
from flight_service.protocol.names import Ref
from flight_service.protocol.plan import Run
from spark_client.casting import cast_to_spark
from spark_client.source.link import Link
from spark_client.source.problems import ReadError, explained
from spark_client.source.request import BUNDLE, Request
from spark_client.source.schema import INSTANT, METADATA, REF, check_names, newcomers

MAX_NAMED: Final = 20
"""Bundles named one by one in a line of the log."""

_log = logging.getLogger("quiver.spark")


def read_share(
    link: Link, request: Request, schema: pa.Schema, inferred: bool, runs: Sequence[Run] | None
) -> Iterator[pa.RecordBatch]:
    """Everything of a share; Spark asks for none at all when a plan is empty."""
    if runs is None:
        return
    on_gone = None if request.fail_on_loss else _note
    try:
        if request.mode == BUNDLE:
            slots = request.slots or None
            for bundle in link.stream.bundle_part(runs, slots, on_gone=on_gone):
                yield bundle_rows(bundle, schema)
        else:
            shaper = Shaper(request, schema, inferred)
            assert request.slot is not None
            for one in link.stream.slot_part(
                runs, request.slot, shaper.projection, on_gone=on_gone
            ):
                yield shaper.shaped(one)
    except ClientError as error:
        raise explained(error, link.target) from None
    finally:
        link.close()


def _note(gone: list[Ref]) -> None:
    """Data is skipped because failOnDataLoss=false: on record, here and at the server."""
    shown = ", ".join(str(ref) for ref in gone[:MAX_NAMED])
    more = f" and {len(gone) - MAX_NAMED:,} more" if len(gone) > MAX_NAMED else ""
    _log.warning("quiver: %s bundles are gone and skipped: %s%s", f"{len(gone):,}", shown, more)


class Shaper:
    """Batches of a slot, in Spark's schema."""

    def __init__(self, request: Request, schema: pa.Schema, inferred: bool) -> None:
        self._request = request
        self._schema = schema
        self._metadata = METADATA.names if request.metadata else []
        self._data = pa.schema([field for field in schema if field.name not in self._metadata])
        self._strict = inferred and request.fail_on_new
        self._seen: list[pa.Schema] = []
        # Everything is read only where somebody wants to hear of columns that are new.
        everything = self._strict and request.columns is None
        self.projection: list[str] | None = None if everything else self._data.names

    def shaped(self, one: SlotBatch) -> pa.RecordBatch:
        """A bundle's batch, cast, with what is known about the bundle behind it."""
        try:
            self._check(one.batch.schema)
            data = cast_to_spark(one.batch, self._data)
        except ClientError as error:
            raise ReadError(
                error.code,
                f"bundle {one.ref}, slot {self._request.slot}: {error.message} A bundle that came"
                " after the frame was loaded may differ from what was known then: load it again.",
            ) from None
        if not self._metadata:
            return data
        columns = dict(zip(data.schema.names, data.columns, strict=True))
        columns |= self._about(one)
        return pa.RecordBatch.from_arrays(
            [columns[name] for name in self._schema.names], schema=self._schema
        )

    def _check(self, schema: pa.Schema) -> None:
        if any(schema is one or schema.equals(one) for one in self._seen):
            return
        check_names(schema)
        found = newcomers(schema, self._data) if self._strict else []
        if found:
            raise ClientError(
                "new_columns",
                f"{', '.join(found[:MAX_NAMED])}: new since the schema was read. A restarted query"
                " or a frame loaded again has them; newColumns=ignore leaves them out.",
            )
        self._seen = [schema, *self._seen[:7]]

    def _about(self, one: SlotBatch) -> dict[str, pa.Array]:
        values: dict[str, pa.Scalar] = {
            "_ref": pa.scalar(one.ref._asdict(), REF),
            "_sequence": pa.scalar(one.sequence, pa.int64()),
            "_ingested_at": _instant(one.ingestion_ts_ns),
            "_slot": pa.scalar(self._request.slot, pa.string()),
        }
        rows = one.batch.num_rows
        return {name: pa.repeat(value, rows) for name, value in values.items()}


def _instant(time_ns: int | None) -> pa.Scalar:
    return pa.scalar(None if time_ns is None else time_ns // 1_000, INSTANT)


def bundle_rows(bundle: Bundle, schema: pa.Schema) -> pa.RecordBatch:
    """A bundle as rows, one for each slot, with its data as it is."""
    info = bundle.info
    streams = bundle.streams()
    times = info.event_time
    same: dict[str, Any] = {
        "ref": info.ref._asdict(),
        "sequence": info.sequence,
        "ingested_at": None if info.ingestion_ts_ns is None else info.ingestion_ts_ns // 1_000,
        "key": info.key,
        "attributes": list((info.attributes or {}).items()),
        "event_time": times and {"lowest_ns": times[0], "highest_ns": times[1]},
    }
    each: dict[str, list[Any]] = {
        "slot": list(info.slots),
        "schema_fp": [one.fingerprint for one in streams],
        "ipc": [one.ipc.to_pybytes() for one in streams],
    }
    columns = [
        pa.array(
            each[name] if name in each else [same[name]] * len(streams), schema.field(name).type
        )
        for name in schema.names
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)
