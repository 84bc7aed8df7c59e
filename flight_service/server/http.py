"""HTTP beside Flight: for load balancers, Prometheus, and a look with a browser.

============  ==================================================================
``/healthz``  200 while the process works at all
``/readyz``   200 when puts and reads are served; 503 while recovering or draining,
              or when a stream is poisoned; the body says why
``/metrics``  Prometheus text: the store's metrics, by stream, and the server's
``/status``   the ``status`` action's answer, for all streams, as JSON
``/``         the same as a small page
============  ==================================================================

It has no tokens: it listens on loopback unless told otherwise, changes nothing, and shows
names and numbers, never data.
"""

from __future__ import annotations

import html
import json
import selectors
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from flight_service.server.exposition import exposition
from flight_service.server.overview import ServerOverview
from flight_service.server.streams import Streams
from quiver.units import format_size

ACCEPT_PAUSE: Final = 0.1
"""Before a connection is tried again that could not be accepted: it stays ready meanwhile."""
REQUEST_SECONDS: Final = 10.0
"""Longest time one request may take to arrive."""
MAX_REQUESTS: Final = 32
"""Requests served at a time; beyond, a connection is closed at once."""


class StatusServer:
    """Serves the pages above until it is closed."""

    def __init__(self, host: str, port: int, streams: Streams, overview: ServerOverview) -> None:
        self._pages: dict[str, Callable[[], tuple[int, str, str]]] = {
            "/": lambda: (200, "text/html; charset=utf-8", page(overview, streams)),
            "/healthz": lambda: (200, "text/plain; charset=utf-8", "ok\n"),
            "/readyz": lambda: _readiness(overview),
            "/metrics": lambda: exposition(streams, overview),
            "/status": lambda: (200, "application/json", _status(overview, streams)),
        }
        self._server = _HttpServer((host, port), _handler(self._pages))
        self.port: int = self._server.server_address[1]
        self._thread = threading.Thread(
            target=self._server.serve_until_told, name="quiver-http", daemon=True
        )

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        self._server.tell_to_stop()
        self._thread.join()
        self._server.server_close()


class _HttpServer(ThreadingHTTPServer):
    """Sleeps until a request comes, or the word to stop: ``serve_forever`` would look for
    that several times a second."""

    daemon_threads = True
    request_queue_size = 64
    timeout = 0

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._slots = threading.Semaphore(MAX_REQUESTS)
        self._told = threading.Event()
        if ":" in address[0]:
            self.address_family = socket.AF_INET6
        self._stopped, self._stop = socket.socketpair()
        super().__init__(address, handler)

    def serve_until_told(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self, selectors.EVENT_READ)
            selector.register(self._stopped, selectors.EVENT_READ)
            while all(key.fileobj is self for key, _ in selector.select()):
                self.handle_request()

    def tell_to_stop(self) -> None:
        self._told.set()
        self._stop.close()

    def server_close(self) -> None:
        super().server_close()
        self._stop.close()
        self._stopped.close()

    def get_request(self) -> tuple[Any, Any]:
        try:
            return super().get_request()
        except OSError:
            # Out of descriptors, mostly. `handle_request` goes on after this, at once.
            self._told.wait(ACCEPT_PAUSE)
            raise

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._slots.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except BaseException:  # no thread could be started
            self._slots.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._slots.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that hangs up is no event."""


def _handler(
    pages: dict[str, Callable[[], tuple[int, str, str]]],
) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        timeout = REQUEST_SECONDS
        server_version = "quiver"
        sys_version = ""
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            make = pages.get(self.path.partition("?")[0])
            try:
                status, kind, text = (
                    (404, "text/plain; charset=utf-8", "not found\n") if make is None else make()
                )
            except Exception:
                status, kind, text = 500, "text/plain; charset=utf-8", "internal error\n"
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.send_header("Connection", "close")
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
            self.close_connection = True

        do_HEAD = do_GET  # noqa: N815  # http.server looks it up by this name

        def log_message(self, format: str, *args: object) -> None:
            """Requests for health are no events."""

    return Handler


def _readiness(overview: ServerOverview) -> tuple[int, str, str]:
    health = overview.health()
    poisoned = any("poisoned" in str(why) for why in (health.details or {}).values())
    ready = health.status in ("ok", "degraded") and not poisoned
    body = {"status": health.status, "details": dict(health.details or {})}
    return (200 if ready else 503), "application/json", json.dumps(body) + "\n"


def _status(overview: ServerOverview, streams: Streams) -> str:
    report = overview.status(streams.names())
    body = {"server": report.server, "streams": report.streams}
    return json.dumps(body, default=str) + "\n"


def page(overview: ServerOverview, streams: Streams) -> str:
    """Streams and their subscribers as a table; no script, nothing from elsewhere."""
    report = overview.status(streams.names())
    rows = "".join(_row(name, stream) for name, stream in report.streams.items())
    server = report.server
    return (
        "<!doctype html><html lang=en><meta charset=utf-8><title>Quiver</title>"
        "<meta http-equiv=refresh content=5>"
        "<style>body{font:15px system-ui;margin:2em}table{border-collapse:collapse}"
        "td,th{padding:.3em .8em;border-bottom:1px solid #ddd;text-align:left}</style>"
        f"<h1>Quiver: {html.escape(str(server['health']))}</h1>"
        f"<p>version {html.escape(str(server['version']))}, up"
        f" {server['uptime_seconds']:.0f} s, {server['calls']['running']} calls running,"
        f" {server['open_streams']} of {server['streams']} streams open</p>"
        "<table><tr><th>stream<th>state<th>bundles<th>on disk<th>subscribers (lag)</tr>"
        f"{rows}</table>"
    )


def _row(name: str, stream: Any) -> str:
    if "usage" not in stream:
        why = html.escape(str(stream.get("problem", "")))
        return f"<tr><td>{html.escape(name)}<td>{html.escape(stream['state'])} {why}<td><td><td>"
    lags = ", ".join(
        f"{html.escape(who)} ({one['lag']['bundles']:,})"
        for who, one in stream["subscribers"].items()
    )
    return (
        f"<tr><td>{html.escape(name)}<td>{html.escape(stream['state'])}"
        f"<td>{stream['bundles']:,}<td>{format_size(stream['usage']['on_disk'])}<td>{lags}</tr>"
    )
