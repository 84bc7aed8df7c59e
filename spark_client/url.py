"""Where a stream is: ``quiver://host:port/stream``, or ``quiver+tls://`` for TLS."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import SplitResult, urlsplit

from flight_service.client.connection import DEFAULT_PORT
from flight_service.client.errors import BadRequest
from flight_service.protocol.errors import ServiceError
from flight_service.protocol.names import check_name

SCHEMES: Final = {
    "quiver": "grpc",
    "quiver+tls": "grpc+tls",
    "grpc": "grpc",
    "grpc+tcp": "grpc",
    "grpc+tls": "grpc+tls",
}
SHAPE: Final = "quiver://host:port/stream, or quiver+tls://host:port/stream"


@dataclass(frozen=True, slots=True)
class Target:
    """A stream of a server."""

    address: str
    """The server, as :func:`flight_service.client.connect` takes it."""
    stream: str

    @property
    def tls(self) -> bool:
        """Whether the way there is encrypted."""
        return self.address.startswith("grpc+tls:")

    def __str__(self) -> str:
        scheme, _, rest = self.address.partition("://")
        return f"{'quiver+tls' if scheme == 'grpc+tls' else 'quiver'}://{rest}/{self.stream}"

    @classmethod
    def parse(cls, url: str) -> Target:
        """Read a URL; the mistakes people make get a helpful answer.

        A URL is shown in plans and logs, so one that holds a password or a token is refused,
        and not repeated in the message.
        """
        parts = urlsplit(url)
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise _bad(
                "the url holds more than a server and a stream, and a url is shown in plans and"
                " logs: give a token with the option token or tokenFile, or with QUIVER_TOKEN."
            )
        scheme = SCHEMES.get(parts.scheme)
        if scheme is None or not parts.hostname:
            raise _bad(f"{url!r} is not the place of a stream: write {SHAPE}.")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        return cls(f"{scheme}://{host}:{_port(parts, url)}", _stream(parts, url))


def _port(parts: SplitResult, url: str) -> int:
    try:
        return parts.port or DEFAULT_PORT
    except ValueError:
        raise _bad(f"{url!r} has no valid port.") from None


def _stream(parts: SplitResult, url: str) -> str:
    name = parts.path.strip("/")
    if not name:
        raise _bad(f"{url!r} names no stream: write {SHAPE}.")
    if "/" in name:
        raise _bad(f"{url!r} names more than a stream: a slot is an option of its own.")
    try:
        return check_name("stream", name)
    except ServiceError as error:
        raise _bad(error.message) from None


def _bad(message: str) -> BadRequest:
    return BadRequest("bad_request", message)
