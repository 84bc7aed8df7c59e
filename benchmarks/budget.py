"""Where each microsecond of a durable put goes: ``make budget``.

Every stage of the server's put path, by itself and in one thread, in processor time: the
best of several tries, since a stage can't be faster than it is but anything can disturb it.
What Flight itself costs comes from the put bars, which measure R.  Then the same path in a
running server, by thread: there every stage finds the caches full of something else, and the
threads share two cores and one interpreter.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from rich.console import Console
from rich.table import Table

import quiver
from benchmarks.data import telemetry
from benchmarks.flight.threads import in_the_server
from benchmarks.run import RESULTS, describe_machine
from flight_service.protocol.wrapper import unwrap, wrap
from flight_service.server.process import tune_process
from quiver.format.arrow.ipc import encode_batch
from quiver.format.crc import crc32
from quiver.format.record import BundleMeta, EncodedSlot
from quiver.format.wal.entry import prepare_bundle
from quiver.segment.open_segment import OpenSegment
from quiver.segment.writer import lay_out

OUT: Final = Path(__file__).with_name("budget.json")
SIZES: Final = {"10 KiB": 10 << 10, "100 KiB": 100 << 10, "1 MiB": 1 << 20}
FLIGHT: Final = {"10 KiB": "P1s", "100 KiB": "P1m", "1 MiB": "P1"}
TRIES: Final = 9
GROUP: Final = 32
SEGMENT: Final = 32 << 20
SETTINGS: Final[dict[str, Any]] = {"segment__max_open_duration": 3600}


def best(step: Callable[[], object], number: int) -> float:
    """Processor microseconds of one call."""
    found = []
    for _ in range(TRIES):
        began = time.thread_time()
        for _ in range(number):
            step()
        found.append((time.thread_time() - began) / number * 1e6)
    return min(found)


def stages(size: int, directory: Path) -> dict[str, float]:
    """Microseconds per bundle, stage by stage."""
    given = telemetry(size)
    batch = pa.ipc.read_record_batch(given.serialize(), given.schema)
    number = max(5, (4 << 20) // size)
    encoded = encode_batch(batch)
    slot = EncodedSlot(0, encoded.schema.schema_hash, encoded)
    wrapped = wrap({"Logs": given})
    found = {
        "validate (full)": best(lambda: batch.validate(full=True), number),
        "encode: serialize, cached schema": best(lambda: encode_batch(batch), number),
        "checksum (CRC-32)": best(lambda: crc32(encoded.batch), number),
        "lay out the log entry": best(lambda: prepare_bundle([slot]), number),
        "bundle mode: take the wrapper apart": best(lambda: unwrap(wrapped), number),
    }
    put, commit = _through_a_store(size, batch, directory)
    inside = sum(list(found.values())[:4])
    found["the rest of a put: limits, refs, receipt"] = max(0.0, put - inside)
    found["log: write and sync a group"] = commit
    found["segment: lay out"] = _layout(size, encoded)
    return found


def _through_a_store(size: int, batch: pa.RecordBatch, directory: Path) -> tuple[float, float]:
    """A put until it is staged, and its share of a group's commit; sealing left out."""
    puts, commits = [], []
    count = GROUP if size < 1 << 20 else 4
    with (
        tempfile.TemporaryDirectory(dir=directory) as empty,
        quiver.open(Path(empty) / "store", **SETTINGS) as store,
    ):
        for _ in range(max(20, 3 * SEGMENT // size // GROUP)):
            began = time.thread_time()
            for _ in range(count):
                store.put({"Logs": batch}, timeout=30)
            staged = time.thread_time()
            store.sync()
            ended = time.thread_time()
            puts.append((staged - began) / count * 1e6)
            commits.append((ended - staged) / count * 1e6)
    # Sealing happens inside of some puts: the lower tenth has none of it.
    tenth = len(puts) // 10
    return sorted(puts)[tenth], sorted(commits)[tenth]


def _layout(size: int, encoded: Any) -> float:
    segment = OpenSegment(1)
    slot = EncodedSlot(0, encoded.schema.schema_hash, encoded)
    count = SEGMENT // size
    for number in range(count):
        segment.append([slot], BundleMeta(number, 10**18 + number, rows=encoded.rows, nbytes=size))
    return best(lambda: lay_out(segment, {0: "Logs"}), 1) / count


def flight() -> dict[str, float]:
    """What reading a message costs a server that throws it away, by size; if measured."""
    known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    return {
        label: known[bar]["reference_cpu_us_per_bundle"]
        for label, bar in FLIGHT.items()
        if "reference_cpu_us_per_bundle" in known.get(bar, {})
    }


def main() -> int:
    tune_process()
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix=".budget-") as directory:
        found = {label: stages(size, Path(directory)) for label, size in SIZES.items()}
        live = {label: in_the_server(size, Path(directory)) for label, size in SIZES.items()}
    received = flight()
    for label, cost in received.items():
        found[label] = {"Flight: read the message (R)": cost, **found[label]}
    table = Table(title="Processor time of a put, in microseconds", caption=describe_machine())
    table.add_column("stage")
    for label in SIZES:
        table.add_column(label, justify="right")
    for stage in found["1 MiB"]:
        table.add_row(stage, *(f"{found[label].get(stage, 0):,.1f}" for label in SIZES))
    table.add_section()
    for role in live["1 MiB"]:
        table.add_row(role, *(f"{live[label][role]:,.1f}" for label in SIZES))
    Console().print(table)
    said = {"machine": describe_machine(), "us": found, "server_us": live}
    OUT.write_text(json.dumps(said, indent=2) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
