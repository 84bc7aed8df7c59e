"""R: a Flight server that reads each message, throws it away, and answers every 2 ms.

It says only how many messages it has read.  Nothing is checked, written or kept, so this
is what Flight itself costs on this machine.  Allocator and interpreter are set up as
Quiver's server sets them up.  For the read bars it streams a table that it has in memory:
the ticket says of what batches, and how many.  Each batch has memory of its own, as data has:
the same one again and again would be sent from the processor's cache.
"""

from __future__ import annotations

import json
import sys
import threading
from functools import lru_cache
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
        return flight.RecordBatchStream(table(asked["size"], asked["count"]))


@lru_cache(maxsize=1)
def table(size: int, count: int) -> pa.Table:
    """So many batches, each in memory of its own."""
    batch = telemetry(size)
    return pa.Table.from_batches(
        pa.ipc.read_record_batch(batch.serialize(), batch.schema) for _ in range(count)
    )


def main() -> None:
    tune_process()
    server = Discard("grpc://127.0.0.1:0")
    sys.stdout.write(json.dumps({"flight": server.port}) + "\n")
    sys.stdout.flush()
    server.serve()


if __name__ == "__main__":
    main()
