"""The Flight server itself: a thin shell.

Every RPC goes the same way: who is calling, may they, is there room for one more call;
then the room of the house that does the work; and whatever goes wrong is mapped at the
edge.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from flight_service.protocol import actions as wire
from flight_service.protocol.errors import ServiceError
from flight_service.protocol.exchange import SubscribeCommand
from flight_service.protocol.get import ReadCommand, Ticket
from flight_service.protocol.put import PutCommand
from flight_service.protocol.wrapper import BY_NUMBER
from flight_service.server import authz
from flight_service.server.actions import Actions
from flight_service.server.auth import MIDDLEWARE, Authenticator, Caller, CallerFactory, Principal
from flight_service.server.edge import edge
from flight_service.server.events import CALL_DENIED, LISTING_FAILED, get_logger
from flight_service.server.exchange import ExchangeCall
from flight_service.server.get import closed_info, data_stream, flight_info, listed, slot_schema
from flight_service.server.limits import Gate
from flight_service.server.overview import ServerOverview
from flight_service.server.put import PutCall
from flight_service.server.settings import Settings
from flight_service.server.streams import Streams
from quiver.clock import Clock
from quiver.errors import QuiverError

MAX_LISTED: Final = 1_000
"""Streams whose slots one ListFlights looks into."""

_log = get_logger()


class FlightService(flight.FlightServerBase):  # type: ignore[misc]  # untyped
    """Serves streams over Flight."""

    def __init__(
        self,
        location: str,
        settings: Settings,
        streams: Streams,
        auth: Authenticator,
        gate: Gate,
        overview: ServerOverview,
        clock: Clock,
        **tls: Any,
    ) -> None:
        self._settings = settings
        self._streams = streams
        self._auth = auth
        self._gate = gate
        self._overview = overview
        self._clock = clock
        self._actions = Actions(streams, overview, clock)
        super().__init__(location, middleware={MIDDLEWARE: CallerFactory()}, **tls)

    # The way in

    def _principal(self, context: Any) -> tuple[Principal, Caller]:
        caller: Caller = context.get_middleware(MIDDLEWARE)
        identity = (context.peer_identity() or b"").decode("utf-8", "replace")
        return self._auth.principal(caller.authorization, identity), caller

    def _check(self, principal: Principal, door: str, stream: str | None) -> None:
        try:
            authz.check(principal.name, principal.grants, door, stream)
        except ServiceError:
            _log.warning(CALL_DENIED, principal=principal.name, door=door, stream=stream)
            raise

    @contextmanager
    def _call(self, context: Any, rpc: str) -> Iterator[Principal]:
        with edge(rpc):
            principal, _ = self._principal(context)
            with self._gate.call(principal.name):
                yield principal

    # RPCs

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._call(context, "do_put") as principal:
            command = PutCommand.from_descriptor(descriptor)
            self._check(principal, "do_put", command.stream)
            with self._streams.use(command.stream, create=True) as stream:
                PutCall(
                    stream,
                    command,
                    reader,
                    writer,
                    window=self._settings.calls.put_window,
                    put_wait=self._settings.calls.put_wait,
                    stopping=self._overview.stopping,
                ).run()

    def do_get(self, context: Any, ticket: Any) -> flight.FlightDataStream:
        with edge("do_get"):
            principal, caller = self._principal(context)
            # The answer goes on after this returns: the call ends when Flight says so.
            caller.at_end.enter_context(self._gate.call(principal.name))
            asked = Ticket.decode(ticket.ticket)
            door = "do_get" if asked.subscriber is None else "do_get:subscriber"
            self._check(principal, door, asked.stream)
            stream = caller.at_end.enter_context(self._streams.use(asked.stream))
            return data_stream(stream, asked, self._settings.calls.read_bytes)

    def do_exchange(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        with self._call(context, "do_exchange") as principal:
            command = SubscribeCommand.from_descriptor(descriptor)
            self._check(principal, "do_exchange", command.stream)
            with self._streams.use(command.stream) as stream:
                ExchangeCall(
                    stream, command, reader, writer, stopping=self._overview.stopping
                ).run()

    def get_flight_info(self, context: Any, descriptor: Any) -> flight.FlightInfo:
        with self._call(context, "get_flight_info") as principal:
            command = ReadCommand.from_descriptor(descriptor)
            claims = command.subscriber is not None
            door = "get_flight_info:subscriber" if claims else "get_flight_info"
            self._check(principal, door, command.stream)
            with self._streams.use(command.stream) as stream:
                gone = self._gone(context)
                return flight_info(stream, command, descriptor, self._clock, gone)

    def get_schema(self, context: Any, descriptor: Any) -> flight.SchemaResult:
        with self._call(context, "get_schema") as principal:
            command = ReadCommand.from_descriptor(descriptor)
            self._check(principal, "get_schema", command.stream)
            with self._streams.use(command.stream) as stream:
                schema: pa.Schema | None = BY_NUMBER
                if command.slot is not None:
                    schema = slot_schema(stream.store, command.slot)
                if schema is None:
                    raise ServiceError(
                        "unknown_slot", f"no bundle of late has the slot {command.slot!r}."
                    )
                return flight.SchemaResult(schema)

    def list_flights(self, context: Any, criteria: bytes) -> Iterator[flight.FlightInfo]:
        with self._call(context, "list_flights") as principal:
            if criteria:
                raise ServiceError("bad_request", "ListFlights takes no criteria.")
            self._check(principal, "list_flights", None)
            infos: list[flight.FlightInfo] = []
            for name in self._streams.names()[:MAX_LISTED]:
                if authz.visible(principal.grants, name):
                    infos += self._listed(name, principal)
            return iter(infos)

    def _listed(self, name: str, principal: Principal) -> list[flight.FlightInfo]:
        readable = authz.allowed(principal.grants, authz.READ, name)
        if not readable or self._streams.state(name) != "open":
            return [closed_info(name)]  # listing must not wake what is asleep
        try:
            with self._streams.use(name) as stream:
                return listed(stream)
        except (ServiceError, QuiverError) as error:
            # Deleted, closed or in trouble since: the others are listed all the same.
            _log.warning(LISTING_FAILED, stream=name, error=str(error))
            return [closed_info(name)]

    def do_action(self, context: Any, action: Any) -> list[flight.Result]:
        with self._call(context, "do_action") as principal:
            request = self._actions.decode(action.type, action.body.to_pybytes())
            stream = getattr(request, "stream", None)
            door = f"action:{action.type}"
            if stream is not None or action.type != "status":
                self._check(principal, door, stream)
            answer = self._actions.run(action.type, request, principal.grants, self._gone(context))
            return [flight.Result(answer.encode())]

    def list_actions(self, context: Any) -> list[flight.ActionType]:
        with self._call(context, "list_actions"):
            return [
                flight.ActionType(action.name, action.description)
                for action in wire.ACTIONS.values()
            ]

    def _gone(self, context: Any) -> Any:
        """Whether it is pointless to go on waiting for a caller's sake."""
        return lambda: context.is_cancelled() or self._overview.stopping()
