"""The same rows without Spark: the Python client alone.

``python -m examples.demo.plain_job quiver://host:port/telemetry 1000000``
"""

from __future__ import annotations

import json
import sys
import time

import pyarrow as pa

from examples.demo.rows import ROWS_PER_BUNDLE, SLOT, expected
from flight_service.client import connect


def main(url: str, rows: int) -> None:
    """Put that many rows; what was put, as JSON."""
    server, _, stream = url.rpartition("/")
    began = time.monotonic()
    with connect(server) as client, client.stream(stream).writer(window=64) as writer:
        for first in range(0, rows, ROWS_PER_BUNDLE):
            ids = pa.array(range(first, min(first + ROWS_PER_BUNDLE, rows)), pa.int64())
            writer.put({SLOT: expected(ids)}, key=f"plain/{first}")
    seconds = time.monotonic() - began
    print(json.dumps({"rows": rows, "nbytes": writer.stats.nbytes, "seconds": seconds}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
