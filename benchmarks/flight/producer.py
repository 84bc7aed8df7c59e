"""A producer that costs little: the same batch again and again, a window of it in flight.

Talks plain Flight to either server, so that both get the same load from the same program.
Lines on standard input are jobs, lines on standard output their results::

    {"port": …, "stream": …, "size": …, "count": …, "window": …, "mode": "slot"}
    → ready        the call is open and warm
    ← go
    → {"seconds": …}   to the last receipt
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.data import telemetry
from flight_service.protocol.put import PutCommand
from flight_service.protocol.wrapper import wrap

SLOT = "Logs"


class Call:
    """One DoPut with a window; a thread of its own reads the receipts."""

    def __init__(self, job: dict[str, Any]) -> None:
        self._client = flight.FlightClient(f"grpc://127.0.0.1:{job['port']}")
        mode, batch = job["mode"], telemetry(job["size"])
        self._batch = batch if mode == "slot" else wrap({SLOT: batch})
        slot = SLOT if mode == "slot" else None
        command = PutCommand(stream=job["stream"], mode=mode, slot=slot)
        self._writer, self._receipts = self._client.do_put(command.descriptor(), self._batch.schema)
        self._window = job["window"]
        self._changed = threading.Condition(threading.Lock())
        self._sent = self._answered = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        while (message := self._receipts.read()) is not None:
            try:
                count = _answered(message)
            except RuntimeError as error:
                sys.stderr.write(f"{error}\n")
                os._exit(1)  # whoever waits for this process is told at once
            with self._changed:
                self._answered = count
                self._changed.notify()

    def put(self, count: int) -> None:
        """Send bundles, and wait for the last receipt."""
        writer, batch, window, changed = self._writer, self._batch, self._window, self._changed
        for _ in range(count):
            if self._sent - self._answered >= window:
                with changed:
                    changed.wait_for(lambda: self._sent - self._answered < window)
            self._sent += 1
            writer.write_batch(batch)
        with changed:
            changed.wait_for(lambda: self._answered == self._sent)

    def end(self) -> None:
        self._writer.done_writing()
        self._reader.join()
        self._writer.close()
        self._client.close()


def _answered(message: pa.Buffer) -> int:
    """How many messages are answered by now."""
    said = json.loads(message.to_pybytes())
    if "read" in said:
        return int(said["read"])
    last = said["receipts"][-1]
    if any(one["status"] != "ok" for one in said["receipts"]):
        raise RuntimeError(f"the server refused: {last}")
    return int(last["n"]) + 1


def run(job: dict[str, Any]) -> dict[str, float]:
    call = Call(job)
    call.put(job["warm"])
    _say("ready")
    sys.stdin.readline()
    began = time.perf_counter()
    call.put(job["count"])
    elapsed = time.perf_counter() - began
    call.end()
    return {"seconds": elapsed}


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    for line in sys.stdin:
        _say(json.dumps(run(json.loads(line))))
