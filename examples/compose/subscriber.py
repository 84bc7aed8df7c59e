"""A subscriber to watch: what it has taken, how fast, and how far it is behind.

It acks every bundle, and once a second makes its acks durable and says a line.  ``--pace``
makes it wait after each bundle, like a consumer whose own work takes a while.

    python subscriber.py grpc://127.0.0.1:8815 telemetry exporter
"""

from __future__ import annotations

import argparse
import signal
import threading
import time

from flight_service.client import ClientError, Stream, connect

LINE_SECONDS = 1.0


def follow(stream: Stream, name: str, pace: float, stop: threading.Event) -> None:
    """Take bundles until told to stop."""
    bundles = rows = told = 0
    said = time.monotonic()
    with stream.subscribe(name, prefetch=64) as feed:
        while not stop.is_set():
            bundle = feed.next_bundle(timeout=LINE_SECONDS)
            if bundle is not None:
                bundles, rows = bundles + 1, rows + bundle.rows
                bundle.ack()
                stop.wait(pace)
            now = time.monotonic()
            if now - said >= LINE_SECONDS:
                feed.flush(durable=True)
                speed = (rows - told) / (now - said)
                print(line(stream, name, bundles, rows, speed), flush=True)
                said, told = now, rows


def line(stream: Stream, name: str, bundles: int, rows: int, speed: float) -> str:
    """How it is going, for people; a server that is away is no reason to stop."""
    try:
        lag = stream.lag(name)
        behind = f"{lag.bundles:,} bundles behind"
    except ClientError as error:
        behind = str(error)
    return f"{name}: {bundles:,} bundles, {rows:,} rows, {speed:,.0f} rows/s, {behind}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("server", help="its address: grpc://host:port")
    parser.add_argument("stream")
    parser.add_argument("name", help="who takes")
    parser.add_argument("--pace", type=float, default=0.0, help="seconds of work per bundle")
    given = parser.parse_args()
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    with connect(given.server, wait=60) as client:
        follow(client.create_stream(given.stream, exist_ok=True), given.name, given.pace, stop)


if __name__ == "__main__":
    main()
