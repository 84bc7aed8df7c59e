"""A client: a connection, the streams behind it, and what concerns the server as a whole."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final

from flight_service.client.connection import CALL_TIMEOUT, Connection, Tls, Token
from flight_service.client.errors import ClientError, Disconnected, Forked
from flight_service.client.forking import guard
from flight_service.client.retry import Retry, call
from flight_service.client.stream import Stream
from flight_service.protocol.actions import (
    Created,
    CreateStream,
    DeleteStream,
    Done,
    Health,
    NoRequest,
    OptionalStreamRequest,
    StatusReport,
    StreamList,
)

if TYPE_CHECKING:
    from pathlib import Path

CONNECT_WAIT: Final = 5.0


class Client:
    """A connection to a server; use :func:`connect` to get one, and close it."""

    def __init__(self, connection: Connection, retry: Retry) -> None:
        self._connection = connection
        self._retry = retry
        self._lock = threading.Lock()
        self._streams: dict[str, Stream] = {}
        guard(self)

    @property
    def location(self) -> str:
        """Where the server is."""
        return self._connection.address.location

    # Streams

    def stream(self, name: str) -> Stream:
        """A stream by its name: the same object each time."""
        with self._lock:
            stream = self._streams.get(name)
            if stream is None:
                stream = self._streams[name] = Stream(self._connection, name, self._retry)
            return stream

    def streams(self) -> list[dict[str, Any]]:
        """Every stream we may see, with its name and state.

        >>> [one["name"] for one in q.streams()]
        ['telemetry']
        """
        report = self._connection.action("list_streams", NoRequest(), StreamList)
        return [dict(one) for one in report.streams]

    def create_stream(
        self, name: str, settings: Mapping[str, Any] | None = None, *, exist_ok: bool = False
    ) -> Stream:
        """Make a stream, with settings of its own if they differ from the server's.

        >>> q.create_stream("metrics", {"segment": {"target_size": "8MiB"}})
        <Stream metrics>
        """
        request = CreateStream(stream=name, settings=settings, if_not_exists=exist_ok)
        self._connection.action("create_stream", request, Created, retry=None)
        return self.stream(name)

    def delete_stream(self, name: str, *, force: bool = False) -> None:
        """Delete a stream and its data; ``force`` even if subscribers have not finished.

        >>> q.delete_stream("metrics")
        """
        request = DeleteStream(stream=name, confirm=name, force=force)
        self._connection.action("delete_stream", request, Done, retry=None)

    # The server

    def status(self) -> dict[str, Any]:
        """``{"server": …, "streams": …}``."""
        report = self._connection.action("status", OptionalStreamRequest(), StatusReport)
        return {"server": dict(report.server), "streams": dict(report.streams)}

    def health(self) -> str:
        """``ok``, ``recovering``, ``degraded`` or ``draining``.

        >>> q.health()
        'ok'
        """
        return self._connection.action("health", NoRequest(), Health, retry=None).status

    def pause(self, seconds: float) -> None:
        """Wait; closing the client ends the wait with ``Closed``."""
        self._connection.pause(seconds)

    # The end

    def close(self) -> None:
        """Let go of the connection; writers and subscriptions are closed on their own."""
        with self._lock:
            streams = list(self._streams.values())
        for stream in streams:
            stream.close()
        self._connection.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.close()
        except Forked:
            if kind is None:  # an error on its way out says more
                raise

    def __repr__(self) -> str:
        return f"<Client {self.location}>"


def connect(
    url: str = "grpc://127.0.0.1:8815",
    *,
    token: Token | None = None,
    tls_ca: bytes | str | Path | None = None,
    tls_cert: bytes | str | Path | None = None,
    tls_key: bytes | str | Path | None = None,
    tls_hostname: str | None = None,
    insecure: bool = False,
    wait: float = CONNECT_WAIT,
    timeout: float = CALL_TIMEOUT,
    retry: Retry | None = None,
) -> Client:
    """Connect to a server, waiting up to ``wait`` seconds for it to answer.

    ``token`` may be a function that is asked before each call, so that tokens can change.
    ``retry`` is how patient writers and subscriptions are; single calls give up sooner.

    >>> with connect(url) as client:
    ...     client.health()
    'ok'
    """
    tls = Tls(tls_ca, tls_cert, tls_key, tls_hostname)
    connection = Connection(
        url, token=token, tls=tls, insecure=insecure, timeout=timeout, retry=retry
    )
    client = Client(connection, retry or Retry())
    patience = Retry(initial=0.05, maximum=0.5, give_up_after=wait)
    try:
        call(client.health, patience, connection.pause)
    except Disconnected as error:
        connection.close()
        raise Disconnected(
            error.code,
            f"no Quiver server answers at {url} ({error.message.rpartition(': ')[2]}).",
            details=error.details,
        ) from error
    except ClientError:
        connection.close()
        raise
    return client
