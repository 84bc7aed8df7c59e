"""The way to a server: its address, who we are, and single calls.

An address is ``grpc://host:port`` (or ``quiver://``), ``grpc+tls://host:port`` (or
``quiver+tls://``), or ``grpc+unix:///path``; without a port, 8815.

A token never travels in the clear to another machine unless ``insecure=True`` says so.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import pyarrow.flight as flight

from flight_service.client.errors import BadRequest, Closed, Disconnected, typed
from flight_service.client.forking import check_can_connect, guard
from flight_service.client.retry import Retry, call
from flight_service.protocol.actions import ACTIONS
from flight_service.protocol.message import Message

if TYPE_CHECKING:
    from pathlib import Path

DEFAULT_PORT: Final = 8815
CALL_TIMEOUT: Final = 60.0
"""Longest a single call may take, over and above what it was told to wait."""
CALL_RETRY: Final = Retry(initial=0.05, maximum=1.0, give_up_after=10.0)

# gRPC waits up to two minutes between attempts to connect unless told otherwise, and
# shares that wait among all clients of a process.  With keepalive on, Linux drops a
# connection whose data is not acknowledged for the keepalive timeout; the pings
# themselves come seldom enough for a server with default settings.
_TRANSPORT: Final = [
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 5_000),
    ("grpc.keepalive_time_ms", 330_000),
    ("grpc.keepalive_timeout_ms", 20_000),
]
_SCHEMES: Final = {
    "grpc": "grpc+tcp",
    "grpc+tcp": "grpc+tcp",
    "quiver": "grpc+tcp",
    "grpc+tls": "grpc+tls",
    "quiver+tls": "grpc+tls",
}

Answer = TypeVar("Answer", bound=Message)
Token = str | Callable[[], str]


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is."""

    location: str
    host: str
    tls: bool

    @property
    def local(self) -> bool:
        """Whether what is sent there never leaves this machine."""
        return self.host in ("", "localhost", "::1") or self.host.startswith("127.")

    @classmethod
    def parse(cls, url: str) -> Address:
        """Read an address; the mistakes people make get a helpful answer."""
        from urllib.parse import urlsplit

        parts = urlsplit(url)
        if parts.scheme == "grpc+unix":
            return cls(url, "", False)
        scheme = _SCHEMES.get(parts.scheme)
        if scheme is None or not parts.hostname:
            raise BadRequest(
                "bad_request",
                f"{url!r} is not the address of a server:"
                " write grpc://host:port, or grpc+tls://host:port.",
            )
        if parts.path not in ("", "/") or parts.query:
            raise BadRequest(
                "bad_request", f"{url!r} names more than a server: streams come with stream(name)."
            )
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        try:
            port = parts.port or DEFAULT_PORT
        except ValueError:
            raise BadRequest("bad_request", f"{url!r} has no valid port.") from None
        return cls(f"{scheme}://{host}:{port}", parts.hostname, scheme == "grpc+tls")


def _pem(source: bytes | str | Path | None) -> bytes | None:
    if source is None or isinstance(source, bytes):
        return source
    with open(source, "rb") as file:
        return file.read()


@dataclass(frozen=True, slots=True)
class Tls:
    """How to trust the server, and how to be trusted: PEM data, or paths to it."""

    ca: bytes | str | Path | None = None
    cert: bytes | str | Path | None = None
    key: bytes | str | Path | None = None
    hostname: str | None = None

    def options(self) -> dict[str, Any]:
        """For ``FlightClient``."""
        return {
            "tls_root_certs": _pem(self.ca),
            "cert_chain": _pem(self.cert),
            "private_key": _pem(self.key),
            "override_hostname": self.hostname,
        }


class Connection:
    """A Flight client with our headers, our errors and our patience."""

    def __init__(
        self,
        url: str,
        *,
        token: Token | None = None,
        tls: Tls | None = None,
        insecure: bool = False,
        timeout: float = CALL_TIMEOUT,
        retry: Retry | None = None,
    ) -> None:
        """``retry`` is the client's patience: single calls never have more than that."""
        self.address = Address.parse(url)
        if token is not None and not (self.address.tls or self.address.local or insecure):
            raise BadRequest(
                "bad_request",
                f"a token for {self.address.host} would travel in the clear:"
                " use grpc+tls://, or say insecure=True.",
            )
        self._token = token
        self._timeout = timeout
        self._calls = CALL_RETRY
        if retry is not None and (retry.give_up_after or math.inf) < (
            CALL_RETRY.give_up_after or 0
        ):
            self._calls = retry
        self._stopped = threading.Event()
        check_can_connect()
        options = (tls or Tls()).options() if self.address.tls else {}
        self._client = flight.FlightClient(
            self.address.location, generic_options=_TRANSPORT, **options
        )
        guard(self)

    def options(self, timeout: float | None = None) -> flight.FlightCallOptions:
        """For one call: who we are, and how long it may take (``None``: no limit)."""
        token = self._token() if callable(self._token) else self._token
        headers = [] if token is None else [(b"authorization", f"Bearer {token}".encode())]
        return flight.FlightCallOptions(timeout=timeout, headers=headers)

    @property
    def client(self) -> flight.FlightClient:
        """The Flight client, for calls that stream."""
        if self._stopped.is_set():
            raise Closed("the client")
        return self._client

    def action(
        self,
        name: str,
        request: Message,
        answer: type[Answer],
        *,
        retry: Retry | None = CALL_RETRY,
        waits: float = 0.0,
    ) -> Answer:
        """One action.  ``retry=None`` for those that must not happen twice.

        ``waits`` is how long the server was told to wait: it counts on top of the timeout.
        """
        if ACTIONS[name].answer is not answer:
            raise TypeError(f"{name} answers {ACTIONS[name].answer.__name__}")
        asked = flight.Action(name, request.encode())

        def once() -> Answer:
            results = self.client.do_action(asked, self.options(self._timeout + waits))
            bodies = [result.body.to_pybytes() for result in results]
            if len(bodies) != 1:
                raise Disconnected("unavailable", f"{name} was not answered.", retryable=True)
            return answer.decode(bodies[0])

        return self._called(once, retry)

    def info(self, descriptor: flight.FlightDescriptor, *, waits: float = 0.0) -> flight.FlightInfo:
        """``GetFlightInfo`` without side effects on the server, so tried again if need be."""
        return self._called(
            lambda: self.client.get_flight_info(descriptor, self.options(self._timeout + waits)),
            CALL_RETRY,
        )

    def get(self, ticket: flight.Ticket) -> Iterator[flight.FlightStreamChunk]:
        """``DoGet``, chunk by chunk: ``read_all`` turns some errors into a KeyboardInterrupt."""
        try:
            yield from self.client.do_get(ticket, self.options())
        except Exception as error:
            raise typed(error) from error

    def _called(self, once: Callable[[], Answer], retry: Retry | None) -> Answer:
        if retry is None:
            try:
                return once()
            except Exception as error:
                raise typed(error) from error
        return call(once, self._calls if retry is CALL_RETRY else retry, self.pause)

    def pause(self, seconds: float) -> None:
        """Wait between two tries; closing the client ends the wait."""
        if self._stopped.wait(seconds):
            raise Closed("the client")

    def close(self) -> None:
        """Fine to call twice."""
        if not self._stopped.is_set():
            self._stopped.set()
            self._client.close()
