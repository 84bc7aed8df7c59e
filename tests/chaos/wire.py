"""A few lines of bare ``pyarrow.flight``: no import of the product's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

CALL_SECONDS: Final = 8.0
"""Longest time of one call: a half-open connection ends it, too."""
FAILURES: Final = (flight.FlightError, pa.ArrowException, OSError, StopIteration)
"""What a call may raise."""


def options() -> flight.FlightCallOptions:
    """Every call has a deadline."""
    return flight.FlightCallOptions(timeout=CALL_SECONDS)


def connect(url: str) -> flight.FlightClient:
    """A client that tries a lost connection again soon.

    The smallest backoff is also the time that an attempt to connect may take.
    """
    return flight.FlightClient(
        url,
        generic_options=[
            ("grpc.initial_reconnect_backoff_ms", 20),
            ("grpc.min_reconnect_backoff_ms", 2000),
            ("grpc.max_reconnect_backoff_ms", 200),
        ],
    )


def command(**fields: Any) -> flight.FlightDescriptor:
    """A descriptor."""
    return flight.FlightDescriptor.for_command(json.dumps({"v": 1, **fields}))


def act(client: flight.FlightClient, name: str, **fields: Any) -> dict[str, Any]:
    """Do an action."""
    body = json.dumps({"v": 1, **fields}).encode()
    (result,) = list(client.do_action(flight.Action(name, body), options()))
    answer: dict[str, Any] = json.loads(result.body.to_pybytes())
    return answer


def code_of(error: BaseException) -> str:
    """The server's own word for a refusal; empty if it is not the server's."""
    said = getattr(error, "extra_info", None)
    try:
        return str(json.loads(said)["code"]) if said else ""
    except (ValueError, KeyError):
        return ""


def bundles(
    client: flight.FlightClient, ticket: flight.Ticket
) -> Iterator[tuple[list[int], dict[str, pa.RecordBatch]]]:
    """DoGet in bundle mode: each ref with its batches."""
    for about, batches in told_bundles(client, ticket):
        yield about["ref"], batches


def told_bundles(
    client: flight.FlightClient, ticket: flight.Ticket
) -> Iterator[tuple[dict[str, Any], dict[str, pa.RecordBatch]]]:
    """DoGet in bundle mode: all that is told of each bundle, and its batches."""
    for chunk in client.do_get(ticket, options()):
        about = json.loads(chunk.app_metadata.to_pybytes())
        batches = {}
        for name, ipc in zip(about.get("slots", ()), chunk.data.column("ipc"), strict=True):
            with pa.ipc.open_stream(ipc.as_buffer()) as reader:
                batches[name] = reader.read_next_batch()
        yield about, batches


def put(
    client: flight.FlightClient,
    stream: str,
    slot: str,
    batches: list[tuple[pa.RecordBatch, dict[str, Any]]],
) -> Iterator[dict[str, Any]]:
    """Put batches in slot mode; the receipts, as they come, until the call is over."""
    where = command(stream=stream, mode="slot", slot=slot)
    writer, reader = client.do_put(where, batches[0][0].schema, options())
    try:
        for batch, envelope in batches:
            writer.write_with_metadata(batch, json.dumps({"v": 1, **envelope}).encode())
        writer.done_writing()
        while (message := reader.read()) is not None:
            yield from json.loads(message.to_pybytes())["receipts"]
    finally:
        writer.close()
