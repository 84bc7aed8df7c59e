"""Requests to a server as they went over the wire, and what it answered, as plain values.

A conversation is a list of steps, each one call.  The generators of the golden conversations
play them to the release's own server and keep its answers; the tests play them to the current
server and compare.  Bodies are sent as they were written down, byte for byte; ``$name`` in one
stands for a value that an earlier answer had (a lease, say).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from tests.compat.reading import pack, unpack

Step = Mapping[str, Any]

VARIES: Final = frozenset({"lease", "expires_ns", "message", "age_seconds"})
"""Fields whose value is the server's own choice, by its clock or by chance."""
FREE: Final = frozenset({"work", "server", "streams", "subscribers", "details", "policy"})
"""Objects that may say more from version to version: what was said must still be."""


class Player:
    """Plays steps to a server, through bare pyarrow."""

    def __init__(self, client: flight.FlightClient) -> None:
        self._client = client
        self._names: dict[str, Any] = {}
        self._calls: dict[str, Callable[[Step], Any]] = {
            "action": self._action,
            "info": self._info,
            "schema": self._schema,
            "get": self._get,
            "put": self._put,
            "exchange": self._exchange,
            "list": self._list,
        }

    def play(self, step: Step) -> Any:
        """Do one call; its answer, or the refusal."""
        try:
            answer = self._calls[step["call"]](step)
        except (flight.FlightError, pa.ArrowException) as error:
            told = json.loads(error.extra_info)
            return {"error": type(error).__name__, **told}
        for name, path in step.get("capture", {}).items():
            value = answer
            for part in path:
                value = value[part]
            self._names[name] = value
        return answer

    def _said(self, text: str) -> bytes:
        """What is sent; a name in quotes is replaced with them."""
        for name, value in self._names.items():
            text = text.replace(f'"${name}"', json.dumps(value))
        assert '"$' not in text, text
        return text.encode()

    def _descriptor(self, step: Step) -> flight.FlightDescriptor:
        if "path" in step:
            return flight.FlightDescriptor.for_path(*step["path"])
        return flight.FlightDescriptor.for_command(self._said(step["command"]))

    def _action(self, step: Step) -> Any:
        body = self._said(step["body"])
        results = list(self._client.do_action(flight.Action(step["type"], body)))
        assert len(results) == 1
        return json.loads(results[0].body.to_pybytes())

    def _info(self, step: Step) -> Any:
        info = self._client.get_flight_info(self._descriptor(step))
        return {
            "schema": _packed_schema(info.schema),
            "about": _json(info.app_metadata),
            "endpoints": [
                {
                    "ticket": _ticket(one.ticket.ticket),
                    "about": _json(one.app_metadata),
                    "expires": one.expiration_time is not None,
                    "locations": len(one.locations),
                }
                for one in info.endpoints
            ],
        }

    def _schema(self, step: Step) -> Any:
        return _packed_schema(self._client.get_schema(self._descriptor(step)).schema)

    def _get(self, step: Step) -> Any:
        chunks = list(self._client.do_get(flight.Ticket(self._said(step["ticket"]))))
        return [
            {"about": _json(one.app_metadata), "rows": _wrapped(one.data)}
            if one.app_metadata is not None
            else {"data": pack(one.data)}
            for one in chunks
        ]

    def _put(self, step: Step) -> Any:
        messages = [(unpack(one["data"]), one.get("about")) for one in step["messages"]]
        writer, reader = self._client.do_put(self._descriptor(step), messages[0][0].schema)
        receipts: list[Any] = []
        with writer:
            for batch, about in messages:
                if about is None:
                    writer.write_batch(batch)
                else:
                    writer.write_with_metadata(batch, self._said(about))
            writer.done_writing()
            while (answer := reader.read()) is not None:
                receipts += json.loads(answer.to_pybytes())["receipts"]
        return receipts

    def _exchange(self, step: Step) -> Any:
        writer, reader = self._client.do_exchange(self._descriptor(step))
        heard: list[Any] = []
        for line in step["script"]:
            if line == "hear":
                chunk = reader.read_chunk()
                about = _json(chunk.app_metadata)
                rows = None if chunk.data is None else _wrapped(chunk.data)
                heard.append({"about": about, "rows": rows})
                self._names[f"heard{len(heard) - 1}"] = about.get("ref")
            else:
                writer.write_metadata(self._said(line))
        writer.done_writing()
        writer.close()
        return heard

    def _list(self, step: Step) -> Any:
        if step["what"] == "actions":
            return sorted(one.type for one in self._client.list_actions())
        flights = self._client.list_flights()
        return sorted([part.decode() for part in one.descriptor.path] for one in flights)


def _json(data: Any) -> Any:
    return json.loads(bytes(data)) if data else None


def _packed_schema(schema: pa.Schema | None) -> str | None:
    if schema is None:
        return None
    return pack(pa.RecordBatch.from_arrays([pa.array([], f.type) for f in schema], schema=schema))


def _wrapped(batch: pa.RecordBatch) -> list[Any]:
    """A bundle in its wrapper: its slots, each with a batch that any Arrow can read."""
    return [
        {
            "slot": row["slot"],
            "schema_fp": None if row["schema_fp"] is None else row["schema_fp"].hex(),
            "data": pack(_batch_of(row["ipc"])),
        }
        for row in batch.to_pylist()
    ]


def _batch_of(stream: bytes) -> pa.RecordBatch:
    with pa.ipc.open_stream(stream) as reader:
        return reader.read_next_batch()


def differences(found: Any, wanted: Any, step: Step) -> list[str]:
    """Where an answer isn't what it was, or has what an older client would refuse.

    Older clients refuse a message with a field they don't know, so an answer to an old request
    may not have more fields than it had.
    """
    kind = step.get("compare", "equal")
    if kind == "subset":
        return sorted(set(wanted) - set(found))
    varies = VARIES | set(step.get("varies", ()))
    return _differences(found, wanted, "", varies, by_shape=kind == "shape", free=False)


def _differences(
    found: Any, wanted: Any, where: str, varies: frozenset[str], *, by_shape: bool, free: bool
) -> list[str]:
    name = where.rpartition(".")[2].partition("[")[0]
    free = free or name in FREE
    if name in varies:
        return [] if type(found) is type(wanted) else [f"{where}: {found!r} for {wanted!r}"]
    if name == "sequence" and type(found) is type(wanted) is int:
        # A store that idles for a quarter of a second writes a mark of its own, which takes one.
        return [] if found >= wanted else [f"{where}: {found!r} for {wanted!r}"]
    if name in ("data", "schema") and isinstance(wanted, str) and isinstance(found, str):
        equal = unpack(found).equals(unpack(wanted), check_metadata=True)
        return [] if equal else [f"{where}: {unpack(found)} for {unpack(wanted)}"]
    problems: list[str] = []
    if isinstance(wanted, dict) and isinstance(found, dict):
        odd = wanted.keys() - found.keys() if free else wanted.keys() ^ found.keys()
        if odd:
            problems.append(f"{where}: {sorted(odd)}")
        pairs = [(f"{where}.{key}", key) for key in wanted if key in found]
    elif isinstance(wanted, list) and isinstance(found, list) and not by_shape:
        if free and all(isinstance(one, str) for one in wanted):
            return [f"{where}: {one}" for one in wanted if one not in found]
        if len(found) != len(wanted):
            return [f"{where}: {found!r} for {wanted!r}"]
        pairs = [(f"{where}[{index}]", index) for index in range(len(wanted))]
    else:
        equal = type(found) is type(wanted) if by_shape else found == wanted
        return [] if equal else [f"{where}: {found!r} for {wanted!r}"]
    for place, key in pairs:
        problems += _differences(
            found[key], wanted[key], place, varies, by_shape=by_shape, free=free
        )
    return problems


def _ticket(data: bytes) -> Any:
    """A ticket without the stream's uuid, which 0.1.0 had none of.

    Its clients hand a ticket back as it is; what they read is the endpoint's metadata.
    """
    return {name: value for name, value in json.loads(data).items() if name != "uuid"}
