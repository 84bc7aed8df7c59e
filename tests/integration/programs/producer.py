"""Put bundles, each with a key, and say a line for every receipt."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import threading
from collections import deque
from typing import Any

import pyarrow as pa

from flight_service.client import ClientError, Pending, Retry, Stream, connect

WINDOW = 16


def say(**entry: Any) -> None:
    """A line of the journal, at once."""
    sys.stdout.write(json.dumps(entry) + "\n")
    sys.stdout.flush()


def batch(name: str, number: int, size: int) -> pa.RecordBatch:
    """Rows that can be told from all others, and don't compress."""
    noise = os.urandom(size // 2).hex()
    return pa.record_batch({"who": [name], "n": pa.array([number], pa.int64()), "body": [noise]})


def receipt(pending: Pending) -> None:
    """Wait for one and write it down."""
    ref = pending.result().ref
    say(put=pending.key, ref=f"{ref[0]}.{ref[1]}")


def produce(stream: Stream, given: argparse.Namespace, stop: threading.Event) -> int:
    """All of them, or until told to stop."""
    waiting: deque[Pending] = deque()
    count = 0
    with stream.writer(window=WINDOW) as writer:
        while count < given.bundles and not stop.is_set():
            rows = batch(given.name, count, given.size)
            waiting.append(writer.put({"Logs": rows}, key=f"{given.name}/{count}"))
            count += 1
            while waiting and (waiting[0].done or len(waiting) >= WINDOW):
                receipt(waiting.popleft())
            stop.wait(given.pace)
        for pending in waiting:
            receipt(pending)
    return count


def until_refused(stream: Stream, given: argparse.Namespace) -> None:
    """Put one at a time with little patience, until the server says no; say what it said."""
    retry = Retry(give_up_after=given.patience)
    try:
        with stream.writer(window=1, retry=retry) as writer:
            for count in range(given.bundles):
                rows = batch(given.name, count, given.size)
                receipt(writer.put({"Logs": rows}, key=f"{given.name}/{count}"))
    except ClientError as error:
        say(told=error.code, message=error.message, retryable=error.retryable)
    else:
        say(done=given.bundles)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("server")
    parser.add_argument("stream")
    parser.add_argument("name")
    parser.add_argument("--bundles", type=int, default=100)
    parser.add_argument("--size", type=int, default=1_000)
    parser.add_argument("--pace", type=float, default=0.0)
    parser.add_argument("--patience", type=float, default=0.0)
    given = parser.parse_args()
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    token, ca = os.environ.get("QUIVER_TOKEN"), os.environ.get("QUIVER_CA")
    with connect(given.server, token=token, tls_ca=ca, wait=30) as client:
        stream = client.stream(given.stream)
        if given.patience:
            until_refused(stream, given)
        else:
            say(done=produce(stream, given, stop))


if __name__ == "__main__":
    main()
