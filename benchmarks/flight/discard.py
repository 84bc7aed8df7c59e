"""R: a Flight server that reads each message, throws it away, and answers every 2 ms.

It says only how many messages it has read.  Nothing is checked, written or kept, so this
is what Flight itself costs on this machine.  Allocator and interpreter are set up as
Quiver's server sets them up.  For the read bars it streams a table that it has in memory:
the ticket says of what batches, and how many.
"""

from __future__ import annotations

import json
import sys
import threading
from typing import Any, Final

import pyarrow as pa
import pyarrow.flight as flight

from benchmarks.data import telemetry
from flight_service.server.process import tune_process

RECEIPT_SECONDS: Final = 0.002


class Discard(flight.FlightServerBase):  # type: ignore[misc]  # untyped
    """Takes every put."""

    def do_put(self, context: Any, descriptor: Any, reader: Any, writer: Any) -> None:
        count = told = 0
        ended = threading.Event()

        def tell() -> None:
            nonlocal told
            while not ended.wait(RECEIPT_SECONDS):
                if count > told:
                    told = count
                    writer.write(b'{"read":%d}' % told)

        sender = threading.Thread(target=tell)
        sender.start()
        try:
            while True:
                reader.read_chunk()
                count += 1
        except StopIteration:
            pass
        finally:
            ended.set()
            sender.join()
        writer.write(b'{"read":%d}' % count)

    def do_get(self, context: Any, ticket: Any) -> flight.FlightDataStream:
        asked = json.loads(ticket.ticket)
        batch = telemetry(asked["size"])
        return flight.RecordBatchStream(pa.Table.from_batches([batch] * asked["count"]))


def main() -> None:
    tune_process()
    server = Discard("grpc://127.0.0.1:0")
    sys.stdout.write(json.dumps({"flight": server.port}) + "\n")
    sys.stdout.flush()
    server.serve()


if __name__ == "__main__":
    main()
