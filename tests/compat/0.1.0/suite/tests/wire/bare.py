"""A few lines of bare pyarrow that many tests need."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from flight_service.protocol.errors import ServiceError, from_flight
from flight_service.protocol.wrapper import BY_NAME, unwrap, unwrap_batch, wrap


def logs(*values: int) -> pa.RecordBatch:
    """A small batch."""
    return pa.record_batch({"n": pa.array(values, pa.int64())})


def command(**fields: Any) -> flight.FlightDescriptor:
    """A descriptor."""
    return flight.FlightDescriptor.for_command(json.dumps({"v": 1, **fields}))


def act(client: flight.FlightClient, name: str, **fields: Any) -> dict[str, Any]:
    """Do an action; a refusal is raised as a ``ServiceError``."""
    body = json.dumps({"v": 1, **fields}).encode()
    try:
        (result,) = list(client.do_action(flight.Action(name, body)))
    except (flight.FlightError, pa.ArrowException) as error:
        raise from_flight(error) from None
    answer: dict[str, Any] = json.loads(result.body.to_pybytes())
    return answer


def put_slot(
    client: flight.FlightClient,
    stream: str,
    batches: Iterable[pa.RecordBatch],
    envelopes: Iterable[Mapping[str, Any] | None] | None = None,
    slot: str = "Logs",
    **fields: Any,
) -> list[dict[str, Any]]:
    """Put batches in slot mode, one after the other; their receipts."""
    batches = list(batches)
    where = command(stream=stream, mode="slot", slot=slot, **fields)
    return _put(client, where, batches[0].schema, batches, envelopes)


def put_bundles(
    client: flight.FlightClient,
    stream: str,
    bundles: Iterable[Mapping[str, pa.RecordBatch]],
    envelopes: Iterable[Mapping[str, Any] | None] | None = None,
    **fields: Any,
) -> list[dict[str, Any]]:
    """Put bundles in bundle mode; their receipts."""
    wrapped = [wrap(bundle) for bundle in bundles]
    return _put(client, command(stream=stream, **fields), BY_NAME, wrapped, envelopes)


def _put(
    client: flight.FlightClient,
    where: flight.FlightDescriptor,
    schema: pa.Schema,
    batches: list[pa.RecordBatch],
    envelopes: Iterable[Mapping[str, Any] | None] | None,
) -> list[dict[str, Any]]:
    notes = list(envelopes or [None] * len(batches))
    try:
        writer, reader = client.do_put(where, schema)
        with writer:
            for batch, note in zip(batches, notes, strict=True):
                if note is None:
                    writer.write_batch(batch)
                else:
                    writer.write_with_metadata(batch, json.dumps({"v": 1, **note}).encode())
            writer.done_writing()
            return receipts(reader)
    except (flight.FlightError, pa.ArrowException) as error:
        raise from_flight(error) from None


def receipts(reader: Any, count: int | None = None) -> list[dict[str, Any]]:
    """Receipts until there are ``count``, or no more come."""
    found: list[dict[str, Any]] = []
    while count is None or len(found) < count:
        message = reader.read()
        if message is None:
            break
        found += json.loads(message.to_pybytes())["receipts"]
    return found


def info(client: flight.FlightClient, **fields: Any) -> flight.FlightInfo:
    """GetFlightInfo; a refusal is raised as a ``ServiceError``."""
    try:
        return client.get_flight_info(command(**fields))
    except (flight.FlightError, pa.ArrowException) as error:
        raise from_flight(error) from None


def get(
    client: flight.FlightClient, ticket: Any
) -> list[tuple[dict[str, Any], dict[str, pa.RecordBatch]]]:
    """DoGet in bundle mode: metadata and batches by slot name, of each bundle."""
    found = []
    try:
        for chunk in client.do_get(ticket):
            note = json.loads(chunk.app_metadata.to_pybytes())
            rows = unwrap(chunk.data)
            batches = {
                name: unwrap_batch(row)
                for name, row in zip(note.get("slots", []), rows, strict=True)
            }
            found.append((note, batches))
    except (flight.FlightError, pa.ArrowException) as error:
        raise from_flight(error) from None
    return found


def fails(code: str, call: Any, *args: Any, **kwargs: Any) -> ServiceError:
    """Run a call that must be refused with a code."""
    with pytest.raises(ServiceError) as caught:
        call(*args, **kwargs)
    assert caught.value.code == code, f"{caught.value.code}: {caught.value.message}"
    return caught.value
