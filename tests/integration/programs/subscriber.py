"""Take bundles, finish them for good, and say what came and what is done."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
import time
from typing import Any

from flight_service.client import Delivered, Subscription, connect

FLUSH_SECONDS = 0.5


def say(**entry: Any) -> None:
    """A line of the journal, at once."""
    sys.stdout.write(json.dumps(entry) + "\n")
    sys.stdout.flush()


def text(bundle: Delivered) -> str:
    return f"{bundle.ref[0]}.{bundle.ref[1]}"


def age(bundle: Delivered) -> float:
    """Seconds since the server took it: containers of one machine have one clock."""
    return round(time.time() - (bundle.info.ingestion_ts_ns or 0) / 1e9, 4)


def finish(feed: Subscription, held: list[Delivered]) -> None:
    """Ack them, and write that down only once the server has it on disk."""
    for bundle in held:
        bundle.ack()
    feed.flush(durable=True)
    if held:
        say(acked=[text(bundle) for bundle in held])
    held.clear()


def take(feed: Subscription, given: argparse.Namespace, stop: threading.Event) -> int:
    """Until told to stop."""
    held: list[Delivered] = []
    count = 0
    flushed = time.monotonic()
    while not stop.is_set():
        bundle = feed.next_bundle(timeout=FLUSH_SECONDS)
        if bundle is not None:
            count += 1
            rows = sum(batch.num_rows for _, batch in bundle.items())
            delivery = bundle.info.delivery
            say(got=bundle.key, ref=text(bundle), rows=rows, delivery=delivery, age=age(bundle))
            held.append(bundle)
            stop.wait(given.pace)
        if len(held) >= given.hold or time.monotonic() - flushed >= FLUSH_SECONDS:
            finish(feed, held)
            flushed = time.monotonic()
    finish(feed, held)
    return count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("stream")
    parser.add_argument("name")
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--hold", type=int, default=64, help="finish so many together")
    parser.add_argument("--prefetch", type=int, default=64)
    parser.add_argument("--create", action="store_true", help="the stream, if it isn't there")
    given = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    token, ca = os.environ.get("QUIVER_TOKEN"), os.environ.get("QUIVER_CA")
    with connect(given.server, token=token, tls_ca=ca, wait=60) as client:
        stream = client.stream(given.stream)
        if given.create:
            client.create_stream(given.stream, exist_ok=True)
        with stream.subscribe(given.name, prefetch=given.prefetch) as feed:
            say(ready=given.name)
            count = take(feed, given, stop)
            say(done=count, reconnects=feed.reconnects)


if __name__ == "__main__":
    main()
