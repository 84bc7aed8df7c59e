"""A server's life: start, recover, serve, drain, exit.

::

    start    directory locked → ports taken → HTTP up (recovering) → streams opened one by one
    serve    leases end, counts are kept, idle streams close: one ticking thread
    SIGTERM  new work refused → what is in flight answered → streams flushed and closed → exit
             … and at ``server.drain_timeout`` the process exits whatever a client does

Flight's own ``shutdown`` waits for every call and can't be told to hurry, so it runs in a
thread of its own; a reader that has stalled can't keep the process alive.  What was
answered ``durable`` is on disk by then: leaving without a clean close costs the next start
a replay, nothing else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from flight_service.protocol.errors import ServiceError
from flight_service.server.auth import Authenticator
from flight_service.server.dead_letters import DeadLetters
from flight_service.server.events import (
    CLOSE_FAILED,
    SERVER_DRAINING,
    SERVER_FORCED,
    SERVER_READY,
    SERVER_STARTED,
    SERVER_STOPPED,
    STREAM_DAMAGED,
    TICK_FAILED,
    get_logger,
)
from flight_service.server.http import StatusServer
from flight_service.server.limits import Gate
from flight_service.server.overview import ServerOverview
from flight_service.server.service import FlightService
from flight_service.server.settings import Settings
from flight_service.server.streams import TICK_SECONDS, Streams
from quiver.clock import Clock, SystemClock
from quiver.errors import ConfigError, QuiverError
from quiver.forking import guard

FORCED_EXIT: Final = 3
"""Exit status when time was up before everything was closed cleanly."""

_log = get_logger()


class Server:
    """A Quiver server in this process."""

    def __init__(self, settings: Settings, *, clock: Clock | None = None) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self._stopped = threading.Event()
        self._ticks_over = False
        self._closed_cleanly = threading.Event()
        self._dead_letters = DeadLetters()
        self._auth = Authenticator(
            settings.auth.file,
            certificates=settings.tls.client_ca is not None,
            reload=settings.auth.reload,
            clock=self._clock,
        )
        self._gate = Gate(settings.calls)
        self._streams = Streams(settings, self._clock, self._dead_letters)
        self.overview = ServerOverview(self._streams, self._gate, self._auth, self._clock)
        self._http: StatusServer | None = None
        try:
            self._http = self._open_http()
            self._flight = self._open_flight()
        except BaseException:
            if self._http is not None:
                self._http.close()
            self._streams.close()
            raise
        self._threads = [
            threading.Thread(target=self._tick, name="quiver-tick-leases", daemon=True),
            threading.Thread(target=self._recover, name="quiver-recover", daemon=True),
        ]
        guard(self)

    def _open_http(self) -> StatusServer | None:
        http = self.settings.http
        if not http.enabled:
            return None
        try:
            server = StatusServer(http.host, http.port, self._streams, self.overview)
        except OSError as error:
            raise _busy("http", http.host, http.port, error) from None
        server.start()
        return server

    def _open_flight(self) -> FlightService:
        host, port = self.settings.server.host, self.settings.server.port
        tls = self.settings.tls
        options: dict[str, Any] = {}
        if tls.cert is not None and tls.key is not None:
            pair = (_read(tls.cert, "tls.cert"), _read(tls.key, "tls.key"))
            options["tls_certificates"] = [pair]
        if tls.client_ca is not None:
            options["verify_client"] = True
            options["root_certificates"] = _read(tls.client_ca, "tls.client_ca")
        scheme = "grpc+tls" if "tls_certificates" in options else "grpc"
        shown = f"[{host}]" if ":" in host else host
        try:
            return FlightService(
                f"{scheme}://{shown}:{port}",
                self.settings,
                self._streams,
                self._auth,
                self._gate,
                self.overview,
                self._clock,
                **options,
            )
        except (pa.ArrowException, OSError) as error:
            raise _busy("server", host, port, error) from None

    @property
    def port(self) -> int:
        """The port Flight listens on."""
        return int(self._flight.port)

    @property
    def http_port(self) -> int | None:
        """The port HTTP listens on."""
        return None if self._http is None else self._http.port

    @property
    def streams(self) -> Streams:
        return self._streams

    def start(self) -> None:
        """Begin to serve; Flight does so from its own threads."""
        self._dead_letters.start(self._streams)
        for thread in self._threads:
            thread.start()
        _log.info(SERVER_STARTED, port=self.port, http=self.http_port, root=self._streams.root)

    # In the background

    def _recover(self) -> None:
        """Open every stream once: what a crash left is put in order before it is needed."""
        names = self._streams.names()
        self.overview.recovery_total = len(names)
        for name in names:
            if self.overview.stopping():
                return
            try:
                with contextlib.suppress(ServiceError, QuiverError), self._streams.use(name):
                    pass  # damage is marked, and told by health
            except Exception as error:  # one stream's trouble is no other's
                _log.error(STREAM_DAMAGED, stream=name, error=str(error), exc_info=error)
            self.overview.recovery_done += 1
        self.overview.recovered.set()
        _log.info(SERVER_READY, streams=len(names), damaged=len(self._streams.damage()))

    def _tick(self) -> None:
        stirred = self._streams.stirred
        while not self._ticks_over:
            stirred.clear()  # before the look: who comes during it is seen by the next
            rest = TICK_SECONDS
            try:
                rest = self._streams.tick(self._clock.monotonic())
            except Exception as error:
                _log.error(TICK_FAILED, error=str(error), exc_info=error)
            stirred.wait(rest)

    # The end

    def stop(self) -> bool:
        """Drain and close, within the deadline; whether everything was closed cleanly."""
        if self._stopped.is_set():
            return True
        deadline = self._clock.monotonic() + self.settings.server.drain_timeout
        _log.info(SERVER_DRAINING, calls=self._gate.running)
        self.overview.stop()
        shutdown = threading.Thread(target=self._flight.shutdown, daemon=True)
        shutdown.start()
        idle = self._gate.wait_idle(max(0.0, deadline - self._clock.monotonic()) * 0.7)
        self._ticks_over = True
        self._streams.stirred.set()
        closing = threading.Thread(target=self._close, daemon=True)
        closing.start()
        closing.join(max(0.1, deadline - self._clock.monotonic()))
        clean = idle and self._closed_cleanly.is_set()
        self._stopped.set()
        _log.info(SERVER_STOPPED, clean=clean)
        return clean

    def _close(self) -> None:
        try:
            self._dead_letters.close()
            if self._http is not None:
                self._http.close()
            self._streams.close()
        except Exception as error:
            _log.error(CLOSE_FAILED, error=str(error), exc_info=error)
        else:
            self._closed_cleanly.set()

    def run(self, ready: Callable[[Server], Any] = lambda server: None) -> int:
        """Serve until SIGTERM or SIGINT; the exit status. For the main thread only."""
        asked = threading.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: asked.set())
        self.start()
        ready(self)
        while not asked.wait(1.0):
            pass
        return self._leave()

    def _leave(self) -> int:
        clean = self.stop()
        if not clean:
            _log.warning(SERVER_FORCED, calls=self._gate.running)
            os._exit(FORCED_EXIT)  # a stalled call can't be ended in any other way
        return 0


def _read(path: str, setting: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{setting} {path} can't be read: {error.strerror}.", setting=setting
        ) from None


def _busy(section: str, host: str, port: int, error: BaseException) -> ConfigError:
    reason = error.strerror if isinstance(error, OSError) and error.strerror else "in use?"
    return ConfigError(
        f"cannot listen on {host}:{port}: {reason}.",
        advice=f"Stop who does, or set {section}.port (0 takes any free one).",
        setting=f"{section}.port",
    )
